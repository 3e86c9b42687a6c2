//! Which memory NUMA balancing of Linux 6 marks for hint faults (`task_numa_work`, `kernel/sched/fair.c`, Linux 6.12), for one process.
//!
//! As the kernel does it: VMAs in turn, so much memory a scan, those left out that the scanning thread has not used lately
//! (`vma_is_accessed`). An area is a VMA. Left out: VMAs that come and go, and that a process of one thread has no pages marked on its own node.

use std::ops::Range;

use super::memory::Memory;

/// A scan walks over so many times what it may mark, where there is nothing to mark (`virtpages`).
const WALKED: usize = 8;
/// So often the delay of a VMA's first scan pass until who used it is half forgotten (`VMA_PID_RESET_PERIOD`).
const FORGETS: u64 = 4;

/// A virtual memory area.
#[derive(Clone, Debug)]
struct Vma {
    pages: Range<usize>,
    /// Since a scan has come by.
    state: Option<State>,
}

/// What is remembered of one (`vma_numab_state`).
#[derive(Clone, Debug)]
struct State {
    /// The sequences in which it was first seen and last scanned to its end.
    first: i32,
    last: i32,
    /// A new one is left alone until then.
    from_ps: u64,
    /// When who used it is next half forgotten.
    forget_ps: u64,
    /// Threads with hint faults in it, before and since that was last so.
    users: [u64; 2],
}

/// A thread's bit among users; some threads share one (`hash_32` of the thread's number).
fn bit(thread: usize) -> u64 {
    1 << ((thread as u32 + 1).wrapping_mul(0x61C8_8647) >> 26)
}

/// Walks over a process's memory.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    vmas: Vec<Vma>,
    /// Where the next scan begins.
    offset: usize,
    /// How often it has come to the end (`numa_scan_seq`).
    sequence: i32,
    /// Pages that a scan may mark.
    pages: usize,
    /// How long a VMA is left alone that comes later than the first sequence (`numa_balancing_scan_delay`).
    delay_ps: u64,
}

impl Scanner {
    /// For VMAs in the order of their addresses.
    pub(super) fn new(vmas: &[Range<usize>], pages: usize, delay_ps: u64) -> Scanner {
        let vmas = vmas.iter().map(|pages| Vma { pages: pages.clone(), state: None }).collect();
        Scanner { vmas, offset: 0, sequence: 0, pages: pages.max(1), delay_ps }
    }

    pub(super) fn sequence(&self) -> i32 {
        self.sequence
    }

    /// A thread has a hint fault (`vma_set_access_pid_bit`).
    pub(super) fn used(&mut self, page: usize, thread: usize) {
        let place = self.vmas.partition_point(|vma| vma.pages.end <= page);
        if let Some(state) = self.vmas.get_mut(place).and_then(|vma| vma.state.as_mut()) {
            state.users[1] |= bit(thread);
        }
    }

    /// A thread, one of so many, marks the next pages. Returns how many.
    pub(super) fn scan(&mut self, memory: &mut Memory, thread: usize, threads: usize, now_ps: u64) -> u64 {
        let (mut left, mut walk) = (self.pages, WALKED * self.pages);
        let mut marked = 0;
        let mut skipped = false;
        // If nothing else is left, one VMA is scanned that the thread has not used.
        for forced in [false, true] {
            let mut start = self.offset;
            let mut next = self.vmas.partition_point(|vma| vma.pages.end <= start);
            if next == self.vmas.len() {
                self.end_sequence();
                (start, next) = (0, 0);
            }
            for place in next..self.vmas.len() {
                let pages = self.vmas[place].pages.clone();
                if !self.due(place, now_ps) {
                    continue;
                }
                if !forced && !self.is_accessed(place, thread, threads) {
                    skipped = true;
                    continue;
                }
                start = start.max(pages.start);
                while start < pages.end {
                    let end = (start + left).next_multiple_of(memory.pages_of_huge()).min(pages.end);
                    let updated = mark(memory, start..end);
                    let passed = end - start;
                    marked += updated;
                    if updated > 0 {
                        left = left.saturating_sub(passed);
                    }
                    walk = walk.saturating_sub(passed);
                    start = end;
                    if left == 0 || walk == 0 {
                        self.offset = start;
                        return marked;
                    }
                }
                if let Some(state) = &mut self.vmas[place].state {
                    state.last = self.sequence;
                }
                if forced {
                    self.offset = start;
                    return marked;
                }
            }
            if !skipped {
                break;
            }
        }
        self.end_sequence();
        marked
    }

