//! The samples of an interval, as many as are kept.

use crate::bounds;
use crate::sampler::RawSample;
use nodewise_engine::Pid;
use std::collections::BTreeMap;
use std::time::Duration;

/// Samples as they come in.
pub(crate) struct Intake {
    samples: Vec<RawSample>,
    /// One of so many of the interval's samples of a process is kept, where not all are. The others are
    /// counted.
    thinning: BTreeMap<Pid, usize>,
    left_out: u64,
    is_full: bool,
    /// Samples that are kept.
    most: usize,
}

impl Intake {
    pub(crate) const fn new() -> Self {
        let thinning = BTreeMap::new();
        Self { samples: Vec::new(), thinning, left_out: 0, is_full: false, most: bounds::SAMPLES }
    }

    /// Whether there were more samples than are kept.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes the samples that `drain` appends. If there are more than are kept, it leaves some out, of the
    /// interval's beginning and end alike. They belong to the processes with most samples, so that no process
    /// floods away those of others.
    pub(crate) fn take_in(&mut self, drain: impl FnOnce(&mut Vec<RawSample>)) {
        let before = self.samples.len();
        drain(&mut self.samples);
        let all = self.samples.len();
        keep_one_in(&self.thinning, before, &mut self.samples);
        if self.samples.len() > self.most {
            let mut steps = BTreeMap::new();
            for sample in &self.samples {
                *steps.entry(sample.pid).or_insert(0) += 1;
            }
            let fair = fair_share(steps.values().copied().collect(), self.most);
            for count in steps.values_mut() {
                *count = count.div_ceil(fair.max(1)).next_power_of_two();
            }
            keep_one_in(&steps, 0, &mut self.samples);
            for (pid, step) in steps {
                *self.thinning.entry(pid).or_insert(1) *= step;
            }
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
        (self.thinning, self.left_out) = (BTreeMap::new(), 0);
        std::mem::take(&mut self.samples)
    }
}

/// Keeps one in so many of the samples of each process, from this one on.
fn keep_one_in(steps: &BTreeMap<Pid, usize>, from: usize, samples: &mut Vec<RawSample>) {
    if steps.is_empty() {
        return;
    }
    let (mut at, mut seen) = (0, BTreeMap::new());
    samples.retain(|sample| {
        at += 1;
        let step = steps.get(&sample.pid).filter(|_| at > from);
        step.is_none_or(|step| {
            let seen: &mut usize = seen.entry(sample.pid).or_default();
            *seen += 1;
            *seen % step == 0
        })
    });
}

/// So much may each have of what there is, if some want less.
fn fair_share(mut wanted: Vec<usize>, mut left: usize) -> usize {
    wanted.sort_unstable();
    for (at, &want) in wanted.iter().enumerate() {
        let share = left / (wanted.len() - at);
        if want > share {
            return share;
        }
        left -= want;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Access, DataSource, Tid, VirtAddr};
    use nodewise_topology::NodeIndex;

    fn sample(pid: u32, time_ns: u64) -> RawSample {
        RawSample {
            time_ns,
            address: VirtAddr(0x1000),
            pid: Pid(pid),
            tid: Tid(pid),
            accessor: NodeIndex(0),
            access: Access::Read,
            source: DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        }
    }

    #[test]
    fn a_flood_of_one_leaves_the_others_their_samples() {
        let mut intake = Intake { most: 10_000, ..Intake::new() };
        for drain in 0..10 {
            let times = drain * 100_000..(drain + 1) * 100_000;
            let pid = |time| match time % 1000 {
                0 => 1,
                1..=20 => 2,
                _ => 3,
            };
            intake.take_in(|samples| samples.extend(times.map(|time| sample(pid(time), time))));
        }
        let left_out = intake.left_out();
        let kept = intake.end_interval();
        let of = |pid| kept.iter().filter(|sample| sample.pid == Pid(pid)).count();
        assert_eq!(of(1), 1000, "all");
        assert!((2000..=5000).contains(&of(2)) && (2000..=5000).contains(&of(3)), "{} {}", of(2), of(3));
        assert!(kept.len() <= 10_000 && intake.is_full());
        assert_eq!(left_out, 1_000_000 - kept.len() as u64);
    }

    #[test]
    fn shares_are_fair() {
        assert_eq!(fair_share(vec![10, 1, 100], 30), 19);
        assert_eq!(fair_share(vec![10, 10], 10), 5);
        assert_eq!(fair_share(vec![1, 2], 3), usize::MAX);
        assert_eq!(fair_share(vec![5, 5, 5], 2), 0);
    }

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
