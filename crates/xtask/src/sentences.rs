//! The sentences and the cells of comments and pages, each with its place.

use std::path::Path;

/// One sentence, joined over its lines.
#[derive(Debug)]
pub struct Sentence {
    /// Its first and last line, counted from 1.
    pub lines: (usize, usize),
    pub text: String,
    /// Its length. Code in backquotes is one word, and signs that stand alone are none.
    pub words: usize,
}

/// The sentences of a file, and its tables' cells, each with its line.
#[derive(Debug, Default)]
pub struct Prose {
    pub sentences: Vec<Sentence>,
    pub cells: Vec<(usize, String)>,
}

/// Words that end in a full stop within a sentence.
const ABBREVIATIONS: [&str; 9] = ["e.g.", "i.e.", "al.", "cf.", "vs.", "Fig.", "fig.", "pp.", "ca."];

pub fn extension(path: &str) -> &str {
    Path::new(path).extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// The text of a line's comment, if it is nothing else; in a page, the line.
pub fn comment<'a>(name: &str, line: &'a str) -> Option<&'a str> {
    let begun = line.trim_start();
    let comment = match extension(name) {
        "md" => return Some(line).filter(|line| !line.starts_with("    ")),
        "rs" => begun.strip_prefix("//").map(|comment| comment.strip_prefix(['/', '!']).unwrap_or(comment)),
        // The lines of a comment in C begin with a star.
        _ => ["//", "/*", "* "].iter().find_map(|begin| begun.strip_prefix(begin)),
    }?;
    Some(comment.strip_prefix(' ').unwrap_or(comment))
}

/// All prose of a file of the given name: code in fences, headings and targets of links left out.
pub fn prose(name: &str, text: &str) -> Prose {
    let (mut prose, mut paragraph, mut in_code, mut kind) = (Prose::default(), Vec::new(), false, "");
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let comment = comment(name, line);
        // Comments of another kind, such as that of an item after that of its module, begin anew.
        let kind_now = line.trim_start().get(..3).unwrap_or_default();
        let begins_anew = extension(name) == "rs" && kind_now != kind;
        kind = kind_now;
        let words = comment.unwrap_or_default().trim().trim_end_matches("*/").trim_end();
        let is_fence = words.starts_with("```");
        in_code ^= is_fence;
        let is_link = words.starts_with('[') && words.contains("]: ");
        let apart = in_code || is_fence || is_link || words.is_empty() || words.starts_with(['#', '|', '<']);
        let item = item(words);
        if begins_anew || apart || item.is_some() {
            prose.take(&mut paragraph);
        }
        if words.starts_with('|') && !in_code {
            prose.row(at, words);
        } else if !apart {
            paragraph.extend(item.unwrap_or(words).split_whitespace().map(|word| (at, word)));
        }
    }
    prose.take(&mut paragraph);
    prose
}

/// The text of an item of a list.
fn item(line: &str) -> Option<&str> {
    let numbered = line.trim_start_matches(|sign: char| sign.is_ascii_digit());
    let mark = if numbered.len() < line.len() { ". " } else { "- " };
    numbered.strip_prefix(mark).or_else(|| line.strip_prefix("* "))
}

impl Prose {
    /// Cuts a paragraph, of words with their lines, into sentences.
    fn take(&mut self, paragraph: &mut Vec<(usize, &str)>) {
        let (mut begun, mut words, mut in_code) = (0, 0, false);
        for (at, &(_, word)) in paragraph.iter().enumerate() {
            let was_in_code = in_code;
            in_code ^= word.matches('`').count() % 2 == 1;
            words += usize::from(
                !was_in_code && word.contains(|sign: char| sign.is_alphanumeric() || sign == '`'),
            );
            let bare = word.trim_end_matches([')', '"', '*', '_', '\'']);
            let ends = bare.ends_with(['.', '?', '!'])
                && !in_code
                && !ABBREVIATIONS.contains(&bare.trim_start_matches(['(', '"']));
            if ends || at + 1 == paragraph.len() {
                let sentence = &paragraph[begun..=at];
                self.sentences.push(Sentence {
                    lines: (sentence[0].0, sentence[sentence.len() - 1].0),
                    text: sentence.iter().map(|&(_, word)| word).collect::<Vec<_>>().join(" "),
                    words,
                });
                (begun, words) = (at + 1, 0);
            }
        }
        paragraph.clear();
    }

    /// Takes a table's row apart, in which a link counts as its text.
    fn row(&mut self, at: usize, row: &str) {
        let mut in_code = false;
        // A bar in code, or behind a backslash, ends no cell.
        let mut cell = String::new();
        let mut before = ' ';
        for sign in row.chars().skip(1) {
            in_code ^= sign == '`';
            if sign == '|' && !in_code && before != '\\' {
                let text = shown(cell.trim());
                // Cells between head and body have no letter.
                if text.contains(|sign| !matches!(sign, '-' | ':')) {
                    self.cells.push((at, text));
                }
                cell.clear();
            } else {
                cell.push(sign);
            }
            before = sign;
        }
    }
}

/// A cell as it is shown: without the targets of its links.
fn shown(cell: &str) -> String {
    let mut pieces = cell.split("](");
    let first = pieces.next().unwrap_or_default().to_owned();
    let behind = pieces.map(|piece| piece.split_once(')').map_or(piece, |(_, behind)| behind));
    behind.fold(first, |shown, piece| shown + piece).replace('[', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(name: &str, text: &str) -> Vec<(usize, usize, String)> {
        let found = prose(name, text).sentences;
        found.into_iter().map(|sentence| (sentence.lines.0, sentence.lines.1, sentence.text)).collect()
    }

    #[test]
    fn a_sentence_goes_over_lines_and_ends_with_its_paragraph() {
        let page = "# Head\n\nOne is\nhere. Two, e.g. this,\nis\n\nthere\n- item (see 1.5.)\n  goes on\n1. next? Yes!\n\
                    ```\ncode. Code\n```\n    more code\n[a]: there\n";
        let expected = [
            (3, 4, "One is here."),
            (4, 5, "Two, e.g. this, is"),
            (7, 7, "there"),
            (8, 8, "item (see 1.5.)"),
            (9, 9, "goes on"),
            (10, 10, "next?"),
            (10, 10, "Yes!"),
        ];
        assert_eq!(sentences("a.md", page), expected.map(|(a, b, text)| (a, b, text.to_owned())));
    }

    #[test]
    fn comments_of_rust_and_c_are_apart_from_code_and_from_each_other() {
        let rust = "//! Module\n/// item goes\n/// on. `a. b` stays\nfn f() {} // not this\n// Inner";
        let texts = |name, text| -> Vec<String> {
            sentences(name, text).into_iter().map(|(_, _, text)| text).collect()
        };
        assert_eq!(texts("a.rs", rust), ["Module", "item goes on.", "`a. b` stays", "Inner"]);
        assert_eq!(texts("a.h", "/* One\n * two */\nint a;\n// three"), ["One two", "three"]);
    }

    #[test]
    fn code_is_one_word_and_a_lone_sign_is_none() {
        assert_eq!(prose("a.md", "Run `cargo test -p x`, 1 + 2 - now.").sentences[0].words, 5);
    }

    #[test]
    fn cells_are_apart_and_links_count_as_shown() {
        let cells = prose("a.md", "| a | `b|c` |\n|---|:--|\n| [d](e/f.md) of g | |").cells;
        assert_eq!(cells, [(1, "a".into()), (1, "`b|c`".into()), (3, "d of g".into())]);
        assert_eq!(prose("a.rs", "/// | a |\nlet x = a | b;").cells.len(), 1);
    }
}
