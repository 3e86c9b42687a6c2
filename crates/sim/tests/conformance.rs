//! The simulated machine is held to what every machine must do.

use nodewise_engine::conformance::{Part, Testbed, check};
use nodewise_engine::{Access, PAGE_BYTES, PageNumber, PageRange, Pid, VirtAddr};
use nodewise_hardware::Preset;
use nodewise_sim::SimMachine;
use nodewise_topology::NodeIndex;

struct SimTestbed {
    machine: SimMachine,
    processes: Vec<Vec<(Part, PageRange)>>,
    /// Intervals that passed: threads use another line of their pages in each.
    passed: u64,
}

const LINE_BYTES: u64 = 64;

impl SimTestbed {
    fn new(preset: &Preset, processes: &[Vec<Part>]) -> Self {
        let pages = |parts: &Vec<Part>| parts.iter().map(|part| part.pages).collect();
        let mut machine =
            SimMachine::with_processes(preset, &processes.iter().map(pages).collect::<Vec<_>>());
        let lay = |(process, parts): (usize, &Vec<Part>)| {
            let range = |mapping| machine.mapping(machine.pid(process), mapping);
            parts.iter().copied().zip((0..parts.len()).map(range)).collect()
        };
        let processes: Vec<Vec<(Part, PageRange)>> = processes.iter().enumerate().map(lay).collect();
        for &(part, range) in processes.iter().flatten() {
            write_all(&mut machine, part.touched_on, range, 0);
        }
        Self { machine, processes, passed: 0 }
    }
}

fn write_all(machine: &mut SimMachine, node: NodeIndex, range: PageRange, line: u64) {
    for page in range.start.0..range.end.0 {
        let address = VirtAddr(page * PAGE_BYTES + line % (PAGE_BYTES / LINE_BYTES) * LINE_BYTES);
        machine.touch(node, address, Access::Write);
    }
}

impl Testbed for SimTestbed {
    type Machine = SimMachine;

    fn machine(&mut self) -> &mut SimMachine {
        &mut self.machine
    }

    fn pid(&self, process: usize) -> Pid {
        self.machine.pid(process)
    }

    fn range(&self, process: usize, part: usize) -> PageRange {
        self.processes[process][part].1
    }

    fn homes(&mut self, pid: Pid, range: PageRange) -> Vec<Option<NodeIndex>> {
        (range.start.0..range.end.0).map(|page| self.machine.home(pid, PageNumber(page))).collect()
    }

    fn pass(&mut self) {
        self.passed += 1;
        for &(part, range) in self.processes.iter().flatten() {
            if let Some(node) = part.used_on {
                write_all(&mut self.machine, node, range, self.passed);
            }
        }
    }

    fn end(&mut self, process: usize) {
        self.machine.end(self.machine.pid(process));
    }

    fn unmap(&mut self, process: usize, part: usize) -> bool {
        self.machine.unmap(self.machine.pid(process), part);
        true
    }

    fn fill(&mut self, node: NodeIndex) -> bool {
        self.machine.fill(node, 1000);
        true
    }
}

#[test]
fn machines_of_two_four_and_eight_nodes() {
    for machine in ["dahu-2n", "opteron-8385-4n", "epyc-nps4"] {
        // Caches of one set, so that whatever is used is used in memory.
        let preset = Preset::named(machine).unwrap().scaled(1e-3);
        check(|processes| SimTestbed::new(&preset, processes));
    }
}

/// Nodes without memory are served by the nearest, and the nearest is the preset's.
#[test]
fn the_engine_sees_the_presets_distances() {
    let preset = Preset::named("opteron-6272-8n").unwrap();
    let machine = SimMachine::with_processes(&preset, &[vec![1]]);
    let topology = nodewise_engine::Machine::topology(&machine);
    let row = |from: usize| topology.nodes()[from].distances.clone();
    let seen: Vec<Vec<u32>> = (0..topology.node_count()).map(row).collect();
    assert_eq!(seen, preset.distances);
    assert!(seen[0].iter().any(|&distance| distance > 20), "they are not 10 and 20 throughout: {seen:?}");
}
