//! UA: heat that spreads from a moving source, on a mesh that is refined around it.
//!
//! Scale 1 is class C: about 33 500 elements of 5 x 5 x 5 points. Kept: dense work within an element,
//! exchange with its neighbours through lists of indices, and a mesh that changes: elements are numbered
//! anew, and what a thread works on comes to lie in memory that another touched first. Different: explicit
//! time steps, one level of refinement, means of faces rather than mortar points.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Lines, Phased, Phases, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const ELEMENTS: usize = 33_500;
/// Points of an element along a side, and in all.
const SIDE: usize = 5;
const POINTS: usize = SIDE * SIDE * SIDE;
const BYTES: u64 = POINTS as u64 * 8;
/// Radius of the refined ball in parts of the cube's side, so that about every other element is a small one.
const RADIUS: f64 = 0.32;
const MESHES: usize = 4;
const STEPS_PER_MESH: usize = 4;
const MOST_NEIGHBOURS: usize = 24;

/// Within elements and between them.
const SPREAD: f64 = 0.1;
const EXCHANGE: f64 = 2.0;
const SOURCE: f64 = 1.0;

/// Three products of a matrix of 5 x 5 with an element's points, by lines of eight of these.
const LOCAL: Lines = Lines { at_once: 4, instructions: 8 * 3 * SIDE as u64 * 2 };
const FACES: Lines = Lines { at_once: 4, instructions: 8 * 4 };
/// For each neighbour: its kind, its points' places, the mean.
const NEIGHBOUR: u64 = 80;

/// A cell of the coarse grid, or one of the eight that it is refined into.
#[derive(Clone, Copy)]
struct Element {
    cell: usize,
    child: Option<usize>,
}

/// The neighbour beyond a face: an element, the face's axis, and whether it is at the upper end.
type Neighbour = (usize, usize, bool);

struct Mesh {
    elements: Vec<Element>,
    neighbours: Vec<Vec<Neighbour>>,
    /// The first element of each cell.
    first: Vec<usize>,
    /// The element that is heated.
    heated: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Make,
    /// To this mesh, from the one before.
    Adapt,
    Local,
    Exchange,
}

struct Ua {
    areas: Vec<Area>,
    threads: usize,
    meshes: Vec<Mesh>,
    /// Temperatures now, and those that are being computed.
    heat: [Array<f64>; 2],
    /// The changes within elements.
    change: Array<f64>,
    /// Base of the lists of neighbours.
    lists: u64,
    /// The step of each phase, with its mesh, and which of `heat` is now.
    steps: Vec<(Step, usize, usize)>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let side = (scaled(ELEMENTS, parameters.scale, 54) as f64 / 2.0).cbrt().round() as usize;
    let meshes: Vec<Mesh> =
        (0..MESHES).map(|mesh| Mesh::around(side, 0.35 + 0.3 * mesh as f64 / (MESHES - 1) as f64)).collect();
    let most = meshes.iter().map(|mesh| mesh.elements.len()).max().unwrap_or(0);
    let mut steps = Vec::new();
    let mut now = 0;
    for mesh in 0..MESHES {
        steps.push((if mesh == 0 { Step::Make } else { Step::Adapt }, mesh, now));
        now ^= usize::from(mesh > 0);
        for _ in 0..STEPS_PER_MESH {
            steps.extend([(Step::Local, mesh, now), (Step::Exchange, mesh, now)]);
            now ^= 1;
        }
    }
    let mut space = Space::new();
    let mut array = |name| space.array(name, vec![0.0; most * POINTS], Role::WriteShared);
    let (heat, change) = ([array("heat"), array("new heat")], array("change"));
    let lists = space.area("neighbours", (most * MOST_NEIGHBOURS * 4) as u64, Role::ReadShared);
    let program =
        Ua { areas: space.into_areas(), threads: parameters.threads, meshes, heat, change, lists, steps };
    Phases::program(program, parameters.threads)
}

