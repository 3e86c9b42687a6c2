//! CG: conjugate gradients with a random sparse matrix, rows dealt out in blocks.
//!
//! Scale 1 is class B: 75 000 rows, 13 random vectors' worth of elements a row (14 million in all). Kept: the
//! matrix by rows with 8-byte values and 4-byte columns, the gather of `p`. Different: the matrix is made
//! diagonally dominant rather than by outer products, and eight solutions of eight iterations stand for 75 of
//! 25.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Lines, Phased, Phases, Random, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const ROWS: usize = 75_000;
const ROW_ELEMENTS: usize = 14 * 13;
const SOLUTIONS: usize = 8;
/// Iterations of a solution.
pub const ITERATIONS: usize = 8;

/// Instructions of an element: load the column, load the value, load and multiply, add, loop; unrolled.
const ELEMENT: u64 = 5;
/// The matrix streams in front of the hardware prefetcher.
const AT_ONCE: u64 = 6;
/// A line of each of the vectors: eight multiply-adds and their loads and stores.
const VECTORS: Lines = Lines { at_once: 4, instructions: 32 };
const STRIDE: usize = LINE as usize / 8;
/// Elements of a vector in an item.
const STRIP: usize = 512;

struct Cg {
    areas: Vec<Area>,
    threads: usize,
    solutions: usize,
    /// The first element of each row, and the end.
    rows: Array<u32>,
    columns: Array<u32>,
    values: Array<f64>,
    right: Vec<f64>,
    x: Array<f64>,
    r: Array<f64>,
    p: Array<f64>,
    q: Array<f64>,
    /// Each thread's part of `p q` and of `r r`, on lines of their own.
    parts: [Array<f64>; 2],
    /// The first `r r`, that of the right side.
    first_rho: f64,
    /// `r r` before this iteration and after it.
    rho: f64,
    next_rho: f64,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    with_solutions(parameters, SOLUTIONS)
}

