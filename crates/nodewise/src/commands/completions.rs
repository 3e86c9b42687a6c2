//! `nodewise completions`: shell completion scripts on standard output.

use crate::output::print;
use clap::CommandFactory;
use std::process::ExitCode;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:\n  nodewise completions bash > /etc/bash_completion.d/nodewise")]
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
