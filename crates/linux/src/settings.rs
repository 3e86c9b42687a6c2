//! Kernel settings that Nodewise changes, and how they come back.
//!
//! Before the first change of a setting its old value is written to a journal. The values are restored when [`Settings`]
//! is dropped; after `kill -9` the journal is still there, and the next start restores from it. What somebody else has
//! set meanwhile is theirs, and stays.

use crate::{Error, ErrorKind};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Kernel settings by path, with their values before Nodewise touched them.
///
/// Only one process at a time owns the journal. Another one started meanwhile leaves the settings as they are: see
/// [`Settings::is_owner`].
#[derive(Debug)]
pub struct Settings {
    journal: PathBuf,
    owner: bool,
    originals: BTreeMap<PathBuf, String>,
    /// All values that each setting was given. One that has another was set by somebody else since.
    written: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// The journal's content.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    /// The owner's process id.
    pid: u32,
    /// The owner's start time in clock ticks after boot (`/proc/PID/stat`, field 22): a process id alone may be reused.
    start_time: u64,
    /// Setting and value before.
    originals: BTreeMap<PathBuf, String>,
    /// Setting and the values that it was given.
    written: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Journal {
    fn read(path: &Path) -> Result<Option<Self>, Error> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::file(path, "read", e)),
        };
        let journal = serde_json::from_str(&text)
            .map_err(|e| Error::malformed(path, e.line(), &format!("a settings journal ({e})")))?;
        Ok(Some(journal))
    }

    fn owner_lives(&self) -> bool {
        crate::process::start_time(self.pid) == Some(self.start_time)
    }
}

/// Who has changed the kernel's settings, as the journal says.
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
    pub fn look(journal: &Path) -> Result<Self, Error> {
        Ok(match Journal::read(journal)? {
            None => Self::No,
            Some(journal) if journal.owner_lives() => Self::ByRunning(journal.pid),
            Some(journal) => Self::LeftBy { pid: journal.pid, originals: journal.originals },
        })
    }
}

impl Settings {
    /// The journal of the live machine. `/run` is emptied at boot, just as the settings go back to their defaults.
    #[must_use]
    pub fn default_journal() -> PathBuf {
        PathBuf::from("/run/nodewise/settings.json")
    }

    /// Opens the journal, first restoring what a killed predecessor left changed. Nothing is written before the first
    /// [`Settings::set`], so this needs no permission unless there is something to restore.
    pub fn open(journal: &Path) -> Result<Self, Error> {
        // Read first: what is dropped removes its journal, and one that cannot be understood is for the administrator to read.
        let left = Journal::read(journal)?;
        let (originals, written) = Default::default();
        let mut settings = Self { journal: journal.to_owned(), owner: true, originals, written };
        if left.is_some() {
            let _lock = settings.lock()?;
            settings.take_over()?;
        }
        Ok(settings)
    }

    /// Keeps others from taking the journal over at the same moment, until it is dropped. None for those who may change nothing
    /// anyway, and whom nobody should have to wait for.
    fn lock(&self) -> Result<Option<fs::File>, Error> {
        let path = self.journal.with_extension("lock");
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let locked = options.open(&path).and_then(|file| {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(Some(file))
        });
        match locked {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Ok(None),
            locked => locked.map_err(|e| Error::file(&path, "lock", e)),
        }
    }

    /// Puts back what a killed owner left; leaves everything to one that lives.
    fn take_over(&mut self) -> Result<(), Error> {
        let Some(left) = Journal::read(&self.journal)? else { return Ok(()) };
        if left.owner_lives() && left.pid != std::process::id() {
            self.owner = false;
            return Ok(());
        }
        (self.originals, self.written) = (left.originals, left.written);
        self.restore()
    }

    /// Whether this process may change settings; false while another live Nodewise owns them.
    #[must_use]
    pub const fn is_owner(&self) -> bool {
        self.owner
    }

    /// The settings changed so far, with their values before.
    #[must_use]
    pub const fn changed(&self) -> &BTreeMap<PathBuf, String> {
        &self.originals
    }

