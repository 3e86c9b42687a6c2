//! Finds the addresses where the pattern of accesses changes.
//!
//! Pages are gathered into at most [`BUCKETS`] buckets with equally many pages. The best cut is the one that makes two
//! distributions explain the buckets better than one does, by the G statistic; it must be better by more than chance
//! among that many cuts would give. Each page weighs one, however often it was sampled: samples of one page say little
//! about its neighbours.

use super::evidence::xlogx;

const BUCKETS: usize = 256;

/// A page and the share of its accesses in each category (they sum to one); categories are nodes, reads and writes apart.
pub struct Profile {
    /// The page.
    pub page: u64,
    /// One past its last base page.
    pub end: u64,
}

/// Pages in address order with their distributions.
pub struct Profiles {
    pub pages: Vec<Profile>,
    pub categories: usize,
    /// `categories` shares for each page.
    pub shares: Vec<f32>,
}

impl Profiles {
    fn shares(&self, at: usize) -> &[f32] {
        &self.shares[at * self.categories..(at + 1) * self.categories]
    }

    fn sum(&self, from: usize, to: usize) -> Vec<f64> {
        let mut sum = vec![0.0; self.categories];
        for at in from..to {
            for (total, &share) in sum.iter_mut().zip(self.shares(at)) {
                *total += f64::from(share);
            }
        }
        sum
    }

    /// The positions in `pages` at which another pattern begins, ascending.
    pub fn cuts(&self) -> Vec<usize> {
        let mut cuts = Vec::new();
        self.cut(0, self.pages.len(), &mut cuts);
        cuts
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
        let mut left = vec![0.0; self.categories];
        let (mut best, mut best_at) = (0.0, 0);
        for bucket in 1..buckets {
            for (sum, add) in left.iter_mut().zip(self.sum(bound(bucket - 1), bound(bucket))) {
                *sum += add;
            }
            let gain = gain(&left, &all);
            if gain > best {
                (best, best_at) = (gain, bucket);
            }
        }
        // A cut costs as many parameters as there are categories (Schwarz's criterion), and is the best of many tried.
        let degrees = (used - 1) as f64;
        let threshold = degrees * (pages as f64).ln() + 2.0 * (buckets as f64).ln() + 6.0;
        if best <= threshold {
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
        let mut left = self.sum(from, low);
        let (mut best, mut best_at) = (0.0, middle);
        for at in low + 1..high {
            for (sum, &add) in left.iter_mut().zip(self.shares(at - 1)) {
                *sum += f64::from(add);
            }
            let gain = gain(&left, &all);
            if gain > best {
                (best, best_at) = (gain, at);
            }
        }
        best_at
    }

    /// The first page of the right part of a cut: of all addresses between the two sampled pages the roundest, since
    /// programs lay out their data so.
    pub fn address(&self, cut: usize) -> u64 {
        roundest(self.pages[cut - 1].end, self.pages[cut].page)
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

/// The G statistic of a part against the rest.
fn gain(left: &[f64], all: &[f64]) -> f64 {
    let (mut l, mut r, mut g) = (0.0, 0.0, 0.0);
    for (&x, &sum) in left.iter().zip(all) {
        let y = (sum - x).max(0.0);
        l += x;
        r += y;
        g += xlogx(x) + xlogx(y) - xlogx(sum);
    }
    2.0 * (g - xlogx(l) - xlogx(r) + xlogx(l + r))
}

#[cfg(test)]
mod tests {
    use super::{Profile, Profiles, roundest};

    fn profiles(owner: impl Fn(u64) -> usize, pages: impl Iterator<Item = u64>) -> Profiles {
        let pages: Vec<_> = pages.map(|page| Profile { page, end: page + 1 }).collect();
        let mut shares = vec![0.0; pages.len() * 4];
        for (at, p) in pages.iter().enumerate() {
            shares[at * 4 + owner(p.page)] = 1.0;
        }
        Profiles { pages, categories: 4, shares }
    }

    #[test]
    fn quarters_are_cut_exactly() {
        let p = profiles(|page| (page / 5000) as usize, (0..20000).filter(|p| p % 7 == 3));
        let cuts: Vec<u64> = p.cuts().iter().map(|&cut| p.pages[cut - 1].page / 5000).collect();
        assert_eq!(cuts, [0, 1, 2]);
    }

    #[test]
    fn one_pattern_is_not_cut() {
        assert!(profiles(|_| 2, 0..3000).cuts().is_empty());
        assert!(profiles(|page| (page % 4) as usize, 0..3000).cuts().is_empty());
        let scattered = |page: u64| (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % 4;
        assert!(profiles(scattered, 0..30000).cuts().is_empty());
    }

    #[test]
    fn the_roundest_address_wins() {
        assert_eq!(roundest(5000, 5200), 5120);
        assert_eq!(roundest(512, 700), 512);
        assert_eq!(roundest(7, 7), 7);
        assert_eq!(roundest(9, 8), 8);
    }
}
