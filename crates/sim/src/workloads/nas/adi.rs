//! BT and SP: a cube of cells with five values each, solved implicitly along one axis after the other.
//!
//! Scale 1 is class B: 102 cells to a side. Kept: the arrays `u`, `rhs` and `forcing` and the order in which
//! they are swept; rows are dealt out by planes, so that the sweep along the last axis goes through
//! everybody's memory. Different: each of a cell's five values has a tridiagonal system of its own, rather
//! than all five one of blocks (BT) or a pentadiagonal (SP); the instructions are those of the real ones.
//! Left out: six derived quantities a cell that are only looked up.

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

/// Cells: 102 to a side.
const CELLS: usize = 102 * 102 * 102;
const VALUES: usize = 5;
const CELL_BYTES: u64 = VALUES as u64 * 8;
/// Iterations: of 200 (BT) and 400 (SP).
const ITERATIONS: usize = 12;
/// Time step times diffusivity over the square of a cell's side.
const LAMBDA: f64 = 0.4;

/// The programs' own count of floating-point operations for a cell and iteration (the leading term of what
/// they print as Mop/s, NPB 3.3 `bt.f` and `sp.f`), an instruction each.
const BT: u64 = 3479;
const SP: u64 = 881;

/// The parts of these operations that the right-hand side takes, and each of the three sweeps, in tenths.
const RIGHT_TENTHS: u64 = 1;
const SWEEP_TENTHS: u64 = 3;
/// Cells whose lines are fetched at once: the elimination of a cell waits for that of the one before.
const CELLS_AT_ONCE: usize = 4;

struct Adi {
    areas: Vec<Area>,
    threads: usize,
    /// Cells to a side.
    side: usize,
    /// Instructions for a cell and iteration.
    cell: u64,
    u: Array<f64>,
    right: Array<f64>,
    forcing: Array<f64>,
    /// The factors of the elimination, by cell along an axis.
    factors: Vec<f64>,
}

// The kinds of phases: the arrays are made, then for each iteration five steps.
const MAKE: usize = 0;
const RIGHT: usize = 0;
const ALONG_X: usize = 1;
const ALONG_Z: usize = 3;
const STEPS: usize = 5;

pub fn bt(parameters: Parameters) -> Box<dyn Program> {
    build(parameters, BT)
}

pub fn sp(parameters: Parameters) -> Box<dyn Program> {
    build(parameters, SP)
}

fn build(parameters: Parameters, cell: u64) -> Box<dyn Program> {
    let side = (scaled(CELLS, parameters.scale, 64) as f64).cbrt().round() as usize;
    let values = side * side * side * VALUES;
    let mut random = Random::new(parameters.seed);
    let mut space = Space::new();
    let u = (0..values).map(|_| random.unit()).collect();
    let forcing = (0..values).map(|_| random.unit() - 0.5).collect();
    let u = space.array("u", u, Role::WriteShared);
    let right = space.array("rhs", vec![0.0; values], Role::WriteShared);
    let forcing = space.array("forcing", forcing, Role::ReadShared);
    let mut factors = Vec::with_capacity(side);
    let mut factor = 0.0;
    for _ in 0..side {
        factor = LAMBDA / (1.0 + 2.0 * LAMBDA - LAMBDA * factor);
        factors.push(factor);
    }
    let program = Adi {
        areas: space.into_areas(),
        threads: parameters.threads,
        side,
        cell,
        u,
        right,
        forcing,
        factors,
    };
    Phases::program(program, parameters.threads)
}

impl Adi {
    /// The first cell of a row along an axis, and how far the next is.
    fn row(&self, axis: usize, item: usize) -> (usize, usize) {
        let side = self.side;
        let (outer, inner) = (item / side, item % side);
        match axis {
            0 => (item * side, 1),
            1 => (outer * side * side + inner, side),
            _ => (outer * side + inner, side * side),
        }
    }

    fn bytes(&self) -> u64 {
        self.side as u64 * CELL_BYTES
    }

    /// The second difference of an array around a cell, along an axis; nothing is beyond the cube.
    fn difference(&self, values: &[f64], cell: usize, axis: usize, value: usize) -> f64 {
        let step = [1, self.side, self.side * self.side][axis];
        let place = cell / step % self.side;
        let before = if place > 0 { values[(cell - step) * VALUES + value] } else { 0.0 };
        let after = if place + 1 < self.side { values[(cell + step) * VALUES + value] } else { 0.0 };
        before - 2.0 * values[cell * VALUES + value] + after
    }

    fn right_side(&self, u: &[f64], cell: usize, value: usize) -> f64 {
        let around: f64 = (0..3).map(|axis| self.difference(u, cell, axis, value)).sum();
        self.forcing.values()[cell * VALUES + value] + LAMBDA * around
    }

