//! The samples of an interval, as many as are kept.

use crate::bounds;
use crate::sampler::RawSample;
use std::time::Duration;

/// Samples as they come in.
pub(crate) struct Intake {
    samples: Vec<RawSample>,
    /// One of so many of the interval's samples is kept; the others are counted.
    thinning: usize,
    left_out: u64,
    is_full: bool,
    /// Samples that are kept.
    most: usize,
}

impl Intake {
    pub(crate) const fn new() -> Self {
        Self { samples: Vec::new(), thinning: 1, left_out: 0, is_full: false, most: bounds::SAMPLES }
    }

    /// Whether there were more samples than are kept.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes the samples that `drain` appends. Where there are more than are kept, it leaves out some, those
    /// of the interval's beginning and of its end alike.
    pub(crate) fn take_in(&mut self, drain: impl FnOnce(&mut Vec<RawSample>)) {
        let before = self.samples.len();
        drain(&mut self.samples);
        let every = |step: usize, from: usize, samples: &mut Vec<RawSample>| {
            let mut at = 0;
            samples.retain(|_| {
                at += 1;
                at <= from || (at - from) % step == 0
            });
        };
        let all = self.samples.len();
        every(self.thinning, before, &mut self.samples);
        while self.samples.len() > self.most {
            every(2, 0, &mut self.samples);
            self.thinning *= 2;
            self.is_full = true;
        }
        self.left_out += (all - self.samples.len()) as u64;
        self.samples.shrink_to(bounds::SAMPLES);
    }

    /// Learns how long it took to look at `samples` of the last interval, of which `left` could not be looked
    /// at in time. It keeps no more from now on than there is time for.
    pub(crate) fn learn(&mut self, samples: usize, left: usize, took: Duration) {
        const LEAST: usize = 1 << 12;
        let looked_at = samples - left;
        self.left_out += left as u64;
        self.is_full |= left > 0;
        if looked_at >= LEAST {
            let fit = looked_at as f64 * bounds::LOCATE_TIME.as_secs_f64() / took.as_secs_f64().max(1e-9);
            self.most = (fit as usize).clamp(LEAST, bounds::SAMPLES);
        }
    }

    /// How many samples were left out since the interval began.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Hands over the interval's samples, and begins the next interval.
    pub(crate) fn end_interval(&mut self) -> Vec<RawSample> {
        (self.thinning, self.left_out) = (1, 0);
        std::mem::take(&mut self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_samples_are_kept_than_there_is_time_for() {
        let mut intake = Intake::new();
        intake.learn(100_000, 0, bounds::LOCATE_TIME / 4);
        assert_eq!((intake.most, intake.is_full()), (bounds::SAMPLES, false));
        intake.learn(100_000, 50_000, bounds::LOCATE_TIME);
        assert_eq!((intake.most, intake.is_full(), intake.left_out()), (50_000, true, 50_000));
        intake.learn(100, 0, bounds::LOCATE_TIME);
        assert_eq!(intake.most, 50_000, "so few say little");
        intake.learn(50_000, 0, bounds::LOCATE_TIME / 2);
        assert_eq!(intake.most, 100_000);
    }
}
