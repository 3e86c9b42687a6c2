//! Figures of one core: its speed, and the latency of its caches.

use crate::chase::Chase;
use crate::error::Error;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::memory::Memory;
use crate::results::CoreFigures;
use crate::team::on_cpu;
use std::hint::black_box;
use std::time::Instant;

/// Measures the first CPU of a node, with memory for its caches.
pub fn measure(
    machine: &Machine,
    cpu: u32,
    memory: &mut Memory,
    passes: usize,
) -> Result<CoreFigures, Error> {
    let additions = on_cpu(cpu, || Figure::of((0..passes).map(|_| additions_per_ns()).collect()))?;
    let window = memory.window_bytes();
    let cache_latency_ns = machine.caches.iter().enumerate().map(|(level, cache)| {
        // Half of the cache, and more than the one above it has.
        let above = level.checked_sub(1).map_or(0, |above| machine.caches[above].size_bytes);
        let bytes = (cache.size_bytes / 2).max(above.midpoint(cache.size_bytes));
        let slice = memory.slice().split(bytes as usize / crate::slice::LINE_BYTES).0;
        on_cpu(cpu, || {
            let mut chase = Chase::new(slice, window);
            let hops = chase.lines().clamp(4096, 65_536);
            black_box(chase.walk(chase.lines()));
            let pass = |_| nanoseconds_per_hop(&mut chase, hops);
            Figure::of((0..passes).map(pass).collect())
        })
    });
    Ok(CoreFigures {
        additions_per_ns: additions,
        cache_latency_ns: cache_latency_ns.collect::<Result<_, _>>()?,
    })
}

/// Goes on with a chase, and tells how long a load took.
pub fn nanoseconds_per_hop(chase: &mut Chase<'_>, hops: usize) -> f64 {
    let start = Instant::now();
    black_box(chase.walk(hops));
    start.elapsed().as_nanos() as f64 / hops as f64
}

/// Speed of additions each of which needs the one before.
fn additions_per_ns() -> f64 {
    const ROUNDS: u64 = 20_000;
    const ADDITIONS: u64 = 10;
    let start = Instant::now();
    let mut sum = 1_u64;
    for _ in 0..ROUNDS {
        for _ in 0..ADDITIONS {
            sum = black_box_register(sum + 1);
        }
    }
    black_box(sum);
    (ROUNDS * ADDITIONS) as f64 / start.elapsed().as_nanos().max(1) as f64
}

/// The same number, of which the compiler knows nothing any more; it stays in its register.
#[inline]
fn black_box_register(mut number: u64) -> u64 {
    // SAFETY: nothing is executed, and the number stays as it is.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    };
    number
}
