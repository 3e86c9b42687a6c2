//! `nodewise sim merge`: the results of a sweep's shards as one table, and as a page of plots.

use super::sweep::{self, Run};
use super::usage;
use crate::output::{PUBLIC, WholeFile, note, print, shown};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Put the results of a sweep together: CSV, JSON and a page of plots
///
/// Reads the runs that `sim sweep` has left in DIR, and writes three files there. runs.csv has a line for
/// each run. summary.json and plots.html have medians over the seeds. They hang on the runs alone, and not on
/// the shards in which these were done.
///
/// A relative time is a run's time over that of the first policy of SPEC.toml at the same seed. An interval
/// covers the median of all seeds in 95 of 100 sweeps, by the sign test. With less than six seeds no interval
/// does, and it goes from the least to the greatest.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim merge results
  nodewise sim merge results --partial --json | jq '.cells[].relative_time'

Exit status:
  0  the files are written
  1  runs are missing, or a file could not be read or written
  2  DIR holds no sweep")]
pub struct Args {
    /// Merge the runs of this directory, in which `sim sweep --out` has put them
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Merge the runs that there are, though others are missing
    #[arg(long)]
    partial: bool,

    /// Print summary.json instead of a table
    #[arg(long)]
    json: bool,
}

/// The figures of a run that are told: the field of the report, and its name as a heading.
const FIGURES: [&str; 12] = [
    "run_time_s",
    "local_access_percent",
    "dram_latency_cycles",
    "controller_imbalance_percent",
    "link_use_percent",
    "busiest_link_percent",
    "instructions_per_cycle",
    "pages_migrated",
    "pages_replicated",
    "pages_split",
    "user_s",
    "kernel_s",
];

/// A median over seeds, and the interval that it is in.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
    /// The share of sweeps whose interval has the median of all seeds in it, in per cent.
    coverage_percent: f64,
}

/// The runs that differ in their seeds alone.
#[derive(Serialize)]
struct Cell<'a> {
    machine: &'a str,
    workload: &'a str,
    scale: f64,
    passes: f64,
    huge_pages: bool,
    policy: &'a str,
    /// How many there are.
    runs: usize,
    run_time_s: Spread,
    /// None if the first policy's runs are missing.
    relative_time: Option<Spread>,
    local_access_percent: Option<Spread>,
    #[serde(skip)]
    relative_times: Vec<f64>,
}

#[derive(Serialize)]
struct Summary<'a> {
    version: &'a str,
    /// Runs of the sweep, and those that there are.
    runs: usize,
    merged: usize,
    cells: Vec<Cell<'a>>,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let sweep = sweep::load(&args.dir)?;
    let mut done: Vec<(&Run, Value)> = Vec::new();
    for run in &sweep.runs {
        done.extend(sweep::done(&args.dir, run)?.map(|report| (run, report)));
    }
    let missing = sweep.runs.len() - done.len();
    if missing > 0 && !args.partial {
        anyhow::bail!(
            "{missing} of {} runs are missing: run their shards again, or take --partial",
            sweep.runs.len()
        );
    }
    if done.is_empty() {
        return Err(usage(format!("{} has no run yet", args.dir.display())));
    }
    let cells = cells(&sweep.runs, &done);
    let summary = Summary { version: &sweep.version, runs: sweep.runs.len(), merged: done.len(), cells };
    let json = serde_json::to_string_pretty(&summary)? + "\n";
    let files = [("runs.csv", csv(&done)), ("summary.json", json.clone()), ("plots.html", page(&summary))];
    for (name, content) in files {
        WholeFile::create(&args.dir.join(name), PUBLIC)?.finish(&content)?;
    }
    if missing > 0 {
        note(format_args!("{missing} of {} runs are missing", sweep.runs.len()));
    }
    print(&if args.json { json } else { format!("{}\n", table(&summary.cells)) })?;
    Ok(ExitCode::SUCCESS)
}

/// All that two runs of one comparison share, but the policy.
fn group(run: &Run) -> (&str, &str, u64, u64, bool) {
    (&run.machine_hash, &run.workload, run.scale.to_bits(), run.passes.to_bits(), run.huge_pages)
}

