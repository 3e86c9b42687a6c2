//! The journal of changed settings, and who has changed them by it.

use super::Place;
use crate::{Error, ErrorKind};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A journal is no longer.
const JOURNAL_BYTES: u64 = 1 << 16;
/// Digits of the largest value.
pub(super) const VALUE_DIGITS: usize = 20;

/// The journal's content.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    /// The owner's process id.
    pub(super) pid: u32,
    /// The owner's start time in clock ticks after boot (`/proc/PID/stat`, field 22): a process id alone may
    /// be reused.
    pub(super) start_time: u64,
    /// Setting and value before.
    pub(super) originals: BTreeMap<PathBuf, String>,
    /// Setting and what it may be by us: the value that it was given last, and the one before.
    pub(super) written: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Journal {
    /// Believes nothing that somebody but root and this user could have written, and no more than that
    /// settings of ours were changed.
    pub(super) fn read(place: &Place) -> Result<Option<Self>, Error> {
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
        if let Some(value) = values.into_iter().find(|value| !is_number(value) && !is_choice(value)) {
            return Err(Error::malformed(path, 1, &format!("numbers, and not {value:?}")));
        }
        Ok(Some(journal))
    }

    /// This process's.
    pub(super) fn own(
        originals: BTreeMap<PathBuf, String>,
        written: BTreeMap<PathBuf, BTreeSet<String>>,
    ) -> Self {
        let pid = std::process::id();
        Self { pid, start_time: crate::process::start_time(pid).unwrap_or(0), originals, written }
    }

    /// Writes it whole or not at all.
    pub(super) fn write(&self, place: &Place) -> Result<(), Error> {
        let path = &place.journal;
        let temporary = path.with_extension(format!("{}.new", self.pid));
        let text = serde_json::to_string_pretty(self)
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

    /// Whether another process owns it that is still there.
    pub(super) fn is_anothers(&self) -> bool {
        self.pid != std::process::id() && crate::process::start_time(self.pid) == Some(self.start_time)
    }
}

fn is_number(value: &str) -> bool {
    (1..=VALUE_DIGITS).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// The words of [`super::HUGE_PAGES`].
fn is_choice(value: &str) -> bool {
    ["always", "madvise", "never"].contains(&value)
}

/// Whether others than root and this user can write what belongs to `owner` and has this mode.
pub(super) fn others_can_write(owner: u32, mode: u32, user: u32) -> bool {
    ![0, user].contains(&owner) || mode & 0o022 != 0
}

/// Nobody but root and this user can have written it.
pub(crate) fn require_own(path: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
    if !others_can_write(metadata.uid(), metadata.mode(), rustix::process::geteuid().as_raw()) {
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
