//! The abilities of the terminal.

use std::env;
use std::io::IsTerminal;

/// The width of the terminal standard output is; `COLUMNS`, or 80, if it is none.
pub fn width() -> usize {
    let set = || env::var("COLUMNS").ok()?.parse().ok();
    let asked = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    // Below 40 nothing can be laid out; a pseudo-terminal nobody sized says 0.
    asked.filter(|&width| width > 0).or_else(set).unwrap_or(80).max(40)
}

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether the locale's characters are UTF-8: the first of these variables that says something decides
/// (setlocale(3)).
pub fn is_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| env::var(name).ok());
    let locale = locale.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
