//! `nodewise completions`: shell completion scripts on standard output.

use crate::output::print;
use clap::CommandFactory;
use std::process::ExitCode;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise completions bash > /etc/bash_completion.d/nodewise

Exit status:
  0  done
  1  the script could not be written
  2  there is no such shell")]
pub struct Args {
    /// The shell to complete for
    shell: clap_complete::Shell,
}

pub fn main<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "nodewise", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
