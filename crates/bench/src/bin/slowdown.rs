//! `slowdown`: by how much CPU time is stretched by what the host does meanwhile.
#![forbid(unsafe_code)]

use clap::Parser;
use nodewise_sys::{Clock, clock_ns};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Print by how much more CPU time the same small work takes on average than it does undisturbed
///
/// A guest charges a thread for the time in which the host runs something else. Ten times a second a burst of
/// short loops runs. The tenth percentile of them counts as undisturbed. A loop on its own would tell too
/// little. The host prefers a thread that slept for its first moment, and takes its share of the rest.
#[derive(Parser)]
#[command(after_help = "Example:\n  slowdown --seconds 30")]
struct Args {
    /// Run for so many seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// Loops in a burst, some milliseconds in a guest. With 8 and with 512 of them the result was the same, 3.2
/// and 3.4, where a loop on its own said 1.5: four busy CPUs on two.
const BURST: usize = 8;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (begin, mut turns) = (Instant::now(), Vec::new());
    while turns.is_empty() || begin.elapsed().as_secs_f64() < args.seconds {
        for _ in 0..BURST {
            let before = clock_ns(Clock::ThreadCpu)?;
            // A millisecond or less, less than the host lets others run at a time.
            black_box((0..100_000u64).fold(1, |value, step| black_box(value ^ step)));
            turns.push(clock_ns(Clock::ThreadCpu)? - before);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    turns.sort_unstable();
    let mean = turns.iter().sum::<u64>() as f64 / turns.len() as f64;
    println!("{}", mean / turns[turns.len() / 10] as f64);
    Ok(())
}
