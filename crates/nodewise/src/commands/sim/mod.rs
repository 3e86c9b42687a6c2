//! `nodewise sim`: programs on a simulated machine.

mod matrix;
mod merge;
pub mod plot;
mod sweep;

use super::{Exit, exit};
use crate::output::{PUBLIC, WholeFile, note, print};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nodewise_hardware::Preset;
use nodewise_sim::studies::{self, Kind, Setup, Study};
use nodewise_sim::workloads::{self, Parameters, Workload};
use nodewise_sim::{
    Costs, ErrorKind, PASSES, PINNINGS, POLICIES, Pinning, Policy, Recording, Report, Settings, Simulation,
    simulate,
};
use nodewise_topology::{CpuId, CpuSet, NodeId, NodeSet, ParseError};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Run programs on a simulated NUMA machine, under any placement policy
///
/// The programs are real algorithms; caches, controllers and links are queues in simulated time. The same
/// command gives the same result on any computer.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim list
  nodewise sim run --machine opteron-8385-4n --workload streamcluster \\
      --policy first-touch,interleave
  nodewise sim matrix --machine dahu-2n --scale 0.003
  nodewise sim sweep spec.toml --shard 0/16 --out results
  nodewise sim reproduce pikus

Exit status:
  0  done
  1  it failed, and the message says why; a row of a study does not hold
  2  the command line could not be understood: there is no such machine, workload, policy or study, say")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(ListArgs),
    Run(RunArgs),
    Matrix(matrix::Args),
    Sweep(sweep::Args),
    Merge(merge::Args),
    Reproduce(ReproduceArgs),
}

/// List machines, workloads, policies and studies
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim list
  nodewise sim list --json | jq -r '.workloads[].name'

Exit status:
  0  done
  1  the list could not be written")]
struct ListArgs {
    /// Print JSON: machines, workloads, policies and studies, each with name and about
    #[arg(long)]
    json: bool,
}

/// Run a workload on a machine, once for each policy
///
/// Caches shrink with the problem, so that what fits stays what fits; latencies, bandwidths and page size do
/// not.
///
/// An imbalance is the standard deviation of the loads over their mean, with n - 1 as in Carrefour's source,
/// whose thresholds the engine has: all on one of four nodes is 200 %. `sim reproduce` takes n, as the
/// article's table seems to: 173 %.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim run --machine opteron-8385-4n --workload streamcluster \\
      --policy first-touch,interleave,carrefour
  nodewise sim run --machine opteron-8385-4n --workload pca \\
      --policy first-touch,oracle --plot pca.svg
  nodewise sim run --machine ./mine.toml --workload cg --policy bind:0 \\
      --threads 4 --json
  nodewise sim run --machine opteron-6272-8n --workload streamcluster \\
      --nodes 0,1,4
  nodewise sim run --as carrefour --workload ft --policy first-touch,carrefour
  nodewise sim run --machine dahu-2n --trace program.nwtrace --policy interleave

Exit status:
  0  every run ended and its result was right
  1  one failed: its memory ran out, say
  2  there is no such machine, workload or policy, or it cannot be run there")]
