//! The time that a change saves, as the model of loads says it, against the machine model's own time before
//! and after. CPUs access memory all the time, so that no sample tells how long an access takes that waits
//! for no other.

use nodewise_hardware::{Access, Hardware, Preset, Source, Touch};
use nodewise_verdict::load::{Load, Saved, ways};

/// Caches and memory are so much smaller than on the machine.
const SCALE: f64 = 0.0125;
const BYTES: u64 = 1 << 20;
const PART: u64 = 512 << 10;
const LINE: u64 = 64;
const PAGE: u64 = 4096;
/// Accesses of a CPU before any counts, and then.
const EACH: u64 = 40_000;
/// Instructions between two accesses.
const BETWEEN: u64 = 8;

/// Accesses of CPUs to memory that lies on one node.
struct Scene {
    name: &'static str,
    next: Next,
    touch: Touch,
    /// Whether it stores what it has read and computed.
    stores: bool,
    cure: Cure,
}

/// The address of a CPU's next access: of the CPU of this number, the so many'th, and a random number.
type Next = fn(u64, u64, u64) -> u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cure {
    /// Pages lie on all nodes in turn.
    Interleave,
    /// Each CPU's memory lies with it. Memory that all read has a copy on each node.
    Near,
}

const fn anywhere(_: u64, _: u64, random: u64) -> u64 {
    random % BYTES
}

const fn in_own_part(cpu: u64, _: u64, random: u64) -> u64 {
    PART * cpu + random % PART
}

const fn own_part_in_order(cpu: u64, number: u64, _: u64) -> u64 {
    PART * cpu + number * LINE % PART
}

const SCENES: [Scene; 6] = [
    Scene { name: "reads", next: anywhere, touch: Touch::Read, stores: false, cure: Cure::Interleave },
    Scene { name: "slices", next: in_own_part, touch: Touch::Read, stores: true, cure: Cure::Near },
    Scene { name: "stream", next: own_part_in_order, touch: Touch::Read, stores: false, cure: Cure::Near },
    Scene { name: "table", next: anywhere, touch: Touch::Chase, stores: false, cure: Cure::Near },
    Scene { name: "chase", next: anywhere, touch: Touch::Chase, stores: false, cure: Cure::Interleave },
    Scene { name: "histogram", next: anywhere, touch: Touch::Read, stores: true, cure: Cure::Interleave },
];

/// The time that accesses took.
struct Measured {
    /// Cycles of each CPU.
    cycles: Vec<f64>,
    instructions: u64,
    /// Latencies by the CPU's node and the memory's.
    latencies: Vec<Vec<Vec<u32>>>,
    taken: Vec<f64>,
    lines_taken: Vec<f64>,
    cached: Vec<f64>,
}

impl Measured {
    fn note(&mut self, from: usize, home: usize, access: Access, cycle_ps: f64) {
        let cycles = access.latency_ps as f64 / cycle_ps;
        match access.source {
            Source::L1 => {}
            Source::L2 | Source::Llc => self.cached[from] += cycles,
            Source::RemoteLlc => {
                self.taken[from] += cycles;
                self.lines_taken[from] += 1.0;
            }
            Source::LocalDram | Source::RemoteDram { .. } => self.latencies[from][home].push(cycles as u32),
        }
    }
}

/// A machine of small caches, with so many CPUs a node.
fn machine(name: &str, cpus: usize) -> Preset {
    let mut preset = Preset::named(name).unwrap().scaled(SCALE);
    (preset.core.threads, preset.core.smt_speedup) = (1, 1.0);
    for node in &mut preset.nodes {
        node.cores = cpus;
    }
    preset
}

