//! `nodewise completions`: shell completion scripts on standard output.

use clap::CommandFactory;
use std::process::ExitCode;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:\n  nodewise completions bash > /etc/bash_completion.d/nodewise")]
pub struct Args {
    /// The shell to complete for
    shell: clap_complete::Shell,
}

// The signature every command has: dispatch in main.rs reads as one table.
#[allow(clippy::unnecessary_wraps)]
pub fn main<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = C::command();
    clap_complete::generate(args.shell, &mut command, "nodewise", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
