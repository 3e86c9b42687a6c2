//! The crate's one error.

use nodewise_topology::NodeId;
use std::fmt;

/// Result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be set up.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `/sys` or `/proc` could not be read, or do not hold what the kernel writes there.
    Machine,
    /// A node that this pool has no workers on.
    NoWorkers,
    /// The kernel refused a thread, or to confine it to its node.
    Thread,
}

impl Error {
    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn no_workers(node: NodeId) -> Self {
        let what = format!("the pool has no workers on node {node}: choose one of NodePool::nodes()");
        Self { kind: ErrorKind::NoWorkers, what, source: None }
    }

    pub(crate) fn nowhere() -> Self {
        let what = "none of the nodes asked for has a CPU that this thread may use".to_owned();
        Self { kind: ErrorKind::NoWorkers, what, source: None }
    }

    pub(crate) fn thread(what: String, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { kind: ErrorKind::Thread, what, source: Some(source.into()) }
    }
}

impl From<nodewise_topology::Error> for Error {
    fn from(error: nodewise_topology::Error) -> Self {
        let what = "cannot tell what this process may use".to_owned();
        Self { kind: ErrorKind::Machine, what, source: Some(Box::new(error)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
