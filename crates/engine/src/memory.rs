//! Processes, addresses and pages.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a base page. Kernels with larger base pages (16 or 64 KiB on Arm) are not supported.
pub const PAGE_BYTES: u64 = 4096;

/// Base pages of a huge page (2 MiB).
pub const HUGE_PAGE_PAGES: u64 = 512;

/// A process: the kernel's thread group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub u32);

/// A thread: the kernel's thread id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tid(pub u32);

/// A byte address in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VirtAddr(pub u64);

/// An address divided by [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageNumber(pub u64);

/// Pages `start..end` of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageRange {
    /// The first page.
    pub start: PageNumber,
    /// One past the last page.
    pub end: PageNumber,
}

impl VirtAddr {
    /// The page that holds this address.
    #[must_use]
    pub const fn page(self) -> PageNumber {
        PageNumber(self.0 / PAGE_BYTES)
    }
}

impl PageNumber {
    /// The address of the page's first byte.
    #[must_use]
    pub const fn address(self) -> VirtAddr {
        VirtAddr(self.0 * PAGE_BYTES)
    }

    /// The first base page of the (possible) huge page around this page.
    #[must_use]
    pub const fn huge(self) -> Self {
        Self(self.0 / HUGE_PAGE_PAGES * HUGE_PAGE_PAGES)
    }
}

impl PageRange {
    /// The range from page numbers, `start` inclusive, `end` exclusive; empty when `end <= start`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start: PageNumber(start), end: PageNumber(end) }
    }

    /// So many pages around this one that begin at a multiple of their number, as those of a huge page or
    /// another folio do.
    #[must_use]
    pub const fn around(page: PageNumber, pages: u64) -> Self {
        let first = page.0 - page.0 % pages;
        Self::new(first, first + pages)
    }

    /// The pages in the range.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether there is no page in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.pages() == 0
    }

    /// Whether the page is in it.
    #[must_use]
    pub const fn contains(self, page: PageNumber) -> bool {
        self.start.0 <= page.0 && page.0 < self.end.0
    }

    /// The pages in both ranges; may be empty.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The rest of the range without others, which are in ascending order.
    pub(crate) fn without(self, others: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut left = Vec::new();
        let mut at = self.start;
        for taken in others.into_iter().map(|other| other.intersect(self)).filter(|taken| !taken.is_empty()) {
            left.push(Self { start: at, end: taken.start });
            at = taken.end;
        }
        left.push(Self { start: at, end: self.end });
        left.retain(|part| !part.is_empty());
        left
    }

    /// The range in portions, cut at multiples of so many pages.
    pub(crate) fn portions(self, pages: u64) -> impl Iterator<Item = Self> {
        let cut = move |start: u64| Self::new(start, ((start / pages + 1) * pages).min(self.end.0));
        let first = Some(cut(self.start.0)).filter(|_| !self.is_empty());
        std::iter::successors(first, move |last| Some(cut(last.end.0)).filter(|next| !next.is_empty()))
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start.address(), self.end.address())
    }
}
