//! Primes1: an odd number is prime if no odd number up to its square root divides it.
//!
//! The paper gives Primes2 an output vector and Primes3 a vector of results, and none to Primes1: here it
//! counts primes.

use super::shared::{Counter, Stack, check_primes};
use super::{DIVIDE, scaled};
use crate::workloads::Parameters;
use crate::{Area, Error, Program, Progress, Space, Trace};

const LIMIT: u64 = 10_000_000;
/// Odd numbers handed out at a time.
const PORTION: u32 = 100;
/// Loop, call and return around a division.
const LOOP: u64 = 8;
/// Divisions in a piece, about.
const PIECE: usize = 1000;

struct Primes1 {
    areas: Vec<Area>,
    limit: u32,
    /// The primes, for the check; the program itself keeps only their number.
    primes: Vec<u32>,
    found: Counter,
    work: Counter,
    stacks: Vec<Stack>,
    /// Each thread's numbers not yet tested: next, and end.
    portions: Vec<(u32, u32)>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let limit = scaled(LIMIT, parameters, 1000) as u32;
    let mut space = Space::new();
    let found = Counter::new(&mut space, "found");
    let work = Counter::new(&mut space, "work");
    let stacks = (0..parameters.threads).map(|thread| Stack::new(&mut space, thread)).collect();
    Box::new(Primes1 {
        areas: space.into_areas(),
        limit,
        primes: Vec::new(),
        found,
        work,
        stacks,
        portions: vec![(0, 0); parameters.threads],
    })
}

impl Primes1 {
    /// Tests one number by divisions; gives how many there were.
    fn test(&mut self, thread: usize, candidate: u32, trace: &mut Trace) -> usize {
        let stack = &self.stacks[thread];
        let mut divisions = 0;
        let mut prime = true;
        for divisor in (3..).step_by(2).take_while(|divisor| divisor * divisor <= candidate) {
            // The division is a subroutine: it saves its link on the stack and fetches it again.
            trace.compute(LOOP);
            stack.store(0, trace);
            trace.compute(DIVIDE);
            stack.fetch(0, trace);
            divisions += 1;
            if candidate % divisor == 0 {
                prime = false;
                break;
            }
        }
        if prime {
            self.found.take(1, u32::MAX, trace);
            self.primes.push(candidate);
        }
        divisions
    }
}

impl Program for Primes1 {
    fn threads(&self) -> usize {
        self.stacks.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let mut divisions = 0;
        while divisions < PIECE {
            let (next, end) = self.portions[thread];
            if next >= end {
                let first = self.work.take(2 * PORTION, self.limit, trace);
                if first >= self.limit {
                    return Progress::Finished;
                }
                self.portions[thread] = (first + 1, (first + 2 * PORTION).min(self.limit + 1));
                continue;
            }
            self.portions[thread].0 = next + 2;
            // 1 is no prime; 2 stands for it.
            divisions += self.test(thread, if next == 1 { 2 } else { next }, trace);
        }
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        if self.found.value() as usize != self.primes.len() {
            return Err(Error::wrong_result(format!(
                "{} primes counted, and {} found",
                self.found.value(),
                self.primes.len()
            )));
        }
        check_primes(&self.primes, self.limit)
    }
}
