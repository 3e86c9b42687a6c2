//! The samples of an interval, as many as are kept.

use crate::bounds;
use nodewise_engine::Sample;

/// Samples as they come in.
pub(crate) struct Intake {
    samples: Vec<Sample>,
    /// One of so many of the interval's samples is kept; the others are counted.
    thinning: usize,
    left_out: u64,
    is_full: bool,
}

impl Intake {
    pub(crate) const fn new() -> Self {
        Self { samples: Vec::new(), thinning: 1, left_out: 0, is_full: false }
    }

    /// Whether there were more samples than are kept.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes the samples that `drain` appends. Where there are more than are kept, it leaves out some, those
    /// of the interval's beginning and of its end alike.
    pub(crate) fn take_in(&mut self, drain: impl FnOnce(&mut Vec<Sample>)) {
        let before = self.samples.len();
        drain(&mut self.samples);
        let every = |step: usize, from: usize, samples: &mut Vec<Sample>| {
            let mut at = 0;
            samples.retain(|_| {
                at += 1;
                at <= from || (at - from) % step == 0
            });
        };
        let all = self.samples.len();
        every(self.thinning, before, &mut self.samples);
        while self.samples.len() > bounds::SAMPLES {
            every(2, 0, &mut self.samples);
            self.thinning *= 2;
            self.is_full = true;
        }
        self.left_out += (all - self.samples.len()) as u64;
        self.samples.shrink_to(bounds::SAMPLES);
    }

    /// How many samples were left out since the interval began.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Hands over the interval's samples, and begins the next interval.
    pub(crate) fn end_interval(&mut self) -> Vec<Sample> {
        (self.thinning, self.left_out) = (1, 0);
        std::mem::take(&mut self.samples)
    }
}
