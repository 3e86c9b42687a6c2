//! `nodewise measure`: latency and bandwidth of this machine's memory, node by node.

mod tables;

use super::{Exit, exit};
use crate::output::{PUBLIC, WholeFile, print};
use crate::terminal;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_measure::{Error, ErrorKind, Machine, Options, Part, measure, mlc, preset};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure latency and bandwidth of this machine's memory, node by node
///
/// Each figure is the median of several passes. Threads stay on their CPUs, and memory on its node, in huge
/// pages if the kernel has some. Other programs should be idle meanwhile. Nothing is changed, and Ctrl-C ends
/// the measurement at once. docs/measure.md says how each figure is measured.
#[derive(clap::Args)]
#[command(after_help = "\
Parts:
  latency      idle latency, from each node to each
  pages        idle latency by size of pages, with what the TLB misses
  peak         bandwidth of all CPUs, each on the memory nearest to it
  bandwidth    bandwidth from each node to each, by one thread up to all
  interleaved  bandwidth of all CPUs on one node's memory, and on interleaved memory
  loaded       latency while all other CPUs read
  cache        latency of lines that another CPU's caches have

Examples:
  nodewise measure
  nodewise measure --quick --only latency,bandwidth
  nodewise measure --only latency --json | jq .idle_latency
  nodewise measure --mlc > mlc.txt             for programs that read MLC's text
  nodewise measure --preset mine.toml          a machine for the two below
  nodewise sim run --machine mine.toml --workload streamcluster
  nodewise rig --machine mine.toml -- nodewise measure --quick

Exit status:
  0   done
  1   it could not be measured, as when a node has too little free memory
  2   the command line could not be understood
  77  the process may not bind memory to nodes")]
pub struct Args {
    /// Measure these parts only, with commas between
    #[arg(
        long, value_name = "LIST", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(Part::ALL.map(Part::name)).map(|name| part(&name))
    )]
    only: Option<Vec<Part>>,

    /// Take fewer and shorter passes, and less memory
    #[arg(long)]
    quick: bool,

    /// Take this much memory of each node, in MiB, instead of a multiple of its last-level caches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    mebibytes: Option<u64>,

    /// Print JSON: nodes, page size, governor, notes, and a list for each part
    ///
    /// Each figure has median, quartiles, lowest, highest and passes. Names end in their units.
    #[arg(long, conflicts_with = "mlc")]
    json: bool,

    /// Print the text that Intel's Memory Latency Checker prints, of the parts that it has
    #[arg(long)]
    mlc: bool,

    /// Write a machine for 'nodewise sim' and 'nodewise rig --machine' to this file
    #[arg(long, value_name = "FILE")]
    preset: Option<PathBuf>,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let options = options(args)?;
    // Before minutes are spent on a file that cannot be written.
    let file = args.preset.as_deref().map(|path| WholeFile::create(path, PUBLIC)).transpose()?;
    let bar = bar();
    let results = Machine::live().and_then(|machine| {
        measure(&machine, &options, |done, all, next| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(next.to_owned());
        })
    });
    bar.finish_and_clear();
    let results = results.map_err(|error| failed(&error))?;
    let machine = file.map(|file| preset::text(&results).map(|text| (file, text))).transpose();
    print(&if args.json {
        serde_json::to_string_pretty(&results)? + "\n"
    } else if args.mlc {
        mlc::text(&results)
    } else {
        tables::text(&results, terminal::width())
    })?;
    if let Some((file, text)) = machine.map_err(|error| failed(&error))? {
        file.finish(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One of the names that the command line takes.
fn part(name: &str) -> Part {
    let part = Part::ALL.into_iter().find(|part| part.name() == name);
    part.expect("clap takes no other name")
}

fn options(args: &Args) -> Result<Options, Exit> {
    let usage = |message: String| Exit { code: exit::USAGE, message };
    let mut parts = args.only.clone().unwrap_or_else(|| Part::ALL.to_vec());
    if args.mlc {
        let first = parts.first().map_or("", |part| part.name());
        let none = format!("--only: MLC's text has no part '{first}'");
        parts.retain(|part| part.is_in_mlc());
        if parts.is_empty() {
            return Err(usage(none));
        }
    }
    if args.preset.is_some() {
        let missing = [Part::Latency, Part::Bandwidth].into_iter().find(|part| !parts.contains(part));
        if let Some(missing) = missing {
            let name = missing.name();
            return Err(usage(format!("--preset: a machine takes the part '{name}': add it to --only")));
        }
    }
    Ok(Options { parts, quick: args.quick, mebibytes: args.mebibytes, core: args.preset.is_some() })
}

fn failed(error: &Error) -> Exit {
    let code = match error.kind() {
        ErrorKind::NotPermitted => exit::NOT_PERMITTED,
        _ => exit::FAILURE,
    };
    Exit { code, message: error.to_string() }
}

/// On standard error, if that is a terminal. It is drawn between measurements only.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed}  {msg}") {
        bar.set_style(style);
    }
    bar
}