struct RunArgs {
    /// Simulate this machine of `nodewise sim list`, or the one that a file describes
    #[arg(long, value_name = "MACHINE", required_unless_present_any = ["machine_from", "study"], hide_possible_values = true,
          value_parser = Named(|| Preset::names().collect()))]
    machine: Option<String>,

    /// Read the machine from a JSON file, with the fields that the TOML of a machine has
    #[arg(long, value_name = "FILE.json", conflicts_with = "machine")]
    machine_from: Option<PathBuf>,

    /// Run as a published study does: carrefour or page-split. Machine, threads, scale, passes, pinning and
    /// the size of huge pages are the study's; --passes, --pin and --huge-pages change them
    #[arg(long = "as", id = "study", value_name = "STUDY", hide_possible_values = true,
          conflicts_with_all = ["machine", "machine_from", "threads", "scale"],
          value_parser = Named(|| studies::all().iter().filter(|study| study.setup.is_some())
              .map(|study| study.name).collect()))]
    study: Option<String>,

    /// Run this program of `nodewise sim list`
    #[arg(long, value_name = "WORKLOAD", hide_possible_values = true,
          required_unless_present = "trace",
          value_parser = Named(|| workloads::all().iter().map(|workload| workload.name).collect()))]
    workload: Option<String>,

    /// Replay the accesses of this file at full size: 'nodewise rig --trace' writes one, and the format is
    /// that of the crate nodewise-trace. Its threads wait for each other where it says so
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "study", "threads", "scale"])]
    trace: Option<PathBuf>,

    /// Place pages by these policies of `nodewise sim list`, each in a run of its own
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "first-touch",
          hide_possible_values = true,
          value_parser = Named(|| POLICIES.iter().map(|(name, _)| *name).collect()))]
    policy: Vec<String>,

    /// Run so many threads, or else one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Run threads on the CPUs of these nodes only, as in 0-2,5. They stay where --pin puts them there, or
    /// are spread
    #[arg(long, value_name = "LIST", conflicts_with = "study")]
    nodes: Option<String>,

    /// Run thread by thread on these CPUs, as in 0-3,8. They are numbered as the machine's operating system
    /// does
    #[arg(long, value_name = "LIST", conflicts_with_all = ["study", "nodes", "pin"])]
    cpus: Option<String>,

    /// Place threads on the cores in this order: sequential (by CPU number), sockorder, spread or none
    #[arg(long, value_name = "ORDER", hide_possible_values = true,
          value_parser = Named(|| PINNINGS.to_vec()))]
    pin: Option<String>,

    /// Map a huge page at a time: 2 MiB times the scale, 8 KiB at least
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    huge_pages: Option<bool>,

    /// Draw the program's input and the engine's choices from this seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Shrink problem and caches to this share of the real ones, above 0 and up to 1
    #[arg(long, value_name = "X", default_value_t = 0.0625)]
    scale: f64,

    /// Let the run stand for a real program that goes over its data N times as often
    ///
    /// An action that meets a page once, such as its first touch, a move or a copy, weighs N times less. The
    /// periods of the kernel and the engine shrink by N. Take 1 for a program of one pass. Without this
    /// switch N is 100, with --as the study's, and with --trace 1.
    #[arg(long, value_name = "N")]
    passes: Option<f64>,

    /// Print JSON: all that is needed to run it again, and runs, one report for each policy
    #[arg(long)]
    json: bool,

    /// Draw each run's traffic, nodes and links by their load, and the run times
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Run published studies again: what was printed beside what the simulator gives
///
/// A row's kind says what it proves. A predicted figure could have come out otherwise. A sign is a direction,
/// rank or bound. An implied row follows from what the machine or program is. A calibrated one chose a
/// parameter.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim reproduce pikus
  nodewise sim reproduce all --json | jq '.[].rows[] | select(.holds | not)'

Exit status:
  0  every row holds
  1  a row does not, or a run failed
  2  there is no such study")]
struct ReproduceArgs {
    /// A study of `nodewise sim list`, or all
    #[arg(value_name = "STUDY", default_value = "all", hide_possible_values = true,
          value_parser = Named(|| studies::all().iter().map(|study| study.name).chain(["all"]).collect()))]
    study: String,

    /// Draw the programs' inputs from this seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON: study and rows, each with what, unit, published, simulated, tolerance, holds and kind; of
    /// all studies a list
    #[arg(long)]
    json: bool,
}

/// The names that a shell completes. Others may be right as well, such as a file's or `bind:3`: an argument
/// is judged where it is used.
#[derive(Clone)]
pub struct Named(pub fn() -> Vec<&'static str>);

impl TypedValueParser for Named {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let placeholder = |name: &&str| name.contains(|c: char| c.is_ascii_uppercase());
        Some(Box::new((self.0)().into_iter().filter(move |name| !placeholder(name)).map(PossibleValue::new)))
    }
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::List(args) => list(args),
        Command::Run(args) => run(args),
        Command::Matrix(args) => matrix::main(args),
        Command::Sweep(args) => sweep::main(args),
        Command::Merge(args) => merge::main(args),
        Command::Reproduce(args) => reproduce(args),
    }
}

fn usage(message: impl Into<String>) -> anyhow::Error {
    Exit { code: exit::USAGE, message: message.into() }.into()
}

