//! Simulated references per second on one core of the host, of whole runs: a program, the operating system, a
//! policy.

#![allow(missing_docs)] // criterion_group! writes an undocumented function

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nodewise_hardware::Preset;
use nodewise_sim::{Area, Program, Progress, Role, Settings, Simulation, Space, Trace};

const THREADS: usize = 16;
/// Memory of each thread that fits its first-level cache, memory that does not fit its node's LLC, and memory
/// of all.
const HOT: u64 = 32 << 10;
const OWN: u64 = 4 << 20;
const SHARED: u64 = 64 << 20;
/// References in a piece, and pieces of a thread.
const PIECE: u64 = 4096;
const PIECES: u64 = 256;

/// As programs do: of 32 references 28 go to hot data (a quarter of them writes), 3 walk an array of the
/// thread's own word by word, which misses every eighth time, and one reads anywhere in shared memory.
struct Mixed {
    areas: Vec<Area>,
    shared: u64,
    own: Vec<u64>,
    at: Vec<(u64, u64, u64)>,
}

impl Mixed {
    fn boxed() -> Box<dyn Program> {
        let mut space = Space::new();
        let shared = space.area("shared", SHARED, Role::ReadShared);
        let own = |thread| space.area(format!("own {thread}"), HOT + OWN, Role::Private(thread));
        let own: Vec<u64> = (0..THREADS).map(own).collect();
        let at = (0..THREADS as u64).map(|thread| (thread + 1, 0, 0)).collect();
        Box::new(Self { areas: space.into_areas(), shared, own, at })
    }
}

/// A linear congruential generator (Knuth's MMIX constants).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

impl Program for Mixed {
    fn threads(&self) -> usize {
        THREADS
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let (state, position, pieces) = &mut self.at[thread];
        let own = self.own[thread];
        for _ in 0..PIECE / 32 {
            trace.read(self.shared + next(state) % SHARED);
            for step in 0..31 {
                let at = next(state) % HOT;
                if step % 10 == 9 {
                    *position = (*position + 8) % OWN;
                    trace.read(own + HOT + *position);
                } else if step % 4 == 0 {
                    trace.write(own + at);
                } else {
                    trace.read(own + at);
                }
            }
        }
        *pieces += 1;
        if *pieces == PIECES { Progress::Finished } else { Progress::Running }
    }

    fn check(&self) -> Result<(), nodewise_sim::Error> {
        Ok(())
    }
}

fn runs(c: &mut Criterion) {
    let preset = Preset::named("opteron-8385-4n").unwrap();
    let mut group = c.benchmark_group("run");
    group.throughput(Throughput::Elements(PIECE * PIECES * THREADS as u64)).sample_size(10);
    for policy in ["first-touch", "autonuma", "carrefour"] {
        group.bench_function(policy, |b| {
            b.iter(|| {
                let policy = policy.parse().unwrap();
                let simulation =
                    Simulation::new(&preset, Mixed::boxed(), Settings::scaled(0.1), policy).unwrap();
                simulation.run(&mut |_| ()).unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, runs);
criterion_main!(benches);
