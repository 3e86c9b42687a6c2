//! The one error type of this crate.

use std::fmt;
use std::path::Path;

/// An error of the live machine: the fault, its place, and what to do about it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The classes of error a caller may want to treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A capability, sysctl or file permission is missing; the message names it.
    NotPermitted,
    /// This kernel or machine cannot do it; the message says what is missing.
    Unsupported,
    /// The process does not exist (any more).
    NoSuchProcess,
    /// A file could not be read or written, or did not hold what it should.
    File,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(Box::new(source)) }
    }

    /// An I/O error on a file; a permission error stays one.
    pub(crate) fn file(path: &Path, doing: &str, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            _ => ErrorKind::File,
        };
        Self::with_source(kind, format!("cannot {doing} {}", path.display()), source)
    }

    /// A file that does not hold what it should.
    pub(crate) fn malformed(path: &Path, line: usize, expected: &str) -> Self {
        Self::new(ErrorKind::File, format!("{}, line {line}: expected {expected}", path.display()))
    }

    /// The error with its cause, in a line.
    pub(crate) fn in_full(&self) -> String {
        self.source
            .as_ref()
            .map_or_else(|| self.message.clone(), |cause| format!("{}: {cause}", self.message))
    }

    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
