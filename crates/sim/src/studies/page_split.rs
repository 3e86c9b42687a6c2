//! Gachod, "NUMA Page split: Improving Memory Management in the Linux Kernel for NUMA Architectures" (2024):
//! CG with huge pages, whose threads are pinned by CPU number or socket by socket.

use super::{Options, Progress, Row, Setup, Study, Tolerance};
use crate::os::Watched;
use crate::workloads::{Parameters, cg};
use crate::{Error, Pinning, Policy, Settings, Simulation};
use nodewise_hardware::Preset;

const MACHINE: &str = "dahu-2n";
/// Class C's 36 million elements, over class B's that the workload's scale counts in.
const CLASS_C: f64 = 2.64;
/// Problem, caches and huge pages relative to the real ones: a huge page has 128 KiB, and as many threads
/// share one as do of 2 MiB.
const SCALE: f64 = 1.0 / 16.0;
/// Sizes relative to class C.
const SIZES: [f64; 4] = [0.25, 0.5, 0.75, 1.0];
/// Each of them stands for several, whose mean is taken: where in a huge page a thread's part ends is chance.
const NEARBY: [f64; 3] = [1.0, 0.97, 1.03];
/// Solutions where pages stay where they are, and where the kernel balances; and iterations of class C.
const FEW: usize = 1;
const MANY: usize = 6;
const REAL: usize = 75 * 25;

#[derive(Clone, Copy, Debug)]
struct Run {
    pinning: Pinning,
    size: f64,
    huge_pages: bool,
    /// None where pages stay; else whether balancing splits.
    balancing: Option<bool>,
}

impl Run {
    fn run(self, options: &Options) -> Result<Watched, Error> {
        let policy = self.balancing.map_or(Policy::FirstTouch, |split| Policy::AutoNuma { split });
        let Setup { preset, build, settings } = self.setup(options)?;
        Simulation::new(&preset, build(), settings, policy)?.watch(&mut |_| ())
    }

    fn setup(self, options: &Options) -> Result<Setup, Error> {
        let scale = SCALE * options.scale;
        let preset = Preset::named(MACHINE)?.scaled(scale);
        let parameters =
            Parameters { threads: preset.cpus(), scale: CLASS_C * scale * self.size, seed: options.seed };
        let solutions = if self.balancing.is_some() { MANY } else { FEW };
        let iterations = solutions * cg::ITERATIONS;
        let settings = self.settings(iterations, scale, options.seed);
        Ok(Setup { preset, build: Box::new(move || cg::with_solutions(parameters, solutions)), settings })
    }

    /// A run of some iterations stands for one with all of them, in which the kernel does as much.
    fn settings(self, iterations: usize, scale: f64, seed: u64) -> Settings {
        let settings = Settings {
            pinning: self.pinning,
            period_scale: scale * iterations as f64 / REAL as f64,
            seed,
            ..Settings::scaled(scale)
        };
        if self.huge_pages { settings.with_huge_pages() } else { settings }
    }
}

/// The result of a pinning at a size.
struct Point {
    time_s: f64,
    remote_percent: f64,
    shared_percent: f64,
    falsely_percent: f64,
}

impl Point {
    fn mean(of: &[&Watched]) -> Self {
        let mean = |value: &dyn Fn(&Watched) -> f64| {
            of.iter().map(|watched| value(watched)).sum::<f64>() / of.len() as f64
        };
        Self {
            // As the benchmark's own, without the making of the matrix.
            time_s: mean(&|run| run.report.run_time_s - run.first_barrier_s),
            remote_percent: mean(&|run| 100.0 - run.report.local_access_percent.unwrap_or(100.0)),
            shared_percent: mean(&|run| run.sharing.shared_percent),
            falsely_percent: mean(&|run| run.sharing.falsely_percent),
        }
    }
}

/// CG of class C under a policy as the study runs it: huge pages, threads pinned by CPU number.
pub fn setup(program: &str, policy: &Policy, seed: u64) -> Result<Setup, Error> {
    if program != "cg" {
        return Err(Error::unknown(format!("page-split has no program {program}; there is cg")));
    }
    let balancing = match policy {
        Policy::AutoNuma { split } => Some(*split),
        _ => None,
    };
    let run = Run { pinning: Pinning::Sequential, size: 1.0, huge_pages: true, balancing };
    run.setup(&Options { seed, ..Options::default() })
}

