//! `demo`: a program whose memory was all touched by its first thread, in four ways.
//!
//! Its pages stay where they are, are interleaved, or are moved by the kernel's NUMA balancing or by
//! Nodewise. It runs on this machine if that has nodes, else in a guest with the time of a modelled machine.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_bench::report::Placement;
use nodewise_bench::scenario::{Finished, Place, Programs};
use nodewise_bench::table;
use nodewise_hardware::Preset;
use nodewise_rig::{Guest, Machine};
use nodewise_topology::Topology;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Show what Nodewise does to a program whose memory is all on one node
#[derive(Parser)]
struct Args {
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
    /// Also write the figures as a file for docs/results
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Use a guest even if this machine has several nodes
    #[arg(long)]
    guest: bool,
    /// Give the guest this machine's time: a preset's name, or 'none' for an emulator's
    #[arg(long, default_value = "opteron-8385-4n")]
    machine: String,
    /// Use this access pattern of `workload`
    #[arg(long, default_value = "private")]
    pattern: String,
    /// Give the program this much memory, in MiB
    #[arg(long, default_value_t = 32)]
    mebibytes: u32,
    /// End each run after this many seconds of the machine or guest
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Have each thread pass over its memory this often
    #[arg(long, default_value_t = 200)]
    passes: u32,
}

/// The part of the machine's caches that the guest has: the program's memory is more than they hold.
const SCALE: f64 = 0.1;
/// The factor by which all of the machine is slower: a modelled second is short enough to be watched.
const SLOW: f64 = 8.0;
/// How long the guest may run, in seconds of this computer.
const LIMIT: Duration = Duration::from_secs(1200);

/// One run of the program.
#[derive(Debug, Serialize)]
struct Row {
    run: &'static str,
    /// The first run's time over this one's.
    speed_up: f64,
    /// Share of accesses that were local when it ended, in percent.
    local_percent: f64,
    /// Pages by node when it ended.
    pages_by_node: Vec<u64>,
    /// Seconds until 95 % of accesses were local, to the next report; none if never.
    seconds_to_95_percent: Option<f64>,
    /// How long the program took, in seconds.
    seconds: f64,
    /// Its CPU time in user mode, in seconds.
    user_seconds: f64,
    /// Its CPU time in the kernel, hint faults and the kernel's migrations included, in seconds.
    system_seconds: f64,
    /// Nodewise's own CPU time, in seconds.
    nodewise_cpu_seconds: f64,
}

