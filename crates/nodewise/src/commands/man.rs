//! `nodewise man`: the manual pages, made of the same words as `--help`.

use crate::output::{PUBLIC, WholeFile};
use anyhow::Context as _;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, line_break, roman};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the manual pages into a directory
///
/// The pages are nodewise(1) and one for each command, such as nodewise-run(1). 'man -l FILE' shows a page
/// that is not installed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise man /usr/local/share/man/man1
  nodewise man pages

Exit status:
  0  done
  1  a page could not be written
  2  the command line could not be understood")]
pub struct Args {
    /// The directory; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn main<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    for (name, page) in pages(&mut C::command())? {
        WholeFile::create(&directory.join(format!("{name}.1")), PUBLIC)?.finish(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The names and texts of all pages.
fn pages(command: &mut Command) -> anyhow::Result<Vec<(String, String)>> {
    command.build();
    let mut pages = Vec::new();
    add(command, None, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, above: Option<&str>, pages: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    let name = name(command);
    pages.push((name.clone(), page(command, above)?));
    let mut below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.try_for_each(|below| add(below, Some(&name), pages))
}

fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, above: Option<&str>) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    // Examples and the like have sections of their own, with lines that are not filled.
    let man = Man::new(command.clone().after_help("").after_long_help(""))
        .title(name(command).to_uppercase())
        // Left out, it would have the next one take its place; the version says more.
        .date(" ")
        .source(format!("Nodewise {}", env!("CARGO_PKG_VERSION")))
        .manual("Nodewise Manual");
    man.render_title(&mut bytes)?;
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut bytes)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut bytes)?;
    }
    let mut rest = Roff::new();
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    for paragraph in help.unwrap_or_default().split("\n\n") {
        let (heading, lines) = match paragraph.split_once(":\n") {
            Some((heading, lines)) if !heading.contains('\n') => (heading, lines),
            _ => ("NOTES", paragraph),
        };
        if !paragraph.is_empty() {
            rest.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
            rest.text(unfilled(lines)).control("fi", []);
        }
    }
    if let Some(above) = above {
        rest.control("SH", ["SEE ALSO"]).text([bold(above), roman("(1)")]);
    }
    rest.to_writer(&mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

fn unfilled(lines: &str) -> Vec<Inline> {
    let lines = lines.lines().map(|line| roman(line.strip_prefix("  ").unwrap_or(line)));
    let mut inlines: Vec<Inline> = lines.flat_map(|line| [line, line_break()]).collect();
    inlines.pop();
    inlines
}
