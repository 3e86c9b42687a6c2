//! Kernel settings that Nodewise changes, and how they come back.
//!
//! Before the first change of a setting its old value is written to a journal. The values are restored when
//! [`Settings`] is dropped. After `kill -9` the journal is still there: the next Nodewise that starts or ends
//! puts back what it names. Values that somebody else has set meanwhile are theirs, and stay.
//!
//! A setting whose old value cannot be written down is not changed: see [`Settings::barred`].
//!
//! Settings are the machine's, and `/run` and process ids may be a container's. One Nodewise at a time owns
//! the settings therefore by a lock on a directory of debugfs, which the whole machine has once, and which
//! only root can open.

use crate::{Error, ErrorKind};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the journal is, which settings it may name, and what their owner locks.
#[derive(Clone, Debug)]
pub struct Place {
    journal: PathBuf,
    lock: PathBuf,
    settings: BTreeSet<PathBuf>,
}

impl Place {
    /// That of the live machine. `/run` is emptied at boot, just as the settings go back to their defaults.
    #[must_use]
    pub fn live() -> Self {
        let knobs = Path::new(KNOBS);
        let knobs = ["scan_size_mb", "scan_period_min_ms", "scan_period_max_ms"].map(|name| knobs.join(name));
        let others = [BALANCING, KHUGEPAGED_PAGES, KHUGEPAGED_SLEEP].map(PathBuf::from);
        Self::new("/run/nodewise/settings.json", LOCK, knobs.into_iter().chain(others))
    }

    /// A journal at this path, about these settings, whose owner locks this directory.
    pub fn new(
        journal: impl Into<PathBuf>,
        lock: impl Into<PathBuf>,
        settings: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        Self { journal: journal.into(), lock: lock.into(), settings: settings.into_iter().collect() }
    }

    fn directory(&self) -> &Path {
        self.journal.parent().unwrap_or(Path::new("/"))
    }
}

/// Switches the kernel's NUMA balancing on and off.
pub(crate) const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// How long khugepaged sleeps between two scans, in milliseconds.
pub(crate) const KHUGEPAGED_SLEEP: &str =
    "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";
/// How many base pages it looks at in a scan.
pub(crate) const KHUGEPAGED_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";
/// Where the settings of the balancing's scan are.
pub(crate) const KNOBS: &str = "/sys/kernel/debug/sched/numa_balancing";

/// The directory that the owner locks: one for all mounts of debugfs.
const LOCK: &str = "/sys/kernel/debug/sched";

/// A journal is no longer.
const JOURNAL_BYTES: u64 = 1 << 16;
/// Digits of the largest value.
const VALUE_DIGITS: usize = 20;

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

/// The journal's content.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    /// The owner's process id.
    pid: u32,
    /// The owner's start time in clock ticks after boot (`/proc/PID/stat`, field 22): a process id alone may
    /// be reused.
    start_time: u64,
    /// Setting and value before.
    originals: BTreeMap<PathBuf, String>,
    /// Setting and the values that it was given.
    written: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Journal {
    /// Believes nothing that somebody but root and this user could have written, and no more than that
    /// settings of ours were changed.
    fn read(place: &Place) -> Result<Option<Self>, Error> {
        let path = &place.journal;
        let cannot = |e| Error::file(path, "read", e);
        let mut options = fs::File::options();
        // A pipe is not waited for.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match options.read(true).custom_flags(flags.bits() as i32).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(cannot(e)),
        };
        require_own(place.directory(), &fs::metadata(place.directory()).map_err(cannot)?)?;
        let metadata = file.metadata().map_err(cannot)?;
        require_own(path, &metadata)?;
        if !metadata.is_file() {
            return Err(Error::malformed(path, 1, "a settings journal, and not a device or a pipe"));
        }
        let mut text = String::new();
        file.take(JOURNAL_BYTES).read_to_string(&mut text).map_err(cannot)?;
        let journal: Self = serde_json::from_str(&text)
            .map_err(|e| Error::malformed(path, e.line(), &format!("a settings journal ({e})")))?;
        let names = journal.originals.keys().chain(journal.written.keys());
        let values = journal.originals.values().chain(journal.written.values().flatten());
        if let Some(name) = names.into_iter().find(|&name| !place.settings.contains(name)) {
            let what = format!("settings that Nodewise changes, and not {}", name.display());
            return Err(Error::malformed(path, 1, &what));
        }
        if let Some(value) = values.into_iter().find(|value| !is_number(value)) {
            return Err(Error::malformed(path, 1, &format!("numbers, and not {value:?}")));
        }
        Ok(Some(journal))
    }

    /// Whether another process owns it that is still there.
    fn is_anothers(&self) -> bool {
        self.pid != std::process::id() && crate::process::start_time(self.pid) == Some(self.start_time)
    }
}

