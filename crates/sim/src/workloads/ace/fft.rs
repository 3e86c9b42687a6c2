//! FFT: two-dimensional transforms of 256 x 256 complex floats, forward and back.
//!
//! As EPEX FORTRAN does it: the array is shared, loops over rows and columns are handed out a turn at a time,
//! everything else is private. A row is fetched into a private vector, transformed there, and stored back.

use super::scaled;
use super::shared::{Counter, Stack};
use crate::workloads::Parameters;
use crate::{Area, Array, Error, Program, Progress, Role, Space, Trace};
use std::f32::consts::PI;

const SIDE: usize = 256;
const STAGES: usize = 8;
/// Forward and backward transforms, a pair each: as many as the published times' difference asks for.
const PAIRS: u64 = 16;
/// Ten floating-point operations and the loop's control, of a butterfly.
const BUTTERFLY: u64 = 44;
/// Instructions to fetch or store an element of a row.
const COPY: u64 = 4;

struct Fft {
    areas: Vec<Area>,
    /// Real and imaginary part of each element, row by row.
    data: Array<f32>,
    original: Vec<f32>,
    /// Rows or columns handed out, over all passes.
    work: Counter,
    /// A pass over the rows and one over the columns for every transform.
    passes: u32,
    threads: Vec<Thread>,
}

struct Thread {
    stack: Stack,
    /// The row or column in work: real and imaginary parts.
    row: Array<f32>,
    /// Sines and cosines.
    factors: Array<f32>,
    pass: u32,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Fetch,
    Transform { line: usize, stage: usize },
    Store { line: usize },
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let mut space = Space::new();
    let mut state = parameters.seed;
    let original: Vec<f32> = (0..2 * SIDE * SIDE)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect();
    let data = space.array("data", original.clone(), Role::WriteShared);
    let work = Counter::new(&mut space, "work");
    let factors: Vec<f32> = (0..SIDE / 2)
        .map(|k| 2.0 * PI * k as f32 / SIDE as f32)
        .flat_map(|angle| [angle.cos(), angle.sin()])
        .collect();
    let threads = (0..parameters.threads)
        .map(|thread| Thread {
            stack: Stack::new(&mut space, thread),
            row: space.array(format!("row {thread}"), vec![0.0; 2 * SIDE], Role::Private(thread)),
            factors: space.array(format!("factors {thread}"), factors.clone(), Role::Private(thread)),
            pass: 0,
            step: Step::Fetch,
        })
        .collect();
    let passes = scaled(PAIRS, parameters, 1) as u32 * 4;
    Box::new(Fft { areas: space.into_areas(), data, original, work, passes, threads })
}

/// Where element `at` of a row or column is, counted in complex elements.
fn place(columns: bool, line: usize, at: usize) -> usize {
    if columns { at * SIDE + line } else { line * SIDE + at }
}

/// Passes: rows, columns forward; rows, columns back.
fn is_columns(pass: u32) -> bool {
    pass % 2 == 1
}

fn is_backward(pass: u32) -> bool {
    pass % 4 >= 2
}

impl Thread {
    /// One stage of the transform: 128 butterflies, as an unoptimizing compiler leaves them, with temporaries
    /// in memory.
    fn stage(&mut self, stage: usize, trace: &mut Trace) {
        let half = 1 << stage;
        let sign = if is_backward(self.pass) { 1.0 } else { -1.0 };
        for butterfly in 0..SIDE / 2 {
            let upper = butterfly / half * 2 * half + butterfly % half;
            let lower = upper + half;
            let factor = butterfly % half * (SIDE / 2 / half);
            // The loop's index and bound.
            self.stack.fetch(0, trace);
            self.stack.fetch(1, trace);
            self.stack.store(0, trace);
            let cosine = self.factors.read(2 * factor, trace);
            let sine = sign * self.factors.read(2 * factor + 1, trace);
            let real = self.row.read(2 * lower, trace);
            let imaginary = self.row.read(2 * lower + 1, trace);
            let turned = [cosine * real - sine * imaginary, cosine * imaginary + sine * real];
            trace.compute(BUTTERFLY);
            for (part, turned) in turned.into_iter().enumerate() {
                let temporary = 2 + part as u64;
                self.stack.store(temporary, trace);
                let value = self.row.read(2 * upper + part, trace);
                self.stack.fetch(temporary, trace);
                self.row.write(2 * lower + part, value - turned, trace);
                self.stack.fetch(temporary, trace);
                self.row.write(2 * upper + part, value + turned, trace);
            }
        }
    }
}

impl Fft {
    /// Fetches a line, its elements at places of reversed bits, as the transform begins.
    fn fetch(&mut self, thread: usize, line: usize, trace: &mut Trace) {
        let thread = &mut self.threads[thread];
        for at in 0..SIDE {
            let from = place(is_columns(thread.pass), line, at);
            let to = (at as u8).reverse_bits() as usize;
            for part in 0..2 {
                trace.compute(COPY);
                let value = self.data.read(2 * from + part, trace);
                thread.row.write(2 * to + part, value, trace);
            }
        }
    }

    fn store(&mut self, thread: usize, line: usize, trace: &mut Trace) {
        let thread = &mut self.threads[thread];
        let factor = if is_backward(thread.pass) { 1.0 / SIDE as f32 } else { 1.0 };
        for at in 0..SIDE {
            let to = place(is_columns(thread.pass), line, at);
            for part in 0..2 {
                trace.compute(COPY);
                let value = thread.row.read(2 * at + part, trace) * factor;
                self.data.write(2 * to + part, value, trace);
            }
        }
    }
}

impl Program for Fft {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let step = match self.threads[thread].step {
            Step::Fetch => {
                let end = (self.threads[thread].pass + 1) * SIDE as u32;
                let taken = self.work.take(1, end, trace);
                if taken >= end {
                    self.threads[thread].pass += 1;
                    let is_last = self.threads[thread].pass == self.passes;
                    return if is_last { Progress::Finished } else { Progress::Barrier };
                }
                let line = taken as usize % SIDE;
                self.fetch(thread, line, trace);
                Step::Transform { line, stage: 0 }
            }
            Step::Transform { line, stage } => {
                self.threads[thread].stage(stage, trace);
                if stage + 1 < STAGES {
                    Step::Transform { line, stage: stage + 1 }
                } else {
                    Step::Store { line }
                }
            }
            Step::Store { line } => {
                self.store(thread, line, trace);
                Step::Fetch
            }
        };
        self.threads[thread].step = step;
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        // Forward and back is where it began, but for rounding: some 1e-7 a stage.
        let distance = self
            .original
            .iter()
            .zip(self.data.values())
            .map(|(original, value)| (original - value).abs())
            .fold(0.0, f32::max);
        if distance < 1e-4 {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("after the way back, elements are off by {distance}")))
        }
    }
}
