//! The sections in which managed processes say how they use their memory ([`nodewise_sys::hints`]).
//!
//! A section's content is the program's word and may be anything. It is read in one bounded piece, and
//! entries that make no sense are left out. The rest only concerns the memory of the very process whose
//! section it is. The time until which hints are honoured is written only into a file that is a section
//! beyond doubt. A program could as well give this name to a mapping of a file that it may only read.

use nodewise_engine::{Hint, Hinted, PAGE_BYTES, PageRange, Pid};
use nodewise_sys::hints::{self, Entry, Kind};
use nodewise_sys::is_sealed;
use rustix::fs::{AtFlags, MemfdFlags, OFlags, StatxFlags, memfd_create, statx};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt as _};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How long a program may think that its hints are honoured after the last sign of it; several intervals.
const HONOURED: Duration = Duration::from_secs(10);
/// Most links of `/proc/PID/fd` that are looked at.
const FDS_MAX: usize = 4096;
/// How often reading is tried again while the program changes the section.
const TRIES: usize = 3;

/// The open sections.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    open: BTreeMap<Pid, Section>,
    /// Whether there were more hints than are heeded.
    is_full: bool,
}

#[derive(Debug)]
struct Section {
    file: File,
    /// The sequence number of the entries that were read last.
    sequence: Option<u64>,
}

impl Sections {
    /// Keeps the sections of these processes.
    pub(crate) fn retain(&mut self, keep: impl Fn(Pid) -> bool) {
        self.open.retain(|&pid, _| keep(pid));
    }

    /// Forgets a process's section: it runs another program.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.open.remove(&pid);
    }

    /// Looks for a process's section, of which its mappings say that there is one `at` these addresses.
    pub(crate) fn find(&mut self, pid: Pid, at: (u64, u64)) {
        if !self.open.contains_key(&pid) {
            self.open.extend(find(pid, at).map(|file| (pid, Section { file, sequence: None })));
        }
    }

    /// The hints of a process, `most` of them, if they have changed since the last call. Tells it, if
    /// `honoured`, that somebody listens.
    pub(crate) fn read(&mut self, pid: Pid, most: usize, honoured: bool, now_ns: u64) -> Option<Vec<Hinted>> {
        let section = self.open.get_mut(&pid)?;
        if honoured {
            section.honour(now_ns + HONOURED.as_nanos() as u64);
        }
        let mut hints = section.read()?;
        self.is_full |= hints.len() > most;
        hints.truncate(most);
        Some(hints)
    }

    /// Whether there were more hints than are heeded.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Tells all processes that nobody listens any more.
    pub(crate) fn close(&mut self) {
        self.open.values_mut().for_each(|section| section.honour(0));
        self.open.clear();
    }
}

impl Section {
    fn honour(&self, until_ns: u64) {
        // A program that loses this only does the work itself.
        let _ = self.file.write_all_at(&until_ns.to_ne_bytes(), 8 * hints::MANAGED_UNTIL_NS as u64);
    }

    fn read(&mut self) -> Option<Vec<Hinted>> {
        for _ in 0..TRIES {
            let before = self.words(hints::ENTRIES).ok()?[hints::SEQUENCE];
            if self.sequence == Some(before) {
                return None;
            }
            fence(Ordering::SeqCst);
            let all = self.words(hints::WORDS).ok()?;
            fence(Ordering::SeqCst);
            let after = self.words(hints::ENTRIES).ok()?[hints::SEQUENCE];
            if before != after || before % 2 != 0 {
                continue;
            }
            // Entries that make no sense now are not looked at again until they change.
            self.sequence = Some(before);
            return Some(hints::entries(&all)?.into_iter().filter_map(hinted).collect());
        }
        None
    }

    fn words(&self, count: usize) -> io::Result<Vec<u64>> {
        words(&self.file, count)
    }
}

fn words(file: &File, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; 8 * count];
    file.read_exact_at(&mut bytes, 0)?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(8).map(word).collect())
}

/// Whole pages only.
fn hinted(entry: Entry) -> Option<Hinted> {
    let hint = match entry.kind {
        Kind::Private => Hint::Private,
        Kind::ReadShared => Hint::ReadShared,
        Kind::WriteShared => Hint::WriteShared,
    };
    let range = PageRange::new(entry.start.div_ceil(PAGE_BYTES), entry.end / PAGE_BYTES);
    (!range.is_empty()).then_some(Hinted { range, hint, interleaved: entry.interleaved })
}

