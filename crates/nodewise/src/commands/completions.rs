//! `nodewise completions`: shell completion scripts on standard output.

use crate::output::print;
use clap::builder::{Resettable, Str};
use clap::{Arg, Command, CommandFactory, Id};
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
    let mut all = C::command();
    all.build();
    clap_complete::generate(args.shell, &mut without_hidden(&all), "nodewise", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The command as its help has it: `clap_complete` would offer what is hidden. Clap takes no argument from a
/// command, and so it is made anew, of all that completions ask for.
fn without_hidden(command: &Command) -> Command {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(|arg| {
        let others = command.get_arg_conflicts_with(arg).into_iter().filter(|other| !other.is_hide_set());
        // Names of arguments that are hidden.
        let none = || Resettable::<Id>::Reset;
        let arg = arg.clone().conflicts_with(none()).requires(none()).required_unless_present(none());
        arg.conflicts_with_all(others.map(Arg::get_id))
    });
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(without_hidden);
    let version =
        command.get_version().map_or(Resettable::Reset, |version| Str::from(version.to_owned()).into());
    let about = command.get_about().cloned().unwrap_or_default();
    let made = Command::new(command.get_name().to_owned()).about(about).version(version);
    // Clap's own help and version are among those already.
    let made = made.disable_help_flag(true).disable_version_flag(true).disable_help_subcommand(true);
    made.args(shown).subcommands(below)
}
