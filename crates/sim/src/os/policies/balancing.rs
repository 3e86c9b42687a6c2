//! NUMA balancing of Linux 6 (`kernel/sched/fair.c`, Linux 6.12), for one process.
//!
//! As the kernel does it: each thread has a scan period of its own, which adapts to its hint faults
//! (`task.rs`), and whoever comes first scans for all (`scan.rs`); the filter of two references in a row; the
//! weighing of faults for pages that threads share; threads that ask for a CPU where their memory is
//! (`task_placement.rs`). A thread's running time is without its waits at barriers.

use crate::os::kernel::memory::Memory;
use crate::os::policies::group::{ACTIVE, Group};
use crate::os::policies::scan::Scanner;
use crate::os::policies::task::{Bounds, DELAY_MS, Faults, SCAN_MIB, Task, Time};
use crate::os::policies::task_placement::{Situation, Step};
use std::ops::Range;

/// Between two interrupts of the timer, at which a thread looks whether to scan (`CONFIG_HZ` is 250 on
/// Debian).
const TICK_MS: f64 = 4.0;
/// A thread that scans looks so many ticks later the next time, so that another comes first; threads begin
/// with that, but for the first one.
const LATER: u64 = 2;
/// So much longer than it scanned a thread runs before it looks again.
const SCANNED: u64 = 32;
/// Parts of its period in which a thread asks for a CPU where its memory is once, or once a second
/// (`numa_migrate_preferred`).
const ASKS: f64 = 16.0;
const ASKS_MS: f64 = 1000.0;
/// Sequences of the scanner in which pages come to a thread at the first fault
/// (`should_numa_migrate_memory`).
const EARLY: i32 = 4;
/// The last user of a page before its first hint fault, and of a part of a huge page before its first since
/// it was split.
const NOBODY: u16 = u16::MAX;
const SPLIT: u16 = u16::MAX - 1;

/// The kernel's record of a process.
#[derive(Clone, Debug)]
pub(crate) struct Balancing {
    /// Split huge pages that nodes share.
    pub(crate) split: bool,
    /// Threads may be moved.
    pub(crate) movable: bool,
    scanner: Scanner,
    /// Before then nobody scans (`numa_next_scan`).
    next_scan_ps: u64,
    tasks: Vec<Task>,
    /// By the thread that was the first in it.
    groups: Vec<Group>,
    /// The thread of each page's last hint fault, and its node then.
    last_thread: Vec<u16>,
    last_node: Vec<u8>,
    /// Simulated time of a millisecond, and pages that a scan marks.
    ms_ps: f64,
    scan_pages: f64,
}

/// Whether pages come to who faults on them, and which other thread did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) wanted: bool,
    pub(crate) shared_with: Option<usize>,
}

/// A hint fault that has been served: from a thread on a node, on pages that were on one and are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) thread: usize,
    pub(crate) node: usize,
    pub(crate) was: usize,
    pub(crate) is: usize,
    pub(crate) pages: usize,
    pub(crate) shared_with: Option<usize>,
    /// They should have moved and did not.
    pub(crate) failed: bool,
}

impl Balancing {
    /// For a process with such mappings; periods and memory are so much smaller than real ones.
    pub(crate) fn new(
        memory: &Memory,
        mappings: &[Range<usize>],
        threads: usize,
        nodes: usize,
        period_scale: f64,
        size_scale: f64,
    ) -> Self {
        let ms_ps = period_scale * 1e9;
        let delay_ps = (DELAY_MS * ms_ps) as u64;
        let later_ps = LATER * (TICK_MS * ms_ps) as u64;
        let scan_pages = SCAN_MIB * 256.0 * size_scale;
        Self {
            split: false,
            movable: false,
            scanner: Scanner::new(mappings, scan_pages as usize),
            next_scan_ps: delay_ps,
            tasks: (0..threads)
                .map(|thread| Task::new(nodes, if thread == 0 { 0 } else { later_ps }))
                .collect(),
            groups: vec![Group::new(nodes); threads],
            last_thread: vec![NOBODY; memory.pages()],
            last_node: vec![0; memory.pages()],
            ms_ps,
            scan_pages,
        }
    }

    fn ps(&self, ms: f64) -> u64 {
        (ms * self.ms_ps) as u64
    }

    /// The running time at which there is something to do for a thread.
    pub(crate) fn due_ps(&self, thread: usize) -> u64 {
        let task = &self.tasks[thread];
        if task.asks { 0 } else { task.tick_ps.max(task.stamp_ps + self.ps(task.period_ms)) }
    }

