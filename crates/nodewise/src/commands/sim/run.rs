//! `nodewise sim run`: a workload on a machine, once for each policy.

use super::bar::Bar;
use super::placement::{Placement, cpus_of};
use super::{
    Named, Size, check_passes, check_scale, did_you_mean, in_switch, machine_named, plot, policy, usage,
    warn_of_small, workload,
};
use crate::output::{PUBLIC, WholeFile, print};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use nodewise_hardware::Preset;
use nodewise_sim::studies::{self, Setup};
use nodewise_sim::workloads::{self, Parameters, Workload};
use nodewise_sim::{
    Costs, ErrorKind, PASSES, POLICIES, Policy, Recording, Report, Settings, Simulation, simulate,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

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
pub struct Args {
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

    /// Run so many threads, or else one for each CPU
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    #[command(flatten)]
    placement: Placement,

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
    /// The CPUs that --nodes or --cpus chose, thread by thread, as --cpus takes them.
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

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    check_scale(args.scale).map_err(|error| usage(format!("--scale {error}")))?;
    args.passes.map_or(Ok(()), check_passes).map_err(|error| usage(format!("--passes {error}")))?;
    let source = source(args)?;
    let policies: Result<Vec<Policy>, String> = args.policy.iter().map(|name| policy(name)).collect();
    let policies = policies.map_err(in_switch("policy"))?;
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
    warn_of_small([Size { run: String::new(), threads, pages: runs[0].placeable_pages }]);
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
            cpus: settings.cpus.as_ref().map(|cpus| cpus_of(&cpus[..threads], preset)),
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

fn source(args: &Args) -> anyhow::Result<Source> {
    match (&args.trace, &args.workload) {
        (Some(path), _) => {
            let recording = Recording::open(path).map_err(|error| usage(format!("--trace: {error}")))?;
            Ok(Source::Trace(recording))
        }
        (None, name) => {
            let workload = workload(name.as_deref().unwrap_or_default()).map_err(in_switch("workload"))?;
            Ok(Source::Workload(workload))
        }
    }
}

fn of_trace(args: &Args, recording: &Recording) -> anyhow::Result<Setup> {
    let preset = machine(args)?;
    let costs = Costs::of(&preset);
    let settings = Settings { seed: args.seed, costs, period_scale: 1.0, ..Settings::scaled(1.0) };
    let recording = recording.clone();
    Ok(Setup { preset, build: Box::new(move || recording.program()), settings })
}

/// How the workload is run under a policy: as a study does, or as the options describe.
fn setup(args: &Args, source: &Source, policy: &Policy) -> anyhow::Result<Setup> {
    let mut setup = match (&args.study, source) {
        (Some(study), Source::Workload(workload)) => of_study(study, workload.name, policy, args.seed)?,
        (_, Source::Workload(workload)) => of_options(args, *workload)?,
        (_, Source::Trace(recording)) => of_trace(args, recording)?,
    };
    let settings = &mut setup.settings;
    if let Some(pinning) = args.placement.pinning()? {
        settings.pinning = pinning;
    }
    settings.cpus = args.placement.chosen(&setup.preset)?.map(|chosen| chosen.cpus);
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

fn of_options(args: &Args, workload: Workload) -> anyhow::Result<Setup> {
    let preset = machine(args)?.scaled(args.scale);
    let (cpus, whose) = match args.placement.chosen(&preset)? {
        Some(chosen) => (chosen.cpus.len(), chosen.option),
        None => (preset.cpus(), preset.name.clone()),
    };
    let threads = args.threads.unwrap_or(cpus);
    if threads == 0 || threads > cpus {
        return Err(usage(format!("--threads {threads}: {whose} has {cpus} CPUs")));
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

fn machine(args: &Args) -> anyhow::Result<Preset> {
    if let Some(path) = &args.machine_from {
        return Preset::load_json(path).map_err(|error| usage(format!("--machine-from: {error}")));
    }
    machine_named(args.machine.as_deref().unwrap_or_default()).map_err(in_switch("machine"))
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
