//! How many file descriptors sampling takes, and what to do when that is too many.
//!
//! An event on every CPU of a machine with 1024 takes thousands of descriptors, while the usual limit is 1024.

use crate::{Error, ErrorKind};
use nodewise_sys::FileLimit;
use std::fs;

/// Left for files of `/proc`, the log, children's pipes.
const SPARE: u64 = 128;

/// How to open events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// On every CPU, after raising the soft limit where a value is given.
    PerCpu {
        /// The soft limit to set.
        raise_to: Option<u64>,
    },
    /// On each thread of the managed processes.
    PerThread,
}

/// Decides by the limit and the descriptors that are open already.
#[must_use]
pub fn opening(cpus: usize, files_per_cpu: usize, limit: FileLimit, open: usize) -> Opening {
    let sampling = (cpus as u64).saturating_mul(files_per_cpu as u64);
    let needed = sampling.saturating_add(open as u64 + SPARE);
    if needed <= limit.soft {
        Opening::PerCpu { raise_to: None }
    } else if needed <= limit.hard {
        Opening::PerCpu { raise_to: Some(needed) }
    } else {
        Opening::PerThread
    }
}

/// Raises the soft limit on open files so far that events fit on every CPU; false if even the hard one is too low.
pub(super) fn make_room(cpus: usize, files_per_cpu: usize) -> Result<bool, Error> {
    let failed = |error| {
        Error::with_source(ErrorKind::Unsupported, "cannot learn or raise the limit on open files", error)
    };
    let limit = nodewise_sys::file_limit().map_err(failed)?;
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    match opening(cpus, files_per_cpu, limit, open) {
        Opening::PerThread => return Ok(false),
        Opening::PerCpu { raise_to: None } => {}
        Opening::PerCpu { raise_to: Some(soft) } => {
            nodewise_sys::set_file_limit(FileLimit { soft, ..limit }).map_err(failed)?;
        }
    }
    Ok(true)
}

/// Data pages of each of `rings`: up to 2 MiB, some 29 000 faults, so that a program that allocates between two readings does not
/// overrun it; where there are very many rings less, so that all together stay about 64 MiB.
#[must_use]
pub fn ring_pages(rings: usize) -> usize {
    const TOTAL_PAGES: usize = 64 * 256;
    let fair = (TOTAL_PAGES / rings.max(1)).clamp(4, 512);
    // Down to a power of two.
    1 << fair.ilog2()
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
        assert_eq!(opening(cpus, 3, usual, 20), Opening::PerCpu { raise_to: Some(3 * 1024 + 20 + 128) });
        assert_eq!(opening(64, 3, usual, 20), Opening::PerCpu { raise_to: None });
        let tight = FileLimit { soft: 1024, hard: 2048 };
        assert_eq!(opening(cpus, 3, tight, 20), Opening::PerThread);
        assert_eq!(opening(cpus, 1, tight, 20), Opening::PerCpu { raise_to: Some(1024 + 20 + 128) });
    }

    proptest! {
        #[test]
        fn what_is_planned_fits(cpus in 0_usize..9000, files in 1_usize..4, soft in 0_u64..10_000, more in 0_u64..1_000_000, open in 0_usize..2000) {
            let limit = FileLimit { soft, hard: soft + more };
            let needed = (cpus * files + open) as u64;
            match opening(cpus, files, limit, open) {
                Opening::PerCpu { raise_to } => {
                    prop_assert!(needed < raise_to.unwrap_or(limit.soft));
                    prop_assert!(raise_to.is_none_or(|to| to > limit.soft && to <= limit.hard));
                }
                Opening::PerThread => prop_assert!(needed + SPARE > limit.hard),
            }
        }

        #[test]
        fn rings_stay_small_together(rings in 0_usize..20_000) {
            let pages = ring_pages(rings);
            prop_assert!(pages.is_power_of_two());
            prop_assert!(pages <= 4 || pages * rings <= 64 * 256);
        }
    }
}