fn number(report: &Value, field: &str) -> Option<f64> {
    report[field].as_f64()
}

/// `done` are those of `all` runs that there are.
fn cells<'a>(all: &[Run], done: &[(&'a Run, Value)]) -> Vec<Cell<'a>> {
    let mut cells = Vec::new();
    for runs in done.chunk_by(|(one, _), (other, _)| group(one) == group(other)) {
        let first_policy = all.iter().find(|run| group(run) == group(runs[0].0)).map(|run| &run.policy);
        for same in runs.chunk_by(|(one, _), (other, _)| one.policy == other.policy) {
            let run = same[0].0;
            let of =
                |field| -> Vec<f64> { same.iter().filter_map(|(_, report)| number(report, field)).collect() };
            let relative = |(run, report): &(&Run, Value)| {
                let first = runs
                    .iter()
                    .find(|(other, _)| Some(&other.policy) == first_policy && other.seed == run.seed)?;
                Some(number(report, "run_time_s")? / number(&first.1, "run_time_s")?)
            };
            let relative_times: Vec<f64> = same.iter().filter_map(relative).collect();
            cells.push(Cell {
                machine: &run.machine,
                workload: &run.workload,
                scale: run.scale,
                passes: run.passes,
                huge_pages: run.huge_pages,
                policy: &run.policy,
                runs: same.len(),
                run_time_s: Spread::of(&of("run_time_s")).unwrap_or_else(Spread::none),
                relative_time: Spread::of(&relative_times),
                local_access_percent: Spread::of(&of("local_access_percent")),
                relative_times,
            });
        }
    }
    cells
}

impl Spread {
    fn none() -> Self {
        Self { median: f64::NAN, low: f64::NAN, high: f64::NAN, coverage_percent: 0.0 }
    }

    fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (low, high) = (sorted.get(count.checked_sub(1)? / 2)?, sorted.get(count / 2)?);
        let (outside, coverage) = interval(count);
        Some(Self {
            median: f64::midpoint(*low, *high),
            low: sorted[outside],
            high: sorted[count - 1 - outside],
            coverage_percent: 100.0 * coverage,
        })
    }
}

/// The number of values to leave out at each end, so that the others cover the median in 95 % of samples.
/// With it comes the share that they cover. The number of values below the median is binomial.
fn interval(count: usize) -> (usize, f64) {
    let mut chance = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = chance;
    let mut best = (0, 1.0 - 2.0 * below);
    for outside in 1..count.div_ceil(2) {
        chance *= (count + 1 - outside) as f64 / outside as f64;
        below += chance;
        if 1.0 - 2.0 * below < 0.95 {
            break;
        }
        best = (outside, 1.0 - 2.0 * below);
    }
    (best.0, best.1.max(0.0))
}

fn csv(done: &[(&Run, Value)]) -> String {
    // A name of a machine's file may hold anything.
    let quoted = |text: &str| {
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.to_owned()
        }
    };
    let mut text =
        format!("machine,workload,policy,scale,passes,huge_pages,repetition,seed,{}\n", FIGURES.join(","));
    for (run, report) in done {
        let _ = write!(
            text,
            "{},{},{},{},{},{},{},{}",
            quoted(&run.machine),
            run.workload,
            quoted(&run.policy),
            run.scale,
            run.passes,
            run.huge_pages,
            run.repetition,
            run.seed
        );
        for field in FIGURES {
            let value = &report[field];
            let _ = if value.is_null() { write!(text, ",") } else { write!(text, ",{value}") };
        }
        text.push('\n');
    }
    text
}

fn interval_text(spread: Option<&Spread>, digits: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |spread| format!("{:.digits$} ({:.digits$} to {:.digits$})", spread.median, spread.low, spread.high),
    )
}

