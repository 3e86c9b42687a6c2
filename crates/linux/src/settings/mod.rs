//! Kernel settings that Nodewise changes, and how they come back.
//!
//! Before the first change of a setting its old value is written to a journal. The values are restored when
//! [`Settings`] is dropped. After `kill -9` the journal is still there: the next Nodewise that starts or ends
//! puts back what it names. Values that somebody else has set meanwhile are theirs, and stay.
//!
//! A setting whose old value cannot be written down is not changed: see [`Settings::barred`].
//!
//! Settings are the machine's, and `/run` and process ids may be a container's. One Nodewise at a time owns
//! the settings therefore by a lock on a directory of debugfs. The whole machine has that once, and only root
//! can open it. By a lock on another such directory, the others ask the owner for samples while it rests.
//! When the owner has ended, one of them may own the settings: see [`Settings::take_over`].

mod journal;

pub use journal::Changed;

use crate::{Error, ErrorKind};
use journal::Journal;
pub(crate) use journal::require_own;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Where the journal is, which settings it may name, and what their owner locks.
#[derive(Clone, Debug)]
pub struct Place {
    journal: PathBuf,
    lock: PathBuf,
    /// Locked by all together who ask the owner for samples.
    requests: PathBuf,
    settings: BTreeSet<PathBuf>,
}

impl Place {
    /// That of the live machine. `/run` is emptied at boot, just as the settings go back to their defaults.
    #[must_use]
    pub fn live() -> Self {
        let knobs = Path::new(KNOBS);
        let knobs = ["scan_size_mb", "scan_period_min_ms", "scan_period_max_ms"].map(|name| knobs.join(name));
        let others = [BALANCING, HUGE_PAGES, KHUGEPAGED_PAGES, KHUGEPAGED_SLEEP].map(PathBuf::from);
        Self::new("/run/nodewise/settings.json", LOCK, knobs.into_iter().chain(others))
    }

    /// A journal at this path, about these settings, whose owner locks this directory. Others lock
    /// `numa_balancing` in it to ask for samples.
    pub fn new(
        journal: impl Into<PathBuf>,
        lock: impl Into<PathBuf>,
        settings: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let (journal, lock) = (journal.into(), lock.into());
        let requests = lock.join("numa_balancing");
        Self { journal, lock, requests, settings: settings.into_iter().collect() }
    }

    /// Whether somebody can own the settings here.
    pub(crate) fn can_be_owned(&self) -> Result<(), Error> {
        open_lock(&self.lock).map(drop)
    }

    fn directory(&self) -> &Path {
        self.journal.parent().unwrap_or(Path::new("/"))
    }
}

/// Switches the kernel's NUMA balancing on and off.
pub const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// Says which programs get transparent huge pages.
pub const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// How long khugepaged sleeps between two scans, in milliseconds.
pub(crate) const KHUGEPAGED_SLEEP: &str =
    "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";
/// How many base pages it looks at in a scan.
pub(crate) const KHUGEPAGED_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";
/// Where the settings of the balancing's scan are.
pub(crate) const KNOBS: &str = "/sys/kernel/debug/sched/numa_balancing";

/// The directory that the owner locks: one for all mounts of debugfs.
const LOCK: &str = "/sys/kernel/debug/sched";
const DEBUGFS: &str = "/sys/kernel/debug";
/// The command that mounts it.
pub(crate) const MOUNT_DEBUGFS: &str = "mount -t debugfs none /sys/kernel/debug";

