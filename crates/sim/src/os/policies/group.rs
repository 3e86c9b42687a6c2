//! Threads that share pages, as NUMA balancing of Linux 6 groups them (`kernel/sched/fair.c`, Linux 6.12).

use crate::os::policies::task::Faults;

/// A node whose CPUs made more than this part of the most faults is active (`ACTIVE_NODE_FRACTION`).
pub(crate) const ACTIVE: f64 = 1.0 / 3.0;

/// Threads that share pages (`numa_group`).
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) faults: Faults,
    /// The most that the CPUs of a node made, and how many nodes were active, when one of them was last
    /// placed.
    most_cpu: f64,
    pub(crate) active: usize,
}

impl Group {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { faults: Faults::new(nodes), most_cpu: 0.0, active: 1 }
    }

    pub(crate) fn is_active(&self, node: usize) -> bool {
        self.faults.cpu[node] > self.most_cpu * ACTIVE
    }

    /// `numa_group_count_active_nodes`.
    pub(crate) fn count_active(&mut self) {
        self.most_cpu = self.faults.cpu.iter().copied().fold(0.0, f64::max);
        self.active = (0..self.faults.cpu.len()).filter(|&node| self.is_active(node)).count();
    }
}
