//! The errors of lists of nodes and CPUs.

use std::fmt;

/// The fault of a list, and the item that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListError {
    pub(crate) kind: ListErrorKind,
    pub(crate) message: String,
}

/// The kinds of [`ListError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListErrorKind {
    /// The list is not written as lists are.
    Malformed,
    /// A node or CPU that does not exist or may not be used; or nothing is left.
    NotAllowed,
    /// There is no such device, file, host or route.
    NoSuchDevice,
    /// The device is there, but its node is not known.
    NodeUnknown,
    /// Looking the device up failed.
    Unreadable,
}

impl ListError {
    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ListErrorKind {
        self.kind
    }
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ListError {}
