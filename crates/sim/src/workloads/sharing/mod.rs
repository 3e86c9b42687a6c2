//! The objects that threads share beside their data: a count that all add to, the queue and the task count of
//! a parallel foreach. Each as one writes it without a thought of nodes, with a part for each node as Pikus's
//! talk has it, and as `nodewise-runtime` does.
//!
//! Nobody's memory is the point here but the cache lines that everybody writes to, and which nodes they
//! travel between.

mod counter;
mod elements;
mod pool;
mod rings;

use super::Workload;
use counter::Counter;
use pool::Pool;
use rings::Rings;

/// Bytes from one word that threads share to the next: two lines, as some prefetchers fetch them in pairs.
/// Everybody's words lie so, the thoughtless ones' too.
const APART: u64 = 128;

/// Nodes whose parts of a program come before the rest of its memory. The parts of further nodes are at the
/// end. So the most nodes that a machine may have change no address, and with it no result.
const FIRST_NODES: usize = 15;

/// Instructions that take as long as one processor's hint to wait a little: 140 cycles on Skylake (Intel
/// optimization manual), at two a cycle.
const PAUSE: u64 = 280;

/// Every program of this kind.
pub const ALL: [Workload; 7] = [
    Workload {
        name: "counter-shared",
        about: "every thread adds to one atomic word",
        build: |parameters| Box::new(Counter::shared(parameters)),
    },
    Workload {
        name: "counter-per-node",
        about: "every thread adds to its node's atomic word",
        build: |parameters| Box::new(Counter::per_node(parameters)),
    },
    Workload {
        name: "counter-nodewise",
        about: "every thread adds to its CPU's word, without an atomic: NodeCounter of nodewise-runtime",
        build: |parameters| Box::new(Counter::per_cpu(parameters)),
    },
    Workload {
        name: "foreach-shared",
        about: "one thread submits a task of 1 us for each element, all others do them: one queue, one task count (Pikus's talk)",
        build: |parameters| Box::new(Rings::shared(parameters)),
    },
    Workload {
        name: "foreach-per-node",
        about: "the same with a queue and a task count for each node, and a submitter on each (Pikus's talk)",
        build: |parameters| Box::new(Rings::per_node(parameters)),
    },
    Workload {
        name: "foreach-nodewise",
        about: "the same tasks in NodePool of nodewise-runtime: a scope, a task on each node that spawns its share",
        build: |parameters| Box::new(Pool::tasks(parameters)),
    },
    Workload {
        name: "foreach-nodewise-range",
        about: "the same elements in NodePool::parallel_for, which divides the range",
        build: |parameters| Box::new(Pool::range(parameters)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::Parameters;
    use crate::{Pinning, Policy, Report, Settings, Simulation};
    use nodewise_hardware::Preset;

    fn run(workload: &str, machine: &str, threads: usize, pinning: Pinning) -> Report {
        let workload = ALL.iter().find(|known| known.name == workload).unwrap();
        let program = (workload.build)(Parameters { threads, scale: 0.002, seed: 1 });
        let settings = Settings { pinning, ..Settings::scaled(1.0) };
        let preset = Preset::named(machine).unwrap();
        Simulation::new(&preset, program, settings, Policy::FirstTouch).unwrap().run(&mut |_| ()).unwrap()
    }

    #[test]
    fn all_is_done_once_with_any_number_of_threads() {
        for workload in ALL {
            for threads in [1, 2, 3, 16] {
                let report = run(workload.name, "opteron-6272-8n", threads, Pinning::None);
                assert!(report.items_per_s > Some(0.0), "{report:?}");
            }
        }
    }

    #[test]
    fn a_part_for_each_node_keeps_lines_at_home() {
        let lines =
            |workload| run(workload, "dahu-2n", 32, Pinning::None).lines_between_nodes_per_item.unwrap();
        // Threads of both nodes take turns.
        assert!(lines("counter-shared") > 0.95);
        assert!(lines("counter-per-node") < 0.1 && lines("counter-nodewise") < 0.1);
        let shared = lines("foreach-shared");
        for parts in ["foreach-per-node", "foreach-nodewise", "foreach-nodewise-range"] {
            assert!(lines(parts) < 0.5 * shared, "{parts}: {} of {shared}", lines(parts));
        }
    }

    #[test]
    fn on_one_node_nothing_leaves_it() {
        let report = run("foreach-shared", "dahu-2n", 16, Pinning::SockOrder);
        assert_eq!(report.lines_between_nodes, 0);
    }
}
