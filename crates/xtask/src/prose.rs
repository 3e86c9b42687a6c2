//! The form of prose: the width of all comments and pages, and new sentences, cells and subjects.

use crate::sentences::{Prose, Sentence, comment, extension, prose};
use anyhow::{Context, bail, ensure};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Characters in a line. Tables, code and single links may be wider.
const WIDEST: usize = 110;

/// Words in a sentence.
const LONGEST: usize = 25;

/// Characters in a cell of a table.
const WIDEST_CELL: usize = 60;

/// Characters in a commit's subject.
const WIDEST_SUBJECT: usize = 72;

/// Sentences that begin with one of these make their reader wait for the subject.
const RIDDLES: [&str; 6] = ["What", "Who", "Whom", "Whoever", "Of", "Those"];

const KINDS: [&str; 6] = ["rs", "md", "c", "cpp", "h", "hpp"];

/// Checks the width of all comments and pages, and whatever is new since a commit.
///
/// Without a commit, new is what the branch has added to origin/main, or else the last commit. A clone that
/// knows neither is checked for width only.
pub fn check(since: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for path in sources(&root())? {
        let name = path.strip_prefix(root())?.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        found.extend(too_wide(&name, &text));
    }
    let since = match since {
        Some(since) if since.starts_with('-') => bail!("'{since}' is no commit"),
        Some(since) => Some(since.to_owned()),
        None => git(&["merge-base", "HEAD", "origin/main"])
            .or_else(|_| git(&["rev-parse", "--verify", "--quiet", "HEAD~1^{commit}"]))
            .ok(),
    };
    if let Some(since) = since.as_deref().map(str::trim) {
        for (name, lines) in new_lines(since)? {
            let text =
                std::fs::read_to_string(root().join(&name)).with_context(|| format!("cannot read {name}"))?;
            found.extend(faults(&name, &prose(&name, &text), |line| lines.contains(&line)));
        }
        // A tree without history, such as the empty one, is a base for lines only.
        let subjects = git(&["log", "--no-merges", "--format=%h %s", &format!("{since}..HEAD")]);
        found.extend(subjects.iter().flat_map(|subjects| subjects.lines()).filter_map(long_subject));
    } else {
        eprintln!("prose: there is no earlier commit here, so that only the width of lines is checked");
    }
    for line in &found {
        eprintln!("{line}");
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of Rust, C and C++, and pages, below a directory, without those that are built or hidden.
fn sources(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if name.as_encoded_bytes().starts_with(b".") || name == "target" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            found.extend(sources(&path)?);
        } else if path.to_str().is_some_and(|path| KINDS.contains(&extension(path))) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new("git").args(arguments).current_dir(root()).output().context("cannot run git")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {errors}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The lines of each file, counted from 1, that are new since a commit, committed or not.
fn new_lines(since: &str) -> anyhow::Result<BTreeMap<String, BTreeSet<usize>>> {
    let files: Vec<String> = KINDS.iter().map(|kind| format!("*.{kind}")).collect();
    let with_files = |arguments: &[&'static str], since: &[&str]| -> anyhow::Result<String> {
        let files = files.iter().map(String::as_str);
        git(&arguments.iter().chain(since).copied().chain(["--"]).chain(files).collect::<Vec<_>>())
    };
    let diff = with_files(&["diff", "--unified=0", "--no-color", "--no-renames"], &[since])?;
    let gone = gone(&diff);
    let mut new = added(&diff, &gone);
    // Git tells no difference of files that it was not told of.
    for name in with_files(&["ls-files", "--others", "--exclude-standard"], &[])?.lines() {
        let text =
            std::fs::read_to_string(root().join(name)).with_context(|| format!("cannot read {name}"))?;
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !gone.contains(line)).map(|(at, _)| at);
        new.insert(name.to_owned(), lines.collect());
    }
    Ok(new)
}

/// The lines that a difference takes away. One of them that is added elsewhere has moved, and is not new.
fn gone(diff: &str) -> HashSet<&str> {
    diff.lines().filter(|line| !line.starts_with("--- ")).filter_map(|line| line.strip_prefix('-')).collect()
}

/// The lines that a difference adds, without those that have moved.
fn added(diff: &str, gone: &HashSet<&str>) -> BTreeMap<String, BTreeSet<usize>> {
    let (mut added, mut name, mut at) = (BTreeMap::<_, BTreeSet<_>>::new(), "", 0);
    for line in diff.lines() {
        if let Some(file) = line.strip_prefix("+++ ") {
            name = file.strip_prefix("b/").unwrap_or(file);
        } else if let Some(place) = line.strip_prefix("@@ ") {
            let new = place.split('+').nth(1).unwrap_or_default();
            at = new.split([',', ' ']).next().and_then(|first| first.parse().ok()).unwrap_or(0);
        } else if let Some(text) = line.strip_prefix('+') {
            if !gone.contains(text) {
                added.entry(name.to_owned()).or_default().insert(at);
            }
            at += 1;
        }
    }
    added
}

fn too_wide(name: &str, text: &str) -> Vec<String> {
    let (mut found, mut in_code) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = comment(name, line) else { continue };
        let is_fence = prose.trim_start().starts_with("```");
        in_code ^= is_fence;
        let is_table = prose.trim_start().starts_with('|');
        let width = line.chars().count();
        if width > WIDEST && !in_code && !is_fence && !is_table && prose.trim().contains(' ') {
            found.push(format!("{name}:{}: {width} characters, of at most {WIDEST}", at + 1));
        }
    }
    found
}

