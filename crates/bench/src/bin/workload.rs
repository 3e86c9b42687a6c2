//! `workload`: threads pinned one to a node, memory touched first by one of them, and a line a second saying
//! where the pages are.
#![forbid(unsafe_code)]

use anyhow::{Context as _, bail};
use clap::Parser;
use nodewise_bench::pattern::{Pattern, Touch};
use nodewise_bench::report::Placement;
use nodewise_sys::{
    Advice, AffinityMask, Mapping, MappingOptions, NodeMask, Policy, PolicyFlags, PolicyMode, Usage, Whose,
    query_pages, sched_setaffinity, set_mempolicy, usage,
};
use nodewise_topology::{NodeId, Topology};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Access memory in a known pattern, and report where its pages are
#[allow(clippy::struct_excessive_bools)] // switches
#[derive(Parser)]
#[command(after_help = "Example:\n  workload private --mebibytes 64 --seconds 20")]
struct Args {
    /// The pattern of the threads' accesses
    pattern: Pattern,
    /// Use this much memory in all, in MiB
    #[arg(long, default_value_t = 64)]
    mebibytes: usize,
    /// Run for so many seconds
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// End sooner, after this many passes of every thread over its pages
    #[arg(long)]
    passes: Option<u64>,
    /// End sooner, when the pages have been where the pattern wants them for so many seconds in a row
    ///
    /// Pages that all threads use are to be interleaved evenly, within a fifth. All others are to be on
    /// their thread's node, but for 1 %.
    #[arg(long, value_name = "SECONDS")]
    after_placed: Option<f64>,
    /// Start this many threads on each node that has CPUs
    #[arg(long, default_value_t = 1)]
    threads_per_node: usize,
    /// Ask for huge pages
    #[arg(long)]
    huge: bool,
    /// Bind the memory to the first node with balancing allowed
    ///
    /// The kernel then takes mappings away and so gives samples, but moves nothing to a node outside of the
    /// binding. Others have moved the pages that go there.
    #[arg(long)]
    bound: bool,
    /// Read every line of each page in a pass, and write none, instead of using one word of it: more than
    /// caches hold
    #[arg(long)]
    stream: bool,
    /// Have each thread wait after a pass for those that are behind, so that none does more than another
    #[arg(long)]
    in_step: bool,
    /// Rest after each pass, in microseconds
    #[arg(long, default_value_t = 0)]
    rest_us: u64,
    /// Work for so many seconds with all threads, end them, then let the first thread spin alone for so
    /// many, and again
    #[arg(long, num_args = 2, value_names = ["PARALLEL", "SERIAL"], conflicts_with = "passes")]
    phases: Option<Vec<f64>>,
    /// Have the first thread use all of the memory while it is alone, instead of spinning
    #[arg(long, requires = "phases")]
    takes_all: bool,
    /// Write the reports here instead of on standard output
    #[arg(long)]
    report: Option<PathBuf>,
}

const WORDS_PER_PAGE: usize = 512;
const WORDS_PER_LINE: usize = 8;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let topology = Topology::live()?;
    let nodes: Vec<_> = topology.nodes().iter().filter(|node| !node.cpus.is_empty()).collect();
    let threads = nodes.len() * args.threads_per_node;
    let pages = (args.mebibytes << 20) / 4096;
    if pages < 512 {
        bail!("--mebibytes {}: at least 2 are needed", args.mebibytes);
    }
    let first = nodes.first().context("no node has CPUs")?;
    let memory = map(&args, pages, first.id)?;

    let pin = |t: usize| {
        let mut cpus = AffinityMask::new();
        nodes[t % nodes.len()].cpus.iter().for_each(|cpu| cpus.insert(cpu.0));
        sched_setaffinity(0, &cpus)
    };
    let node_of = |t: usize| nodes[t % nodes.len()].id;
    let words = memory.as_atomics();
    for t in 0..threads {
        pin(t)?;
        (0..pages)
            .filter(|&page| args.pattern.first_toucher(page, threads, pages) == t)
            .for_each(|page| words[page * WORDS_PER_PAGE].store(1, Ordering::Relaxed));
    }

    let passes: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let uses: Vec<Vec<usize>> = (0..threads).map(|t| args.pattern.pages_of(t, threads, pages)).collect();
    let mut out = open(args.report.as_deref())?;
    let begin = Instant::now();
    let mut end = args.seconds;
    let mut report = |end: &mut f64| -> anyhow::Result<()> {
        let done = passes.iter().map(|p| p.load(Ordering::Relaxed)).sum();
        let placement = look(&topology, &memory, &uses, node_of, begin, done)?;
        writeln!(out, "{}", serde_json::to_string(&placement)?)?;
        out.flush()?;
        let placed = match args.pattern {
            Pattern::SharedWrite | Pattern::SharedRead | Pattern::SharedUpdate => placement.is_interleaved(),
            _ => placement.local_percent_min >= 99.0,
        };
        if let Some(more) = args.after_placed {
            *end = if placed { end.min(placement.seconds + more) } else { args.seconds };
        }
        Ok(())
    };
    let touch = if args.stream { Touch::Stream } else { args.pattern.touch() };
    let all: Vec<usize> = (0..pages).collect();
    // A phase is the times at which its threads and then the first thread alone end.
    let phase = |from: f64| args.phases.as_ref().map(|long| (from + long[0], from + long[0] + long[1]));
    loop {
        let until = phase(begin.elapsed().as_secs_f64());
        let stop = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| -> anyhow::Result<bool> {
            let (finished, ended) = mpsc::channel();
            for t in 0..threads {
                let (stop, all_passes, passes, uses) = (&stop, &passes, &passes[t], &uses[t]);
                let (touch, in_step, rest) = (touch, args.in_step, Duration::from_micros(args.rest_us));
                let (limit, pin, finished) = (args.passes.unwrap_or(u64::MAX), &pin, finished.clone());
                scope.spawn(move || {
                    pin(t).expect("a node's own CPUs are there");
                    while !uses.is_empty()
                        && passes.load(Ordering::Relaxed) < limit
                        && !stop.load(Ordering::Relaxed)
                    {
                        run_pass(words, uses, touch);
                        let done = passes.fetch_add(1, Ordering::Relaxed) + 1;
                        if in_step {
                            wait_for(all_passes, done, stop);
                        }
                        std::thread::sleep(rest);
                    }
                    // The receiver lives as long as the scope.
                    let _ = finished.send(());
                });
            }
            let mut running = threads;
            loop {
                let all_ended = args.passes.is_some() && running == 0;
                let left =
                    end.min(until.map_or(end, |(parallel, _)| parallel)) - begin.elapsed().as_secs_f64();
                stop.store(left <= 0.0 || all_ended, Ordering::Relaxed);
                report(&mut end)?;
                if stop.load(Ordering::Relaxed) {
                    return Ok(all_ended || begin.elapsed().as_secs_f64() >= end);
                }
                let next = Instant::now() + Duration::from_secs_f64(left.min(1.0));
                while let Ok(()) = ended.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    running -= 1;
                    if running == 0 && args.passes.is_some() {
                        break;
                    }
                }
            }
        })?;
        let Some((_, serial)) = until.filter(|_| !ended) else { return Ok(()) };
        pin(0)?;
        while begin.elapsed().as_secs_f64() < serial {
            if args.takes_all {
                run_pass(words, &all, touch);
            } else {
                std::hint::spin_loop();
            }
        }
        report(&mut end)?;
    }
}

