//! `churn`: a program whose memory goes away while somebody may be about to move it.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use nodewise_bench::{first_touch, pin_to_node};
use nodewise_sys::{Mapping, MappingOptions};
use nodewise_topology::Topology;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Touch memory on one node, use it on two, and have it go away, again and again
#[derive(Parser)]
#[command(after_help = "Example:\n  churn fork --seconds 20 --life-ms 800")]
struct Args {
    /// Have it go away in this way
    mode: Mode,
    /// Have this much memory at a time, in MiB
    #[arg(long, default_value_t = 8)]
    mebibytes: usize,
    /// Go on for so many seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// End each life after so many milliseconds
    #[arg(long, default_value_t = 1000)]
    life_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The process ends after one life
    Exit,
    /// The process executes itself anew
    Exec,
    /// Children live one after the other, while the parent waits
    Fork,
    /// The memory is unmapped and other memory mapped
    Unmap,
    /// As unmap, in many small mappings that go at different times
    MmapChurn,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let topology = Topology::live()?;
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    let life = Duration::from_millis(args.life_ms);
    let bytes = args.mebibytes << 20;
    match args.mode {
        Mode::Exit => live(&topology, bytes, life),
        Mode::Exec => {
            live(&topology, bytes, life)?;
            let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
            if left == 0.0 {
                return Ok(());
            }
            let error = again("exec", &args).args(["--seconds", &left.to_string()]).exec();
            Err(error).context("cannot execute myself")
        }
        Mode::Fork => {
            while Instant::now() < until {
                let status = again("exit", &args).status().context("cannot start myself")?;
                anyhow::ensure!(status.success(), "the child ended with {status}");
            }
            Ok(())
        }
        Mode::Unmap => {
            while Instant::now() < until {
                live(&topology, bytes, life)?;
            }
            Ok(())
        }
        Mode::MmapChurn => churn(&topology, bytes, life, until),
    }
}

fn again(mode: &str, args: &Args) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([mode, "--mebibytes", &args.mebibytes.to_string(), "--life-ms", &args.life_ms.to_string()]);
    command
}

/// Touches memory on the first node and uses it there and on the last for a while; then the memory is
/// unmapped.
fn live(topology: &Topology, bytes: usize, life: Duration) -> anyhow::Result<()> {
    pin_to_node(topology, 0)?;
    let memory = Mapping::new(bytes, MappingOptions::default()).context("cannot map memory")?;
    first_touch(&memory);
    use_for(topology, &[memory], life)
}

/// Sixteen mappings; each in its turn is replaced by a fresh one.
fn churn(topology: &Topology, bytes: usize, life: Duration, until: Instant) -> anyhow::Result<()> {
    const MAPPINGS: u32 = 16;
    let mut mappings = Vec::new();
    while Instant::now() < until {
        pin_to_node(topology, 0)?;
        let fresh = Mapping::new(bytes / MAPPINGS as usize, MappingOptions::default())
            .context("cannot map memory")?;
        first_touch(&fresh);
        if mappings.len() == MAPPINGS as usize {
            mappings.remove(0);
        }
        mappings.push(fresh);
        use_for(topology, &mappings, life / MAPPINGS)?;
    }
    Ok(())
}

/// A thread on the first node and one on the last write all pages, which the kernel's balancing leaves where
/// they are.
fn use_for(topology: &Topology, memory: &[Mapping], time: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    let write = |node| -> anyhow::Result<()> {
        pin_to_node(topology, node)?;
        while Instant::now() < until {
            for word in memory.iter().flat_map(|mapping| mapping.as_atomics().iter().step_by(512)) {
                word.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| write(usize::MAX));
        write(0)?;
        other.join().expect("the thread does not panic")
    })
}
