//! `nodewise sim`: programs on a simulated machine.

mod bar;
mod matrix;
mod merge;
mod placement;
pub mod plot;
mod reproduce;
mod run;
mod sweep;

use super::{Exit, beside, exit};
use crate::output::{note, print};
use crate::terminal;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use nodewise_hardware::Preset;
use nodewise_sim::workloads::{self, Workload};
use nodewise_sim::{POLICIES, Policy, studies};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Run programs on a simulated NUMA machine, under any placement policy
///
/// The programs are real algorithms; caches, controllers and links are queues in simulated time. The same
/// command gives the same result on any computer.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim list
  nodewise sim run --machine opteron-8385-4n --workload streamcluster \\
      --policy first-touch,interleave
  nodewise sim matrix --machine dahu-2n --scale 0.003
  nodewise sim sweep spec.toml --shard 0/16 --out results
  nodewise sim reproduce pikus

Exit status:
  0  done
  1  it failed, and the message says why; a row of a study does not hold
  2  the command line could not be understood: there is no such machine, workload, policy or study, say")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(ListArgs),
    Run(run::Args),
    Matrix(matrix::Args),
    Sweep(sweep::Args),
    Merge(merge::Args),
    Reproduce(reproduce::Args),
}

/// List machines, workloads, policies and studies
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim list
  nodewise sim list --json | jq -r '.workloads[].name'

Exit status:
  0  done
  1  the list could not be written
  2  the command line could not be understood")]
struct ListArgs {
    /// Print JSON: machines, workloads, policies and studies, each with name and about
    #[arg(long)]
    json: bool,
}

/// The names that a shell completes. Others may be right as well, such as a file's or `bind:3`: an argument
/// is judged where it is used.
#[derive(Clone)]
pub struct Named(pub fn() -> Vec<&'static str>);

impl TypedValueParser for Named {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let placeholder = |name: &&str| name.contains(|c: char| c.is_ascii_uppercase());
        Some(Box::new((self.0)().into_iter().filter(move |name| !placeholder(name)).map(PossibleValue::new)))
    }
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::List(args) => list(args),
        Command::Run(args) => run::main(args),
        Command::Matrix(args) => matrix::main(args),
        Command::Sweep(args) => sweep::main(args),
        Command::Merge(args) => merge::main(args),
        Command::Reproduce(args) => reproduce::main(args),
    }
}

fn usage(message: impl Into<String>) -> anyhow::Error {
    Exit { code: exit::USAGE, message: message.into() }.into()
}

#[derive(Serialize)]
struct Entry {
    name: String,
    about: String,
}

#[derive(Serialize)]
struct Listing {
    machines: Vec<Entry>,
    workloads: Vec<Entry>,
    policies: Vec<Entry>,
    studies: Vec<Entry>,
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let entry = |name: &str, about: &str| Entry { name: name.to_owned(), about: about.to_owned() };
    let machines: Result<Vec<Entry>, _> =
        Preset::names().map(|name| Preset::named(name).map(|preset| entry(name, &preset.about))).collect();
    let listing = Listing {
        machines: machines?,
        workloads: workloads::all().iter().map(|workload| entry(workload.name, workload.about)).collect(),
        policies: POLICIES.iter().map(|(name, about)| entry(name, about)).collect(),
        studies: studies::all().iter().map(|study| entry(study.name, study.about)).collect(),
    };
    if args.json {
        print(&(serde_json::to_string_pretty(&listing)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let groups = [
        ("Machines", &listing.machines),
        ("Workloads", &listing.workloads),
        ("Policies", &listing.policies),
        ("Studies", &listing.studies),
    ];
    let width = groups.iter().flat_map(|group| group.1).map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (index, (heading, entries)) in groups.into_iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}{heading}", if index > 0 { "\n" } else { "" });
        for Entry { name, about } in entries {
            text += &beside(&format!("  {name:width$}  "), 2 + width + 2, &[about], terminal::width());
        }
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A wrong value of a switch.
fn in_switch(switch: &str) -> impl Fn(String) -> anyhow::Error {
    move |error| usage(format!("--{switch}: {error}"))
}

fn check_scale(scale: f64) -> Result<(), String> {
    if scale > 0.0 && scale <= 1.0 { Ok(()) } else { Err(format!("{scale}: not above 0 and up to 1")) }
}

fn check_passes(passes: f64) -> Result<(), String> {
    if (1.0..=1e6).contains(&passes) { Ok(()) } else { Err(format!("{passes}: not from 1 to a million")) }
}

fn machine_named(name: &str) -> Result<Preset, String> {
    let ends_in = |extension: &str| Path::new(name).extension().is_some_and(|found| found == extension);
    let file = match () {
        () if ends_in("json") => Some(Preset::load_json(name)),
        () if ends_in("toml") || name.contains('/') => Some(Preset::load(name)),
        () => None,
    };
    if let Some(preset) = file {
        return preset.map_err(|error| error.to_string());
    }
    Preset::named(name).map_err(|error| format!("{error}{}", did_you_mean(name, Preset::names())))
}

fn policy(name: &str) -> Result<Policy, String> {
    let names = POLICIES.iter().map(|policy| policy.0);
    name.parse::<Policy>().map_err(|error| format!("{error}{}", did_you_mean(name, names)))
}

fn workload(name: &str) -> Result<Workload, String> {
    let all = workloads::all();
    all.iter().find(|workload| workload.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|workload| workload.name).collect();
        let meant = did_you_mean(name, names.iter().copied());
        format!("no such program: {name}; there are {}{meant}", names.join(", "))
    })
}

/// The machines, workloads or policies that a switch names, or none if it names none.
fn given<T>(
    switch: &str,
    names: &[String],
    find: fn(&str) -> Result<T, String>,
) -> anyhow::Result<Option<Vec<T>>> {
    if names.is_empty() {
        return Ok(None);
    }
    let found: Result<_, String> = names.iter().map(|name| find(name)).collect();
    found.map(Some).map_err(in_switch(switch))
}

/// A run's size, by which a policy has much to place, or next to nothing.
struct Size {
    run: String,
    threads: usize,
    pages: u64,
}

/// Warns of runs with fewer pages than threads.
fn warn_of_small(sizes: impl IntoIterator<Item = Size>) {
    let mut small: Vec<Size> = sizes.into_iter().filter(|size| size.pages < size.threads as u64).collect();
    small.dedup_by(|one, other| one.run == other.run);
    let Some(Size { run, threads, pages }) = small.first() else { return };
    let more = match small.len() - 1 {
        0 => String::new(),
        more => format!(" (as in {more} more)"),
    };
    note(format_args!(
        "{run}{threads} threads share {pages} pages{more}: placement means little; try a larger --scale"
    ));
}

/// The name that a wrong one was probably meant to be, as the end of a message. Text that follows a colon is
/// an argument.
pub fn did_you_mean<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    fn word(name: &str) -> &str {
        name.split_once(':').map_or(name, |(word, _)| word)
    }
    let likeness = |name| strsim::jaro(&word(wrong).to_lowercase(), word(name));
    let closest = names.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match closest.filter(|name| word(name) != word(wrong) && likeness(name) >= 0.8) {
        Some(name) => format!(". Did you mean {name}?"),
        None => String::new(),
    }
}
