//! Splitting other processes' huge pages into base pages, and making huge pages of them again.
//!
//! Advice that covers a part of a huge page makes the kernel split it (`madvise_cold_or_pageout_pte_range`,
//! `mm/madvise.c`, Linux 6.12). The call succeeds whether it could or not, so that each page is looked at
//! afterwards. `MADV_COLLAPSE` puts the huge page on the node that has most of its base pages
//! (`hpage_collapse_find_target_node`, `mm/khugepaged.c`).

use crate::mover::Kernel;
use crate::settings::{KHUGEPAGED_PAGES, KHUGEPAGED_SLEEP, SharedSettings};
use nodewise_engine::{HUGE_PAGE_PAGES, Outcome, PAGE_BYTES, PageNumber};
use nodewise_sys::{AddressRange, ErrorKind, ProcessAdvice, pidfd_open, poll_readable, process_madvise};
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The size that huge pages are to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Base pages.
    Base,
    /// Huge pages.
    Huge,
}

impl Size {
    /// Huge pages in one call: splitting one takes about 0.1 ms, making one 0.9 ms.
    const fn batch(self) -> usize {
        match self {
            Self::Base => 64,
            Self::Huge => 8,
        }
    }

    fn range(self, page: PageNumber) -> AddressRange {
        let pages = match self {
            Self::Base => 1,
            Self::Huge => HUGE_PAGE_PAGES,
        };
        AddressRange { address: page.address().0, bytes: pages * PAGE_BYTES }
    }

    /// Milliseconds before a page is tried again that is in use by the kernel for a moment. It is in the way
    /// of splitting that a page is being migrated: for some ms, and up to 0.3 s in an emulated guest.
    const fn waits_ms(self) -> &'static [u64] {
        match self {
            Self::Base => &[1, 10, 100, 300],
            Self::Huge => &[0, 0],
        }
    }

    const fn advice(self) -> ProcessAdvice {
        match self {
            Self::Base => ProcessAdvice::Cold,
            Self::Huge => ProcessAdvice::Collapse,
        }
    }
}

