//! Fedor Pikus, "Nearly Unfathomable Morass of Arcana (NUMA)": memory bandwidth, of own data and of data that
//! lies together.

use super::LINE;
use crate::{Area, Error, Program, Progress, Role, Space, Trace, workloads::Parameters};

/// The bytes that a thread goes through: `membench` of the talk has 4 GB for 64 threads.
const BYTES_PER_THREAD: f64 = 64.0 * 1024.0 * 1024.0;

/// Times a thread goes through its lines: the first finds the memory untouched, and the others measure.
const PASSES: u64 = 3;

/// Instructions of a line beside the write that the simulator sees: three more of 16 bytes, and the loop.
const INSTRUCTIONS: u64 = 5;

/// Lines of a piece.
const PIECE: usize = 512;

/// Threads that write lines, one value each.
pub struct Stream {
    areas: Vec<Area>,
    threads: Vec<Walker>,
    lines_each: usize,
}

/// Where a thread is, and what it writes.
struct Walker {
    first: u64,
    /// From one of its lines to its next, in bytes.
    stride: u64,
    pass: u64,
    next: usize,
    values: Vec<u64>,
}

impl Stream {
    /// "Each thread allocates and writes its own memory."
    #[must_use]
    pub fn own(parameters: Parameters) -> Self {
        let mut space = Space::new();
        let lines = lines_each(parameters);
        let starts: Vec<u64> = (0..parameters.threads)
            .map(|thread| {
                space.area(format!("data of thread {thread}"), (lines * LINE) as u64, Role::Private(thread))
            })
            .collect();
        Self::new(space, &starts, LINE as u64, lines)
    }

    /// "No cache lines shared between threads. Thread data is interleaved and accessed sequentially (with
    /// stride)." Where the array lies is the policy's affair; in the talk, all of it on node 0.
    #[must_use]
    pub fn interleaved(parameters: Parameters) -> Self {
        let mut space = Space::new();
        let lines = lines_each(parameters);
        let stride = (parameters.threads * LINE) as u64;
        let base = space.area("data", lines as u64 * stride, Role::WriteShared);
        let starts: Vec<u64> = (0..parameters.threads).map(|thread| base + (thread * LINE) as u64).collect();
        Self::new(space, &starts, stride, lines)
    }

    fn new(space: Space, starts: &[u64], stride: u64, lines_each: usize) -> Self {
        let walker = |&first| Walker { first, stride, pass: 0, next: 0, values: vec![0; lines_each] };
        Self { areas: space.into_areas(), threads: starts.iter().map(walker).collect(), lines_each }
    }

    /// The bytes that the threads write in all passes, for a bandwidth.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.threads.len() as u64 * self.lines_each as u64 * LINE as u64 * PASSES
    }
}

fn lines_each(parameters: Parameters) -> usize {
    ((BYTES_PER_THREAD * parameters.scale) as usize / LINE).max(1)
}

impl Program for Stream {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let walker = &mut self.threads[thread];
        let end = (walker.next + PIECE).min(self.lines_each);
        for index in walker.next..end {
            trace.compute(INSTRUCTIONS);
            trace.write(walker.first + index as u64 * walker.stride);
            walker.values[index] += walker.pass + index as u64;
        }
        walker.next = end;
        if end < self.lines_each {
            return Progress::Running;
        }
        (walker.next, walker.pass) = (0, walker.pass + 1);
        if walker.pass < PASSES { Progress::Barrier } else { Progress::Finished }
    }

    fn check(&self) -> Result<(), Error> {
        let per_pass: u64 = (0..PASSES).sum();
        for (thread, walker) in self.threads.iter().enumerate() {
            let wrong = walker
                .values
                .iter()
                .enumerate()
                .find(|&(index, &value)| value != per_pass + PASSES * index as u64);
            if let Some((index, value)) = wrong {
                return Err(Error::wrong_result(format!("line {index} of thread {thread} holds {value}")));
            }
        }
        Ok(())
    }
}
