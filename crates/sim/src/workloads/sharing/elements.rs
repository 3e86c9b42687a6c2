//! The work of a parallel foreach of Pikus's talk on each element: "each task is about 1us, uses 8B of
//! memory".

use crate::{Array, Error, Role, Space, Trace, workloads::Parameters};
use std::ops::Range;

/// At full scale; the talk does not say how many.
const ELEMENTS: f64 = 800_000.0;

/// Instructions of an element: a microsecond on a core of 2.1 GHz that does two a cycle (dahu-2n).
const INSTRUCTIONS: u64 = 4200;

/// The elements, and how often each was done.
pub struct Elements {
    values: Array<u64>,
    done: Vec<u8>,
}

impl Elements {
    pub fn new(space: &mut Space, parameters: Parameters) -> Self {
        let count = ((ELEMENTS * parameters.scale) as usize).max(parameters.threads);
        let values = space.array("elements", (0..count as u64).collect(), Role::WriteShared);
        Self { values, done: vec![0; count] }
    }

    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Brings them into memory, as whoever makes the array does.
    pub fn touch(&self, trace: &mut Trace) {
        (0..self.len()).step_by(8).for_each(|index| trace.write(self.values.address(index)));
    }

    /// Does one.
    pub fn work(&mut self, index: usize, trace: &mut Trace) {
        let value = self.values.read(index, trace);
        trace.compute(INSTRUCTIONS);
        self.values.write(index, value.wrapping_mul(3), trace);
        self.done[index] += 1;
    }

    /// The part of the elements that a node gets, given the workers of each.
    pub fn share(&self, workers: &[usize], node: usize) -> Range<usize> {
        let all: usize = workers.iter().sum();
        let before: usize = workers[..node].iter().sum();
        self.len() * before / all..self.len() * (before + workers[node]) / all
    }

    pub fn check(&self) -> Result<(), Error> {
        match self.done.iter().position(|&times| times != 1) {
            Some(index) => {
                Err(Error::wrong_result(format!("element {index} was done {} times", self.done[index])))
            }
            None => Ok(()),
        }
    }
}