/// The file: the mapping's, where we may ask for that (`CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`), else the
/// descriptor that the program keeps open.
fn find(pid: Pid, (start, end): (u64, u64)) -> Option<File> {
    open(&format!("/proc/{pid}/map_files/{start:x}-{end:x}")).or_else(|| {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().take(FDS_MAX);
        links.map(|link| link.path()).find_map(|path| open(path.to_str()?))
    })
}

/// Opens a link if it is to a section: a file in memory, without a name, sealed at the right length, with the
/// right first words.
fn open(link: &str) -> Option<File> {
    if fs::read_link(link).ok()?.as_os_str() != hints::LINK {
        return None;
    }
    // Only held at first. Any file may have this name. In a file system whose answers are a program's,
    // opening it may never return, and neither may asking for its length.
    let held = File::options().read(true).custom_flags(OFlags::PATH.bits() as i32).open(link).ok()?;
    if !is_in_memory(&held) {
        return None;
    }
    let fits =
        |found: &fs::Metadata| found.is_file() && found.nlink() == 0 && found.len() == hints::BYTES as u64;
    held.metadata().ok().filter(fits)?;
    let held = format!("/proc/self/fd/{}", held.as_raw_fd());
    let file = File::options().read(true).write(true).open(held).ok()?;
    let is_section = is_sealed(file.as_fd()).unwrap_or(false)
        && words(&file, hints::ENTRIES).is_ok_and(|words| hints::is_section(&words));
    is_section.then_some(file)
}

/// Whether a file lies where the kernel keeps memory with names, as far as the kernel knows without asking
/// whoever keeps the file.
fn is_in_memory(file: &File) -> bool {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let memory = DEVICE.get_or_init(|| device(memfd_create("nodewise", MemfdFlags::CLOEXEC).ok()?));
    memory.is_some() && device(file) == *memory
}

