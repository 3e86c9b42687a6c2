//! `Gfetch`: nothing but fetches from shared memory that every thread has written.

use super::scaled;
use super::shared::Counter;
use crate::workloads::Parameters;
use crate::{Area, Array, Error, Program, Progress, Role, Space, Trace};

/// Fetches in all: what the published times differ by, over 0.85 us a fetch.
const FETCHES: u64 = 39_600_000;
/// Words of the array, and words handed out at a time.
const WORDS: usize = 64 << 10;
const PORTION: usize = 4096;
/// Times that every thread writes into every page: more than any policy's patience.
const WRITING_ROUNDS: usize = 4;
const PAGE_WORDS: usize = 1024;
/// The loop is unrolled, as its control is "too small to be seen".
const UNROLLED: usize = 32;
const LOOP: u64 = 2;

struct Gfetch {
    areas: Vec<Area>,
    words: Array<u32>,
    work: Counter,
    portions: u32,
    /// Writing rounds done, and sum fetched, of each thread.
    rounds: Vec<usize>,
    sums: Vec<u64>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let mut space = Space::new();
    let words = space.array("words", vec![0; WORDS], Role::WriteShared);
    let work = Counter::new(&mut space, "work");
    Box::new(Gfetch {
        areas: space.into_areas(),
        words,
        work,
        portions: scaled(FETCHES / PORTION as u64, parameters, 16) as u32,
        rounds: vec![0; parameters.threads],
        sums: vec![0; parameters.threads],
    })
}

impl Gfetch {
    fn sum_of(&self, portion: u32) -> u64 {
        let first = portion as usize * PORTION % WORDS;
        self.words.values()[first..first + PORTION].iter().map(|&word| u64::from(word)).sum()
    }
}

impl Program for Gfetch {
    fn threads(&self) -> usize {
        self.sums.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if self.rounds[thread] < WRITING_ROUNDS {
            self.rounds[thread] += 1;
            for page in (0..WORDS).step_by(PAGE_WORDS) {
                trace.compute(LOOP);
                self.words.write(page + thread % PAGE_WORDS, thread as u32 + 1, trace);
            }
            return Progress::Barrier;
        }
        let portion = self.work.take(1, self.portions, trace);
        if portion >= self.portions {
            return Progress::Finished;
        }
        let first = portion as usize * PORTION % WORDS;
        for word in (first..first + PORTION).step_by(UNROLLED) {
            trace.compute(LOOP);
            for word in word..word + UNROLLED {
                self.sums[thread] += u64::from(self.words.read(word, trace));
            }
        }
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        let sum: u64 = self.sums.iter().sum();
        let expected: u64 = (0..self.portions).map(|portion| self.sum_of(portion)).sum();
        if sum == expected {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("the sum is {sum}, not {expected}")))
        }
    }
}
