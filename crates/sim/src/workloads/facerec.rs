//! Face recognition of the CSU Face Identification Evaluation System 5.0: images projected into a subspace.
//!
//! The basis of the subspace (as many eigenfaces as training images kept) is read from a file by the first
//! thread and is then read by all, whole, for every image. Images are divided among threads that go through
//! theirs without waiting for each other, as in `readAndProjectImages` of the system's parallel version
//! (`ALPBench`). Kept: pixels of the normalised images (130 x 150), the projection really computed.
//! The number of eigenfaces and of images is this program's.

use super::phases::{LINE, Lines, Phased, Phases, Random, alone, scaled, write_lines};
use super::{Parameters, Workload};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

pub const ALL: [Workload; 1] = [Workload {
    name: "facerec",
    about: "images projected into a subspace whose basis one thread read and all read on (CSU FaceRec 5.0)",
    build,
}];

const PIXELS: usize = 130 * 150;
const EIGENFACES: usize = 400;
/// Images that each of 16 threads projects.
const IMAGES: usize = 16 * 48;

/// A line has eight coefficients: load, multiply by what is loaded, add, and half a loop of three each. Lines
/// at once are calibrated by the gain of interleaving over first touch (+60 %); the gain of Carrefour is then
/// predicted.
const BASIS: Lines = Lines { at_once: 2, instructions: 32 };

struct FaceRecognition {
    areas: Vec<Area>,
    threads: usize,
    pixels: usize,
    /// The basis, a row of pixels for each eigenface.
    basis: Array<f64>,
    /// Each thread's own copy of its image.
    images: Vec<Array<f64>>,
    /// Coefficients found, a row for each image.
    found: Array<f64>,
    seed: u64,
    rounds: usize,
}

/// Pixels of an item.
const STRIP: usize = 2048;

fn build(parameters: Parameters) -> Box<dyn Program> {
    let pixels = scaled(PIXELS, parameters.scale.sqrt(), 64);
    let faces = scaled(EIGENFACES, parameters.scale.sqrt(), 4);
    let rounds = IMAGES / 16;
    let mut random = Random::new(parameters.seed);
    let mut space = Space::new();
    let basis = (0..faces * pixels).map(|_| random.unit() - 0.5).collect();
    let basis = space.array("basis", basis, Role::ReadShared);
    let images = (0..parameters.threads)
        .map(|thread| space.array(format!("image {thread}"), vec![0.0; pixels], Role::Private(thread)))
        .collect();
    let found =
        space.array("coefficients", vec![0.0; rounds * parameters.threads * faces], Role::WriteShared);
    let program = FaceRecognition {
        areas: space.into_areas(),
        threads: parameters.threads,
        pixels,
        basis,
        images,
        found,
        seed: parameters.seed,
        rounds,
    };
    Phases::program(program, parameters.threads)
}

impl FaceRecognition {
    fn faces(&self) -> usize {
        self.basis.values().len() / self.pixels
    }

    fn strips(&self) -> usize {
        self.pixels.div_ceil(STRIP)
    }

    /// The strips of an image and of all rows of the basis.
    fn strips_of_image(&self) -> usize {
        (1 + self.faces()) * self.strips()
    }

    fn image(&self, round: usize, thread: usize) -> Vec<f64> {
        let mut random = Random::new(self.seed ^ (round * self.threads + thread + 1) as u64);
        (0..self.pixels).map(|_| random.unit()).collect()
    }
}

impl Phased for FaceRecognition {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        // The basis, then the images.
        2
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        match phase {
            0 => alone(self.faces() * self.strips(), thread),
            _ => 0..self.rounds * self.strips_of_image(),
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        let pixels_of = |strip: usize| strip * STRIP..((strip + 1) * STRIP).min(self.pixels);
        if phase == 0 {
            let (face, pixels) = (item / self.strips(), pixels_of(item % self.strips()));
            let bytes = pixels.len() as u64 * 8;
            trace.compute(bytes / 8);
            write_lines(self.basis.address(face * self.pixels + pixels.start), bytes, trace);
            return;
        }
        let (round, item) = (item / self.strips_of_image(), item % self.strips_of_image());
        let pixels = pixels_of(item % self.strips());
        let (strip, bytes) = (item % self.strips(), pixels.len() as u64 * 8);
        // The image is read, then projected.
        let Some(face) = (item / self.strips()).checked_sub(1) else {
            if strip == 0 {
                let image = self.image(round, thread);
                self.images[thread].values_mut().copy_from_slice(&image);
            }
            trace.compute(bytes / 8);
            write_lines(self.images[thread].address(pixels.start), bytes, trace);
            return;
        };
        // Each thread begins with another eigenface, so that those of a node do not read the basis in step.
        let face = (face + self.faces() * thread / self.threads) % self.faces();
        let row = face * self.pixels;
        // The image is in the core's caches: one reference for every line of the basis would only tell so.
        trace.read(self.images[thread].address(pixels.start));
        BASIS.read(self.basis.address(row + pixels.start), bytes, trace);
        let basis = &self.basis.values()[row..row + self.pixels];
        let image = self.images[thread].values();
        let sum: f64 = pixels.map(|pixel| basis[pixel] * image[pixel]).sum();
        let place = (round * self.threads + thread) * self.faces() + face;
        if strip == 0 {
            self.found.write(place, sum, trace);
        } else {
            let before = self.found.read(place, trace);
            self.found.write(place, before + sum, trace);
        }
    }

    fn check(&self) -> Result<(), Error> {
        debug_assert_eq!(LINE % 8, 0);
        for (place, &found) in self.found.values().iter().enumerate() {
            let (image, face) = (place / self.faces(), place % self.faces());
            // All faces of the first and last image, and one of each other.
            if image % (self.rounds * self.threads - 1).max(1) != 0 && face != image % self.faces() {
                continue;
            }
            let pixels = self.image(image / self.threads, image % self.threads);
            let basis = &self.basis.values()[face * self.pixels..(face + 1) * self.pixels];
            let sum: f64 = basis.iter().zip(&pixels).map(|(a, b)| a * b).sum();
            if (found - sum).abs() > 1e-6 {
                return Err(Error::wrong_result(format!(
                    "image {image} has {found} of face {face}, not {sum}"
                )));
            }
        }
        Ok(())
    }
}
