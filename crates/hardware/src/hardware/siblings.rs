//! The two threads of a core: how they share its issue slots and its outstanding misses.
//!
//! A thread that alone executes instructions has all slots of its core. While both execute, each takes longer
//! by a factor: two, over the speed-up that the preset names. A thread that waits for data executes nothing.
//!
//! Threads are told of one after the other. So each remembers when it executed instructions without the
//! other's. When the other is told to have executed some at that time, too, both take longer, and the clock
//! of the first moves on.

use super::Hardware;
use super::core::Cpu;
use std::collections::VecDeque;

/// Times at which a thread executed instructions, and the core's other thread, so far as is known, did not.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    /// Begin and end of each in order, as they were before the other thread delayed them by `late_ps`.
    runs: VecDeque<(u64, u64)>,
    late_ps: u64,
}

impl Runs {
    /// More than a thread has in the time by which it may be ahead of the other.
    const MOST: usize = 1024;

    /// One after all others.
    fn push(&mut self, begin_ps: u64, end_ps: u64) {
        let (begin, end) = (begin_ps - self.late_ps, end_ps - self.late_ps);
        match self.runs.back_mut() {
            Some(last) if last.1 == begin => last.1 = end,
            _ => self.runs.push_back((begin, end)),
        }
        if self.runs.len() > Self::MOST {
            self.runs.pop_front();
        }
    }

    /// Begin and end of the first that ends after a time. It forgets all before that.
    fn first_after(&mut self, ps: u64) -> Option<(u64, u64)> {
        while self.runs.front().is_some_and(|run| run.1 + self.late_ps <= ps) {
            self.runs.pop_front();
        }
        self.runs.front().map(|run| (run.0 + self.late_ps, run.1 + self.late_ps))
    }

    /// The first was executed up to a time, and what follows is later than it was.
    fn share(&mut self, until_ps: u64, later_ps: u64) {
        if let Some(first) = self.runs.front_mut() {
            first.0 = until_ps - self.late_ps;
            if first.0 == first.1 {
                self.runs.pop_front();
            }
        }
        self.late_ps += later_ps;
    }
}

impl Hardware {
    /// A CPU executes instructions that take so long alone, beside what the other thread of its core does.
    pub(super) fn execute_beside(&mut self, cpu: usize, alone_ps: u64) {
        let factor = self.timing.both_busy;
        let (mut clock, mut left_ps) = (self.cpus[cpu].clock, alone_ps);
        while left_ps > 0 {
            let other = &mut self.cpus[cpu ^ 1];
            let run = other.runs.first_after(clock);
            let until_other_ps = run.map_or(left_ps, |run| run.0.saturating_sub(clock).min(left_ps));
            if until_other_ps > 0 {
                self.cpus[cpu].runs.push(clock, clock + until_other_ps);
                clock += until_other_ps;
                left_ps -= until_other_ps;
                continue;
            }
            let shared_ps = run.map_or(0, |run| run.1 - clock).min(left_ps);
            let took_ps = (shared_ps as f64 * factor).round() as u64;
            other.runs.share(clock + shared_ps, took_ps - shared_ps);
            other.clock += took_ps - shared_ps;
            clock += took_ps;
            left_ps -= shared_ps;
        }
        self.cpus[cpu].clock = clock;
    }

    /// When a CPU's next miss finds a place, at its clock or later. A core's two threads have the places
    /// together. A thread that has half of them or more leaves one to the other, if that asks for it then.
    pub(super) fn place_beside(&self, cpu: usize) -> u64 {
        let most = self.outstanding_misses;
        let (own, other) = (&self.cpus[cpu], &self.cpus[cpu ^ 1]);
        let misses = |cpu: &Cpu, ps| cpu.window[..most].iter().filter(|miss| miss.0 > ps).count();
        let mut ps = own.clock;
        loop {
            let count = misses(own, ps);
            let other_asks = (other.asks_ps..=other.asks_ps + self.timing.instruction).contains(&ps);
            let left_to_other = usize::from(count >= most / 2 && other_asks);
            if count + misses(other, ps) + left_to_other < most {
                return ps;
            }
            let ends = own.window[..most].iter().chain(&other.window[..most]).map(|miss| miss.0);
            ps = ends.filter(|&end| end > ps).min().unwrap_or(ps + 1);
        }
    }

