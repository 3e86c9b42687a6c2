//! Principal component analysis, as far as the suite's goes: the rows' means and their covariance matrix.
//!
//! Kept: a matrix of 62 MB, ten times a node's LLC, unblocked loops in which a pair's second row comes from
//! memory, and the pairs of keys and values that a map-reduce program makes of that: each thread writes those
//! of its map tasks into memory of its own, and the reduce tasks read them from all threads' memory. The
//! suite's matrix is square; this one has fewer and longer rows, as the pairs go by the square of the rows.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Lines, Phased, Phases, Random, alone, part, scaled, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const ROWS: usize = 300;
const COLUMNS: usize = 52_000;
/// Values are below this, as in the suite.
const VALUES: usize = 1000;

/// A line has 16 values, nearly nine instructions each (load, subtract the mean and extend, twice, multiply,
/// add to a long, the loop). Three lines at once are the 1.8 outstanding misses of the article's table
/// (Little's law).
const PAIR: Lines = Lines { at_once: 3, instructions: 140 };
/// Lines of keys and values emitted for each line of the matrix, at the same price in instructions.
/// Calibrated by the controllers' imbalance under first touch in the article's table.
const EMITTED: f64 = 0.18;
/// A line's sum.
const MEAN: Lines = Lines { at_once: 3, instructions: 48 };

struct Pca {
    areas: Vec<Area>,
    threads: usize,
    columns: usize,
    matrix: Array<i32>,
    means: Array<i64>,
    covariance: Array<i64>,
    /// Where each thread's emitted pairs begin.
    emitted: Vec<u64>,
}

// The kinds of phases.
const READ: usize = 0;
const MEANS: usize = 1;
const MAP: usize = 2;
const REDUCE: usize = 3;
/// Lines of an item of the last phase.
const LINES: usize = 128;

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
    let threads = parameters.threads;
    let mut program =
        Pca { areas: Vec::new(), threads, columns, matrix, means, covariance, emitted: Vec::new() };
    for thread in 0..threads {
        let bytes = (program.emitted_lines(thread) as u64 * LINE).max(1);
        program.emitted.push(space.area(format!("pairs {thread}"), bytes, Role::Unknown));
    }
    program.areas = space.into_areas();
    Phases::program(program, threads)
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

    /// The columns of a strip.
    fn strip(&self, strip: usize) -> Range<usize> {
        strip * STRIP..((strip + 1) * STRIP).min(self.columns)
    }

    /// Lines emitted for a strip of a pair of rows.
    fn lines_of_strip(&self, strip: usize) -> usize {
        scaled(self.strip(strip).len() * 4, EMITTED / LINE as f64, 1)
    }

    /// Lines emitted for a pair of rows before a strip.
    fn lines_before(&self, strip: usize) -> usize {
        (0..strip).map(|strip| self.lines_of_strip(strip)).sum()
    }

    fn pairs(&self, thread: usize) -> Range<usize> {
        part(ROWS * (ROWS + 1) / 2, thread, self.threads)
    }

    /// Lines that a thread emits in all.
    fn emitted_lines(&self, thread: usize) -> usize {
        self.pairs(thread).len() * self.lines_before(self.strips())
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

impl Pca {
    /// Chunks that a thread reads of one thread's pairs.
    fn reduced_chunks(&self) -> usize {
        let most = (0..self.threads).map(|thread| self.emitted_lines(thread)).max().unwrap_or(0);
        most.div_ceil(self.threads).div_ceil(LINES)
    }

    /// Reads a chunk of a thread's share of what some thread emitted; each begins with its own.
    fn reduce(&self, thread: usize, item: usize, trace: &mut Trace) {
        let (owner, chunk) = (item / self.reduced_chunks(), item % self.reduced_chunks());
        let owner = (owner + thread) % self.threads;
        let share = part(self.emitted_lines(owner), thread, self.threads);
        let start = (share.start + chunk * LINES).min(share.end);
        let end = (start + LINES).min(share.end);
        PAIR.read(self.emitted[owner] + start as u64 * LINE, (end - start) as u64 * LINE, trace);
    }
}

impl Phased for Pca {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        4
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let of = |count| {
            let Range { start, end } = part(count, thread, self.threads);
            start * self.strips()..end * self.strips()
        };
        match phase {
            READ => alone(ROWS * self.strips(), thread),
            MEANS => of(ROWS),
            MAP => of(ROWS * (ROWS + 1) / 2),
            _ => 0..self.threads * self.reduced_chunks(),
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        if phase == REDUCE {
            return self.reduce(thread, item, trace);
        }
        let (item, strip) = (item / self.strips(), item % self.strips());
        let columns = self.strip(strip);
        let bytes = columns.len() as u64 * 4;
        let address = |row| self.matrix.address(row * self.columns + columns.start);
        match phase {
            READ => {
                trace.compute(bytes / 8);
                write_lines(address(item), bytes, trace);
            }
            MEANS => {
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
                let before = (item - self.pairs(thread).start) * self.lines_before(self.strips());
                let lines = self.lines_of_strip(strip) as u64;
                let first = before + self.lines_before(strip);
                trace.compute(lines * PAIR.instructions);
                write_lines(self.emitted[thread] + first as u64 * LINE, lines * LINE, trace);
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        for row in 0..ROWS {
            let sum: i64 = self.row(row, 0..self.columns).iter().map(|&value| i64::from(value)).sum();
            if self.means.values()[row] != sum / self.columns as i64 {
                return Err(Error::wrong_result(format!(
                    "row {row} has the mean {}",
                    self.means.values()[row]
                )));
            }
            for other in [row, usize::midpoint(row, ROWS), ROWS - 1] {
                let sum = self.products((row, other), 0..self.columns);
                let found = self.covariance.values()[row * ROWS + other];
                if found != sum {
                    return Err(Error::wrong_result(format!(
                        "rows {row} and {other} have {found}, not {sum}"
                    )));
                }
            }
        }
        Ok(())
    }
}