    /// A thread looks whether to scan (`task_tick_numa`, `task_numa_work`). Returns how many pages it marks.
    pub(crate) fn look(&mut self, memory: &mut Memory, thread: usize, time: Time) -> u64 {
        let bounds = self.bounds(memory, thread);
        let tick_ps = self.ps(TICK_MS);
        let period_ps = self.ps(self.tasks[thread].period_ms);
        let task = &mut self.tasks[thread];
        if task.stamp_ps == 0 {
            task.period_ms = bounds.first_ms;
        }
        task.stamp_ps += period_ps;
        task.tick_ps = time.running_ps + tick_ps.max(1);
        if time.now_ps < self.next_scan_ps {
            return 0;
        }
        task.stamp_ps += LATER * tick_ps;
        self.next_scan_ps = time.now_ps + self.ps(self.tasks[thread].period_ms);
        self.scanner.scan(memory)
    }

    /// A thread has scanned for so long.
    pub(crate) fn scanned(&mut self, thread: usize, ps: u64) {
        self.tasks[thread].stamp_ps += SCANNED * ps;
    }

    fn bounds(&self, memory: &Memory, thread: usize) -> Bounds {
        let scans = (memory.resident_pages() as f64 / self.scan_pages).ceil().max(1.0);
        let group = self.tasks[thread].group;
        Bounds::new(scans, group.map(|group| (&self.groups[group].faults, self.members(group).count())))
    }

    fn members(&self, group: usize) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(move |task| task.group == Some(group))
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

    /// A thread faults on a page, the first of those that are together: decides whether they come to its
    /// node.
    pub(crate) fn decide(&mut self, page: usize, thread: usize, node: usize, home: usize) -> Verdict {
        let last = std::mem::replace(&mut self.last_thread[page], thread as u16);
        let last_node = usize::from(std::mem::replace(&mut self.last_node[page], node as u8));
        let wanted = node != home && self.would_move(last, last_node, thread, node, home);
        let shared = last < SPLIT && usize::from(last) != thread;
        Verdict { wanted, shared_with: shared.then_some(usize::from(last)) }
    }

    /// `should_numa_migrate_memory`.
    fn would_move(&self, last: u16, last_node: usize, thread: usize, node: usize, home: usize) -> bool {
        let task = &self.tasks[thread];
        let private = usize::from(last) == thread;
        let early = task.preferred.is_none() || task.sequence <= EARLY;
        if last == SPLIT || early && (private || last == NOBODY) {
            return true;
        }
        if last != NOBODY && last_node != node {
            return false;
        }
        let Some(group) = task.group.filter(|_| !private) else { return true };
        let faults = &self.groups[group].faults;
        let cpu = &faults.cpu;
        cpu[node] * ACTIVE > cpu[home]
            || cpu[node] * faults.on(home) * 3.0 > cpu[home] * faults.on(node) * 4.0
    }

    /// `task_numa_fault`.
    pub(crate) fn note(&mut self, memory: &Memory, fault: &Fault, time: Time) {
        let &Fault { thread, node, was, is, shared_with, .. } = fault;
        if let Some(other) = shared_with {
            self.join(thread, other);
        }
        // Where several nodes use memory all over them, it is at home on any of them.
        let group =
            self.tasks[thread].group.map(|group| &self.groups[group]).filter(|group| group.active > 1);
        let among_active = group.is_some_and(|group| group.is_active(node) && group.is_active(is));
        let at_home = node == was || shared_with.is_some() && among_active;
        if time.now_ps > self.tasks[thread].retry_ps {
            self.place(memory, thread, time);
            self.ask(thread, node, time);
        }
        let task = &mut self.tasks[thread];
        let pages = fault.pages as f64;
        (if shared_with.is_some() { &mut task.fresh.shared } else { &mut task.fresh.private })[is] += pages;
        task.fresh.cpu[node] += pages;
        *(if at_home { &mut task.local } else { &mut task.remote }) += pages;
        // A migration that failed slows scans down.
        task.failed |= fault.failed;
    }

    /// `task_numa_group`: a thread that shares a page for the first time begins a group. It goes over to that
    /// of the other if that is larger; of two alike, to that of the later thread (in the kernel their
    /// addresses decide).
    fn join(&mut self, thread: usize, other: usize) {
        let own = *self.tasks[thread].group.get_or_insert(thread);
        let Some(others) = self.tasks[other].group else { return self.sum_up(own) };
        let size = |group: usize| (self.members(group).count(), group);
        if size(own) < size(others) {
            self.tasks[thread].group = Some(others);
            self.sum_up(others);
        }
        self.sum_up(own);
    }

