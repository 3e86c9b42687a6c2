//! Files for `docs/results`, of which `cargo xtask results` makes the page.

use anyhow::{Context as _, ensure};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Writes what a command has measured: each result is a claim and its figures, of at most 60 characters.
///
/// Commit and day are those of now, and the load is of the last minute. A person adds goals, and whether they
/// hold.
///
/// # Errors
///
/// Git or date cannot be run, or the file cannot be written.
pub fn write(path: &Path, command: &str, place: &str, results: &[(String, String)]) -> anyhow::Result<()> {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        let output = output.with_context(|| format!("cannot run {program}"))?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (commit, day) = (said("git", &["rev-parse", "--short=7", "HEAD"])?, said("date", &["+%F"])?);
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no"])?;
    let load = std::fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    let machine = format!("{place}, at a load of {load} in the last minute.");
    // TOML reads strings as Rust writes them, if they have no control characters.
    let mut text =
        format!("command = {command:?}\ncommit = {commit:?}\nday = {day:?}\nmachine = {machine:?}\n");
    if !changed.is_empty() {
        text += "note = \"The tree had changes beside the commit.\"\n";
    }
    for (claim, measured) in results {
        write!(text, "\n[[result]]\nclaim = {claim:?}\nmeasured = {measured:?}\n")?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_commit_the_day_and_every_figure() {
        // Sources without their history have no commit.
        if !Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git").exists() {
            return;
        }
        let path = std::env::temp_dir().join(format!("nodewise-results-{}.toml", std::process::id()));
        let results = [("it \"works\"".to_owned(), "25.0 %".to_owned()), ("more".to_owned(), "2".to_owned())];
        let written = write(&path, "make demo", "A guest", &results);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        _ = std::fs::remove_file(&path);
        written.unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command = \"make demo\"");
        assert!(lines[1].starts_with("commit = \"") && lines[1].len() >= 18, "{text}");
        assert!(lines[2].starts_with("day = \"20") && lines[2].len() == 18, "{text}");
        assert!(lines[3].starts_with("machine = \"A guest, at a load of "), "{text}");
        assert!(
            text.contains("\n[[result]]\nclaim = \"it \\\"works\\\"\"\nmeasured = \"25.0 %\"\n"),
            "{text}"
        );
        assert_eq!(text.matches("[[result]]").count(), 2);
    }
}