fn device(file: impl AsFd) -> Option<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, "", flags, StatxFlags::TYPE).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_runtime::{HonouredBy, Layout, NodeVec, hint, is_managed};
    use nodewise_sys::SharedFile;

    const MAPS: &str = "/proc/self/maps";

    fn me() -> Pid {
        Pid(std::process::id())
    }

    /// All tests of a program share its descriptors and mappings.
    fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Plays the manager of this very process.
    #[test]
    fn what_the_library_says_is_read_and_answered() {
        let _alone = alone();
        assert!(!is_managed());
        let mut sections = Sections::default();
        let maps = crate::maps::Maps::read(
            File::open(MAPS).unwrap(),
            usize::MAX,
            (std::time::Instant::now() + crate::bounds::MAPS_TIME).into(),
        )
        .unwrap();
        sections.find(me(), maps.hints_at.unwrap());
        assert_eq!(sections.read(me(), 100, false, 0), Some(vec![]));
        assert!(!is_managed(), "who only looks on honours nothing");
        let now_ns = crate::kernel::now_ns();
        assert_eq!(sections.read(me(), 100, true, now_ns), None, "nothing has changed");
        assert!(is_managed());
        let here = nodewise_runtime::current_node();
        let vec = NodeVec::<u64>::new(512 * 4, Layout::On(here)).unwrap();
        assert_eq!(hint(&vec[..], nodewise_runtime::Hint::WriteShared).unwrap(), HonouredBy::Manager);
        let start = vec.as_ptr().addr() as u64 / PAGE_BYTES;
        let range = PageRange::new(start, start + 4);
        let said = Hinted { range, hint: Hint::WriteShared, interleaved: false };
        assert_eq!(sections.read(me(), 100, true, now_ns), Some(vec![said]));
        sections.close();
        assert!(!is_managed());
        assert_eq!(hint(&vec[..], nodewise_runtime::Hint::Private).unwrap(), HonouredBy::Library);
    }

    /// The descriptors of this process by that name.
    fn links() -> Vec<String> {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = all.map(|entry| entry.path().to_str().unwrap().to_owned());
        links.filter(|link| fs::read_link(link).is_ok_and(|to| to.as_os_str() == hints::LINK)).collect()
    }

    fn begin(section: &SharedFile) {
        section.as_atomics()[1].store(hints::VERSION, Ordering::Relaxed);
        section.as_atomics()[0].store(hints::MAGIC, Ordering::Relaxed);
    }

    #[test]
    fn what_only_has_the_name_of_a_section_is_not_opened() {
        let _alone = alone();
        let others = links().len();
        let made = SharedFile::new(hints::NAME, hints::BYTES).unwrap();
        let opened = || links().iter().filter(|link| open(link).is_some()).count();
        assert_eq!((links().len(), opened()), (others + 1, others), "without the first words");
        begin(&made);
        assert_eq!(opened(), others + 1);
        let short = SharedFile::new(hints::NAME, hints::BYTES / 2).unwrap();
        begin(&short);
        assert_eq!((links().len(), opened()), (others + 2, others + 1), "too short");
        assert!(open("/proc/self/exe").is_none() && open("/proc/self/fd/99999").is_none());
    }

    #[test]
    fn only_memory_is_asked_anything() {
        let held = |path: &str| {
            File::options().read(true).custom_flags(OFlags::PATH.bits() as i32).open(path).unwrap()
        };
        let memory = memfd_create("some", MemfdFlags::CLOEXEC).unwrap();
        assert!(is_in_memory(&held(&format!("/proc/self/fd/{}", memory.as_raw_fd()))));
        let named = tempfile::NamedTempFile::new().unwrap();
        for path in [named.path().to_str().unwrap(), "/dev/null", "/proc/self/stat", "/dev/shm"] {
            assert!(!is_in_memory(&held(path)), "{path}");
        }
    }

    #[test]
    fn what_is_being_changed_or_makes_no_sense_is_left_for_later() {
        let _alone = alone();
        let made = SharedFile::new(hints::NAME, hints::BYTES).unwrap();
        begin(&made);
        let words = made.as_atomics();
        words[hints::SEQUENCE].store(1001, Ordering::Relaxed);
        let is_made = |file: &File| super::words(file, 3).is_ok_and(|words| words[hints::SEQUENCE] == 1001);
        let file = links().iter().filter_map(|link| open(link)).find(is_made).unwrap();
        let mut section = Section { file, sequence: None };
        words[hints::COUNT].store(1, Ordering::Relaxed);
        assert_eq!(section.read(), None, "being changed");
        words[hints::SEQUENCE].store(2, Ordering::Relaxed);
        assert_eq!(section.read(), Some(vec![]), "an entry without a kind is none");
        words[hints::COUNT].store(u64::MAX, Ordering::Relaxed);
        words[hints::SEQUENCE].store(4, Ordering::Relaxed);
        assert_eq!(section.read(), None, "no section has so many");
    }

    #[test]
    fn hints_beyond_the_bound_are_left_out() {
        let _alone = alone();
        let made = SharedFile::new(hints::NAME, hints::BYTES).unwrap();
        begin(&made);
        let words = made.as_atomics();
        words[hints::SEQUENCE].store(1003, Ordering::Relaxed);
        let is_made = |file: &File| super::words(file, 3).is_ok_and(|words| words[hints::SEQUENCE] == 1003);
        let file = links().iter().filter_map(|link| open(link)).find(is_made).unwrap();
        let mut sections = Sections::default();
        sections.open.insert(me(), Section { file, sequence: None });
        for page in 0..100 {
            let start = page * PAGE_BYTES;
            let entry =
                Entry { start, end: start + PAGE_BYTES, kind: Kind::Private, interleaved: false }.words();
            for (word, value) in words[hints::ENTRIES + 4 * page as usize..].iter().zip(entry) {
                word.store(value, Ordering::Relaxed);
            }
        }
        words[hints::COUNT].store(100, Ordering::Relaxed);
        words[hints::SEQUENCE].store(1004, Ordering::Relaxed);
        assert_eq!(sections.read(me(), 100, false, 0).unwrap().len(), 100);
        assert!(!sections.is_full());
        words[hints::SEQUENCE].store(1006, Ordering::Relaxed);
        assert_eq!(sections.read(me(), 30, false, 0).unwrap().len(), 30);
        assert!(sections.is_full());
    }

    #[test]
    fn a_section_is_found_among_the_mappings() {
        let maps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0\n\
                    7f1000000000-7f1000008000 rw-s 00000000 00:01 1025                       /memfd:nodewise-hints (deleted)\n";
        let at = |maps: &str| {
            crate::maps::Maps::read(
                maps.as_bytes(),
                usize::MAX,
                (std::time::Instant::now() + crate::bounds::MAPS_TIME).into(),
            )
            .unwrap()
            .hints_at
        };
        assert_eq!(at(maps), Some((0x7f10_0000_0000, 0x7f10_0000_8000)));
        assert_eq!(at("x-y rw-s /memfd:nodewise-hints (deleted)"), None);
        assert_eq!(at("/memfd:nodewise-hints (deleted)"), None);
        assert_eq!(at(""), None);
    }
}
