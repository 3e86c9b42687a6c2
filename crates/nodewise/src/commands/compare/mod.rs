//! `nodewise compare`: a command under every placement that makes sense here.

pub mod events;
mod metric;
mod runner;
mod state;
mod table;

use super::costs::Costs;
use super::{Exit, exit};
use crate::output::{PRIVATE, PUBLIC, WholeFile, note, print};
use crate::signals;
use crate::terminal;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use metric::Metric;
use nodewise_linux::settings::{BALANCING, HUGE_PAGES};
use nodewise_topology::{Allowed, Topology};
use nodewise_verdict::compare::ace::FarCost;
use nodewise_verdict::compare::{
    Candidates, Experiment, How, Placement, Ran, Report, Rights, Runner as _, Setting, Skipped,
    blocks_needed, page,
};
use regex::Regex;
use runner::{Commands, broken_off, set};
use signal_hook::iterator::Signals;
use state::State;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Compare a command's placements: is it NUMA, and which change helps
///
/// Nodewise runs the command again and again: as it is, on each node alone, and with its memory far away or
/// spread. It also pins its threads, changes kernel settings, and manages it. A first run warms caches up and
/// does not count. The rest come in blocks of one run of each placement, in a random order. They end when the
/// intervals are narrow, or after --repeat blocks. A placement that is clearly slower is left out sooner.
///
/// Ctrl-C keeps the runs so far, and the same command goes on with them. Kernel settings are put back after
/// each run. The command has no input, and its output is not shown. docs/compare.md explains the answer.
#[derive(clap::Args)]
#[command(
    override_usage = "nodewise compare [OPTIONS] [--] CMD...",
    after_help = "\
Placements:
  default                     as the kernel does it
  node0, node1, ...           CPUs and memory of one node
  far                         CPUs of one node, memory of the node farthest from it
  interleave, weighted        pages in turn on all nodes, evenly or by weight
  pin-sequential              threads on CPUs in the order of their numbers
  pin-sockorder, pin-spread   node by node, or one node after the other in turn
  pin-l3                      one last-level cache after the other in turn
  balancing-on, -off          the kernel's NUMA balancing, where it is the other way
  thp-never, -madvise, -always    transparent huge pages, where they are set otherwise
  nodewise                    under 'nodewise run'

Examples:
  nodewise compare -- ./solver input.dat
  nodewise compare --only node,far,interleave --repeat 12 -- ./solver input.dat
  nodewise compare --metric '([0-9.]+) requests per second' -- ./bench.sh
  nodewise compare --metric-command 'jq .p99_ms' --less-is-better -- ./bench.sh
  nodewise compare --report compare.html --json compare.json -- ./solver
  nodewise rig --nodes 4 --copy ./solver -- nodewise compare -- ./solver

Exit status:
  0    compared: the answer says whether anything helps
  1    the command fails or prints no metric, or there is nothing to compare with
  2    the command line could not be understood
  124  the command took longer than --timeout
  126  the command cannot be executed
  127  the command was not found
  130  Ctrl-C: the runs so far are kept"
)]
pub struct Args {
    /// The command
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// Run each placement this often at most
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    repeat: u32,

    /// Take the metric from the command's output instead of its time
    ///
    /// The last number counts that REGEX finds in a line: its first group, or all of it. More is better,
    /// unless --less-is-better says otherwise.
    #[arg(long, value_name = "REGEX", value_parser = Regex::new)]
    metric: Option<Regex>,

    /// Run this after each run, with the command's output as input, and take the last number that it prints
    #[arg(long, value_name = "CMD", conflicts_with = "metric")]
    metric_command: Option<OsString>,

    /// Count less of the metric as better, as of latencies
    #[arg(long)]
    less_is_better: bool,

    /// Compare these placements only with the default; node, pin, balancing and thp stand for all of theirs
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,

    /// End a run that takes longer than so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,

    /// Take the cost of far memory from a machine's preset, or from what 'nodewise measure --json' printed
    #[arg(long, value_name = "PRESET|FILE")]
    model: Option<String>,

