//! Threads that go from node to node. Memory that was placed for one is far from it afterwards.

use crate::sampler::RawSample;
use nodewise_engine::{Pid, Tid};
use nodewise_topology::NodeIndex;
use std::collections::HashMap;

/// Threads that are known at a time: some 2 MiB.
const MOST_THREADS: usize = 1 << 16;

/// Where threads were seen last.
#[derive(Default)]
pub(crate) struct Threads(HashMap<(Pid, Tid), NodeIndex>);

impl Threads {
    /// How many threads were on another node at the end of an interval than when they were seen last. Its
    /// samples may come in any order.
    pub(crate) fn moved(&mut self, samples: &[RawSample]) -> u64 {
        let mut latest: HashMap<(Pid, Tid), (u64, NodeIndex)> = HashMap::new();
        for sample in samples {
            let seen = (sample.time_ns, sample.accessor);
            let last = latest.entry((sample.pid, sample.tid)).or_insert(seen);
            *last = seen.max(*last);
        }
        if self.0.len() + latest.len() > MOST_THREADS {
            self.0.clear();
        }
        let has_moved = |&(thread, (_, node)): &(_, (_, NodeIndex))| {
            self.0.insert(thread, node).is_some_and(|before| before != node)
        };
        latest.into_iter().filter(has_moved).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Access, DataSource, VirtAddr};

    fn sample(tid: u32, node: u8, time_ns: u64) -> RawSample {
        RawSample {
            time_ns,
            address: VirtAddr(0),
            pid: Pid(1),
            tid: Tid(tid),
            accessor: NodeIndex(node),
            access: Access::Read,
            source: DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        }
    }

    #[test]
    fn a_thread_has_moved_if_it_is_elsewhere_at_the_end() {
        let mut threads = Threads::default();
        assert_eq!(threads.moved(&[sample(1, 0, 10), sample(2, 1, 10)]), 0, "they are new");
        assert_eq!(threads.moved(&[]), 0);
        // One goes and comes back. The other goes, and the ring of its first CPU is read last.
        let there_and_back = [sample(1, 1, 20), sample(1, 0, 21)];
        let gone = [sample(2, 2, 25), sample(2, 1, 20), sample(2, 1, 24)];
        assert_eq!(threads.moved(&[there_and_back.as_slice(), &gone].concat()), 1);
        assert_eq!(threads.moved(&[sample(1, 3, 30), sample(2, 3, 30)]), 2);
    }

    #[test]
    fn room_is_bounded() {
        let mut threads = Threads::default();
        for tid in 0..MOST_THREADS as u32 + 10 {
            threads.moved(&[sample(tid, 0, 1)]);
        }
        assert!(threads.0.len() <= MOST_THREADS);
    }
}