    /// The right-hand side of a row along x. The next plane's row is the one not seen lately, among the rows
    /// around it.
    fn right(&mut self, item: usize, trace: &mut Trace) {
        let (start, _) = self.row(0, item);
        let ahead = (start + self.side * self.side).min(self.side.pow(3) - self.side);
        let lines = Lines { at_once: 4, instructions: self.cell * RIGHT_TENTHS / 10 * 64 / CELL_BYTES };
        let first = [
            self.u.address(start * VALUES),
            self.u.address(ahead * VALUES),
            self.forcing.address(start * VALUES),
        ];
        lines.read_all(&first, self.bytes(), trace);
        write_lines(self.right.address(start * VALUES), self.bytes(), trace);
        for cell in start..start + self.side {
            for value in 0..VALUES {
                let right = self.right_side(self.u.values(), cell, value);
                self.right.values_mut()[cell * VALUES + value] = right;
            }
        }
    }

    /// Solves a row along an axis, in place: elimination, then substitution backwards.
    fn sweep(&mut self, axis: usize, item: usize, trace: &mut Trace) {
        let (start, step) = self.row(axis, item);
        let instructions = self.cell * SWEEP_TENTHS / 10;
        for place in 0..self.side {
            let cell = start + place * step;
            trace.read(self.u.address(cell * VALUES));
            trace.read(self.right.address(cell * VALUES));
            if place % CELLS_AT_ONCE == CELLS_AT_ONCE - 1 {
                wait_for(self.right.address(cell * VALUES), trace);
                trace.compute(CELLS_AT_ONCE as u64 * instructions * 9 / 10);
            }
            for value in 0..VALUES {
                let before =
                    if place > 0 { self.right.values()[(cell - step) * VALUES + value] } else { 0.0 };
                let values = self.right.values_mut();
                let right = values[cell * VALUES + value];
                values[cell * VALUES + value] = (right + LAMBDA * before) * self.factors[place] / LAMBDA;
            }
        }
        for place in (0..self.side).rev() {
            let cell = start + place * step;
            trace.compute(instructions / 10);
            trace.write(self.right.address(cell * VALUES));
            for value in 0..VALUES {
                if place + 1 < self.side {
                    let after = self.right.values()[(cell + step) * VALUES + value];
                    self.right.values_mut()[cell * VALUES + value] += self.factors[place] * after;
                }
            }
        }
    }

    fn add(&mut self, item: usize, trace: &mut Trace) {
        let (start, _) = self.row(0, item);
        let (u, right) = (self.u.address(start * VALUES), self.right.address(start * VALUES));
        Lines { at_once: 4, instructions: 16 }.read_all(&[u, right], self.bytes(), trace);
        write_lines(u, self.bytes(), trace);
        for index in start * VALUES..(start + self.side) * VALUES {
            self.u.values_mut()[index] += self.right.values()[index];
        }
    }
}

impl Phased for Adi {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        1 + STEPS * ITERATIONS
    }

    fn iteration(&self) -> u64 {
        STEPS as u64
    }

    fn items(&self, _phase: usize, thread: usize) -> Range<usize> {
        part(self.side * self.side, thread, self.threads)
    }

    fn item(&mut self, phase: usize, _thread: usize, item: usize, trace: &mut Trace) {
        if phase == MAKE {
            let (start, _) = self.row(0, item);
            trace.compute(self.side as u64 * 60);
            for array in [&self.u, &self.right, &self.forcing] {
                write_lines(array.address(start * VALUES), self.bytes(), trace);
            }
            return;
        }
        match (phase - 1) % STEPS {
            RIGHT => self.right(item, trace),
            step @ ALONG_X..=ALONG_Z => self.sweep(step - ALONG_X, item, trace),
            _ => self.add(item, trace),
        }
    }

    fn check(&self) -> Result<(), Error> {
        // The increment of the last iteration, put back into its equations, gives their right-hand side.
        let mut product = self.right.values().to_vec();
        for axis in 0..3 {
            let known = product.clone();
            for (index, product) in product.iter_mut().enumerate() {
                *product -= LAMBDA * self.difference(&known, index / VALUES, axis, index % VALUES);
            }
        }
        let before: Vec<f64> = self.u.values().iter().zip(self.right.values()).map(|(u, d)| u - d).collect();
        for (index, &product) in product.iter().enumerate() {
            let right = self.right_side(&before, index / VALUES, index % VALUES);
            let error = (product - right).abs();
            if error.is_nan() || error > 1e-9 {
                return Err(Error::wrong_result(format!("value {index} solves for {product}, not {right}")));
            }
        }
        Ok(())
    }
}