#[derive(Serialize)]
struct Entry {
    name: String,
    about: String,
}

#[derive(Serialize)]
struct Listing {
    machines: Vec<Entry>,
    workloads: Vec<Entry>,
    policies: Vec<Entry>,
    studies: Vec<Entry>,
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let entry = |name: &str, about: &str| Entry { name: name.to_owned(), about: about.to_owned() };
    let machines: Result<Vec<Entry>, _> =
        Preset::names().map(|name| Preset::named(name).map(|preset| entry(name, &preset.about))).collect();
    let listing = Listing {
        machines: machines?,
        workloads: workloads::all().iter().map(|workload| entry(workload.name, workload.about)).collect(),
        policies: POLICIES.iter().map(|(name, about)| entry(name, about)).collect(),
        studies: studies::all().iter().map(|study| entry(study.name, study.about)).collect(),
    };
    if args.json {
        print(&(serde_json::to_string_pretty(&listing)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let groups = [
        ("Machines", &listing.machines),
        ("Workloads", &listing.workloads),
        ("Policies", &listing.policies),
        ("Studies", &listing.studies),
    ];
    let width = groups.iter().flat_map(|group| group.1).map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (index, (heading, entries)) in groups.into_iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}{heading}", if index > 0 { "\n" } else { "" });
        for Entry { name, about } in entries {
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A run with all that is needed to run it again.
#[derive(Serialize)]
struct Printed<'a> {
    /// Nodewise's version.
    version: &'static str,
    machine: &'a str,
    /// The machine in full, if it came from a file: what `--machine-from` reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<serde_json::Value>,
    /// None of a trace.
    workload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a Path>,
    /// The study whose settings they are.
    #[serde(rename = "as")]
    study: Option<&'a str>,
    threads: usize,
    pin: String,
    /// The CPUs that --nodes or --cpus chose, thread by thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<Vec<usize>>,
    huge_pages: bool,
    /// Base pages of a huge page.
    huge_page_pages: usize,
    seed: u64,
    scale: f64,
    /// None if they are the study's, which depend on the policy.
    passes: Option<f64>,
    runs: Vec<Report>,
}

fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    check_scale(args.scale)?;
    args.passes.map_or(Ok(()), check_passes)?;
    let source = source(args)?;
    let policies: anyhow::Result<Vec<Policy>> = args.policy.iter().map(|name| policy(name)).collect();
    let policies = policies?;
    let setups: Vec<Setup> =
        policies.iter().map(|policy| setup(args, &source, policy)).collect::<Result<_, _>>()?;
    let first = &setups[0];
    let threads = (first.build)().threads();
    for (setup, policy) in setups.iter().zip(&policies) {
        Simulation::check(&setup.preset, threads, &setup.settings, policy)
            .map_err(|error| usage(error.to_string()))?;
    }
    let picture = args.plot.as_deref().map(|path| WholeFile::create(path, PUBLIC)).transpose()?;
    let bar = Bar::new();
    let operations = AtomicU64::new(0);
    let jobs = studies::Options::default().jobs;
    let pairs: Vec<(&Policy, &Setup)> = policies.iter().zip(&setups).collect();
    let runs = studies::in_parallel(&pairs, jobs, &|share| bar.at(share), |(policy, setup)| {
        let mut before = 0;
        let report = simulate(&setup.preset, &*setup.build, &setup.settings, policy, &mut |now| {
            let all = operations.fetch_add(now - before, Ordering::Relaxed) + now - before;
            before = now;
            bar.says(&format!("{} million operations", all / 1_000_000));
        });
        Ok(report.map_err(|error| error.of(policy))?)
    });
    drop(bar);
    let runs: Vec<Report> = runs.into_iter().collect::<anyhow::Result<_>>()?;
    let (preset, settings) = (&first.preset, &first.settings);
    let pages = runs[0].placeable_pages;
    if pages < threads as u64 {
        note(format_args!(
            "{threads} threads share {pages} pages: placement means little; try a larger --scale"
        ));
    }
    if let Some(picture) = picture {
        let scale = settings.size_scale;
        let title = format!("{} on {}, {threads} threads, scale {scale}", source.name(), preset.name);
        picture.finish(&plot::draw(&title, preset, &runs))?;
    }
    if args.json {
        let from_file = args.study.is_none() && Preset::text(&preset.name).is_none();
        let full = if from_file { Some(serde_json::from_str(&machine(args)?.to_json())?) } else { None };
        let printed = Printed {
            version: env!("CARGO_PKG_VERSION"),
            machine: &preset.name,
            preset: full,
            workload: args.workload.as_deref(),
            trace: args.trace.as_deref(),
            study: args.study.as_deref(),
            threads,
            pin: settings.pinning.to_string(),
            cpus: settings.cores.as_ref().map(|cores| cpus_of(preset, cores)),
            huge_pages: settings.huge_pages,
            huge_page_pages: settings.huge_page_pages,
            seed: args.seed,
            scale: settings.size_scale,
            passes: args.passes.or(args.study.is_none().then_some(source.passes())),
            runs,
        };
        print(&(serde_json::to_string_pretty(&printed)? + "\n"))?;
    } else {
        print(&format!("{}\n", table(&runs)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The program that is run.
enum Source {
    Workload(Workload),
    Trace(Recording),
}

impl Source {
    fn name(&self) -> &str {
        match self {
            Self::Workload(workload) => workload.name,
            Self::Trace(_) => "a trace",
        }
    }

    /// How many times as often the real program goes over its data.
    fn passes(&self) -> f64 {
        match self {
            Self::Workload(_) => PASSES,
            Self::Trace(_) => 1.0,
        }
    }
}

fn source(args: &RunArgs) -> anyhow::Result<Source> {
    match (&args.trace, &args.workload) {
        (Some(path), _) => {
            let recording = Recording::open(path).map_err(|error| usage(format!("--trace: {error}")))?;
            Ok(Source::Trace(recording))
        }
        (None, name) => workload(name.as_deref().unwrap_or_default()).map(Source::Workload),
    }
}

fn of_trace(args: &RunArgs, recording: &Recording) -> anyhow::Result<Setup> {
    let preset = machine(args)?;
    let costs = Costs::of(&preset);
    let settings = Settings { seed: args.seed, costs, period_scale: 1.0, ..Settings::scaled(1.0) };
    let recording = recording.clone();
    Ok(Setup { preset, build: Box::new(move || recording.program()), settings })
}

/// How the workload is run under a policy: as a study does, or as the options describe.
fn setup(args: &RunArgs, source: &Source, policy: &Policy) -> anyhow::Result<Setup> {
    let mut setup = match (&args.study, source) {
        (Some(study), Source::Workload(workload)) => of_study(study, workload.name, policy, args.seed)?,
        (_, Source::Workload(workload)) => of_options(args, *workload)?,
        (_, Source::Trace(recording)) => of_trace(args, recording)?,
    };
    let settings = &mut setup.settings;
    if let Some(name) = &args.pin {
        settings.pinning = pinning(name)?;
    }
    if let Some((cores, _)) = chosen_cores(args, &setup.preset)? {
        settings.cores = Some(cores);
    }
    if let Some(passes) = args.passes {
        settings.period_scale = settings.size_scale / passes;
    }
    match args.huge_pages {
        Some(true) if !settings.huge_pages => *settings = settings.clone().with_huge_pages(),
        Some(huge_pages) => settings.huge_pages = huge_pages,
        None => {}
    }
    Ok(setup)
}

fn of_options(args: &RunArgs, workload: Workload) -> anyhow::Result<Setup> {
    let preset = machine(args)?.scaled(args.scale);
    let (cores, whose) = match chosen_cores(args, &preset)? {
        Some((cores, option)) => (cores.len(), option),
        None => (preset.cores(), preset.name.clone()),
    };
    let threads = args.threads.unwrap_or(cores);
    if threads == 0 || threads > cores {
        return Err(usage(format!("--threads {threads}: {whose} has {cores} cores")));
    }
    let parameters = Parameters { threads, scale: args.scale, seed: args.seed };
    let settings = Settings { seed: args.seed, costs: Costs::of(&preset), ..Settings::scaled(args.scale) };
    Ok(Setup { preset, build: Box::new(move || (workload.build)(parameters)), settings })
}

fn of_study(study: &str, workload: &str, policy: &Policy, seed: u64) -> anyhow::Result<Setup> {
    let all = studies::all();
    let Some(set_up) = all.iter().find(|known| known.name == study).and_then(|known| known.setup) else {
        let names: Vec<_> =
            all.iter().filter(|known| known.setup.is_some()).map(|known| known.name).collect();
        let meant = did_you_mean(study, names.iter().copied());
        let there = names.join(", ");
        return Err(usage(format!("--as {study}: no study with runs of programs; there are {there}{meant}")));
    };
    set_up(workload, policy, seed).map_err(|error| match error.kind() {
        ErrorKind::Unknown => usage(format!("--as: {error}")),
        _ => error.into(),
    })
}

/// The cores that the options choose for the threads, in order, and the option that does.
fn chosen_cores(args: &RunArgs, preset: &Preset) -> anyhow::Result<Option<(Vec<usize>, String)>> {
    let refused = |option: &str, list: &str, reason: &str| usage(format!("{option} {list}: {reason}"));
    let name = &preset.name;
    if let Some(list) = &args.nodes {
        let nodes: NodeSet =
            list.parse().map_err(|error: ParseError| refused("--nodes", list, &error.to_string()))?;
        for NodeId(node) in nodes.iter() {
            let reason = match preset.nodes.get(node as usize) {
                None => format!("{name} has no node {node}; its nodes are 0 to {}", preset.nodes.len() - 1),
                Some(node_of) if node_of.cores == 0 => format!("{name} has no CPUs on node {node}"),
                Some(_) => continue,
            };
            return Err(refused("--nodes", list, &reason));
        }
        let order = args.pin.as_deref().map_or(Ok(Pinning::default()), pinning)?;
        let node_of = preset.nodes_of_cores();
        let cores =
            order.cores(preset).into_iter().filter(|&core| nodes.contains(NodeId(node_of[core] as u32)));
        return some_cores(cores.collect(), "--nodes", list);
    }
    if let Some(list) = &args.cpus {
        let cpus: CpuSet =
            list.parse().map_err(|error: ParseError| refused("--cpus", list, &error.to_string()))?;
        let core_of = Pinning::Sequential.cores(preset);
        let core = |CpuId(cpu): CpuId| {
            core_of.get(cpu as usize).copied().ok_or_else(|| {
                let last = core_of.len() - 1;
                refused("--cpus", list, &format!("{name} has no CPU {cpu}; its CPUs are 0 to {last}"))
            })
        };
        return some_cores(cpus.iter().map(core).collect::<Result<_, _>>()?, "--cpus", list);
    }
    Ok(None)
}

fn some_cores(cores: Vec<usize>, option: &str, list: &str) -> anyhow::Result<Option<(Vec<usize>, String)>> {
    if cores.is_empty() {
        return Err(usage(format!("{option} {list:?}: no thread can run on none")));
    }
    Ok(Some((cores, format!("{option} {list}"))))
}

/// The operating system's numbers of cores.
fn cpus_of(preset: &Preset, cores: &[usize]) -> Vec<usize> {
    let core_of = Pinning::Sequential.cores(preset);
    cores.iter().filter_map(|core| core_of.iter().position(|other| other == core)).collect()
}

fn pinning(name: &str) -> anyhow::Result<Pinning> {
    name.parse().map_err(|error| usage(format!("--pin: {error}{}", did_you_mean(name, PINNINGS.into_iter()))))
}

fn check_scale(scale: f64) -> anyhow::Result<()> {
    if scale > 0.0 && scale <= 1.0 {
        return Ok(());
    }
    Err(usage(format!("--scale {scale}: not above 0 and up to 1")))
}

fn check_passes(passes: f64) -> anyhow::Result<()> {
    if (1.0..=1e6).contains(&passes) {
        return Ok(());
    }
    Err(usage(format!("--passes {passes}: not from 1 to a million")))
}

fn machine(args: &RunArgs) -> anyhow::Result<Preset> {
    if let Some(path) = &args.machine_from {
        return Preset::load_json(path).map_err(|error| usage(format!("--machine-from: {error}")));
    }
    machine_named(args.machine.as_deref().unwrap_or_default())
}

fn machine_named(name: &str) -> anyhow::Result<Preset> {
    let ends_in = |extension: &str| Path::new(name).extension().is_some_and(|found| found == extension);
    let file = match () {
        () if ends_in("json") => Some(Preset::load_json(name)),
        () if ends_in("toml") || name.contains('/') => Some(Preset::load(name)),
        () => None,
    };
    if let Some(preset) = file {
        return preset.map_err(|error| usage(format!("--machine: {error}")));
    }
    Preset::named(name)
        .map_err(|error| usage(format!("--machine: {error}{}", did_you_mean(name, Preset::names()))))
}

fn policy(name: &str) -> anyhow::Result<Policy> {
    let names = POLICIES.iter().map(|policy| policy.0);
    let parsed = name.parse::<Policy>();
    parsed.map_err(|error| usage(format!("--policy: {error}{}", did_you_mean(name, names))))
}

fn workload(name: &str) -> anyhow::Result<Workload> {
    let all = workloads::all();
    all.iter().find(|workload| workload.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|workload| workload.name).collect();
        let meant = did_you_mean(name, names.iter().copied());
        usage(format!("--workload: no such program: {name}; there are {}{meant}", names.join(", ")))
    })
}

/// The machines, workloads or policies of these names, or none if there is no name.
fn given<T>(names: &[String], find: fn(&str) -> anyhow::Result<T>) -> anyhow::Result<Option<Vec<T>>> {
    if names.is_empty() {
        Ok(None)
    } else {
        names.iter().map(|name| find(name)).collect::<Result<_, _>>().map(Some)
    }
}

/// The name that a wrong one was probably meant to be, as the end of a message. Text that follows a colon is
/// an argument.
pub fn did_you_mean<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    fn word(name: &str) -> &str {
        name.split_once(':').map_or(name, |(word, _)| word)
    }
    let likeness = |name| strsim::jaro(&word(wrong).to_lowercase(), word(name));
    let closest = names.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match closest.filter(|name| word(name) != word(wrong) && likeness(name) >= 0.8) {
        Some(name) => format!(". Did you mean {name}?"),
        None => String::new(),
    }
}

/// The figure of a run in a row, given the first run.
type Figure = fn(&Report, &Report) -> String;

/// Figures down, policies across: there are more figures than fit side by side.
fn table(runs: &[Report]) -> String {
    fn percent(value: Option<f64>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} %"))
    }
    fn each(value: Option<f64>, unit: f64) -> String {
        value.map_or_else(|| "-".to_owned(), |value| format!("{:.3}", value / unit))
    }
    let figures: [(&str, Figure); 19] = [
        ("run time", |run, _| format!("{:.3} ms", run.run_time_s * 1e3)),
        ("speed-up over the first", |run, first| format!("{:.2}", first.run_time_s / run.run_time_s)),
        ("local accesses", |run, _| percent(run.local_access_percent)),
        ("DRAM latency", |run, _| format!("{:.0} cycles", run.dram_latency_cycles)),
        ("controller imbalance", |run, _| percent(run.controller_imbalance_percent)),
        ("link imbalance", |run, _| percent(run.link_imbalance_percent)),
        ("link use, mean", |run, _| format!("{:.1} %", run.link_use_percent)),
        ("link use, busiest", |run, _| format!("{:.1} %", run.busiest_link_percent)),
        ("L3 misses per 1000 instructions", |run, _| format!("{:.2}", run.llc_misses_per_kilo_instruction)),
        ("lines moved between nodes", |run, _| run.lines_between_nodes.to_string()),
        ("the same, an addition or task", |run, _| each(run.lines_between_nodes_per_item, 1.0)),
        ("million additions or tasks a second", |run, _| each(run.items_per_s, 1e6)),
        ("instructions per cycle", |run, _| format!("{:.2}", run.instructions_per_cycle)),
        ("pages migrated", |run, _| run.pages_migrated.to_string()),
        ("pages replicated", |run, _| run.pages_replicated.to_string()),
        ("huge pages split", |run, _| run.pages_split.to_string()),
        ("threads moved", |run, _| run.threads_moved.to_string()),
        ("user time", |run, _| format!("{:.3} ms", run.user_s * 1e3)),
        ("kernel time", |run, _| format!("{:.3} ms", run.kernel_s * 1e3)),
    ];
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(std::iter::once("").chain(runs.iter().map(|run| run.policy.as_str())));
    for (name, figure) in figures {
        let cells: Vec<String> = runs.iter().map(|run| figure(run, &runs[0])).collect();
        // A row of dashes only is left out: the program has none of this.
        if cells.iter().any(|cell| cell != "-") {
            table.add_row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn reproduce(args: &ReproduceArgs) -> anyhow::Result<ExitCode> {
    let all = studies::all();
    let chosen: Vec<_> = all.iter().filter(|study| args.study == "all" || study.name == args.study).collect();
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|study| study.name).collect();
        let meant = did_you_mean(&args.study, names.iter().copied());
        return Err(usage(format!(
            "no such study: {}; there are {}, all{meant}",
            args.study,
            names.join(", ")
        )));
    }
    let bar = Bar::new();
    let options = studies::Options { seed: args.seed, ..studies::Options::default() };
    let mut done: Vec<Study> = Vec::new();
    for (index, study) in chosen.iter().enumerate() {
        bar.says(study.name);
        let share = |share: f64| bar.at((index as f64 + share) / chosen.len() as f64);
        let rows = (study.run)(&options, &share);
        done.push(rows.map_err(|error| error.of(study.name))?);
    }
    drop(bar);
    if args.json {
        let text = match (&done[..], args.study.as_str()) {
            ([study], name) if name != "all" => serde_json::to_string_pretty(study)?,
            (studies, _) => serde_json::to_string_pretty(studies)?,
        };
        print(&(text + "\n"))?;
    } else {
        let text: Vec<String> = done
            .iter()
            .map(|study| format!("{}\n{}\n{}\n\n", study.name, rows(study), counts(&[study])))
            .collect();
        let all: Vec<&Study> = done.iter().collect();
        let text =
            if all.len() > 1 { [text, vec![format!("all: {}\n", counts(&all))]].concat() } else { text };
        print(&text.concat())?;
    }
    let holds = done.iter().all(Study::holds);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) })
}

