//! This terminal, handed to a program in a guest.

use super::super::{Exit, exit};
use nodewise_rig::Terminal;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ctrl-], as in telnet: everything else is the guest's.
const END_KEY: u8 = 0x1d;

/// The keys and the size of this terminal; the key that ends the guest raises `stop`.
pub fn open(stop: &Arc<AtomicBool>) -> anyhow::Result<Terminal> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let message = "--terminal: standard input and output are not a terminal".into();
        return Err(Exit { code: exit::USAGE, message }.into());
    }
    let size = tcgetwinsize(io::stdout())?;
    let keys = Box::new(Keys { stop: Arc::clone(stop) });
    Ok(Terminal { keys, rows: size.ws_row, columns: size.ws_col })
}

struct Keys {
    stop: Arc<AtomicBool>,
}

impl Read for Keys {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Past the buffer of std's stdin, which has a lock that nobody else needs.
        let count = rustix::io::read(io::stdin(), &mut *buffer)?;
        match buffer[..count].iter().position(|&key| key == END_KEY) {
            Some(end) => {
                self.stop.store(true, Ordering::Relaxed);
                Ok(end)
            }
            None => Ok(count),
        }
    }
}

/// The terminal in raw mode, until dropped.
pub struct Raw(Termios);

impl Raw {
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
