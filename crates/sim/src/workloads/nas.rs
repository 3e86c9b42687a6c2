//! Programs like those of the NAS Parallel Benchmarks 3.3 (OpenMP): the same sweeps over the same arrays.
//!
//! As there, the threads that compute on an array also initialise it, so first touch places it well; IS is the exception.
//! Each file names the class that scale 1 is, and what was left out; iterations are fewer than published, as all are alike.

mod cg;

use super::Workload;

pub const ALL: [Workload; 1] = [Workload {
    name: "cg",
    about: "conjugate gradients with a random sparse matrix, class B (NAS)",
    build: cg::build,
}];
