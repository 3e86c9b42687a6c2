//! The bar that a long command shows.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How far it has come, on a terminal and after two seconds.
pub struct Bar {
    bar: ProgressBar,
    /// Shows the bar unless the sender is gone before.
    shows: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Bar {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed}  {msg}") {
            bar.set_style(style);
        }
        let shows = std::io::stderr().is_terminal().then(|| {
            let (over, ends) = mpsc::channel();
            let bar = bar.clone();
            let show = move || {
                if ends.recv_timeout(Duration::from_secs(2)) == Err(RecvTimeoutError::Timeout) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(Duration::from_secs(1));
                }
            };
            (over, thread::spawn(show))
        });
        Self { bar, shows }
    }

    pub fn at(&self, share: f64) {
        // Shares do not always come in order.
        self.bar.set_position(self.bar.position().max((share * 1000.0) as u64));
    }

    pub fn says(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((over, shows)) = self.shows.take() {
            drop(over);
            // It does not panic.
            let _ = shows.join();
        }
        self.bar.finish_and_clear();
    }
}