    fn sum_up(&mut self, group: usize) {
        let mut faults = Faults::new(self.groups[group].faults.cpu.len());
        self.members(group).for_each(|task| faults.add(1.0, &task.past));
        self.groups[group].faults = faults;
    }

    /// `task_numa_placement`, once a sequence.
    fn place(&mut self, memory: &Memory, thread: usize, time: Time) {
        let sequence = self.scanner.sequence();
        if self.tasks[thread].sequence == sequence {
            return;
        }
        let before = self.bounds(memory, thread);
        let task = &mut self.tasks[thread];
        task.sequence = sequence;
        let (shared, private) = task.renew(time);
        if let Some(group) = task.group {
            self.sum_up(group);
            self.groups[group].count_active();
        }
        let bounds = self.bounds(memory, thread);
        let task = &mut self.tasks[thread];
        let faults = task.group.map_or(&task.past, |group| &self.groups[group].faults);
        // No thread runs where there are no CPUs: as `task_numa_placement` (kernel/sched/fair.c) does.
        let most = faults.most().map(|node| memory.nearest_with_cpus(node));
        task.preferred = most.or(task.preferred);
        if !task.adapt(shared, private, before, bounds) {
            let period_ms = task.period_ms;
            self.next_scan_ps = time.now_ps + self.ps(period_ms);
        }
    }

    /// `numa_migrate_preferred`.
    fn ask(&mut self, thread: usize, node: usize, time: Time) {
        let Some(preferred) = self.tasks[thread].preferred else { return };
        let interval_ps = self.ps((self.tasks[thread].period_ms / ASKS).min(ASKS_MS));
        let task = &mut self.tasks[thread];
        task.retry_ps = time.now_ps + interval_ps;
        task.asks = self.movable && preferred != node;
    }

    /// Where a thread goes that has asked, if it has.
    pub(crate) fn step(
        &mut self,
        thread: usize,
        node_of_cpu: &[usize],
        threads_of_core: usize,
        threads: &[(usize, usize)],
        running: &[usize],
    ) -> Option<Step> {
        if !std::mem::take(&mut self.tasks[thread].asks) {
            return None;
        }
        let from = threads[thread].1;
        let preferred = self.tasks[thread].preferred.filter(|&preferred| preferred != from)?;
        let situation = Situation {
            tasks: &self.tasks,
            groups: &self.groups,
            node_of_cpu,
            threads_of_core,
            threads,
            running,
        };
        let step = situation.step(thread, preferred);
        let to = match step {
            Some(Step::To(cpu)) => node_of_cpu[cpu],
            Some(Step::Swap(other)) => threads[other].1,
            None => from,
        };
        let task = &mut self.tasks[thread];
        if task.group.is_some() {
            task.preferred = Some(to);
        }
        step
    }

    /// A thread goes on on another node (`update_scan_period`).
    pub(crate) fn moved(&mut self, memory: &Memory, thread: usize, from: usize, to: usize) {
        let first_ms = self.bounds(memory, thread).first_ms;
        let task = &mut self.tasks[thread];
        let expected =
            task.preferred == Some(to) || task.preferred.is_some_and(|preferred| preferred != from);
        if from != to && task.has_faulted() && (task.sequence == 0 || !expected) {
            task.period_ms = first_ms;
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "all are small whole numbers")]
mod tests {
    use super::*;
    use crate::{Role, Space};
    use nodewise_hardware::Preset;

    const MS: u64 = 1_000_000_000;

    /// The balancing of four threads, two on each of two nodes, with so much memory on node 0, in simulated
    /// time that is real.
    fn balancing(mib: u64) -> (Balancing, Memory) {
        let mut space = Space::new();
        space.area("area", mib << 20, Role::Unknown);
        let mut memory = Memory::new(&Preset::named("dahu-2n").unwrap(), &space.into_areas(), false);
        let pages = 0..(mib << 8) as usize;
        for page in pages.clone() {
            memory.map(page, 0, false).unwrap();
        }
        (Balancing::new(&memory, &[pages], 4, 2, 1.0, 1.0), memory)
    }

