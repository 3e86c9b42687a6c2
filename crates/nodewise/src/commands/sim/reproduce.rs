//! `nodewise sim reproduce`: published studies again.

use super::bar::Bar;
use super::{Named, did_you_mean, exit, usage};
use crate::output::print;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use nodewise_sim::studies::{self, Kind, Study};
use std::process::ExitCode;

/// Run published studies again: what was printed beside what the simulator gives
///
/// A row's kind says what it proves. A predicted figure could have come out otherwise. A sign is a direction,
/// rank or bound. An implied row follows from what the machine or program is. A calibrated one chose a
/// parameter.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim reproduce pikus
  nodewise sim reproduce all --json | jq '.[].rows[] | select(.holds | not)'

Exit status:
  0  every row holds
  1  a row does not, or a run failed
  2  there is no such study")]
pub struct Args {
    /// A study of `nodewise sim list`, or all
    #[arg(value_name = "STUDY", default_value = "all", hide_possible_values = true,
          value_parser = Named(|| studies::all().iter().map(|study| study.name).chain(["all"]).collect()))]
    study: String,

    /// Draw the programs' inputs from this seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON: study and rows, each with what, unit, published, simulated, tolerance, holds and kind; of
    /// all studies a list
    #[arg(long)]
    json: bool,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let all = studies::all();
    let chosen: Vec<_> = all.iter().filter(|study| args.study == "all" || study.name == args.study).collect();
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|study| study.name).collect();
        let meant = did_you_mean(&args.study, names.iter().copied());
        return Err(usage(format!(
            "no such study: {}; there are {}, all{meant}",
            args.study,
            names.join(", ")
        )));
    }
    let bar = Bar::new();
    let options = studies::Options { seed: args.seed, ..studies::Options::default() };
    let mut done: Vec<Study> = Vec::new();
    for (index, study) in chosen.iter().enumerate() {
        bar.says(study.name);
        let share = |share: f64| bar.at((index as f64 + share) / chosen.len() as f64);
        let rows = (study.run)(&options, &share);
        done.push(rows.map_err(|error| error.of(study.name))?);
    }
    drop(bar);
    if args.json {
        let text = match (&done[..], args.study.as_str()) {
            ([study], name) if name != "all" => serde_json::to_string_pretty(study)?,
            (studies, _) => serde_json::to_string_pretty(studies)?,
        };
        print(&(text + "\n"))?;
    } else {
        let text: Vec<String> = done
            .iter()
            .map(|study| format!("{}\n{}\n{}\n\n", study.name, rows(study), counts(&[study])))
            .collect();
        let all: Vec<&Study> = done.iter().collect();
        let text =
            if all.len() > 1 { [text, vec![format!("all: {}\n", counts(&all))]].concat() } else { text };
        print(&text.concat())?;
    }
    let holds = done.iter().all(Study::holds);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) })
}

/// How many rows of each kind hold, those that could have come out otherwise first.
fn counts(studies: &[&Study]) -> String {
    let of_kind = |kind: Kind| {
        let counts = studies.iter().map(|study| study.count(kind));
        let (hold, all) = counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        (all > 0).then(|| format!("{kind} {hold} of {all}"))
    };
    let counts: Vec<String> = Kind::ALL.into_iter().filter_map(of_kind).collect();
    format!("rows that hold: {}", counts.join(", "))
}

fn rows(study: &Study) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["", "published", "simulated", "tolerance", "unit", "holds", "kind"]);
    for row in &study.rows {
        table.add_row([
            row.what.clone(),
            format!("{:.3}", row.published),
            format!("{:.3}", row.simulated),
            row.tolerance.to_string(),
            row.unit.clone(),
            if row.holds { "yes" } else { "no" }.to_owned(),
            row.kind.to_string(),
        ]);
    }
    for column in [1, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}
