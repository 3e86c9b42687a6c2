//! `pairs`: what Nodewise costs programs that nobody here wrote, and what it gives them. Each runs in turn by
//! the kernel alone and under `nodewise run`, in one guest.
#![forbid(unsafe_code)]

use anyhow::{Context as _, ensure};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_bench::paired::{Comparison, compare, median};
use nodewise_bench::scenario::{Place, Programs};
use nodewise_rig::Guest;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Run programs of Debian's packages in a 4-node guest, in turn by the kernel alone and under Nodewise
///
/// A program that is not installed is left out; Debian 12 has them in postgresql, linux-perf, sysbench,
/// redis-server, redis-tools, memcached, libmemcached-tools, nginx-light, apache2-utils, sqlite3,
/// openjdk-17-jdk-headless, stress-ng, gcc and make. All runs of one are in one guest. Which of the two comes
/// first changes from pair to pair. A score is the work done in a second, by the program's own account where
/// it gives one.
#[derive(Parser)]
#[command(after_help = "Examples:\n  pairs\n  pairs --pairs 3 redis sqlite\n  pairs --json >pairs.json")]
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
    /// Print all scores as JSON
    #[arg(long)]
    json: bool,
    /// Also write the figures as a file for docs/results
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

/// A program, and how to get a score of it.
struct Program {
    name: &'static str,
    /// Functions `prepare`, which runs once, and `score`, which prints the score of a run of some
    /// `$SECONDS_LONG` seconds; `under` starts what is measured. The first line says which programs in
    /// `PATH`, files and directories are needed; `*` stands for the one name there is.
    script: &'static str,
    /// `$OPTIONS` of the script.
    options: &'static str,
}

macro_rules! programs {
    ($($name:literal $file:literal $options:literal),* $(,)?) => {
        &[$(Program {
            name: $name,
            script: include_str!(concat!("../../programs/", $file, ".sh")),
            options: $options,
        }),*]
    };
}

const PROGRAMS: &[Program] = programs![
    "pgbench-select" "pgbench" "-S",
    "pgbench-tpcb" "pgbench" "",
    "perf-bench-numa" "perf-bench-numa" "",
    "sysbench-memory" "sysbench-memory" "",
    "redis" "redis" "",
    "memcached" "memcached" "",
    "nginx" "nginx" "",
    "sqlite" "sqlite" "",
    "java" "java" "",
    "stress-ng-vm" "stress-ng-vm" "",
    "compile" "compile" "",
];

/// Functions for every script, and then the runs.
const RUNS: &str = r#"
under() {
    if [ "$MODE" = nodewise ]; then "$NODEWISE" run --quiet --json /tmp/summary -- "$@"; else "$@"; fi
}
within() {
    tenths=$(($1 * 10)); shift
    until "$@"; do tenths=$((tenths - 1)); [ $tenths -gt 0 ] || { echo "in vain: $*" >&2; return 1; }; sleep 0.1; done
}
listens() { grep -q ":$(printf %04X "$1") 00000000:0000 0A" /proc/net/tcp; }
work_done_per_second() {
    read -r begin rest </proc/uptime; "$@" >/dev/null || return; read -r end rest </proc/uptime
    awk "BEGIN { print 1 / ($end - $begin) }"
}
ip link set lo up
if type prepare >/dev/null 2>&1; then prepare || exit; fi
cost() { [ ! -f /tmp/summary ] || tr ',{' '\n\n' </tmp/summary | awk -F: '/"cpu_percent"/ { print $2 }'; rm -f /tmp/summary; }
for pair in $(seq "$PAIRS"); do
    if [ $((pair % 2)) = 1 ]; then modes='kernel nodewise'; else modes='nodewise kernel'; fi
    for MODE in $modes; do
        line="$pair $MODE $(score) $(cost)"; echo "$line" | tee -a scores >&2
    done
done
"#;

/// The results of a program.
#[derive(Serialize)]
struct Row {
    program: &'static str,
    /// Work a second, by the kernel alone and under Nodewise, pair by pair.
    scores: Vec<(f64, f64)>,
    #[serde(flatten)]
    comparison: Comparison,
    /// Nodewise's share of a CPU in each run, in percent.
    cpu_percent: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let chosen =
        |program: &&Program| args.programs.is_empty() || args.programs.iter().any(|n| n == program.name);
    let chosen: Vec<&Program> = PROGRAMS.iter().filter(chosen).collect();
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
            Ok(needs) => match run(program, &needs, &ours, &args) {
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
        let measured = rows.iter().map(|row| {
            let Comparison { ratio, ratios: (least, most), p } = row.comparison;
            let figures = format!("{ratio:.3}, {least:.3} to {most:.3}, p {p:.3}");
            (format!("{}: Nodewise over kernel, of {} pairs", row.program, args.pairs), figures)
        });
        let command = format!(
            "cargo run --release -p nodewise-bench --bin pairs -- --pairs {} --seconds {}",
            args.pairs, args.seconds
        );
        let place = "Guests of 4 nodes with 1 GiB each";
        nodewise_bench::results::write(path, &command, place, &measured.collect::<Vec<_>>())?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", table(&rows));
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    ensure!(!rows.is_empty(), "none of the programs is installed");
    Ok(())
}

/// The paths of what a program needs.
fn needs(program: &Program) -> anyhow::Result<Vec<PathBuf>> {
    let line = program.script.lines().next().and_then(|line| line.strip_prefix("# needs: "));
    line.context("the script does not say what it needs")?.split(' ').map(find).collect()
}

/// A path, with `*` for the one name there is, or a program in `PATH`.
fn find(need: &str) -> anyhow::Result<PathBuf> {
    let missing = || format!("there is no {need}");
    if !need.starts_with('/') {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        return places.map(|place| place.join(need)).find(|path| path.is_file()).with_context(missing);
    }
    let mut found = PathBuf::from("/");
    for part in Path::new(need).iter().skip(1) {
        let part = part.to_string_lossy();
        found = match part.split_once('*') {
            None => found.join(part.as_ref()),
            Some((before, after)) => {
                let names = std::fs::read_dir(&found).with_context(missing)?.filter_map(Result::ok);
                let fits = |name: &str| name.starts_with(before) && name.ends_with(after);
                let mut names = names
                    .map(|entry| entry.path())
                    .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(fits));
                names.next().with_context(missing)?
            }
        };
    }
    ensure!(found.exists(), missing());
    Ok(found)
}

