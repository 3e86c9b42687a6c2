//! Counts that all threads add to.

use super::APART;
use crate::{Area, Error, Program, Progress, Role, Space, Trace, workloads::Parameters};
use nodewise_hardware::MOST_NODES;

/// Additions of a thread at full scale.
const ADDITIONS: f64 = 100_000.0;

/// Additions of a piece, where they are plain ones.
const PIECE: u64 = 256;

/// Instructions of an addition beside those that touch the count: which CPU is this, and the loop.
const INSTRUCTIONS: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    One,
    Node,
    Cpu,
}

/// Threads that do nothing but count.
pub struct Counter {
    areas: Vec<Area>,
    base: u64,
    parts: Parts,
    /// The word that each thread adds to.
    word_of: Vec<usize>,
    words: Vec<u64>,
    left: Vec<u64>,
    each: u64,
}

impl Counter {
    pub fn shared(parameters: Parameters) -> Self {
        Self::new(parameters, Parts::One)
    }

    pub fn per_node(parameters: Parameters) -> Self {
        Self::new(parameters, Parts::Node)
    }

    pub fn per_cpu(parameters: Parameters) -> Self {
        Self::new(parameters, Parts::Cpu)
    }

    fn new(parameters: Parameters, parts: Parts) -> Self {
        let Parameters { threads, scale, .. } = parameters;
        let words = match parts {
            Parts::One => 1,
            Parts::Node => MOST_NODES,
            Parts::Cpu => threads,
        };
        let mut space = Space::new();
        let base = space.area("counts", words as u64 * APART, Role::WriteShared);
        let each = ((ADDITIONS * scale) as u64).max(1);
        let word_of = match parts {
            Parts::Cpu => (0..threads).collect(),
            _ => vec![0; threads],
        };
        Self {
            areas: space.into_areas(),
            base,
            parts,
            word_of,
            words: vec![0; words],
            left: vec![each; threads],
            each,
        }
    }
}

impl Program for Counter {
    fn threads(&self) -> usize {
        self.left.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn placed(&mut self, nodes: &[usize]) {
        if self.parts == Parts::Node {
            self.word_of = nodes.to_vec();
        }
    }

    fn items(&self) -> Option<u64> {
        Some(self.each * self.left.len() as u64)
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let word = self.word_of[thread];
        let address = self.base + word as u64 * APART;
        let additions = if self.parts == Parts::Cpu { PIECE.min(self.left[thread]) } else { 1 };
        for _ in 0..additions {
            trace.compute(INSTRUCTIONS);
            if self.parts == Parts::Cpu {
                trace.read(address);
                trace.write(address);
            } else {
                trace.atomic(address);
            }
        }
        self.words[word] += additions;
        self.left[thread] -= additions;
        if self.left[thread] > 0 { Progress::Running } else { Progress::Finished }
    }

    fn check(&self) -> Result<(), Error> {
        let (sum, expected) = (self.words.iter().sum::<u64>(), self.each * self.left.len() as u64);
        if sum == expected {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("counted {sum} additions of {expected}")))
        }
    }
}
