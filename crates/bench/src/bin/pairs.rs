//! `pairs`: what Nodewise costs programs that nobody here wrote, and what it gives them. Each runs in turn by
//! the kernel alone and under `nodewise run`, in one guest.
#![forbid(unsafe_code)]

use anyhow::{Context as _, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_bench::paired::{Comparison, compare, median};
use nodewise_bench::programs::{self, FUNCTIONS, PROGRAMS, Program, needs};
use nodewise_bench::scenario::{Place, Programs};
use nodewise_bench::table;
use nodewise_rig::{Guest, Machine};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Run programs of Debian's packages in a 4-node guest, in turn by the kernel alone and under Nodewise
///
/// A program that is not installed is left out; Debian 12 has them in postgresql, linux-perf, sysbench,
/// redis-server, redis-tools, memcached, libmemcached-tools, nginx-light, apache2-utils, sqlite3,
/// openjdk-17-jdk-headless, stress-ng, gcc and make. All runs of one are in one guest. Which of the two comes
/// first changes from pair to pair. A score is the work done in a second, by the program's own account where
/// it gives one. Servers run on all CPUs but the last, which their clients have.
///
/// An emulated guest's time hangs on the load of this computer, so that pairs differ by half. With --machine
/// the guest has the time of a modelled machine, which does not. Instructions alone take time there: a run
/// has all of Nodewise's costs, and no gain from where memory lies.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  pairs
  pairs --pairs 3 redis sqlite
  pairs --json >pairs.json
  pairs --machine opteron-8385-4n --other kernel redis
  pairs --machine opteron-8385-4n --slow 8 --scale 0.1 --other interleave redis")]
struct Args {
    /// Only these programs
    #[arg(value_parser = PossibleValuesParser::new(PROGRAMS.iter().map(|program| program.name)))]
    programs: Vec<String>,
    /// Make this many pairs of runs
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=20))]
    pairs: u8,
    /// Have a run take about this many seconds of the guest
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Give the guests the time of this machine ('nodewise sim list'), or of a TOML file like one
    #[arg(long, value_name = "PRESET|FILE.toml")]
    machine: Option<String>,
    /// Make the machine slower by this factor: what Nodewise does each second weighs so much more
    #[arg(long, value_name = "N", default_value_t = 1.0, requires = "machine")]
    slow: f64,
    /// Give accesses to memory the machine's time, too, with caches of this factor of their size: several
    /// times slower on this computer
    #[arg(long, value_name = "X", requires = "machine")]
    scale: Option<f64>,
    /// Compare the kernel alone with this
    #[arg(long, value_enum, default_value_t = Other::Nodewise)]
    other: Other,
    /// Print all scores as JSON
    #[arg(long)]
    json: bool,
    /// Also write the figures as a file for docs/results
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

/// The second run of a pair.
#[derive(Clone, Copy, ValueEnum)]
enum Other {
    /// The program under Nodewise
    Nodewise,
    /// The program with all of its memory interleaved
    Interleave,
    /// The kernel alone once more, to learn by how much two equal runs differ
    Kernel,
}

impl Other {
    const fn name(self) -> &'static str {
        match self {
            Self::Nodewise => "Nodewise",
            Self::Interleave => "interleaved",
            Self::Kernel => "kernel again",
        }
    }

    /// `$MODE` of the script.
    const fn mode(self) -> &'static str {
        match self {
            Self::Nodewise => "nodewise",
            Self::Interleave => "interleave",
            Self::Kernel => "again",
        }
    }
}

/// The runs, after the functions.
const RUNS: &str = r#"
cost() { [ ! -f /tmp/summary ] || tr ',{' '\n\n' </tmp/summary | awk -F: '/"cpu_percent"/ { print $2 }'; rm -f /tmp/summary; }
# The first run in a guest is like no other.
MODE=kernel; score >/dev/null
for pair in $(seq "$PAIRS"); do
    if [ $((pair % 2)) = 1 ]; then modes="kernel $OTHER"; else modes="$OTHER kernel"; fi
    for MODE in $modes; do
        read -r start rest </proc/uptime; score=$(score); read -r now rest </proc/uptime
        line="$pair $MODE $score $(awk "BEGIN { print $now - $start }") $(cost)"
        echo "$line" | tee -a scores >&2
    done
done
"#;

/// No modelled second takes longer on this computer.
const HOST_SECONDS: u32 = 200;

/// The results of a program.
#[derive(Serialize)]
struct Row {
    program: &'static str,
    /// Work a second, by the kernel alone and under Nodewise, pair by pair.
    scores: Vec<(f64, f64)>,
    /// Seconds of the guest that each of these runs took.
    seconds: Vec<(f64, f64)>,
    #[serde(flatten)]
    comparison: Comparison,
    /// Nodewise's share of a CPU in each run, in percent.
    cpu_percent: Vec<f64>,
}

