//! MG: V-cycles of multigrid on a periodic grid, Poisson's equation with a few charges.
//!
//! Scale 1 is class A: 256 x 256 x 256 points. Kept: the 27-point residual and smoother with their
//! coefficients, restriction and interpolation, the arrays, all four iterations. Different: other scales are
//! powers of two that need not make a cube, and rows are dealt out rather than planes, so that small grids
//! occupy all threads too.

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, part, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

/// Points: 256 to a side.
const LOG_POINTS: f64 = 24.0;
const CHARGES: usize = 10;
const ITERATIONS: usize = 4;

/// Weights of a point, and of those that share a face, an edge and a corner with it (NPB 3.3, `mg.f`).
type Stencil = [f64; 4];
const OPERATOR: Stencil = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const SMOOTHER: Stencil = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const RESTRICTION: Stencil = [0.5, 0.25, 0.125, 0.0625];

/// The work on a line, eight points: the program counts 58 operations a point and iteration, for three
/// stencils and the coarser grids.
const STENCIL: Lines = Lines { at_once: 3, instructions: 8 * 18 };
const INTERPOLATION: Lines = Lines { at_once: 3, instructions: 8 * 4 };

struct Grid {
    /// Points along x, y and z: powers of two.
    sides: [usize; 3],
    u: Array<f64>,
    residual: Array<f64>,
}

#[derive(Clone, Copy)]
enum Step {
    Make,
    /// The next coarser grid's residual from this one's.
    Restrict,
    /// The correction from the next coarser grid.
    Interpolate,
    Residual,
    Smooth,
}

struct Mg {
    areas: Vec<Area>,
    threads: usize,
    /// From coarse to fine.
    grids: Vec<Grid>,
    /// The charges.
    right: Array<f64>,
    /// The step of each phase, and its grid.
    steps: Vec<(Step, usize)>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let log = (LOG_POINTS + parameters.scale.log2()).round().max(6.0) as u32;
    let mut sides = [1 << log.div_ceil(3), 1 << (log + 1) / 3, 1 << (log / 3)];
    let points: usize = sides.iter().product();
    let mut random = Random::new(parameters.seed);
    let mut charges = vec![0.0; points];
    for charge in [1.0, -1.0] {
        (0..CHARGES).for_each(|_| charges[random.below(points)] += charge);
    }
    let mut space = Space::new();
    let right = space.array("v", charges, Role::ReadShared);
    let mut grids = Vec::new();
    loop {
        let points: usize = sides.iter().product();
        let mut array =
            |name| space.array(format!("{name} of {points}"), vec![0.0; points], Role::WriteShared);
        grids.push(Grid { sides, u: array("u"), residual: array("r") });
        if sides[2] < 4 {
            break;
        }
        sides = sides.map(|side| side / 2);
    }
    grids.reverse();
    let top = grids.len() - 1;
    let mut steps: Vec<(Step, usize)> = (0..=top).map(|grid| (Step::Make, grid)).collect();
    steps.push((Step::Residual, top));
    for _ in 0..ITERATIONS {
        steps.extend((1..=top).rev().map(|grid| (Step::Restrict, grid)));
        steps.push((Step::Smooth, 0));
        for grid in 1..=top {
            steps.extend([(Step::Interpolate, grid), (Step::Residual, grid), (Step::Smooth, grid)]);
        }
        steps.push((Step::Residual, top));
    }
    let program = Mg { areas: space.into_areas(), threads: parameters.threads, grids, right, steps };
    Phases::program(program, parameters.threads)
}

impl Grid {
    /// Where a row starts; beyond the grid it begins again.
    fn row(&self, y: usize, z: usize) -> usize {
        let [x_side, y_side, z_side] = self.sides;
        ((z % z_side) * y_side + y % y_side) * x_side
    }

    fn bytes(&self) -> u64 {
        self.sides[0] as u64 * 8
    }

    /// A stencil's sums along a row of an array.
    fn apply(&self, stencil: Stencil, values: &[f64], y: usize, z: usize) -> Vec<f64> {
        let [x_side, y_side, z_side] = self.sides;
        let row =
            |dy: usize, dz: usize| &values[self.row(y + y_side + dy - 1, z + z_side + dz - 1)..][..x_side];
        let middle = row(1, 1);
        let sum = |rows: [&[f64]; 4]| -> Vec<f64> {
            (0..x_side).map(|x| rows.iter().map(|row| row[x]).sum()).collect()
        };
        let faces = sum([row(0, 1), row(2, 1), row(1, 0), row(1, 2)]);
        let edges = sum([row(0, 0), row(0, 2), row(2, 0), row(2, 2)]);
        let sum_at = |x: usize| {
            let (before, after) = ((x + x_side - 1) % x_side, (x + 1) % x_side);
            stencil[0] * middle[x]
                + stencil[1] * (middle[before] + middle[after] + faces[x])
                + stencil[2] * (faces[before] + faces[after] + edges[x])
                + stencil[3] * (edges[before] + edges[after])
        };
        (0..x_side).map(sum_at).collect()
    }

    /// The rows of an array that a stencil on this row needs and the row before it did not.
    fn ahead(&self, array: &Array<f64>, y: usize, z: usize) -> [u64; 3] {
        [self.sides[2] - 1, 0, 1].map(|dz| array.address(self.row(y + 1, z + dz)))
    }
}

