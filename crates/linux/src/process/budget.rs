//! Time that may be spent on looking at processes, however many there are and however often they change.

use crate::bounds::MAPS_TIME;
use std::time::{Duration, Instant};

/// Something that takes 1 % of the time, however long it takes each time.
#[derive(Debug)]
pub(crate) struct OnePercent {
    due: Instant,
}

impl Default for OnePercent {
    /// Due at once.
    fn default() -> Self {
        Self { due: Instant::now() }
    }
}

impl OnePercent {
    pub(crate) fn is_due(&self) -> bool {
        self.due <= Instant::now()
    }

    pub(crate) fn took(&mut self, time: Duration) {
        self.due = Instant::now() + pause(time.as_nanos() as u64, 1);
    }
}

/// Time that comes with time: a twentieth of it, and at first as much as a look may take.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Less than none where more was taken than there was.
    pub(super) left_ns: i64,
    since: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left_ns: MAPS_TIME.as_nanos() as i64, since: Instant::now() }
    }
}

impl Allowance {
    pub(super) fn is_left(&mut self, now: Instant) -> bool {
        let came_ns = now.saturating_duration_since(self.since).as_nanos() as i64 / 20;
        let most_ns = MAPS_TIME.as_nanos() as i64;
        (self.left_ns, self.since) = (self.left_ns.saturating_add(came_ns).min(most_ns), now);
        self.left_ns > 0
    }

    pub(super) fn take(&mut self, time_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub_unsigned(time_ns);
    }
}

/// How long not to read something of a process after it took `spent_ns`, so that with each of `processes` 1 %
/// of the time goes there.
pub(crate) fn pause(spent_ns: u64, processes: usize) -> Duration {
    Duration::from_nanos(spent_ns.saturating_mul(100).saturating_mul(processes.max(1) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program starts others, or executes another program, as often as it likes.
    #[test]
    fn new_processes_take_a_twentieth_of_the_time() {
        let mut allowance = Allowance::default();
        let begin = allowance.since;
        allowance.take(3_000_000_000);
        assert!(!allowance.is_left(begin + Duration::from_secs(19)));
        assert!(allowance.is_left(begin + Duration::from_secs(21)));
        allowance.take(200_000_000);
        assert!(!allowance.is_left(begin + Duration::from_secs(22)));
        // There is no more after a long time than there was at first.
        assert!(allowance.is_left(begin + Duration::from_secs(86_400)));
        allowance.take(2_000_000_000);
        assert!(!allowance.is_left(begin + Duration::from_secs(86_400)));
    }

    #[test]
    fn a_thousand_processes_cost_no_more_than_one() {
        assert_eq!(pause(1_000_000, 0), Duration::from_millis(100));
        assert_eq!(pause(1_000_000, 1), Duration::from_millis(100));
        assert_eq!(pause(1_000_000, 1000), Duration::from_secs(100));
    }
}
