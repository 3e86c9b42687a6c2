//! Latency under load, as Intel's Memory Latency Checker measures it: one thread follows pointers while the
//! others read.

use super::LINE;
use crate::{Area, Error, Program, Progress, Role, Space, Trace, workloads::Parameters};

/// Each thread's memory: 200 MB, as the checker's.
const BYTES: f64 = 200e6;
const PAGE: usize = 4096;
/// Reads that the first thread does, each at an address that is in the line before.
const CHASES: u64 = 4096;
/// Operations of a piece, and instructions that one of the load hardly exceeds. So it ends soon after the
/// first thread.
const PIECE: u64 = 128;
const PIECE_INSTRUCTIONS: u64 = 1 << 12;
/// Instructions of a line beside the read that the simulator sees: the loop, by words of 32 bytes.
const INSTRUCTIONS: u64 = 3;

/// One thread that follows pointers, and others that read their own memory from end to end meanwhile.
///
/// Each thread touches its pages first. After that barrier an item is a pointer that was followed, so that
/// the time of an item is the latency.
pub struct Loaded {
    areas: Vec<Area>,
    bases: Vec<u64>,
    /// Lines of a thread's memory, a power of two.
    lines: u64,
    /// Instructions between two reads of the threads that are the load.
    delay: u64,
    /// Operations of each thread so far, and whether it has touched its pages.
    done: Vec<u64>,
    touched: Vec<bool>,
    /// The first thread's place.
    pointer: u64,
}

impl Loaded {
    /// The load is as much as its threads can ask for.
    #[must_use]
    pub fn new(parameters: Parameters) -> Self {
        Self::delayed(parameters, 0)
    }

    /// The same with as many more instructions before each read of the load.
    #[must_use]
    pub fn delayed(parameters: Parameters, delay: u64) -> Self {
        let mut space = Space::new();
        let lines = ((BYTES * parameters.scale) as usize / LINE).max(PAGE / LINE).next_power_of_two();
        let area = |thread| {
            space.area(format!("memory of thread {thread}"), (lines * LINE) as u64, Role::Private(thread))
        };
        let bases: Vec<u64> = (0..parameters.threads).map(area).collect();
        Self {
            areas: space.into_areas(),
            bases,
            lines: lines as u64,
            delay: INSTRUCTIONS + delay,
            done: vec![0; parameters.threads],
            touched: vec![false; parameters.threads],
            pointer: parameters.seed,
        }
    }

    /// How many pointers are followed.
    #[must_use]
    pub fn chases() -> u64 {
        CHASES
    }
}

impl Program for Loaded {
    fn threads(&self) -> usize {
        self.bases.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn items(&self) -> Option<u64> {
        Some(CHASES)
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let base = self.bases[thread];
        if !self.touched[thread] {
            self.touched[thread] = true;
            let bytes = self.lines * LINE as u64;
            (base..base + bytes).step_by(PAGE).for_each(|page| trace.write(page));
            return Progress::Barrier;
        }
        if self.done[0] == CHASES {
            return Progress::Finished;
        }
        let first = self.done[thread];
        let piece = if thread == 0 { PIECE } else { (PIECE_INSTRUCTIONS / self.delay).clamp(1, PIECE) };
        for line in first..first + piece {
            if thread == 0 {
                // Visits each line once before it is back (Knuth's constants of MMIX, modulo a power of two).
                self.pointer = self
                    .pointer
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                trace.chase(base + self.pointer % self.lines * LINE as u64);
            } else {
                trace.compute(self.delay);
                trace.read(base + line % self.lines * LINE as u64);
            }
        }
        self.done[thread] += piece;
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        if self.done[0] == CHASES {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("{} pointers of {CHASES} were followed", self.done[0])))
        }
    }
}
