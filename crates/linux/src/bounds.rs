//! Bounds on looking at a managed program. A program makes as much of it as it likes, and the
//! manager, which may be root's, is to stay small and quick all the same: below 256 MB, whatever it manages.

use crate::sampler::RINGS_BYTES;
use nodewise_sys::FileLimit;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Managed processes: 256 bytes each, their mappings and records aside.
pub(crate) const PROCESSES: usize = 4096;
/// Open files of each process: its handle, and its hints.
pub(crate) const FILES_EACH: u64 = 2;
/// Threads whose children are looked for at once, of all processes together: a file each, some 10 us.
pub(crate) const THREADS: usize = 1 << 15;
/// Mappings of all processes together, some 100 bytes each. The kernel lets a process have 65 530
/// (`vm.max_map_count`).
pub(crate) const MAPPINGS: usize = 1 << 18;
/// So many mappings are read of any process, however many others have.
pub(crate) const MAPPINGS_EACH: usize = 128;
/// Bytes of `/proc/PID/maps`. 65 530 mappings of libraries take 7 MB; names may make any one line 24 kB long.
pub(crate) const MAPS_BYTES: u64 = 16 << 20;
/// Time for mappings of all processes in one look at them, or for policies of one process. Reading waits for
/// whoever changes mappings, and while memory is short for more of it; the watchdog counts on an answer
/// within 10 s.
pub(crate) const MAPS_TIME: Duration = Duration::from_secs(2);
/// Samples in an interval, 64 bytes each. Every second sample is left out where there are more, again and
/// again.
pub(crate) const SAMPLES: usize = 1 << 18;

/// Time for finding out where the pages of an interval's samples are. Some microseconds a page, and more in
/// emulators.
pub(crate) const LOCATE_TIME: Duration = Duration::from_secs(2);

/// Bytes of what is known of single pages (`KnownHomes`), of all processes together: of 50 GiB where pages of
/// the same 2 MiB lie on several nodes, and of much more where they do not.
pub(crate) const KNOWN_BYTES: usize = 48 << 20;

/// Hints of all processes together, some 100 bytes each. A section has room for 1022.
pub(crate) const HINTS: usize = 1 << 16;

/// Ranges of a process that are kept in mind while they are interleaved, 40 bytes each, and as many that
/// could be replicated. The engine keeps in mind as many.
pub(crate) const RANGES_EACH: usize = 1 << 13;
/// Such ranges of all processes together.
pub(crate) const RANGES: usize = 1 << 16;

/// Bounds on what is managed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) mappings: usize,
    pub(crate) mappings_each: usize,
}

/// Processes whose files take no more than a quarter of those that may be open. Without a file to open,
/// nothing could be read, nor put back.
#[must_use]
pub fn processes_that_fit(limit: FileLimit) -> usize {
    PROCESSES.min((limit.hard / 4 / FILES_EACH) as usize)
}

impl Default for Limits {
    fn default() -> Self {
        let processes = nodewise_sys::file_limit().map_or(PROCESSES, processes_that_fit);
        Self { processes, threads: THREADS, mappings: MAPPINGS, mappings_each: MAPPINGS_EACH }
    }
}

/// A bound that was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Bound {
    /// There are more processes than are managed.
    Processes,
    /// There are more threads than are asked for their children.
    Threads,
    /// A process has more mappings, or longer names of them, than are read, or they could not be read in
    /// time.
    Mappings,
    /// There were more samples in an interval than are kept, or than there was time for.
    Samples,
    /// There are more hints than are heeded.
    Hints,
    /// There is more memory than it can be remembered of where its pages are.
    Pages,
    /// There are more threads than there is memory for their samples, or than files may be open.
    Streams,
    /// There are more sampled pages than have a record of who uses them.
    Records,
    /// There are more ranges than it can be remembered of what was done there.
    Ranges,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processes => write!(
                f,
                "more than {PROCESSES} processes, or than the limit on open files has room for: the rest is left alone"
            ),
            Self::Threads => {
                write!(f, "more than {THREADS} threads: children of the rest are found when they are orphans")
            }
            Self::Mappings => write!(
                f,
                "a process with more mappings than are read ({} MiB of /proc/PID/maps, {MAPPINGS} in all, in {} s): memory in the rest is left alone",
                MAPS_BYTES >> 20,
                MAPS_TIME.as_secs()
            ),
            Self::Hints => write!(f, "more than {HINTS} hints: the rest is not heeded"),
            Self::Pages => write!(
                f,
                "more memory than {} MiB can tell of where its pages are: the rest is left alone",
                KNOWN_BYTES >> 20
            ),
            Self::Streams => write!(
                f,
                "more threads than {} MiB of rings, or the limit on open files, have room for: the rest is not sampled",
                RINGS_BYTES >> 20
            ),
            Self::Records => write!(
                f,
                "more sampled pages than can have a record of who uses them: the rest is left alone"
            ),
            Self::Ranges => write!(
                f,
                "more than {RANGES} ranges, or {RANGES_EACH} of a process, of which it can be remembered what was done there: some may be done again"
            ),
            Self::Samples => write!(
                f,
                "more samples in an interval than {} s are enough for, or than {SAMPLES}: only some are looked at",
                LOCATE_TIME.as_secs()
            ),
        }
    }
}
