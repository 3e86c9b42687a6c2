//! A core's own caches, and its threads: their clocks and outstanding misses.

use super::siblings::Runs;
use crate::cache::Tags;

/// The caches that the threads of a core share.
#[derive(Clone, Debug)]
pub(super) struct Core {
    pub l1: Tags,
    pub l2: Tags,
    /// How many times others' accesses took a line away, or the right to write one.
    pub losses: u32,
}

/// A thread of a core: a CPU of the operating system.
#[derive(Clone, Debug)]
pub(super) struct Cpu {
    pub clock: u64,
    /// When the data of the last read is there.
    pub ready: u64,
    /// Its line, if it may still be on its way for an earlier access.
    pub last_line: u64,
    pub node: usize,
    pub llc: usize,
    /// Outstanding misses, then prefetches: when each is done, and its line.
    pub window: Vec<(u64, u64)>,
    /// When the first of the outstanding misses is done.
    pub free: u64,
    /// When it asks for a place among the core's outstanding misses, if it was put off until then.
    pub asks_ps: u64,
    /// Times at which the core's other thread may find it busy.
    pub runs: Runs,
}

pub(super) const NO_LINE: u64 = u64::MAX;
/// A time that no clock reaches, and to which an instruction's can be added.
pub(super) const NEVER: u64 = u64::MAX / 2;

impl Cpu {
    /// When the data of the last read is there, as far as this thread has asked for it.
    #[inline]
    pub fn read_done(&self) -> u64 {
        if self.last_line == NO_LINE { self.ready } else { self.ready.max(self.arrival(self.last_line)) }
    }

    /// When a line is there that may be on its way; 0 if it is not.
    #[inline]
    pub fn arrival(&self, line: u64) -> u64 {
        let on_its_way = self.window.iter().filter(|entry| entry.1 == line).map(|entry| entry.0);
        on_its_way.fold(0, u64::max)
    }

    /// When all outstanding accesses are done.
    pub fn all_done(&self) -> u64 {
        self.window.iter().map(|entry| entry.0).fold(self.ready, u64::max)
    }
}