    #[test]
    fn no_thread_prefers_a_node_without_cpus() {
        let mut space = Space::new();
        space.area("area", 1 << 20, Role::Unknown);
        let preset = Preset::named("epyc-cxl-4n").unwrap();
        let mut memory = Memory::new(&preset, &space.into_areas(), false);
        (0..256).for_each(|page| {
            memory.map(page, 3, true).unwrap();
        });
        let mut balancing = Balancing::new(&memory, std::slice::from_ref(&(0..256)), 1, 4, 1.0, 1.0);
        let fault = Fault { thread: 0, node: 0, was: 3, is: 3, pages: 100, shared_with: None, failed: false };
        balancing.note(&memory, &fault, at(1000));
        let before = balancing.scanner.sequence();
        while balancing.scanner.sequence() == before {
            balancing.scanner.scan(&mut memory);
        }
        balancing.place(&memory, 0, at(1000));
        // Node 1 has CPUs and is the nearest to node 3.
        assert_eq!(balancing.tasks[0].preferred, Some(1));
    }

    /// A thread that never waits, at a millisecond.
    fn at(ms: u64) -> Time {
        Time { now_ps: ms * MS, running_ps: ms * MS }
    }

    /// A page that a thread of node 0 or 1 faults on stays where it is, on node 0. Shared pages were used by
    /// the last thread before, its by the first.
    fn fault(thread: usize, pages: usize, private: bool) -> Fault {
        let shared_with = (!private).then_some(if thread == 3 { 0 } else { 3 });
        Fault { thread, node: thread / 2, was: 0, is: 0, pages, shared_with, failed: false }
    }

    /// All four threads make these faults each; then the scanner comes to the end, and they are placed.
    fn pass(balancing: &mut Balancing, memory: &mut Memory, private: usize, shared: usize, ms: u64) {
        for thread in 0..4 {
            balancing.note(memory, &fault(thread, private, true), at(ms));
            balancing.note(memory, &fault(thread, shared, false), at(ms));
        }
        let before = balancing.scanner.sequence();
        while balancing.scanner.sequence() == before {
            balancing.scanner.scan(memory);
        }
        (0..4).for_each(|thread| balancing.place(memory, thread, at(ms)));
    }

    #[test]
    fn whoever_comes_first_scans_and_the_next_by_its_own_period() {
        let (mut balancing, mut memory) = balancing(600);
        // The first thread begins at once, the others two ticks later. 600 MiB are three scans, so that the
        // least period is a third of a second.
        assert_eq!([0, 1].map(|thread| balancing.due_ps(thread) / MS), [1000, 1008]);
        assert_eq!(balancing.look(&mut memory, 0, at(1000)), 256 * 256);
        assert_eq!(balancing.tasks[0].period_ms, 1000.0 / 3.0);
        assert_eq!(balancing.next_scan_ps / MS, 1333);
        // Then the next scan is not due; they look again after a period of theirs. The first has two ticks
        // more.
        assert_eq!(balancing.look(&mut memory, 1, at(1008)), 0);
        assert_eq!([0, 1].map(|thread| balancing.due_ps(thread) / MS), [1341, 2008]);
        assert_eq!(balancing.look(&mut memory, 0, at(1341)), 256 * 256);
        assert_eq!(balancing.next_scan_ps / MS, 1674);
        // The thread that comes next scans, and its period is another.
        assert_eq!(balancing.look(&mut memory, 1, at(2008)), 88 * 256);
        assert_eq!(balancing.next_scan_ps / MS, 3008);
    }

    #[test]
    fn a_thread_that_waits_does_not_come_to_look() {
        let (mut balancing, mut memory) = balancing(1);
        balancing.look(&mut memory, 1, Time { now_ps: 5000 * MS, running_ps: 1008 * MS });
        assert_eq!(balancing.due_ps(1), 2016 * MS);
    }

    #[test]
    fn a_thread_looks_once_a_tick_at_most_and_scans_for_a_33rd_of_its_time_at_most() {
        let (mut balancing, mut memory) = balancing(1);
        balancing.look(&mut memory, 0, at(9000));
        assert_eq!(balancing.due_ps(0), 9004 * MS);
        balancing.look(&mut memory, 0, at(10_000));
        let before_ps = balancing.due_ps(0);
        balancing.scanned(0, 1000 * MS);
        assert_eq!(balancing.due_ps(0), before_ps.max((2016 + 1000 + 32 * 1000) * MS));
    }