/// How many rows of each kind hold, those that could have come out otherwise first.
fn counts(studies: &[&Study]) -> String {
    let of_kind = |kind: Kind| {
        let counts = studies.iter().map(|study| study.count(kind));
        let (hold, all) = counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        (all > 0).then(|| format!("{kind} {hold} of {all}"))
    };
    let counts: Vec<String> = Kind::ALL.into_iter().filter_map(of_kind).collect();
    format!("rows that hold: {}", counts.join(", "))
}

fn rows(study: &Study) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["", "published", "simulated", "tolerance", "unit", "holds", "kind"]);
    for row in &study.rows {
        table.add_row([
            row.what.clone(),
            format!("{:.3}", row.published),
            format!("{:.3}", row.simulated),
            row.tolerance.to_string(),
            row.unit.clone(),
            if row.holds { "yes" } else { "no" }.to_owned(),
            row.kind.to_string(),
        ]);
    }
    for column in [1, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// How far it has come, on a terminal and after two seconds.
struct Bar {
    bar: ProgressBar,
    /// Shows the bar unless the sender is gone before.
    shows: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed}  {msg}") {
            bar.set_style(style);
        }
        let shows = std::io::stderr().is_terminal().then(|| {
            let (over, ends) = mpsc::channel();
            let bar = bar.clone();
            let show = move || {
                if ends.recv_timeout(Duration::from_secs(2)) == Err(RecvTimeoutError::Timeout) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(Duration::from_secs(1));
                }
            };
            (over, thread::spawn(show))
        });
        Self { bar, shows }
    }

    fn at(&self, share: f64) {
        // Shares do not always come in order.
        self.bar.set_position(self.bar.position().max((share * 1000.0) as u64));
    }

    fn says(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((over, shows)) = self.shows.take() {
            drop(over);
            // It does not panic.
            let _ = shows.join();
        }
        self.bar.finish_and_clear();
    }
}