/// Waits until all threads have done so many passes, busily: the kernel's balancing goes by CPU time.
fn wait_for(passes: &[AtomicU64], done: u64, stop: &AtomicBool) {
    let is_behind = |passes: &AtomicU64| passes.load(Ordering::Relaxed) < done;
    while passes.iter().any(is_behind) && !stop.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

/// Memory that nothing has touched yet.
fn map(args: &Args, pages: usize, first: NodeId) -> anyhow::Result<Mapping> {
    let options = MappingOptions { align_bytes: 2 << 20, ..MappingOptions::default() };
    let memory = Mapping::new(pages * 4096, options).context("cannot map memory")?;
    if args.bound {
        let policy = Policy::new(PolicyMode::Bind, NodeMask::from_iter([first.0]));
        set_mempolicy(&policy.with_flags(PolicyFlags::NUMA_BALANCING))?;
    }
    let huge = args.huge || args.pattern == Pattern::FalseShare;
    memory.advise(0..memory.bytes(), if huge { Advice::HugePage } else { Advice::NoHugePage })?;
    Ok(memory)
}

/// Where the reports go.
fn open(path: Option<&Path>) -> anyhow::Result<Box<dyn std::io::Write>> {
    let Some(path) = path else { return Ok(Box::new(std::io::stdout())) };
    let file = std::fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(Box::new(file))
}

/// Where the pages are now, asked of the kernel page by page.
fn look(
    topology: &Topology,
    memory: &Mapping,
    uses: &[Vec<usize>],
    node_of: impl Fn(usize) -> NodeId,
    begin: Instant,
    passes: u64,
) -> anyhow::Result<Placement> {
    let addresses: Vec<u64> = (0..memory.pages()).map(|page| memory.page_address(page)).collect();
    let mut homes = vec![0; addresses.len()];
    query_pages(0, &addresses, &mut homes)?;
    let mut pages_by_node = vec![0; topology.node_count()];
    for home in homes.iter().filter_map(|&home| topology.index_of(NodeId(u32::try_from(home).ok()?))) {
        pages_by_node[home.get()] += 1;
    }
    let shares: Vec<f64> = uses
        .iter()
        .enumerate()
        .filter(|(_, uses)| !uses.is_empty())
        .map(|(t, uses)| {
            let local = uses.iter().filter(|&&page| homes[page] == node_of(t).0 as i32).count();
            100.0 * local as f64 / uses.len() as f64
        })
        .collect();
    let Usage { user_ns, system_ns, .. } = usage(Whose::Process)?;
    Ok(Placement {
        seconds: begin.elapsed().as_secs_f64(),
        memory: [memory.page_address(0), memory.page_address(memory.pages())],
        pages_by_node,
        local_percent: shares.iter().sum::<f64>() / shares.len().max(1) as f64,
        local_percent_min: shares.iter().copied().reduce(f64::min).unwrap_or(0.0),
        passes,
        user_seconds: user_ns as f64 / 1e9,
        system_seconds: system_ns as f64 / 1e9,
    })
}

fn run_pass(words: &[AtomicU64], pages: &[usize], touch: Touch) {
    for &page in pages {
        let word = &words[page * WORDS_PER_PAGE];
        match touch {
            Touch::Read => {
                std::hint::black_box(word.load(Ordering::Relaxed));
            }
            Touch::Write => {
                word.fetch_add(1, Ordering::Relaxed);
            }
            Touch::Update => {
                // The load that another thread's store falls between loses it, as in any histogram.
                let computed = std::hint::black_box(word.load(Ordering::Relaxed).wrapping_mul(3));
                word.store(computed, Ordering::Relaxed);
            }
            Touch::Stream => {
                let page = &words[page * WORDS_PER_PAGE..][..WORDS_PER_PAGE];
                let sum = page.iter().step_by(WORDS_PER_LINE).map(|word| word.load(Ordering::Relaxed));
                std::hint::black_box(sum.fold(0, u64::wrapping_add));
            }
        }
    }
}
