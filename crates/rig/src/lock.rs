//! One guest at a time: software emulation needs the whole machine, so tests queue up for it.

use crate::{Error, ErrorKind};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Held until dropped, or until the process ends in whatever way.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for this user's other exclusive guests, of any process, to end, or for `stop`.
    pub fn wait(stop: &AtomicBool) -> Result<Self, Error> {
        let user = rustix::process::geteuid().as_raw();
        // Not in $TMPDIR: all have to agree on the file.
        let path = PathBuf::from(format!("/tmp/nodewise-rig-{user}.lock"));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| Error::file(ErrorKind::System, "open", &path, error))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(Error::file(ErrorKind::System, "lock", &path, error.into())),
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Stopped, "stopped while another guest was running"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}
