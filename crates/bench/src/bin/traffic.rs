//! `traffic`: whether reports of programs that nobody here wrote have the traffic that the machine counts.
#![forbid(unsafe_code)]

use anyhow::{Context as _, ensure};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_bench::programs::{FUNCTIONS, PROGRAMS, Program, machine, needs};
use nodewise_bench::scenario::{Place, Programs};
use nodewise_bench::table;
use nodewise_rig::{Guest, Machine};
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Profile programs on a modelled machine, and compare the traffic of their reports with the machine's counts
///
/// The report has the traffic by samples of the program. The machine counts all accesses of programs to
/// memory. Servers run on all CPUs but the last, which their clients have, so that its node is left out. The
/// programs' needs are those of `pairs`; `duckdb` is that of the package `duckdb-cli` on `PyPI`, in `PATH`.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  traffic
  traffic --seconds 5 redis duckdb
  traffic --json >traffic.json")]
struct Args {
    /// Only these programs
    #[arg(value_parser = PossibleValuesParser::new(PROGRAMS.iter().map(|program| program.name)),
          default_values = ["redis", "pgbench-select", "java", "duckdb"])]
    programs: Vec<String>,
    /// Have a run take about this many seconds of the guest
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Give the guests the time of this machine ('nodewise sim list'), or of a TOML file like one
    #[arg(long, value_name = "PRESET|FILE.toml", default_value = "opteron-8385-4n")]
    machine: String,
    /// Make the machine slower by this factor
    #[arg(long, value_name = "N", default_value_t = 16.0)]
    slow: f64,
    /// Make its caches smaller by this factor
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    scale: f64,
    /// Print all as JSON
    #[arg(long)]
    json: bool,
    /// Also write the figures as a file for docs/results
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

/// The run, after the functions.
const RUN: &str = r#"
MODE=profile; score >score || exit
"$NODEWISE" report /tmp/profile --json >report
"#;

/// No modelled second takes longer on this computer.
const HOST_SECONDS: u32 = 60;

/// A program's traffic.
#[derive(Serialize)]
struct Row {
    program: &'static str,
    samples: u64,
    /// Shares of accesses from each node (row) to each node's memory (column), in percent of all.
    sampled_percent: Vec<Vec<f64>>,
    /// The same as the machine counts them.
    counted_percent: Vec<Vec<f64>>,
    /// How far an entry is off at most, in points.
    off: f64,
}

impl Row {
    fn new(program: &'static str, report: &Value, without_last: bool) -> anyhow::Result<Self> {
        let shares = |matrix: &Value| -> Option<Vec<Vec<f64>>> {
            let rows =
                matrix.as_array()?.iter().map(|row| row.as_array()?.iter().map(Value::as_f64).collect());
            let mut rows = rows.collect::<Option<Vec<Vec<f64>>>>()?;
            rows.truncate(rows.len() - usize::from(without_last));
            let sum: f64 = rows.iter().flatten().sum();
            rows.iter_mut().flatten().for_each(|share| *share *= 100.0 / sum);
            Some(rows)
        };
        let matrix = |value: &Value| shares(value).with_context(|| format!("no traffic in {report:#}"));
        let sampled_percent = matrix(&report["traffic_percent"])?;
        let counted_percent = matrix(&report["counted"]["user_traffic_percent"])?;
        let pairs = sampled_percent.iter().flatten().zip(counted_percent.iter().flatten());
        let off = pairs.map(|(sampled, counted)| (sampled - counted).abs()).fold(0.0, f64::max);
        let samples = report["samples"].as_u64().unwrap_or(0);
        Ok(Self { program, samples, sampled_percent, counted_percent, off })
    }

    /// The shares of near accesses, sampled and counted.
    fn near(&self) -> [f64; 2] {
        [&self.sampled_percent, &self.counted_percent]
            .map(|shares| shares.iter().enumerate().map(|(node, row)| row[node]).sum())
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let chosen: Vec<&Program> =
        PROGRAMS.iter().filter(|program| args.programs.iter().any(|name| name == program.name)).collect();
    let (machine, nodes) = machine(&args.machine)?;
    let machine = machine.slow(args.slow).scale(args.scale);
    let progress = ProgressBar::new(chosen.len() as u64);
    progress.set_style(ProgressStyle::with_template("{spinner} {pos}/{len} {msg} ({elapsed})")?);
    progress.enable_steady_tick(Duration::from_millis(100));
    progress.set_message("building");
    let ours = Programs::build()?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for program in chosen {
        progress.set_message(program.name);
        match run(program, &machine, nodes, &ours, &args) {
            Err(error) => {
                progress.suspend(|| eprintln!("{} failed: {error:#}", program.name));
                failed.push(program.name);
            }
            Ok(row) => rows.push(row),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if let Some(path) = &args.results {
        let measured: Vec<_> = rows
            .iter()
            .map(|row| {
                let [sampled, counted] = row.near();
                let claim = format!("{}: entries of the traffic matrix, by samples", row.program);
                let figures =
                    format!("{:.1} points off at most; {sampled:.1} and {counted:.1} % near", row.off);
                (claim, figures)
            })
            .collect();
        let words: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("cargo run --release -p nodewise-bench --bin traffic -- {}", words.join(" "));
        let place = format!("Guests on {}, with one CPU and 1 GiB a node", args.machine);
        nodewise_bench::results::write(path, &command, &place, &measured)?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", table(&rows));
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn run(
    program: &'static Program,
    machine: &Machine,
    nodes: usize,
    ours: &Programs,
    args: &Args,
) -> anyhow::Result<Row> {
    let guest = Guest::uniform(nodes, 1, 1 << 30).distances(machine.distances()?).machine(machine.clone());
    let guest = needs(program)?.iter().fold(guest.copy("/usr/bin/taskset"), Guest::copy);
    let script = format!(
        "SECONDS_LONG={} OPTIONS='{}' MACHINE='{}'\n{}\n{FUNCTIONS}{RUN}",
        args.seconds, program.options, args.machine, program.script
    );
    let limit = HOST_SECONDS * Duration::from_secs(60 + 4 * u64::from(args.seconds));
    let place = Place::Guest(Box::new(guest.time_limit(limit)));
    let finished = place.run(ours, &script, &["report"])?;
    let report = finished.json("report").with_context(|| finished.stderr.clone())?;
    Row::new(program.name, &report, program.script.contains("$ON_OTHER_CPUS"))
}

fn table(rows: &[Row]) -> String {
    let header = ["program", "samples", "near, sampled", "near, counted", "points off at most"];
    let row = |row: &Row| {
        let [sampled, counted] = row.near();
        [
            row.program.to_owned(),
            row.samples.to_string(),
            format!("{sampled:.1} %"),
            format!("{counted:.1} %"),
            format!("{:.1}", row.off),
        ]
    };
    table::markdown(header, rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_clients_node_is_left_out() {
        let report = json!({
            "samples": 7,
            "traffic_percent": [[60.0, 40.0], [0.0, 0.0]],
            "counted": {"user_traffic_percent": [[30.0, 10.0], [30.0, 30.0]]},
        });
        let row = Row::new("x", &report, true).unwrap();
        assert_eq!((row.samples, row.sampled_percent.len()), (7, 1));
        let [sampled, counted] = row.near();
        assert!((row.off - 15.0).abs() < 1e-9 && (counted - sampled - 15.0).abs() < 1e-9, "{}", row.off);
        let row = Row::new("x", &report, false).unwrap();
        assert!((row.off - 30.0).abs() < 1e-9, "{}", row.off);
        assert!(Row::new("x", &json!({}), false).is_err());
    }
}
