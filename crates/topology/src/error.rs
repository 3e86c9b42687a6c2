//! The errors of reading a machine.

use std::fmt;
use std::path::{Path, PathBuf};

/// The reason why a topology could not be read. It names the file, the line where there is one, and what was
/// expected there.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    line: Option<usize>,
    what: String,
    source: Option<std::io::Error>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A directory or file that every machine has is not there.
    NotFound,
    /// Reading is not permitted.
    PermissionDenied,
    /// Reading failed otherwise.
    Io,
    /// A file does not hold what the kernel writes there.
    Malformed,
    /// The machine is beyond what this crate can hold: more than 256 nodes.
    TooLarge,
}

impl Error {
    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file or directory the error is about.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line the error is about, counted from 1.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    pub(crate) fn new(kind: ErrorKind, path: &Path, what: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), line: None, what: what.into(), source: None }
    }

    pub(crate) fn malformed(path: &Path, line: usize, what: impl fmt::Display) -> Self {
        Self { line: Some(line), ..Self::new(ErrorKind::Malformed, path, what.to_string()) }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        Self { source: Some(source), ..Self::new(kind, path, "cannot be read") }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one line, whatever a captured tree's names hold.
        write!(f, "{}:", self.path.display().to_string().replace('\n', "\\n"))?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Text that is not what it should be: what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    expected: &'static str,
    found: String,
}

impl ParseError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        // A file that is not text at all must not flood the terminal.
        let mut short: String = found.trim_end().escape_debug().take(60).collect();
        if short.len() < found.trim_end().len() && short.chars().count() == 60 {
            short.push_str("...");
        }
        Self { expected, found: short }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found '{}'", self.expected, self.found)
    }
}

impl std::error::Error for ParseError {}
