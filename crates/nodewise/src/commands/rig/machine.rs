//! The modelled machine under a guest: its arguments, and the report at the end.

use crate::commands::sim::{Named, did_you_mean, plot};
use crate::output::{OthersFile, PUBLIC, WholeFile, note, report};
use nodewise_hardware::Preset;
use nodewise_rig::{Machine, Report, Traced, library, parse_size};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct MachineArgs {
    /// Give the guest the time of a modelled machine: a preset's name ('nodewise sim list'), or a TOML file
    /// like one. Nodes and distances are the machine's, and so are each node's CPUs unless --cpus-per-node
    /// says otherwise
    #[arg(long, value_name = "PRESET|FILE.toml", value_parser = Named(|| Preset::names().collect()))]
    machine: Option<String>,

    /// Shrink the machine's caches by this factor, for a problem that is shrunk by it
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "machine")]
    scale: f64,

    /// Make cores, caches, controllers and links slower by this factor: a modelled second has less work
    #[arg(long, value_name = "N", default_value_t = 1.0, requires = "machine")]
    slow: f64,

    /// Count instructions only: accesses to memory take no time. Faster here, and shows a manager's costs
    /// without its worth
    #[arg(long, requires = "machine")]
    instructions_only: bool,

    /// Write the machine's work to a file as JSON
    #[arg(long, value_name = "FILE", requires = "machine")]
    json: Option<PathBuf>,

    /// Draw the machine's traffic into a file as SVG
    #[arg(long, value_name = "FILE.svg", requires = "machine", conflicts_with = "instructions_only")]
    plot: Option<PathBuf>,

    /// Write the program's references behind its CPUs' private caches to a file, for 'nodewise sim run
    /// --trace'. It has CMD and all processes that come while it runs
    #[arg(long, value_name = "FILE", requires = "machine", conflicts_with = "instructions_only")]
    trace: Option<PathBuf>,

    /// End the trace where its file would be larger
    #[arg(long, value_name = "SIZE", requires = "trace", default_value = "1G")]
    trace_limit: String,
}

/// The machine that was asked for, and the files that its work goes to.
pub struct Modelled {
    pub preset: Preset,
    pub machine: Machine,
    scale: f64,
    slow: f64,
    instructions_only: bool,
    json: Option<WholeFile>,
    plot: Option<WholeFile>,
    trace: Option<OthersFile>,
    trace_limit: String,
}

/// The JSON of a run.
#[derive(Serialize)]
struct Document<'a> {
    machine: &'a str,
    cpus_per_node: &'a [u32],
    scale: f64,
    slow: f64,
    instructions_only: bool,
    command: String,
    #[serde(flatten)]
    report: &'a Report,
}

impl Modelled {
    /// The machine of the arguments, or nothing if there is none; an error as one line for a user.
    pub fn new(args: &MachineArgs) -> Result<Option<Self>, String> {
        let Some(name) = &args.machine else { return Ok(None) };
        for (option, factor, most) in [("--scale", args.scale, 1.0), ("--slow", args.slow, 1e6)] {
            if !(factor > 0.0 && factor <= most) {
                return Err(format!("{option} {factor}: not above 0 and up to {most}"));
            }
        }
        let (text, origin) = preset_text(name).map_err(|why| format!("--machine: {why}"))?;
        let preset = Preset::parse(&text, &origin).map_err(|error| format!("--machine: {error}"))?;
        let library = library().map_err(|error| format!("--machine: {error}"))?;
        let machine = Machine::new(text, origin, library).map_err(|error| format!("--machine: {error}"))?;
        let create =
            |path: &Option<PathBuf>| path.as_deref().map(|path| WholeFile::create(path, PUBLIC)).transpose();
        let refused = |error: anyhow::Error| format!("{error:#}");
        let mut machine = machine.scale(args.scale).slow(args.slow);
        let limit = parse_size(&args.trace_limit).map_err(|error| format!("--trace-limit: {error}"))?;
        let trace = args.trace.as_deref().map(OthersFile::create).transpose().map_err(refused)?;
        if let Some(trace) = &trace {
            machine = machine.trace(trace.pending(), limit);
        }
        Ok(Some(Self {
            preset,
            machine: if args.instructions_only { machine.instructions_only() } else { machine },
            scale: args.scale,
            slow: args.slow,
            instructions_only: args.instructions_only,
            json: create(&args.json).map_err(refused)?,
            plot: create(&args.plot).map_err(refused)?,
            trace,
            trace_limit: args.trace_limit.clone(),
        }))
    }

    /// Prints the machine's work and writes it to the files that were asked for.
    pub fn finish(
        self,
        cpus_per_node: &[u32],
        command: &[std::ffi::OsString],
        work: &Report,
    ) -> anyhow::Result<()> {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let command = words.join(" ");
        report(&self.text(cpus_per_node, work));
        if let Some(file) = self.json {
            let document = Document {
                machine: &self.preset.name,
                cpus_per_node,
                scale: self.scale,
                slow: self.slow,
                instructions_only: self.instructions_only,
                command: command.clone(),
                report: work,
            };
            file.finish(&(serde_json::to_string_pretty(&document)? + "\n"))?;
        }
        if let Some(file) = self.plot {
            let title = format!("{command} on {}", self.preset.name);
            file.finish(&plot::draw(&title, &self.preset, &[as_run(&command, work)]))?;
        }
        if let (Some(file), Some(traced)) = (self.trace, &work.trace) {
            finish_trace(file, traced, &self.trace_limit)?;
        }
        Ok(())
    }

