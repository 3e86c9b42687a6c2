//! Why a machine is refused.

use std::{fmt, io};

/// An error: where, and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    origin: String,
    line: Option<usize>,
    reason: String,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No preset of that name comes along.
    Unknown,
    /// The file cannot be read.
    Unreadable,
    /// The text is not TOML or JSON, or lacks fields, or has others.
    Malformed,
    /// No machine is like that: a cache without ways, say, or a node that no link leads to.
    Impossible,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, origin: &str, line: Option<usize>, reason: String) -> Self {
        Self { kind, origin: origin.to_string(), line, reason }
    }

    pub(crate) fn unreadable(origin: &str, error: &io::Error) -> Self {
        Self::new(ErrorKind::Unreadable, origin, None, format!("cannot be read: {error}"))
    }

    /// The same error, where its line would lead nowhere.
    pub(crate) fn without_line(self) -> Self {
        Self { line: None, ..self }
    }

    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The line of the text it is about, from 1 on, if it is about one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.line
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.origin, self.reason),
            None => write!(f, "{}: {}", self.origin, self.reason),
        }
    }
}

impl std::error::Error for Error {}
