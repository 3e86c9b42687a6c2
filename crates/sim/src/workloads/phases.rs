//! The parts that most of the workloads are made of: phases between barriers, lines read so many at a time,
//! and random inputs.

use crate::{Area, Error, Program, Progress, Trace};
use std::ops::Range;

/// Operations after which a piece ends.
const PIECE: usize = 1000;
/// The programs' line: the bytes that they read at a time, whatever the machine's caches do.
pub const LINE: u64 = 64;

/// An algorithm in phases: in each, every thread works through its own items and then waits for the others.
///
/// Within a phase no item may depend on another thread's, so that the result does not depend on who is ahead.
pub trait Phased: Send {
    /// Its memory.
    fn areas(&self) -> &[Area];

    /// How many phases there are.
    fn phases(&self) -> usize;

    /// Phases of an iteration: see [`Program::iteration`].
    fn iteration(&self) -> u64 {
        0
    }

    /// A thread's items in a phase.
    fn items(&self, phase: usize, thread: usize) -> Range<usize>;

    /// Does one item: up to a few thousand operations.
    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace);

    /// Whether the result is right.
    fn check(&self) -> Result<(), Error>;
}

/// Runs an algorithm in phases as a program.
pub struct Phases<P> {
    algorithm: P,
    threads: Vec<Place>,
}

/// Where a thread is: its phase, and its items left, which are asked for when it is past the barrier: what
/// there is to do may be a result of the phase before.
#[derive(Clone, Default)]
struct Place {
    phase: usize,
    items: Option<Range<usize>>,
}

impl<P: Phased + 'static> Phases<P> {
    /// The program of an algorithm.
    pub fn program(algorithm: P, threads: usize) -> Box<dyn Program> {
        Box::new(Self { algorithm, threads: vec![Place::default(); threads] })
    }
}

impl<P: Phased> Program for Phases<P> {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        self.algorithm.areas()
    }

    fn iteration(&self) -> u64 {
        self.algorithm.iteration()
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let place = &mut self.threads[thread];
        while trace.len() < PIECE {
            let items = place.items.get_or_insert_with(|| self.algorithm.items(place.phase, thread));
            let Some(item) = items.next() else {
                place.phase += 1;
                place.items = None;
                let ended = place.phase == self.algorithm.phases();
                return if ended { Progress::Finished } else { Progress::Barrier };
            };
            self.algorithm.item(place.phase, thread, item, trace);
        }
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        self.algorithm.check()
    }
}

/// How a program gets through memory in order: its memory-level parallelism.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    /// Lines that are fetched at the same time, by the core's window and its prefetcher, before the program
    /// waits for the last.
    pub at_once: u64,
    /// Instructions on the contents of a line, which cannot start before it is there.
    pub instructions: u64,
}

impl Lines {
    /// Reads the lines from an address on.
    #[inline]
    pub fn read(self, address: u64, bytes: u64, trace: &mut Trace) {
        let end = address + bytes;
        let mut line = address & !(LINE - 1);
        while line < end {
            let group = self.at_once.min((end - line).div_ceil(LINE));
            for place in 0..group {
                trace.read(line + place * LINE);
            }
            line += group * LINE;
            wait_for(line - LINE, trace);
            trace.compute(group * self.instructions);
        }
    }

    /// Reads several arrays side by side, `bytes` of each, a group of lines of all of them at a time.
    #[inline]
    pub fn read_all(self, addresses: &[u64], bytes: u64, trace: &mut Trace) {
        let mut done = 0;
        while done < bytes {
            let step = (self.at_once * LINE).min(bytes - done);
            let mut last = 0;
            for &address in addresses {
                let end = address + done + step;
                let mut line = address + done & !(LINE - 1);
                while line < end {
                    trace.read(line);
                    last = line;
                    line += LINE;
                }
            }
            wait_for(last, trace);
            trace.compute(step.div_ceil(LINE) * self.instructions);
            done += step;
        }
    }
}

/// Uses data that was read: nothing after it starts before they are there.
#[inline]
pub fn wait_for(address: u64, trace: &mut Trace) {
    trace.chase(address);
}

/// Writes the lines from an address on.
#[inline]
pub fn write_lines(address: u64, bytes: u64, trace: &mut Trace) {
    let mut line = address & !(LINE - 1);
    while line < address + bytes {
        trace.write(line);
        line += LINE;
    }
}

/// A thread's part of `total` items, in order, as even as can be.
pub fn part(total: usize, thread: usize, threads: usize) -> Range<usize> {
    total * thread / threads..total * (thread + 1) / threads
}

/// All of them for the first thread, none for the others.
pub fn alone(total: usize, thread: usize) -> Range<usize> {
    if thread == 0 { 0..total } else { 0..0 }
}

/// A count scaled by the problem size, at least `least`.
pub fn scaled(full: usize, scale: f64, least: usize) -> usize {
    ((full as f64 * scale).round() as usize).max(least)
}

/// Random numbers for inputs: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Drives every thread of a program to its end, without a machine: they take turns, a piece each.
#[cfg(test)]
pub fn run(program: &mut dyn Program) -> u64 {
    let areas = program.areas().to_vec();
    let mut progress = vec![Progress::Running; program.threads()];
    let mut trace = Trace::default();
    let mut references = 0;
    while progress.iter().any(|&p| p != Progress::Finished) {
        if progress.iter().all(|&p| p != Progress::Running) {
            progress.iter_mut().filter(|p| **p == Progress::Barrier).for_each(|p| *p = Progress::Running);
        }
        for (thread, progress) in progress.iter_mut().enumerate() {
            if *progress != Progress::Running {
                continue;
            }
            trace.clear();
            *progress = program.advance(thread, &mut trace);
            assert!(trace.len() < 10_000, "a piece of {} operations", trace.len());
            for op in trace.ops() {
                let (crate::Op::Read { address, .. }
                | crate::Op::Chase { address, .. }
                | crate::Op::Write { address, .. }
                | crate::Op::Atomic { address, .. }) = op
                else {
                    continue;
                };
                references += 1;
                assert!(
                    areas.iter().any(|area| (area.base..area.base + area.bytes).contains(&address)),
                    "{address:#x} is in no area"
                );
            }
        }
    }
    references
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op::{Chase, Compute, Read};

    #[test]
    fn parts_cover_everything_once() {
        for (total, threads) in [(10, 3), (2, 5), (0, 4), (16, 16)] {
            let items: Vec<usize> = (0..threads).flat_map(|thread| part(total, thread, threads)).collect();
            assert_eq!(items, (0..total).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lines_are_read_once_and_waited_for_in_groups() {
        let mut trace = Trace::default();
        Lines { at_once: 2, instructions: 5 }.read(0x1010, 0x80, &mut trace);
        let ops: Vec<_> = trace.ops().collect();
        let (instructions, next) = (0, 10);
        assert_eq!(
            ops,
            [
                Read { address: 0x1000, instructions },
                Read { address: 0x1040, instructions },
                Chase { address: 0x1040, instructions },
                Read { address: 0x1080, instructions: next },
                Chase { address: 0x1080, instructions },
                Compute { instructions: 5 },
            ]
        );
    }
}