impl Mesh {
    /// A cube of cells, refined around a place on its diagonal.
    fn around(side: usize, place: f64) -> Self {
        let at = |cell: usize| [cell % side, cell / side % side, cell / side / side];
        let (mut elements, mut first) = (Vec::new(), Vec::new());
        for cell in 0..side * side * side {
            first.push(elements.len());
            let square: f64 =
                at(cell).iter().map(|&x| ((x as f64 + 0.5) / side as f64 - place).powi(2)).sum();
            if square.sqrt() < RADIUS {
                elements.extend((0..8).map(|child| Element { cell, child: Some(child) }));
            } else {
                elements.push(Element { cell, child: None });
            }
        }
        // By halves of cells, who is where.
        let halves = 2 * side;
        let owner = |half: [usize; 3]| {
            let cell = (half[2] / 2 * side + half[1] / 2) * side + half[0] / 2;
            let child = half[2] % 2 * 4 + half[1] % 2 * 2 + half[0] % 2;
            let element = first[cell];
            element + elements[element].child.map_or(0, |_| child)
        };
        let neighbours = |element: &Element| {
            let mut found: Vec<Neighbour> = Vec::new();
            let corner = at(element.cell).map(|x| 2 * x);
            let (start, width) = match element.child {
                None => (corner, 2),
                Some(child) => ([corner[0] + child % 2, corner[1] + child / 2 % 2, corner[2] + child / 4], 1),
            };
            for axis in 0..3 {
                for upper in [false, true] {
                    let beyond = if upper { start[axis] + width } else { start[axis].wrapping_sub(1) };
                    if beyond >= halves {
                        continue;
                    }
                    for (a, b) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                        let mut half = start;
                        half[axis] = beyond;
                        half[(axis + 1) % 3] += a.min(width - 1);
                        half[(axis + 2) % 3] += b.min(width - 1);
                        let neighbour = (owner(half), axis, upper);
                        if !found.contains(&neighbour) {
                            found.push(neighbour);
                        }
                    }
                }
            }
            found
        };
        let middle = ((place * side as f64) as usize).min(side - 1);
        let heated = first[(middle * side + middle) * side + middle];
        Self { neighbours: elements.iter().map(neighbours).collect(), heated, elements, first }
    }

    /// The volume of a point, relative to that of a small element's.
    fn volume(&self, element: usize) -> f64 {
        if self.elements[element].child.is_some() { 1.0 } else { 8.0 }
    }
}

/// The points of an element's face.
fn face(element: usize, axis: usize, upper: bool) -> impl Iterator<Item = usize> {
    let steps = [1, SIDE, SIDE * SIDE];
    let (one, other) = (steps[(axis + 1) % 3], steps[(axis + 2) % 3]);
    let start = element * POINTS + if upper { (SIDE - 1) * steps[axis] } else { 0 };
    (0..SIDE * SIDE).map(move |point| start + point / SIDE * one + point % SIDE * other)
}

fn points(element: usize) -> Range<usize> {
    element * POINTS..(element + 1) * POINTS
}

fn mean(values: &[f64], places: impl Iterator<Item = usize>) -> f64 {
    places.map(|place| values[place]).sum::<f64>() / (SIDE * SIDE) as f64
}

impl Ua {
    fn local(&mut self, element: usize, now: usize, trace: &mut Trace) {
        let start = element * POINTS;
        LOCAL.read(self.heat[now].address(start), BYTES, trace);
        write_lines(self.change.address(start), BYTES, trace);
        let heat = &self.heat[now].values()[points(element)];
        let change = &mut self.change.values_mut()[points(element)];
        for (point, change) in change.iter_mut().enumerate() {
            *change = 0.0;
            for step in [1, SIDE, SIDE * SIDE] {
                let place = point / step % SIDE;
                let before = if place > 0 { heat[point - step] } else { heat[point] };
                let after = if place + 1 < SIDE { heat[point + step] } else { heat[point] };
                *change += SPREAD * (before - 2.0 * heat[point] + after);
            }
        }
    }

    fn exchange(&mut self, mesh: usize, element: usize, now: usize, trace: &mut Trace) {
        let mesh = &self.meshes[mesh];
        let start = element * POINTS;
        let list = self.lists + (element * MOST_NEIGHBOURS * 4) as u64;
        Lines { at_once: 2, instructions: 8 }.read(list, mesh.neighbours[element].len() as u64 * 4, trace);
        FACES.read_all(&[self.heat[now].address(start), self.change.address(start)], BYTES, trace);
        let heat = self.heat[now].values();
        let mut new: Vec<f64> =
            points(element).map(|point| heat[point] + self.change.values()[point]).collect();
        for &(other, axis, upper) in &mesh.neighbours[element] {
            let mut line = 0;
            for point in face(other, axis, !upper) {
                let address = self.heat[now].address(point);
                if address / LINE != line {
                    line = address / LINE;
                    trace.read(address);
                }
            }
            wait_for(line * LINE, trace);
            trace.compute(NEIGHBOUR);
            let area = if mesh.volume(element) > 1.0 && mesh.volume(other) > 1.0 { 4.0 } else { 1.0 };
            let difference = mean(heat, face(other, axis, !upper)) - mean(heat, face(element, axis, upper));
            let gain = EXCHANGE * area * difference / (SIDE * SIDE) as f64 / mesh.volume(element);
            face(element, axis, upper).for_each(|point| new[point - start] += gain);
        }
        if element == mesh.heated {
            for heat in &mut new {
                *heat += SOURCE / POINTS as f64 / mesh.volume(element);
            }
        }
        write_lines(self.heat[1 - now].address(start), BYTES, trace);
        self.heat[1 - now].values_mut()[points(element)].copy_from_slice(&new);
    }