fn is_number(value: &str) -> bool {
    (1..=VALUE_DIGITS).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// Nobody but root and this user can have written it.
fn require_own(path: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
    let user = rustix::process::geteuid().as_raw();
    if [0, user].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!("others could write {}, so nothing that it says is believed", path.display());
    Err(Error::new(ErrorKind::File, message))
}

/// The one who has changed the kernel's settings, as the journal says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Nobody.
    No,
    /// A Nodewise that runs, and will put them back.
    ByRunning(u32),
    /// One that was killed: they are still changed.
    LeftBy {
        /// Its process id.
        pid: u32,
        /// The settings, with their values before.
        originals: BTreeMap<PathBuf, String>,
    },
}

impl Changed {
    /// Looks, and touches nothing.
    pub fn look(place: &Place) -> Result<Self, Error> {
        Ok(match Journal::read(place)? {
            None => Self::No,
            Some(journal) if crate::process::start_time(journal.pid) == Some(journal.start_time) => {
                Self::ByRunning(journal.pid)
            }
            Some(journal) => Self::LeftBy { pid: journal.pid, originals: journal.originals },
        })
    }
}

impl Settings {
    /// Opens the journal, first restoring what a killed predecessor left changed. Nothing is written before
    /// the first [`Settings::set`], so this needs no permission unless there is something to restore.
    /// Where that fails, nothing will be changed, and [`Settings::barred`] has the reason.
    #[must_use]
    pub fn open(place: Place) -> Self {
        let (originals, written) = Default::default();
        let mut settings = Self { place, role: Role::Owner, lock: None, originals, written };
        if let Err(error) = settings.restore() {
            settings.role = Role::Barred(error);
        }
        settings
    }

    /// Becomes the owner, unless another one is, and learns from the journal what a killed owner had changed.
    fn claim(&mut self) -> Result<(), Error> {
        let path = &self.place.lock;
        let mut options = fs::File::options();
        let directory = options.read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(path);
        let lock = directory.map_err(|e| Error::file(path, "lock", e))?;
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
        if written.insert(value.to_owned()) || !ours {
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
                    let message = "a Nodewise that was killed left kernel settings changed; root's next start puts them back";
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

    /// Writes the journal whole or not at all.
    fn write_journal(&self) -> Result<(), Error> {
        let pid = std::process::id();
        let journal = Journal {
            pid,
            start_time: crate::process::start_time(pid).unwrap_or(0),
            originals: self.originals.clone(),
            written: self.written.clone(),
        };
        let path = &self.place.journal;
        let temporary = path.with_extension(format!("{pid}.new"));
        let text = serde_json::to_string_pretty(&journal)
            .map_err(|e| Error::with_source(ErrorKind::File, "cannot write the settings journal", e))?;
        // One that a killed process of this number left.
        let _ = fs::remove_file(&temporary);
        let mut options = fs::File::options();
        options
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&temporary)
            .and_then(|mut file| {
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&temporary, path))
            .map_err(|e| Error::file(path, "write", e))
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
        self.lock().barred().map(|why| {
            let cause = std::error::Error::source(why).map_or(String::new(), |cause| format!(": {cause}"));
            format!("{why}{cause}")
        })
    }

    /// As [`Settings::set`].
    pub fn set(&self, path: &Path, value: &str) -> Result<(), Error> {
        self.lock().set(path, value)
    }

    /// As [`Settings::restore`].
    pub fn restore(&self) -> Result<(), Error> {
        self.lock().restore()
    }

    /// The same, if nobody is just changing any.
    ///
    /// # Errors
    /// As [`Settings::restore`]; none where somebody is.
    pub fn try_restore(&self) -> Result<(), Error> {
        self.0.try_lock().map_or(Ok(()), |mut settings| settings.restore())
    }

    /// Whoever panicked while it changed settings has left a journal of them.
    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(|e| Error::file(path, "read", e))?;
    Ok(text.trim_end().to_owned())
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
mod tests {
    use super::*;

    fn setting(directory: &Path, name: &str, value: &str) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, value).unwrap();
        path
    }

