//! NUMA balancing of Linux 6 (`kernel/sched/fair.c`, Linux 6.12), for one process.
//!
//! As the kernel does it: scan periods that adapt, marks on so much memory a period, the filter of two references in a
//! row, the weighing of faults for pages that threads share. The kernel adapts a period for each thread, by its own faults; here all threads have
//! one, by the faults of all, and all are one group. Left out: VMAs that are skipped.

use super::memory::Memory;
use super::task_placement::{ACTIVE, TaskPlacement};

/// Time between scans at least and at most, and before the first (`scan_period_min_ms`, `scan_period_max_ms`, `scan_delay_ms`).
const PERIOD_MIN_MS: f64 = 1000.0;
const PERIOD_MAX_MS: f64 = 60_000.0;
const DELAY_MS: f64 = 1000.0;
/// Memory marked in a period (`scan_size_mb`), and the most in a second (`MAX_SCAN_WINDOW`).
const SCAN_MIB: f64 = 256.0;
const MOST_MIB_PER_S: f64 = 2560.0;
/// Local share of faults, in tenths, from which scans become slower (`NUMA_PERIOD_THRESHOLD`) and the slots a period is adapted by
/// (`NUMA_PERIOD_SLOTS`).
const THRESHOLD: f64 = 7.0;
const SLOTS: f64 = 10.0;

/// Who used a page before its first hint fault, and a part of a huge page before its first since it was split.
const NOBODY: u16 = u16::MAX;
const SPLIT: u16 = u16::MAX - 1;

/// Faults of several kinds.
#[derive(Clone, Debug)]
struct Faults {
    /// Since the last pass over the whole memory.
    fresh: Vec<f64>,
    /// Before, of which a pass counts half as much as the next.
    past: Vec<f64>,
}

impl Faults {
    fn new(kinds: usize) -> Faults {
        Faults { fresh: vec![0.0; kinds], past: vec![0.0; kinds] }
    }

    fn renew(&mut self) {
        for (past, fresh) in self.past.iter_mut().zip(&mut self.fresh) {
            *past = *past / 2.0 + std::mem::take(fresh);
        }
    }
}

/// What the kernel remembers of a process.
#[derive(Clone, Debug)]
pub(crate) struct Balancing {
    /// Split huge pages that nodes share.
    pub(crate) split: bool,
    /// Where threads belong, unless they are pinned.
    pub(crate) placement: Option<TaskPlacement>,
    /// When the next scan is due.
    pub(crate) next_scan_ps: u64,
    /// Simulated periods over real ones, and simulated memory over real.
    period_scale: f64,
    size_scale: f64,
    period_ms: f64,
    /// Where the scan goes on.
    cursor: usize,
    /// Passes over the whole memory.
    sequence: u32,
    /// The thread of each page's last hint fault, and its node then.
    last_thread: Vec<u16>,
    last_node: Vec<u8>,
    /// Pages that were faulted on: by the node they were on then, and by whether the thread that had faulted on them before was another.
    by_memory: Faults,
    by_sharing: Faults,
    /// The same of each thread since the last pass, by the node of its CPU.
    by_cpu: Vec<Vec<f64>>,
    /// Of all threads together, the part of its faults that each made on a node; a pass counts half as much as the next.
    cpu_shares: Vec<f64>,
    /// Pages faulted on at home and not, and whether a migration failed (`numa_faults_locality`).
    local: f64,
    remote: f64,
    failed: bool,
}

/// Kinds of [`Balancing::by_sharing`].
const SHARED: usize = 0;
const PRIVATE: usize = 1;

impl Balancing {
    pub(crate) fn new(
        split: bool,
        pages: usize,
        threads: usize,
        nodes: usize,
        period_scale: f64,
        size_scale: f64,
    ) -> Balancing {
        Balancing {
            split,
            placement: None,
            next_scan_ps: (DELAY_MS * period_scale * 1e9) as u64,
            period_scale,
            size_scale,
            period_ms: DELAY_MS,
            cursor: 0,
            sequence: 0,
            last_thread: vec![NOBODY; pages],
            last_node: vec![0; pages],
            by_memory: Faults::new(nodes),
            by_sharing: Faults::new(2),
            by_cpu: vec![vec![0.0; nodes]; threads],
            cpu_shares: vec![0.0; nodes],
            local: 0.0,
            remote: 0.0,
            failed: false,
        }
    }

