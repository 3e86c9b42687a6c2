//! `nodewise sim matrix`: every workload on every machine under every policy.

use super::bar::Bar;
use super::{
    Named, Size, check_passes, check_scale, given, machine_named, policy, usage, warn_of_small, workload,
};
use crate::output::{print, shown};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use nodewise_hardware::Preset;
use nodewise_sim::{Cell, Matrix, PASSES, POLICIES, studies, workloads};
use std::process::ExitCode;

/// Run every workload on every machine under every policy, and compare with first touch
///
/// A figure is a run time over that under first touch: below 1 the policy is faster. Every program has a
/// thread on each CPU. A machine's rows lack the policies that it does not run. The oracle takes the fastest
/// of all runs of a cell and of two of its own.
///
/// All of it takes about an hour of one processor at the default scale.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim matrix --json > matrix.json
  nodewise sim matrix --machine opteron-8385-4n,dahu-2n --workload cg,ft,mg \\
      --policy interleave,carrefour,oracle
  nodewise sim matrix --huge-pages --scale 0.03 --policy autonuma,autonuma+split

Exit status:
  0  every run ended and its result was right
  1  one failed, and the message says which
  2  there is no such machine, workload or policy, or no machine runs the policy")]
pub struct Args {
    /// Simulate these machines of `nodewise sim list`, or those that files describe, or else all of the list
    #[arg(long, value_name = "MACHINE", value_delimiter = ',', hide_possible_values = true,
          value_parser = Named(|| Preset::names().collect()))]
    machine: Vec<String>,

    /// Run these programs of `nodewise sim list`, or else all
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', hide_possible_values = true,
          value_parser = Named(|| workloads::all().iter().map(|workload| workload.name).collect()))]
    workload: Vec<String>,

    /// Place pages by these policies of `nodewise sim list`, or else by all that name no node
    #[arg(long, value_name = "POLICY", value_delimiter = ',', hide_possible_values = true,
          value_parser = Named(|| POLICIES.iter().map(|(name, _)| *name).collect()))]
    policy: Vec<String>,

    /// Map huge pages
    #[arg(long)]
    huge_pages: bool,

    /// Shrink problems and caches to this share of the real ones, above 0 and up to 1
    #[arg(long, value_name = "X", default_value_t = 0.01)]
    scale: f64,

    /// Let each run stand for a real program that goes over its data N times as often, as in `sim run`
    #[arg(long, value_name = "N", default_value_t = PASSES)]
    passes: f64,

    /// Draw the programs' inputs and the engine's choices from this seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON: a list of objects with `machine`, `workload`, `huge_pages`, `policy`, `relative_time` and
    /// `local_access_percent`
    #[arg(long)]
    json: bool,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    check_scale(args.scale).map_err(|error| usage(format!("--scale {error}")))?;
    check_passes(args.passes).map_err(|error| usage(format!("--passes {error}")))?;
    let all = Matrix::all(args.scale)?;
    let matrix = Matrix {
        machines: given("machine", &args.machine, machine_named)?.unwrap_or(all.machines),
        workloads: given("workload", &args.workload, workload)?.unwrap_or(all.workloads),
        policies: given("policy", &args.policy, policy)?.unwrap_or(all.policies),
        passes: args.passes,
        huge_pages: args.huge_pages,
        seed: args.seed,
        ..all
    };
    if !args.policy.is_empty() {
        matrix.check().map_err(|error| usage(error.to_string()))?;
    }
    let bar = Bar::new();
    bar.says(&format!("{} machines, {} workloads", matrix.machines.len(), matrix.workloads.len()));
    let cells = matrix.run(studies::Options::default().jobs, &|share| bar.at(share))?;
    drop(bar);
    warn_of_small(cells.iter().map(|cell| Size {
        run: format!("{} on {}: ", cell.workload, shown(&cell.machine)),
        threads: cell.threads,
        pages: cell.placeable_pages,
    }));
    if args.json {
        print(&(serde_json::to_string_pretty(&cells)? + "\n"))?;
    } else {
        print(&format!("{}\n", table(&cells)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Machines and workloads down, policies across, and the geometric means of the columns.
fn table(cells: &[Cell]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for cell in cells {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
        let row = (cell.machine.as_str(), cell.workload.as_str());
        if rows.last() != Some(&row) {
            rows.push(row);
        }
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["machine", "workload"].into_iter().chain(policies.iter().copied()));
    let mut columns = vec![Vec::new(); policies.len()];
    let mut next = cells.iter().peekable();
    for (machine, workload) in rows {
        let mut line = vec![shown(machine), workload.to_owned()];
        for (policy, column) in policies.iter().zip(&mut columns) {
            let here = next.next_if(|cell| {
                (cell.machine.as_str(), cell.workload.as_str(), cell.policy.as_str())
                    == (machine, workload, *policy)
            });
            column.extend(here.map(|cell| cell.relative_time));
            line.push(here.map_or_else(|| "-".to_owned(), |cell| format!("{:.3}", cell.relative_time)));
        }
        table.add_row(line);
    }
    let mut summary = |what: &str, figure: fn(&[f64]) -> f64| {
        let figures = columns.iter().map(|column| format!("{:.3}", figure(column)));
        table.add_row([what.to_owned(), String::new()].into_iter().chain(figures));
    };
    summary("geometric mean", |times| {
        (times.iter().map(|time| time.ln()).sum::<f64>() / times.len() as f64).exp()
    });
    summary("worst", |times| times.iter().copied().fold(0.0, f64::max));
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