    /// An element of a new mesh from those of the old one.
    fn adapt(&mut self, mesh: usize, element: usize, now: usize, trace: &mut Trace) {
        let (old, new) = (&self.meshes[mesh - 1], &self.meshes[mesh]);
        let Element { cell, child } = new.elements[element];
        let first = old.first[cell];
        let was_refined = old.elements[first].child.is_some();
        let from = match child {
            Some(child) if was_refined => first + child..first + child + 1,
            None if was_refined => first..first + 8,
            _ => first..first + 1,
        };
        for source in from.clone() {
            FACES.read(self.heat[now].address(source * POINTS), BYTES, trace);
        }
        write_lines(self.heat[1 - now].address(element * POINTS), BYTES, trace);
        let list = self.lists + (element * MOST_NEIGHBOURS * 4) as u64;
        write_lines(list, new.neighbours[element].len() as u64 * 4, trace);
        trace.compute(20 * POINTS as u64);
        let heat = self.heat[now].values();
        let values: Vec<f64> = if child.is_some() && !was_refined {
            vec![heat[points(first)].iter().sum::<f64>() / POINTS as f64; POINTS]
        } else {
            let count = from.len() as f64;
            let point =
                |point: usize| from.clone().map(|source| heat[source * POINTS + point]).sum::<f64>() / count;
            (0..POINTS).map(point).collect()
        };
        self.heat[1 - now].values_mut()[points(element)].copy_from_slice(&values);
    }

    fn make(&self, mesh: usize, element: usize, trace: &mut Trace) {
        trace.compute(20 * POINTS as u64);
        for array in [&self.heat[0], &self.heat[1], &self.change] {
            write_lines(array.address(element * POINTS), BYTES, trace);
        }
        let list = self.lists + (element * MOST_NEIGHBOURS * 4) as u64;
        write_lines(list, self.meshes[mesh].neighbours[element].len() as u64 * 4, trace);
    }
}

impl Phased for Ua {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        self.steps.len()
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        part(self.meshes[self.steps[phase].1].elements.len(), thread, self.threads)
    }

    fn item(&mut self, phase: usize, _thread: usize, item: usize, trace: &mut Trace) {
        let (step, mesh, now) = self.steps[phase];
        match step {
            Step::Make => self.make(mesh, item, trace),
            Step::Adapt => self.adapt(mesh, item, now, trace),
            Step::Local => self.local(item, now, trace),
            Step::Exchange => self.exchange(mesh, item, now, trace),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let Some(&(_, last, before)) = self.steps.last() else { return Ok(()) };
        let mesh = &self.meshes[last];
        let heat = self.heat[1 - before].values();
        let of_cell = |cell: usize| -> f64 {
            let end = mesh.first.get(cell + 1).copied().unwrap_or(mesh.elements.len());
            let of = |element: usize| heat[points(element)].iter().sum::<f64>() * mesh.volume(element);
            (mesh.first[cell]..end).map(of).sum()
        };
        let cells: Vec<f64> = (0..mesh.first.len()).map(of_cell).collect();
        let (total, given) = (cells.iter().sum::<f64>(), SOURCE * (MESHES * STEPS_PER_MESH) as f64);
        if (total - given).abs() > 1e-9 {
            return Err(Error::wrong_result(format!("{given} of heat have become {total}")));
        }
        // The source moves along the diagonal: nothing tells x from y.
        let side = (cells.len() as f64).cbrt().round() as usize;
        for (cell, heat) in cells.iter().enumerate() {
            let mirrored = (cell / side / side * side + cell % side) * side + cell / side % side;
            let difference = (heat - cells[mirrored]).abs();
            if difference.is_nan() || difference > 1e-9 {
                return Err(Error::wrong_result(format!(
                    "cell {cell} has {heat} of heat, its image {}",
                    cells[mirrored]
                )));
            }
        }
        Ok(())
    }
}
