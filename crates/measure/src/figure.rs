//! A figure that was measured several times.

use serde::Serialize;

/// The median of several passes, and their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the passes.
    pub median: f64,
    /// Lowest pass.
    pub lowest: f64,
    /// Highest pass.
    pub highest: f64,
    /// Number of passes.
    pub passes: usize,
}

impl Figure {
    /// The figure of some passes, at least one.
    ///
    /// # Panics
    /// If there is no pass.
    #[must_use]
    pub fn of(mut passes: Vec<f64>) -> Self {
        passes.sort_by(f64::total_cmp);
        let [lowest, .., highest] = passes[..] else {
            let only = passes[0];
            return Self { median: only, lowest: only, highest: only, passes: 1 };
        };
        let middle = passes.len() / 2;
        let median =
            if passes.len() % 2 == 1 { passes[middle] } else { passes[middle - 1].midpoint(passes[middle]) };
        Self { median, lowest, highest, passes: passes.len() }
    }

    /// Half the range, in percent of the median.
    #[must_use]
    pub fn spread_percent(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { 50.0 * (self.highest - self.lowest) / self.median }
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
    fn medians_and_ranges() {
        let figure = Figure::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((figure.median, figure.lowest, figure.highest, figure.passes), (2.0, 1.0, 3.0, 3));
        assert_eq!(Figure::of(vec![4.0, 1.0]), Figure { median: 2.5, lowest: 1.0, highest: 4.0, passes: 2 });
        assert_eq!(Figure::of(vec![7.0]), Figure { median: 7.0, lowest: 7.0, highest: 7.0, passes: 1 });
        assert_eq!(figure.spread_percent().to_string(), "50");
    }

    #[test]
    fn a_byte_a_nanosecond_is_a_gigabyte_a_second() {
        assert_eq!(megabytes_per_s(64, 64).to_string(), "1000");
        assert_eq!(megabytes_per_s(12_800, 1_000).to_string(), "12800");
        assert!(megabytes_per_s(1, 0).is_finite());
    }
}
