//! The workloads: real algorithms over simulated arrays.

pub mod ace;
pub mod bandwidth;
mod facerec;
mod metis;
mod nas;
mod phases;
mod sharing;
mod streamcluster;
mod today;

use crate::Program;

pub(crate) use nas::cg;

/// The parameters that a workload is built from.
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
    /// The workload and its origin, in one line.
    pub about: &'static str,
    /// Lays out its memory and prepares its input.
    pub build: fn(Parameters) -> Box<dyn Program>,
}

/// Every workload, in the order of `nodewise sim list`.
#[must_use]
pub fn all() -> Vec<Workload> {
    let families: [&[Workload]; 8] = [
        &ace::ALL,
        &bandwidth::ALL,
        &sharing::ALL,
        &streamcluster::ALL,
        &metis::ALL,
        &facerec::ALL,
        &nas::ALL,
        &today::ALL,
    ];
    families.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workloads of algorithms in phases.
    fn phased() -> Vec<Workload> {
        all().into_iter().skip(ace::ALL.len() + bandwidth::ALL.len() + sharing::ALL.len()).collect()
    }

    #[test]
    fn results_are_right_with_any_number_of_threads() {
        for workload in phased() {
            for threads in [1, 3, 16] {
                let mut program = (workload.build)(Parameters { threads, scale: 0.0005, seed: 5 });
                assert_eq!(program.threads(), threads);
                let references = phases::run(&mut *program);
                assert!(references > 0);
                program.check().unwrap_or_else(|error| panic!("{} of {threads}: {error}", workload.name));
            }
        }
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = all().iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
