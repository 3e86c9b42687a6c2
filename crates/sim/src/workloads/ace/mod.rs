//! The eight programs of Bolosky, Fitzgerald and Scott, "Simple But Effective Techniques for NUMA Memory
//! Management" (SOSP 1989), section 3.2.
//!
//! The paper tells the algorithms, not the code. It leaves choices, such as how work is handed out and what a
//! subroutine call saves. `docs/fidelity.md` says what was chosen and by which published figure. Costs are
//! counted in instructions of 250 ns, two and a half cycles of the ROMP-C. The paper does not print that
//! time; only its products with the counts enter any result.

mod fft;
mod gfetch;
mod imatmult;
mod parmult;
mod plytrace;
mod primes1;
mod primes2;
mod primes3;
mod shared;

use super::{Parameters, Workload};

/// Instructions of an integer multiplication: the ROMP multiplies two bits a step, with set-up. Calibrated by
/// `T_local` of `IMatMult`: (68.2 s - 16 M fetches of 0.65 us) / 8 M turns = 7.2 us, of which five
/// instructions are the loop.
const MULTIPLY: u64 = 24;

/// Instructions of an integer division: a step a bit, with set-up and correction. Calibrated by `T_local` of
/// Primes1.
const DIVIDE: u64 = 66;

/// Every program of the paper, and Primes2 also as it first was.
pub const ALL: [Workload; 9] = [
    Workload {
        name: "parmult",
        about: "integer multiplications, next to no memory (ACE paper)",
        build: parmult::build,
    },
    Workload {
        name: "gfetch",
        about: "fetches from pages that every thread has written (ACE paper)",
        build: gfetch::build,
    },
    Workload {
        name: "imatmult",
        about: "product of two 200 x 200 integer matrices (ACE paper)",
        build: imatmult::build,
    },
    Workload {
        name: "primes1",
        about: "primes to 10 million, counted, dividing by all odd numbers; uses its stacks (ACE paper)",
        build: primes1::build,
    },
    Workload {
        name: "primes2",
        about: "primes to 10 million, dividing by a private copy of earlier primes (ACE paper)",
        build: primes2::build_private,
    },
    Workload {
        name: "primes2-shared",
        about: "primes to 10 million, dividing by the shared output vector, as before tuning (ACE paper)",
        build: primes2::build_shared,
    },
    Workload {
        name: "primes3",
        about: "sieve of 10 million in a shared bit vector (ACE paper)",
        build: primes3::build,
    },
    Workload {
        name: "fft",
        about: "two-dimensional FFTs of 256 x 256 floats, 95 % private references (ACE paper)",
        build: fft::build,
    },
    Workload {
        name: "plytrace",
        about: "polygons rendered from a shared queue of lists (ACE paper)",
        build: plytrace::build,
    },
];

/// A count scaled by the problem size, at least `least`.
fn scaled(full: u64, parameters: Parameters, least: u64) -> u64 {
    ((full as f64 * parameters.scale).round() as u64).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Program, Progress, Trace};

    /// A run without a machine: threads take turns, a piece each.
    fn run(program: &mut dyn Program) {
        let areas = program.areas().to_vec();
        let mut progress = vec![Progress::Running; program.threads()];
        let mut trace = Trace::default();
        while progress.iter().any(|&p| p != Progress::Finished) {
            if progress.iter().all(|&p| p != Progress::Running) {
                progress.iter_mut().filter(|p| **p == Progress::Barrier).for_each(|p| *p = Progress::Running);
            }
            for (thread, progress) in progress.iter_mut().enumerate() {
                if *progress != Progress::Running {
                    continue;
                }
                trace.clear();
                *progress = program.advance(thread, &mut trace);
                assert!(trace.len() < 10_000, "a piece of {} operations", trace.len());
                for op in trace.ops() {
                    let (Op::Read { address, .. }
                    | Op::Chase { address, .. }
                    | Op::Write { address, .. }
                    | Op::Atomic { address, .. }) = op
                    else {
                        continue;
                    };
                    assert!(
                        areas.iter().any(|area| (area.base..area.base + area.bytes).contains(&address)),
                        "{address:#x} is in no area"
                    );
                }
            }
        }
    }

    #[test]
    fn results_are_right_with_any_number_of_threads() {
        for workload in ALL {
            for threads in [1, 2, 7] {
                let mut program = (workload.build)(Parameters { threads, scale: 0.002, seed: 3 });
                assert_eq!(program.threads(), threads);
                run(&mut *program);
                program.check().unwrap_or_else(|error| panic!("{}: {error}", workload.name));
            }
        }
    }
}
