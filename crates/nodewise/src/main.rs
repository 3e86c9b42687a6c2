//! Command line of Nodewise: parse, then one function for each command.
#![forbid(unsafe_code)]

mod commands;
mod manage;
mod numactl;
mod output;
mod placement;
mod signals;
mod terminal;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Manage memory traffic on NUMA machines: show the machine, watch programs, place their pages.
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
    Top(commands::top::Args),
    Rig(commands::rig::Args),
    Run(commands::run::Args),
    Attach(commands::attach::Args),
    Doctor(commands::doctor::Args),
    Measure(commands::measure::Args),
    Compare(commands::compare::Args),
    Profile(commands::profile::Args),
    Report(commands::report::Args),
    RecordRaw(commands::record_raw::Args),
    Sim(commands::sim::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

fn main() -> ExitCode {
    let done = match parse(std::env::args_os()) {
        Ok(cli) => run(cli.command),
        // A help or the version, which was asked for.
        Err(error) if !error.use_stderr() => output::print_help(&error.render()).map(|()| ExitCode::SUCCESS),
        Err(error) => error.exit(),
    };
    done.unwrap_or_else(|error| commands::fail(&error))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Topo(args) => commands::topo::main(&args),
        Command::Top(args) => commands::top::main(&args),
        Command::Rig(args) => commands::rig::main(&args),
        Command::Run(args) => commands::run::main(&args),
        Command::Attach(args) => commands::attach::main(&args),
        Command::Doctor(args) => commands::doctor::main(&args),
        Command::Measure(args) => commands::measure::main(&args),
        Command::Compare(args) => commands::compare::main(&args),
        Command::Profile(args) => commands::profile::main(&args),
        Command::Report(args) => commands::report::main(&args),
        Command::RecordRaw(args) => commands::record_raw::main(&args),
        Command::Sim(args) => commands::sim::main(&args),
        Command::Completions(args) => commands::completions::main::<Cli>(&args),
        Command::Man(args) => commands::man::main::<Cli>(&args),
    }
}

/// The meaning of the words of a command line.
fn parse<T: Into<OsString>>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let matches = Cli::command().try_get_matches_from(&words).map_err(|error| match error.kind() {
        ErrorKind::InvalidUtf8 => which_is_not_utf8(&words),
        _ => error,
    })?;
    if let Some(run) = matches.subcommand_matches("run") {
        placement::check_order(run)?;
    }
    Cli::from_arg_matches(&matches)
}

