//! `PlyTrace`: surfaces approximated by polygons, shaded into an image through a depth buffer.
//!
//! The work pile is a queue of lists of polygons, a list for each patch of a surface. A fragment is shaded as
//! Phong does it, in floating point and with temporaries on the stack; depth and image are shared.

use super::scaled;
use super::shared::{Counter, Stack};
use crate::workloads::Parameters;
use crate::{Area, Array, Error, Program, Progress, Role, Space, Trace};

/// Width and height of the image.
const SIDE: f64 = 512.0;
/// Patches: as many as cover the image 1.2 times.
const PATCHES: u64 = 700;
/// A patch is a bent square of so many cells a side, two triangles each.
const CELLS: usize = 2;
const CELL_PIXELS: f32 = 10.5;
/// Words of a polygon: next in list, three corners (x, y, depth), shade.
const WORDS: usize = 11;
/// Fetches and stores on the stack for a fragment: normal interpolated and normalized, two lights,
/// highlights.
const FETCHES: u64 = 42;
const STORES: u64 = 30;
/// Its floating-point work.
const SHADE: u64 = 225;
const SETUP: u64 = 400;
const NONE: u32 = u32::MAX;

struct PlyTrace {
    areas: Vec<Area>,
    side: usize,
    /// Bits of floats and places of the next polygon of the list.
    polygons: Array<u32>,
    /// First polygon of each list.
    lists: Array<u32>,
    scene: Vec<[u32; WORDS]>,
    /// Polygons written so far.
    written: usize,
    queue: Counter,
    depth: Array<f32>,
    image: Array<u32>,
    threads: Vec<Thread>,
}

struct Thread {
    stack: Stack,
    built: bool,
    /// The rest of its list: the polygon, and its next line.
    polygon: u32,
    line: usize,
    corners: [[f32; 3]; 3],
    next: u32,
    shade: u32,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    // Patches keep their size in pixels: the scene is as deep at every scale.
    let side = ((SIDE * parameters.scale.sqrt()).round() as usize).max(48);
    let patches = scaled(PATCHES, parameters, 6) as usize;
    let scene = scene(patches, side, parameters.seed);
    let mut space = Space::new();
    let polygons = space.array("polygons", vec![0; scene.len() * WORDS], Role::ReadShared);
    let lists = space.array("lists", vec![NONE; patches], Role::ReadShared);
    let queue = Counter::new(&mut space, "queue");
    let depth = space.array("depth", vec![f32::NEG_INFINITY; side * side], Role::WriteShared);
    let image = space.array("image", vec![0; side * side], Role::WriteShared);
    let threads = (0..parameters.threads)
        .map(|thread| Thread {
            stack: Stack::new(&mut space, thread),
            built: false,
            polygon: NONE,
            line: 0,
            corners: [[0.0; 3]; 3],
            next: NONE,
            shade: 0,
        })
        .collect();
    Box::new(PlyTrace {
        areas: space.into_areas(),
        side,
        polygons,
        lists,
        scene,
        written: 0,
        queue,
        depth,
        image,
        threads,
    })
}

/// The polygons, patch by patch, each pointing at the next of its list.
fn scene(patches: usize, side: usize, seed: u64) -> Vec<[u32; WORDS]> {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut scene = Vec::new();
    for _ in 0..patches {
        let extent = CELLS as f32 * CELL_PIXELS;
        let (left, top, height) =
            (random() * (side as f32 - extent), random() * (side as f32 - extent), random());
        let (lean_x, lean_y) = (random() - 0.5, random() - 0.5);
        let corner = |i: usize, j: usize| {
            let (x, y) = (i as f32 * CELL_PIXELS, j as f32 * CELL_PIXELS);
            [left + x, top + y, height + (lean_x * x + lean_y * y) * 0.01]
        };
        for cell in 0..CELLS * CELLS {
            let (i, j) = (cell % CELLS, cell / CELLS);
            let square = [corner(i, j), corner(i + 1, j), corner(i, j + 1), corner(i + 1, j + 1)];
            for triangle in [[0, 1, 2], [3, 2, 1]] {
                let at = scene.len() as u32;
                let is_last = cell + 1 == CELLS * CELLS && triangle[0] == 3;
                let mut words = [0; WORDS];
                words[0] = if is_last { NONE } else { at + 1 };
                for (word, value) in words[1..10].iter_mut().zip(triangle.iter().flat_map(|&k| square[k])) {
                    *word = value.to_bits();
                }
                words[10] = at + 1;
                scene.push(words);
            }
        }
    }
    scene
}

/// Twice the signed area of a triangle on the screen.
fn area(a: [f32; 3], b: [f32; 3], x: f32, y: f32) -> f32 {
    (b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0])
}

