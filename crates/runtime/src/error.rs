//! The crate's one error.

use crate::memory::Placement;
use nodewise_topology::{NodeId, NodeSet};
use std::fmt;
use std::ops::Range;

/// Result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why something could not be set up.
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
    /// The pool has no workers on the nodes asked for.
    NoWorkers,
    /// The kernel refused to start a thread, or to confine it to its node.
    Thread,
    /// This process cannot have the layout.
    Layout,
    /// The kernel does not have so much memory, or it refuses a call. Filters of containers, Docker's among
    /// them, refuse memory policies and `move_pages(2)`. Asking for placements and giving hints fail then; of
    /// the rest only arrays and arenas without [`crate::Fallback::Anywhere`], on several nodes.
    Memory,
    /// Pages found no room on their node.
    NodeFull,
    /// The range is not within the array.
    Range,
    /// There is no room for the hints of more ranges.
    Hints,
    /// There is no such device, or its node is not known.
    Device,
    /// The process's default pool is in use, and keeps its workers.
    InUse,
}

impl Error {
    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn no_workers(node: NodeId, own: &NodeSet) -> Self {
        let what = format!("the pool has no workers on node {node}; it has some on: {own}");
        Self { kind: ErrorKind::NoWorkers, what, source: None }
    }

    pub(crate) fn nowhere() -> Self {
        let what = "none of the nodes asked for has a CPU that this thread may use".to_owned();
        Self { kind: ErrorKind::NoWorkers, what, source: None }
    }

    pub(crate) fn no_nodes() -> Self {
        let what = "there are no nodes in the set to bind this thread to".to_owned();
        Self { kind: ErrorKind::Thread, what, source: None }
    }

    pub(crate) fn in_use(workers: usize) -> Self {
        let what =
            format!("the default pool is in use with {workers} workers: limit it before its first use");
        Self { kind: ErrorKind::InUse, what, source: None }
    }

    pub(crate) fn device(what: String) -> Self {
        Self { kind: ErrorKind::Device, what, source: None }
    }

    pub(crate) fn layout(what: String) -> Self {
        Self { kind: ErrorKind::Layout, what, source: None }
    }

    pub(crate) fn memory(what: String, source: nodewise_sys::Error) -> Self {
        Self { kind: ErrorKind::Memory, what, source: Some(Box::new(source)) }
    }

    pub(crate) fn too_large(len: usize, size: usize) -> Self {
        let what = format!("{len} elements of {size} bytes are more than there are addresses");
        Self { kind: ErrorKind::Memory, what, source: None }
    }

    pub(crate) fn too_little_memory(bytes: usize, have: u64, nodes: &NodeSet) -> Self {
        let what = format!("{bytes} bytes are more than nodes {nodes} have: {have}");
        Self { kind: ErrorKind::Memory, what, source: None }
    }

    pub(crate) fn alignment(align: usize) -> Self {
        let what = format!("an alignment of {align} is no power of two");
        Self { kind: ErrorKind::Memory, what, source: None }
    }

    pub(crate) fn hints(ranges: usize) -> Self {
        let what = format!("more than {ranges} ranges have hints: give neighbours one, or forget some");
        Self { kind: ErrorKind::Hints, what, source: None }
    }

    pub(crate) fn range(elements: &Range<usize>, len: usize) -> Self {
        let what = format!("elements {}..{} are not within an array of {len}", elements.start, elements.end);
        Self { kind: ErrorKind::Range, what, source: None }
    }

    pub(crate) fn node_full(placement: &Placement) -> Self {
        let all: usize = placement.pages.values().sum();
        let there: Vec<String> =
            placement.pages.iter().map(|(node, pages)| format!("{pages} on node {node}")).collect();
        let what = format!(
            "{} of {all} pages found no room on their node ({}): free some, or allow that they lie elsewhere",
            placement.misplaced,
            there.join(", ")
        );
        Self { kind: ErrorKind::NodeFull, what, source: None }
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