impl Row {
    /// The least and the greatest share of a CPU.
    fn cost(&self) -> Option<(f64, f64)> {
        let mut sorted = self.cpu_percent.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        Some((*sorted.first()?, *sorted.last()?))
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let chosen =
        |program: &&Program| args.programs.is_empty() || args.programs.iter().any(|n| n == program.name);
    let chosen: Vec<&Program> = PROGRAMS.iter().filter(chosen).collect();
    let machine = args.machine.as_deref().map(|name| machine(name, &args)).transpose()?;
    let progress = ProgressBar::new(chosen.len() as u64);
    progress.set_style(ProgressStyle::with_template("{spinner} {pos}/{len} {msg} ({elapsed})")?);
    progress.enable_steady_tick(Duration::from_millis(100));
    progress.set_message("building");
    let ours = Programs::build()?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for program in chosen {
        progress.set_message(program.name);
        match needs(program) {
            Err(error) => progress.suspend(|| eprintln!("{} is left out: {error:#}", program.name)),
            Ok(needs) => match run(program, &needs, &ours, machine.as_ref(), &args) {
                Err(error) => {
                    progress.suspend(|| eprintln!("{} failed: {error:#}", program.name));
                    failed.push(program.name);
                }
                Ok(row) => rows.push(row),
            },
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if let Some(path) = &args.results {
        let other = args.other.name();
        let mut measured = Vec::new();
        for row in &rows {
            let Comparison { ratio, ratios: (least, most), p } = row.comparison;
            let figures = format!("{ratio:.4}, {least:.4} to {most:.4}, p {p:.3}");
            measured
                .push((format!("{}: {other} over kernel, of {} pairs", row.program, args.pairs), figures));
            if let Some((least, most)) = row.cost() {
                let figures = format!("{least:.1} to {most:.1} %");
                measured.push((format!("{}: CPU of Nodewise", row.program), figures));
            }
        }
        let words: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("cargo run --release -p nodewise-bench --bin pairs -- {}", words.join(" "));
        let place = "Guests of one CPU and 1 GiB a node";
        nodewise_bench::results::write(path, &command, place, &measured)?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", table(&rows, args.other.name()));
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    ensure!(!rows.is_empty(), "none of the programs is installed");
    Ok(())
}

/// The machine of these arguments, and how many nodes it has.
fn machine(name: &str, args: &Args) -> anyhow::Result<(Machine, usize)> {
    let (machine, nodes) = programs::machine(name)?;
    let machine = machine.slow(args.slow);
    Ok((
        if let Some(factor) = args.scale { machine.scale(factor) } else { machine.instructions_only() },
        nodes,
    ))
}

/// All runs of a program.
fn run(
    program: &Program,
    needs: &[PathBuf],
    ours: &Programs,
    machine: Option<&(Machine, usize)>,
    args: &Args,
) -> anyhow::Result<Row> {
    let mut guest = Guest::uniform(machine.map_or(4, |(_, nodes)| *nodes), 1, 1 << 30);
    let mut limit = Duration::from_secs(600 + 6 * u64::from(args.pairs) * u64::from(args.seconds));
    if let Some((machine, _)) = machine {
        guest = guest.distances(machine.distances()?).machine(machine.clone());
        limit *= HOST_SECONDS;
    }
    let guest = needs.iter().fold(guest.copy("/usr/bin/taskset"), Guest::copy);
    let script = format!(
        "PAIRS={} SECONDS_LONG={} OPTIONS='{}' OTHER={}\n{}\n{FUNCTIONS}{RUNS}",
        args.pairs,
        args.seconds,
        program.options,
        args.other.mode(),
        program.script
    );
    // A modelled machine's time does not hang on what runs beside it.
    let place = match machine {
        Some(_) => Place::Guest(Box::new(guest.time_limit(limit))),
        None => Place::guest_for(limit, guest),
    };
    let finished = place.run(ours, &script, &["scores"])?;
    let scores = finished.file("scores").with_context(|| finished.stderr.clone())?;
    let mut row_scores = vec![(f64::NAN, f64::NAN); usize::from(args.pairs)];
    let mut row_seconds = row_scores.clone();
    let mut cpu_percent = Vec::new();
    for line in scores.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let broken = || format!("'{line}' is no score\n{}", finished.stderr);
        let [pair, mode, score, seconds, cost @ ..] = &words[..] else { anyhow::bail!(broken()) };
        let pair: usize = pair.parse().with_context(broken)?;
        let number = |word: &str| word.parse::<f64>().with_context(broken);
        let (score, seconds) = (number(score)?, number(seconds)?);
        ensure!(score > 0.0, broken());
        for (row, value) in [(&mut row_scores, score), (&mut row_seconds, seconds)] {
            let pair = &mut row[pair - 1];
            *if *mode == "kernel" { &mut pair.0 } else { &mut pair.1 } = value;
        }
        if let [percent] = cost {
            cpu_percent.push(number(percent)?);
        }
    }
    ensure!(row_scores.iter().all(|pair| !pair.0.is_nan() && !pair.1.is_nan()), "{}", finished.stderr);
    let comparison = compare(&row_scores).context("there are no pairs")?;
    Ok(Row { program: program.name, scores: row_scores, seconds: row_seconds, comparison, cpu_percent })
}

/// Five digits, or all before the point.
fn five_digits(score: f64) -> String {
    let before_point = score.abs().log10().floor().max(0.0) as usize + 1;
    format!("{score:.*}", 5_usize.saturating_sub(before_point))
}

fn table(rows: &[Row], other: &str) -> String {
    let header = ["program", "kernel alone", other, "ratio", "least to most", "p", "CPU of Nodewise"];
    let row = |row: &Row| {
        let middle = |of: &dyn Fn(&(f64, f64)) -> f64| {
            let mut scores: Vec<f64> = row.scores.iter().map(of).collect();
            scores.sort_unstable_by(f64::total_cmp);
            five_digits(median(&scores))
        };
        let Comparison { ratio, ratios, p } = row.comparison;
        [
            row.program.to_owned(),
            middle(&|pair| pair.0),
            middle(&|pair| pair.1),
            format!("{ratio:.4}"),
            format!("{:.4} to {:.4}", ratios.0, ratios.1),
            format!("{p:.3}"),
            row.cost().map_or_else(String::new, |(least, most)| format!("{least:.1} to {most:.1} %")),
        ]
    };
    table::markdown(header, rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_keep_all_digits_before_the_point() {
        let scores = [4_123_456.7, 394_827.0, 739.414, 2.52, 0.052_34];
        assert_eq!(scores.map(five_digits), ["4123457", "394827", "739.41", "2.5200", "0.0523"]);
    }
}
