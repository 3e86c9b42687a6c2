//! The eight programs of Bolosky, Fitzgerald and Scott, "Simple But Effective Techniques for NUMA Memory
//! Management" (SOSP 1989), section 3.2.
//!
//! The paper tells the algorithms, not the code. Where it leaves a choice (how work is handed out, what a
//! subroutine call saves), `docs/fidelity.md` says what was chosen and which published figure it was chosen
//! by. Costs are counted in instructions of 250 ns.

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

/// The time of an instruction on preset `ace-7`, two and a half cycles of the ROMP-C. The paper does not
/// print it; only its products with the counts below enter any result.
#[cfg(test)]
const INSTRUCTION_NS: u64 = 250;

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

    /// References and instructions of a run without a machine: threads take turns, a piece each.
    struct Counts {
        fetches: u64,
        stores: u64,
        instructions: u64,
    }

    fn run(program: &mut dyn Program) -> Counts {
        let mut counts = Counts { fetches: 0, stores: 0, instructions: 0 };
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
                    let (address, before) = match op {
                        Op::Read { address, instructions } | Op::Chase { address, instructions } => {
                            counts.fetches += 1;
                            (address, instructions)
                        }
                        Op::Write { address, instructions } | Op::Atomic { address, instructions } => {
                            counts.stores += 1;
                            (address, instructions)
                        }
                        Op::Compute { instructions } => {
                            counts.instructions += instructions;
                            continue;
                        }
                    };
                    counts.instructions += before;
                    assert!(
                        areas.iter().any(|area| (area.base..area.base + area.bytes).contains(&address)),
                        "{address:#x} is in no area"
                    );
                }
            }
        }
        counts
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

    /// Prints each program's counts at full size and its time with everything local.
    #[test]
    #[ignore = "calibration, read by a person"]
    fn counts() {
        let scale = std::env::var("SCALE").map_or(1.0, |scale| scale.parse().unwrap());
        for workload in ALL {
            let mut program = (workload.build)(Parameters { threads: 7, scale, seed: 1 });
            let counts = run(&mut *program);
            let (fetches, stores) = (counts.fetches as f64, counts.stores as f64);
            let compute = (counts.instructions * INSTRUCTION_NS) as f64 / 1e9;
            let local = compute + (fetches * 0.65 + stores * 0.84) / 1e6;
            let global = compute + (fetches * 1.5 + stores * 1.4) / 1e6;
            println!(
                "{:15} fetches {:8.2} M stores {:8.2} M compute {compute:9.1} s local {local:9.1} s global {global:9.1} s beta {:.3}",
                workload.name,
                fetches / 1e6,
                stores / 1e6,
                (global - local) / local,
            );
        }
    }
}
