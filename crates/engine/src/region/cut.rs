//! Finds the addresses where the pattern of accesses changes.
//!
//! Pages are gathered into at most [`BUCKETS`] buckets with equally many pages. The best cut is the one that
//! makes two distributions explain the buckets better than one does, by the G statistic; it must be better by
//! more than chance among that many cuts would give. Each page weighs one, however often it was sampled:
//! samples of one page say little about its neighbours.

use super::evidence::xlogx;
use super::pages::Pages;
use crate::PageRange;

const BUCKETS: usize = 256;
/// Parts less far apart (half the sum of the differences of their distributions) are left together.
const LEAST: f64 = 0.4;
/// The search for cuts looks at only some pages, evenly, if there are more than this; the cuts are refined
/// with all.
const MOST: usize = 1 << 14;

/// Pages in address order with their distributions of accesses over categories: nodes, reads and writes
/// apart.
pub struct Profiles {
    /// First base page and one past the last.
    pages: Vec<(u64, u64)>,
    categories: usize,
    /// `categories` shares for each page, which sum to one.
    shares: Vec<f32>,
    /// For each page and one past the last, the sums of the shares of the pages before it. They are exact: a
    /// share has 24 bits, and there are too few pages for sums to need more than 53.
    sums: Vec<f64>,
    /// Whether all pages with a record are here.
    complete: bool,
}

impl Profiles {
    /// The pages of a range that have a record.
    pub fn of(pages: &Pages, range: PageRange, round: u32) -> Self {
        Self::some(MOST, pages, range, round)
    }

    fn some(most: usize, pages: &Pages, range: PageRange, round: u32) -> Self {
        let categories = 2 * pages.nodes();
        let complete = pages.count(range.start.0, range.end.0) <= most;
        let mut profiles =
            Self { pages: Vec::new(), categories, shares: Vec::new(), sums: Vec::new(), complete };
        for (page, record) in pages.survey(range, most, round) {
            let total = record.total() as f32;
            if total > 0.0 {
                profiles.pages.push((page, page + record.pages()));
                profiles.shares.extend((0..pages.nodes()).map(|node| record.kinds(node).0 as f32 / total));
                profiles.shares.extend((0..pages.nodes()).map(|node| record.kinds(node).1 as f32 / total));
            }
        }
        profiles.summed()
    }

    /// The same with its sums.
    fn summed(mut self) -> Self {
        let mut sum = vec![0.0; self.categories];
        self.sums.reserve(self.shares.len() + self.categories);
        self.sums.extend(&sum);
        for shares in self.shares.chunks_exact(self.categories) {
            for (total, &share) in sum.iter_mut().zip(shares) {
                *total += f64::from(share);
            }
            self.sums.extend(&sum);
        }
        self
    }

    fn shares(&self, at: usize) -> &[f32] {
        &self.shares[at * self.categories..(at + 1) * self.categories]
    }

    fn sum(&self, from: usize, to: usize) -> Vec<f64> {
        let before = |at: usize| &self.sums[at * self.categories..(at + 1) * self.categories];
        before(to).iter().zip(before(from)).map(|(to, from)| to - from).collect()
    }

    /// The pages at which another pattern begins, ascending.
    pub fn cuts(&self, pages: &Pages, round: u32) -> Vec<u64> {
        let mut cuts = Vec::new();
        self.cut(0, self.pages.len(), &mut cuts);
        let mut bounds = vec![0];
        bounds.extend(&cuts);
        bounds.push(self.pages.len());
        let addresses = (1..bounds.len() - 1).map(|i| {
            let at = bounds[i];
            if self.complete {
                return self.address(at);
            }
            let window =
                PageRange::new(self.pages[at - 1].0, self.pages[(at + 1).min(self.pages.len() - 1)].1);
            let all = Self::some(usize::MAX, pages, window, round);
            let border = all.border(&self.sum(bounds[i - 1], at), &self.sum(at, bounds[i + 1]));
            all.address(border)
        });
        addresses.collect()
    }

    /// Where the left distribution gives way to the right one.
    fn border(&self, left: &[f64], right: &[f64]) -> usize {
        let log = |sum: &[f64]| -> Vec<f64> {
            let total: f64 = sum.iter().sum::<f64>() + 1.0;
            sum.iter().map(|x| ((x + 1.0 / sum.len() as f64) / total).ln()).collect()
        };
        let (left, right) = (log(left), log(right));
        let (mut score, mut best, mut best_at) = (0.0, f64::NEG_INFINITY, 1);
        for at in 1..self.pages.len() {
            let shares = self.shares(at - 1).iter().map(|&share| f64::from(share));
            score += shares.zip(left.iter().zip(&right)).map(|(share, (l, r))| share * (l - r)).sum::<f64>();
            if score > best {
                (best, best_at) = (score, at);
            }
        }
        best_at
    }

