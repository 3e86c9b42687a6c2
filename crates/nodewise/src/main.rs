//! Command line of Nodewise: parse, then one function for each command.
#![forbid(unsafe_code)]

mod commands;
mod manage;
mod output;
mod placement;
mod terminal;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Manages memory traffic on NUMA machines: shows the machine, watches programs, places their pages.
#[derive(Parser)]
#[command(
    name = "nodewise",
    version,
    max_term_width = 110,
    after_help = "\
Exit status:
  0    done
  1    it failed, and the message says why
  2    the command line could not be understood
  77   a capability, sysctl or file permission is missing; the message names it
  run and rig exit with the program's own status: 128 + N if signal N ended it, 126 if it cannot be
  executed, 127 if it was not found. 'nodewise COMMAND --help' has the rest, and examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One of these is made in a process's life.
#[allow(clippy::large_enum_variant)]
#[derive(Subcommand)]
enum Command {
    Topo(commands::topo::Args),
    Rig(commands::rig::Args),
    Run(commands::run::Args),
    Attach(commands::attach::Args),
    Doctor(commands::doctor::Args),
    Sim(commands::sim::Args),
    Completions(commands::completions::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Topo(args) => commands::topo::main(&args),
        Command::Rig(args) => commands::rig::main(&args),
        Command::Run(args) => commands::run::main(&args),
        Command::Attach(args) => commands::attach::main(&args),
        Command::Doctor(args) => commands::doctor::main(&args),
        Command::Sim(args) => commands::sim::main(&args),
        Command::Completions(args) => commands::completions::main::<Cli>(&args),
    };
    done.unwrap_or_else(|error| commands::fail(&error))
}
