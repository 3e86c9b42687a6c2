//! One observed access to memory.

use crate::{Pid, Tid, VirtAddr};
use nodewise_topology::NodeIndex;
use serde::{Deserialize, Serialize};

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// A load.
    Read,
    /// A store, or a read-modify-write.
    Write,
    /// The sampler cannot tell.
    Unknown,
}

/// The server of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataSource {
    /// A cache of the accessor's own node.
    LocalCache,
    /// A cache of another node.
    RemoteCache {
        /// Whether the line was modified there.
        modified: bool,
    },
    /// The accessor's own controller.
    LocalDram,
    /// Another node's controller; 0 hops when the hardware does not say how many.
    RemoteDram {
        /// Interconnect hops.
        hops: u8,
    },
    /// Persistent or CXL memory.
    SlowMemory,
    /// Not memory: I/O or uncached.
    Uncached,
    /// The sampler cannot tell.
    Unknown,
}

impl DataSource {
    /// A cache of another node, which had written the line.
    pub const TAKEN: Self = Self::RemoteCache { modified: true };

    /// Whether the page's node served it, or may have. A line that a cache has goes from cache to cache,
    /// wherever the page lies.
    #[must_use]
    pub const fn is_of_memory(self) -> bool {
        !matches!(self, Self::LocalCache | Self::TAKEN | Self::Uncached)
    }
}

/// How large the page around the address is, where the machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageSize {
    /// A base page ([`crate::PAGE_BYTES`]), or not known.
    Base,
    /// A folio of so many base pages, smaller than a huge page. It begins at a multiple of their number, and
    /// moves only as a whole.
    Folio(u16),
    /// A huge page of [`crate::HUGE_PAGE_PAGES`] base pages: it moves only as a whole.
    Huge,
}

/// One access to memory by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sample {
    /// When, in nanoseconds of the machine's clock.
    pub time_ns: u64,
    /// Which byte.
    pub address: VirtAddr,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// The node of the CPU that made the access: the accessor node.
    pub accessor: NodeIndex,
    /// The node that holds the page: the home node, as it was when the interval ended; none when not known.
    pub home: Option<NodeIndex>,
    /// Read or write.
    pub access: Access,
    /// The server of the access.
    pub source: DataSource,
    /// The size of the page.
    pub page_size: PageSize,
    /// From issue to completion, in core cycles; 0 when not known.
    pub latency_cycles: u32,
    /// How many accesses this sample stands for; at least 1.
    pub weight: u32,
}

impl Sample {
    /// Whether it wrote a line that its node's caches had. It is no access to memory, and tells that memory
    /// is written.
    #[must_use]
    pub fn is_cached_store(&self) -> bool {
        self.source == DataSource::LocalCache && self.access == Access::Write
    }
}
