//! The published studies, run again: what was printed beside what the simulator gives.
//!
//! A study uses one hardware preset and one parameter set per workload in all of its rows. A row that does
//! not hold stays in the table as not holding; `docs/fidelity.md` says why.

mod ace;
mod carrefour;
mod intel;
mod loaded_latency;
mod page_split;
mod pikus;

use crate::{Error, Policy, Program, Settings};
use nodewise_hardware::Preset;
use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Mutex;

/// The rows of one published study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Study {
    /// Its name, as [`Reproduction::name`].
    #[serde(rename = "study")]
    pub name: String,
    /// One row per published figure or statement.
    pub rows: Vec<Row>,
}

impl Study {
    /// How many rows of a kind hold, and how many there are.
    #[must_use]
    pub fn count(&self, kind: Kind) -> (usize, usize) {
        let of_kind = || self.rows.iter().filter(|row| row.kind == kind);
        (of_kind().filter(|row| row.holds).count(), of_kind().count())
    }

    /// Whether every row holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }
}

/// One published figure, and what the simulator gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The quantity that is measured, of which program under which policy.
    pub what: String,
    /// The unit of the next three.
    pub unit: String,
    /// The figure that was printed.
    pub published: f64,
    /// The figure that came out here.
    pub simulated: f64,
    /// How far the two may be apart.
    pub tolerance: Tolerance,
    /// Whether they are no further apart.
    pub holds: bool,
    /// The kind of proof that it is if it holds.
    pub kind: Kind,
}

/// The kinds of proof that rows are if they hold, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A figure that nothing was chosen by, and that could have come out otherwise.
    Predicted,
    /// A direction, a rank or a bound.
    Sign,
    /// It follows from what the machine or the program is: a quarter of accesses is local if four nodes are
    /// interleaved.
    Implied,
    /// A parameter was chosen by it.
    Calibrated,
}

impl Kind {
    /// All, in their order.
    pub const ALL: [Self; 4] = [Self::Predicted, Self::Sign, Self::Implied, Self::Calibrated];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Predicted => "predicted",
            Self::Sign => "sign",
            Self::Implied => "implied",
            Self::Calibrated => "calibrated",
        })
    }
}

impl Row {
    /// Judges one figure: a predicted one, or a sign if the tolerance is a bound.
    #[must_use]
    pub fn new(
        what: impl Into<String>,
        unit: impl Into<String>,
        published: f64,
        simulated: f64,
        tolerance: Tolerance,
    ) -> Self {
        let holds = match tolerance {
            Tolerance::Within(distance) => (simulated - published).abs() <= distance,
            Tolerance::AtLeast => simulated >= published,
            Tolerance::AtMost => simulated <= published,
            Tolerance::MoreThan => simulated > published,
            Tolerance::LessThan => simulated < published,
        };
        let kind = if matches!(tolerance, Tolerance::Within(_)) { Kind::Predicted } else { Kind::Sign };
        Self { what: what.into(), unit: unit.into(), published, simulated, tolerance, holds, kind }
    }

    /// The same row as another kind.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }
}

/// How far a simulated figure may be from the published one.
///
/// In JSON a number, or `"at least"`, `"at most"`, `"more than"` or `"less than"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// At most this far to either side, in the row's unit.
    Within(f64),
    /// Not below the published figure: a bound that stands as published figure.
    AtLeast,
    /// Not above the published figure.
    AtMost,
    /// Above the published figure: for shapes ("ahead of", "growing"), which nothing that does nothing has.
    MoreThan,
    /// Below the published figure.
    LessThan,
}

impl Tolerance {
    /// At most `percent` of the published figure to either side.
    #[must_use]
    pub fn percent_of(published: f64, percent: f64) -> Self {
        Self::Within(published.abs() * percent / 100.0)
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Within(distance) => write!(f, "±{distance:.3}"),
            Self::AtLeast => f.write_str("at least"),
            Self::AtMost => f.write_str("at most"),
            Self::MoreThan => f.write_str("more than"),
            Self::LessThan => f.write_str("less than"),
        }
    }
}

impl Serialize for Tolerance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Within(distance) => serializer.serialize_f64(*distance),
            bound => serializer.collect_str(bound),
        }
    }
}

/// How a study is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Problem sizes relative to the study's own, in (0, 1]; 1 is what the rows are judged at.
    pub scale: f64,
    /// Seed of the workloads' inputs.
    pub seed: u64,
    /// Simulated runs at a time.
    pub jobs: NonZeroUsize,
}

impl Default for Options {
    /// The study's own sizes, on all processors there are.
    fn default() -> Self {
        Self { scale: 1.0, seed: 1, jobs: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN) }
    }
}

