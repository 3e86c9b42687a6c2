//! NUMA balancing as version 27 of the `AutoNUMA` patch has it (Andrea Arcangeli, linux-mm, 4 October 2012,
//! patch 19 of 33, `mm/autonuma.c`; its `Documentation/vm/autonuma.txt`), for one process.
//!
//! It differs from the code that Linux merged. A daemon of its own scans at a fixed pace. It marks a 2 MiB
//! range of the page table at a time (`scan_pmd`, set by default). So the first thread to come back faults
//! for all of the range's pages. A page's first fault moves it at once, later ones when the node is the same
//! twice in a row, whether threads share the page or not. Threads that are not pinned change places
//! (`exchange.rs`). One thing is left out: a new thread begins on its maker's node if that has an idle CPU
//! (patches 18 and 19). Here all threads are there from the start with a CPU each.

use crate::os::kernel::memory::Memory;
use crate::os::policies::exchange::Exchange;
use std::ops::Range;

/// Between chunks of a scan, and between scans (`scan_sleep_millisecs`, `scan_sleep_pass_millisecs`).
const CHUNK_SLEEP_MS: f64 = 100.0;
const PASS_SLEEP_MS: f64 = 10_000.0;
/// Pages that a chunk has, and that a node receives in a window at most: 128 MiB (`pages_to_scan`,
/// `pages_to_migrate`).
const CHUNK_PAGES: f64 = 32_768.0;
const WINDOW_PAGES: f64 = 32_768.0;
/// That window (`migrate_sleep_millisecs`).
const WINDOW_MS: f64 = 100.0;
/// Pages that are marked and fault together: those of an entry of the page middle directory.
const RANGE_PAGES: f64 = 512.0;

/// Between two looks of a CPU at whom its thread should change places with: the scheduler's balancing among
/// busy CPUs that are balanced (4 ms, 64 times as long for busy ones: `SD_CPU_INIT`, Linux 3.6).
const LOOK_MS: f64 = 256.0;

const NOBODY: u8 = u8::MAX;

/// The kernel's record of a process, and of each node.
#[derive(Clone, Debug)]
pub(crate) struct AutoNuma27 {
    /// When the next chunk is due, and the next look at the threads.
    next_scan_ps: u64,
    next_look_ps: u64,
    /// Scans that have begun (`mm_numa_fault_pass`), and ended.
    passes: (u64, u64),
    /// Threads that may change places.
    exchange: Option<Exchange>,
    /// Simulated periods over real ones.
    period_scale: f64,
    chunk_pages: u64,
    window_pages: u64,
    range_pages: usize,
    /// Where the scan goes on.
    cursor: usize,
    /// The node of each page's last hint fault (`autonuma_last_nid`).
    last_node: Vec<u8>,
    /// Each node's start of its window, and the pages that it received since.
    received: Vec<(u64, u64)>,
}

impl AutoNuma27 {
    pub(crate) fn new(
        memory: &Memory,
        nodes: usize,
        period_scale: f64,
        size_scale: f64,
        exchange: Option<Exchange>,
    ) -> Self {
        let scaled = |pages: f64| (pages * size_scale).max(1.0) as u64;
        Self {
            next_scan_ps: 0,
            next_look_ps: if exchange.is_some() { 0 } else { u64::MAX },
            passes: (0, 0),
            exchange,
            period_scale,
            chunk_pages: scaled(CHUNK_PAGES),
            window_pages: scaled(WINDOW_PAGES),
            // Shrunk with the problem, so that as many threads use one as at full size; a huge page has one.
            range_pages: (scaled(RANGE_PAGES) as usize).next_power_of_two().max(memory.huge_unit()),
            cursor: 0,
            last_node: vec![NOBODY; memory.pages()],
            received: vec![(0, 0); nodes],
        }
    }

    /// Says how much of the daemon's pause is left when the program begins.
    pub(crate) fn begin(&mut self, until_scan: f64) {
        self.next_scan_ps = self.ps(PASS_SLEEP_MS * until_scan);
    }

    /// When something is due.
    pub(crate) fn next_ps(&self) -> u64 {
        self.next_scan_ps.min(self.next_look_ps)
    }

