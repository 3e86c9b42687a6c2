//! A core: its clock, its own caches, and its outstanding misses.

use crate::cache::Tags;

#[derive(Clone, Debug)]
pub(super) struct Core {
    pub clock: u64,
    /// When the data of the last read is there.
    pub ready: u64,
    /// Its line, if it may still be on its way for an earlier access.
    pub last_line: u64,
    pub node: usize,
    pub llc: usize,
    pub l1: Tags,
    pub l2: Tags,
    /// Outstanding misses, then prefetches: when each is done, and its line.
    pub window: Vec<(u64, u64)>,
    /// How many times others' accesses took a line away, or the right to write one.
    pub losses: u32,
    /// When the first of the outstanding misses is done.
    pub free: u64,
}

pub(super) const NO_LINE: u64 = u64::MAX;

impl Core {
    /// When the data of the last read is there.
    #[inline]
    pub fn read_done(&self) -> u64 {
        if self.last_line == NO_LINE {
            return self.ready;
        }
        // The last read hit a line that may have been on its way.
        let on_its_way = self.window.iter().filter(|entry| entry.1 == self.last_line).map(|entry| entry.0);
        on_its_way.fold(self.ready, u64::max)
    }

    /// When all outstanding accesses are done.
    pub fn all_done(&self) -> u64 {
        self.window.iter().map(|entry| entry.0).fold(self.ready, u64::max)
    }
}
