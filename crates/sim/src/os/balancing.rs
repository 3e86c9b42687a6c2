//! NUMA balancing of Linux 6 (`kernel/sched/fair.c`, Linux 6.12), for one process.
//!
//! As the kernel does it: scan periods that adapt, marks on so much memory a period, the filter of two references in a
//! row, the weighing of faults for pages that threads share. Left out: VMAs that are skipped.

use super::memory::Memory;
use super::task_placement::TaskPlacement;

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

const NOBODY: u16 = u16::MAX;

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
    /// Faults by the faulting CPU's node, and by the page's node; halved each pass.
    cpu_faults: Vec<f64>,
    memory_faults: Vec<f64>,
    // Faults since the last pass.
    private: f64,
    shared: f64,
    local: f64,
    remote: f64,
    failed: bool,
}

impl Balancing {
    pub(crate) fn new(
        split: bool,
        pages: usize,
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
            period_ms: PERIOD_MIN_MS,
            cursor: 0,
            sequence: 0,
            last_thread: vec![NOBODY; pages],
            last_node: vec![0; pages],
            cpu_faults: vec![0.0; nodes],
            memory_faults: vec![0.0; nodes],
            private: 0.0,
            shared: 0.0,
            local: 0.0,
            remote: 0.0,
            failed: false,
        }
    }

    /// Marks the next pages. Returns how many.
    pub(crate) fn scan(&mut self, memory: &mut Memory, now_ps: u64) -> u64 {
        let resident_mib = memory.resident().iter().sum::<u64>() as f64 / 256.0 / self.size_scale;
        let windows = (resident_mib / SCAN_MIB).ceil().max(1.0);
        let least = (PERIOD_MIN_MS / windows).max(1000.0 / (MOST_MIB_PER_S / SCAN_MIB));
        let most = least.max(PERIOD_MAX_MS / windows);
        let budget = ((SCAN_MIB * 256.0 * self.size_scale) as u64).max(1);
        let mut marked = 0;
        let mut walked = 0;
        // It walks past holes, for as much as eight budgets.
        while marked < budget && walked < 8 * budget.max(memory.pages() as u64 / 8 + 1) {
            if self.cursor >= memory.pages() {
                self.cursor = 0;
                self.sequence += 1;
                self.adapt(least, most);
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
        self.period_ms = self.period_ms.clamp(least, most);
        self.next_scan_ps = now_ps + ((self.period_ms * self.period_scale * 1e9) as u64).max(1);
        marked
    }

    /// `update_task_scan_period`, and the decay of faults.
    fn adapt(&mut self, least: f64, most: f64) {
        let slot = (self.period_ms / SLOTS).ceil();
        let faults = self.local + self.remote;
        if faults == 0.0 || self.failed {
            self.period_ms *= 2.0;
        } else {
            let private = (self.private * SLOTS / (self.private + self.shared).max(1.0)).floor();
            let local = (self.local * SLOTS / faults).floor();
            self.period_ms += if private >= THRESHOLD {
                (private - THRESHOLD).max(1.0) * slot
            } else if local >= THRESHOLD {
                (local - THRESHOLD).max(1.0) * slot
            } else {
                -(THRESHOLD - private.max(local)) * slot
            };
        }
        self.period_ms = self.period_ms.clamp(least, most);
        (self.private, self.shared, self.local, self.remote, self.failed) = (0.0, 0.0, 0.0, 0.0, false);
        for faults in self.cpu_faults.iter_mut().chain(&mut self.memory_faults) {
            *faults /= 2.0;
        }
    }

    /// Whether the last fault on a page (the first of a huge page) came from another node.
    pub(crate) fn shared(&self, page: usize, node: usize) -> bool {
        let last = self.last_thread[page];
        last != NOBODY && usize::from(self.last_node[page]) != node
    }

    /// A part of a split huge page begins without a history of its own.
    pub(crate) fn forget(&mut self, part: usize) {
        self.last_thread[part] = NOBODY;
    }

    /// `should_numa_migrate_memory`: notes the fault and decides whether the page comes to the faulting node. A huge page is known by
    /// its first page.
    pub(crate) fn wants(&mut self, page: usize, thread: usize, node: usize, home: usize) -> bool {
        let last = std::mem::replace(&mut self.last_thread[page], thread as u16);
        let last_node = usize::from(std::mem::replace(&mut self.last_node[page], node as u8));
        let private = last == NOBODY || usize::from(last) == thread;
        if let Some(placement) = self.placement.as_mut().filter(|_| !private) {
            placement.group(thread, usize::from(last));
        }
        *(if private { &mut self.private } else { &mut self.shared }) += 1.0;
        *(if node == home { &mut self.local } else { &mut self.remote }) += 1.0;
        self.cpu_faults[node] += 1.0;
        self.memory_faults[home] += 1.0;
        if node == home {
            return false;
        }
        if self.sequence <= 4 && private {
            return true;
        }
        if last == NOBODY || last_node != node {
            return false;
        }
        if private {
            return true;
        }
        let (cpu, memory) = (&self.cpu_faults, &self.memory_faults);
        cpu[node] > 3.0 * cpu[home] || cpu[node] * memory[home] * 3.0 > cpu[home] * memory[node] * 4.0
    }

    /// Faults by node of the CPU.
    pub(crate) fn cpu_faults(&self) -> &[f64] {
        &self.cpu_faults
    }

    /// A migration that failed slows the scan down.
    pub(crate) fn migration_ended(&mut self, moved: bool) {
        self.failed |= !moved;
    }
}
