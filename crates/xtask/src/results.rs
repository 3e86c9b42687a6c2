//! docs/results.md, made of the files in docs/results: one for each command that measures.

use anyhow::{Context, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One file: all that a command measured, and with what.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measurement {
    /// The command as it is typed in a checkout.
    command: String,
    /// The commit that was measured, and the day, of results that name none of their own.
    commit: String,
    day: String,
    /// The machine or guest, and what else ran on it.
    machine: String,
    /// For readers of the file: the way of counting, and all that qualifies the figures.
    #[serde(rename = "note")]
    _note: Option<String>,
    result: Vec<Row>,
}

/// One line of the table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    claim: String,
    measured: String,
    /// The goal and whether it holds; neither, if the figure is only reported.
    goal: Option<String>,
    holds: Option<bool>,
    /// Why a goal is missed.
    note: Option<String>,
    commit: Option<String>,
    day: Option<String>,
}

const HEAD: &str = "\
# Results

`cargo xtask results` writes this page from the files in `docs/results`. Edit those, as `make lint` fails if
the page is another. Each line was measured at the commit that it names, most in a single run. A goal that is
missed stays in the table, and its reason stands below. The file of a command has more: what is counted, and
what to know before one believes it.

Times in guests are an emulator's, in which all nodes are equally far. Placement and counts there are real. No
hardware with several nodes was measured so far. The host is a virtual machine with 2 x86-64 cores and one
node, shared with others, under Debian 12. A usual guest has 4 nodes with one CPU and 512 MiB each, and
Debian's kernel 6.12.95. QEMU 10 emulates it.

[The diary](journal/2026-11.md) has the tables as they were printed, and all that was superseded.
";

/// Characters in a line of the page.
const WIDTH: usize = 110;

/// Characters in a cell.
const WIDEST_CELL: usize = 60;