    fn cut(&self, from: usize, to: usize, cuts: &mut Vec<usize>) {
        let pages = to - from;
        if pages < 4 {
            return;
        }
        let buckets = pages.min(BUCKETS);
        let bound = |bucket: usize| from + pages * bucket / buckets;
        let all = self.sum(from, to);
        let used = all.iter().filter(|&&x| x > 0.0).count();
        if used < 2 {
            return;
        }
        let gain = Gain::over(&all);
        let (mut best, mut best_at) = (0.0, 0);
        for bucket in 1..buckets {
            let gain = gain.of(&self.sum(from, bound(bucket)));
            if gain > best {
                (best, best_at) = (gain, bucket);
            }
        }
        // A cut costs as many parameters as there are categories (Schwarz's criterion), and is the best of
        // many tried.
        let degrees = (used - 1) as f64;
        let threshold = degrees * (pages as f64).ln() + 2.0 * (buckets as f64).ln() + 6.0;
        if best <= threshold {
            return;
        }
        let left = self.sum(from, bound(best_at));
        let (l, r) = (left.iter().sum::<f64>(), all.iter().sum::<f64>() - left.iter().sum::<f64>());
        let differences = left.iter().zip(&all).map(|(x, all)| (x / l - (all - x) / r).abs());
        if differences.sum::<f64>() / 2.0 < LEAST {
            return;
        }
        let at = self.refine(bound(best_at - 1), bound(best_at), bound((best_at + 1).min(buckets)), from, to);
        self.cut(from, at, cuts);
        cuts.push(at);
        self.cut(at, to, cuts);
    }

    /// The best cut among the pages of the two buckets beside the best border.
    fn refine(&self, low: usize, middle: usize, high: usize, from: usize, to: usize) -> usize {
        let all = self.sum(from, to);
        let gain = Gain::over(&all);
        let (mut best, mut best_at) = (0.0, middle);
        for at in low + 1..high {
            let gain = gain.of(&self.sum(from, at));
            if gain > best {
                (best, best_at) = (gain, at);
            }
        }
        best_at
    }

    /// The first page of the right part of a cut before the page at a position: of all addresses between the
    /// two pages the roundest, since programs lay out their data so.
    fn address(&self, at: usize) -> u64 {
        roundest(self.pages[at - 1].1, self.pages[at].0)
    }
}

/// The number in `low..=high` that is divisible by the highest power of two; `high` where `low > high`.
pub fn roundest(low: u64, high: u64) -> u64 {
    if low >= high {
        return high;
    }
    if low == 0 {
        return 0;
    }
    let differing = ((low - 1) ^ high).ilog2();
    high >> differing << differing
}

/// The G statistic of parts against the rest.
struct Gain {
    /// The sum of each category in all, and what it gives.
    all: Vec<(f64, f64)>,
}

impl Gain {
    fn over(all: &[f64]) -> Self {
        Self { all: all.iter().map(|&sum| (sum, xlogx(sum))).collect() }
    }

    fn of(&self, left: &[f64]) -> f64 {
        let (mut l, mut r, mut g) = (0.0, 0.0, 0.0);
        for (&x, &(sum, of_sum)) in left.iter().zip(&self.all) {
            let y = (sum - x).max(0.0);
            l += x;
            r += y;
            g += xlogx(x) + xlogx(y) - of_sum;
        }
        2.0 * (g - xlogx(l) - xlogx(r) + xlogx(l + r))
    }
}

#[cfg(test)]
mod tests {
    use super::{Profiles, roundest};

    fn profiles(owner: impl Fn(u64) -> usize, pages: impl Iterator<Item = u64>) -> Profiles {
        let pages: Vec<_> = pages.map(|page| (page, page + 1)).collect();
        let mut shares = vec![0.0; pages.len() * 4];
        for (at, p) in pages.iter().enumerate() {
            shares[at * 4 + owner(p.0)] = 1.0;
        }
        Profiles { pages, categories: 4, shares, sums: Vec::new(), complete: true }.summed()
    }

    fn positions(profiles: &Profiles) -> Vec<usize> {
        let mut cuts = Vec::new();
        profiles.cut(0, profiles.pages.len(), &mut cuts);
        cuts
    }

    #[test]
    fn quarters_are_cut_exactly() {
        let p = profiles(|page| (page / 5000) as usize, (0..20000).filter(|p| p % 7 == 3));
        let cuts: Vec<u64> = positions(&p).iter().map(|&cut| p.address(cut)).collect();
        assert_eq!(cuts.iter().map(|cut| (cut + 7) / 5000).collect::<Vec<_>>(), [1, 2, 3], "{cuts:?}");
    }

    #[test]
    fn one_pattern_is_not_cut() {
        assert!(positions(&profiles(|_| 2, 0..3000)).is_empty());
        assert!(positions(&profiles(|page| (page % 4) as usize, 0..3000)).is_empty());
        let scattered = |page: u64| (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % 4;
        assert!(positions(&profiles(scattered, 0..30000)).is_empty());
    }

    #[test]
    fn the_roundest_address_wins() {
        assert_eq!(roundest(5000, 5200), 5120);
        assert_eq!(roundest(512, 700), 512);
        assert_eq!(roundest(7, 7), 7);
        assert_eq!(roundest(9, 8), 8);
    }
}
