//! Rectangles of text that stand below and beside each other, and boxes around them.

use anstyle::Style;
use std::fmt::Write;

/// Text of one style.
#[derive(Clone, Debug)]
struct Span {
    style: Style,
    text: String,
}

/// One line of spans. Every character used is one column wide.
#[derive(Clone, Debug, Default)]
pub struct Line(Vec<Span>);

impl Line {
    pub fn new(style: Style, text: impl Into<String>) -> Self {
        Self(vec![Span { style, text: text.into() }])
    }

    pub fn plain(text: impl Into<String>) -> Self {
        Self::new(Style::new(), text)
    }

    pub fn then(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push(Span { style, text: text.into() });
        self
    }

    pub fn width(&self) -> usize {
        self.0.iter().map(|span| span.text.chars().count()).sum()
    }

    fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn pad_to(&mut self, width: usize) {
        let missing = width.saturating_sub(self.width());
        self.append(Self::plain(" ".repeat(missing)));
    }
}

/// Lines on top of each other.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub lines: Vec<Line>,
}

impl Block {
    pub fn width(&self) -> usize {
        self.lines.iter().map(Line::width).max().unwrap_or(0)
    }

    pub fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    pub fn below(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    /// Lays boxes out from left to right, as many in a row as fit. All are as wide as the widest unless that
    /// costs too many rows, and those of a row equally high.
    pub fn flow(boxes: Vec<Boxed>, width: usize, edge: Style, glyphs: &Glyphs) -> Self {
        let widest = boxes.iter().map(Boxed::width).max().unwrap_or(0);
        let even = rows(boxes.iter().map(|_| widest), width);
        let natural = rows(boxes.iter().map(Boxed::width), width);
        let columns_fit = even.len() <= natural.len() + natural.len() / 4;
        let (rows, least) = if columns_fit { (even, widest) } else { (natural, 0) };
        let mut boxes = boxes.into_iter();
        let mut all = Self::default();
        for len in rows {
            let row: Vec<Boxed> = boxes.by_ref().take(len).collect();
            let height = row.iter().map(|boxed| boxed.body.lines.len()).max().unwrap_or(0);
            all.below(Self::beside(
                row.into_iter().map(|boxed| boxed.draw(least, height, edge, glyphs)).collect(),
            ));
        }
        all
    }

    fn beside(blocks: Vec<Self>) -> Self {
        let height = blocks.iter().map(|block| block.lines.len()).max().unwrap_or(0);
        let mut lines = vec![Line::default(); height];
        for (place, block) in blocks.into_iter().enumerate() {
            let width = block.width();
            let mut source = block.lines.into_iter();
            for line in &mut lines {
                if place > 0 {
                    line.append(Line::plain(" "));
                }
                let mut piece = source.next().unwrap_or_default();
                piece.pad_to(width);
                line.append(piece);
            }
        }
        Self { lines }
    }

    /// The text with escape sequences for its styles, without spaces at line ends.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let mut spans = line.0.clone();
            while let Some(last) = spans.last_mut() {
                last.text.truncate(last.text.trim_end().len());
                if !last.text.is_empty() {
                    break;
                }
                spans.pop();
            }
            for Span { style, text: words } in spans {
                let _ = write!(text, "{style}{words}{style:#}");
            }
            text.push('\n');
        }
        text
    }
}

/// How many boxes of these widths, one column apart, go into each row.
fn rows(widths: impl Iterator<Item = usize>, width: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = Vec::new();
    let mut used = 0;
    for needed in widths {
        match rows.last_mut() {
            Some(len) if used + 1 + needed <= width => {
                used += 1 + needed;
                *len += 1;
            }
            _ => {
                used = needed;
                rows.push(1);
            }
        }
    }
    rows
}

/// A block in a box with a title in its upper edge.
pub struct Boxed {
    pub title: Line,
    pub body: Block,
}

impl Boxed {
    /// Its width with the edges.
    fn width(&self) -> usize {
        self.body.width().max(self.title.width() + 1) + 4
    }

    /// Draws the box at least so wide, and with at least so many lines in it.
    fn draw(self, width: usize, height: usize, edge: Style, glyphs: &Glyphs) -> Block {
        let inner = self.width().max(width) - 4;
        let rest = inner - self.title.width();
        let mut top = Line::new(edge, format!("{} ", glyphs.top_left));
        top.append(self.title);
        let mut lines =
            vec![top.then(edge, format!(" {}{}", glyphs.horizontal.repeat(rest), glyphs.top_right))];
        let mut body = self.body.lines;
        body.resize_with(body.len().max(height), Line::default);
        for mut line in body {
            line.pad_to(inner);
            let mut framed = Line::new(edge, format!("{} ", glyphs.vertical));
            framed.append(line);
            lines.push(framed.then(edge, format!(" {}", glyphs.vertical)));
        }
        let bottom = glyphs.horizontal.repeat(inner + 2);
        lines.push(Line::new(edge, format!("{}{bottom}{}", glyphs.bottom_left, glyphs.bottom_right)));
        Block { lines }
    }
}

/// The characters boxes are drawn with.
pub struct Glyphs {
    horizontal: &'static str,
    vertical: &'static str,
    top_left: &'static str,
    top_right: &'static str,
    bottom_left: &'static str,
    bottom_right: &'static str,
    /// The sign in `8 × 32 KiB`.
    pub times: &'static str,
}

/// For UTF-8 locales.
pub const BOX_DRAWING: Glyphs = Glyphs {
    horizontal: "─",
    vertical: "│",
    top_left: "┌",
    top_right: "┐",
    bottom_left: "└",
    bottom_right: "┘",
    times: "×",
};

/// For all others.
pub const ASCII: Glyphs = Glyphs {
    horizontal: "-",
    vertical: "|",
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    times: "x",
};

/// Breaks words into lines of at most `width` columns, where no word is longer.
pub fn wrap(words: impl IntoIterator<Item = String>, separator: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in words {
        let needed = word.chars().count();
        match lines.last_mut() {
            Some(line) if used + separator.chars().count() + needed <= width => {
                line.push_str(separator);
                line.push_str(&word);
                used += separator.chars().count() + needed;
            }
            _ => {
                used = needed;
                lines.push(word);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(title: &str, lines: &[&str]) -> Boxed {
        let lines = lines.iter().map(|line| Line::plain(*line)).collect();
        Boxed { title: Line::plain(title), body: Block { lines } }
    }

    #[test]
    fn boxes_in_a_row_are_alike_in_size() {
        let boxes = vec![boxed("a", &["one", "two"]), boxed("title", &["x"]), boxed("c", &[])];
        let text = Block::flow(boxes, 22, Style::new(), &ASCII).render();
        let drawn = "\
+ a -----+ + title -+
| one    | | x      |
| two    | |        |
+--------+ +--------+
+ c -----+
+--------+
";
        assert_eq!(text, drawn);
    }

    #[test]
    fn boxes_keep_their_widths_where_that_saves_a_row() {
        let boxes = vec![boxed("a", &["a long line"]), boxed("b", &[]), boxed("c", &[])];
        let text = Block::flow(boxes, 31, Style::new(), &ASCII).render();
        assert_eq!(text.lines().next().unwrap(), "+ a ----------+ + b -+ + c -+");
    }

    #[test]
    fn words_wrap_at_the_width() {
        let words = ["one", "two", "three"].map(str::to_owned);
        assert_eq!(wrap(words, ", ", 8), ["one, two", "three"]);
    }
}