/// Kernel settings by path, with their values before Nodewise touched them.
///
/// Only one process at a time owns them, on the whole machine. Another one started meanwhile leaves the
/// settings as they are to its end: see [`Settings::is_owner`].
#[derive(Debug)]
pub struct Settings {
    place: Place,
    role: Role,
    /// The owner's lock, from the first change on.
    lock: Option<fs::File>,
    /// Another one's lock, while it asks the owner for samples.
    request: Option<fs::File>,
    /// By which the owner sees whether anybody does.
    requests: Option<fs::File>,
    originals: BTreeMap<PathBuf, String>,
    /// All values that each setting was given. One that has another was set by somebody else since.
    written: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// The right of this process to change the settings.
#[derive(Debug)]
enum Role {
    /// It may change them.
    Owner,
    /// Another Nodewise, which lives, owns them.
    Guest,
    /// Nothing more is changed, as it could not be put back.
    Barred(Error),
}

impl Settings {
    /// Opens the journal, first restoring what a killed predecessor left changed. Nothing is written before
    /// the first [`Settings::set`], so this needs no permission unless there is something to restore.
    /// Where that fails, nothing will be changed, and [`Settings::barred`] has the reason.
    #[must_use]
    pub fn open(place: Place) -> Self {
        let (originals, written) = Default::default();
        let (lock, request, requests) = (None, None, None);
        let mut settings = Self { place, role: Role::Owner, lock, request, requests, originals, written };
        if let Err(error) = settings.restore() {
            settings.role = Role::Barred(error);
        }
        settings
    }

    /// Becomes the owner, unless another one is, and learns from the journal what a killed owner had changed.
    fn claim(&mut self) -> Result<(), Error> {
        let path = &self.place.lock;
        let lock = open_lock(path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                self.role = Role::Guest;
                return Ok(());
            }
            locked => locked.map_err(|e| Error::file(path, "lock", e.into()))?,
        }
        if let Some(left) = Journal::read(&self.place)? {
            (self.originals, self.written) = (left.originals, left.written);
        }
        (self.role, self.lock) = (Role::Owner, Some(lock));
        Ok(())
    }

    /// Becomes the owner where another Nodewise was, and has ended; true if so.
    pub fn take_over(&mut self) -> bool {
        if !matches!(self.role, Role::Guest) || self.claim().is_err() || !self.is_owner() {
            return false;
        }
        self.request = None;
        // One that was killed has left some changed: they are ours to put back.
        let noted = if self.originals.is_empty() { Ok(()) } else { self.write_journal() };
        if let Err(error) = noted {
            self.role = Role::Barred(error);
        }
        self.is_owner()
    }

    /// Asks the owner for samples, or does so no longer. A process that ends asks no longer, in whatever way.
    pub fn request_samples(&mut self, wanted: bool) {
        let lock = |path: &Path| {
            let lock = open_lock(path).ok()?;
            // An owner that just looks has it for a moment.
            flock(&lock, FlockOperation::NonBlockingLockShared).ok()?;
            Some(lock)
        };
        let held = self.request.take();
        self.request = if wanted { held.or_else(|| lock(&self.place.requests)) } else { None };
    }

    /// Whether any other Nodewise asks the owner for samples.
    #[must_use]
    pub fn are_samples_requested(&mut self) -> bool {
        self.requests = self.requests.take().or_else(|| open_lock(&self.place.requests).ok());
        let Some(lock) = &self.requests else { return false };
        let taken = flock(lock, FlockOperation::NonBlockingLockExclusive);
        if taken.is_ok() {
            // One that asks just now tries again.
            let _ = flock(lock, FlockOperation::Unlock);
        }
        taken == Err(Errno::WOULDBLOCK)
    }

