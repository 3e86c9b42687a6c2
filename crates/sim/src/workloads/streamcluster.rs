//! `streamcluster` of PARSEC 2.1: k-median clustering of a stream, a block of points at a time.
//!
//! The first thread reads the block, so all of it is where that thread runs. It then shuffles the points,
//! which hold pointers to their coordinates: every thread, working through its own points, reads coordinates
//! from all over the block, and nobody writes them. The article's hot node comes from this.
//!
//! Kept: a block of the `native` input (200 000 points of 128 dimensions, 102 MB), the distances and the gain
//! of opening a center, really computed. Left out: the later blocks, and most of the thousands of candidate
//! centers.

use super::phases::{LINE, Lines, Phased, Phases, Random, alone, part, scaled, write_lines};
use super::{Parameters, Workload};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

pub const ALL: [Workload; 1] = [Workload {
    name: "streamcluster",
    about: "k-median of a block of points that one thread read and all read on (PARSEC 2.1, native block)",
    build,
}];

const POINTS: usize = 200_000;
const DIMENSIONS: usize = 128;
/// Candidate centers evaluated.
const CANDIDATES: usize = 720;
const POINT_BYTES: u64 = DIMENSIONS as u64 * 4;

/// A line has 16 coordinates: load, subtract, multiply, add each, with the loop unrolled. Half of a point's
/// eight lines are fetched at once: the misses of its loop that are in flight together, on the article's
/// machine (Little's law on its table).
const COORDINATES: Lines = Lines { at_once: 4, instructions: 60 };
/// Instructions on a point besides its distance: the comparison and the sum of the gain.
const POINT: u64 = 14;

/// The program's record of a point, 32 bytes: weight, pointer to the coordinates, center, cost.
#[derive(Clone, Copy)]
#[repr(C)]
struct Point {
    weight: f32,
    assign: u32,
    coordinates: u64,
    cost: f64,
    _padding: u64,
}

struct Streamcluster {
    areas: Vec<Area>,
    threads: usize,
    coordinates: Array<f32>,
    points: Array<Point>,
    /// Candidate centers in the order they are tried; the first is opened unasked.
    candidates: Vec<usize>,
    /// A place on a line of its own for each thread: what its points would gain.
    gains: Array<f64>,
    /// The cost of opening a center.
    opening: f64,
    opened: Vec<usize>,
    /// Distances to the candidate, as computed in this round.
    distances: Vec<f64>,
}

// The kinds of phases.
const READ: usize = 0;
const SHUFFLE: usize = 1;
const FIRST: usize = 2;
/// Points of an item.
const BATCH: usize = 16;
/// Places of `gains` on a line.
const STRIDE: usize = LINE as usize / 8;

fn build(parameters: Parameters) -> Box<dyn Program> {
    let count = scaled(POINTS, parameters.scale, 64);
    let candidates = CANDIDATES.min(count);
    let mut random = Random::new(parameters.seed);
    // Points around as many middles as there are to be found, so that some candidates are worth opening.
    let middles: Vec<f32> = (0..20 * DIMENSIONS).map(|_| random.unit() as f32).collect();
    let mut coordinates = Vec::with_capacity(count * DIMENSIONS);
    for _ in 0..count {
        let middle = random.below(20) * DIMENSIONS;
        coordinates.extend((0..DIMENSIONS).map(|d| middles[middle + d] + 0.1 * random.unit() as f32));
    }
    let mut order: Vec<u64> = (0..count as u64).collect();
    for place in (1..count).rev() {
        order.swap(place, random.below(place + 1));
    }
    let points = order
        .into_iter()
        .map(|coordinates| Point { weight: 1.0, assign: 0, coordinates, cost: f64::INFINITY, _padding: 0 })
        .collect();
    let mut space = Space::new();
    let coordinates = space.array("block", coordinates, Role::ReadShared);
    let points = space.array("points", points, Role::WriteShared);
    let gains = space.array("gains", vec![0.0; parameters.threads * STRIDE], Role::WriteShared);
    let program = Streamcluster {
        areas: space.into_areas(),
        threads: parameters.threads,
        coordinates,
        points,
        candidates: (0..candidates).map(|_| random.below(count)).collect(),
        gains,
        opening: 0.2 * count as f64 / 20.0,
        opened: Vec::new(),
        distances: vec![0.0; count],
    };
    Phases::program(program, parameters.threads)
}

