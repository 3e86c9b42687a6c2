//! `demo`: a program whose memory was all touched by its first thread, under the kernel's defaults, under the
//! kernel's NUMA balancing, and under Nodewise; on this machine if it has nodes, else in a guest.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::Parser;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_bench::report::Placement;
use nodewise_bench::scenario::{Finished, Place, Programs};
use nodewise_rig::Guest;
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
    /// Use this access pattern of `workload`
    #[arg(long, default_value = "private")]
    pattern: String,
    /// Give the program this much memory, in MiB
    #[arg(long, default_value_t = 64)]
    mebibytes: u32,
    /// End each run after this many seconds of the machine or guest
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Have each thread pass over its memory this often
    #[arg(long, default_value_t = 10_000)]
    passes: u32,
}

/// One run of the program.
#[derive(Debug, Serialize)]
struct Row {
    run: &'static str,
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

const RUNS: [(&str, &str); 3] =
    [("kernel, balancing off", "off"), ("kernel, balancing on", "on"), ("Nodewise", "nodewise")];

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
        progress.set_message("running three times in a guest with 4 nodes, which takes about a minute");
        Place::guest(Guest::uniform(4, 1, 512 << 20), &programs)
    } else {
        progress.set_message(format!("running three times on this machine's {nodes} nodes"));
        Place::Host
    };
    let workload = format!(
        "$WORKLOAD {} --mebibytes {} --seconds {} --passes {}",
        args.pattern, args.mebibytes, args.seconds, args.passes
    );
    // The setting is put back at the end, however that comes.
    let script = format!(
        "balancing=/proc/sys/kernel/numa_balancing; before=$(cat $balancing) || exit 1
         trap 'echo $before > $balancing' EXIT INT TERM
         echo 0 > $balancing && {workload} --report off &&
         echo 1 > $balancing && {workload} --report on &&
         echo $before > $balancing && $NODEWISE run --quiet --json summary -- {workload} --report nodewise"
    );
    let finished = place.run(&programs, &script, &["off", "on", "nodewise", "summary"])?;
    progress.finish_and_clear();
    if finished.status != 0 {
        anyhow::bail!("the program ended with status {}:\n{}", finished.status, finished.stderr);
    }
    let rows = RUNS.map(|(run, report)| row(run, &finished, report));
    let rows = rows.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(path) = &args.results {
        let measured = rows.iter().map(|row| {
            let after =
                row.seconds_to_95_percent.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s"));
            let figures = format!("{:.1} %, {after}; took {:.1} s", row.local_percent, row.seconds);
            (format!("{}: local, time to 95 %", row.run), figures)
        });
        let place = if in_guest { "A guest of 4 nodes" } else { "This machine" };
        nodewise_bench::results::write(path, "make demo", place, &measured.collect::<Vec<_>>())?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let place = if in_guest { "in a 4-node guest" } else { "on this machine" };
    println!(
        "{} MiB, all first touched by the first thread, pattern {}, {} passes a thread, {place}:\n",
        args.mebibytes, args.pattern, args.passes
    );
    println!("{}", table(&rows));
    if in_guest {
        println!(
            "\nPlacement and counts in a guest are real; times are an emulator's, in which every node is equally far."
        );
    }
    Ok(())
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
        local_percent: last.local_percent,
        pages_by_node: last.pages_by_node.clone(),
        seconds_to_95_percent: placements.iter().find(|p| p.local_percent >= 95.0).map(|p| p.seconds),
        seconds: last.seconds,
        user_seconds: last.user_seconds,
        system_seconds: last.system_seconds,
        nodewise_cpu_seconds: nodewise,
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "run",
        "local\naccesses",
        "95 % local\nafter",
        "pages by node",
        "took",
        "CPU: user",
        "kernel",
        "nodewise",
    ]);
    for row in rows {
        let pages = row.pages_by_node.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        table.add_row([
            row.run.to_owned(),
            format!("{:.1} %", row.local_percent),
            row.seconds_to_95_percent.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s")),
            pages,
            format!("{:.1} s", row.seconds),
            format!("{:.1} s", row.user_seconds),
            format!("{:.1} s", row.system_seconds),
            format!("{:.1} s", row.nodewise_cpu_seconds),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
