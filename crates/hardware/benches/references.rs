//! Simulated references per second on one core of the host: 16 threads on 4 nodes, everything on.

#![allow(missing_docs)] // criterion_group! writes an undocumented function

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nodewise_hardware::{Hardware, Preset};

/// Memory of each thread that fits its first-level cache, memory that does not fit its node's LLC, and memory
/// of all.
const HOT: u64 = 32 << 10;
const OWN: u64 = 16 << 20;
const SHARED: u64 = 64 << 20;
/// References a thread makes before it is another's turn.
const TURN: u64 = 64;
const TURNS: u64 = 1 << 14;

/// A linear congruential generator (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// As programs do: of 32 references 28 go to hot data (a quarter of them writes), 3 walk an array of the
/// thread's own word by word, which misses every eighth time, and one reads anywhere in shared memory, spread
/// over the nodes.
fn mixed(hw: &mut Hardware, core: usize, position: &mut u64, random: &mut Random) {
    let base = (core as u64 + 1) << 32;
    let node = core / 4;
    for _ in 0..TURN / 32 {
        let shared = random.next() % SHARED;
        hw.read(core, shared, (shared >> 12 & 3) as usize);
        for step in 0..31 {
            let at = random.next();
            if step % 10 == 9 {
                *position = (*position + 8) % OWN;
                hw.read(core, base + HOT + *position, node);
            } else if step % 4 == 0 {
                hw.write(core, base + at % HOT, node);
            } else {
                hw.read(core, base + at % HOT, node);
            }
        }
    }
}

/// Nothing but misses, line after line of the thread's own memory, every fourth a write.
fn streaming(hw: &mut Hardware, core: usize, position: &mut u64, _: &mut Random) {
    for step in 0..TURN {
        *position = (*position + 64) % OWN;
        let address = ((core as u64 + 1) << 32) + *position;
        if step % 4 == 0 {
            hw.write(core, address, core / 4);
        } else {
            hw.read(core, address, core / 4);
        }
    }
}

/// The worst, for the simulator's own caches too: reads and writes anywhere in 1 GiB, by all.
fn all_miss(hw: &mut Hardware, core: usize, _: &mut u64, random: &mut Random) {
    for step in 0..TURN {
        let address = random.next() % (1 << 30) & !63;
        let home = (address >> 12 & 3) as usize;
        if step % 2 == 0 {
            hw.read(core, address, home);
        } else {
            hw.write(core, address, home);
        }
    }
}

type Turn = fn(&mut Hardware, usize, &mut u64, &mut Random);

fn references(c: &mut Criterion) {
    let preset = Preset::named("opteron-8385-4n").unwrap();
    let mut group = c.benchmark_group("references");
    group.throughput(Throughput::Elements(TURN * TURNS)).sample_size(10);
    for (name, turn) in [("mixed", mixed as Turn), ("streaming", streaming), ("all-miss", all_miss)] {
        let mut hw = Hardware::new(&preset);
        let mut random = Random(1);
        let mut positions = [0; 16];
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for _ in 0..TURNS {
                    let core = (0..16).min_by_key(|&core| hw.clock(core)).unwrap_or(0);
                    turn(&mut hw, core, &mut positions[core], &mut random);
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, references);
criterion_main!(benches);
