//! The crate's error.

use std::fmt;

/// Why nothing could be measured.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    reason: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A node has less free memory than the measurement needs.
    Memory,
    /// The process may not do it.
    NotPermitted,
    /// The figures do not suffice for what was to be made of them.
    Incomplete,
    /// The kernel refused it, or the machine could not be read.
    System,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// A system call that failed while something was done.
    pub(crate) fn call(doing: &str, error: nodewise_sys::Error) -> Self {
        let kind = match error.kind() {
            nodewise_sys::ErrorKind::NotPermitted => ErrorKind::NotPermitted,
            nodewise_sys::ErrorKind::OutOfMemory => ErrorKind::Memory,
            _ => ErrorKind::System,
        };
        Self::new(kind, format!("{doing}: {error}"))
    }

    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Error {}