/// Keeps khugepaged from making huge pages of what is about to be split.
///
/// It would do so within seconds, and put each on one node; nobody else can keep it from that
/// (`Documentation/admin-guide/mm/transhuge.rst`). It sleeps for an hour between two scans until Nodewise
/// ends. Setting how long it sleeps wakes it for one more scan, which makes one huge page at most
/// (`scan_sleep_millisecs_store`, `mm/khugepaged.c`, Linux 6.12). It is to find what is not split yet, and
/// its priority is the least, so that it may come to it late.
pub(crate) fn pause_khugepaged(settings: &SharedSettings) {
    const HOUR: &str = "3600000";
    let is_paused =
        || std::fs::read_to_string(KHUGEPAGED_SLEEP).is_ok_and(|milliseconds| milliseconds.trim() == HOUR);
    let scans = if is_paused() { None } else { Scans::of(Path::new("/proc")) };
    // If it may not be changed, pages that were made again are split again, ever more rarely.
    for (setting, value) in [(KHUGEPAGED_PAGES, "1"), (KHUGEPAGED_SLEEP, HOUR)] {
        let _ = settings.set(Path::new(setting), value);
    }
    if let Some(scans) = scans.filter(|_| is_paused()) {
        let end = Instant::now() + LAST_SCAN;
        while Instant::now() < end && !scans.is_one_over() {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// No scan is waited for longer. Its thread has the least priority, and gets a hundredth of a CPU beside busy
/// programs. For each page that it makes it copies two megabytes.
const LAST_SCAN: Duration = Duration::from_secs(3);

/// Tells whether khugepaged has scanned since.
struct Scans {
    /// `/proc/PID/status` of its thread.
    status: PathBuf,
    /// So often had it gone to sleep.
    before: u64,
}

impl Scans {
    /// From now on, unless its thread is not to be seen in `proc`.
    fn of(proc: &Path) -> Option<Self> {
        let directories = std::fs::read_dir(proc).ok()?.flatten().map(|entry| entry.path());
        let status = |path: PathBuf| {
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            Some(path.join("status")).filter(|_| name.trim() == "khugepaged")
        };
        // Any program may have its name.
        directories
            .filter_map(status)
            .find_map(|status| Some(Self { before: Sleeper::read(&status)?.times, status }))
    }

    fn is_one_over(&self) -> bool {
        Sleeper::read(&self.status).is_none_or(|now| now.sleeps && now.times > self.before)
    }
}

/// A thread of the kernel by its `/proc/PID/status`.
struct Sleeper {
    sleeps: bool,
    /// So often has it gone to sleep.
    times: u64,
}

impl Sleeper {
    fn read(status: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(status).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // Number 2 is the parent of all of them.
        field("PPid:").filter(|&parent| parent == "2")?;
        let times = field("voluntary_ctxt_switches:")?.parse().ok()?;
        Some(Self { sleeps: field("State:")?.starts_with('S'), times })
    }
}

/// Changes the size of huge pages of `pid`, each given by its first base page, in their order, and says of
/// how many base pages it did. Pages that are left at `deadline_ns`, the last of them, are deferred.
/// `is_same` tells whether the process still is the one that was meant.
pub(crate) fn resize(
    kernel: &mut impl Kernel,
    pid: u32,
    pages: &[PageNumber],
    size: Size,
    deadline_ns: u64,
    is_same: impl FnOnce() -> bool,
) -> Outcome {
    let mut outcome = Outcome { planned: pages.len() as u64 * HUGE_PAGE_PAGES, ..Outcome::default() };
    // A number may become another process's; a handle opened before the look does not.
    let process = pidfd_open(pid as i32).ok().filter(|_| is_same());
    let Some(process) = process else {
        (outcome.vanished, outcome.process_gone) = (outcome.planned, true);
        return outcome;
    };
    let (mut left, mut refused, mut deferred) = (pages.to_vec(), 0, 0);
    let waits_ms = [0].iter().chain(size.waits_ms());
    for (attempt, &wait_ms) in waits_ms.enumerate() {
        if attempt > 0 && (left.is_empty() || kernel.now_ns() >= deadline_ns) {
            break;
        }
        thread::sleep(Duration::from_millis(wait_ms));
        let mut busy = Vec::new();
        for batch in left.chunks(size.batch()) {
            if kernel.now_ns() >= deadline_ns {
                if attempt == 0 {
                    deferred += batch.len();
                } else {
                    busy.extend_from_slice(batch);
                }
                continue;
            }
            let begin = kernel.cpu_ns();
            let is_refused = advise(&process, batch, size);
            let took = kernel.cpu_ns().saturating_sub(begin);
            outcome.calls += 1;
            outcome.blocked_ns += took;
            outcome.longest_call_ns = outcome.longest_call_ns.max(took);
            for &page in batch {
                // A page that is just being migrated says nothing of its size, and was not split.
                let is = |size: Size, kernel: &mut dyn Kernel| {
                    kernel.is_huge(pid, page) == Some(size == Size::Huge)
                };
                let mut done = is(size, &mut *kernel);
                let lives =
                    || poll_readable(&[process.as_fd()], Some(Duration::ZERO)).is_ok_and(|ended| !ended[0]);
                if !done && size == Size::Base && !is_refused && lives() {
                    split_by_debugfs(pid, page);
                    done = is(size, &mut *kernel);
                }
                match (done, is_refused) {
                    (true, _) => {}
                    (false, true) => refused += 1,
                    (false, false) => busy.push(page),
                }
            }
        }
        left = busy;
    }
    let base = |huge: usize| huge as u64 * HUGE_PAGE_PAGES;
    (outcome.deferred, outcome.not_permitted, outcome.busy) =
        (base(deferred), base(refused), base(left.len()));
    outcome.moved = base(pages.len() - deferred - refused - left.len());
    outcome
}

/// Advises page by page where a batch ends early, as it does at the first page that is no longer mapped.
/// Returns whether it was refused.
fn advise(process: &OwnedFd, pages: &[PageNumber], size: Size) -> bool {
    let ranges: Vec<AddressRange> = pages.iter().map(|&page| size.range(page)).collect();
    let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
    match process_madvise(process, &ranges, size.advice()) {
        Ok(advised) if advised == bytes => false,
        Err(error) if error.kind() == ErrorKind::NotPermitted => true,
        _ => {
            for &range in &ranges {
                // The page's state afterwards tells the outcome.
                let _ = process_madvise(process, &[range], size.advice());
            }
            false
        }
    }
}

/// The other way, where debugfs is mounted: it splits what advice does not (`split_huge_pages_write`,
/// `mm/huge_memory.c`).
fn split_by_debugfs(pid: u32, page: PageNumber) {
    let range = Size::Huge.range(page);
    let text = format!("{pid},{:#x},{:#x}", range.address, range.address + range.bytes);
    let file = std::fs::File::options().write(true).open("/sys/kernel/debug/split_huge_pages");
    // The page's state afterwards tells the outcome.
    let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_over_once_the_kernels_thread_sleeps_again() {
        let proc = tempfile::tempdir().unwrap();
        let write = |pid: u32, parent: u32, state: &str, times: u32| {
            let directory = proc.path().join(pid.to_string());
            std::fs::create_dir_all(&directory).unwrap();
            let status = format!(
                "Name:\tkhugepaged\nState:\t{state}\nPPid:\t{parent}\nvoluntary_ctxt_switches:\t{times}\n"
            );
            std::fs::write(directory.join("status"), status).unwrap();
            std::fs::write(directory.join("comm"), "khugepaged\n").unwrap();
        };
        assert!(Scans::of(proc.path()).is_none());
        write(7, 1, "S (sleeping)", 900);
        assert!(Scans::of(proc.path()).is_none(), "a program has taken its name");
        write(50, 2, "S (sleeping)", 83);
        let scans = Scans::of(proc.path()).unwrap();
        assert!(!scans.is_one_over());
        write(50, 2, "R (running)", 83);
        assert!(!scans.is_one_over());
        write(50, 2, "R (running)", 84);
        assert!(!scans.is_one_over());
        write(50, 2, "S (sleeping)", 84);
        assert!(scans.is_one_over());
    }
}
