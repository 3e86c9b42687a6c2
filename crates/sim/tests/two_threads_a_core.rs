//! Programs on a machine with two hardware threads a core.
#![allow(missing_docs)]

use nodewise_engine::Machine;
use nodewise_hardware::Preset;
use nodewise_sim::{Area, Error, Program, Progress, Role, Settings, SimMachine, Simulation, Space, Trace};

const PIECES: u64 = 50;
const PIECE: u64 = 200;
const BYTES: u64 = 8 << 20;
/// No two accesses in a row are to one line or to neighbours.
const STRIDE: u64 = 4160;

/// The work of a thread.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// Instructions.
    Compute,
    /// Reads, each at an address that the one before yields.
    Chase,
    /// Reads that do not wait for each other.
    Stream,
}

/// All threads do the same, each with memory of its own.
struct Alike {
    work: Work,
    areas: Vec<Area>,
    bases: Vec<u64>,
    pieces: Vec<u64>,
}

impl Alike {
    fn boxed(work: Work, threads: usize) -> Box<dyn Program> {
        let mut space = Space::new();
        let bases =
            (0..threads).map(|thread| space.area(format!("{thread}"), BYTES, Role::Unknown)).collect();
        Box::new(Self { work, areas: space.into_areas(), bases, pieces: vec![0; threads] })
    }
}

impl Program for Alike {
    fn threads(&self) -> usize {
        self.bases.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let first = self.pieces[thread] * PIECE;
        for access in first..first + PIECE {
            let address = self.bases[thread] + access * STRIDE % BYTES;
            match self.work {
                Work::Compute => trace.compute(100),
                Work::Chase => trace.chase(address),
                Work::Stream => trace.read(address),
            }
        }
        self.pieces[thread] += 1;
        if self.pieces[thread] < PIECES { Progress::Running } else { Progress::Finished }
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// `dahu-2n-smt` with so many cores a node and hardware threads a core. Its memory has no banks that wait by
/// chance.
fn machine(cores: usize, threads: usize) -> Preset {
    let mut preset = Preset::named("dahu-2n-smt").unwrap().scaled(1e-3);
    preset.nodes.iter_mut().for_each(|node| node.cores = cores);
    preset.core.threads = threads;
    preset.core.adjacent_line_prefetches = 0;
    (preset.controller.banks, preset.controller.bank_ns) = (0, 0.0);
    preset
}

/// Run time of a thread on each CPU, where faults are free.
fn seconds(work: Work, preset: &Preset) -> f64 {
    let mut settings = Settings::scaled(1.0);
    settings.costs.page_fault_ns = 0;
    let (program, policy) = (Alike::boxed(work, preset.cpus()), "first-touch".parse().unwrap());
    let simulation = Simulation::new(preset, program, settings, policy).unwrap();
    simulation.run(&mut |_| ()).unwrap().run_time_s
}

/// The time of a thread on every CPU over that of one on every core, with so many cores a node.
fn slower(work: Work, cores: usize) -> f64 {
    seconds(work, &machine(cores, 2)) / seconds(work, &machine(cores, 1))
}

#[test]
fn threads_that_compute_take_twice_the_time_over_the_speed_up() {
    let slower = slower(Work::Compute, 16);
    assert!((slower / (2.0 / 1.2) - 1.0).abs() < 0.01, "{slower}");
}

#[test]
fn threads_that_wait_for_memory_hardly_hinder_each_other() {
    let slower = slower(Work::Chase, 16);
    // 80 ns, and 0.24 ns of an instruction.
    assert!((1.0..1.005).contains(&slower), "{slower}");
}

/// The misses of four cores are far from what the controller can serve.
#[test]
fn streams_have_the_misses_of_their_core_together() {
    let slower = slower(Work::Stream, 4);
    assert!((slower / 2.0 - 1.0).abs() < 0.01, "{slower}");
}

/// As long as there are cores without a thread, no two threads share one.
#[test]
fn second_threads_of_cores_are_used_last() {
    let (one, two) = (machine(16, 1), machine(16, 2));
    let run = |preset: &Preset| {
        let program = Alike::boxed(Work::Compute, 32);
        let policy = "first-touch".parse().unwrap();
        let simulation = Simulation::new(preset, program, Settings::scaled(1.0), policy).unwrap();
        simulation.run(&mut |_| ()).unwrap()
    };
    assert_eq!(run(&one), run(&two));
}

#[test]
fn the_engine_sees_cores_with_two_cpus() {
    let preset = Preset::named("dahu-2n-smt").unwrap();
    let machine = SimMachine::with_processes(&preset, &[vec![1]]);
    let topology = machine.topology();
    assert_eq!((topology.online_cpus().len(), topology.cores().len()), (64, 32));
    assert!(topology.cores().iter().all(|core| core.cpus.len() == 2));
    assert!(topology.nodes().iter().all(|node| node.cpus.len() == 32));
}