impl Mg {
    fn restrict(&mut self, grid: usize, item: usize, trace: &mut Trace) {
        let (fine, coarse) = (&self.grids[grid], &self.grids[grid - 1]);
        let (y, z) = (item % coarse.sides[1], item / coarse.sides[1]);
        let first = fine.ahead(&fine.residual, 2 * y, 2 * z);
        STENCIL.read_all(&first, fine.bytes(), trace);
        let sums = fine.apply(RESTRICTION, fine.residual.values(), 2 * y, 2 * z);
        let place = coarse.row(y, z);
        write_lines(coarse.residual.address(place), coarse.bytes(), trace);
        for (x, values) in
            self.grids[grid - 1].residual.values_mut()[place..].iter_mut().zip(sums.iter().step_by(2))
        {
            *x = *values;
        }
    }

    fn interpolate(&mut self, grid: usize, item: usize, trace: &mut Trace) {
        let (fine, coarse) = (&self.grids[grid], &self.grids[grid - 1]);
        let (y, z) = (item % fine.sides[1], item / fine.sides[1]);
        let rows = [(0, 0), (y % 2, 0), (0, z % 2), (y % 2, z % 2)]
            .map(|(dy, dz)| coarse.row(y / 2 + dy, z / 2 + dz));
        // Between planes, the one behind has been seen.
        INTERPOLATION.read(coarse.u.address(rows[3]), coarse.bytes(), trace);
        let place = fine.row(y, z);
        INTERPOLATION.read(fine.u.address(place), fine.bytes(), trace);
        write_lines(fine.u.address(place), fine.bytes(), trace);
        let side = coarse.sides[0];
        let between = |x: usize| rows.iter().map(|row| coarse.u.values()[row + x % side]).sum::<f64>() / 4.0;
        let sums: Vec<f64> =
            (0..2 * side).map(|x| f64::midpoint(between(x / 2), between(x.div_ceil(2)))).collect();
        // Only the finest grid's solution is kept from one iteration to the next.
        let kept = if grid + 1 == self.grids.len() { 1.0 } else { 0.0 };
        for (value, sum) in self.grids[grid].u.values_mut()[place..].iter_mut().zip(sums) {
            *value = *value * kept + sum;
        }
    }

    fn residual(&mut self, index: usize, item: usize, trace: &mut Trace) {
        let finest = index + 1 == self.grids.len();
        let grid = &self.grids[index];
        let (y, z) = (item % grid.sides[1], item / grid.sides[1]);
        let place = grid.row(y, z);
        let right = if finest { &self.right } else { &grid.residual };
        let [before, here, after] = grid.ahead(&grid.u, y, z);
        STENCIL.read_all(&[before, here, after, right.address(place)], grid.bytes(), trace);
        write_lines(grid.residual.address(place), grid.bytes(), trace);
        let sums = grid.apply(OPERATOR, grid.u.values(), y, z);
        for (x, sum) in sums.into_iter().enumerate() {
            let right = if finest { &self.right } else { &self.grids[index].residual };
            let right = right.values()[place + x];
            self.grids[index].residual.values_mut()[place + x] = right - sum;
        }
    }

    fn smooth(&mut self, index: usize, item: usize, trace: &mut Trace) {
        let grid = &self.grids[index];
        let (y, z) = (item % grid.sides[1], item / grid.sides[1]);
        let place = grid.row(y, z);
        let [before, here, after] = grid.ahead(&grid.residual, y, z);
        STENCIL.read_all(&[before, here, after, grid.u.address(place)], grid.bytes(), trace);
        write_lines(grid.u.address(place), grid.bytes(), trace);
        let sums = grid.apply(SMOOTHER, grid.residual.values(), y, z);
        // On the coarsest grid it begins from nothing.
        let kept = if index == 0 { 0.0 } else { 1.0 };
        for (value, sum) in self.grids[index].u.values_mut()[place..].iter_mut().zip(sums) {
            *value = *value * kept + sum;
        }
    }

    fn make(&self, index: usize, item: usize, trace: &mut Trace) {
        let grid = &self.grids[index];
        let place = item * grid.sides[0];
        trace.compute(grid.bytes() / 4);
        write_lines(grid.u.address(place), grid.bytes(), trace);
        write_lines(grid.residual.address(place), grid.bytes(), trace);
        if index + 1 == self.grids.len() {
            write_lines(self.right.address(place), grid.bytes(), trace);
        }
    }
}

impl Phased for Mg {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        self.steps.len()
    }

    fn iteration(&self) -> u64 {
        (self.steps.len() / ITERATIONS) as u64
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let (step, grid) = self.steps[phase];
        let written = if matches!(step, Step::Restrict) { grid - 1 } else { grid };
        let sides = self.grids[written].sides;
        part(sides[1] * sides[2], thread, self.threads)
    }

    fn item(&mut self, phase: usize, _thread: usize, item: usize, trace: &mut Trace) {
        let (step, grid) = self.steps[phase];
        match step {
            Step::Make => self.make(grid, item, trace),
            Step::Restrict => self.restrict(grid, item, trace),
            Step::Interpolate => self.interpolate(grid, item, trace),
            Step::Residual => self.residual(grid, item, trace),
            Step::Smooth => self.smooth(grid, item, trace),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let Some(grid) = self.grids.last() else { return Ok(()) };
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let mut left = 0.0;
        for z in 0..grid.sides[2] {
            for y in 0..grid.sides[1] {
                let sums = grid.apply(OPERATOR, grid.u.values(), y, z);
                let right = &self.right.values()[grid.row(y, z)..];
                left += sums.iter().zip(right).map(|(sum, right)| (right - sum) * (right - sum)).sum::<f64>();
            }
        }
        let share = left.sqrt() / norm(&mut self.right.values().iter().copied());
        // Class A's four iterations leave 2.2e-3 of it, by its verification value.
        if share < 1e-2 {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("{share} of the residual is left")))
        }
    }
}
