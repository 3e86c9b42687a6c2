//! Statistics of paired runs.

use serde::{Deserialize, Serialize};

/// The comparison that pairs of scores give.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The median of the pairs' ratios, second to first.
    pub ratio: f64,
    /// The smallest and the largest. With 7 pairs they are a confidence interval of the median of 98.4 %, as
    /// 2 of 2⁷ samples lie on one side of it.
    pub ratios: (f64, f64),
    /// How probable a difference as clear as this is if there is none: Wilcoxon's signed-rank test of the
    /// ratios' logarithms, exact, two-sided.
    pub p: f64,
}

/// Compares pairs of positive scores; none without pairs.
#[must_use]
pub fn compare(pairs: &[(f64, f64)]) -> Option<Comparison> {
    let mut ratios: Vec<f64> = pairs.iter().map(|(first, second)| second / first).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let (&least, &most) = (ratios.first()?, ratios.last()?);
    Some(Comparison { ratio: median(&ratios), ratios: (least, most), p: signed_rank(&ratios) })
}

/// The median of sorted figures, of which there is one at least.
#[must_use]
pub fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { sorted[middle - 1].midpoint(sorted[middle]) }
}

/// The two-sided p-value of Wilcoxon's signed-rank test of the ratios' logarithms.
///
/// It is exact: it counts all ways to give signs to the ranks. The p-value is the share of ways in which the
/// positive ones add up to as little, or as much. Equal ratios share their ranks. Ratios of 1 are left out.
#[must_use]
pub fn signed_rank(ratios: &[f64]) -> f64 {
    let mut logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).filter(|&log| log != 0.0).collect();
    logarithms.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
    // Twice the ranks: the mean of shared ones may be a half.
    let mut ranks = Vec::with_capacity(logarithms.len());
    for equal in logarithms.chunk_by(|a, b| b.abs() - a.abs() <= 1e-9 * b.abs()) {
        let rank = 2 * ranks.len() + equal.len() + 1;
        ranks.extend(std::iter::repeat_n(rank, equal.len()));
    }
    let all: usize = ranks.iter().sum();
    let seen: usize =
        ranks.iter().zip(&logarithms).filter(|&(_, &log)| log > 0.0).map(|(rank, _)| rank).sum();
    // The share of all ways that add up to each sum.
    let mut ways = vec![0.0; all + 1];
    ways[0] = 1.0;
    for &rank in &ranks {
        for sum in (0..=all).rev() {
            ways[sum] = 0.5 * (ways[sum] + if sum >= rank { ways[sum - rank] } else { 0.0 });
        }
    }
    let as_clear: f64 = ways[..=seen.min(all - seen)].iter().sum();
    (2.0 * as_clear).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the table of critical values in Wilcoxon (1945) and in every textbook: of 7 pairs, a sum of 2
    /// is significant at 5 % (p = 0.0469), one of 3 is not (0.0781); of 10, 8 is (0.0488) and 9 is not
    /// (0.0645).
    #[test]
    fn the_signed_rank_test_agrees_with_its_table() {
        let p = |pairs: usize, positive: &[usize]| {
            let ratio = |rank: usize| {
                let by = 1.0 + rank as f64 / 100.0;
                if positive.contains(&rank) { by } else { 1.0 / by }
            };
            signed_rank(&(1..=pairs).map(ratio).collect::<Vec<_>>())
        };
        let near = |p: f64, expected: f64| assert!((p - expected).abs() < 5e-5, "{p}, not {expected}");
        near(p(7, &[]), 0.0156);
        near(p(7, &[2]), 0.0469);
        near(p(7, &[3]), 0.0781);
        near(p(10, &[8]), 0.0488);
        near(p(10, &[9]), 0.0645);
        near(p(7, &[1, 2, 3, 4, 5, 6, 7]), 0.0156);
        near(p(4, &[1, 4]), 1.0);
    }

    /// Coarse clocks give equal ratios. With 8 that are all up, 2 of 2⁸ ways are as clear.
    #[test]
    fn equal_ratios_share_their_ranks() {
        assert!((signed_rank(&[1.1; 8]) - 2.0 / 256.0).abs() < 1e-12);
        assert!(signed_rank(&[1.1, 1.0 / 1.1, 1.1, 1.0 / 1.1]) > 0.99);
        // More ratios than ways could be counted one by one.
        assert!(signed_rank(&[1.01; 60]) < 1e-15);
    }

    #[test]
    fn the_median_of_ratios_is_taken_not_the_ratio_of_medians() {
        let compared = compare(&[(1.0, 2.0), (10.0, 11.0), (100.0, 90.0)]).unwrap();
        assert_eq!((compared.ratio, compared.ratios), (1.1, (0.9, 2.0)));
        assert_eq!(compare(&[]), None);
        assert!(compare(&[(2.0, 2.0); 7]).unwrap().p > 0.99);
    }
}
