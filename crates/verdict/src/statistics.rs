//! Medians with intervals, a correction for many comparisons, correlation, and a random order.

use crate::paired::median;
use serde::{Deserialize, Serialize};

/// A median and the interval that it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median of the figures.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// How sure it is, in percent, that the true median lies in it. That is 95 at least, and less where there
    /// are too few figures.
    pub confidence_percent: f64,
}

/// How sure an interval should be.
const CONFIDENCE: f64 = 0.95;

impl Interval {
    /// The interval between two of the figures in order (order statistics), which supposes nothing of how
    /// they are distributed; none without figures.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        // The share of all halves and halves in which `out` figures or fewer lie below the true median.
        let mut outside = 0.5_f64.powi(count as i32);
        let (mut term, mut out) = (outside, 0);
        let mut confidence = 1.0 - 2.0 * outside;
        while out + 1 < count.div_ceil(2) {
            term *= (count - out) as f64 / (out + 1) as f64;
            if 1.0 - 2.0 * (outside + term) < CONFIDENCE {
                break;
            }
            out += 1;
            outside += term;
            confidence = 1.0 - 2.0 * outside;
        }
        let (low, high) = (*sorted.get(out)?, sorted[count - 1 - out]);
        Some(Self { median: median(&sorted), low, high, confidence_percent: 100.0 * confidence.max(0.0) })
    }

    /// Half the width, as a share of the median.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.median.abs()
    }
}

/// P-values, corrected for being looked at together (Holm 1979). The chance of one false alarm among them all
/// is at most the level that they are held against.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut least: f64 = 0.0;
    for (rank, &at) in order.iter().enumerate() {
        least = least.max((p[at] * (p.len() - rank) as f64).min(1.0));
        adjusted[at] = least;
    }
    adjusted
}

/// Spearman's correlation of two rows of figures, from -1 to 1; none where one of them is all the same.
#[must_use]
pub fn rank_correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let mean = 0.5 * (a.len() as f64 + 1.0);
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (sum(&a, &a) * sum(&b, &b)).sqrt();
    (scale > 0.0).then(|| sum(&a, &b) / scale)
}

/// Ranks from 1; equal figures share theirs.
fn ranks(figures: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..figures.len()).collect();
    order.sort_by(|&a, &b| figures[a].total_cmp(&figures[b]));
    let mut ranks = vec![0.0; figures.len()];
    let mut before = 0;
    for equal in order.chunk_by(|&a, &b| figures[a].total_cmp(&figures[b]).is_eq()) {
        let rank = before as f64 + 0.5 * (equal.len() as f64 + 1.0);
        for &at in equal {
            ranks[at] = rank;
        }
        before += equal.len();
    }
    ranks
}

/// Random numbers: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// Puts items in a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (u128::from(self.next()) * (last as u128 + 1)) >> 64;
            items.swap(last, other as usize);
        }
    }

    /// A number of the normal distribution with mean 0 and deviation 1 (Box and Muller).
    #[cfg(test)]
    pub(crate) fn normal(&mut self) -> f64 {
        let mut unit = || (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let (radius, angle) = ((-2.0 * (1.0 - unit()).ln()).sqrt(), std::f64::consts::TAU * unit());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of order statistics is in every textbook (as Conover's). With 6 figures it has the first and
    /// the last (96.9 %), with 9 the second and the eighth (96.1 %).
    #[test]
    fn intervals_are_those_of_the_table() {
        for (count, low, percent) in [(6, 1, 96.9), (9, 2, 96.1), (15, 4, 96.5), (20, 6, 95.9)] {
            let interval = Interval::of((1..=count).map(f64::from)).unwrap();
            assert_eq!((interval.low, interval.high), (f64::from(low), f64::from(count + 1 - low)));
            assert!((interval.confidence_percent - percent).abs() < 0.05, "{interval:?}");
        }
        let few = Interval::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.low, few.median, few.high, few.confidence_percent), (1.0, 2.0, 3.0, 75.0));
        assert!(Interval::of([7.0]).unwrap().confidence_percent.abs() < f64::EPSILON);
        assert_eq!(Interval::of([]), None);
    }

    /// The true median lies in the interval as often as it says.
    #[test]
    fn intervals_hold_the_true_median() {
        let mut random = Random::new(1);
        for count in [6, 10, 15] {
            let mut held = 0;
            for _ in 0..2000 {
                // Skewed, as times of runs are.
                let interval = Interval::of((0..count).map(|_| random.normal().exp())).unwrap();
                held += i32::from((interval.low..=interval.high).contains(&1.0));
            }
            assert!(f64::from(held) / 2000.0 >= 0.945, "{held} of 2000 for {count}");
        }
    }

    #[test]
    fn many_comparisons_are_corrected_for() {
        assert_eq!(holm(&[0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02]);
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    #[test]
    fn correlation_is_of_the_ranks() {
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-12, "{a:?}");
        near(rank_correlation(&[1.0, 2.0, 3.0], &[1.0, 10.0, 1000.0]), 1.0);
        near(rank_correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        near(rank_correlation(&[1.0, 2.0, 3.0, 4.0], &[2.0, 1.0, 4.0, 3.0]), 0.6);
        assert_eq!(rank_correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
    }
}
