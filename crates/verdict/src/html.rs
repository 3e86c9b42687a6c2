//! The common part of pages for a browser. They load nothing, and are for light and dark screens and paper.

/// The look of a page.
pub const STYLE: &str = include_str!("style.css");

/// Text as HTML: a command may hold anything.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, character| {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
        out
    })
}
