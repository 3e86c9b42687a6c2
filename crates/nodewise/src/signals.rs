//! Signals, as the one who started us meant them.

use nodewise_sys::is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Picks the signals that are not ignored. A handler would undo that, and for programs that we start as well.
/// `nohup` has `SIGHUP` ignored, and a shell without job control has `SIGINT` ignored by what it starts with
/// `&`.
pub fn heeded(signals: impl IntoIterator<Item = i32>) -> Vec<i32> {
    signals.into_iter().filter(|&signal| !is_ignored(signal)).collect()
}

/// The signals that end a command. `SIGINT` always is one, so that scripts can end what they started with
/// `&`.
pub fn ending() -> Vec<i32> {
    let mut signals = heeded([SIGHUP]);
    signals.extend([SIGINT, SIGTERM]);
    signals
}
