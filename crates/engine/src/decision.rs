//! Decisions: what to do with which pages, the reason, and the outcome.

use crate::{PageNumber, PageRange, Pid};
use nodewise_topology::NodeIndex;
use serde::{Deserialize, Serialize};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Whose pages.
    pub pid: Pid,
    /// Which pages; those that are not present are passed over.
    pub range: PageRange,
    /// The action on these pages.
    pub action: Action,
    /// Which rule asked for it, with the figures behind it.
    pub reason: Reason,
}

/// An action on a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Move every page to the one node that uses it.
    Collocate {
        /// The accessor node.
        to: NodeIndex,
    },
    /// Move listed pages, each to the one node that uses it: private pages so finely mixed that no range says
    /// it.
    CollocateEach {
        /// In page order, all within the decision's range; a huge page by its first base page.
        pages: Vec<PageTarget>,
    },
    /// Interleave pages over the nodes.
    Interleave(Interleaving),
    /// Give each accessor node a copy. On a stock kernel only reported.
    Replicate,
    /// Split huge pages whose parts are used by different nodes into base pages, which can then be collocated
    /// one by one (Gachod 2024).
    Split {
        /// In page order, each the first base page of a huge page. They are tried in this order: what is
        /// deferred is the last of them.
        pages: Vec<PageNumber>,
    },
    /// Make huge pages again of the base pages of split ones that one node uses by now.
    Collapse {
        /// As in [`Action::Split`].
        pages: Vec<PageNumber>,
    },
}

impl Action {
    /// Whether it changes how large pages are, and not where they are.
    #[must_use]
    pub const fn resizes(&self) -> bool {
        matches!(self, Self::Split { .. } | Self::Collapse { .. })
    }
}

/// Where one page should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTarget {
    /// The page.
    pub page: PageNumber,
    /// Its accessor node.
    pub to: NodeIndex,
}

/// Which pages of a range leave a node, and where each goes: a pure function of the page. The machine needs
/// no list, and a later, disjoint band never picks a page that was interleaved once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interleaving {
    /// Only pages whose home this is are moved.
    pub from: NodeIndex,
    /// Pages whose hash lies in `band.0..band.1` are moved; hashes are uniform over the 32-bit numbers.
    pub band: (u64, u64),
    /// Relative weight of each node as target, by node index.
    pub weights: Vec<u32>,
    /// Seed of the hash.
    pub seed: u64,
}

/// The rule behind a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// A short sentence for people.
    pub rule: String,
    /// The figures that the rule looked at.
    pub figures: Figures,
}

/// The evidence for a decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Evidence for the range: reads and accesses of unknown kind by accessor node (samples, decayed).
    pub reads: Vec<f32>,
    /// Evidence for the range: writes by accessor node.
    pub writes: Vec<f32>,
    /// Sampled pages of the range by home node.
    pub homes: Vec<f32>,
    /// Local access ratio of the interval, percent.
    pub local_access_percent: Option<f64>,
    /// Controller imbalance of the interval, percent.
    pub controller_imbalance_percent: Option<f64>,
}

/// The outcome of a decision, in pages. `planned` is the sum of all that follow up to `not_permitted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Present pages that the decision wanted elsewhere.
    pub planned: u64,
    /// Now at their target.
    pub moved: u64,
    /// As many of them were moved before: they bounce, or the program changed.
    #[serde(default)]
    pub moved_again: u64,
    /// Left for a later interval: the budget was spent.
    pub deferred: u64,
    /// Pinned or in use, after retries.
    pub busy: u64,
    /// The target node had no room.
    pub node_full: u64,
    /// Gone (unmapped, exited) between planning and moving.
    pub vanished: u64,
    /// The kernel would not let us.
    pub not_permitted: u64,
    /// Calls that were made; of one that served several decisions, the first has it.
    pub calls: u64,
    /// CPU time of the calls, ns: about how long threads of the target could have waited, and longer where
    /// the caller was taken off its CPU midway.
    pub blocked_ns: u64,
    /// That of the longest single call, ns.
    pub longest_call_ns: u64,
    /// The process was gone.
    pub process_gone: bool,
    /// Nothing was done because this machine cannot (or a dry run must not).
    pub only_reported: bool,
}

/// One past the largest hash of a page.
pub(crate) const BAND_END: u64 = 1 << 32;

impl Interleaving {
    /// The hash of a page, which is compared with the band.
    #[must_use]
    pub const fn hash(page: PageNumber, seed: u64) -> u32 {
        mix(page.0 ^ mix(seed)) as u32
    }

    /// Where the page goes, or none if it stays. The caller checks that its home is `from`.
    #[must_use]
    pub fn target(&self, page: PageNumber) -> Option<NodeIndex> {
        let hash = mix(page.0 ^ mix(self.seed));
        let selected = u64::from(Self::hash(page, self.seed));
        if selected < self.band.0 || selected >= self.band.1 {
            return None;
        }
        let total: u64 = self.weights.iter().map(|&w| u64::from(w)).sum();
        let mut ticket = ((hash >> 32) * total) >> 32;
        for (node, &weight) in self.weights.iter().enumerate() {
            if ticket < u64::from(weight) {
                return Some(NodeIndex(node as u8));
            }
            ticket -= u64::from(weight);
        }
        None
    }
}

/// A bijection of the 64-bit numbers that spreads neighbours apart (the finaliser of `SplitMix64`, Steele et
/// al. 2014).
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
