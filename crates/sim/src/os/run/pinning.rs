//! How a program's threads are laid over the cores.

use crate::Error;
use nodewise_hardware::{CpuNumbering, Preset};
use std::fmt;
use std::str::FromStr;

/// The order in which threads get cores; they stay there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// On the CPUs in the order of their numbers, whichever sockets these are on: on Grid'5000's dahu each
    /// thread's successor is on the other one.
    Sequential,
    /// All cores of a node, then those of the next: threads that follow each other share a socket.
    SockOrder,
    /// One on each node in turn.
    Spread,
    /// Not at all. An idle Linux spreads them; later only NUMA balancing moves them, as every thread has a
    /// core of its own.
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
    /// The cores of a machine in this order.
    #[must_use]
    pub fn cores(self, preset: &Preset) -> Vec<usize> {
        let by_node = match self {
            Self::Sequential => preset.cpu_numbering == CpuNumbering::Contiguous,
            Self::SockOrder => true,
            Self::Spread | Self::None => false,
        };
        let mut next = 0;
        let mut places = Vec::with_capacity(preset.cores());
        for (node, cores) in preset.nodes.iter().map(|node| node.cores).enumerate() {
            places.extend((0..cores).map(|turn| (turn, node, next + turn)));
            next += cores;
        }
        if !by_node {
            places.sort_unstable();
        }
        places.into_iter().map(|(_, _, core)| core).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_laid_over_cores_in_order() {
        let opteron = Preset::named("opteron-8385-4n").unwrap();
        assert_eq!(Pinning::Spread.cores(&opteron)[..6], [0, 4, 8, 12, 1, 5]);
        assert_eq!(Pinning::SockOrder.cores(&opteron), (0..16).collect::<Vec<_>>());
        assert_eq!(Pinning::Sequential.cores(&opteron), (0..16).collect::<Vec<_>>());
        let dahu = Preset::named("dahu-2n").unwrap();
        assert_eq!(Pinning::Sequential.cores(&dahu)[..4], [0, 16, 1, 17]);
        assert_eq!(Pinning::SockOrder.cores(&dahu), (0..32).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in PINNINGS {
            assert_eq!(name.parse::<Pinning>().unwrap().to_string(), name);
        }
        assert!("magic".parse::<Pinning>().unwrap_err().to_string().contains("sockorder"));
    }
}