/// Writes the page, or only checks that it is as the files say.
pub fn run(only_check: bool) -> anyhow::Result<ExitCode> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = page(&measurements(&docs.join("results"))?);
    let path = docs.join("results.md");
    if !only_check {
        std::fs::write(&path, page).context("cannot write docs/results.md")?;
    } else if std::fs::read_to_string(&path).context("cannot read docs/results.md")? != page {
        eprintln!("docs/results.md is not what its files in docs/results say: run 'cargo xtask results'");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// All files, in the order of their names, with their names as the page has them.
fn measurements(directory: &Path) -> anyhow::Result<Vec<(String, Measurement)>> {
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let parsed =
            std::fs::read_to_string(&path).map_err(anyhow::Error::from).and_then(|text| parse(&text));
        Ok((name.clone(), parsed.with_context(|| format!("docs/results/{name}"))?))
    };
    let entries = directory.read_dir().context("cannot read docs/results")?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let files =
        paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    let mut all = files.map(read).collect::<anyhow::Result<Vec<_>>>()?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

fn parse(text: &str) -> anyhow::Result<Measurement> {
    let measurement: Measurement = toml::from_str(text)?;
    ensure!(!measurement.result.is_empty(), "there is no [[result]]");
    let Measurement { commit, day, .. } = &measurement;
    for result in &measurement.result {
        let Row { claim, measured, goal, holds, note, .. } = result;
        for cell in [claim, measured].into_iter().chain(goal) {
            let width = cell.chars().count();
            ensure!(width <= WIDEST_CELL, "{width} characters, of at most {WIDEST_CELL}: '{cell}'");
            ensure!(!cell.contains(['|', '\n']), "'{cell}' does not fit into a cell");
        }
        ensure!(goal.is_some() == holds.is_some(), "'{claim}': a goal holds or does not");
        ensure!(note.is_some() == (*holds == Some(false)), "'{claim}': a goal that is missed has a note");
        let commit = result.commit.as_ref().unwrap_or(commit);
        let is_commit = (7..=40).contains(&commit.len()) && commit.chars().all(|c| c.is_ascii_hexdigit());
        ensure!(is_commit, "'{claim}': '{commit}' is no commit");
        let day = result.day.as_ref().unwrap_or(day);
        let is_day = day.len() == 10 && day.split('-').all(|part| part.parse::<u16>().is_ok());
        ensure!(is_day, "'{claim}': '{day}' is no day, such as 2026-11-22");
    }
    Ok(measurement)
}

fn page(measurements: &[(String, Measurement)]) -> String {
    let mut page = format!(
        "{HEAD}\n| claim | measured | goal | holds | command | commit |\n|---|---|---|---|---|---|\n"
    );
    let (mut missed, mut commands) = (String::new(), String::new());
    for (file, measurement) in measurements {
        let name = short(file);
        for Row { claim, measured, goal, holds, note, commit, .. } in &measurement.result {
            let goal = goal.as_deref().unwrap_or("-");
            let holds = holds.map_or("-", |holds| if holds { "yes" } else { "**no**" });
            let commit = commit.as_ref().unwrap_or(&measurement.commit);
            _ = writeln!(
                page,
                "| {claim} | {measured} | {goal} | {holds} | [{name}](results/{file}) | {commit} |"
            );
            if let Some(note) = note {
                missed += &wrapped(&format!("- **{claim}** ({measured}, goal: {goal}). {note}"), "  ");
            }
        }
        let Measurement { command, commit, day, machine, result, .. } = measurement;
        let mut by_day: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in result {
            let of_day = by_day.entry(row.day.as_ref().unwrap_or(day)).or_default();
            of_day.insert(row.commit.as_ref().unwrap_or(commit));
        }
        let by_day = by_day.into_iter().map(|(day, commits)| {
            let commits: Vec<&str> = commits.into_iter().collect();
            format!("{} ({day})", commits.join(", "))
        });
        let at = by_day.collect::<Vec<_>>().join("; ");
        commands += &wrapped(&format!("- **{name}**: `{command}`, at {at}. {machine}"), "  ");
    }
    page += "\n## Goals that are missed\n\n";
    page += if missed.is_empty() { "None.\n" } else { &missed };
    page += "\n## The commands\n\n";
    page + &commands
}

/// A file's name without its extension, and without the number that gives its place.
fn short(file: &str) -> &str {
    let name = file.strip_suffix(".toml").unwrap_or(file);
    name.trim_start_matches(|sign: char| sign.is_ascii_digit() || sign == '-')
}

/// A paragraph in lines, those after the first with an indent.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &line;
            lines.push('\n');
            line = format!("{indent}{word}");
        } else {
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "command = 'make demo'\ncommit = '8ce6179'\nday = '2026-11-21'\nmachine = 'A guest.'\n\
                        note = 'It counts seconds.'\n[[result]]\nclaim = 'it is fast'\nmeasured = '2 s'\ngoal = 'at most 1 s'\nholds = false\n\
                        note = 'It is slow.'\n\
                        [[result]]\nclaim = 'it works'\nmeasured = 'it does'\ncommit = '1234567'\n";

    #[test]
    fn the_page_has_a_row_for_each_result_and_a_reason_for_each_goal_that_is_missed() {
        let page = page(&[("10-demo.toml".to_owned(), parse(FILE).unwrap())]);
        for line in [
            "| it is fast | 2 s | at most 1 s | **no** | [demo](results/10-demo.toml) | 8ce6179 |",
            "| it works | it does | - | - | [demo](results/10-demo.toml) | 1234567 |",
            "- **it is fast** (2 s, goal: at most 1 s). It is slow.",
            "- **demo**: `make demo`, at 1234567, 8ce6179 (2026-11-21). A guest.",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}\n{page}");
        }
    }

    #[test]
    fn files_that_say_too_little_or_too_much_are_refused() {
        let refused = |old: &str, new: &str| {
            assert!(FILE.contains(old), "{old}");
            parse(&FILE.replacen(old, new, 1)).err().map(|error| format!("{error:#}")).expect(new)
        };
        assert!(refused("note = 'It is slow.'", "").contains("has a note"));
        assert!(refused("holds = false\n", "").contains("holds or does not"));
        assert!(refused("8ce6179", "HEAD").contains("no commit"));
        assert!(refused("2026-11-21", "yesterday").contains("no day"));
        assert!(refused("it works", &"x".repeat(61)).contains("61 characters"));
        assert!(refused("claim = 'it works'", "clam = 'it works'").contains("clam"));
        assert!(refused("day = '2026-11-21'\n", "").contains("day"));
    }

    #[test]
    fn paragraphs_are_wrapped() {
        let lines = wrapped(&"word ".repeat(40), "  ");
        assert_eq!(lines.lines().map(str::len).collect::<Vec<_>>(), [109, 91]);
    }
}