/// All that is wrong with sentences of which a line is new, and with new cells.
fn faults(name: &str, prose: &Prose, is_new: impl Fn(usize) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for sentence in &prose.sentences {
        let (first, last) = sentence.lines;
        if !(first..=last).any(&is_new) {
            continue;
        }
        let Sentence { text, words, .. } = sentence;
        if let Some(word) = riddle(text) {
            found.push(format!("{name}:{first}: begin with the subject, not with '{word}': {text}"));
        }
        if *words > LONGEST {
            found.push(format!("{name}:{first}: {words} words, of at most {LONGEST}: {text}"));
        }
    }
    for (at, cell) in prose.cells.iter().filter(|(at, _)| is_new(*at)) {
        let width = cell.chars().count();
        if width > WIDEST_CELL {
            found
                .push(format!("{name}:{at}: a cell of {width} characters, of at most {WIDEST_CELL}: {cell}"));
        }
        if let Some(word) = riddle(cell).filter(|_| cell.contains(' ')) {
            found.push(format!("{name}:{at}: begin with the subject, not with '{word}': {cell}"));
        }
    }
    found
}

/// The word that makes the reader wait, if the sentence opens with one. Questions may.
fn riddle(sentence: &str) -> Option<&str> {
    let mut words = sentence
        .trim_start_matches(|sign: char| !sign.is_alphanumeric() && sign != '`')
        .split(|sign: char| !sign.is_alphanumeric() && sign != '`');
    let first = words.next()?;
    let is_riddle =
        RIDDLES.contains(&first) || first == "Where" && words.any(|word| ["is", "are"].contains(&word));
    Some(first).filter(|_| is_riddle && !sentence.ends_with('?'))
}

