//! Loads that were counted while pages were still being interleaved.

use crate::{Action, Counters, Decision, Measure, Outcome};

/// The imbalance before pages were interleaved, as far as later counts still have it. A policy that takes it
/// for the present one interleaves more than is right.
#[derive(Debug, Default)]
pub(crate) struct StaleLoads {
    imbalance_percent: f64,
    /// The time for which pages were moved, at the beginning of the interval that is seen next.
    moving_ns: u64,
}

impl StaleLoads {
    /// Estimates are of the samples of several intervals: so much of what was before is still in them an
    /// interval later.
    const LEFT: f64 = 0.5;

    /// The imbalance in these counts that may be of before, in percent.
    pub(crate) fn next(&mut self, counters: &Counters, loads: &Measure<Vec<f64>>, duration_ns: u64) -> f64 {
        let moving = (self.moving_ns as f64 / duration_ns.max(1) as f64).min(1.0);
        let (stale, later) = match loads {
            // They are of pages in use, each where it lies now.
            _ if counters.are_by_faults() => (0.0, 0.0),
            Measure::Measured(_) => (moving, 0.0),
            _ => (moving.max(Self::LEFT), Self::LEFT),
        };
        let stale = stale * self.imbalance_percent;
        self.imbalance_percent *= later;
        self.moving_ns = 0;
        stale
    }

    /// Takes in what came of decisions that were made at such an imbalance.
    pub(crate) fn note(&mut self, imbalance_percent: Option<f64>, acted: &[(Decision, Outcome)]) {
        let interleaved = acted
            .iter()
            .any(|(decision, outcome)| matches!(decision.action, Action::Interleave(_)) && outcome.moved > 0);
        if interleaved {
            self.imbalance_percent = imbalance_percent.unwrap_or(0.0);
            self.moving_ns = acted.iter().map(|(_, outcome)| outcome.blocked_ns).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interleaving, PageRange, Pid, Reason};
    use nodewise_topology::NodeIndex;

    const SECOND: u64 = 1_000_000_000;

    /// At an imbalance of 140 %.
    fn after_moving(moved: u64) -> StaleLoads {
        let from = NodeIndex(0);
        let interleaving = Interleaving { from, band: (0, 1 << 31), weights: vec![0, 1], seed: 1 };
        let range = PageRange::new(0, 1000);
        let (action, reason) = (Action::Interleave(interleaving), Reason::default());
        let decision = Decision { pid: Pid(1), range, action, reason };
        let outcome = Outcome { moved, blocked_ns: SECOND / 5, ..Outcome::default() };
        let mut stale = StaleLoads::default();
        stale.note(Some(140.0), &[(decision, outcome)]);
        stale
    }

    /// The stale imbalance in three intervals of so many seconds, in tenths of a percent.
    fn seen(mut stale: StaleLoads, seconds: f64, rate: Measure<f64>, loads: &Measure<Vec<f64>>) -> [i64; 3] {
        let counters = Counters { access_rate: rate, ..Counters::unknown(Vec::new(), Vec::new()) };
        let duration_ns = (seconds * SECOND as f64) as u64;
        [(); 3].map(|()| (10.0 * stale.next(&counters, loads, duration_ns)).round() as i64)
    }

    #[test]
    fn counts_are_stale_for_as_long_as_pages_were_moved_meanwhile() {
        let (rate, loads) = (|| Measure::Measured(100.0), Measure::Measured(vec![55.0, 45.0]));
        assert_eq!(seen(after_moving(500), 1.0, rate(), &loads), [280, 0, 0]);
        assert_eq!(seen(after_moving(500), 0.1, rate(), &loads), [1400, 0, 0]);
        assert_eq!(seen(after_moving(0), 1.0, rate(), &loads), [0; 3]);
    }

    #[test]
    fn estimates_are_stale_for_several_intervals_and_homes_of_pages_never() {
        let loads = Measure::Estimated(vec![55.0, 45.0]);
        assert_eq!(seen(after_moving(500), 1.0, Measure::Unknown, &loads), [700, 350, 175]);
        assert_eq!(seen(after_moving(500), 1.0, Measure::Proxy(10.0), &loads), [0; 3]);
    }
}
