//! Primes2: an odd number is prime if no prime up to its square root divides it.
//!
//! The primes found so far are the shared output vector. Before tuning it was also where divisors were
//! fetched from; then each thread copied them into a private vector (paper, section 4.2).

use super::shared::{Counter, Stack, check_primes, output_words, primes_to, square_root};
use super::{DIVIDE, scaled};
use crate::workloads::Parameters;
use crate::{Area, Array, Error, Program, Progress, Role, Space, Trace};

const LIMIT: u64 = 10_000_000;
/// Odd numbers handed out at a time.
const PORTION: u32 = 100;
/// Loop, call and return around a division, as in Primes1.
const LOOP: u64 = 8;
/// Keeping the root of the candidate: candidates ascend, so it rarely changes.
const ROOT: u64 = 20;
/// Divisions in a piece, about.
const PIECE: usize = 1000;

struct Primes2 {
    areas: Vec<Area>,
    limit: u32,
    output: Array<u32>,
    found: Counter,
    /// The two rounds in which all threads test numbers.
    rounds: [Round; 2],
    threads: Vec<Thread>,
    /// The first so many of the output vector are all the divisors that the round needs, in order.
    known: usize,
}

/// Numbers tested together: up to the root of the limit, then up to the limit.
struct Round {
    work: Counter,
    first: u32,
    last: u32,
}

struct Thread {
    stack: Stack,
    /// Its own divisors, and how many of them have been copied; none if it divides by the output vector.
    divisors: Option<(Array<u32>, usize)>,
    step: Step,
    /// Numbers not yet tested: next, and last.
    portion: (u32, u32),
}

#[derive(Clone, Copy)]
enum Step {
    /// The first thread finds the divisors of the first round alone.
    Begin,
    Test(usize),
    /// The first thread puts what was found together in order.
    Sort,
}

/// The version with private divisors.
pub fn build_private(parameters: Parameters) -> Box<dyn Program> {
    build(parameters, true)
}

/// The version that divides by the output vector.
pub fn build_shared(parameters: Parameters) -> Box<dyn Program> {
    build(parameters, false)
}

fn build(parameters: Parameters, private: bool) -> Box<dyn Program> {
    let limit = scaled(LIMIT, parameters, 1000) as u32;
    let root = square_root(limit);
    let start = square_root(root);
    let divisors = primes_to(root).len();
    let mut space = Space::new();
    let output = space.array("output", vec![0; output_words(limit)], Role::WriteShared);
    let found = Counter::new(&mut space, "found");
    let mut round =
        |first: u32, last| Round { work: Counter::new(&mut space, "work"), first: first | 1, last };
    let rounds = [round(start + 1, root), round(root + 1, limit)];
    let threads = (0..parameters.threads)
        .map(|thread| Thread {
            stack: Stack::new(&mut space, thread),
            divisors: private.then(|| {
                (space.array(format!("divisors {thread}"), vec![0; divisors], Role::Private(thread)), 0)
            }),
            step: Step::Begin,
            portion: (1, 0),
        })
        .collect();
    Box::new(Primes2 { areas: space.into_areas(), limit, output, found, rounds, threads, known: 0 })
}

impl Primes2 {
    /// Fetches the divisor at `place` for a thread.
    fn divisor(&mut self, thread: usize, place: usize, trace: &mut Trace) -> u32 {
        let Some((private, copied)) = &mut self.threads[thread].divisors else {
            return self.output.read(place, trace);
        };
        while *copied <= place {
            let prime = self.output.read(*copied, trace);
            private.write(*copied, prime, trace);
            *copied += 1;
        }
        private.read(place, trace)
    }

    /// Tests one odd number by divisions; gives how many there were.
    fn test(&mut self, thread: usize, candidate: u32, trace: &mut Trace) -> usize {
        let root = square_root(candidate);
        trace.compute(ROOT);
        let mut divisions = 0;
        let mut prime = true;
        // The first divisor is 2.
        for place in 1..self.known {
            let divisor = self.divisor(thread, place, trace);
            // The divisor is a variable of the frame.
            let stack = &self.threads[thread].stack;
            stack.store(1, trace);
            if divisor > root {
                break;
            }
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
            self.append(candidate, trace);
        }
        divisions
    }

    fn append(&mut self, prime: u32, trace: &mut Trace) {
        let place = self.found.take(1, u32::MAX, trace);
        self.output.write(place as usize, prime, trace);
    }

    /// Tests some numbers of a round; false if none are left.
    fn test_some(&mut self, thread: usize, round: usize, trace: &mut Trace) -> bool {
        let mut divisions = 0;
        while divisions < PIECE {
            let (next, last) = self.threads[thread].portion;
            if next > last {
                let Round { work, first, last } = &mut self.rounds[round];
                let numbers = (*last + 1).saturating_sub(*first);
                let taken = work.take(2 * PORTION, numbers, trace);
                if taken >= numbers {
                    return false;
                }
                let next = *first + taken;
                self.threads[thread].portion = (next, (next + 2 * PORTION - 1).min(*last));
                continue;
            }
            self.threads[thread].portion.0 = next + 2;
            divisions += self.test(thread, next, trace).max(1);
        }
        true
    }

    fn begin(&mut self, trace: &mut Trace) {
        for prime in primes_to(square_root(square_root(self.limit))) {
            trace.compute(ROOT);
            self.append(prime, trace);
        }
        self.known = self.found.value() as usize;
    }

    fn sort(&mut self, trace: &mut Trace) {
        self.known = self.found.value() as usize;
        let mut sorted = self.output.values()[..self.known].to_vec();
        sorted.sort_unstable();
        for (place, prime) in sorted.into_iter().enumerate() {
            self.output.read(place, trace);
            trace.compute(LOOP);
            self.output.write(place, prime, trace);
        }
    }
}

impl Program for Primes2 {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let step = self.threads[thread].step;
        let (next, progress) = match step {
            Step::Begin => {
                if thread == 0 {
                    self.begin(trace);
                }
                (Step::Test(0), Progress::Barrier)
            }
            Step::Test(round) if self.test_some(thread, round, trace) => {
                (Step::Test(round), Progress::Running)
            }
            Step::Test(0) => (Step::Sort, Progress::Barrier),
            Step::Test(_) => return Progress::Finished,
            Step::Sort => {
                if thread == 0 {
                    self.sort(trace);
                }
                (Step::Test(1), Progress::Barrier)
            }
        };
        self.threads[thread].step = next;
        progress
    }

    fn check(&self) -> Result<(), Error> {
        check_primes(&self.output.values()[..self.found.value() as usize], self.limit)
    }
}