    /// Give the order of runs by this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Write everything here as JSON, all runs included
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write a page with the answer and its evidence here
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Keep the runs so far in this file, instead of one below ~/.local/state/nodewise
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let topology = Topology::live()?;
    let costs = Costs::of(args.model.as_deref(), &topology)?;
    // Before hours are spent on files that cannot be written.
    let json = args.json.as_deref().map(|path| WholeFile::create(path, PRIVATE)).transpose()?;
    let html = args.report.as_deref().map(|path| WholeFile::create(path, PUBLIC)).transpose()?;
    let candidates = candidates(args, &topology)?;
    let setting = setting(args, &topology);
    let key = key(args, &setting);
    let path = args.state.clone().or_else(|| state::default_path(&key));
    let signal = watch_signals()?;
    let mut commands = Commands {
        command: args.command.clone(),
        metric: metric(args),
        timeout: args.timeout.map(|seconds| Duration::from_secs(seconds.into())),
        signal: Arc::clone(&signal),
        resident_bytes: 0,
    };
    let begun = path.as_deref().map(|path| State::load(path, &key)).transpose()?.flatten();
    let begun = begun.filter(|state| !state.experiment.runs.is_empty());
    let state = if let Some(mut state) = begun {
        let runs = state.experiment.runs.len();
        note(format_args!("going on after {runs} runs of a comparison that was broken off"));
        state.experiment.repeat = args.repeat;
        state
    } else {
        begin(args, key, candidates, setting.less_is_better, &mut commands, &topology)?
    };
    let State { experiment, skipped, .. } = compare(state, &mut commands, path.as_deref())?;
    let far = experiment.placements.iter().find_map(|placement| match placement.how {
        How::Far { node, memory, .. } => costs.ratio(node.0, memory.0),
        _ => None,
    });
    let cost = far.map(|ratio| FarCost { ratio, source: costs.source });
    let report = Report::of(&experiment, setting, skipped, cost);
    let compared = require_several(report.placements.len(), &report.skipped);
    if compared.is_ok() {
        print(&table::text(&report, terminal::width()))?;
        if let Some(json) = json {
            json.finish(&(serde_json::to_string_pretty(&report)? + "\n"))?;
        }
        if let Some(html) = html {
            html.finish(&page::html(&report))?;
        }
    }
    if let Some(path) = path {
        // It is of no more use, and does no harm.
        let _ = std::fs::remove_file(path);
    }
    compared.map(|()| ExitCode::SUCCESS)
}

fn metric(args: &Args) -> Metric {
    match (&args.metric, &args.metric_command) {
        (Some(pattern), _) => Metric::Pattern(pattern.clone()),
        (None, Some(command)) => Metric::Command(command.clone()),
        (None, None) => Metric::Seconds,
    }
}