/// Is told the share of the work done so far, in [0, 1], from any thread and not always in order.
pub type Progress<'a> = &'a (dyn Fn(f64) + Sync);

/// A study that can be named on the command line.
#[derive(Clone, Copy)]
pub struct Reproduction {
    /// Its name: lower case, words joined by `-`.
    pub name: &'static str,
    /// The published result and its publication, in one line.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&Options, Progress<'_>) -> Result<Study, Error>,
    /// How it runs its programs; none if it runs them on the bare hardware or under a kernel of its own.
    pub setup: Option<SetUp>,
}

/// Gives the set-up of a program, by name, under a policy at a seed.
pub type SetUp = fn(&str, &Policy, u64) -> Result<Setup, Error>;

/// How a study runs a program under a policy: what [`simulate`](crate::simulate) has to be told to get the
/// run of a row again.
pub struct Setup {
    /// The machine, its caches scaled.
    pub preset: Preset,
    /// Makes the program.
    pub build: Box<dyn Fn() -> Box<dyn Program> + Send + Sync>,
    /// Everything else.
    pub settings: Settings,
}

/// Every study, in the order of `nodewise sim reproduce all`.
#[must_use]
pub fn all() -> Vec<Reproduction> {
    vec![
        Reproduction {
            name: "ace",
            about: "alpha, beta and gamma of eight programs, and the overhead (Bolosky, Fitzgerald, Scott 1989)",
            run: ace::study,
            setup: None,
        },
        Reproduction {
            name: "carrefour",
            about: "Carrefour beside first touch, interleaving and the kernel's balancing (Gaud et al., CACM 2015)",
            run: carrefour::run,
            setup: Some(carrefour::setup),
        },
        Reproduction {
            name: "intel",
            about: "what migrating pages costs a program that uses them once (Gill and Peri, Intel)",
            run: intel::run,
            setup: None,
        },
        Reproduction {
            name: "loaded-latency",
            about: "latency under load on five machines (Intel's Memory Latency Checker)",
            run: loaded_latency::run,
            setup: None,
        },
        Reproduction {
            name: "page-split",
            about: "CG with huge pages that nodes share, by thread pinning (Gachod 2024)",
            run: page_split::run,
            setup: Some(page_split::setup),
        },
        Reproduction {
            name: "pikus",
            about: "bandwidth and latency across nodes (Pikus's talk on NUMA)",
            run: pikus::run,
            setup: None,
        },
    ]
}

/// Runs `work` on each item, `jobs` at a time; the results are in the items' order, whatever finished first.
///
/// Give the longest first: the items are started in order.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: NonZeroUsize,
    progress: Progress<'_>,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    struct Shared<R> {
        next: usize,
        done: usize,
        results: Vec<Option<R>>,
    }
    let shared = Mutex::new(Shared { next: 0, done: 0, results: items.iter().map(|_| None).collect() });
    let lock = || shared.lock().expect("no job panics while it holds the lock");
    std::thread::scope(|scope| {
        for _ in 0..jobs.get().min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = {
                        let mut shared = lock();
                        if shared.next == items.len() {
                            break;
                        }
                        shared.next += 1;
                        shared.next - 1
                    };
                    let result = work(&items[index]);
                    let done = {
                        let mut shared = lock();
                        shared.results[index] = Some(result);
                        shared.done += 1;
                        shared.done
                    };
                    progress(done as f64 / items.len() as f64);
                }
            });
        }
    });
    let results = shared.into_inner().expect("every job has ended").results;
    results.into_iter().map(|result| result.expect("every item was taken")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_documented_json() {
        let study = Study {
            name: "ace".to_owned(),
            rows: vec![
                Row::new("alpha of FFT", "1", 0.96, 0.95, Tolerance::Within(0.05)),
                Row::new("blocked ahead of interleaved", "x", 1.0, 0.5, Tolerance::AtLeast),
            ],
        };
        assert!(!study.holds());
        assert_eq!(Kind::ALL.map(|kind| study.count(kind)), [(1, 1), (0, 1), (0, 0), (0, 0)]);
        assert_eq!(
            serde_json::to_string(&study).unwrap(),
            r#"{"study":"ace","rows":[{"what":"alpha of FFT","unit":"1","published":0.96,"simulated":0.95,"tolerance":0.05,"holds":true,"kind":"predicted"},{"what":"blocked ahead of interleaved","unit":"x","published":1.0,"simulated":0.5,"tolerance":"at least","holds":false,"kind":"sign"}]}"#
        );
    }

    #[test]
    fn results_keep_the_items_order() {
        let items: Vec<u64> = (0..50).collect();
        let squares = in_parallel(&items, NonZeroUsize::new(4).unwrap(), &|_| (), |item| item * item);
        assert_eq!(squares, items.iter().map(|item| item * item).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = all().iter().map(|study| study.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