    /// Writes `value` to a setting, remembering the old one: what it was before, or what somebody else has set since. Does
    /// nothing when it has that value already, or when another Nodewise owns the settings.
    pub fn set(&mut self, path: &Path, value: &str) -> Result<(), Error> {
        if !self.owner || read(path)? == value {
            return Ok(());
        }
        let _lock = if self.originals.is_empty() {
            let directory = self.journal.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(directory).map_err(|e| Error::file(directory, "create", e))?;
            let lock = self.lock()?;
            // Another one may have come first.
            self.take_over()?;
            lock
        } else {
            None
        };
        let before = read(path)?;
        if !self.owner || before == value {
            return Ok(());
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
        fs::write(path, value).map_err(|e| Error::file(path, "write", e))
    }

    /// Puts every setting back, but those that somebody else has set since, and removes the journal. A setting that cannot be
    /// restored stays in the journal and is named in the error; the others are restored all the same.
    pub fn restore(&mut self) -> Result<(), Error> {
        // Without a change of ours the journal, if there is one by now, is another's.
        if !self.owner || self.originals.is_empty() {
            return Ok(());
        }
        let mut failed = Vec::new();
        let written = &self.written;
        let is_ours =
            |path: &Path| written.get(path).zip(read(path).ok()).is_none_or(|(all, now)| all.contains(&now));
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
            match fs::remove_file(&self.journal) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::file(&self.journal, "remove", e))
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
        let temporary = self.journal.with_extension(format!("{pid}.new"));
        let text = serde_json::to_string_pretty(&journal)
            .map_err(|e| Error::with_source(ErrorKind::File, "cannot write the settings journal", e))?;
        fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, &self.journal))
            .map_err(|e| Error::file(&self.journal, "write", e))
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(|e| Error::file(path, "read", e))?;
    Ok(text.trim_end().to_owned())
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            // There is nobody left to hand the error to, and an administrator must know which setting to put back.
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

    #[test]
    fn restores_on_drop_and_removes_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (setting(dir.path(), "a", "1\n"), setting(dir.path(), "b", "1000\n"));
        let journal = dir.path().join("run/journal.json");
        let mut settings = Settings::open(&journal).unwrap();
        settings.set(&a, "0").unwrap();
        settings.set(&b, "200").unwrap();
        settings.set(&b, "300").unwrap();
        assert_eq!(fs::read_to_string(&b).unwrap(), "300");
        assert!(journal.exists());
        drop(settings);
        assert_eq!(fs::read_to_string(&a).unwrap(), "1");
        assert_eq!(fs::read_to_string(&b).unwrap(), "1000");
        assert!(!journal.exists());
    }

    #[test]
    fn a_killed_predecessor_is_cleaned_up_after() {
        let dir = tempfile::tempdir().unwrap();
        let a = setting(dir.path(), "a", "1");
        let journal = dir.path().join("journal.json");
        let mut killed = Settings::open(&journal).unwrap();
        killed.set(&a, "0").unwrap();
        // As kill -9 does: no destructor runs, and the process in the journal is no more.
        std::mem::forget(killed);
        let text = fs::read_to_string(&journal).unwrap();
        let mut left: Journal = serde_json::from_str(&text).unwrap();
        left.start_time += 1;
        fs::write(&journal, serde_json::to_string(&left).unwrap()).unwrap();

        let originals = BTreeMap::from([(a.clone(), "1".to_owned())]);
        assert_eq!(Changed::look(&journal).unwrap(), Changed::LeftBy { pid: left.pid, originals });
        assert_eq!(fs::read_to_string(&a).unwrap(), "0", "looking puts nothing back");

        let settings = Settings::open(&journal).unwrap();
        assert!(settings.is_owner());
        assert_eq!(fs::read_to_string(&a).unwrap(), "1");
        assert!(!journal.exists());
        assert_eq!(Changed::look(&journal).unwrap(), Changed::No);
    }

    #[test]
    fn leaves_the_settings_of_a_living_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let a = setting(dir.path(), "a", "0");
        let journal = dir.path().join("journal.json");
        let parent = std::os::unix::process::parent_id();
        let living = Journal {
            pid: parent,
            start_time: crate::process::start_time(parent).unwrap(),
            originals: BTreeMap::from([(a.clone(), "1".to_owned())]),
            written: BTreeMap::from([(a.clone(), BTreeSet::from(["0".to_owned()]))]),
        };
        // One that opened before it came finds out when it wants to change something.
        let (mut earlier, idle) = (Settings::open(&journal).unwrap(), Settings::open(&journal).unwrap());
        fs::write(&journal, serde_json::to_string(&living).unwrap()).unwrap();
        drop(idle);
        assert!(journal.exists(), "it is not theirs to remove");
        assert!(earlier.is_owner());
        earlier.set(&a, "8").unwrap();
        assert!(!earlier.is_owner());
        drop(earlier);
        assert_eq!(Changed::look(&journal).unwrap(), Changed::ByRunning(parent));
        let mut settings = Settings::open(&journal).unwrap();
        assert!(!settings.is_owner());
        settings.set(&a, "7").unwrap();
        drop(settings);
        assert_eq!(fs::read_to_string(&a).unwrap(), "0");
        assert!(journal.exists());
    }

    #[test]
    fn what_somebody_else_sets_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| setting(dir.path(), name, "1000\n"));
        let journal = dir.path().join("journal.json");
        let mut settings = Settings::open(&journal).unwrap();
        for path in [&a, &b, &c] {
            settings.set(path, "2000").unwrap();
            settings.set(path, "60000").unwrap();
        }
        fs::write(&a, "777\n").unwrap();
        fs::write(&b, "888\n").unwrap();
        // Changed again: theirs is what comes back.
        settings.set(&b, "2000").unwrap();
        assert_eq!(fs::read_to_string(&b).unwrap(), "2000");
        drop(settings);
        let found = [a, b, c].map(|path| fs::read_to_string(path).unwrap().trim_end().to_owned());
        assert_eq!(found, ["777", "888", "1000"]);
        assert!(!journal.exists());
    }

    #[test]
    fn a_malformed_journal_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal.json");
        fs::write(&journal, "{\n oops").unwrap();
        for error in [
            Settings::open(&journal).unwrap_err(),
            Settings::open(&journal).unwrap_err(),
            Changed::look(&journal).unwrap_err(),
        ] {
            assert!(error.to_string().contains("journal.json, line 2"), "{error}");
        }
    }

    #[test]
    fn a_setting_that_cannot_be_written_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::open(&dir.path().join("journal.json")).unwrap();
        let missing = dir.path().join("missing");
        assert_eq!(settings.set(&missing, "1").unwrap_err().kind(), ErrorKind::File);
        assert!(settings.changed().is_empty());
    }
}
