//! Memory that processes have bound to nodes themselves, and nodes that they are confined to.

use crate::process::pause;
use nodewise_engine::{PageRange, Pid};
use nodewise_sys::AffinityMask;
use nodewise_topology::{NodeIndex, Topology};
use std::collections::BTreeMap;
use std::time::Instant;

/// The ranges that each process has bound: of confined processes, or of all where samples are a PMU's.
#[derive(Debug, Default)]
pub(crate) struct BoundMemory {
    of: BTreeMap<Pid, BoundRanges>,
}

impl BoundMemory {
    /// Keeps the ranges of these processes.
    pub(crate) fn retain(&mut self, keep: impl Fn(Pid) -> bool) {
        self.of.retain(|&pid, _| keep(pid));
    }

    /// The mappings of a process have been read again.
    pub(crate) fn mapped_anew(&mut self, pid: Pid) {
        self.of.entry(pid).or_default().is_old = true;
    }

    /// The ranges that a process has bound, which `read` reads. Reading takes 1 % of the time at most, of all
    /// `processes` together.
    pub(crate) fn of(
        &mut self,
        pid: Pid,
        processes: usize,
        read: impl FnOnce() -> Option<Vec<PageRange>>,
    ) -> &BoundRanges {
        let ranges = self.of.entry(pid).or_default();
        ranges.update(processes, read);
        ranges
    }
}

/// The ranges of its memory that a process has bound itself.
#[derive(Debug)]
pub(crate) struct BoundRanges {
    /// None where they cannot be learnt.
    ranges: Option<Vec<PageRange>>,
    /// The mappings have been read again since.
    is_old: bool,
    /// The time before which they are not read again.
    due: Instant,
}

impl Default for BoundRanges {
    fn default() -> Self {
        Self { ranges: None, is_old: true, due: Instant::now() }
    }
}

impl BoundRanges {
    /// The ranges that are known.
    pub(crate) fn known(&self) -> &[PageRange] {
        self.ranges.as_deref().unwrap_or_default()
    }

    /// Whether all are known, and of the mappings as they were read last.
    pub(crate) const fn is_certain(&self) -> bool {
        self.ranges.is_some() && !self.is_old
    }

    fn update(&mut self, processes: usize, read: impl FnOnce() -> Option<Vec<PageRange>>) {
        let begin = Instant::now();
        if self.is_old && self.due <= begin {
            (self.ranges, self.is_old) = (read(), false);
            self.due = Instant::now() + pause(begin.elapsed().as_nanos() as u64, processes);
        }
    }
}

/// The one node that has all of these CPUs, as far as they are online.
pub(crate) fn confined(topology: &Topology, cpus: &AffinityMask) -> Option<NodeIndex> {
    let mut nodes = topology.node_indices().filter(|&node| {
        let online = &topology.nodes()[node.get()].cpus;
        online.iter().any(|cpu| cpus.contains(cpu.0))
    });
    let first = nodes.next()?;
    nodes.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn policies_are_read_again_no_sooner_than_costs_little() {
        let mut bound = BoundRanges::default();
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            Some(Vec::new())
        };
        bound.update(1, slow);
        assert!(!bound.is_old && bound.ranges == Some(Vec::new()));
        bound.update(1, || panic!("nothing has changed"));
        bound.is_old = true;
        bound.update(1, || panic!("too soon"));
        bound.due = Instant::now();
        bound.update(1, || None);
        assert!(!bound.is_old && bound.ranges.is_none());
    }

    #[test]
    fn cpus_of_one_node_confine_to_it() {
        let topology = Topology::synthetic(3, 2, 1 << 30);
        let cpus = |cpus: &[u32]| confined(&topology, &cpus.iter().copied().collect());
        assert_eq!(cpus(&[2]), Some(NodeIndex(1)));
        assert_eq!(cpus(&[4, 5]), Some(NodeIndex(2)));
        assert_eq!((cpus(&[3, 4]), cpus(&[])), (None, None));
        // The last two CPUs are not there, as in a mask of a machine that could have more.
        assert_eq!(cpus(&[0, 1, 6, 7]), Some(NodeIndex(0)));
    }
}
