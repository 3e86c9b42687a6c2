//! The workloads: real algorithms over simulated arrays.

pub mod ace;
pub mod bandwidth;

use crate::Program;

/// What a workload is built from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Threads of the program, at least one.
    pub threads: usize,
    /// Problem size relative to the published one, in (0, 1]; caches are scaled by the same factor.
    pub scale: f64,
    /// Seed of everything random in the program's input.
    pub seed: u64,
}

/// A workload that can be named on the command line.
#[derive(Clone, Copy)]
pub struct Workload {
    /// Its name: lower case, words joined by `-`.
    pub name: &'static str,
    /// What it is and where it is from, in one line.
    pub about: &'static str,
    /// Lays out its memory and prepares its input.
    pub build: fn(Parameters) -> Box<dyn Program>,
}

/// Every workload, in the order of `nodewise sim list`.
#[must_use]
pub fn all() -> Vec<Workload> {
    let families: [&[Workload]; 2] = [&ace::ALL, &bandwidth::ALL];
    families.concat()
}