const RUNS: [(&str, &str); 4] = [
    ("kernel, balancing off", "off"),
    ("interleaved from the start", "interleaved"),
    ("kernel, balancing on", "on"),
    ("Nodewise", "nodewise"),
];

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let nodes = Topology::live()?.node_count();
    let root =
        nodewise_sys::effective_capabilities().is_ok_and(|set| nodewise_sys::Capability::SysAdmin.is_in(set));
    let in_guest = args.guest || nodes < 2 || !root;
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})")?);
    progress.enable_steady_tick(Duration::from_millis(100));
    progress.set_message("building");
    let programs = Programs::build()?;
    let place = if in_guest {
        progress
            .set_message(format!("running four times in a guest on {}: some three minutes", args.machine));
        Place::guest_for(LIMIT, guest(&args.machine)?)
    } else {
        progress.set_message(format!("running four times on this machine's {nodes} nodes"));
        Place::Host
    };
    let workload = format!(
        "$WORKLOAD {} --stream --mebibytes {} --seconds {} --passes {}",
        args.pattern, args.mebibytes, args.seconds, args.passes
    );
    // The setting is put back at the end, however that comes.
    let script = format!(
        "balancing=/proc/sys/kernel/numa_balancing; before=$(cat $balancing) || exit 1
         trap 'echo $before > $balancing' EXIT INT TERM
         echo 0 > $balancing && {workload} --report off &&
         $NODEWISE run --policy none --interleave all -- {workload} --report interleaved &&
         echo 1 > $balancing && {workload} --report on &&
         echo $before > $balancing && $NODEWISE run --quiet --json summary -- {workload} --report nodewise"
    );
    let finished = place.run(&programs, &script, &["off", "interleaved", "on", "nodewise", "summary"])?;
    progress.finish_and_clear();
    if finished.status != 0 {
        anyhow::bail!("the program ended with status {}:\n{}", finished.status, finished.stderr);
    }
    let rows = RUNS.map(|(run, report)| row(run, &finished, report));
    let mut rows = rows.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let first = rows[0].seconds;
    for row in &mut rows {
        row.speed_up = first / row.seconds;
    }
    if let Some(path) = &args.results {
        let measured = rows.iter().map(|row| {
            let after =
                row.seconds_to_95_percent.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s"));
            let (local, seconds, speed_up) = (row.local_percent, row.seconds, row.speed_up);
            let figures = format!("{speed_up:.2}, {seconds:.1} s; {local:.1} %, {after}");
            (format!("{}: speed-up, time; local, time to 95 %", row.run), figures)
        });
        let place = match in_guest {
            true if args.machine == "none" => "A guest of 4 nodes".into(),
            true => format!("A guest on {}, caches {SCALE}, {SLOW} times slower", args.machine),
            false => "This machine".into(),
        };
        nodewise_bench::results::write(path, "make demo", &place, &measured.collect::<Vec<_>>())?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let modelled = in_guest && args.machine != "none";
    let place = match in_guest {
        true if modelled => format!("in a guest on {}", args.machine),
        true => "in a 4-node guest".into(),
        false => "on this machine".into(),
    };
    println!(
        "{} MiB, all first touched by the first thread, pattern {}, {} passes a thread, {place}:\n",
        args.mebibytes, args.pattern, args.passes
    );
    println!("{}", table(&rows));
    if modelled {
        println!(
            "\nTimes are the modelled machine's, with one CPU a node, caches {SCALE} times their size and all parts \
             {SLOW} times slower."
        );
    } else if in_guest {
        println!(
            "\nPlacement and counts in a guest are real; times are an emulator's, in which every node is equally far."
        );
    }
    Ok(())
}

/// A guest of four nodes, or with as many as the machine has.
fn guest(machine: &str) -> anyhow::Result<Guest> {
    if machine == "none" {
        return Ok(Guest::uniform(4, 1, 512 << 20));
    }
    let preset = Preset::named(machine)?;
    let text = Preset::text(machine).context("a preset has a text")?;
    let model = Machine::new(text, machine, nodewise_rig::library()?)?.scale(SCALE).slow(SLOW);
    let distances = model.distances()?;
    Ok(Guest::uniform(preset.nodes.len(), 1, 512 << 20).distances(distances).machine(model))
}

fn row(run: &'static str, finished: &Finished, report: &str) -> anyhow::Result<Row> {
    let placements: Vec<Placement> = finished.placements(report)?;
    let last = placements.last().with_context(|| format!("{report}: no reports"))?;
    let nodewise = match report {
        "nodewise" => finished.json("summary")?["own_cost"]["cpu_seconds"].as_f64().context("no own_cost")?,
        _ => 0.0,
    };
    Ok(Row {
        run,
        speed_up: 1.0,
        local_percent: last.local_percent,
        pages_by_node: last.pages_by_node.clone(),
        seconds_to_95_percent: placements.iter().find(|p| p.local_percent >= 95.0).map(|p| p.seconds),
        seconds: last.seconds,
        user_seconds: last.user_seconds,
        system_seconds: last.system_seconds,
        nodewise_cpu_seconds: nodewise,
    })
}

fn table(rows: &[Row]) -> String {
    let header = [
        "run",
        "took",
        "speed-up",
        "local\naccesses",
        "95 % local\nafter",
        "pages by node",
        "CPU: user",
        "kernel",
        "nodewise",
    ];
    let row = |row: &Row| {
        let pages = row.pages_by_node.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        [
            row.run.to_owned(),
            format!("{:.1} s", row.seconds),
            format!("{:.2}", row.speed_up),
            format!("{:.1} %", row.local_percent),
            row.seconds_to_95_percent.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s")),
            pages,
            format!("{:.1} s", row.user_seconds),
            format!("{:.1} s", row.system_seconds),
            format!("{:.1} s", row.nodewise_cpu_seconds),
        ]
    };
    table::terminal(header, rows.iter().map(row))
}