    /// Whether a CPU may have one more prefetch outstanding beside those of the core's other thread.
    pub(super) fn prefetch_beside(&self, cpu: usize, at_ps: u64) -> bool {
        let prefetches = |cpu: &Cpu| {
            cpu.window[self.outstanding_misses..].iter().filter(|prefetch| prefetch.0 > at_ps).count()
        };
        let own = &self.cpus[cpu];
        prefetches(own) + prefetches(&self.cpus[cpu ^ 1]) < own.window.len() - self.outstanding_misses
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{APART, MACHINE, near, stream};
    use crate::{Hardware, Preset, Source, Touch};
    use proptest::prelude::*;

    /// An instruction takes 1 ns alone, and 1.6 while both threads of a core execute.
    fn machine(threads: usize) -> Hardware {
        let mut preset = Preset::parse(MACHINE, "test").unwrap();
        preset.core.threads = threads;
        preset.core.smt_speedup = if threads == 2 { 1.25 } else { 1.0 };
        Hardware::new(&preset)
    }

    const BOTH: f64 = 1.6;

    #[test]
    fn one_thread_alone_has_the_core() {
        let alone = |threads| {
            let mut hw = machine(threads);
            for line in 0..500 {
                hw.read(0, line * APART, 1);
                hw.execute(0, line);
                hw.write(0, (line << 20) + line * APART, 0);
                hw.chase(0, (1 << 40) + line * APART, 0);
            }
            (hw.clock(0), hw.counters().controllers.clone(), hw.counters().links.clone())
        };
        assert_eq!(alone(1), alone(2));
    }

    #[test]
    fn two_threads_that_compute_take_twice_the_time_over_the_speed_up() {
        for bursts in [1, 10, 1000] {
            let mut hw = machine(2);
            for _ in 0..2 * bursts {
                let cpu = usize::from(hw.clock(1) < hw.clock(0));
                hw.execute(cpu, 100_000 / bursts);
            }
            for cpu in [0, 1] {
                assert!(near(hw.clock(cpu) as f64, 1e8 * BOTH), "{bursts}: {}", hw.clock(cpu));
            }
            // The neighbours on the next core have nothing to do with it.
            hw.execute(2, 100_000);
            assert_eq!(hw.clock(2), 100_000_000);
        }
    }

    /// Drives both threads as a program does, in the order of the times at which they ask.
    fn run(hw: &mut Hardware, chases: [bool; 2], accesses: u64) -> [u64; 2] {
        let mut done = [0; 2];
        while done.iter().any(|&done| done < accesses) {
            let cpu = usize::from(hw.clock(1) < hw.clock(0));
            let by_ps = hw.clock(cpu ^ 1);
            let address = ((cpu as u64) << 30) + done[cpu] * APART;
            let touch = if chases[cpu] { Touch::Chase } else { Touch::Read };
            if !hw.waits(cpu, touch, address, by_ps) {
                hw.touch(cpu, touch, address, 1);
                done[cpu] += 1;
            }
        }
        done
    }

    #[test]
    fn the_waits_of_two_chasers_overlap() {
        let mut hw = machine(2);
        run(&mut hw, [true, true], 1000);
        // 140 ns and the instruction, which takes at most 1.6 times as long.
        for cpu in [0, 1] {
            hw.drain(cpu);
            let each = hw.clock(cpu) as f64 / 1e6;
            assert!((141.0..141.61).contains(&each), "{each}");
        }
    }

    #[test]
    fn two_streams_have_the_outstanding_misses_of_one() {
        let one = {
            let mut hw = machine(1);
            let (end_ps, _) = stream(&mut hw, &[0], 1, 4000);
            end_ps as f64
        };
        assert!(near(one, 4000.0 * 140_000.0 / 4.0), "{one}");
        let mut hw = machine(2);
        let done = run(&mut hw, [false, false], 2000);
        let end_ps = hw.clock(0).max(hw.clock(1)) as f64;
        assert!(near(end_ps, one), "{end_ps} for {one}");
        assert!(done.iter().all(|&done| near(done as f64, 2000.0)), "{done:?}");
        // As fast as one are two of different cores, each.
        let mut hw = machine(2);
        let (end_ps, _) = stream(&mut hw, &[0, 2], 1, 8000);
        assert!(near(end_ps as f64, one), "{end_ps} for {one}");
    }

    #[test]
    fn a_stream_leaves_a_chaser_the_one_miss_that_it_needs() {
        let mut hw = machine(2);
        let done = run(&mut hw, [true, false], 1000);
        hw.drain(0);
        let (each, of_stream) = (hw.clock(0) as f64 / done[0] as f64, hw.clock(1) as f64 / done[1] as f64);
        assert!(near(of_stream, 140_000.0 / 3.0), "{of_stream}");
        assert!((141_000.0..141_610.0).contains(&each), "{each}");
    }

    #[test]
    fn a_line_of_one_thread_is_the_others_too() {
        let mut hw = machine(2);
        assert_eq!(hw.read(0, 0, 0).source, Source::LocalDram);
        assert_eq!(hw.chase(1, 0, 0).source, Source::L1);
        assert_eq!(hw.read(2, 0, 0).source, Source::Llc);
        // It was on its way.
        hw.chase(1, 1 << 20, 0);
        assert!(hw.clock(1) > 101_000, "{}", hw.clock(1));
        // Nobody has taken anything away: the other writes as it likes.
        let mut hw = machine(2);
        hw.write(0, 0, 0);
        hw.drain(0);
        assert_eq!((hw.write(1, 0, 0).source, hw.losses(0), hw.losses(1)), (Source::L1, 0, 0));
    }

    #[test]
    fn atomics_of_both_threads_come_one_after_the_other() {
        let mut hw = machine(2);
        hw.atomic(0, 0, 0);
        let first_ps = hw.clock(0);
        hw.atomic(1, 0, 0);
        // 18 cycles are the atomic's own.
        assert!(hw.clock(1) >= first_ps + 18_000, "{} after {first_ps}", hw.clock(1));
    }

    proptest! {
        /// While both have work, each takes longer by the same factor, and what one has left it does alone.
        /// In which bursts they are told to compute does not matter.
        #[test]
        fn threads_share_a_core_fairly(
            bursts in [prop::collection::vec(1u64..5000, 1..40), prop::collection::vec(1u64..5000, 1..40)],
        ) {
            let mut hw = machine(2);
            let mut next = [0; 2];
            loop {
                let left = [0, 1].into_iter().filter(|&cpu| next[cpu] < bursts[cpu].len());
                let Some(cpu) = left.min_by_key(|&cpu| hw.clock(cpu)) else { break };
                hw.execute(cpu, bursts[cpu][next[cpu]]);
                next[cpu] += 1;
            }
            let work = bursts.map(|bursts| bursts.iter().sum::<u64>() as f64 * 1000.0);
            let (less, more) = (work[0].min(work[1]), work[0].max(work[1]));
            let ends = [hw.clock(0), hw.clock(1)];
            let expected = [less * BOTH, less * BOTH + more - less];
            for (end, expected) in [ends[0].min(ends[1]), ends[0].max(ends[1])].into_iter().zip(expected) {
                prop_assert!((end as f64 - expected).abs() < 200.0, "{end}, not {expected}");
            }
        }
    }
}