/// Clap does not say which word it was.
fn which_is_not_utf8(words: &[OsString]) -> clap::Error {
    let wrong = words.iter().find(|word| word.to_str().is_none()).map(|word| word.to_string_lossy());
    let message = format!("'{}' is no UTF-8, and no file's name", output::shown(wrong.unwrap_or_default()));
    Cli::command().error(ErrorKind::InvalidUtf8, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn all_counts_for_the_lists_behind_it() {
        let ok = |line: &str| parse(line.split(' ')).is_ok();
        assert!(ok("nodewise run -a -N 0 -m 0 ls") && ok("nodewise run --all ls -C 0"));
        assert!(!ok("nodewise run -N 0 -a ls") && !ok("nodewise run --physcpubind=1 --all ls"));
    }

    /// The words that a shell would hand over, of the first command of a pipe; none if it is no command of
    /// ours.
    fn words(line: &str) -> Option<Vec<String>> {
        let line = line.trim().trim_start_matches("sudo ");
        // A name in a column is followed by more blanks than one.
        let rest = line.strip_prefix("nodewise ").filter(|rest| !rest.starts_with(' '));
        let mut text = rest.map(|_| line.to_owned())?;
        while let Some((before, after)) = text.split_once("$(") {
            text = format!("{before}4711{}", after.split_once(')')?.1);
        }
        // A variable is a number.
        while let Some((before, after)) = text.split_once('$') {
            let end = after.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(after.len());
            text = format!("{before}1{}", &after[end..]);
        }
        // A comment, or in helps what an example is for.
        let ends = ["  ", " # ", " | ", " > "];
        let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
        let words = text[..end].split_whitespace().map(|word| word.trim_matches(['\'', '"']).to_owned());
        Some(words.collect())
    }

    fn parsed(line: &str) -> Result<(), clap::Error> {
        words(line).map_or(Ok(()), |words| parse(words).map(drop))
    }

    #[test]
    fn every_example_of_the_helps_is_understood() {
        fn check(command: &clap::Command) -> usize {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let help = help.replace("\\\n      ", "");
            let examples = help.lines().filter(|line| words(line).is_some()).map(|line| {
                parsed(line).unwrap_or_else(|error| panic!("{}: {line}: {error}", command.get_name()));
            });
            examples.count() + command.get_subcommands().map(check).sum::<usize>()
        }
        assert!(check(&Cli::command()) > 15);
    }

    #[test]
    fn every_command_and_every_switch_opens_with_an_imperative() {
        /// All that open one. A word that is missing here is either no verb, or a new one.
        const VERBS: &[&str] = &[
            "Add",
            "Allocate",
            "Attach",
            "Boot",
            "Compare",
            "Copy",
            "Count",
            "Decide",
            "Do",
            "Draw",
            "End",
            "Give",
            "Interleave",
            "Keep",
            "Leave",
            "Let",
            "List",
            "Look",
            "Make",
            "Manage",
            "Map",
            "Measure",
            "Merge",
            "Move",
            "Place",
            "Print",
            "Put",
            "Read",
            "Record",
            "Replay",
            "Run",
            "Set",
            "Show",
            "Shrink",
            "Simulate",
            "Sort",
            "Start",
            "Take",
            "Watch",
            "Write",
        ];
        fn wrong(command: &clap::Command, path: &str) -> Vec<String> {
            let path = format!("{path} {}", command.get_name());
            let shown = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
            let texts = shown.map(|arg| (format!("{path} --{}", arg.get_id()), arg.get_help()));
            let wrong_texts =
                std::iter::once((path.clone(), command.get_about())).chain(texts).filter(|(_, text)| {
                    let text = text.map(ToString::to_string).unwrap_or_default();
                    !VERBS.contains(&text.split(' ').next().unwrap_or_default())
                });
            let here =
                wrong_texts.map(|(name, text)| format!("{name}: {}", text.cloned().unwrap_or_default()));
            let below = command.get_subcommands().flat_map(|below| wrong(below, &path));
            here.chain(below).collect()
        }
        let found = wrong(&Cli::command(), "");
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn every_command_in_the_documentation_is_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut seen = 0;
        let named = ["README.md", "CONTRIBUTING.md", "RELEASE.md", "SECURITY.md", "CHANGELOG.md", "docs"];
        let mut pages: Vec<_> = named.iter().map(|name| root.join(name)).collect();
        pages.push(root.join("crates/nodewise/README.md"));
        while let Some(path) = pages.pop() {
            // A diary has the commands of its day.
            if path.ends_with("docs/journal") {
                continue;
            }
            if path.is_dir() {
                pages.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let page = path.display();
            let text = std::fs::read_to_string(&path).unwrap().replace("\\\n        ", " ");
            let shown = text.lines().filter_map(|line| line.strip_prefix("    "));
            for line in shown.filter(|line| !line.starts_with(' ')) {
                parsed(line).unwrap_or_else(|error| panic!("{page}: {line}: {error}"));
                seen += usize::from(words(line).is_some());
            }
            let inline = text.split('`').skip(1).step_by(2);
            for code in inline.filter(|code| !code.starts_with(char::is_whitespace)) {
                // Placeholders for numbers.
                let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
                let code = code.replace(" X", " 0.5").replace(" N", " 1").replace(" PID", " 4711");
                let Err(error) = parsed(&code) else { continue };
                // Commands are also called by their names alone, or asked for their version or help.
                let short = [
                    ErrorKind::MissingRequiredArgument,
                    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
                    ErrorKind::DisplayVersion,
                    ErrorKind::DisplayHelp,
                ];
                assert!(short.contains(&error.kind()), "{page}: {code}: {error}");
            }
        }
        assert!(seen > 10, "only {seen} commands were found");
    }
}