    /// Marks the next chunk if it is due (`knumad_do_scan`). Returns how many pages.
    pub(crate) fn scan(&mut self, memory: &mut Memory, now_ps: u64) -> u64 {
        if now_ps < self.next_scan_ps {
            return 0;
        }
        self.passes.0 += u64::from(self.cursor == 0);
        let mut marked = 0;
        while marked < self.chunk_pages && self.cursor < memory.pages() {
            let range = self.range_of(self.cursor, memory);
            marked += range.clone().filter(|&page| memory.mark(page)).count() as u64;
            self.cursor = range.end;
        }
        let mut sleep_ms = CHUNK_SLEEP_MS;
        if self.cursor >= memory.pages() {
            self.cursor = 0;
            self.passes.1 += 1;
            sleep_ms = PASS_SLEEP_MS;
        }
        self.next_scan_ps = now_ps + self.ps(sleep_ms).max(1);
        marked
    }

    /// The pages that fault with one.
    pub(crate) fn range_of(&self, page: usize, memory: &Memory) -> Range<usize> {
        let start = page / self.range_pages * self.range_pages;
        start..(start + self.range_pages).min(memory.pages())
    }

    /// `last_nid_set` and `autonuma_migrate_page`: notes the fault and decides whether the page comes to the
    /// faulting node.
    pub(crate) fn wants(&mut self, page: usize, node: usize, home: usize, now_ps: u64) -> bool {
        let last = std::mem::replace(&mut self.last_node[page], node as u8);
        if (last != NOBODY && usize::from(last) != node) || node == home {
            return false;
        }
        let window_ps = self.ps(WINDOW_MS);
        let (began_ps, pages) = &mut self.received[node];
        if now_ps > *began_ps + window_ps {
            (*began_ps, *pages) = (now_ps, 0);
        }
        let room = *pages < self.window_pages;
        *pages += u64::from(room);
        room
    }

    /// Notes that a thread faulted on a page that is on a node now.
    pub(crate) fn note(&mut self, thread: usize, home: usize) {
        if let Some(exchange) = &mut self.exchange {
            exchange.note(thread, home, self.passes.0);
        }
    }

    /// Whether it is time to look at the threads: not before all memory was scanned once.
    pub(crate) fn looks(&mut self, now_ps: u64) -> Option<&Exchange> {
        if now_ps < self.next_look_ps {
            return None;
        }
        self.next_look_ps = now_ps + self.ps(LOOK_MS).max(1);
        self.exchange.as_ref().filter(|_| self.passes.1 > 0)
    }

    fn ps(&self, ms: f64) -> u64 {
        (ms * self.period_scale * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Space};
    use nodewise_hardware::Preset;

    fn memory(pages: u64) -> Memory {
        let mut space = Space::new();
        space.area("area", pages * 4096, Role::Unknown);
        let preset = Preset::named("opteron-8385-4n").unwrap();
        let mut memory = Memory::new(&preset, &space.into_areas(), false);
        for page in 0..pages as usize {
            memory.map(page, 0, false).unwrap();
        }
        memory
    }

    #[test]
    fn a_page_moves_at_its_first_fault_then_at_the_second_in_a_row() {
        let mut autonuma = AutoNuma27::new(&memory(1), 4, 1.0, 1.0, None);
        assert!(autonuma.wants(0, 2, 0, 0));
        assert!(!autonuma.wants(0, 3, 2, 0));
        assert!(!autonuma.wants(0, 1, 2, 0));
        assert!(autonuma.wants(0, 1, 2, 0));
        assert!(!autonuma.wants(0, 1, 1, 0));
    }

    #[test]
    fn a_node_receives_128_mib_in_a_tenth_of_a_second() {
        let mut autonuma = AutoNuma27::new(&memory(64), 4, 1.0, 1.0 / 1024.0, None);
        let moved = |autonuma: &mut AutoNuma27, pages: Range<usize>, now_ps| {
            pages.filter(|&page| autonuma.wants(page, 1, 0, now_ps)).count()
        };
        assert_eq!(moved(&mut autonuma, 0..40, 1), 32);
        assert_eq!(moved(&mut autonuma, 40..64, 200_000_000_000), 24);
    }

    #[test]
    fn scans_are_ten_seconds_apart_and_go_in_chunks() {
        let mut memory = memory(512);
        let mut autonuma = AutoNuma27::new(&memory, 4, 1.0, 1.0 / 128.0, None);
        autonuma.begin(0.5);
        let mut at_s = Vec::new();
        for _ in 0..4 {
            let now_ps = autonuma.next_scan_ps;
            at_s.push((now_ps as f64 / 1e12, autonuma.scan(&mut memory, now_ps)));
        }
        // 256 pages a chunk; those that are still marked are passed over.
        assert_eq!(at_s, [(5.0, 256), (5.1, 256), (15.1, 0), (25.1, 0)]);
        assert_eq!(autonuma.range_of(9, &memory), 8..12);
    }
}
