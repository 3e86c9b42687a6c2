//! The form of comments and pages: how wide their lines are, and in added lines how sentences open.

use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Characters in a line. Tables, code and single links may be wider.
const WIDEST: usize = 110;

/// Sentences that begin with one of these make their reader wait for the subject.
const RIDDLES: [&str; 5] = ["What", "Who", "Whom", "Of", "Those"];

/// Checks the width of all comments and pages, and the sentences of lines that were added since a commit.
pub fn check(since: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for path in sources(&root())? {
        let name = path.strip_prefix(root())?.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        found.extend(too_wide(&name, &text));
    }
    if let Some(since) = since {
        ensure!(!since.starts_with('-'), "'{since}' is no commit");
        let files = ["*.rs", "*.md", "*.c", "*.cpp", "*.h", "*.hpp"];
        let diff = [&["diff", "--unified=0", "--no-color", since, "--"][..], &files].concat();
        found.extend(riddles(&git(&diff)?));
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
        } else if ["rs", "md", "c", "cpp", "h", "hpp"].contains(&extension(&path)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new("git").args(arguments).current_dir(root()).output().context("cannot run git")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {errors}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The text of a line's comment, if it is nothing else; in a page, the line.
fn prose<'a>(name: &str, line: &'a str) -> Option<&'a str> {
    let begun = line.trim_start();
    let comment = match extension(Path::new(name)) {
        "md" => return Some(line).filter(|line| !line.starts_with("    ")),
        "rs" => begun.strip_prefix("//").map(|comment| comment.strip_prefix(['/', '!']).unwrap_or(comment)),
        // The lines of a comment in C begin with a star.
        _ => ["//", "/*", "* "].iter().find_map(|begin| begun.strip_prefix(begin)),
    }?;
    Some(comment.strip_prefix(' ').unwrap_or(comment))
}

fn too_wide(name: &str, text: &str) -> Vec<String> {
    let (mut found, mut in_code) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = prose(name, line) else { continue };
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

fn riddles(diff: &str) -> Vec<String> {
    let (mut found, mut name) = (Vec::new(), "");
    for line in diff.lines() {
        if let Some(file) = line.strip_prefix("+++ b/") {
            name = file;
        } else if let Some(text) = line.strip_prefix('+').and_then(|line| prose(name, line)) {
            let sentences = text.split(". ").map(|sentence| sentence.trim_start_matches(['-', '|', ' ']));
            let words = sentences.filter_map(|sentence| sentence.split([' ', ',']).next());
            for word in words.filter(|word| RIDDLES.contains(word)) {
                found.push(format!("{name}: begin with the subject, not with '{word}': {text}"));
            }
        }
    }
    found
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
    fn sentences_that_make_one_wait_are_found_where_they_were_added() {
        let diff = "+++ b/a.rs\n-// What is gone.\n+// What is there stays. It is\n+fn main() {} // What is code\n\
                    +/// Pages move. Of these, some return.\n\
                    +++ b/b.md\n+- Those that work are unknown.\n+It works, of course.\n\
                    +++ b/c.h\n+/* Who calls it waits.\n+ * Of two */\n+    * What";
        let found = riddles(diff);
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(found[2].starts_with("b.md: ") && found[3].starts_with("c.h: "), "{found:?}");
    }
}
