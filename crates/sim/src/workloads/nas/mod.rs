//! Programs like those of the NAS Parallel Benchmarks 3.3 (OpenMP): the same sweeps over the same arrays.
//!
//! As there, the threads that compute on an array also initialise it, so first touch places it well; IS is
//! the exception. Each file names the class that scale 1 is, and what was left out; iterations are fewer than
//! published, as all are alike.

mod adi;
pub mod cg;
mod dc;
mod ft;
mod is;
mod mg;
mod ua;

use super::Workload;

pub const ALL: [Workload; 8] = [
    Workload {
        name: "bt",
        about: "sweeps along the axes of a cube that solve systems of blocks, class B (NAS)",
        build: adi::bt,
    },
    Workload {
        name: "cg",
        about: "conjugate gradients with a random sparse matrix, class B (NAS)",
        build: cg::build,
    },
    Workload {
        name: "dc",
        about: "tuples grouped in every thread's own search trees, class A (NAS)",
        build: dc::build,
    },
    Workload { name: "ft", about: "Fourier transforms in three dimensions, class A (NAS)", build: ft::build },
    Workload {
        name: "is",
        about: "integers that one thread made, sorted by all, class B (NAS)",
        build: is::build,
    },
    Workload { name: "mg", about: "multigrid on a periodic grid, class A (NAS)", build: mg::build },
    Workload {
        name: "sp",
        about: "as bt with scalar systems: a fourth of the work on the same memory, class B (NAS)",
        build: adi::sp,
    },
    Workload {
        name: "ua",
        about: "heat on a mesh that is refined around a moving source, class C (NAS)",
        build: ua::build,
    },
];
