//! Are the pages of a region with several accessors shared, or private to one node each but finely mixed?
//!
//! Two samples of a private page always agree on the node; two of a shared page agree by chance, in Σ pᵢ² of
//! cases. From the rate of agreement among pages sampled at least twice follows the share of private pages,
//! and from that how likely a page is private whose few samples agree: Bayes' rule, so that a shared page
//! that was sampled twice from one node by chance is not taken for private.

use super::pages::Page;

/// Share of samples of a private page that come from elsewhere: initialisation, a migrating thread, a page
/// scan.
const STRAY: f64 = 0.02;

/// The sharing of a region's pages, as their samples tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    /// Pages with at least two samples.
    pub pairs: f64,
    /// Further samples of pages after the first, as far as they add to what is known.
    pub repeats: f64,
    /// Share of private pages: the best guess, and its standard error.
    pub private: f64,
    /// See `private`.
    pub error: f64,
    /// Share of each node as accessor, page by page.
    pub accessors: Vec<f64>,
}

/// The nature of a region, by its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Most pages are used by several nodes.
    Shared,
    /// Most pages are used by one node each.
    Mixed,
    /// Too little is known.
    Undecided,
}

/// Samples of pages already sampled that are needed to tell, and of how many pages.
const MIN_REPEATS: f64 = 16.0;
/// See above.
const MIN_PAIRS: f64 = 4.0;

impl Sharing {
    /// Looks at the pages of a region.
    pub fn of<'a>(pages: impl Iterator<Item = (u64, Page<'a>)>, nodes: usize, by_faults: bool) -> Self {
        let mut accessors = vec![0.0; nodes];
        let (mut pairs, mut repeats, mut agree, mut agree_squares, mut seen) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (_, page) in pages {
            let total = f64::from(page.total());
            if total == 0.0 {
                continue;
            }
            seen += 1.0;
            let mut same = 0.0;
            for (node, share) in accessors.iter_mut().enumerate() {
                let count = f64::from(page.accesses(node));
                *share += count / total;
                same += count * (count - 1.0);
            }
            if total >= 2.0 {
                let rate = same / (total * (total - 1.0));
                pairs += 1.0;
                repeats += (total - 1.0).min(8.0);
                agree += rate;
                agree_squares += rate * rate;
            }
        }
        if seen > 0.0 {
            for share in &mut accessors {
                *share /= seen;
            }
        }
        let chance: f64 = accessors.iter().map(|p| p * p).sum();
        let mut sharing = Self { pairs, repeats, private: 0.0, error: 1.0, accessors };
        if pairs > 0.0 && chance < 1.0 {
            let mean = agree / pairs;
            // One more that agrees and one that does not: never more certain than their number allows.
            // Samples count, so that few pages tell enough if each was sampled often. But all hint faults
            // of a scan may be those of the node that came first, and then pages count.
            let known = if by_faults { pairs } else { repeats };
            let variance = (agree_squares / pairs - mean * mean).max(0.0) + 0.5 / known;
            sharing.private = ((mean - chance) / (1.0 - chance)).clamp(0.0, 1.0);
            sharing.error = (variance / pairs).sqrt() / (1.0 - chance);
        }
        sharing
    }

    /// The nature of the region; none with too few pages sampled twice.
    pub fn nature(&self) -> Option<Nature> {
        (self.pairs >= MIN_PAIRS && self.repeats >= MIN_REPEATS).then_some(
            if self.private + 2.0 * self.error < 0.5 {
                Nature::Shared
            } else if self.private - 2.0 * self.error > 0.5 {
                Nature::Mixed
            } else {
                Nature::Undecided
            },
        )
    }

    /// The node that most likely owns the page, and how likely the page is private to it.
    pub fn owner(&self, page: Page<'_>) -> Option<(usize, f64)> {
        let node = (0..self.accessors.len()).max_by_key(|&node| (page.accesses(node), usize::MAX - node))?;
        let prior = (self.private - self.error).clamp(0.0, 0.999);
        let share = |node: usize| self.accessors[node].max(1e-6);
        let mut log_private = prior.ln() + share(node).ln();
        let mut log_shared = (1.0 - prior).ln();
        for other in 0..self.accessors.len() {
            let count = f64::from(page.accesses(other));
            log_shared += count * share(other).ln();
            log_private += count * if other == node { 1.0 - STRAY } else { STRAY * share(other) }.ln();
        }
        Some((node, 1.0 / (1.0 + (log_shared - log_private).exp())))
    }
}
