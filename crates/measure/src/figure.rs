//! A figure that was measured several times.

use serde::Serialize;

/// The median of several passes, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the passes.
    pub median: f64,
    /// First quartile: a quarter of the passes is below.
    pub lower_quartile: f64,
    /// Third quartile: a quarter of the passes is above.
    pub upper_quartile: f64,
    /// Lowest pass.
    pub lowest: f64,
    /// Highest pass.
    pub highest: f64,
    /// Number of passes.
    pub passes: usize,
}

impl Figure {
    /// The figure of some passes. Quartiles between two passes are interpolated.
    ///
    /// # Panics
    /// If there is no pass.
    #[must_use]
    pub fn of(mut passes: Vec<f64>) -> Self {
        passes.sort_by(f64::total_cmp);
        let last = passes.len().checked_sub(1).expect("a figure has a pass");
        let quartile = |quarters: usize| {
            let (below, part) = (last * quarters / 4, (last * quarters % 4) as f64 / 4.0);
            passes[below] + part * (passes[last.min(below + 1)] - passes[below])
        };
        Self {
            median: quartile(2),
            lower_quartile: quartile(1),
            upper_quartile: quartile(3),
            lowest: passes[0],
            highest: passes[last],
            passes: passes.len(),
        }
    }

    /// Half the distance between the quartiles, in percent of the median. An outlier does not change it.
    #[must_use]
    pub fn spread_percent(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            50.0 * (self.upper_quartile - self.lower_quartile) / self.median
        }
    }
}

/// Bytes and nanoseconds as MB/s, of 1,000,000 bytes.
pub(crate) fn megabytes_per_s(bytes: u64, ns: u64) -> f64 {
    bytes as f64 * 1000.0 / ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_are_between_the_passes() {
        let five = Figure {
            median: 3.0,
            lower_quartile: 2.0,
            upper_quartile: 4.0,
            lowest: 1.0,
            highest: 900.0,
            passes: 5,
        };
        assert_eq!(Figure::of(vec![3.0, 1.0, 4.0, 2.0, 900.0]), five);
        let two = Figure::of(vec![5.0, 1.0]);
        assert_eq!((two.lower_quartile, two.median, two.upper_quartile), (2.0, 3.0, 4.0));
        let one = Figure::of(vec![7.0]);
        assert_eq!((one.lowest, one.lower_quartile, one.median), (7.0, 7.0, 7.0));
        assert_eq!((one.upper_quartile, one.highest, one.passes), (7.0, 7.0, 1));
        assert_eq!(Figure { median: 4.0, ..five }.spread_percent().to_string(), "25");
        assert_eq!(Figure::of(vec![0.0; 3]).spread_percent().to_string(), "0");
    }

    #[test]
    fn a_byte_a_nanosecond_is_a_gigabyte_a_second() {
        assert_eq!(megabytes_per_s(64, 64).to_string(), "1000");
        assert_eq!(megabytes_per_s(12_800, 1_000).to_string(), "12800");
        assert!(megabytes_per_s(1, 0).is_finite());
    }
}