/// A complaint about an abbreviated commit and its subject.
fn long_subject(commit: &str) -> Option<String> {
    let (commit, subject) = commit.split_once(' ')?;
    let width = subject.chars().count();
    (width > WIDEST_SUBJECT).then(|| {
        format!("commit {commit}: a subject of {width} characters, of at most {WIDEST_SUBJECT}: {subject}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_prose_is_found_and_code_tables_and_links_are_not() {
        let words = "word ".repeat(30);
        let text = format!(
            "// {words}\nlet a = 1; // {words}\n/// | {words}|\n/// ```\n/// {words}\n/// ```\n//! {}\n    //! {words}",
            "x".repeat(200)
        );
        let lines: Vec<String> = too_wide("a.rs", &text);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("a.rs:1: ") && lines[1].starts_with("a.rs:8: "), "{lines:?}");
        assert_eq!(too_wide("a.md", &format!("{words}\n    {words}\n| {words}")).len(), 1);
        assert_eq!(
            too_wide("a.rs", &format!("// {}", "é ".repeat(50))).len(),
            0,
            "characters count, not bytes"
        );
    }

    #[test]
    fn wide_comments_of_headers_are_found_and_code_is_not() {
        let words = "word ".repeat(30);
        let header =
            format!("/* {words}\n * {words} */\n    // {words}\n*at = {words}\nint a; /* {words} */");
        let lines = too_wide("a.h", &header);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!((1..=3).all(|at| lines[at - 1].starts_with(&format!("a.h:{at}: "))), "{lines:?}");
        assert_eq!(too_wide("a.hpp", &header).len(), 3);
        assert_eq!(too_wide("a.rs", &header).len(), 1);
    }

    #[test]
    fn lines_are_new_where_they_were_added_and_did_not_move() {
        let diff = "--- a/a.md\n+++ b/a.md\n@@ -3,2 +3 @@ head\n-moved\n-gone\n+come\n@@ -9,0 +8,2 @@\n+more\n+still more\n\
                    --- /dev/null\n+++ b/b.rs\n@@ -0,0 +1,2 @@\n+moved\n+// new\n";
        let new = added(diff, &gone(diff));
        assert_eq!(new["a.md"], BTreeSet::from([3, 8, 9]));
        assert_eq!(new["b.rs"], BTreeSet::from([2]));
    }

    fn all(name: &str, text: &str) -> Vec<String> {
        faults(name, &prose(name, text), |_| true)
    }

    #[test]
    fn sentences_that_make_one_wait_are_found_and_questions_are_not() {
        let comments = "// It is. What is there stays.\n//\n/// Pages move. Of\n/// these, some return.\n\
                        fn main() {} // What is code";
        let found = all("a.rs", comments);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:1: ") && found[1].starts_with("a.rs:3: "), "{found:?}");
        assert_eq!(all("a.c", "/* Whoever calls it waits.\n * Those wait */").len(), 2);
        assert_eq!(all("b.md", "- **Who** makes work\n- What works, of course?\n- Whole pages\n").len(), 1);
        assert_eq!(all("b.md", "Where it lies is unknown. Where they run, pages follow.").len(), 1);
        assert_eq!(all("b.md", "| What | What they ask |\n|---|---|\n| Of two | it |").len(), 2);
    }

    #[test]
    fn sentences_of_more_than_25_words_are_found_over_the_ends_of_lines() {
        let words = |count| "word ".repeat(count);
        assert_eq!(all("a.md", &format!("{}\n{}.", words(13), words(12))).len(), 0);
        let found = all("a.md", &format!("Short. {}\n{}.", words(13), words(13)));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.md:1: 26 words"), "{found:?}");
        assert_eq!(all("a.md", &format!("- {}\n- {}", words(20), words(20))).len(), 0);
    }

    #[test]
    fn a_sentence_counts_if_any_of_its_lines_is_new() {
        let text = format!("{}\nlast\n\nOf old", "word ".repeat(30));
        let count = |new: usize| faults("a.md", &prose("a.md", &text), |line| line == new).len();
        assert_eq!([1, 2, 3, 4].map(count), [1, 1, 0, 1]);
    }

    #[test]
    fn cells_and_subjects_have_a_width() {
        let wide = "x".repeat(61);
        let found = all("a.md", &format!("| {wide} | b |\n|---|---|\n| {} | [b]({wide}) |", &wide[1..]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.md:1: a cell of 61"), "{found:?}");
        assert_eq!(long_subject(&format!("1234567 {}", &wide[..60])), None);
        assert!(long_subject(&format!("1234567 {} {}", &wide[..40], &wide[..32])).is_some());
    }
}