/// Runs the study.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Study, Error> {
    let (sequential, sockorder) = (Pinning::Sequential, Pinning::SockOrder);
    let class_c = |pinning, huge_pages, balancing| Run { pinning, size: 1.0, huge_pages, balancing };
    let small_pages = [sequential, sockorder].map(|pinning| class_c(pinning, false, None));
    let balanced = [(sequential, false), (sequential, true), (sockorder, false)];
    let balanced = balanced.map(|(pinning, split)| class_c(pinning, true, Some(split)));
    let pinned = [sequential, sockorder].map(|pinning| class_c(pinning, true, None));
    let unbalanced = SIZES.into_iter().flat_map(|size| pinned.map(|run| Run { size, ..run }));
    let near = |run: Run| NEARBY.map(|near| Run { size: run.size * near, ..run });
    // The runs that take longest come first.
    let mut runs: Vec<Run> = balanced.into_iter().chain(unbalanced).flat_map(near).collect();
    runs.extend(small_pages);
    let results: Vec<Watched> = super::in_parallel(&runs, options.jobs, progress, |run| run.run(options))
        .into_iter()
        .collect::<Result<_, _>>()?;
    let mean = |runs: &[Watched]| Point::mean(&runs.iter().collect::<Vec<_>>());
    let (near, small) = results.split_at(results.len() - small_pages.len());
    let means: Vec<Point> = near.chunks(NEARBY.len()).map(mean).collect();
    let small: Vec<Point> = small.chunks(1).map(mean).collect();
    let ([balanced, split, balanced_sockorder, points @ ..], [small, small_sockorder]) =
        (&means[..], &small[..])
    else {
        return Err(Error::unknown("a run is missing"));
    };
    let slower: Vec<f64> = points.chunks(2).map(|pair| pair[0].time_s / pair[1].time_s).collect();
    // Sizes differ in what fits into caches: each is measured by its sockorder, which is 1 by that.
    let remote: Vec<f64> = points.chunks(2).map(|pair| pair[0].remote_percent).collect();
    let [.., largest, largest_sockorder] = points else {
        return Err(Error::unknown("a size is missing"));
    };
    let rows = vec![
        Row::new(
            "sequential over sockorder, run time: least of all sizes",
            "x",
            1.0,
            slower.iter().copied().fold(f64::INFINITY, f64::min),
            Tolerance::MoreThan,
        ),
        Row::new(
            "run time over its size's sockorder, and share of L3 misses served by remote DRAM: correlation",
            "1",
            0.95,
            correlation(&slower, &remote),
            Tolerance::AtLeast,
        ),
        Row::new(
            "sequential: L3 misses served by remote DRAM, those by false sharing of huge pages",
            "%",
            50.0,
            largest.falsely_percent,
            Tolerance::AtLeast,
        ),
        Row::new(
            "huge pages that nodes share: sequential over sockorder",
            "x",
            1.0,
            largest.shared_percent / largest_sockorder.shared_percent,
            Tolerance::MoreThan,
        ),
        Row::new(
            "what sequential loses to sockorder: with 4 KiB pages, of that with huge pages",
            "%",
            50.0,
            100.0 * (small.time_s / small_sockorder.time_s - 1.0) / (slower[SIZES.len() - 1] - 1.0),
            Tolerance::AtMost,
        ),
        Row::new(
            "what sequential loses to sockorder under balancing: recovered by the split",
            "%",
            0.0,
            100.0 * (balanced.time_s - split.time_s) / (balanced.time_s - balanced_sockorder.time_s),
            Tolerance::MoreThan,
        ),
    ];
    Ok(Study { name: "page-split".to_owned(), rows })
}

/// Pearson's.
fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (x, y) = (mean(one), mean(other));
    let sum = |product: &dyn Fn(f64, f64) -> f64| -> f64 {
        one.iter().zip(other).map(|(a, b)| product(a - x, b - y)).sum()
    };
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Costs;

    #[test]
    fn correlations() {
        assert!((correlation(&[1.0, 2.0, 3.0], &[5.0, 7.0, 9.0]) - 1.0).abs() < 1e-12);
        assert!(correlation(&[1.0, 2.0, 1.0], &[1.0, 1.0, 2.0]) < 0.0);
    }

    fn watched(pinning: Pinning, balancing: Option<bool>) -> Point {
        let run = Run { pinning, size: 0.25, huge_pages: true, balancing };
        Point::mean(&[&run.run(&Options { scale: 1.0 / 8.0, ..Options::default() }).unwrap()])
    }

    #[test]
    fn neighbours_on_different_nodes_share_huge_pages_falsely() {
        let (sequential, sockorder) = (watched(Pinning::Sequential, None), watched(Pinning::SockOrder, None));
        assert!(sequential.time_s > sockorder.time_s);
        assert!(sequential.remote_percent > sockorder.remote_percent);
        assert!(sequential.shared_percent > 2.0 * sockorder.shared_percent);
        assert!(sequential.falsely_percent > 50.0);
    }

    #[test]
    fn splitting_brings_pages_home() {
        let [plain, split] = [false, true].map(|split| watched(Pinning::Sequential, Some(split)));
        assert!(split.remote_percent < plain.remote_percent);
    }

    /// The simulation weighs costs by the period's scale over the size's.
    #[test]
    fn what_the_kernel_does_once_is_charged_for_the_runs_part_once() {
        let run = Run { pinning: Pinning::Sequential, size: 1.0, huge_pages: true, balancing: Some(true) };
        let settings = run.settings(48, SCALE, 1);
        let costs = Costs { huge_page_fault_ns: Costs::default().huge_page_fault_ns / 16, ..settings.costs };
        assert_eq!(settings.costs, costs);
        assert_eq!(Costs { huge_page_fault_ns: 200_000, ..costs }, Costs::default());
        assert!((settings.period_scale / settings.size_scale - 48.0 / 1875.0).abs() < 1e-12);
    }
}
