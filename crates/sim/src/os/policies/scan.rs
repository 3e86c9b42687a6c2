//! Which memory NUMA balancing of Linux 6 marks for hint faults (`task_numa_work`, `kernel/sched/fair.c`,
//! Linux 6.12), for one process.
//!
//! A program's memory is one VMA, as the kernel merges neighbours. Then `vma_is_accessed` leaves nothing out:
//! where no VMA was used by the scanning thread, one is scanned nevertheless. Left out: that a process of one
//! thread has no pages marked on its own node.

use crate::os::kernel::memory::Memory;
use std::ops::Range;

/// A scan walks over so many times what it may mark, where there is nothing to mark (`virtpages`).
const WALKED: usize = 8;

/// Walks over a process's memory.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    areas: Vec<Range<usize>>,
    /// Where the next scan begins.
    offset: usize,
    /// How often it has come to the end (`numa_scan_seq`).
    sequence: i32,
    /// Pages that a scan may mark.
    pages: usize,
}

impl Scanner {
    /// For areas in the order of their addresses.
    pub(crate) fn new(areas: &[Range<usize>], pages: usize) -> Self {
        Self { areas: areas.to_vec(), offset: 0, sequence: 0, pages: pages.max(1) }
    }

    pub(crate) fn sequence(&self) -> i32 {
        self.sequence
    }

    /// Marks the next pages. Returns how many.
    pub(crate) fn scan(&mut self, memory: &mut Memory) -> u64 {
        let (mut left, mut walk) = (self.pages, WALKED * self.pages);
        let mut marked = 0;
        if self.areas.last().is_none_or(|last| last.end <= self.offset) {
            self.end_sequence();
        }
        let next = self.areas.partition_point(|area| area.end <= self.offset);
        for area in &self.areas[next..] {
            self.offset = self.offset.max(area.start);
            while self.offset < area.end {
                let end = (self.offset + left).next_multiple_of(memory.pages_of_huge()).min(area.end);
                let updated = mark(memory, self.offset..end);
                let passed = end - self.offset;
                marked += updated;
                if updated > 0 {
                    left = left.saturating_sub(passed);
                }
                walk = walk.saturating_sub(passed);
                self.offset = end;
                if left == 0 || walk == 0 {
                    return marked;
                }
            }
        }
        self.end_sequence();
        marked
    }

    fn end_sequence(&mut self) {
        self.sequence += 1;
        self.offset = 0;
    }
}

/// Marks pages for hint faults. Returns how many that were not (`change_prot_numa`).
fn mark(memory: &mut Memory, pages: Range<usize>) -> u64 {
    let mut marked = 0;
    let mut page = pages.start;
    while page < pages.end {
        let together = memory.together(page);
        if memory.mark(together.start) {
            together.clone().skip(1).for_each(|page| {
                memory.mark(page);
            });
            marked += together.len() as u64;
        }
        page = together.end;
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Space};
    use nodewise_hardware::Preset;

    const MIB: usize = 256;

    /// Areas of so many MiB, all on node 0, and a scanner that marks 4 MiB at a time.
    fn areas(mib: &[u64]) -> (Scanner, Memory) {
        let mut space = Space::new();
        let bases: Vec<u64> = mib.iter().map(|mib| space.area("area", mib << 20, Role::Unknown)).collect();
        let mut memory = Memory::new(&Preset::named("dahu-2n").unwrap(), &space.into_areas(), false);
        let area = |(&base, &mib): (&u64, &u64)| {
            let first = memory.page(base);
            first..first + mib as usize * MIB
        };
        let areas: Vec<_> = bases.iter().zip(mib).map(area).collect();
        for page in areas.iter().cloned().flatten() {
            memory.map(page, 0, false).unwrap();
        }
        (Scanner::new(&areas, 4 * MIB), memory)
    }

    /// The MiB of each area that a scan marks, after which the marks are taken away.
    fn scan((scanner, memory): &mut (Scanner, Memory)) -> Vec<usize> {
        scanner.scan(memory);
        let take = |area: &Range<usize>| {
            let marked = area.clone().filter(|&page| memory.plain_home(page).is_none()).count() / MIB;
            area.clone().for_each(|page| memory.unmark(page));
            marked
        };
        scanner.areas.iter().map(take).collect()
    }

    #[test]
    fn a_scan_marks_so_much_and_the_next_goes_on() {
        let mut areas = areas(&[3, 7]);
        // To the end of a huge page.
        assert_eq!(scan(&mut areas), [3, 2]);
        assert_eq!(scan(&mut areas), [0, 4]);
        assert_eq!((scan(&mut areas), areas.0.sequence()), (vec![0, 1], 1));
        assert_eq!(scan(&mut areas), [3, 2]);
    }

    #[test]
    fn one_that_stops_at_the_end_leaves_the_sequences_end_to_the_next() {
        let mut areas = areas(&[4]);
        assert_eq!((scan(&mut areas), areas.0.sequence()), (vec![4], 0));
        assert_eq!((scan(&mut areas), areas.0.sequence()), (vec![4], 1));
    }

    #[test]
    fn what_is_marked_already_is_walked_over_and_not_far() {
        let (mut scanner, mut memory) = areas(&[40, 4]);
        mark(&mut memory, scanner.areas[0].clone());
        assert_eq!(scanner.scan(&mut memory), 0);
        assert_eq!(scanner.offset - scanner.areas[0].start, 8 * 4 * MIB);
        assert_eq!(scanner.scan(&mut memory), 4 * MIB as u64);
    }

    #[test]
    fn huge_pages_are_marked_whole() {
        let (mut scanner, mut memory) = areas(&[9]);
        scanner.pages = 300;
        assert_eq!(scanner.scan(&mut memory), 512);
    }
}