fn candidates(args: &Args, topology: &Topology) -> anyhow::Result<Candidates> {
    let allowed = Allowed::of_this_thread(topology)?;
    let writable = |path| std::fs::File::options().write(true).open(path).is_ok();
    let settings = rustix::process::geteuid().is_root() && [BALANCING, HUGE_PAGES].into_iter().any(writable);
    let rights = Rights { cpus: allowed.cpus, memory: allowed.memory_nodes, settings };
    let mut candidates = Candidates::of(topology, &rights);
    if !args.only.is_empty() {
        candidates.only(&args.only).map_err(|word| {
            let names = candidates.placements.iter().map(|placement| placement.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            let message = format!("--only: there is no placement '{word}' here, but {names}");
            Exit { code: exit::USAGE, message }
        })?;
    }
    if nodewise_linux::require_nodes(topology).is_err() {
        note("this machine has one NUMA node: memory is never far, and only what else matters is compared");
    }
    Ok(candidates)
}

fn require_several(placements: usize, skipped: &[Skipped]) -> anyhow::Result<()> {
    if placements > 1 {
        return Ok(());
    }
    let skipped = skipped.iter().map(|skipped| format!("; {}: {}", skipped.name, skipped.why));
    let message = format!("there is no other placement to compare with{}", skipped.collect::<String>());
    Err(Exit { code: exit::FAILURE, message }.into())
}

fn setting(args: &Args, topology: &Topology) -> Setting {
    let metric = metric(args);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let with_memory = topology.nodes().iter().filter(|node| node.may_have_memory()).count();
    let plural = if with_memory == 1 { "" } else { "s" };
    let balancing = topology.numa_balancing().map(|balancing| if balancing.normal { "on" } else { "off" });
    let pages = topology.transparent_huge_pages().map(|pages| pages.enabled.as_str());
    let machine = format!(
        "Linux {}, {with_memory} node{plural} with memory, {} CPUs, NUMA balancing {}, huge pages {}",
        kernel.trim(),
        topology.online_cpus().len(),
        balancing.unwrap_or("missing"),
        pages.unwrap_or("missing")
    );
    Setting {
        command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        less_is_better: args.less_is_better || matches!(metric, Metric::Seconds),
        metric: metric.name(),
        machine,
        nodes: topology.nodes().iter().filter(|n| n.may_have_memory() || !n.cpus.is_empty()).count(),
    }
}

/// Everything that has to be the same for runs to be comparable.
fn key(args: &Args, setting: &Setting) -> String {
    let directory = std::env::current_dir().unwrap_or_default();
    let program = state::identity(Path::new(&args.command[0]));
    format!("1 {setting:?} {} {program} {:?} {}", directory.display(), args.only, args.seed)
}

/// Ctrl-C and its like end the comparison, and not the program alone.
fn watch_signals() -> anyhow::Result<Arc<AtomicI32>> {
    let signal = Arc::<AtomicI32>::default();
    let mut signals = Signals::new(signals::ending()).context("cannot watch signals")?;
    let told = Arc::clone(&signal);
    std::thread::spawn(move || {
        for came in signals.forever() {
            told.store(came, Ordering::Relaxed);
        }
    });
    Ok(signal)
}

/// Makes the first run, which does not count. Leaves out settings that cannot be changed, and nodes that are
/// too small for the program.
fn begin(
    args: &Args,
    key: String,
    candidates: Candidates,
    less_is_better: bool,
    commands: &mut Commands,
    topology: &Topology,
) -> anyhow::Result<State> {
    let Candidates { mut placements, mut skipped } = candidates;
    skip(&mut placements, &mut skipped, |placement| Some(format!("{:#}", set(&placement.how).err()?)));
    require_several(placements.len(), &skipped)?;
    if let Ran::Impossible(why) = commands.run(&placements[0])? {
        anyhow::bail!("{why}");
    }
    let resident_bytes = commands.resident_bytes;
    skip(&mut placements, &mut skipped, |placement| too_small(placement, resident_bytes, topology));
    require_several(placements.len(), &skipped)?;
    let needed = blocks_needed(placements.len() - 1);
    if args.repeat < needed {
        note(format_args!(
            "--repeat {}: too few runs to tell a difference among so many placements, {needed} can",
            args.repeat
        ));
    }
    let experiment = Experiment::new(placements, args.repeat, args.seed, less_is_better);
    Ok(State { key, experiment, skipped })
}

/// Leaves out placements with a reason not to run them.
fn skip(
    placements: &mut Vec<Placement>,
    skipped: &mut Vec<Skipped>,
    reason: impl Fn(&Placement) -> Option<String>,
) {
    placements.retain(|placement| {
        let why = reason(placement);
        let is_run = why.is_none();
        skipped.extend(why.map(|why| Skipped { name: placement.name.clone(), why }));
        is_run
    });
}

/// Why a node has no room for a program that needed so much memory.
fn too_small(placement: &Placement, resident_bytes: u64, topology: &Topology) -> Option<String> {
    let (How::Node { node, .. } | How::Far { memory: node, .. }) = &placement.how else { return None };
    let free = topology.node(topology.index_of(*node)?).memory_free_bytes?;
    // The kernel gives up page cache for a program that is bound to the node.
    let free = nodewise_linux::kernel::free_bytes(*node).map_or(free, |now| now.max(free));
    // Its other processes, page tables, and its files need some, too.
    let needed = resident_bytes / 4 * 5;
    let mebibytes = |bytes: u64| bytes >> 20;
    (needed > free).then(|| {
        format!("node {node} has {} MiB free, and the command needs {}", mebibytes(free), mebibytes(needed))
    })
}

/// Makes the runs that are due, and keeps each at once.
fn compare(mut state: State, commands: &mut Commands, path: Option<&Path>) -> anyhow::Result<State> {
    let bar = bar();
    let signal = Arc::clone(&commands.signal);
    let ended = loop {
        let Some((block, placement)) = state.experiment.next() else { break Ok(()) };
        let all = state.experiment.possible().count() as u64 * u64::from(state.experiment.repeat);
        bar.set_length(all);
        bar.set_position(state.experiment.runs.len() as u64);
        bar.set_message(format!("{}, block {}", placement.name, block + 1));
        bar.tick();
        let came = signal.load(Ordering::Relaxed);
        let ran = if came == 0 { commands.run(placement) } else { Err(broken_off(came)) };
        match ran {
            Ok(ran) => state.experiment.record(ran),
            Err(error) => break Err(error),
        }
        if let Some(path) = path {
            if let Err(error) = state.save(path) {
                break Err(error);
            }
        }
    };
    bar.finish_and_clear();
    if let (Err(_), Some(path)) = (&ended, path) {
        let runs = state.experiment.runs.len();
        if signal.load(Ordering::Relaxed) != 0 && runs > 0 {
            note(format_args!(
                "{runs} runs are kept in {}; the same command goes on with them",
                path.display()
            ));
        }
    }
    ended.map(|()| state)
}

/// On standard error, if that is a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} runs at most  {elapsed}  {msg}") {
        bar.set_style(style);
    }
    bar
}