/// With another number of solutions, for studies of a run's course.
pub fn with_solutions(parameters: Parameters, solutions: usize) -> Box<dyn Program> {
    let rows = scaled(ROWS, parameters.scale, 64);
    let elements = ROW_ELEMENTS.min(rows / 2);
    let mut random = Random::new(parameters.seed);
    // Half of each row's elements are its own choice, half are others' of it: symmetric.
    let mut lists: Vec<Vec<(u32, f64)>> = vec![Vec::with_capacity(elements + elements / 2); rows];
    for row in 0..rows {
        for _ in 0..elements / 2 {
            let column = random.below(rows);
            let value = random.unit() - 0.5;
            if column != row {
                lists[row].push((column as u32, value));
                lists[column].push((row as u32, value));
            }
        }
    }
    let (mut starts, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
    for (row, mut list) in lists.into_iter().enumerate() {
        let dominant = 1.0 + list.iter().map(|element| element.1.abs()).sum::<f64>();
        list.push((row as u32, dominant));
        list.sort_unstable_by_key(|element| element.0);
        columns.extend(list.iter().map(|element| element.0));
        values.extend(list.iter().map(|element| element.1));
        starts.push(columns.len() as u32);
    }
    let right: Vec<f64> = (0..rows).map(|_| random.unit()).collect();
    let mut space = Space::new();
    let rows_of = space.array("row starts", starts, Role::Unknown);
    let columns = space.array("columns", columns, Role::Unknown);
    let values = space.array("values", values, Role::Unknown);
    let mut vector = |name: &str| space.array(name, vec![0.0; rows], Role::WriteShared);
    let (x, r, p, q) = (vector("x"), vector("r"), vector("p"), vector("q"));
    let parts = ["sums of p q", "sums of r r"]
        .map(|name| space.array(name, vec![0.0; parameters.threads * STRIDE], Role::WriteShared));
    let next_rho = right.iter().map(|value| value * value).sum();
    let program = Cg {
        areas: space.into_areas(),
        threads: parameters.threads,
        solutions,
        rows: rows_of,
        columns,
        values,
        right,
        x,
        r,
        p,
        q,
        parts,
        first_rho: next_rho,
        rho: 0.0,
        next_rho,
    };
    Phases::program(program, parameters.threads)
}

/// The kinds of phases.
enum Phase {
    /// The matrix, then for each solution
    Make,
    /// the vectors, and for each iteration
    Begin,
    /// the matrix times `p`,
    Product,
    /// the step along `p`
    Step,
    /// and the next direction.
    Direction,
}

impl Phase {
    const OF_SOLUTION: usize = 1 + 3 * ITERATIONS;

    fn of(phase: usize) -> Self {
        let Some(after) = phase.checked_sub(1) else { return Self::Make };
        match (after % Self::OF_SOLUTION).checked_sub(1).map(|after| after % 3) {
            None => Self::Begin,
            Some(0) => Self::Product,
            Some(1) => Self::Step,
            Some(_) => Self::Direction,
        }
    }
}

// Which sum.
const PQ: usize = 0;
const RR: usize = 1;

impl Cg {
    fn count(&self) -> usize {
        self.right.len()
    }

    /// A thread's rows.
    fn own(&self, thread: usize) -> Range<usize> {
        part(self.count(), thread, self.threads)
    }

    fn strip(&self, thread: usize, item: usize) -> Range<usize> {
        let own = self.own(thread);
        let start = own.start + item * STRIP;
        start..(start + STRIP).min(own.end)
    }

    /// Adds to a thread's part of a sum.
    fn add(&mut self, sum: usize, thread: usize, first: bool, amount: f64, trace: &mut Trace) {
        let place = thread * STRIDE;
        let before = if first { 0.0 } else { self.parts[sum].read(place, trace) };
        self.parts[sum].write(place, before + amount, trace);
    }

    /// All threads' parts: each thread adds them up for itself.
    fn sum(&self, sum: usize, touched: bool, trace: &mut Trace) -> f64 {
        let parts = &self.parts[sum];
        if touched {
            (0..self.threads).for_each(|thread| trace.read(parts.address(thread * STRIDE)));
        }
        (0..self.threads).map(|thread| parts.values()[thread * STRIDE]).sum()
    }

    fn elements(&self, row: usize) -> Range<usize> {
        self.rows.values()[row] as usize..self.rows.values()[row + 1] as usize
    }

    /// A row of the matrix times `p`.
    fn product(&mut self, row: usize, trace: &mut Trace) -> f64 {
        trace.read(self.rows.address(row));
        let elements = self.elements(row);
        let mut sum = 0.0;
        let (mut line, mut lines) = (u64::MAX, 0);
        for element in elements {
            let address = self.values.address(element);
            if address / LINE != line {
                line = address / LINE;
                trace.read(self.columns.address(element));
                trace.read(address);
                lines += 2;
                if lines >= AT_ONCE {
                    wait_for(address, trace);
                    lines = 0;
                }
            }
            let column = self.columns.values()[element] as usize;
            sum += self.values.values()[element] * self.p.read(column, trace);
            // The gather itself is an instruction.
            trace.compute(ELEMENT - 1);
        }
        sum
    }

    fn make(&mut self, thread: usize, item: usize, trace: &mut Trace) {
        // Eight rows at a time.
        let own = self.own(thread);
        let rows = own.start + item * 8..(own.start + item * 8 + 8).min(own.end);
        let elements = self.elements(rows.start).start..self.elements(rows.end - 1).end;
        trace.compute(20 * elements.len() as u64);
        write_lines(self.rows.address(rows.start), rows.len() as u64 * 4, trace);
        write_lines(self.columns.address(elements.start), elements.len() as u64 * 4, trace);
        write_lines(self.values.address(elements.start), elements.len() as u64 * 8, trace);
    }

    /// The vectors before the first iteration.
    fn begin(&mut self, thread: usize, item: usize, trace: &mut Trace) {
        self.next_rho = self.first_rho;
        for row in self.strip(thread, item) {
            let right = self.right[row];
            self.x.write(row, 0.0, trace);
            self.r.write(row, right, trace);
            self.p.write(row, right, trace);
            self.q.write(row, 0.0, trace);
        }
    }
}

impl Phased for Cg {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        1 + self.solutions * Phase::OF_SOLUTION
    }

    fn iteration(&self) -> u64 {
        3
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let own = self.own(thread).len();
        let items = match Phase::of(phase) {
            Phase::Make => own.div_ceil(8),
            Phase::Product => own,
            _ => own.div_ceil(STRIP),
        };
        0..items
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        let first = item == 0;
        match Phase::of(phase) {
            Phase::Make => self.make(thread, item, trace),
            Phase::Begin => self.begin(thread, item, trace),
            Phase::Product => {
                // The same for every thread that comes here.
                self.rho = self.next_rho;
                let row = self.own(thread).start + item;
                let sum = self.product(row, trace);
                self.q.write(row, sum, trace);
                let p = self.p.read(row, trace);
                self.add(PQ, thread, first, p * sum, trace);
            }
            Phase::Step => {
                let alpha = self.rho / self.sum(PQ, first, trace);
                let strip = self.strip(thread, item);
                let start = strip.start;
                let bytes = strip.len() as u64 * 8;
                let addresses =
                    [&self.x, &self.r, &self.p, &self.q].map(|vector: &Array<f64>| vector.address(start));
                VECTORS.read_all(&addresses, bytes, trace);
                write_lines(addresses[0], bytes, trace);
                write_lines(addresses[1], bytes, trace);
                let mut rr = 0.0;
                for row in strip {
                    self.x.values_mut()[row] += alpha * self.p.values()[row];
                    let residual = self.r.values()[row] - alpha * self.q.values()[row];
                    self.r.values_mut()[row] = residual;
                    rr += residual * residual;
                }
                self.add(RR, thread, first, rr, trace);
            }
            Phase::Direction => {
                let rho = self.sum(RR, first, trace);
                let beta = rho / self.rho;
                self.next_rho = rho;
                let strip = self.strip(thread, item);
                let start = strip.start;
                let bytes = strip.len() as u64 * 8;
                VECTORS.read_all(&[self.r.address(start), self.p.address(start)], bytes, trace);
                write_lines(self.p.address(start), bytes, trace);
                for row in strip {
                    self.p.values_mut()[row] = self.r.values()[row] + beta * self.p.values()[row];
                }
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        let mut error: f64 = 0.0;
        for row in 0..self.count() {
            let elements = self.elements(row);
            let product: f64 = elements
                .map(|element| {
                    self.values.values()[element] * self.x.values()[self.columns.values()[element] as usize]
                })
                .sum();
            let difference = (self.right[row] - product).abs();
            // A NaN is an error too.
            error = if difference <= error { error } else { difference };
        }
        // Dominated by the diagonal, the system is solved to a thousandth in eight steps.
        if error < 1e-3 { Ok(()) } else { Err(Error::wrong_result(format!("the residual is {error}"))) }
    }
}
