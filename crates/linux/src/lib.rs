//! The live machine: samplers, the mover, processes, kernel settings, and the [`LinuxMachine`] made of them.
//! And recordings that `perf` made of one.
#![forbid(unsafe_code)]
// These panic where nothing can be written, and nothing that only reports may stop a program.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod allocations;
mod batch_size;
mod bound_memory;
mod bounds;
pub mod census;
mod disks;
mod ending;
mod error;
pub mod first_touch;
mod hints;
mod homes;
mod huge;
mod in_order;
mod intake;
mod interleaved;
mod jit;
pub mod kernel;
pub mod kernel_time;
mod known_homes;
mod machine;
mod maps;
pub mod mover;
mod obstacles;
mod page_frames;
pub mod perf_data;
pub mod placement;
pub mod probe;
pub mod process;
mod put_off;
mod resize;
pub mod sampler;
pub mod settings;
mod shared;
mod survey;
mod symbols;
mod threads;
mod traffic;
mod unseen;
mod unwind;
mod variables;

pub use bounds::Bound;
pub use disks::{DiskUse, bytes_so_far};
pub use ending::Ending;
pub use error::{Error, ErrorKind};
pub use machine::{LinuxMachine, MachineSettings, Totals, require_nodes};
pub use maps::NamedMapping;
pub use obstacles::{hidden_percent, obstacles};
pub use survey::Survey;
pub use symbols::{Frame, Symbols};
pub use unseen::{NodeShare, UnseenFiles};
pub use variables::{Variable, static_memory};

/// The parsers of what a process can have `/proc` say, for `scripts/fuzz`.
#[cfg(fuzzing)]
pub mod parsers {
    use crate::ending::{Ending, Until};
    use nodewise_engine::{Mapping, PageRange};
    use std::time::{Duration, Instant};

    fn soon() -> Until {
        Until { at: Instant::now() + Duration::from_secs(60), ending: Ending::default() }
    }

    /// Mappings by `/proc/PID/maps`, so many at most.
    pub fn mappings(maps: &[u8], most: usize) -> Vec<Mapping> {
        crate::maps::Maps::read(maps, most, soon()).map_or_else(|_| Vec::new(), |maps| maps.mappings)
    }

    /// Ranges of these mappings that are bound by `/proc/PID/numa_maps`.
    pub fn bound(policies: &[u8], mappings: &[Mapping]) -> Vec<PageRange> {
        crate::maps::bound(policies, mappings, soon()).unwrap_or_default()
    }

    /// A process's start time by its `/proc/PID/stat`.
    pub fn start_time(stat: &str) -> Option<u64> {
        crate::process::Stat::parse(stat).map(|stat| stat.start_time)
    }
}