    #[test]
    fn a_thread_whose_faults_say_nothing_puts_off_everybodys_next_scan() {
        let (mut balancing, mut memory) = balancing(1);
        balancing.look(&mut memory, 0, at(1000));
        assert_eq!(balancing.next_scan_ps, 2000 * MS);
        balancing.place(&memory, 3, at(1500));
        assert_eq!((balancing.tasks[3].period_ms, balancing.next_scan_ps), (2000.0, 3500 * MS));
    }

    #[test]
    fn each_thread_is_placed_once_a_sequence_by_its_own_faults() {
        let (mut balancing, mut memory) = balancing(1);
        // Thread 0 has its memory at home, thread 3 far away.
        for thread in [0, 3] {
            balancing.note(&memory, &fault(thread, 100, true), at(500));
        }
        balancing.look(&mut memory, 0, at(1000));
        balancing.tasks.iter_mut().for_each(|task| task.period_ms = 10_000.0);
        for thread in [0, 3, 3] {
            balancing.note(&memory, &fault(thread, 1, true), at(1001));
        }
        let periods = [0, 3, 1].map(|thread| balancing.tasks[thread].period_ms);
        assert_eq!(periods, [13_000.0, 20_000.0, 10_000.0]);
    }

    #[test]
    fn shared_pages_are_at_home_on_any_node_of_a_group_that_is_on_several() {
        let (mut balancing, mut memory) = balancing(1);
        balancing.tasks.iter_mut().for_each(|task| task.group = Some(3));
        // Whose CPUs fault is known after the first pass.
        pass(&mut balancing, &mut memory, 0, 10, 1000);
        assert_eq!((balancing.members(3).count(), balancing.groups[3].active), (4, 2));
        let periods = |balancing: &Balancing| [0, 3].map(|thread| balancing.tasks[thread].period_ms);
        balancing.tasks.iter_mut().for_each(|task| task.period_ms = 10_000.0);
        pass(&mut balancing, &mut memory, 0, 10, 2000);
        assert_eq!(periods(&balancing), [13_000.0; 2]);
        // Private ones are not.
        pass(&mut balancing, &mut memory, 65, 35, 3000);
        assert_eq!(periods(&balancing), [13_000.0 + 3.0 * 1300.0, 13_000.0 - 1300.0]);
    }

    #[test]
    fn groups_begin_small_and_threads_go_over_to_larger_ones() {
        let (mut balancing, _) = balancing(1);
        let mut join = |thread: usize, other: usize| {
            balancing.tasks[thread].past.private[0] = 10.0;
            balancing.join(thread, other);
            let groups: Vec<_> = balancing.tasks.iter().map(|task| task.group).collect();
            let faults: Vec<_> = balancing.groups.iter().map(|group| group.faults.on(0)).collect();
            (groups, faults)
        };
        // Nobody to go to yet.
        assert_eq!(join(1, 0), (vec![None, Some(1), None, None], vec![0.0, 10.0, 0.0, 0.0]));
        // The thread in the first of two alike goes over.
        assert_eq!(join(2, 1), (vec![None, Some(1), Some(2), None], vec![0.0, 10.0, 10.0, 0.0]));
        assert_eq!(join(1, 2), (vec![None, Some(2), Some(2), None], vec![0.0, 0.0, 20.0, 0.0]));
        // Others go to the larger one, and nobody leaves it.
        assert_eq!(join(3, 1), (vec![None, Some(2), Some(2), Some(2)], vec![0.0, 0.0, 30.0, 0.0]));
        assert_eq!(join(0, 0), (vec![Some(0), Some(2), Some(2), Some(2)], vec![10.0, 0.0, 30.0, 0.0]));
        assert_eq!(join(1, 0).0, [Some(0), Some(2), Some(2), Some(2)]);
        assert_eq!(join(0, 1), (vec![Some(2); 4], vec![0.0, 0.0, 40.0, 0.0]));
    }

    #[test]
    fn threads_that_have_shared_nothing_weigh_nothing() {
        let (mut balancing, _) = balancing(1);
        balancing.tasks[0].preferred = Some(0);
        balancing.tasks[0].sequence = 5;
        assert!(balancing.would_move(2, 0, 0, 0, 1));
        balancing.join(0, 1);
        assert!(!balancing.would_move(2, 0, 0, 0, 1));
    }

