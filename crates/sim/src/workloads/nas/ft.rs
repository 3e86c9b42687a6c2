//! FT: a heat equation solved by Fourier transforms in three dimensions.
//!
//! Scale 1 is class A: 256 x 256 x 128 complex points. Kept: three arrays, one transform forward and one back
//! for each of 4 time steps (of 6), columns copied into a cached block and back. Different: other scales are
//! powers of two that need not have these proportions, and rows are dealt out rather than planes.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Lines, Phased, Phases, Random, part, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::f64::consts::TAU;
use std::ops::Range;

const LOG_POINTS: f64 = 23.0;
const STEPS: usize = 4;
/// How fast the heat spreads (NPB 3.3, `ft.f`).
const ALPHA: f64 = 1e-6;

type Complex = [f64; 2];
const LINE_POINTS: usize = LINE as usize / 16;
/// Lines fetched at once.
const AT_ONCE: usize = 4;
/// A line of four points, besides its butterflies: copied in and out.
const COPY: u64 = 16;
/// Operations of a point in a butterfly: 5 n log2 n in all.
const BUTTERFLY: u64 = 5;
/// A line of the spectrum times the factors, and into the other array.
const EVOLVE: Lines = Lines { at_once: 4, instructions: 24 };

struct Ft {
    areas: Vec<Area>,
    threads: usize,
    seed: u64,
    sides: [usize; 3],
    spectrum: Array<Complex>,
    work: Array<Complex>,
    /// The factor by which each point of the spectrum shrinks in a time step.
    factors: Array<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Make,
    /// A transform along an axis.
    Along(usize),
    Evolve,
}

const FORWARD: [Phase; 4] = [Phase::Make, Phase::Along(0), Phase::Along(1), Phase::Along(2)];
const STEP: [Phase; 4] = [Phase::Evolve, Phase::Along(2), Phase::Along(1), Phase::Along(0)];

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let log = (LOG_POINTS + parameters.scale.log2()).round().max(8.0) as u32;
    let sides = [1 << log.div_ceil(3), 1 << (log + 1) / 3, 1 << (log / 3)];
    let points: usize = sides.iter().product();
    let mut space = Space::new();
    let spectrum = space.array("spectrum", vec![[0.0; 2]; points], Role::WriteShared);
    let work = space.array("work", initial(points, parameters.seed), Role::WriteShared);
    let factors = (0..points).map(|point| {
        let along = |axis: usize, place: usize| place.min(sides[axis] - place) as f64;
        let (x, y, z) = (point % sides[0], point / sides[0] % sides[1], point / sides[0] / sides[1]);
        let square = along(0, x).powi(2) + along(1, y).powi(2) + along(2, z).powi(2);
        (-TAU * TAU * ALPHA * square).exp()
    });
    let factors = space.array("factors", factors.collect(), Role::ReadShared);
    let program = Ft {
        areas: space.into_areas(),
        threads: parameters.threads,
        seed: parameters.seed,
        sides,
        spectrum,
        work,
        factors,
    };
    Phases::program(program, parameters.threads)
}

fn initial(points: usize, seed: u64) -> Vec<Complex> {
    let mut random = Random::new(seed);
    (0..points).map(|_| [random.unit(), random.unit()]).collect()
}

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn turn(angle: f64) -> Complex {
    [angle.cos(), angle.sin()]
}

/// Transforms in place: Cooley and Tukey's butterflies. `sign` is -1 forward and 1 back.
fn transform(points: &mut [Complex], sign: f64) {
    let bits = points.len().trailing_zeros();
    for index in 0..points.len() {
        let mirrored = index.reverse_bits() >> (usize::BITS - bits);
        if index < mirrored {
            points.swap(index, mirrored);
        }
    }
    let mut half = 1;
    while half < points.len() {
        let step = turn(sign * TAU / (2 * half) as f64);
        for block in points.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            let mut factor = [1.0, 0.0];
            for (low, high) in low.iter_mut().zip(high) {
                let [re, im] = times(*high, factor);
                *high = [low[0] - re, low[1] - im];
                *low = [low[0] + re, low[1] + im];
                factor = times(factor, step);
            }
        }
        half *= 2;
    }
}

impl Ft {
    fn phase(phase: usize) -> Phase {
        phase.checked_sub(FORWARD.len()).map_or_else(|| FORWARD[phase], |later| STEP[later % STEP.len()])
    }

    /// The first point of a row or of a line's width of columns, how far the next point is, and how many lie
    /// side by side.
    fn pencils(&self, axis: usize, item: usize) -> (usize, usize, usize) {
        let [x_side, y_side, _] = self.sides;
        let (outer, x) = (item / (x_side / LINE_POINTS), item % (x_side / LINE_POINTS) * LINE_POINTS);
        match axis {
            0 => (item * x_side, 1, 1),
            1 => (outer * y_side * x_side + x, x_side, LINE_POINTS),
            _ => (outer * x_side + x, x_side * y_side, LINE_POINTS),
        }
    }