/// All runs of a program.
fn run(program: &Program, needs: &[PathBuf], ours: &Programs, args: &Args) -> anyhow::Result<Row> {
    let guest = needs.iter().fold(Guest::uniform(4, 1, 1 << 30), Guest::copy);
    let limit = Duration::from_secs(600 + 6 * u64::from(args.pairs) * u64::from(args.seconds));
    let script = format!(
        "PAIRS={} SECONDS_LONG={} OPTIONS='{}'\n{}\n{RUNS}",
        args.pairs, args.seconds, program.options, program.script
    );
    let finished = Place::guest_for(limit, guest, ours).run(ours, &script, &["scores"])?;
    let scores = finished.file("scores").with_context(|| finished.stderr.clone())?;
    let mut row_scores = vec![(f64::NAN, f64::NAN); usize::from(args.pairs)];
    let mut cpu_percent = Vec::new();
    for line in scores.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let broken = || format!("'{line}' is no score\n{}", finished.stderr);
        let [pair, mode, score, cost @ ..] = &words[..] else { anyhow::bail!(broken()) };
        let (pair, score): (usize, f64) =
            (pair.parse().with_context(broken)?, score.parse().with_context(broken)?);
        ensure!(score > 0.0, broken());
        let scores = &mut row_scores[pair - 1];
        *if *mode == "kernel" { &mut scores.0 } else { &mut scores.1 } = score;
        if let [percent] = cost {
            cpu_percent.push(percent.parse().with_context(broken)?);
        }
    }
    ensure!(row_scores.iter().all(|pair| !pair.0.is_nan() && !pair.1.is_nan()), "{}", finished.stderr);
    let comparison = compare(&row_scores).context("there are no pairs")?;
    Ok(Row { program: program.name, scores: row_scores, comparison, cpu_percent })
}

/// Five digits, or all before the point.
fn five_digits(score: f64) -> String {
    let before_point = score.abs().log10().floor().max(0.0) as usize + 1;
    format!("{score:.*}", 5_usize.saturating_sub(before_point))
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "program",
        "kernel alone",
        "Nodewise",
        "ratio",
        "least to most",
        "p",
        "CPU of Nodewise",
    ]);
    for row in rows {
        let middle = |of: &dyn Fn(&(f64, f64)) -> f64| {
            let mut scores: Vec<f64> = row.scores.iter().map(of).collect();
            scores.sort_unstable_by(f64::total_cmp);
            five_digits(median(&scores))
        };
        let Comparison { ratio, ratios, p } = row.comparison;
        let costs = row.cpu_percent.iter().copied();
        let (least, most) =
            costs.fold((f64::MAX, 0.0f64), |(least, most), cost| (least.min(cost), most.max(cost)));
        table.add_row([
            row.program.to_owned(),
            middle(&|pair| pair.0),
            middle(&|pair| pair.1),
            format!("{ratio:.3}"),
            format!("{:.3} to {:.3}", ratios.0, ratios.1),
            format!("{p:.3}"),
            format!("{least:.1} to {most:.1} %"),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn each_script_says_its_needs_and_is_one() {
        for program in PROGRAMS {
            let line = program.script.lines().next().and_then(|line| line.strip_prefix("# needs: "));
            assert!(line.is_some_and(|needs| !needs.is_empty()), "{}", program.name);
            let whole = format!("{}\n{RUNS}", program.script);
            let status = Command::new("sh").args(["-n", "-c", &whole]).status().unwrap();
            assert!(status.success() && program.script.contains("score() {"), "{}", program.name);
        }
    }

    #[test]
    fn scores_keep_all_digits_before_the_point() {
        let scores = [4_123_456.7, 394_827.0, 739.414, 2.52, 0.052_34];
        assert_eq!(scores.map(five_digits), ["4123457", "394827", "739.41", "2.5200", "0.0523"]);
    }

    #[test]
    fn a_star_stands_for_the_one_name_there_is() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let wanted = here.join("programs/redis.sh");
        assert_eq!(find(&here.join("prog*/red*.sh").display().to_string()).unwrap(), wanted);
        let error = find("/nowhere/at-*").unwrap_err();
        assert!(error.to_string().contains("/nowhere/at-*"), "{error}");
        assert!(find("no-such-program").is_err());
    }
}
