//! One guest at a time: software emulation needs the whole machine, so tests queue up for it.

use crate::{Error, ErrorKind};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Held until dropped, or until the process ends in whatever way.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for this user's other exclusive guests, of any process, to end, or for `stop`. Calls `waiting`
    /// first if there is one.
    pub fn wait(stop: &AtomicBool, waiting: impl FnMut()) -> Result<Self, Error> {
        Self::wait_at(&path(".lock"), stop, waiting)
    }

    /// Another lock of this user's, by a name of its own; none where somebody holds it.
    pub fn of(name: &str) -> Option<Self> {
        let file = open(&path(&format!("{name}.lock"))).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Self { _file: file })
    }

    fn wait_at(path: &Path, stop: &AtomicBool, mut waiting: impl FnMut()) -> Result<Self, Error> {
        let file = open(path)?;
        for turn in 0_u64.. {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(Error::file(ErrorKind::System, "lock", path, error.into())),
            }
            if turn == 0 {
                waiting();
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Stopped, "stopped while another guest was running"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { _file: file })
    }
}

/// A file of this user's that his processes agree on, by a name of its own.
pub(crate) fn open_own(name: &str) -> Result<File, Error> {
    open(&path(name))
}

/// In a directory that only this user can write to, if there is one. All of a user's processes have to agree
/// on the file, so the environment is asked last.
fn path(name: &str) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let own = |directory: &PathBuf| {
        let metadata = fs::metadata(directory);
        metadata
            .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o022 == 0)
    };
    let of_system =
        if user == 0 { PathBuf::from("/run") } else { PathBuf::from(format!("/run/user/{user}")) };
    let of_session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directory = [Some(of_system), of_session].into_iter().flatten().find(own);
    directory.unwrap_or_else(|| "/tmp".into()).join(format!("nodewise-rig-{user}{name}"))
}

/// Whoever can open a file can hold its lock, so only this user may.
fn open(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let opened = options.open(path).and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = opened.map_err(|error| Error::file(ErrorKind::System, "open", path, error))?;
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        let why = format!("others can hold the lock {}: it is to be removed", path.display());
        return Err(Error::new(ErrorKind::System, why));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_its_user_can_hold_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = || Lock::wait_at(&path, &AtomicBool::new(false), || panic!("nobody holds it"));
        drop(lock().unwrap());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(lock().err().unwrap().to_string().starts_with("others can hold the lock "));
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(lock().is_err());
    }

    #[test]
    fn who_waits_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = Lock::wait_at(&path, &AtomicBool::new(false), || panic!("nobody holds it")).unwrap();
        let mut first = Some(first);
        let mut told = 0;
        let waiting = || {
            told += 1;
            first = None;
        };
        Lock::wait_at(&path, &AtomicBool::new(false), waiting).unwrap();
        assert_eq!(told, 1);
    }
}