    fn text(&self, cpus_per_node: &[u32], work: &Report) -> String {
        let percent =
            |value: Option<f64>| value.map_or_else(|| "unknown".into(), |value| format!("{value:.1} %"));
        let mut rows = vec![
            (format!("{:.3} s", work.modelled_seconds), "modelled time".to_owned()),
            (format!("{:.1}", work.slow_down), "seconds of this computer for each of them".into()),
            (work.instructions.to_string(), "instructions".into()),
            (format!("{:.1} %", work.cpus_busy_percent), "of the CPUs' time not idle".into()),
        ];
        if !self.instructions_only {
            rows.extend([
                (percent(work.local_access_percent), "local DRAM accesses".into()),
                (format!("{:.0} cycles", work.dram_latency_cycles), "mean DRAM latency".into()),
                (percent(work.controller_imbalance_percent), "imbalance of the controllers".into()),
                (percent(work.link_imbalance_percent), "imbalance of the links".into()),
                (
                    format!("{:.2}", work.llc_misses_per_kilo_instruction),
                    "LLC misses per 1000 instructions".into(),
                ),
            ]);
            for (node, work) in work.controllers.iter().enumerate() {
                let what = format!("controller {node} busy, with {:.0} ns of waiting a line", work.wait_ns);
                rows.push((format!("{:.1} %", work.use_percent), what));
            }
        }
        let mut text = format!("nodewise: {}, {}\n\n", self.preset.name, kept(self, cpus_per_node));
        for (value, what) in rows {
            let _ = writeln!(text, "  {value:>20}  {what}");
        }
        if work.late_percent > 1.0 {
            let late = work.late_percent;
            let _ = writeln!(
                text,
                "\nnodewise: do not trust these figures: CPUs were out of step for {late:.1} % of the time"
            );
        }
        text
    }
}

/// Lets the trace appear, and says what is in it.
fn finish_trace(file: OthersFile, traced: &Traced, limit: &str) -> anyhow::Result<()> {
    let path = file.path().to_owned();
    if let Some(error) = &traced.error {
        anyhow::bail!("cannot write {}: {error}", path.display());
    }
    file.finish()?;
    let end = if traced.reached_limit {
        format!(", and ends before the program, at --trace-limit {limit}")
    } else {
        String::new()
    };
    let Traced { accesses, threads, processes, .. } = traced;
    note(format!(
        "{} has {accesses} accesses, threads: {threads}, processes: {processes}{end}",
        path.display()
    ));
    Ok(())
}

/// The parts of the machine that were made smaller or slower.
fn kept(modelled: &Modelled, cpus_per_node: &[u32]) -> String {
    let real: Vec<usize> = modelled.preset.nodes.iter().map(|node| node.cores).collect();
    let mut parts = Vec::new();
    if real.iter().zip(cpus_per_node).any(|(&real, &cpus)| real != cpus as usize) {
        let list = |counts: &mut dyn Iterator<Item = String>| counts.collect::<Vec<_>>().join(",");
        parts.push(format!(
            "{} CPUs a node of {}, beside whole LLCs and controllers",
            list(&mut cpus_per_node.iter().map(u32::to_string)),
            list(&mut real.iter().map(usize::to_string))
        ));
    }
    if modelled.preset.core.threads > 1 {
        parts.push(format!("one thread a core of {}", modelled.preset.core.threads));
    }
    if modelled.scale < 1.0 {
        parts.push(format!("caches {} times their size, latencies and bandwidths whole", modelled.scale));
    }
    if (modelled.slow - 1.0).abs() > f64::EPSILON {
        parts.push(format!(
            "all parts {} times slower: ratios stay, and what happens by the second weighs that much less",
            modelled.slow
        ));
    }
    if modelled.instructions_only {
        parts.push("accesses to memory take no time".to_owned());
    }
    if parts.is_empty() { "the whole machine".into() } else { parts.join("; ") }
}

/// The TOML text of a preset by name, or of a file.
pub fn preset_text(name: &str) -> Result<(String, String), String> {
    let is_file = Path::new(name).extension().is_some_and(|found| found == "toml") || name.contains('/');
    if is_file {
        let text = std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?;
        return Ok((text, name.to_owned()));
    }
    if let Some(text) = Preset::text(name) {
        return Ok((text.to_owned(), name.to_owned()));
    }
    let error = Preset::named(name).err().map_or_else(String::new, |error| error.to_string());
    Err(error + &did_you_mean(name, Preset::names()))
}

/// The run as the simulator's pictures show one.
fn as_run(command: &str, work: &Report) -> nodewise_sim::Report {
    nodewise_sim::Report {
        policy: command.to_owned(),
        run_time_s: work.modelled_seconds,
        local_access_percent: work.local_access_percent,
        dram_latency_cycles: work.dram_latency_cycles,
        traffic: work.traffic.clone(),
        controller_bytes: work.controllers.iter().map(|work| work.bytes).collect(),
        controller_use_percent: work.controllers.iter().map(|work| work.use_percent).collect(),
        links: work
            .links
            .iter()
            .map(|link| nodewise_sim::LinkReport {
                from: link.from,
                to: link.to,
                bytes: link.work.bytes,
                use_percent: link.work.use_percent,
            })
            .collect(),
        user_s: work.modelled_seconds,
        ..nodewise_sim::Report::default()
    }
}
