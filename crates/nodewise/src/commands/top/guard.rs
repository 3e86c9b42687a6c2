//! The end of a screen that cannot end itself.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How soon the end is noticed, in nanoseconds.
const SLICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Time for the screen to end itself, and for the terminal to be restored.
const GRACE: Duration = Duration::from_millis(500);

/// Ends this process soon after a signal or the terminal's end, whatever the screen does meanwhile. Crossterm
/// reads again and again from a terminal that has ended. A write may wait for a terminal that takes nothing.
pub fn start(end: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        while !end.load(Ordering::Relaxed) && !has_hung_up() {}
        end.store(true, Ordering::Relaxed);
        std::thread::sleep(GRACE);
        std::thread::spawn(ratatui::try_restore);
        std::thread::sleep(GRACE);
        std::process::exit(0);
    });
}

/// Whether a terminal in use ends within a slice.
fn has_hung_up() -> bool {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    // The kernel always tells of an end.
    let mut terminals = vec![PollFd::new(&output, PollFlags::empty())];
    if input.is_terminal() {
        terminals.push(PollFd::new(&input, PollFlags::empty()));
    }
    // A signal ends the waiting, which then goes on.
    let _ = poll(&mut terminals, Some(&SLICE));
    terminals.iter().any(|terminal| terminal.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}