    /// Makes the journal's directory, to be read by everybody and written by none but this user, whatever the
    /// umask.
    fn make_directory(&self) -> Result<(), Error> {
        let directory = self.place.directory();
        let cannot = |e| Error::file(directory, "create", e);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(cannot)?;
        require_own(directory, &fs::metadata(directory).map_err(cannot)?)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).map_err(cannot)
    }

    /// Whether this process may change settings; false while another live Nodewise owns them, and where they
    /// could not be put back.
    #[must_use]
    pub const fn is_owner(&self) -> bool {
        matches!(self.role, Role::Owner)
    }

    /// Why nothing is changed any more, if so: the journal cannot be written, or cannot be believed.
    #[must_use]
    pub const fn barred(&self) -> Option<&Error> {
        match &self.role {
            Role::Barred(why) => Some(why),
            Role::Owner | Role::Guest => None,
        }
    }

    /// The settings changed so far, with their values before.
    #[must_use]
    pub const fn changed(&self) -> &BTreeMap<PathBuf, String> {
        &self.originals
    }

    /// Writes `value` to a setting, remembering the old one: what it was before, or what somebody else has
    /// set since. Does nothing when it has that value already, when another Nodewise owns the settings,
    /// or where they could not be put back.
    ///
    /// # Panics
    /// If it is none of the settings that the journal may name.
    pub fn set(&mut self, path: &Path, value: &str) -> Result<(), Error> {
        assert!(self.place.settings.contains(path), "{} is no setting of ours", path.display());
        let now = read(path)?;
        let ours = self.written.get(path).is_some_and(|all| all.contains(&now));
        let goes_back = ours && self.originals.get(path).is_some_and(|original| original == value);
        if now == value || (!self.is_owner() && !goes_back) {
            return Ok(());
        }
        match if goes_back { Ok(true) } else { self.write_down(path, value) } {
            Ok(true) => fs::write(path, value).map_err(|e| Error::file(path, "write", e)),
            Ok(false) => Ok(()),
            Err(error) => {
                self.role = Role::Barred(error);
                Ok(())
            }
        }
    }

    /// Notes in the journal what a setting is before it is given this value; false if it is to be left alone.
    fn write_down(&mut self, path: &Path, value: &str) -> Result<bool, Error> {
        if self.originals.is_empty() {
            self.make_directory()?;
            if self.lock.is_none() {
                self.claim()?;
            }
            if !self.is_owner() {
                return Ok(false);
            }
            if !self.originals.is_empty() {
                // A killed owner's: from now on they are ours to put back.
                self.write_journal()?;
            }
        }
        let before = read(path)?;
        if before == value {
            return Ok(false);
        }
        let written = self.written.entry(path.to_owned()).or_default();
        let ours = self.originals.contains_key(path) && written.contains(&before);
        // Until it has been written, the setting still has the value before.
        let mut may_be = BTreeSet::from([value.to_owned()]);
        may_be.extend(ours.then(|| before.clone()));
        if std::mem::replace(written, may_be.clone()) != may_be || !ours {
            let original = if ours { None } else { self.originals.insert(path.to_owned(), before) };
            if let Err(e) = self.write_journal() {
                match original {
                    Some(original) => self.originals.insert(path.to_owned(), original),
                    None if !ours => self.originals.remove(path),
                    None => None,
                };
                return Err(e);
            }
        }
        Ok(true)
    }

    /// Puts every setting back, but those that somebody else has set since, and removes the journal; also
    /// those of another owner that was killed. A setting that cannot be restored stays in the journal and
    /// is named in the error; the others are restored all the same.
    pub fn restore(&mut self) -> Result<(), Error> {
        if self.originals.is_empty() {
            if self.barred().is_some() || !self.place.journal.exists() {
                return Ok(());
            }
            match self.claim() {
                Err(error) if error.kind() == ErrorKind::NotPermitted => {
                    if Journal::read(&self.place)?.is_some_and(|journal| journal.is_anothers()) {
                        self.role = Role::Guest;
                        return Ok(());
                    }
                    let message = "a Nodewise that was killed left kernel settings changed; root's next start \
                                   puts them back";
                    return Err(Error::with_source(error.kind(), message, error));
                }
                claimed => claimed?,
            }
        }
        self.put_back()
    }

    fn put_back(&mut self) -> Result<(), Error> {
        if self.originals.is_empty() {
            return Ok(());
        }
        let mut failed = Vec::new();
        let written = &self.written;
        let is_ours = |path: &Path| {
            let is_anothers = |all: &BTreeSet<String>| read(path).is_ok_and(|now| !all.contains(&now));
            written.get(path).is_some_and(|all| !is_anothers(all))
        };
        let put_back = |path: &Path, value: &str| if is_ours(path) { fs::write(path, value) } else { Ok(()) };
        self.originals.retain(|path, value| match put_back(path, value) {
            Ok(()) => false,
            // The setting itself is gone (module unloaded, debugfs unmounted): nothing is left to restore.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => {
                failed.push(format!("{} to {value:?} ({e})", path.display()));
                true
            }
        });
        if failed.is_empty() {
            self.written.clear();
            match fs::remove_file(&self.place.journal) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::file(&self.place.journal, "remove", e))
                }
                _ => Ok(()),
            }
        } else {
            self.write_journal()?;
            Err(Error::new(ErrorKind::File, format!("cannot restore {}", failed.join(", "))))
        }
    }

    fn write_journal(&self) -> Result<(), Error> {
        let (originals, written) = (self.originals.clone(), self.written.clone());
        Journal::own(originals, written).write(&self.place)
    }
}