fn run(preset: &Preset, scene: &Scene, cure: Option<Cure>) -> Measured {
    let (nodes, node_of, cycle_ps) = (preset.nodes.len(), preset.nodes_of_cpus(), preset.cycle_ps());
    let cpus = node_of.len();
    let mut hardware = Hardware::new(preset);
    let mut made = vec![0; cpus];
    let mut random: Vec<u64> = (1..=cpus as u64).collect();
    let none = || vec![0.0; nodes];
    let mut measured = Measured {
        cycles: vec![0.0; cpus],
        instructions: 0,
        latencies: vec![vec![Vec::new(); nodes]; nodes],
        taken: none(),
        lines_taken: none(),
        cached: none(),
    };
    while let Some(cpu) = (0..cpus).filter(|&cpu| made[cpu] < 2 * EACH).min_by_key(|&cpu| hardware.clock(cpu))
    {
        random[cpu] =
            random[cpu].wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let address = (scene.next)(cpu as u64, made[cpu], random[cpu] >> 33);
        let home = match cure {
            None => 0,
            Some(Cure::Interleave) => (address / PAGE) as usize % nodes,
            Some(Cure::Near) => node_of[cpu],
        };
        // Copies are memory of their own.
        let copy = if cure == Some(Cure::Near) { home as u64 } else { 0 };
        let address = (copy + 1) * (1 << 30) + address;
        hardware.execute(cpu, BETWEEN);
        let mut accesses = vec![hardware.touch(cpu, scene.touch, address, home)];
        if scene.stores {
            accesses.push(hardware.write(cpu, address, home));
        }
        made[cpu] += 1;
        if made[cpu] == EACH {
            measured.cycles[cpu] = -(hardware.clock(cpu) as f64) / cycle_ps;
        } else if made[cpu] > EACH {
            measured.instructions += BETWEEN + accesses.len() as u64;
            for access in accesses {
                measured.note(node_of[cpu], home, access, cycle_ps);
            }
        }
        if made[cpu] == 2 * EACH {
            measured.cycles[cpu] += hardware.clock(cpu) as f64 / cycle_ps;
        }
    }
    measured
}

/// The time that the cure saves, as the model of loads says.
fn said(preset: &Preset, scene: &Scene, mut sick: Measured) -> Saved {
    let nodes = preset.nodes.len();
    let matrix = |of: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        (0..nodes).map(|from| (0..nodes).map(|to| of(from, to)).collect()).collect()
    };
    let in_cycles = |ns: f64| ns * 1000.0 / preset.cycle_ps();
    let idle = matrix(&|from, to| in_cycles(preset.idle_latency_ns(from, to)));
    let ratios = matrix(&|from, to| idle[from][to] / idle[from][from]);
    let seen = ways(&mut sick.latencies, &ratios).unwrap();
    let ways = matrix(&|from, to| seen[from][to].min(idle[from][to]));
    let mean = |from: usize, to: usize| {
        let latencies = &sick.latencies[from][to];
        let sum: f64 = latencies.iter().copied().map(f64::from).sum();
        if latencies.is_empty() { ways[from][to] } else { sum / latencies.len() as f64 }
    };
    let controller = preset.controller;
    let load = Load {
        accesses: matrix(&|from, to| sick.latencies[from][to].len() as f64),
        latencies: matrix(&mean),
        ways: ways.clone(),
        cycles: sick.cycles.iter().sum(),
        work_cycles: preset.core.cycles_per_instruction * sick.instructions as f64,
        cpus: sick.cycles.len() as f64,
        in_order: if scene.name == "stream" { 1.0 } else { 0.0 },
        taken: sick.taken,
        lines_taken: sick.lines_taken,
        cached: sick.cached,
        line_cycles: Some(in_cycles(controller.service_ns)),
        bank_cycles: Some(if controller.banks > 0 { in_cycles(controller.bank_ns) } else { 0.0 }),
    };
    load.fitted().unwrap().saves(&matrix(&|from, to| {
        let all: f64 = load.accesses[from].iter().sum();
        match scene.cure {
            Cure::Interleave => all / nodes as f64,
            Cure::Near if from == to => all,
            Cure::Near => 0.0,
        }
    }))
}

#[test]
fn what_is_saved_where_memory_is_always_busy_is_said() {
    for (name, cpus) in [("dahu-2n", 2), ("opteron-8385-4n", 1), ("opteron-6272-8n", 1), ("xeon-snc", 2)] {
        let preset = machine(name, cpus);
        for scene in &SCENES {
            let sick = run(&preset, scene, None);
            let cured = run(&preset, scene, Some(scene.cure));
            let sum = |of: &Measured| of.cycles.iter().sum::<f64>();
            let longest = |of: &Measured| of.cycles.iter().copied().fold(0.0, f64::max);
            let of_cpus = 100.0 * (1.0 - sum(&cured) / sum(&sick));
            let of_slowest = 100.0 * (1.0 - longest(&cured) / longest(&sick));
            let said = said(&preset, scene, sick);
            let name = format!("{name}, {}", scene.name);
            for (what, said, truth) in
                [("time", said.of_slowest, of_slowest), ("CPU time", said.of_cpus, of_cpus)]
            {
                println!("{name}, {what}: {said:.1} % said, {truth:.1} % true");
                assert!((said - truth).abs() <= (truth / 4.0).max(2.0), "{name}, {what}: {said}, {truth}");
            }
        }
    }
}