    /// Marks the next pages. Returns how many.
    pub(crate) fn scan(&mut self, memory: &mut Memory, now_ps: u64) -> u64 {
        let resident_mib = memory.resident().iter().sum::<u64>() as f64 / 256.0 / self.size_scale;
        let windows = (resident_mib / SCAN_MIB).ceil().max(1.0);
        let budget = ((SCAN_MIB * 256.0 * self.size_scale) as u64).max(1);
        let mut marked = 0;
        let mut walked = 0;
        // It walks past holes, for as much as eight budgets.
        while marked < budget && walked < 8 * budget.max(memory.pages() as u64 / 8 + 1) {
            if self.cursor >= memory.pages() {
                self.cursor = 0;
                self.sequence += 1;
                self.end_pass(windows);
                if let Some(placement) = &mut self.placement {
                    placement.renew();
                }
                break;
            }
            let together = memory.together(self.cursor);
            if memory.mark(together.start) {
                for page in together.clone().skip(1) {
                    memory.mark(page);
                }
                marked += together.len() as u64;
            }
            walked += together.len() as u64;
            self.cursor = together.end;
        }
        self.next_scan_ps = now_ps + ((self.period_ms * self.period_scale * 1e9) as u64).max(1);
        marked
    }

    /// `task_numa_placement`: all memory, of so many scans, was scanned once more.
    fn end_pass(&mut self, windows: f64) {
        let (shared, private) = (self.by_sharing.fresh[SHARED], self.by_sharing.fresh[PRIVATE]);
        self.by_memory.renew();
        self.by_sharing.renew();
        self.cpu_shares.iter_mut().for_each(|share| *share /= 2.0);
        for faults in &mut self.by_cpu {
            let all: f64 = faults.iter().sum();
            for (share, faults) in self.cpu_shares.iter_mut().zip(faults) {
                *share += std::mem::take(faults) / (all + 1.0);
            }
        }
        self.adapt(shared, private, windows);
    }

    /// `update_task_scan_period`, after a pass with so many shared and private faults.
    fn adapt(&mut self, shared: f64, private: f64, windows: f64) {
        let (least, most) = self.period_bounds_ms(windows);
        if self.local + shared == 0.0 || self.failed {
            // It forgets nothing then: after a failed migration its scans become ever slower.
            self.period_ms = (2.0 * self.period_ms).min(most);
            return;
        }
        let slot = (self.period_ms / SLOTS).ceil();
        let tenths = |part: f64, rest: f64| (part * SLOTS / (part + rest).max(1.0)).floor();
        let (private, local) = (tenths(private, shared), tenths(self.local, self.remote));
        self.period_ms += if private >= THRESHOLD {
            (private - THRESHOLD).max(1.0) * slot
        } else if local >= THRESHOLD {
            (local - THRESHOLD).max(1.0) * slot
        } else {
            -(THRESHOLD - private.max(local)) * slot
        };
        self.period_ms = self.period_ms.clamp(least, most);
        (self.local, self.remote) = (0.0, 0.0);
    }

    /// `task_scan_min` and `task_scan_max`: the latter grows with the part of the faults that is shared, and with how many threads there are.
    fn period_bounds_ms(&self, windows: f64) -> (f64, f64) {
        let (shared, private) = (self.by_sharing.past[SHARED], self.by_sharing.past[PRIVATE]);
        let least = (PERIOD_MIN_MS / windows).max(1000.0 / (MOST_MIB_PER_S / SCAN_MIB));
        let grouped = if shared > 0.0 { self.by_cpu.len() as f64 } else { 1.0 };
        let longer = (grouped * (shared + 1.0) / (private + shared + 1.0)).max(1.0);
        (least, least.max(PERIOD_MAX_MS / windows * longer))
    }

    /// Whether the last fault on a page (the first of a huge page) came from another node.
    pub(crate) fn shared(&self, page: usize, node: usize) -> bool {
        let last = self.last_thread[page];
        last < SPLIT && usize::from(self.last_node[page]) != node
    }

    /// A part of a split huge page begins without a history of its own, and goes to who touches it next.
    pub(crate) fn forget(&mut self, part: usize) {
        self.last_thread[part] = SPLIT;
    }