    /// A group of all, placed on node 0 in the third sequence.
    fn group(cpu: [f64; 2], private: [f64; 2]) -> Balancing {
        let (mut balancing, _) = balancing(1);
        for task in &mut balancing.tasks {
            (task.preferred, task.sequence, task.group) = (Some(0), 3, Some(0));
        }
        (balancing.groups[0].faults.cpu, balancing.groups[0].faults.private) = (cpu.into(), private.into());
        balancing
    }

    #[test]
    fn a_page_comes_at_its_first_fault_and_later_at_the_second_from_a_node() {
        let first = |mut balancing: Balancing| {
            assert!(balancing.decide(0, 2, 1, 0).wanted);
            balancing
        };
        // A second thread of that node, when as many CPUs of the other use the memory: only if the memory
        // there is more.
        let moves = |balancing: &mut Balancing, thread| balancing.decide(0, thread, 0, 1).wanted;
        let mut even = first(group([2.0, 2.0], [10.0, 10.0]));
        assert!(!moves(&mut even, 0));
        assert!(!moves(&mut even, 1));
        let mut more_there = first(group([2.0, 2.0], [10.0, 20.0]));
        assert!(!moves(&mut more_there, 0));
        assert!(moves(&mut more_there, 1));
        // Or if they hardly use it.
        let mut hardly = first(group([2.0, 0.5], [20.0, 10.0]));
        assert!(!moves(&mut hardly, 0));
        assert!(moves(&mut hardly, 1));
        // Its own thread alone uses it.
        even.tasks[1].sequence = 5;
        assert!(moves(&mut even, 1));
    }

    #[test]
    fn later_in_a_run_a_first_fault_is_weighed_like_any_other_but_for_parts_of_a_huge_page() {
        let mut balancing = group([2.0, 2.0], [10.0, 20.0]);
        balancing.tasks.iter_mut().for_each(|task| task.sequence = 5);
        assert!(!balancing.decide(0, 2, 1, 0).wanted);
        balancing.forget(1);
        assert_eq!(balancing.decide(1, 2, 1, 0), Verdict { wanted: true, shared_with: None });
        assert_eq!(balancing.decide(1, 0, 0, 1), Verdict { wanted: false, shared_with: Some(2) });
        // Until it has a preferred node a thread is early.
        balancing.tasks[2].preferred = None;
        assert!(balancing.decide(2, 2, 1, 0).wanted);
    }

    #[test]
    fn a_thread_asks_for_a_cpu_16_times_a_period_and_one_of_a_group_stays_if_there_is_none() {
        let (mut balancing, memory) = balancing(1);
        balancing.movable = true;
        (balancing.tasks[3].preferred, balancing.tasks[3].period_ms) = (Some(0), 1600.0);
        let mut asks = |ms, private| {
            balancing.note(&memory, &fault(3, 1, private), at(ms));
            let asks = balancing.tasks[3].asks;
            assert_eq!(asks, balancing.due_ps(3) == 0);
            // Node 0's only CPU is taken.
            assert_eq!(balancing.step(3, &[0, 1], 1, &[(0, 0), (0, 0), (0, 0), (1, 1)], &[3]), None);
            asks
        };
        assert_eq!([1000, 1100, 1101, 1201, 1202].map(|ms| asks(ms, true)), [true, false, true, false, true]);
        assert_eq!([2000, 3000].map(|ms| asks(ms, false)), [true, false]);
        assert_eq!(balancing.tasks[3].preferred, Some(1));
    }

    #[test]
    fn a_thread_that_is_taken_from_its_node_scans_as_at_first() {
        let (mut balancing, memory) = balancing(1);
        let after = |balancing: &mut Balancing, preferred, from, to| {
            let task = &mut balancing.tasks[0];
            (task.preferred, task.sequence, task.period_ms) = (preferred, 3, 10_000.0);
            task.fresh.private[0] = 1.0;
            balancing.moved(&memory, 0, from, to);
            balancing.tasks[0].period_ms
        };
        assert_eq!(after(&mut balancing, Some(0), 0, 1), 1000.0);
        assert_eq!(after(&mut balancing, None, 0, 1), 1000.0);
        assert_eq!(after(&mut balancing, Some(1), 0, 1), 10_000.0);
        assert_eq!(after(&mut balancing, Some(2), 0, 1), 10_000.0);
        assert_eq!(after(&mut balancing, Some(0), 0, 0), 10_000.0);
        // One without faults does not.
        balancing.tasks[1].period_ms = 10_000.0;
        balancing.moved(&memory, 1, 0, 1);
        assert_eq!(balancing.tasks[1].period_ms, 10_000.0);
    }
}
