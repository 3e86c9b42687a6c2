//! Principal component analysis, as far as the suite's goes: the rows' means and their covariance matrix.
//!
//! Kept: a matrix of 64 MB, ten times a node's LLC, unblocked loops in which a pair's second row comes from memory. The
//! suite's matrix is square; this one has fewer and longer rows, as the pairs go by the square of the rows.

use std::ops::Range;

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, alone, part, scaled, write_lines};
use crate::{Area, Array, Program, Role, Space, Trace};

const ROWS: usize = 300;
const COLUMNS: usize = 52_000;
/// Values are below this, as in the suite.
const VALUES: usize = 1000;

/// A line has 16 values, eight instructions each (load, subtract the mean and extend, twice, multiply, add to a long), and the loop. Three lines
/// at once are the 1.8 outstanding misses of the article's table (Little's law).
const PAIR: Lines = Lines { at_once: 3, instructions: 132 };
/// A line's sum.
const MEAN: Lines = Lines { at_once: 3, instructions: 48 };

struct Pca {
    areas: Vec<Area>,
    threads: usize,
    columns: usize,
    matrix: Array<i32>,
    means: Array<i64>,
    covariance: Array<i64>,
}

/// Columns of an item.
const STRIP: usize = 4096;

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let columns = scaled(COLUMNS, parameters.scale, 32);
    let mut random = Random::new(parameters.seed);
    let mut space = Space::new();
    let matrix = (0..ROWS * columns).map(|_| random.below(VALUES) as i32).collect();
    let matrix = space.array("matrix", matrix, Role::ReadShared);
    let means = space.array("means", vec![0; ROWS], Role::WriteShared);
    let covariance = space.array("covariance", vec![0; ROWS * ROWS], Role::WriteShared);
    let program =
        Pca { areas: space.into_areas(), threads: parameters.threads, columns, matrix, means, covariance };
    Phases::program(program, parameters.threads)
}

/// The pair of rows at a place of the upper triangle, row by row.
fn pair(place: usize) -> (usize, usize) {
    // Rows before `row` hold row * ROWS - row * (row - 1) / 2 pairs.
    let before = |row: usize| row * (2 * ROWS + 1 - row) / 2;
    let (mut low, mut high) = (0, ROWS);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if before(middle) <= place { low = middle } else { high = middle }
    }
    (low, low + place - before(low))
}

impl Pca {
    fn strips(&self) -> usize {
        self.columns.div_ceil(STRIP)
    }

    fn row(&self, row: usize, columns: Range<usize>) -> &[i32] {
        &self.matrix.values()[row * self.columns..(row + 1) * self.columns][columns]
    }

    fn products(&self, (a, b): (usize, usize), columns: Range<usize>) -> i64 {
        let (mean_a, mean_b) = (self.means.values()[a], self.means.values()[b]);
        let row_a = self.row(a, columns.clone()).iter();
        row_a
            .zip(self.row(b, columns))
            .map(|(&x, &y)| (i64::from(x) - mean_a) * (i64::from(y) - mean_b))
            .sum()
    }
}

impl Phased for Pca {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        3
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let of = |count| {
            let Range { start, end } = part(count, thread, self.threads);
            start * self.strips()..end * self.strips()
        };
        match phase {
            0 => alone(ROWS * self.strips(), thread),
            1 => of(ROWS),
            _ => of(ROWS * (ROWS + 1) / 2),
        }
    }

    fn item(&mut self, phase: usize, _thread: usize, item: usize, trace: &mut Trace) {
        let (item, strip) = (item / self.strips(), item % self.strips());
        let columns = strip * STRIP..((strip + 1) * STRIP).min(self.columns);
        let bytes = columns.len() as u64 * 4;
        let address = |row| self.matrix.address(row * self.columns + columns.start);
        match phase {
            0 => {
                trace.compute(bytes / 8);
                write_lines(address(item), bytes, trace);
            }
            1 => {
                MEAN.read(address(item), bytes, trace);
                let sum: i64 = self.row(item, columns.clone()).iter().map(|&value| i64::from(value)).sum();
                let before = if strip == 0 { 0 } else { self.means.read(item, trace) };
                let sum = before + sum;
                let last = columns.end == self.columns;
                self.means.write(item, if last { sum / self.columns as i64 } else { sum }, trace);
            }
            _ => {
                let (a, b) = pair(item);
                PAIR.read_all(&[address(a), address(b)], bytes, trace);
                let sum = self.products((a, b), columns);
                let place = a * ROWS + b;
                let before = if strip == 0 { 0 } else { self.covariance.read(place, trace) };
                self.covariance.write(place, before + sum, trace);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        for row in 0..ROWS {
            let sum: i64 = self.row(row, 0..self.columns).iter().map(|&value| i64::from(value)).sum();
            if self.means.values()[row] != sum / self.columns as i64 {
                return Err(format!("row {row} has the mean {}", self.means.values()[row]));
            }
            for other in [row, usize::midpoint(row, ROWS), ROWS - 1] {
                let sum = self.products((row, other), 0..self.columns);
                let found = self.covariance.values()[row * ROWS + other];
                if found != sum {
                    return Err(format!("rows {row} and {other} have {found}, not {sum}"));
                }
            }
        }
        Ok(())
    }
}
