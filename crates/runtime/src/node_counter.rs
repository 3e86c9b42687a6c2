//! A count that all threads add to and few read.

use crate::location::machine;
use crate::slots::{CpuSlot, adds_alone, current_slot, try_add};
use crate::sync::atomic::Ordering;
use nodewise_topology::NodeId;
use std::fmt;

/// A count whose parts lie apart, so that adding moves no cache line between nodes, nor between CPUs: each
/// CPU has 128 bytes of its own.
///
/// On x86-64 with Linux 4.18, glibc 2.35 or later, adding is a restartable sequence: a plain addition that
/// the kernel starts again if the thread is taken off its CPU midway. Elsewhere it is an atomic addition to
/// the CPU's own part.
///
/// Any number of threads may add and read at the same time. A reader that has a thread's addition in its sum
/// sees what the thread wrote before. Sums wrap beyond 2^64. A counter takes 128 bytes for each CPU the
/// machine may ever have (`/sys/devices/system/cpu/possible`).
///
/// ```
/// let counter = nodewise_runtime::NodeCounter::new();
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..1000).for_each(|_| counter.add(1)));
///     }
/// });
/// assert_eq!(counter.exact(), Some(4000));
/// ```
pub struct NodeCounter {
    of_cpus: Box<[CpuSlot]>,
    /// For threads that the kernel does not tell their CPU by the restartable sequence's area.
    of_others: CpuSlot,
}

/// How often [`NodeCounter::exact`] looks before it gives up.
const PASSES: usize = 100;

impl NodeCounter {
    /// A counter at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::with_cpus(machine().cpus)
    }

    fn with_cpus(cpus: usize) -> Self {
        Self { of_cpus: (0..cpus).map(|_| CpuSlot::default()).collect(), of_others: CpuSlot::default() }
    }

    /// Adds.
    #[inline]
    pub fn add(&self, number: u64) {
        if !try_add(&self.of_cpus, number) {
            self.add_atomically(number);
        }
    }

    #[cold]
    fn add_atomically(&self, number: u64) {
        // A CPU's own slot must not be added to in two ways.
        let own = if adds_alone() { None } else { self.of_cpus.get(current_slot()) };
        own.unwrap_or(&self.of_others).add(number);
    }

    /// The sum of the parts, each read at another moment. It contains all additions from before the call, and
    /// may contain some that are made meanwhile. So it lies between the counts at the call's begin and end.
    #[must_use]
    pub fn approximate(&self) -> u64 {
        self.parts().fold(0, u64::wrapping_add)
    }

    fn parts(&self) -> impl Iterator<Item = u64> + '_ {
        self.of_cpus.iter().chain([&self.of_others]).map(|slot| slot.get(Ordering::Acquire))
    }

    /// The count at one moment during the call; `None` if additions kept coming for 100 passes over the
    /// parts.
    ///
    /// That holds where numbers are added that make the count grow. Where one takes back another, by
    /// wrapping, a CPU's part may be again what it was, and while such additions are being made the sum
    /// may be one that never was.
    #[must_use]
    pub fn exact(&self) -> Option<u64> {
        // Parts only grow, if they do not wrap. All parts had a value that two passes agree on when the first
        // pass ended.
        let pass = || self.parts().collect::<Vec<_>>();
        let mut last = pass();
        for _ in 0..PASSES {
            let next = pass();
            if next == last {
                return Some(next.into_iter().fold(0, u64::wrapping_add));
            }
            last = next;
        }
        None
    }

    /// The additions by CPUs of one node, read as [`NodeCounter::approximate`] does. Additions by threads
    /// without a restartable sequence's area, where the process has them, belong to no node.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> u64 {
        let of_node = self.parts().take(self.of_cpus.len()).enumerate();
        let of_node = of_node.filter(|&(cpu, _)| machine().node_of(cpu) == node);
        of_node.fold(0, |sum, (_, count)| sum.wrapping_add(count))
    }
}

impl Default for NodeCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for NodeCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeCounter").field(&self.approximate()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use nodewise_topology::Topology;

    #[test]
    fn nodes_add_up_and_nothing_is_lost() {
        let counter = NodeCounter::new();
        std::thread::scope(|scope| {
            for thread in 1..=6_u64 {
                let counter = &counter;
                scope.spawn(move || (0..20_000).for_each(|_| counter.add(thread)));
            }
        });
        assert_eq!(counter.exact(), Some(21 * 20_000));
        assert_eq!(counter.approximate(), 21 * 20_000);
        let topology = Topology::live().unwrap();
        let by_node: u64 = topology.nodes().iter().map(|node| counter.on_node(node.id)).sum();
        assert_eq!(by_node, 21 * 20_000);
    }

    #[test]
    fn a_cpu_beyond_the_table_is_counted_too() {
        let counter = NodeCounter::with_cpus(0);
        counter.add(3);
        assert_eq!(counter.exact(), Some(3));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn exact_is_a_count_there_was() {
        loom::model(|| {
            let counter = Arc::new(NodeCounter::with_cpus(2));
            // One thread adds to one slot, then to the other: 0, 1 and 11 are the counts there ever are, and
            // not 10.
            let adder = {
                let counter = counter.clone();
                loom::thread::spawn(move || {
                    counter.of_cpus[0].add(1);
                    counter.of_cpus[1].add(10);
                })
            };
            if let Some(count) = counter.exact() {
                assert!([0, 1, 11].contains(&count), "{count}");
            }
            adder.join().unwrap();
            assert_eq!(counter.exact(), Some(11));
        });
    }
}
