//! Memory bandwidth by four kernels, after the benchmark STREAM.
//!
//! `cargo run --release -p nodewise-runtime --example stream_plain [ELEMENTS]`
#![forbid(unsafe_code)]

use std::ops::Range;
use std::time::Instant;

const ROUNDS: usize = 10;
const SCALAR: f64 = 3.0;

fn main() {
    let elements = std::env::args().nth(1).and_then(|text| text.parse().ok());
    println!("sums {:?}", run(elements.unwrap_or(1 << 24)));
}

/// The sums of the three arrays in the end.
pub(crate) fn run(elements: usize) -> [f64; 3] {
    let mut a = vec![0.0; elements];
    let mut b = vec![0.0; elements];
    let mut c = vec![0.0; elements];
    each_part(&mut a, |_, a| a.fill(1.0));
    each_part(&mut b, |_, b| b.fill(2.0));
    let mut best = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let began = Instant::now();
        each_part(&mut c, |part, c| c.copy_from_slice(&a[part]));
        let copied = Instant::now();
        each_part(&mut b, |part, b| b.iter_mut().zip(&c[part]).for_each(|(b, c)| *b = SCALAR * c));
        let scaled = Instant::now();
        each_part(&mut c, |part, c| {
            let sums = a[part.clone()].iter().zip(&b[part]).map(|(a, b)| a + b);
            c.iter_mut().zip(sums).for_each(|(c, sum)| *c = sum);
        });
        let added = Instant::now();
        each_part(&mut a, |part, a| {
            let sums = b[part.clone()].iter().zip(&c[part]).map(|(b, c)| b + SCALAR * c);
            a.iter_mut().zip(sums).for_each(|(a, sum)| *a = sum);
        });
        let ends = [began, copied, scaled, added, Instant::now()];
        for (best, ends) in best.iter_mut().zip(ends.windows(2)) {
            *best = best.min((ends[1] - ends[0]).as_secs_f64());
        }
    }
    for ((name, arrays), seconds) in [("copy", 2), ("scale", 2), ("add", 3), ("triad", 3)].iter().zip(best) {
        eprintln!("{name:<6} {:8.2} GB/s", (arrays * elements * 8) as f64 / seconds / 1e9);
    }
    [&a, &b, &c].map(|array| array.iter().sum())
}

/// Calls `kernel` with each thread's part of an array.
fn each_part(array: &mut [f64], kernel: impl Fn(Range<usize>, &mut [f64]) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let step = array.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (part, values) in array.chunks_mut(step).enumerate() {
            let (start, kernel) = (part * step, &kernel);
            scope.spawn(move || kernel(start..start + values.len(), values));
        }
    });
}
