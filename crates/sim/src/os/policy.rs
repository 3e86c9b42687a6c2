//! Placement policies by name.

use crate::Error;
use crate::ace;
use std::fmt;
use std::str::FromStr;

/// Where pages go, and who moves them later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Where the thread runs that touches a page first: Linux's default.
    FirstTouch,
    /// Page by page around the nodes, as each thread touches them first (`MPOL_INTERLEAVE` of a process).
    Interleave,
    /// The same, each node in proportion to its weight (`MPOL_WEIGHTED_INTERLEAVE`, Linux 6.9). If none are
    /// given they come of the machine's bandwidths, as in Linux 6.16.
    WeightedInterleave(Vec<u32>),
    /// Each area in as many contiguous blocks as there are nodes, one for each; those of fewer pages on the
    /// first nodes.
    Blocked,
    /// One node only (`MPOL_BIND`).
    Bind(usize),
    /// One node while it has room, then the nearest (`MPOL_PREFERRED`).
    Preferred(usize),
    /// First touch, then NUMA balancing as Linux 6 does it, which moves threads too unless they are pinned.
    AutoNuma {
        /// Huge pages that nodes share are split in the fault path (Gachod's patch).
        split: bool,
    },
    /// First touch, then NUMA balancing as version 27 of the `AutoNUMA` patch has it (for Linux 3.6), which
    /// moves threads too unless they are pinned.
    AutoNuma27,
    /// First touch, then Nodewise's engine with its Carrefour policy, and replication.
    Carrefour,
    /// The ACE paper's: every node's memory a cache over global memory, until a page was moved too often.
    Ace(ace::Policy),
    /// Where a first run of the same program shows that each page belongs: see [`simulate`](crate::simulate).
    Oracle,
}

/// Names that [`Policy`] is parsed from, with what they are.
pub const POLICIES: [(&str, &str); 12] = [
    ("first-touch", "pages where they are touched first"),
    ("interleave", "pages round the nodes"),
    ("weighted-interleave", "the same by bandwidth, or by weights as in weighted-interleave:2/1/1/1"),
    ("blocked", "each area in one block a node"),
    ("bind:N", "all pages on node N"),
    ("preferred:N", "pages on node N while it has room, then on the nearest"),
    ("autonuma", "first touch and the kernel's NUMA balancing"),
    ("autonuma+split", "the same, splitting huge pages that nodes share"),
    ("autonuma-27", "first touch and the balancing of the AutoNUMA patch, version 27, for Linux 3.6"),
    (
        "carrefour",
        "first touch and Nodewise's engine, with replication; not on machines without caches (ace-7)",
    ),
    (
        "ace",
        "copies where pages are used, until a page moved 4 times; ace:N for N, ace+pragmas to heed the program",
    ),
    ("oracle", "the fastest of all the others and of placements that a first run shows: an upper bound"),
];

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstTouch => f.write_str("first-touch"),
            Self::Interleave => f.write_str("interleave"),
            Self::WeightedInterleave(weights) => {
                f.write_str("weighted-interleave")?;
                for (index, weight) in weights.iter().enumerate() {
                    write!(f, "{}{weight}", if index == 0 { ':' } else { '/' })?;
                }
                Ok(())
            }
            Self::Blocked => f.write_str("blocked"),
            Self::Bind(node) => write!(f, "bind:{node}"),
            Self::Preferred(node) => write!(f, "preferred:{node}"),
            Self::AutoNuma { split: false } => f.write_str("autonuma"),
            Self::AutoNuma { split: true } => f.write_str("autonuma+split"),
            Self::AutoNuma27 => f.write_str("autonuma-27"),
            Self::Carrefour => f.write_str("carrefour"),
            Self::Ace(policy) => {
                f.write_str("ace")?;
                if policy.moves != ace::Policy::default().moves {
                    write!(f, ":{}", policy.moves)?;
                }
                f.write_str(if policy.pragmas { "+pragmas" } else { "" })
            }
            Self::Oracle => f.write_str("oracle"),
        }
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || {
            let names: Vec<_> = POLICIES.iter().map(|policy| policy.0).collect();
            Error::unknown(format!("no such policy: {text}; there are {}", names.join(", ")))
        };
        if let Some(told) = text.strip_prefix("ace") {
            let (moves, pragmas) = match told.strip_suffix("+pragmas") {
                Some(moves) => (moves, true),
                None => (told, false),
            };
            let default = ace::Policy::default();
            let moves = match moves.strip_prefix(':') {
                Some(number) => number
                    .parse()
                    .map_err(|_| Error::unknown(format!("{text}: moves are a number, as in ace:4")))?,
                None if moves.is_empty() => default.moves,
                None => return Err(unknown()),
            };
            return Ok(Self::Ace(ace::Policy { moves, pragmas, ..default }));
        }
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        match (name, argument) {
            ("first-touch", None) => Ok(Self::FirstTouch),
            ("interleave", None) => Ok(Self::Interleave),
            ("weighted-interleave", None) => Ok(Self::WeightedInterleave(Vec::new())),
            ("weighted-interleave", Some(weights)) => {
                // The kernel has bytes for them.
                let weight = |text: &str| text.parse::<u8>().map(u32::from);
                let weights: Result<Vec<u32>, _> = weights.split('/').map(weight).collect();
                let weights = weights.ok().filter(|weights| weights.iter().any(|&weight| weight > 0));
                weights.map(Policy::WeightedInterleave).ok_or_else(|| {
                    let how = "weights are numbers up to 255, not all 0, as in weighted-interleave:2/1/1/1";
                    Error::unknown(format!("{text}: {how}"))
                })
            }
            ("blocked", None) => Ok(Self::Blocked),
            ("bind" | "preferred", node) => node
                .unwrap_or_default()
                .parse()
                .map(if name == "bind" { Policy::Bind } else { Policy::Preferred })
                .map_err(|_| Error::unknown(format!("{text}: a node is a number, as in {name}:0"))),
            ("autonuma", None) => Ok(Self::AutoNuma { split: false }),
            ("autonuma+split", None) => Ok(Self::AutoNuma { split: true }),
            ("autonuma-27", None) => Ok(Self::AutoNuma27),
            ("carrefour", None) => Ok(Self::Carrefour),
            ("oracle", None) => Ok(Self::Oracle),
            (name, Some(_)) if name.parse::<Self>().is_ok() => {
                Err(Error::unknown(format!("{text}: {name} takes no argument")))
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [
            "first-touch",
            "interleave",
            "weighted-interleave",
            "weighted-interleave:2/1",
            "blocked",
            "bind:3",
            "preferred:1",
            "autonuma",
            "autonuma+split",
            "autonuma+split",
            "autonuma-27",
            "carrefour",
            "ace",
            "ace:0",
            "ace+pragmas",
            "ace:7+pragmas",
            "oracle",
        ] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        for name in [
            "",
            "bind",
            "bind:x",
            "preferred",
            "weighted-interleave:0/0",
            "weighted-interleave:256/1",
            "interleave:1",
            "magic",
            "ace:",
            "acepragmas",
        ] {
            assert!(name.parse::<Policy>().is_err(), "{name}");
        }
        let reason = |name: &str| name.parse::<Policy>().unwrap_err().to_string();
        assert_eq!(reason("bind"), "bind: a node is a number, as in bind:0");
        assert_eq!(reason("interleave:1"), "interleave:1: interleave takes no argument");
    }
}
