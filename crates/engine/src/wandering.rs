//! Whether a process's threads go from node to node.
//!
//! Such threads take their use of memory along. Which node uses a page, or a part of it, then says little
//! about the next second.

use crate::{Sample, Tid};
use nodewise_topology::NodeIndex;
use std::collections::{BTreeMap, HashMap};

/// Where a process's threads were seen, and how many of them change their node.
#[derive(Debug, Default)]
pub(crate) struct Wandering {
    nodes: HashMap<Tid, NodeIndex>,
    /// A fading mean of the share of threads that were seen on two nodes.
    share: f32,
}

impl Wandering {
    /// The part of the mean that one interval has.
    const NEW: f32 = 0.1;
    /// More threads than these wander. If all change their node once, two intervals show it, and the mean
    /// comes to 0.19.
    const FROM: f32 = 0.25;
    /// Samples that are looked at in an interval, evenly.
    const LOOKED_AT: usize = 256;
    /// Threads that are kept in mind.
    const THREADS: usize = 4096;

    /// Takes in the samples of an interval.
    pub(crate) fn note(&mut self, samples: &[Sample]) {
        if self.nodes.len() > Self::THREADS {
            self.nodes.clear();
        }
        let mut seen: BTreeMap<Tid, bool> = BTreeMap::new();
        for sample in samples.iter().step_by(samples.len().div_ceil(Self::LOOKED_AT).max(1)) {
            let before = self.nodes.insert(sample.tid, sample.accessor);
            *seen.entry(sample.tid).or_default() |= before.is_some_and(|before| before != sample.accessor);
        }
        if !seen.is_empty() {
            let moved = seen.values().filter(|&&moved| moved).count() as f32 / seen.len() as f32;
            self.share += Self::NEW * (moved - self.share);
        }
    }

    /// Whether many do, again and again.
    pub(crate) fn is_frequent(&self) -> bool {
        self.share > Self::FROM
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, DataSource, PageSize, Pid, VirtAddr};

    fn sample(thread: u32, node: u8) -> Sample {
        Sample {
            time_ns: 0,
            address: VirtAddr(0),
            pid: Pid(1),
            tid: Tid(thread),
            accessor: NodeIndex(node),
            home: None,
            access: Access::Read,
            source: DataSource::Unknown,
            page_size: PageSize::Base,
            latency_cycles: 0,
            weight: 1,
        }
    }

    /// Each of eight threads by the function of thread and interval.
    fn after(intervals: u32, node: impl Fn(u32, u32) -> u8) -> bool {
        let mut wandering = Wandering::default();
        for interval in 0..intervals {
            wandering.note(&(0..8).map(|thread| sample(thread, node(thread, interval))).collect::<Vec<_>>());
            wandering.note(&[]);
        }
        wandering.is_frequent()
    }

    #[test]
    fn threads_wander_that_change_their_nodes_again_and_again() {
        assert!(!after(100, |thread, _| thread as u8 % 4));
        assert!(!after(20, |thread, interval| u8::from(interval >= 19) + thread as u8 % 2), "all, once");
        assert!(
            !after(100, |thread, interval| if thread == 3 { interval as u8 % 4 } else { 0 }),
            "one of them"
        );
        assert!(
            after(30, |thread, interval| ((thread + interval / 2) % 4) as u8),
            "each every other interval"
        );
    }

    #[test]
    fn no_more_threads_are_kept_in_mind_than_there_is_room_for() {
        let mut wandering = Wandering::default();
        for interval in 0..100 {
            let all: Vec<_> = (0..1000).map(|thread| sample(interval * 1000 + thread, 0)).collect();
            wandering.note(&all);
            assert!(wandering.nodes.len() <= Wandering::THREADS + Wandering::LOOKED_AT);
        }
    }
}
