//! How a program's threads are laid over the CPUs.

use crate::Error;
use nodewise_hardware::{CpuNumbering, Preset};
use std::fmt;
use std::str::FromStr;

/// The order in which threads get CPUs; they stay there. A core's second hardware thread gets one only when
/// all first ones have some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// On the CPUs in the order of their numbers, whichever sockets these are on: on Grid'5000's dahu each
    /// thread's successor is on the other one.
    Sequential,
    /// All CPUs of a node, then those of the next: threads that follow each other share a socket. Second
    /// hardware threads are the last of their node.
    SockOrder,
    /// One on each node in turn.
    Spread,
    /// Not at all. An idle Linux spreads them; later only NUMA balancing moves them, as every thread has a
    /// CPU of its own.
    #[default]
    None,
}

/// Their names.
pub const PINNINGS: [&str; 4] = ["sequential", "sockorder", "spread", "none"];
const ALL: [Pinning; 4] = [Pinning::Sequential, Pinning::SockOrder, Pinning::Spread, Pinning::None];

impl fmt::Display for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PINNINGS[ALL.iter().position(|pinning| pinning == self).unwrap_or(0)])
    }
}

impl FromStr for Pinning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let place = PINNINGS.iter().position(|&name| name == text);
        place.map(|place| ALL[place]).ok_or_else(|| {
            Error::unknown(format!("no such order: {text}; there are {}", PINNINGS.join(", ")))
        })
    }
}

impl Pinning {
    /// The CPUs of a machine in this order.
    #[must_use]
    pub fn cpus(self, preset: &Preset) -> Vec<usize> {
        let mut next = 0;
        let threads = preset.core.threads;
        let mut places = Vec::with_capacity(preset.cpus());
        for (node, cores) in preset.nodes.iter().map(|node| node.cores).enumerate() {
            let cpus = (0..cores * threads).map(|cpu| (cpu % threads, cpu / threads, node, next + cpu));
            places.extend(cpus);
            next += cores * threads;
        }
        places.sort_by_key(|&(thread, core, node, _)| match self {
            Self::SockOrder => (node, thread, core),
            Self::Sequential if preset.cpu_numbering == CpuNumbering::Contiguous => (thread, node, core),
            Self::Sequential | Self::Spread | Self::None => (thread, core, node),
        });
        places.into_iter().map(|(_, _, _, cpu)| cpu).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_laid_over_cores_in_order() {
        let opteron = Preset::named("opteron-8385-4n").unwrap();
        assert_eq!(Pinning::Spread.cpus(&opteron)[..6], [0, 4, 8, 12, 1, 5]);
        assert_eq!(Pinning::SockOrder.cpus(&opteron), (0..16).collect::<Vec<_>>());
        assert_eq!(Pinning::Sequential.cpus(&opteron), (0..16).collect::<Vec<_>>());
        let dahu = Preset::named("dahu-2n").unwrap();
        assert_eq!(Pinning::Sequential.cpus(&dahu)[..4], [0, 16, 1, 17]);
        assert_eq!(Pinning::SockOrder.cpus(&dahu), (0..32).collect::<Vec<_>>());
    }

    /// As Linux numbers them: the first threads of all cores, then the second ones.
    #[test]
    fn second_threads_of_cores_come_last() {
        let mut preset = Preset::named("dahu-2n").unwrap();
        preset.nodes.iter_mut().for_each(|node| node.cores = 2);
        preset.core.threads = 2;
        assert_eq!(Pinning::Sequential.cpus(&preset), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(Pinning::SockOrder.cpus(&preset), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(Pinning::None.cpus(&preset), [0, 4, 2, 6, 1, 5, 3, 7]);
        preset.cpu_numbering = CpuNumbering::Contiguous;
        assert_eq!(Pinning::Sequential.cpus(&preset), [0, 2, 4, 6, 1, 3, 5, 7]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in PINNINGS {
            assert_eq!(name.parse::<Pinning>().unwrap().to_string(), name);
        }
        assert!("magic".parse::<Pinning>().unwrap_err().to_string().contains("sockorder"));
    }
}