    /// Notes a fault on pages that are together, known by the first, and decides whether they come to the faulting node.
    pub(crate) fn wants(
        &mut self,
        page: usize,
        pages: usize,
        thread: usize,
        node: usize,
        home: usize,
    ) -> bool {
        let last = std::mem::replace(&mut self.last_thread[page], thread as u16);
        let last_node = usize::from(std::mem::replace(&mut self.last_node[page], node as u8));
        let wants = node != home && self.would_move(last, last_node, thread, node, home);
        let private = last >= SPLIT || usize::from(last) == thread;
        if let Some(placement) = self.placement.as_mut().filter(|_| !private) {
            placement.group(thread, usize::from(last));
        }
        self.note(thread, node, home, if wants { node } else { home }, private, pages as f64);
        wants
    }

    /// `should_numa_migrate_memory`.
    fn would_move(&self, last: u16, last_node: usize, thread: usize, node: usize, home: usize) -> bool {
        let private = usize::from(last) == thread;
        if last == SPLIT || self.sequence <= 4 && (private || last == NOBODY) {
            return true;
        }
        if last != NOBODY && last_node != node {
            return false;
        }
        let (cpu, memory) = (&self.cpu_shares, &self.by_memory.past);
        private
            || cpu[node] * ACTIVE > cpu[home]
            || cpu[node] * memory[home] * 3.0 > cpu[home] * memory[node] * 4.0
    }

    /// `task_numa_fault`: the pages were at `home` and are at `now`.
    fn note(&mut self, thread: usize, node: usize, home: usize, now: usize, private: bool, pages: f64) {
        self.by_memory.fresh[now] += pages;
        self.by_sharing.fresh[if private { PRIVATE } else { SHARED }] += pages;
        self.by_cpu[thread][node] += pages;
        // Where several nodes use memory all over them, it is at home on any of them.
        let most = self.cpu_shares.iter().copied().fold(0.0, f64::max);
        let active = |node: usize| self.cpu_shares[node] > most * ACTIVE;
        let several = (0..self.cpu_shares.len()).filter(|&node| active(node)).count() > 1;
        let at_home = node == home || !private && several && active(node) && active(now);
        *(if at_home { &mut self.local } else { &mut self.remote }) += pages;
    }

    /// Faults by node of the CPU, each thread's in proportion to all of its own.
    pub(crate) fn cpu_shares(&self) -> &[f64] {
        &self.cpu_shares
    }

    /// A migration that failed slows the scan down.
    pub(crate) fn migration_ended(&mut self, moved: bool) {
        self.failed |= !moved;
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "all are small whole numbers")]
mod tests {
    use super::*;
    use crate::{Role, Space};
    use nodewise_hardware::Preset;

    /// Of four threads, two on each of two nodes, in simulated time that is real.
    fn balancing(pages: usize) -> Balancing {
        Balancing::new(false, pages, 4, 2, 1.0, 1.0)
    }

    fn memory(mib: u64) -> Memory {
        let mut space = Space::new();
        space.area("area", mib << 20, Role::Unknown);
        let mut memory = Memory::new(&Preset::named("dahu-2n").unwrap(), &space.into_areas(), false);
        for page in 0..memory.pages() {
            memory.map(page, 0, false).unwrap();
        }
        memory
    }

