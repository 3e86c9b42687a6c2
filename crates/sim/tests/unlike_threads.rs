//! Unlike threads on one controller. A thread that waits for each datum pays what it would if all requests
//! were told to the hardware in the order of time.
#![allow(missing_docs)]

use nodewise_hardware::{Hardware, Preset};
use nodewise_sim::{Area, Error, Pinning, Program, Progress, Role, Settings, Simulation, Space, Trace};

const CHASES: u64 = 20_000;
/// No two accesses in a row are to one line or to neighbours.
const STRIDE: u64 = 256;
const BYTES: u64 = 8 << 20;
const PIECE: u64 = 256;

/// The first thread follows pointers; the others read streams until it is done.
struct Unlike {
    areas: Vec<Area>,
    bases: Vec<u64>,
    accesses: Vec<u64>,
}

impl Unlike {
    fn new(threads: usize) -> Self {
        let mut space = Space::new();
        let bases =
            (0..threads).map(|thread| space.area(format!("{thread}"), BYTES, Role::Unknown)).collect();
        Self { areas: space.into_areas(), bases, accesses: vec![0; threads] }
    }

    fn address(&self, thread: usize, access: u64) -> u64 {
        self.bases[thread] + access * STRIDE % BYTES
    }
}

impl Program for Unlike {
    fn threads(&self) -> usize {
        self.bases.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if self.accesses[0] >= CHASES {
            return Progress::Finished;
        }
        let first = self.accesses[thread];
        for access in first..first + PIECE {
            let address = self.address(thread, access);
            if thread == 0 { trace.chase(address) } else { trace.read(address) }
        }
        self.accesses[thread] += PIECE;
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

fn preset(name: &str) -> Preset {
    Preset::named(name).unwrap().scaled(1e-3)
}

/// Nanoseconds that a chase takes in a simulated program.
fn simulated(machine: &str, readers: usize, slack_ps: u64) -> f64 {
    let settings = Settings { pinning: Pinning::SockOrder, slack_ps, ..Settings::scaled(1e-3) };
    let mut settings = settings;
    // Page faults are not the subject.
    settings.period_scale = settings.size_scale * 1e-6;
    let program = Box::new(Unlike::new(1 + readers));
    let policy = "bind:0".parse().unwrap();
    let report =
        Simulation::new(&preset(machine), program, settings, policy).unwrap().run(&mut |_| ()).unwrap();
    report.run_time_s * 1e9 / CHASES.next_multiple_of(PIECE) as f64
}

/// The same on the bare hardware, every access in the order of the times at which the cores ask. The core's
/// rules are written once more here. A chase waits for the datum before it, and a reader for the first of its
/// outstanding misses.
fn in_order(machine: &str, readers: usize) -> f64 {
    let preset = preset(machine);
    let mut hardware = Hardware::new(&preset);
    let program = Unlike::new(1 + readers);
    let mut outstanding = vec![vec![0; preset.core.outstanding_misses]; 1 + readers];
    outstanding[0] = vec![0];
    let mut accesses = vec![0; 1 + readers];
    while accesses[0] < CHASES {
        let asks = |core: usize| hardware.clock(core).max(*outstanding[core].iter().min().unwrap());
        let core = (0..=readers).min_by_key(|&core| asks(core)).unwrap();
        let address = program.address(core, accesses[core]);
        accesses[core] += 1;
        let access =
            if core == 0 { hardware.chase(core, address, 0) } else { hardware.read(core, address, 0) };
        let first = (0..outstanding[core].len()).min_by_key(|&place| outstanding[core][place]).unwrap();
        outstanding[core][first] = hardware.clock(core) + access.latency_ps;
    }
    hardware.clock(0) as f64 / 1000.0 / CHASES as f64
}

fn near(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() < 0.05
}

#[test]
fn a_pointer_chaser_beside_streaming_readers_waits_as_in_the_order_of_time() {
    for (machine, readers) in [("xeon-5120-4s", 13), ("xeon-snc", 11), ("opteron-8385-4n", 3)] {
        let (alone, expected) = (in_order(machine, 0), in_order(machine, readers));
        assert!(expected > 1.5 * alone, "{machine}: {alone} and {expected} ns");
        assert!(near(simulated(machine, 0, 1_000_000), alone), "{machine}: the chaser alone");
        for slack_ps in [1_000_000, 10_000, 0] {
            let waited = simulated(machine, readers, slack_ps);
            println!("{machine}: alone {alone:.1} in order {expected:.1} slack {slack_ps}: {waited:.1}");
            assert!(
                near(waited, expected),
                "{machine}: {waited} ns at a slack of {slack_ps} ps, not {expected}"
            );
        }
    }
}