/// One [`Settings`] for all who change any: the journal has one owner.
#[derive(Clone, Debug)]
pub struct SharedSettings(Arc<Mutex<Settings>>);

impl From<Settings> for SharedSettings {
    fn from(settings: Settings) -> Self {
        Self(Arc::new(Mutex::new(settings)))
    }
}

impl SharedSettings {
    /// As [`Settings::is_owner`].
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.lock().is_owner()
    }

    /// As [`Settings::barred`], in words.
    #[must_use]
    pub fn barred(&self) -> Option<String> {
        self.lock().barred().map(Error::in_full)
    }

    /// As [`Settings::set`].
    pub fn set(&self, path: &Path, value: &str) -> Result<(), Error> {
        self.lock().set(path, value)
    }

    /// As [`Settings::restore`].
    pub fn restore(&self) -> Result<(), Error> {
        self.lock().restore()
    }

    /// As [`Settings::take_over`].
    #[must_use]
    pub fn take_over(&self) -> bool {
        self.lock().take_over()
    }

    /// As [`Settings::request_samples`].
    pub fn request_samples(&self, wanted: bool) {
        self.lock().request_samples(wanted);
    }

    /// As [`Settings::are_samples_requested`].
    #[must_use]
    pub fn are_samples_requested(&self) -> bool {
        self.lock().are_samples_requested()
    }

    /// The same, if nobody is just changing any; none where somebody is.
    #[must_use]
    pub fn try_restore(&self) -> Option<Result<(), Error>> {
        match self.0.try_lock() {
            Ok(mut settings) => Some(settings.restore()),
            // A thread that panicked while it changed settings has left a journal of them.
            Err(TryLockError::Poisoned(settings)) => Some(settings.into_inner().restore()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Keeps all others from the settings while `act` runs, as a change that takes long does.
    pub fn hold(&self, act: impl FnOnce()) {
        let _held = self.lock();
        act();
    }

    /// A thread that panicked while it changed settings has left a journal of them.
    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The directory that an owner locks. Where debugfs is not mounted, it is all the same.
fn open_lock(path: &Path) -> Result<fs::File, Error> {
    let mut options = fs::File::options();
    let directory = options.read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(path);
    let directory = match (directory, path.strip_prefix(DEBUGFS)) {
        (Err(error), Ok(below)) if error.kind() == std::io::ErrorKind::NotFound => {
            open_in_debugfs(below).map_err(|_| error)
        }
        (directory, _) => directory,
    };
    directory.map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound && path.starts_with(DEBUGFS) {
            let message = format!("cannot lock {}; mount it: {MOUNT_DEBUGFS}", path.display());
            return Error::with_source(ErrorKind::NotPermitted, message, error);
        }
        Error::file(path, "lock", error)
    })
}

/// Opens a directory of debugfs by a mount of its own that is nowhere to be seen (`fsmount(2)`). All mounts
/// of debugfs are of the same files. It takes `CAP_SYS_ADMIN`.
fn open_in_debugfs(below: &Path) -> std::io::Result<fs::File> {
    let context = fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(root, below, flags, Mode::empty())?.into())
}

/// A setting's value; of a choice such as `always [madvise] never`, the word in brackets, as it is written.
fn read(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(|e| Error::file(path, "read", e))?;
    let chosen = text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    Ok(chosen.unwrap_or(text.trim_end()).to_owned())
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            // There is nobody left to hand the error to, and an administrator must know which setting to put
            // back.
            let _ = writeln!(std::io::stderr(), "nodewise: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