    /// All four threads make these faults on pages of node 0 each, half of the shared ones from node 0; then a pass ends.
    fn pass(balancing: &mut Balancing, private: f64, shared: f64) {
        for (thread, node) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            balancing.note(thread, node, 0, 0, true, private);
            balancing.note(thread, node, 0, 0, false, shared);
        }
        balancing.end_pass(1.0);
    }

    #[test]
    fn scans_are_a_second_apart_at_first_and_mark_256_mib() {
        let (mut balancing, mut memory) = (balancing(300 * 256), memory(300));
        let mut at_ms = Vec::new();
        for _ in 0..3 {
            let now_ps = balancing.next_scan_ps;
            at_ms.push((now_ps / 1_000_000_000, balancing.scan(&mut memory, now_ps)));
        }
        // Nobody came back, so the period doubles when all has been scanned; what is still marked is passed over.
        assert_eq!(at_ms, [(1000, 256 * 256), (2000, 44 * 256), (4000, 0)]);
    }

    #[test]
    fn its_period_is_within_bounds_that_go_with_the_memory() {
        let balancing = balancing(1);
        assert_eq!(balancing.period_bounds_ms(1.0), (1000.0, 60_000.0));
        assert_eq!(balancing.period_bounds_ms(4.0), (250.0, 15_000.0));
        // 2560 MiB a second at most.
        assert_eq!(balancing.period_bounds_ms(100.0), (100.0, 600.0));
    }

    #[test]
    fn the_longest_period_grows_with_what_threads_share() {
        let mut all_shared = balancing(1);
        pass(&mut all_shared, 0.0, 10.0);
        assert_eq!(all_shared.period_bounds_ms(1.0).1, 4.0 * 60_000.0);
        let mut none_shared = balancing(1);
        pass(&mut none_shared, 10.0, 0.0);
        assert_eq!(none_shared.period_bounds_ms(1.0).1, 60_000.0);
    }

    #[test]
    fn scans_become_slower_where_there_is_little_to_gain_and_faster_else() {
        let after = |private, shared, local, remote| {
            let mut balancing = Balancing { period_ms: 10_000.0, local, remote, ..balancing(1) };
            balancing.adapt(shared, private, 1.0);
            balancing.period_ms
        };
        // By tenths of the period: of ten shared faults at home three more than seven, of ten private ones too; five are two fewer.
        assert_eq!(after(0.0, 100.0, 100.0, 0.0), 13_000.0);
        assert_eq!(after(100.0, 0.0, 1.0, 99.0), 13_000.0);
        assert_eq!(after(70.0, 30.0, 30.0, 70.0), 11_000.0);
        assert_eq!(after(40.0, 60.0, 50.0, 50.0), 8000.0);
        // Nothing is at home or shared.
        assert_eq!(after(0.0, 0.0, 0.0, 0.0), 20_000.0);
        assert_eq!(after(100.0, 0.0, 0.0, 100.0), 20_000.0);
    }

    #[test]
    fn after_a_migration_that_failed_scans_become_ever_slower() {
        let mut balancing = balancing(1);
        balancing.migration_ended(false);
        for period_ms in [2000.0, 4000.0, 8000.0] {
            pass(&mut balancing, 1.0, 1.0);
            assert_eq!(balancing.period_ms, period_ms);
        }
    }

    #[test]
    fn shared_pages_are_at_home_on_any_node_of_a_group_that_is_on_several() {
        let mut balancing = balancing(1);
        // Whose CPUs fault is known after the first pass.
        pass(&mut balancing, 0.0, 10.0);
        assert_eq!(balancing.period_ms, 1000.0);
        balancing.period_ms = 10_000.0;
        pass(&mut balancing, 0.0, 10.0);
        assert_eq!(balancing.period_ms, 13_000.0);
        // Private ones are not.
        pass(&mut balancing, 65.0, 35.0);
        assert_eq!(balancing.period_ms, 13_000.0 - 1300.0);
    }

    #[test]
    fn a_page_comes_at_its_first_fault_and_later_at_the_second_from_a_node() {
        let mut balancing = balancing(1);
        assert!(balancing.wants(0, 1, 2, 1, 0));
        // A second thread of that node, when as many CPUs of the other use the memory: only if the memory there is more.
        assert!(!balancing.wants(0, 1, 0, 0, 1));
        assert!(!balancing.wants(0, 1, 1, 0, 1));
        balancing.cpu_shares = vec![2.0, 2.0];
        balancing.by_memory.past = vec![10.0, 20.0];
        assert!(balancing.wants(0, 1, 0, 0, 1));
        // Or if they hardly use it.
        balancing.by_memory.past = vec![20.0, 10.0];
        assert!(!balancing.wants(0, 1, 1, 0, 1));
        balancing.cpu_shares = vec![2.0, 0.5];
        assert!(balancing.wants(0, 1, 0, 0, 1));
        // Its own thread alone uses it.
        balancing.cpu_shares = vec![2.0, 2.0];
        balancing.sequence = 5;
        assert!(balancing.wants(0, 1, 0, 0, 1));
    }

    #[test]
    fn later_in_a_run_a_first_fault_is_weighed_like_any_other_but_for_parts_of_a_huge_page() {
        let mut balancing = Balancing { sequence: 5, cpu_shares: vec![2.0, 2.0], ..balancing(2) };
        balancing.by_memory.past = vec![10.0, 20.0];
        assert!(!balancing.wants(0, 1, 2, 1, 0));
        balancing.forget(1);
        assert!(balancing.wants(1, 1, 2, 1, 0));
        assert!(!balancing.wants(1, 1, 0, 0, 1));
    }
}