    /// A journal about three settings, of this value.
    fn place(directory: &Path, value: &str) -> (Place, [PathBuf; 3]) {
        let settings = ["a", "b", "c"].map(|name| setting(directory, name, value));
        (Place::new(directory.join("run/journal.json"), directory, settings.clone()), settings)
    }

    /// Another owner, until it is dropped.
    fn owner(place: &Place) -> fs::File {
        let lock = fs::File::open(&place.lock).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        lock
    }

    /// The text of the journal.
    fn journal(place: &Place) -> String {
        fs::read_to_string(&place.journal).unwrap()
    }

    fn now(path: &Path) -> String {
        fs::read_to_string(path).unwrap().trim_end().to_owned()
    }

    /// As another process that lives, or none, would have written it.
    fn write_journal(place: &Place, pid: u32, lives: bool, changed: &BTreeMap<PathBuf, [&str; 2]>) {
        let start_time = crate::process::start_time(pid).unwrap() + u64::from(!lives);
        let originals = changed.iter().map(|(path, values)| (path.clone(), values[0].to_owned()));
        let written = changed.iter().map(|(path, values)| (path.clone(), [values[1].to_owned()].into()));
        let journal = Journal { pid, start_time, originals: originals.collect(), written: written.collect() };
        fs::DirBuilder::new().recursive(true).mode(0o755).create(place.directory()).unwrap();
        fs::write(&place.journal, serde_json::to_string(&journal).unwrap()).unwrap();
    }

