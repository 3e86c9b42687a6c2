//! A sample in eight bytes, so that sorting an interval's samples by page is sorting integers.
//!
//! From the highest bit: 45 bits page (57-bit addresses), 1 bit huge, 2 bits access, 8 bits accessor node, 8
//! bits home node.

use super::folios::first_page;
use crate::memory::HUGE_PAGE_PAGES;
use crate::{Access, PageSize, Sample};

/// Stands for an unknown home.
pub const NO_NODE: u8 = u8::MAX;

const PAGE_SHIFT: u32 = 19;
const HUGE_BIT: u64 = 1 << 18;
const ACCESS_SHIFT: u32 = 16;

/// A packed sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    /// Packs a sample; none if its address is no user address or its accessor is no node of the machine.
    pub fn pack(sample: &Sample, nodes: usize) -> Option<Self> {
        let page = first_page(sample);
        if page >> 45 != 0 || sample.accessor.get() >= nodes {
            return None;
        }
        let home = sample.home.filter(|node| node.get() < nodes).map_or(NO_NODE, |node| node.0);
        let access = match sample.access {
            Access::Read => 0,
            Access::Write => 1,
            Access::Unknown => 2,
        };
        let huge = if sample.page_size == PageSize::Huge { HUGE_BIT } else { 0 };
        Some(Self(
            page << PAGE_SHIFT
                | huge
                | access << ACCESS_SHIFT
                | u64::from(sample.accessor.0) << 8
                | u64::from(home),
        ))
    }

    /// An access of unknown kind to a base page of a huge page.
    #[cfg(test)]
    pub fn in_huge_page(page: u64, accessor: u8) -> Self {
        Self(Self::in_page(page, accessor).0 | HUGE_BIT)
    }

    /// An access of unknown kind to a base page.
    #[cfg(test)]
    pub fn in_page(page: u64, accessor: u8) -> Self {
        Self(page << PAGE_SHIFT | 2 << ACCESS_SHIFT | u64::from(accessor) << 8 | u64::from(NO_NODE))
    }

    /// The same by an access of this kind.
    #[cfg(test)]
    pub fn of_kind(self, access: Access) -> Self {
        let kind = match access {
            Access::Read => 0,
            Access::Write => 1,
            Access::Unknown => 2,
        };
        Self(self.0 & !(3 << ACCESS_SHIFT) | kind << ACCESS_SHIFT)
    }

    /// The base page; of a folio smaller than a huge page the first.
    pub const fn page(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// The first base page of what moves as a whole: the page, or the huge page around it.
    pub const fn unit(self) -> u64 {
        if self.is_huge() { self.page() & !(HUGE_PAGE_PAGES - 1) } else { self.page() }
    }

    /// One past the last base page of the unit.
    pub const fn unit_end(self) -> u64 {
        self.unit() + if self.is_huge() { HUGE_PAGE_PAGES } else { 1 }
    }

    /// Whether the page is huge.
    pub const fn is_huge(self) -> bool {
        self.0 & HUGE_BIT != 0
    }

    /// Whether it was surely a write.
    pub const fn is_write(self) -> bool {
        self.0 >> ACCESS_SHIFT & 3 == 1
    }

    /// Whether the kind of access is unknown.
    pub const fn is_unknown(self) -> bool {
        self.0 >> ACCESS_SHIFT & 3 == 2
    }

    /// The accessor node.
    pub const fn accessor(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// The home node, or [`NO_NODE`].
    pub const fn home(self) -> u8 {
        (self.0 & 0xff) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataSource, Pid, Tid, VirtAddr};
    use nodewise_topology::NodeIndex;

    #[test]
    fn an_unknown_home_stays_unknown_whoever_served_the_access() {
        let sample = |home| Sample {
            time_ns: 0,
            address: VirtAddr(0x7000),
            pid: Pid(1),
            tid: Tid(1),
            accessor: NodeIndex(1),
            home,
            access: Access::Read,
            source: DataSource::LocalDram,
            page_size: PageSize::Base,
            latency_cycles: 0,
            weight: 1,
        };
        let home = |home| Key::pack(&sample(home), 2).map(Key::home);
        assert_eq!(home(None), Some(NO_NODE));
        assert_eq!(home(Some(NodeIndex(0))), Some(0));
        assert_eq!(home(Some(NodeIndex(2))), Some(NO_NODE));
    }
}
