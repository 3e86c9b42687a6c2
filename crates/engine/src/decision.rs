//! Decisions: what to do with which pages, the reason, and the outcome.

use crate::{HUGE_PAGE_PAGES, PageNumber, PageRange, Pid};
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
    /// Pages whose place in [the order](Self::order) lies in `band.0..band.1` are moved.
    pub band: (u64, u64),
    /// Relative weight of each node as target, by node index.
    pub weights: Vec<u32>,
    /// Seed of the order.
    pub seed: u64,
}

/// The rule behind a decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Left for a later interval: the budget or the time was spent. Pages that were not looked at count, too.
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

/// One past the last place in the order of interleaving.
pub(crate) const BAND_END: u64 = 1 << 32;

impl Interleaving {
    /// The place of a page in the order in which pages are interleaved, which is compared with the band.
    /// `pages`: how many base pages move at once with it, those of a huge page or another folio, or 1.
    ///
    /// Sixteen neighbours of a size lie 1/16 apart, so that any share of many is exact, and neighbours go to
    /// different nodes. Each sixteen have an offset of their own by chance: threads that go through their
    /// parts in step do not all meet at one node.
    #[must_use]
    pub const fn order(page: PageNumber, pages: u64, seed: u64) -> u32 {
        /// Powers of two times them are far apart, up to 16. Three times 5 is not, nor 5 times 3.
        const STRIDES: [u64; 2] = [3, 5];
        let (huge, base) = (page.0 / HUGE_PAGE_PAGES, page.0 % HUGE_PAGE_PAGES);
        let (number, sixteen) = match pages {
            // The tables of docs/simulator.md are by this order of base pages.
            1 if base < 16 => (huge + base, huge / 16 * HUGE_PAGE_PAGES),
            1 => (huge + base, page.0 / 16 * 16),
            _ => (page.0 / pages, page.0 / pages / 16 * if pages < 16 { 16 } else { pages }),
        };
        let chance = mix(sixteen ^ mix(seed));
        let stride = STRIDES[(chance >> 63) as usize];
        (((stride * number) as u32) << 28).wrapping_add(chance as u32)
    }

    /// Whether the program or the user asks for it: the node then keeps its part. Else it gives pages away
    /// because it has too much.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.weights[self.from.get()] > 0
    }

    /// Where the page goes, and `pages` base pages with it, or none if they stay. The caller checks that
    /// their home is `from`.
    #[must_use]
    pub fn target(&self, page: PageNumber, pages: u64) -> Option<NodeIndex> {
        let (begin, end) = self.band;
        let order = u64::from(Self::order(page, pages, self.seed));
        if order < begin || order >= end {
            return None;
        }
        // The band is divided by weight, here without a division.
        let total: u64 = self.weights.iter().map(|&w| u64::from(w)).sum();
        let place = u128::from(order - begin) * u128::from(total);
        let mut sum = 0;
        let node = self.weights.iter().position(|&weight| {
            sum += u64::from(weight);
            place < u128::from(sum) * u128::from(end - begin)
        });
        node.map(|node| NodeIndex(node as u8))
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

#[cfg(test)]
mod tests {
    use super::{BAND_END, Interleaving};
    use crate::{HUGE_PAGE_PAGES, PageNumber};
    use nodewise_topology::NodeIndex;

    /// How many pages go to each node, of so many from here that are each so many base pages long.
    fn spread(weights: &[u32], first: u64, pages: u64, size: u64) -> Vec<u64> {
        let weights = weights.to_vec();
        let all = Interleaving { from: NodeIndex(0), band: (0, BAND_END), weights, seed: 1 };
        let mut shares = vec![0; all.weights.len()];
        for page in 0..pages {
            shares[all.target(PageNumber(first + page * size), size).unwrap().get()] += 1;
        }
        shares
    }

    #[test]
    fn a_share_of_pages_is_exact_whatever_their_size() {
        for size in [1, HUGE_PAGE_PAGES] {
            // Chance would be off by 29 of 1024 pages, and in one case of a hundred by more than 75.
            for (first, pages, weights, off) in
                [(0, 4096, [1; 4], 0.0), (999_424, 4096, [1; 4], 0.0), (77 << 20, 4000, [3, 2, 0, 5], 6.0)]
            {
                let all: u32 = weights.iter().sum();
                for (got, weight) in spread(&weights, first, pages, size).into_iter().zip(weights) {
                    let exact = pages as f64 * f64::from(weight) / f64::from(all);
                    assert!((got as f64 - exact).abs() <= off, "{size}: {got} pages, {exact} exactly");
                }
            }
            // Few of them, anywhere. By chance, a node has five or more in one case of nine.
            for first in (0..64).map(|at| at * 7 * HUGE_PAGE_PAGES) {
                let shares = spread(&[1; 4], first, 8, size);
                assert!(shares.iter().all(|&share| share <= 4), "{size}, {first}: {shares:?}");
            }
        }
    }

    /// Some of sixteen neighbours in a row are spread but for one. Sixty-four begin and end within sixteen.
    #[test]
    fn few_folios_of_any_size_are_spread_evenly() {
        for size in (0..=9).map(|log| 1 << log) {
            for first in (0..64).map(|at| at * 7 * HUGE_PAGE_PAGES) {
                let shares = spread(&[1; 4], first, 64, size);
                assert!(shares.iter().all(|share| (14..=18).contains(share)), "{size}, {first}: {shares:?}");
            }
        }
    }

    /// Four balls that are thrown into four boxes at random meet by 2.13 in the fullest.
    #[test]
    fn threads_in_step_do_not_all_meet_at_one_node() {
        for size in [1, 16, 256, HUGE_PAGE_PAGES] {
            for stride in (0..14).map(|log| 1 << log).chain([3, 5, 7, 12, 24, 48, 96, 1000, 1023, 1025]) {
                let all =
                    Interleaving { from: NodeIndex(0), band: (0, BAND_END), weights: vec![1; 4], seed: 1 };
                let most = |step: u64| {
                    let mut met = [0; 4];
                    for thread in 0..4 {
                        let page = PageNumber((thread * stride + step) * size);
                        met[all.target(page, size).unwrap().get()] += 1;
                    }
                    f64::from(met.into_iter().max().unwrap())
                };
                let mean = (0..4096).map(most).sum::<f64>() / 4096.0;
                assert!(mean < 2.5, "{size} base pages, {stride} apart: {mean}");
            }
        }
    }
}