    fn along(&mut self, axis: usize, forward: bool, item: usize, trace: &mut Trace) {
        let (start, step, beside) = self.pencils(axis, item);
        let side = self.sides[axis];
        let lines = side * beside / LINE_POINTS;
        let line = |array: &Array<Complex>, line: usize| {
            array.address(start + line * if axis == 0 { LINE_POINTS } else { step })
        };
        for number in 0..lines {
            trace.read(line(&self.work, number));
            if (number + 1) % AT_ONCE == 0 || number + 1 == lines {
                wait_for(line(&self.work, number), trace);
                trace.compute(AT_ONCE as u64 * COPY);
            }
        }
        trace.compute((side * beside) as u64 * u64::from(side.ilog2()) * BUTTERFLY);
        // The last transform forward leaves the spectrum.
        let last = forward && axis == 2;
        for number in 0..lines {
            trace.write(line(if last { &self.spectrum } else { &self.work }, number));
            trace.compute(COPY);
        }
        let sign = if forward { -1.0 } else { 1.0 };
        for pencil in start..start + beside {
            let mut points: Vec<Complex> =
                (0..side).map(|place| self.work.values()[pencil + place * step]).collect();
            transform(&mut points, sign);
            let into = if last { &mut self.spectrum } else { &mut self.work };
            for (place, point) in points.into_iter().enumerate() {
                into.values_mut()[pencil + place * step] = point;
            }
        }
    }

    fn evolve(&mut self, item: usize, trace: &mut Trace) {
        let row = item * self.sides[0]..(item + 1) * self.sides[0];
        let bytes = row.len() as u64 * 16;
        EVOLVE.read(self.spectrum.address(row.start), bytes, trace);
        EVOLVE.read(self.factors.address(row.start), bytes / 2, trace);
        write_lines(self.spectrum.address(row.start), bytes, trace);
        write_lines(self.work.address(row.start), bytes, trace);
        for index in row {
            let factor = self.factors.values()[index];
            let point = self.spectrum.values()[index].map(|part| part * factor);
            self.spectrum.values_mut()[index] = point;
            self.work.values_mut()[index] = point;
        }
    }

    /// One frequency of an array's transform, by its definition.
    fn frequency(&self, points: &[Complex], frequency: [usize; 3]) -> Complex {
        let [x_side, y_side, _] = self.sides;
        let angle = |axis: usize, place: usize| {
            -TAU * (frequency[axis] * place % self.sides[axis]) as f64 / self.sides[axis] as f64
        };
        let mut sum = [0.0; 2];
        for (row, points) in points.chunks(x_side).enumerate() {
            let of_row = turn(angle(1, row % y_side) + angle(2, row / y_side));
            for (x, &point) in points.iter().enumerate() {
                let [re, im] = times(times(point, turn(angle(0, x))), of_row);
                sum = [sum[0] + re, sum[1] + im];
            }
        }
        sum
    }
}

impl Phased for Ft {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        FORWARD.len() + STEPS * STEP.len()
    }

    fn iteration(&self) -> u64 {
        STEP.len() as u64
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let [x_side, y_side, z_side] = self.sides;
        let items = match Self::phase(phase) {
            Phase::Make | Phase::Evolve | Phase::Along(0) => y_side * z_side,
            Phase::Along(1) => x_side / LINE_POINTS * z_side,
            Phase::Along(_) => x_side / LINE_POINTS * y_side,
        };
        part(items, thread, self.threads)
    }

    fn item(&mut self, phase: usize, _thread: usize, item: usize, trace: &mut Trace) {
        match Self::phase(phase) {
            Phase::Make => {
                let start = item * self.sides[0];
                let bytes = self.sides[0] as u64 * 16;
                trace.compute(bytes * 3);
                write_lines(self.spectrum.address(start), bytes, trace);
                write_lines(self.work.address(start), bytes, trace);
                write_lines(self.factors.address(start), bytes / 2, trace);
            }
            Phase::Along(axis) => self.along(axis, phase < FORWARD.len(), item, trace),
            Phase::Evolve => self.evolve(item, trace),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let first = initial(self.work.values().len(), self.seed);
        let points = first.len() as f64;
        for frequency in [[0, 0, 0], [1, 2, 3], [3, 0, 1]] {
            let index = (frequency[2] * self.sides[1] + frequency[1]) * self.sides[0] + frequency[0];
            let factor = self.factors.values()[index].powi(STEPS as i32);
            let wanted = self.frequency(&first, frequency).map(|part| part * factor);
            let found = self.frequency(self.work.values(), frequency).map(|part| part / points);
            let error = (wanted[0] - found[0]).abs().max((wanted[1] - found[1]).abs());
            if error.is_nan() || error > 1e-9 * points {
                return Err(Error::wrong_result(format!(
                    "frequency {frequency:?} is {found:?}, not {wanted:?}"
                )));
            }
        }
        Ok(())
    }
}
