//! How many file descriptors sampling takes, and what to do when that is too many.
//!
//! An event on every CPU of a machine with 1024 takes thousands of descriptors, while the usual limit is
//! 1024.

use crate::bounds::{FILES_EACH, processes_that_fit};
use crate::{Error, ErrorKind};
use nodewise_sys::FileLimit;
use std::fs;

/// Left for files of `/proc`, the log, children's pipes.
const SPARE: u64 = 128;

/// How many streams of events, of `files_each` descriptors, fit below the hard limit beside what is open
/// already, and what managed processes may take.
#[must_use]
pub fn streams_that_fit(files_each: usize, limit: FileLimit, open: usize) -> usize {
    let of_processes = processes_that_fit(limit) as u64 * FILES_EACH;
    let room = limit.hard.saturating_sub(open as u64 + SPARE + of_processes);
    (room / files_each.max(1) as u64) as usize
}

/// Raises the soft limit on open files to the hard one, and says how many streams fit: on every CPU, or else
/// on so many threads.
pub(super) fn make_room(files_each: usize) -> Result<usize, Error> {
    let failed = |error| {
        Error::with_source(ErrorKind::Unsupported, "cannot learn or raise the limit on open files", error)
    };
    let limit = nodewise_sys::file_limit().map_err(failed)?;
    if limit.soft < limit.hard {
        nodewise_sys::set_file_limit(FileLimit { soft: limit.hard, ..limit }).map_err(failed)?;
    }
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    Ok(streams_that_fit(files_each, limit, open))
}

/// Bytes of all rings together.
pub const RINGS_BYTES: usize = 32 << 20;
/// Bytes of the smallest ring.
const LEAST: usize = 16 << 10;

/// Bytes of each of `rings`, at most `largest`. Very many rings are smaller, so that all together stay about
/// 32 MiB.
#[must_use]
pub fn ring_bytes(rings: usize, largest: usize) -> usize {
    let fair = (RINGS_BYTES / rings.max(1)).clamp(LEAST, largest);
    // Down to a power of two.
    1 << fair.ilog2()
}

/// Bytes of one more of so many `rings`, of which each is opened when its thread is met, within the bytes
/// that are `left`. A ring of so many bytes takes up `whole` of them. None if there is no room left.
#[must_use]
pub fn next_ring_bytes(
    left: usize,
    rings: usize,
    largest: usize,
    whole: impl Fn(usize) -> usize,
) -> Option<usize> {
    let mut bytes = ring_bytes(rings, largest);
    while whole(bytes) > left {
        if bytes <= LEAST {
            return None;
        }
        bytes /= 2;
    }
    Some(bytes)
}

/// So many bytes in pages, at least one. Pages may be of 64 KiB.
#[must_use]
pub const fn pages(bytes: usize, page_bytes: usize) -> usize {
    if bytes < page_bytes { 1 } else { bytes / page_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_topology::Topology;
    use proptest::prelude::*;

    #[test]
    fn a_thousand_cpus_fit_by_raising_the_limit() {
        let machine = Topology::synthetic(16, 64, 1 << 30);
        let cpus = machine.online_cpus().len();
        assert_eq!(cpus, 1024);
        let usual = FileLimit { soft: 1024, hard: 524_288 };
        // Sapphire Rapids: loads, their leader, and stores.
        assert!(streams_that_fit(3, usual, 20) >= cpus);
        let tight = FileLimit { soft: 1024, hard: 2048 };
        // Threads, then: so many that what else is read can still be opened.
        assert_eq!(streams_that_fit(3, tight, 20), (2048 - 20 - 128 - 512) / 3);
        assert!(streams_that_fit(1, tight, 20) >= cpus);
    }

    proptest! {
        #[test]
        fn there_is_always_room_to_spare(files in 1_usize..4, hard in 0_u64..1_000_000, open in 0_usize..2000) {
            let limit = FileLimit { soft: 0, hard };
            let streams = streams_that_fit(files, limit, open) as u64;
            let others = open as u64 + SPARE + processes_that_fit(limit) as u64 * FILES_EACH;
            prop_assert!(streams == 0 || streams * files as u64 + others <= hard);
            prop_assert!((streams + 1) * files as u64 + others > hard);
        }

        /// Few are there at first, and get large rings.
        #[test]
        fn rings_of_threads_stay_small_together(
            threads in prop::collection::vec(1_usize..3000, 1..6),
            largest in prop_oneof![Just(64 << 10), Just(256 << 10)],
            page_bytes in prop_oneof![Just(4096_usize), Just(65_536)],
        ) {
            let whole = |bytes: usize| (pages(bytes, page_bytes) + 1 + pages(bytes / 8, page_bytes)) * page_bytes;
            let (mut taken, mut open) = (0, 0);
            for present in threads {
                while open < present {
                    let left = RINGS_BYTES - taken;
                    let Some(bytes) = next_ring_bytes(left, present, largest, whole) else { break };
                    prop_assert!(bytes.is_power_of_two() && bytes <= largest);
                    (taken, open) = (taken + whole(bytes), open + 1);
                    prop_assert!(taken <= RINGS_BYTES);
                }
            }
            prop_assert!(open > 0);
        }

        #[test]
        fn rings_stay_small_together(rings in 0_usize..20_000, page_bytes in prop_oneof![Just(4096), Just(65_536)]) {
            let bytes = ring_bytes(rings, 512 << 10);
            prop_assert!(bytes.is_power_of_two() && bytes <= 512 << 10);
            prop_assert!(bytes <= 16 << 10 || bytes * rings <= 32 << 20);
            let pages = pages(bytes, page_bytes);
            prop_assert!(pages.is_power_of_two());
            prop_assert!(pages == 1 || pages * page_bytes == bytes);
        }
    }

    /// Memory that a user without privileges may map for each CPU: `perf_event_mlock_kb`, by default 512 KiB
    /// and a page.
    #[test]
    fn a_ring_on_each_cpu_fits_into_what_anybody_may_lock() {
        for page_bytes in [4096, 65_536] {
            for cpus in 1..300 {
                let locked = (pages(ring_bytes(cpus, 512 << 10), page_bytes) + 1) * page_bytes;
                assert!(locked <= (512 << 10) + page_bytes, "{cpus} CPUs");
            }
        }
    }
}