impl Streamcluster {
    fn count(&self) -> usize {
        self.distances.len()
    }

    /// The coordinates of a point; `point` is its place after shuffling.
    fn of(&self, point: usize) -> &[f32] {
        let first = self.points.values()[point].coordinates as usize * DIMENSIONS;
        &self.coordinates.values()[first..first + DIMENSIONS]
    }

    fn distance(&self, point: usize, other: usize) -> f64 {
        let squares = self.of(point).iter().zip(self.of(other)).map(|(a, b)| (a - b) * (a - b));
        f64::from(squares.sum::<f32>())
    }

    /// The first thread decides on the candidate by all threads' gains.
    fn decide(&mut self, round: usize, trace: &mut Trace) {
        let mut gain = -self.opening;
        for thread in 0..self.threads {
            gain += self.gains.read(thread * STRIDE, trace);
            trace.compute(3);
        }
        if round == 0 || gain > 0.0 {
            self.opened.push(round);
        }
    }

    /// A thread's points that are nearer to the candidate go to it, if it was opened.
    fn reassign(&mut self, round: usize, point: usize, trace: &mut Trace) {
        if self.opened.last() != Some(&round) || self.distances[point] >= self.points.values()[point].cost {
            return;
        }
        trace.compute(6);
        let known = self.points.values()[point];
        let moved = Point { assign: round as u32, cost: self.distances[point], ..known };
        self.points.write(point, moved, trace);
    }
}

impl Phased for Streamcluster {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        // Each candidate: gain, decision, new assignment.
        FIRST + 3 * self.candidates.len()
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let batches = self.count().div_ceil(BATCH);
        match phase {
            READ | SHUFFLE => alone(batches, thread),
            _ if (phase - FIRST) % 3 == 1 => alone(1, thread),
            _ if (phase - FIRST) % 3 == 2 && self.opened.last() != Some(&((phase - FIRST) / 3)) => 0..0,
            _ => part(batches, thread, self.threads),
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        let batch = item * BATCH..((item + 1) * BATCH).min(self.count());
        if phase == READ {
            // From the stream: a copy out of a file.
            write_lines(
                self.coordinates.address(batch.start * DIMENSIONS),
                batch.len() as u64 * POINT_BYTES,
                trace,
            );
            trace.compute(batch.len() as u64 * POINT_BYTES / 8);
            return;
        }
        if phase == SHUFFLE {
            // The input is made shuffled; only the touching is left.
            for point in batch {
                trace.compute(20);
                self.points.write(point, self.points.values()[point], trace);
            }
            return;
        }
        let (round, step) = ((phase - FIRST) / 3, (phase - FIRST) % 3);
        match step {
            0 => {
                let candidate = self.candidates[round];
                let mut gain = 0.0;
                for point in batch {
                    // The points come in order: the prefetcher is one ahead.
                    trace.read(self.points.address((point + 1).min(self.count() - 1)));
                    let known = self.points.values()[point];
                    trace.compute(POINT);
                    let first = self.coordinates.address(known.coordinates as usize * DIMENSIONS);
                    COORDINATES.read(first, POINT_BYTES, trace);
                    let distance = self.distance(point, candidate) * f64::from(known.weight);
                    self.distances[point] = distance;
                    // The first center serves all points, whatever it costs.
                    gain += (known.cost.min(1e30) - distance).max(0.0);
                }
                let place = thread * STRIDE;
                let first = item == self.items(phase, thread).start;
                let before = if first { 0.0 } else { self.gains.read(place, trace) };
                self.gains.write(place, before + gain, trace);
            }
            1 => self.decide(round, trace),
            _ => {
                for point in batch {
                    self.reassign(round, point, trace);
                }
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.opened.len() < 2 {
            return Err(Error::wrong_result("no center but the first was opened"));
        }
        for (point, known) in self.points.values().iter().enumerate() {
            let nearest = self.opened.iter().map(|&round| self.distance(point, self.candidates[round]));
            let nearest = nearest.fold(f64::INFINITY, f64::min);
            if (known.cost - nearest).abs() > 1e-6 {
                return Err(Error::wrong_result(format!(
                    "point {point} costs {}, its nearest center {nearest}",
                    known.cost
                )));
            }
        }
        Ok(())
    }
}
