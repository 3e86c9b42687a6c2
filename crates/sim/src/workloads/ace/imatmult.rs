//! `IMatMult`: the product of two integer matrices, an element of the result at a time.

use super::MULTIPLY;
use super::shared::Counter;
use crate::workloads::Parameters;
use crate::{Area, Array, Error, Program, Progress, Role, Space, Trace};

/// Rows and columns.
const SIDE: f64 = 200.0;
/// Address arithmetic, addition, test and branch of the inner loop.
const LOOP: u64 = 5;
/// Elements of the result in a piece.
const PIECE: usize = 4;

struct IMatMult {
    areas: Vec<Area>,
    /// The two inputs and the result, one behind the other as a loader puts them: C-Threads programs do not
    /// pad.
    matrices: Array<i32>,
    work: Counter,
    side: usize,
    threads: usize,
    seed: u64,
    /// Rows of the inputs written so far.
    written: usize,
    initialized: Vec<bool>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    // The work grows with the cube of the side.
    let side = ((SIDE * parameters.scale.cbrt()).round() as usize).max(8);
    let mut space = Space::new();
    let matrices = space.array("matrices", vec![0; 3 * side * side], Role::Unknown);
    let work = Counter::new(&mut space, "work");
    Box::new(IMatMult {
        areas: space.into_areas(),
        matrices,
        work,
        side,
        threads: parameters.threads,
        seed: parameters.seed,
        written: 0,
        initialized: vec![false; parameters.threads],
    })
}

impl IMatMult {
    /// An input element: small, and different everywhere.
    fn input(&self, index: usize) -> i32 {
        let mixed = (index as u64 + 1).wrapping_mul(self.seed.wrapping_mul(2) + 0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as i32 % 1000
    }

    fn element(&mut self, row: usize, column: usize, trace: &mut Trace) {
        let side = self.side;
        let mut sum = 0i32;
        for k in 0..side {
            let a = self.matrices.read(row * side + k, trace);
            let b = self.matrices.read((side + k) * side + column, trace);
            trace.compute(MULTIPLY + LOOP);
            sum = sum.wrapping_add(a.wrapping_mul(b));
        }
        self.matrices.write((2 * side + row) * side + column, sum, trace);
    }
}

impl Program for IMatMult {
    fn threads(&self) -> usize {
        self.threads
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let elements = (self.side * self.side) as u32;
        if !self.initialized[thread] {
            // The first thread writes both inputs; the others come into being after that.
            if thread == 0 && self.written < 2 * self.side {
                for index in self.written * self.side..(self.written + 1) * self.side {
                    trace.compute(LOOP);
                    self.matrices.write(index, self.input(index), trace);
                }
                self.written += 1;
                return Progress::Running;
            }
            self.initialized[thread] = true;
            return Progress::Barrier;
        }
        for _ in 0..PIECE {
            let element = self.work.take(1, elements, trace);
            if element >= elements {
                return Progress::Finished;
            }
            self.element(element as usize / self.side, element as usize % self.side, trace);
        }
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        let (side, values) = (self.side, self.matrices.values());
        let (a, rest) = values.split_at(side * side);
        let (b, c) = rest.split_at(side * side);
        for row in 0..side {
            for column in 0..side {
                let expected = (0..side)
                    .map(|k| a[row * side + k].wrapping_mul(b[k * side + column]))
                    .fold(0, i32::wrapping_add);
                if c[row * side + column] != expected {
                    return Err(Error::wrong_result(format!(
                        "element ({row}, {column}) is {}, not {expected}",
                        c[row * side + column]
                    )));
                }
            }
        }
        Ok(())
    }
}