/// The depth of a triangle at the middle of a pixel, if it covers that.
fn depth_at(corners: &[[f32; 3]; 3], column: usize, line: usize) -> Option<f32> {
    let (x, y) = (column as f32 + 0.5, line as f32 + 0.5);
    let whole = area(corners[0], corners[1], corners[2][0], corners[2][1]);
    let shares = [[1, 2], [2, 0], [0, 1]].map(|[from, to]| area(corners[from], corners[to], x, y) / whole);
    let inside = shares.iter().all(|&share| share >= 0.0);
    inside.then(|| shares[0] * corners[0][2] + shares[1] * corners[1][2] + shares[2] * corners[2][2])
}

/// The pixels between a triangle's extremes along one axis, within the image.
fn extent(corners: &[[f32; 3]; 3], axis: usize, side: usize) -> std::ops::Range<usize> {
    let values = corners.map(|corner| corner[axis]);
    let (least, most) = (values.into_iter().fold(f32::MAX, f32::min), values.into_iter().fold(0.0, f32::max));
    (least.floor() as usize).min(side)..(most.ceil() as usize).min(side)
}

fn corners_of(words: &[u32; WORDS]) -> [[f32; 3]; 3] {
    [0, 1, 2].map(|corner| [0, 1, 2].map(|axis| f32::from_bits(words[1 + 3 * corner + axis])))
}

impl PlyTrace {
    /// The first thread builds the lists, one after the other; false once they are complete.
    fn build_list(&mut self, trace: &mut Trace) -> bool {
        if self.written == self.scene.len() {
            return false;
        }
        let list = self.written / (2 * CELLS * CELLS);
        self.lists.write(list, self.written as u32, trace);
        for at in self.written..self.written + 2 * CELLS * CELLS {
            trace.compute(20);
            for (word, value) in self.scene[at].iter().enumerate() {
                self.polygons.write(at * WORDS + word, *value, trace);
            }
        }
        self.written += 2 * CELLS * CELLS;
        true
    }

    fn begin_polygon(&mut self, thread: usize, polygon: u32, trace: &mut Trace) {
        let mut words = [0; WORDS];
        for (word, value) in words.iter_mut().enumerate() {
            *value = self.polygons.read(polygon as usize * WORDS + word, trace);
        }
        trace.compute(SETUP);
        let corners = corners_of(&words);
        let thread = &mut self.threads[thread];
        for word in 0..12 {
            thread.stack.store(word, trace);
        }
        thread.polygon = polygon;
        thread.corners = corners;
        thread.line = extent(&corners, 1, self.side).start;
        thread.next = words[0];
        thread.shade = words[10];
    }

    /// Shades the polygon's fragments on one line of the image.
    fn draw_line(&mut self, thread: usize, trace: &mut Trace) {
        let Thread { stack, corners, line, shade, .. } = &self.threads[thread];
        trace.compute(20);
        for column in extent(corners, 0, self.side) {
            let Some(depth) = depth_at(corners, column, *line) else {
                continue;
            };
            for word in 0..FETCHES {
                stack.fetch(12 + word % 24, trace);
                trace.compute(SHADE / FETCHES);
                if word < STORES {
                    stack.store(12 + word % 24, trace);
                }
            }
            trace.compute(SHADE % FETCHES);
            let pixel = line * self.side + column;
            if self.depth.read(pixel, trace) < depth {
                self.depth.write(pixel, depth, trace);
                self.image.write(pixel, *shade, trace);
            }
        }
    }
}

impl Program for PlyTrace {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if !self.threads[thread].built {
            if thread == 0 && self.build_list(trace) {
                return Progress::Running;
            }
            self.threads[thread].built = true;
            return Progress::Barrier;
        }
        if self.threads[thread].polygon == NONE {
            let lists = self.lists.values().len() as u32;
            let list = self.queue.take(1, lists, trace);
            if list >= lists {
                return Progress::Finished;
            }
            let first = self.lists.read(list as usize, trace);
            self.begin_polygon(thread, first, trace);
            return Progress::Running;
        }
        self.draw_line(thread, trace);
        self.threads[thread].line += 1;
        if self.threads[thread].line >= extent(&self.threads[thread].corners, 1, self.side).end {
            match self.threads[thread].next {
                NONE => self.threads[thread].polygon = NONE,
                next => self.begin_polygon(thread, next, trace),
            }
        }
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        let mut depths = vec![f32::NEG_INFINITY; self.side * self.side];
        let mut image = vec![0; self.side * self.side];
        for words in &self.scene {
            let corners = corners_of(words);
            for line in extent(&corners, 1, self.side) {
                for column in extent(&corners, 0, self.side) {
                    let pixel = line * self.side + column;
                    match depth_at(&corners, column, line) {
                        Some(depth) if depth > depths[pixel] => {
                            depths[pixel] = depth;
                            image[pixel] = words[10];
                        }
                        _ => {}
                    }
                }
            }
        }
        // Where two polygons are equally near, the image may show either.
        let wrong =
            depths.iter().zip(self.depth.values()).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        if wrong > 0 || !image.iter().zip(self.image.values()).all(|(a, b)| (*a == 0) == (*b == 0)) {
            return Err(Error::wrong_result(format!("{wrong} pixels have the wrong depth")));
        }
        Ok(())
    }
}
