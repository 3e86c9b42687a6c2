//! Primes3: a sieve of Eratosthenes in a bit vector that all threads share, scanned into a vector of
//! integers.

use super::scaled;
use super::shared::{Counter, Stack, check_primes, output_words, square_root};
use crate::workloads::Parameters;
use crate::{Area, Array, Error, Program, Progress, Role, Space, Trace};

const LIMIT: u64 = 10_000_000;
/// Word and mask of a bit, test, set, next multiple.
const MARK: u64 = 4;
/// Shift, test and count of a bit while scanning.
const SCAN: u64 = 9;
/// Marks in a piece.
const PIECE: usize = 1000;
/// Words of the bit vector scanned at a time: about a page of primes.
const SCANNED: u32 = 256;
/// Words that the function which stores a prime saves on the stack and fetches again: its link, and what it
/// uses.
const SAVED: u64 = 2;

struct Primes3 {
    areas: Vec<Area>,
    limit: u32,
    /// Bit i stands for 2 i + 1; set if it is composite.
    composite: Array<u32>,
    output: Array<u32>,
    /// The bit whose number's multiples were marked last.
    sieved: Counter,
    scanned: Counter,
    found: Counter,
    stacks: Vec<Stack>,
    threads: Vec<Step>,
}

#[derive(Clone, Copy)]
enum Step {
    /// Needs a prime.
    Choose,
    /// Marks multiples from this bit on, so many bits apart.
    Mark {
        bit: usize,
        step: usize,
    },
    Scan,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let limit = scaled(LIMIT, parameters, 1000) as u32;
    let mut space = Space::new();
    let words = bits(limit).div_ceil(32);
    let composite = space.array("composite", vec![0; words], Role::WriteShared);
    let output = space.array("output", vec![0; output_words(limit)], Role::WriteShared);
    let sieved = Counter::new(&mut space, "sieved");
    let scanned = Counter::new(&mut space, "scanned");
    let found = Counter::new(&mut space, "found");
    let stacks = (0..parameters.threads).map(|thread| Stack::new(&mut space, thread)).collect();
    Box::new(Primes3 {
        areas: space.into_areas(),
        limit,
        composite,
        output,
        sieved,
        scanned,
        found,
        stacks,
        threads: vec![Step::Choose; parameters.threads],
    })
}

/// Odd numbers up to `limit`.
fn bits(limit: u32) -> usize {
    limit.div_ceil(2) as usize
}

impl Primes3 {
    /// The next number not marked so far, if its multiples are to be marked. Usually a prime; where marking
    /// lags behind it may be a composite, which costs time and does no harm.
    fn choose(&mut self, trace: &mut Trace) -> Option<Step> {
        let last = square_root(self.limit).div_ceil(2);
        loop {
            let bit = self.sieved.take(1, last, trace) as usize + 1;
            let number = 2 * bit + 1;
            if number > square_root(self.limit) as usize {
                return None;
            }
            trace.compute(MARK);
            if self.composite.read(bit / 32, trace) >> (bit % 32) & 1 == 0 {
                return Some(Step::Mark { bit: number * number / 2, step: number });
            }
        }
    }

    /// Masks off some multiples; the first bit not yet done.
    fn mark(&mut self, first: usize, step: usize, trace: &mut Trace) -> usize {
        let end = bits(self.limit).min(first + PIECE * step);
        for bit in (first..end).step_by(step) {
            trace.compute(MARK);
            let word = self.composite.read(bit / 32, trace);
            if word >> (bit % 32) & 1 == 0 {
                self.composite.write(bit / 32, word | 1 << (bit % 32), trace);
            }
        }
        first + PIECE * step
    }

    /// Scans some words into the output; false if none were left.
    fn scan(&mut self, thread: usize, trace: &mut Trace) -> bool {
        let words = self.composite.values().len() as u32;
        let first = self.scanned.take(SCANNED, words, trace);
        if first >= words {
            return false;
        }
        let mut primes = Vec::new();
        for index in first..words.min(first + SCANNED) {
            let word = self.composite.read(index as usize, trace);
            trace.compute(32 * SCAN);
            for bit in 0..32 {
                let number = 2 * (index * 32 + bit) + 1;
                if word >> bit & 1 == 0 && number <= self.limit {
                    // 1 is no prime; 2 stands for it.
                    primes.push(number.max(2));
                }
            }
        }
        let place = self.found.take(primes.len() as u32, u32::MAX, trace) as usize;
        for (place, prime) in (place..).zip(primes) {
            (0..SAVED).for_each(|word| self.stacks[thread].store(word, trace));
            self.output.write(place, prime, trace);
            (0..SAVED).for_each(|word| self.stacks[thread].fetch(word, trace));
        }
        true
    }
}

impl Program for Primes3 {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let mut step = self.threads[thread];
        if let Step::Choose = step {
            // The first multiples are marked in the same piece, before another thread looks for its prime
            // among them.
            step = self.choose(trace).unwrap_or(Step::Scan);
            self.threads[thread] = step;
            if let Step::Scan = step {
                return Progress::Barrier;
            }
        }
        match step {
            Step::Choose => {}
            Step::Mark { bit, step } => {
                let bit = self.mark(bit, step, trace);
                self.threads[thread] =
                    if bit < bits(self.limit) { Step::Mark { bit, step } } else { Step::Choose };
            }
            Step::Scan if self.scan(thread, trace) => {}
            Step::Scan => return Progress::Finished,
        }
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        check_primes(&self.output.values()[..self.found.value() as usize], self.limit)
    }
}