    fn end_sequence(&mut self) {
        self.sequence += 1;
        self.offset = 0;
    }

    /// Whether a VMA is not new, nor scanned to its end in this sequence.
    fn due(&mut self, place: usize, now_ps: u64) -> bool {
        let (sequence, delay_ps) = (self.sequence, self.delay_ps);
        let vma = &mut self.vmas[place];
        let state = vma.state.get_or_insert_with(|| State {
            first: sequence,
            last: sequence - 1,
            from_ps: now_ps + delay_ps,
            forget_ps: now_ps + (1 + FORGETS) * delay_ps,
            users: [0; 2],
        });
        if sequence > 0 && now_ps < state.from_ps {
            return false;
        }
        if sequence > 0 && now_ps > state.forget_ps {
            state.forget_ps += FORGETS * delay_ps;
            state.users = [state.users[1], 0];
        }
        if state.last == sequence {
            self.offset = vma.pages.end;
            return false;
        }
        true
    }

    /// `vma_is_accessed`.
    fn is_accessed(&self, place: usize, thread: usize, threads: usize) -> bool {
        let Vma { pages, state: Some(state) } = &self.vmas[place] else { return true };
        self.sequence - state.first < 2
            || (state.users[0] | state.users[1]) & bit(thread) != 0
            // A scan that has begun goes on, whoever does it.
            || self.offset > pages.start
            // Nobody has used it for a while, but there are not many who could.
            || self.sequence > state.last + threads as i32
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

    const SECOND: u64 = 1_000_000_000_000;
    const MIB: usize = 256;

    /// Areas of so many MiB, all on node 0, and a scanner that marks 4 MiB at a time.
    fn areas(mib: &[u64]) -> (Scanner, Memory) {
        let mut space = Space::new();
        let bases: Vec<u64> = mib.iter().map(|mib| space.area("area", mib << 20, Role::Unknown)).collect();
        let mut memory = Memory::new(&Preset::named("dahu-2n").unwrap(), &space.into_areas(), false);
        let vma = |(&base, &mib): (&u64, &u64)| {
            let first = memory.page(base);
            first..first + mib as usize * MIB
        };
        let vmas: Vec<_> = bases.iter().zip(mib).map(vma).collect();
        for page in vmas.iter().cloned().flatten() {
            memory.map(page, 0, false).unwrap();
        }
        (Scanner::new(&vmas, 4 * MIB, SECOND), memory)
    }

    /// Takes all marks away. Returns the MiB of each VMA that had them.
    fn marked(scanner: &Scanner, memory: &mut Memory) -> Vec<usize> {
        let take = |vma: &Vma| {
            let before = |&page: &usize| memory.plain_home(page).is_none();
            let marked = vma.pages.clone().filter(before).count() / MIB;
            vma.pages.clone().for_each(|page| memory.unmark(page));
            marked
        };
        scanner.vmas.iter().map(take).collect()
    }

    /// What a thread, one of `threads`, marks in a scan at such a second.
    fn scan(areas: &mut (Scanner, Memory), thread: usize, threads: usize, second: u64) -> Vec<usize> {
        let (scanner, memory) = areas;
        scanner.scan(memory, thread, threads, second * SECOND);
        marked(scanner, memory)
    }

    /// Areas after two sequences, in which all is scanned.
    fn after_two(mib: &[u64]) -> (Scanner, Memory) {
        let mut areas = areas(mib);
        for second in 2.. {
            if areas.0.sequence() == 2 {
                break;
            }
            scan(&mut areas, 0, 2, second);
        }
        areas
    }

    #[test]
    fn a_scan_marks_so_much_and_the_next_goes_on() {
        let mut areas = areas(&[3, 7]);
        // To the end of a huge page.
        assert_eq!(scan(&mut areas, 0, 2, 1), [3, 2]);
        assert_eq!(scan(&mut areas, 1, 2, 2), [0, 4]);
        assert_eq!((scan(&mut areas, 1, 2, 3), areas.0.sequence()), (vec![0, 1], 1));
    }

    #[test]
    fn what_is_marked_already_is_walked_over_and_not_far() {
        let (mut scanner, mut memory) = areas(&[40, 4]);
        mark(&mut memory, scanner.vmas[0].pages.clone());
        assert_eq!(scanner.scan(&mut memory, 0, 1, SECOND), 0);
        assert_eq!(scanner.offset - scanner.vmas[0].pages.start, 8 * 4 * MIB);
        assert_eq!(scanner.scan(&mut memory, 0, 1, 2 * SECOND), 4 * MIB as u64);
    }

    #[test]
    fn huge_pages_are_marked_whole() {
        let (mut scanner, mut memory) = areas(&[9]);
        scanner.pages = 300;
        assert_eq!(scanner.scan(&mut memory, 0, 1, SECOND), 512);
    }

    #[test]
    fn after_two_sequences_threads_scan_what_they_used() {
        let mut areas = areas(&[1, 1]);
        assert_eq!((scan(&mut areas, 2, 2, 1), scan(&mut areas, 2, 2, 2)), (vec![1, 1], vec![1, 1]));
        let scanner = &mut areas.0;
        scanner.used(scanner.vmas[0].pages.start, 0);
        scanner.used(scanner.vmas[1].pages.end - 1, 1);
        let accessed = |thread| [0, 1].map(|place| scanner.is_accessed(place, thread, 2));
        assert_eq!([accessed(0), accessed(1), accessed(2)], [[true, false], [false, true], [false, false]]);
    }

    #[test]
    fn where_nothing_else_is_left_one_vma_is_scanned_that_the_thread_has_not_used() {
        let mut areas = after_two(&[1, 1, 1]);
        areas.0.used(areas.0.vmas[1].pages.start, 0);
        assert_eq!(scan(&mut areas, 0, 2, 4), [1, 1, 0]);
        assert_eq!(scan(&mut areas, 0, 2, 5), [0, 0, 1]);
        assert_eq!((areas.0.sequence(), scan(&mut areas, 0, 2, 6)), (2, vec![1, 1, 0]));
    }

    #[test]
    fn a_scan_that_has_begun_in_a_vma_is_ended_by_whoever_comes() {
        let mut areas = after_two(&[6, 1]);
        areas.0.used(areas.0.vmas[0].pages.start, 0);
        areas.0.used(areas.0.vmas[1].pages.start, 1);
        assert_eq!(scan(&mut areas, 0, 2, 6), [4, 0]);
        assert_eq!((scan(&mut areas, 1, 2, 7), areas.0.sequence()), (vec![2, 1], 3));
    }

    #[test]
    fn a_vma_that_was_left_out_for_as_many_sequences_as_there_are_threads_is_scanned() {
        let mut areas = after_two(&[1, 6]);
        let mut seen = Vec::new();
        for second in 6..14 {
            areas.0.used(areas.0.vmas[1].pages.start, 0);
            seen.push((areas.0.sequence(), scan(&mut areas, 0, 2, second)));
        }
        // The scan ends in the second, after which the first is behind it. It was last scanned in sequence 1.
        assert_eq!(seen.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [2, 2, 3, 3, 4, 4, 5, 5]);
        let first: Vec<usize> = seen.iter().map(|(_, marked)| marked[0]).collect();
        assert_eq!(first, [0, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn who_used_a_vma_is_forgotten_after_the_second_four_seconds() {
        let mut areas = after_two(&[1]);
        let users = |areas: &mut (Scanner, Memory), second| {
            areas.0.due(0, second * SECOND);
            areas.0.vmas[0].state.as_ref().unwrap().users.map(|users| users == bit(7))
        };
        areas.0.used(areas.0.vmas[0].pages.start, 7);
        // Seen first at 2 s, so that it is forgotten a delay and four more later, and again every four.
        assert_eq!(users(&mut areas, 7), [false, true]);
        assert_eq!(users(&mut areas, 8), [true, false]);
        assert!(areas.0.is_accessed(0, 7, 2));
        assert_eq!(users(&mut areas, 11), [true, false]);
        assert_eq!(users(&mut areas, 12), [false, false]);
    }

    #[test]
    fn a_vma_that_is_new_when_others_were_scanned_waits_for_a_second() {
        let mut areas = areas(&[1, 1]);
        // Not while nothing has been scanned to the end.
        assert_eq!(scan(&mut areas, 0, 2, 1), [1, 1]);
        areas.0.vmas[1].state = None;
        assert_eq!(scan(&mut areas, 0, 2, 2), [1, 0]);
        assert_eq!(scan(&mut areas, 0, 2, 3), [1, 1]);
    }

    #[test]
    fn threads_have_bits_of_their_own_up_to_dozens() {
        let bits = (0..16).fold(0, |bits, thread| bits | bit(thread));
        assert_eq!(bits.count_ones(), 16);
    }
}