    #[test]
    fn restores_on_drop_and_removes_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, b, _]) = place(dir.path(), "1000\n");
        let mut settings = Settings::open(place.clone());
        settings.set(&a, "0").unwrap();
        settings.set(&b, "200").unwrap();
        settings.set(&b, "300").unwrap();
        assert_eq!(now(&b), "300");
        assert!(place.journal.exists());
        drop(settings);
        assert_eq!([now(&a), now(&b)], ["1000", "1000"]);
        assert!(!place.journal.exists());
    }

    #[test]
    fn a_killed_predecessor_is_cleaned_up_after() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "0");
        let parent = std::os::unix::process::parent_id();
        write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
        let originals = BTreeMap::from([(a.clone(), "1".to_owned())]);
        assert_eq!(Changed::look(&place).unwrap(), Changed::LeftBy { pid: parent, originals });
        assert_eq!(now(&a), "0", "looking puts nothing back");

        let settings = Settings::open(place.clone());
        assert!(settings.is_owner());
        assert_eq!(now(&a), "1");
        assert!(!place.journal.exists());
        assert_eq!(Changed::look(&place).unwrap(), Changed::No);
    }

    #[test]
    fn leaves_the_settings_of_a_living_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "0");
        let parent = std::os::unix::process::parent_id();
        // One that opened before it came finds out when it wants to change something.
        let (mut earlier, idle) = (Settings::open(place.clone()), Settings::open(place.clone()));
        let _owner = owner(&place);
        write_journal(&place, parent, true, &[(a.clone(), ["1", "0"])].into());
        drop(idle);
        assert!(place.journal.exists(), "it is not theirs to remove");
        assert!(earlier.is_owner());
        earlier.set(&a, "8").unwrap();
        assert!(!earlier.is_owner());
        drop(earlier);
        assert_eq!(Changed::look(&place).unwrap(), Changed::ByRunning(parent));
        let mut settings = Settings::open(place.clone());
        assert!(!settings.is_owner());
        settings.set(&a, "7").unwrap();
        drop(settings);
        assert_eq!(now(&a), "0");
        assert!(place.journal.exists());
    }

    /// Containers have a `/run` each, and the machine has its settings once.
    #[test]
    fn another_journal_is_another_owners_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, b, _]) = place(dir.path(), "1000");
        let elsewhere = Place { journal: dir.path().join("other/journal.json"), ..place.clone() };
        let (mut first, mut second) = (Settings::open(place), Settings::open(elsewhere.clone()));
        first.set(&a, "0").unwrap();
        second.set(&a, "5").unwrap();
        second.set(&b, "5").unwrap();
        assert!(first.is_owner() && !second.is_owner());
        drop(first);
        drop(second);
        assert_eq!([now(&a), now(&b)], ["1000", "1000"]);
        let mut third = Settings::open(elsewhere);
        third.set(&a, "5").unwrap();
        assert_eq!(now(&a), "5");
    }

    #[test]
    fn nothing_is_changed_where_no_owner_can_be_told() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "1");
        let mut settings = Settings::open(Place { lock: dir.path().join("not-mounted"), ..place });
        settings.set(&a, "0").unwrap();
        assert_eq!(now(&a), "1");
        assert!(settings.barred().unwrap().to_string().starts_with("cannot lock "));
    }

    #[test]
    fn everybody_can_read_the_journal_and_only_its_owner_write_it() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "1");
        // The count is the whole process's: writes of other tests meanwhile are no less theirs.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let mut settings = Settings::open(place.clone());
        settings.set(&a, "0").unwrap();
        rustix::process::umask(before);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!([mode(place.directory()), mode(&place.journal)], [0o755, 0o644]);
    }

    #[test]
    fn a_survivor_puts_back_what_a_killed_owner_left() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, b, _]) = place(dir.path(), "0");
        let parent = std::os::unix::process::parent_id();
        let left = [(a.clone(), ["1", "0"])].into();
        let owner = owner(&place);
        write_journal(&place, parent, true, &left);
        let mut survivor = Settings::open(place.clone());
        survivor.set(&b, "8").unwrap();
        drop(owner);
        write_journal(&place, parent, false, &left);
        survivor.set(&b, "9").unwrap();
        assert!(!survivor.is_owner());
        assert_eq!([now(&a), now(&b)], ["0", "0"]);
        drop(survivor);
        assert_eq!([now(&a), now(&b)], ["1", "0"]);
        assert!(!place.journal.exists());
    }

    /// One that opened while nothing was changed, and comes to a journal whose owner has been killed since.
    #[test]
    fn what_a_killed_owner_changed_is_taken_over_with_the_first_change() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, b, _]) = place(dir.path(), "0");
        let mut settings = Settings::open(place.clone());
        let parent = std::os::unix::process::parent_id();
        write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
        settings.set(&b, "8").unwrap();
        assert_eq!([now(&a), now(&b)], ["0", "8"]);
        assert_eq!(Changed::look(&place).unwrap(), Changed::ByRunning(std::process::id()));
        drop(settings);
        assert_eq!([now(&a), now(&b)], ["1", "0"]);
    }

    #[test]
    fn what_somebody_else_sets_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, b, c]) = place(dir.path(), "1000\n");
        let mut settings = Settings::open(place.clone());
        for path in [&a, &b, &c] {
            settings.set(path, "2000").unwrap();
            settings.set(path, "60000").unwrap();
        }
        fs::write(&a, "777\n").unwrap();
        fs::write(&b, "888\n").unwrap();
        // Changed again: theirs is what comes back.
        settings.set(&b, "2000").unwrap();
        assert_eq!(now(&b), "2000");
        drop(settings);
        assert_eq!([now(&a), now(&b), now(&c)], ["777", "888", "1000"]);
        assert!(!place.journal.exists());
    }

    #[test]
    fn nothing_is_changed_that_could_not_be_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "1");
        // No directory can be made there, nor by root.
        fs::write(dir.path().join("run"), "").unwrap();
        let mut settings = Settings::open(place.clone());
        settings.set(&a, "0").unwrap();
        assert_eq!(now(&a), "1");
        let why = settings.barred().unwrap().to_string();
        assert!(why.starts_with("cannot create ") && why.ends_with("/run"), "{why}");
        drop(settings);

        // Gone in the middle: what was changed goes back, and nothing else changes.
        fs::remove_file(dir.path().join("run")).unwrap();
        let mut settings = Settings::open(place.clone());
        settings.set(&a, "0").unwrap();
        fs::remove_dir_all(dir.path().join("run")).unwrap();
        settings.set(&a, "2").unwrap();
        assert_eq!(now(&a), "0");
        assert!(settings.barred().is_some());
        settings.set(&a, "1").unwrap();
        assert_eq!(now(&a), "1");
        drop(settings);
        assert_eq!(now(&a), "1");
    }

    #[test]
    fn a_journal_that_others_could_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "0");
        let parent = std::os::unix::process::parent_id();
        write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (path, before) in [(place.directory(), 0o755), (&place.journal, 0o644)] {
            mode(path, before | 0o022);
            let mut settings = Settings::open(place.clone());
            let why = settings.barred().unwrap().to_string();
            assert!(why.starts_with("others could write ") && why.contains("is believed"), "{why}");
            settings.set(&a, "2").unwrap();
            drop(settings);
            assert_eq!(now(&a), "0");
            mode(path, before);
        }
        drop(Settings::open(place));
        assert_eq!(now(&a), "1");
    }

    #[test]
    fn a_journal_names_settings_and_numbers_only() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "0");
        let victim = setting(dir.path(), "victim", "0");
        let parent = std::os::unix::process::parent_id();
        let long = "0".repeat(VALUE_DIGITS + 1);
        for (path, value) in [(&victim, "1"), (&a, "written by nobody"), (&a, "+1"), (&a, &long)] {
            write_journal(&place, parent, false, &[(path.clone(), [value, "0"])].into());
            let why = Settings::open(place.clone()).barred().unwrap().to_string();
            assert!(why.contains("journal.json, line 1: expected"), "{why}");
            assert_eq!([now(&a), now(&victim)], ["0", "0"]);
        }
        // A link leads anywhere.
        fs::rename(&place.journal, dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &place.journal).unwrap();
        assert!(Settings::open(place.clone()).barred().is_some());
        // And a pipe nowhere.
        fs::remove_file(&place.journal).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &place.journal, kind, mode, 0).unwrap();
        assert!(Settings::open(place).barred().is_some());
    }

    #[test]
    fn a_malformed_journal_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "1");
        write_journal(&place, std::process::id(), true, &BTreeMap::new());
        fs::write(&place.journal, "{\n oops").unwrap();
        let mut settings = Settings::open(place.clone());
        settings.set(&a, "0").unwrap();
        assert_eq!(now(&a), "1");
        for error in [settings.barred().unwrap(), &Changed::look(&place).unwrap_err()] {
            assert!(error.to_string().contains("journal.json, line 2"), "{error}");
        }
        drop(settings);
        assert_eq!(journal(&place), "{\n oops", "it is for the administrator to read");
    }

    #[test]
    fn a_setting_that_cannot_be_written_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "1");
        fs::remove_file(&a).unwrap();
        let mut settings = Settings::open(place);
        assert_eq!(settings.set(&a, "1").unwrap_err().kind(), ErrorKind::File);
        assert!(settings.changed().is_empty());
    }
}