fn table(cells: &[Cell<'_>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "machine",
        "workload",
        "scale",
        "passes",
        "policy",
        "runs",
        "relative time",
        "local, %",
    ]);
    for cell in cells {
        table.add_row([
            shown(cell.machine),
            format!("{}{}", cell.workload, if cell.huge_pages { ", huge pages" } else { "" }),
            cell.scale.to_string(),
            cell.passes.to_string(),
            shown(cell.policy),
            cell.runs.to_string(),
            interval_text(cell.relative_time.as_ref(), 3),
            interval_text(cell.local_access_percent.as_ref(), 1),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

const PLOT: f64 = 520.0;
const NAMES: f64 = 190.0;
const ROW: f64 = 24.0;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A page that needs nothing but itself: a plot for each machine, workload and size.
fn page(summary: &Summary<'_>) -> String {
    let mut html = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>nodewise sim sweep</title>\n\
         <style>body{font:14px sans-serif;margin:2em;color:#1f2933}h2{font-size:1em;margin:1.5em 0 .3em}</style>\n\
         <h1>Run times beside the first policy's</h1>\n",
    );
    let _ = writeln!(
        html,
        "<p>{} of {} runs. A dot is a run, over the first policy's at the same seed. A bar is the interval of \
         the median, which is the tick in it. Below 1 the policy is faster.</p>",
        summary.merged, summary.runs
    );
    let same = |one: &Cell<'_>, other: &Cell<'_>| {
        (one.machine, one.workload, one.scale.to_bits(), one.passes.to_bits(), one.huge_pages)
            == (
                other.machine,
                other.workload,
                other.scale.to_bits(),
                other.passes.to_bits(),
                other.huge_pages,
            )
    };
    for cells in summary.cells.chunk_by(same) {
        let first = &cells[0];
        let huge = if first.huge_pages { ", huge pages" } else { "" };
        let _ = writeln!(
            html,
            "<h2>{} on {}, scale {}, {} passes{huge}</h2>",
            escaped(first.workload),
            escaped(first.machine),
            first.scale,
            first.passes
        );
        plot(&mut html, cells);
    }
    html.push_str("</html>\n");
    html
}

fn plot(html: &mut String, cells: &[Cell<'_>]) {
    let most = cells.iter().flat_map(|cell| &cell.relative_times).copied().fold(1.0, f64::max) * 1.05;
    let x = |time: f64| NAMES + time / most * PLOT;
    let height = ROW * (cells.len() as f64 + 1.0);
    let _ = writeln!(
        html,
        "<svg width=\"{:.0}\" height=\"{height:.0}\" font-size=\"12\">\
         <line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"0\" y2=\"{:.0}\" stroke=\"#6b7785\" stroke-dasharray=\"3\"/>\
         <text x=\"{one:.1}\" y=\"{:.0}\" text-anchor=\"middle\">1</text>",
        NAMES + PLOT + 130.0,
        height - ROW,
        height - 8.0,
        one = x(1.0)
    );
    for (row, cell) in cells.iter().enumerate() {
        let y = ROW * (row as f64 + 0.5);
        let _ = writeln!(html, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + 4.0, escaped(cell.policy));
        let Some(spread) = &cell.relative_time else { continue };
        let _ = writeln!(
            html,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"10\" fill=\"#d3d9e0\"/>\
             <line x1=\"{median:.1}\" x2=\"{median:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#1f2933\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{:.3} ({:.3} to {:.3})</text>",
            x(spread.low),
            y - 5.0,
            (x(spread.high) - x(spread.low)).max(1.0),
            y - 8.0,
            y + 8.0,
            NAMES + PLOT + 6.0,
            y + 4.0,
            spread.median,
            spread.low,
            spread.high,
            median = x(spread.median)
        );
        for &time in &cell.relative_times {
            let _ =
                writeln!(html, "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"#34618e\"/>", x(time));
        }
    }
    html.push_str("</svg>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of the sign test: with 6 values all of them, with 9 all but one at each end, with 20 all
    /// but five.
    #[test]
    fn intervals_are_those_of_the_sign_test() {
        let rounded = |count| {
            let (outside, coverage) = interval(count);
            (outside, (coverage * 1000.0).round() / 10.0)
        };
        assert_eq!(
            [1, 2, 5, 6, 9, 20].map(rounded),
            [(0, 0.0), (0, 50.0), (0, 93.8), (0, 96.9), (1, 96.1), (5, 95.9)]
        );
        let spread = Spread::of(&[5.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.low, spread.high), (2.5, 1.0, 5.0));
        assert_eq!(Spread::of(&[]), None);
    }
}
