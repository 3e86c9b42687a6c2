//! Latency under load, as Intel's Memory Latency Checker (MLC) prints it: pointers are followed while the
//! other cores read, with ever longer pauses in between.
//!
//! MLC's curve has all figures that make a machine here. They are the idle latency, the bandwidth when all
//! cores inject without pauses, and by Little's law the misses that are then outstanding. Cores are as many
//! as give these, and the controller is one from which they get that bandwidth. A node's cores read its own
//! memory, as MLC's do, so one node is run.

use super::{Kind, Options, Progress, Row, Study, Tolerance};
use crate::workloads::{Parameters, bandwidth::Loaded};
use crate::{Error, bare};
use nodewise_hardware::{Controller, Node, Preset};

/// A machine, and the points that MLC printed: GB/s of all nodes, and ns.
struct Curve {
    name: &'static str,
    nodes: usize,
    /// Cores that are the load on a node, and each one's outstanding misses.
    load: (usize, usize),
    /// The points, from the idle one to the one without pauses.
    points: &'static [(f64, f64)],
    /// Whether the banks were calibrated by it.
    calibrates: bool,
}

/// MLC's output as published: field captures of machines with sizes of 2 sockets.
const CURVES: [Curve; 6] = [
    Curve {
        name: "2 x Cascade Lake",
        nodes: 2,
        load: (25, 11),
        points: &[
            (2.0, 82.0),
            (9.0, 84.0),
            (40.0, 90.0),
            (87.0, 97.0),
            (120.0, 103.0),
            (181.0, 120.0),
            (221.0, 157.0),
            (226.0, 156.0),
        ],
        calibrates: false,
    },
    Curve {
        name: "2 x Ice Lake",
        nodes: 2,
        load: (30, 24),
        points: &[(3.0, 91.0), (78.0, 99.0), (174.0, 110.0), (297.0, 154.0), (328.0, 185.0), (352.0, 264.0)],
        calibrates: true,
    },
    Curve {
        name: "2 x Granite Rapids",
        nodes: 6,
        load: (31, 26),
        points: &[
            (9.0, 95.0),
            (231.0, 101.0),
            (502.0, 114.0),
            (706.0, 137.0),
            (988.0, 172.0),
            (1167.0, 264.0),
        ],
        calibrates: false,
    },
    Curve {
        name: "two nodes of 159 GB/s",
        nodes: 2,
        load: (24, 17),
        points: &[(2.9, 82.3), (26.0, 88.0), (83.0, 101.0), (133.0, 128.0), (158.6, 294.0), (159.2, 329.0)],
        calibrates: false,
    },
    Curve {
        name: "two nodes of 125 GB/s",
        nodes: 2,
        load: (21, 13),
        points: &[(1.7, 89.0), (39.0, 101.0), (93.7, 132.0), (124.0, 283.0)],
        calibrates: false,
    },
    // Held out: written down before it was run. Intel's forum on MLC 3.5, post 1126268.
    Curve {
        name: "2 x Silver 4110",
        nodes: 2,
        load: (23, 6),
        points: &[(1.24, 81.96), (42.7, 94.56), (68.36, 98.94), (131.28, 123.71), (135.66, 130.31)],
        calibrates: false,
    },
];

/// The shares of the bandwidth that the cores would ask for if they never waited, in per cent. The last asks
/// without pauses.
const SHARES: [u64; 23] =
    [1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 70, 75, 80, 85, 88, 91, 94, 96, 98, 100, 102, 105, 10_000];

const WITHOUT_PAUSES: u64 = SHARES[SHARES.len() - 1];

/// Trials by which a controller's bandwidth is found, to 0.2 %.
const HALVINGS: usize = 9;
const LINE_BYTES: f64 = 64.0;

/// Threads' memory and caches, relative to MLC's and the machine's.
const SCALE: f64 = 0.01;

/// Runs the study.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Study, Error> {
    // Finding the machines takes about a third of the time.
    let begun = |share: f64| progress(share / 3.0);
    let machines = super::in_parallel(&CURVES, options.jobs, &begun, |curve| machine(curve, options));
    let rows = CURVES.iter().zip(machines).enumerate().map(|(number, (curve, machine))| {
        let progress =
            |share: f64| progress((1.0 + 2.0 * (number as f64 + share) / CURVES.len() as f64) / 3.0);
        rows(curve, &machine?, options, &progress)
    });
    let rows: Vec<Vec<Row>> = rows.collect::<Result<_, Error>>()?;
    Ok(Study { name: "loaded-latency".to_owned(), rows: rows.concat() })
}

/// One node of a curve's machine, whose cores get the bandwidth of the last point without pauses.
///
/// A controller is busy all the time only if ever more requests wait. Cores have so many outstanding and no
/// more. So the last point is below the controller's own bandwidth. It is by little where its latency is
/// several times the idle one, and by much where it is not.
fn machine(curve: &Curve, options: &Options) -> Result<Preset, Error> {
    let peak = curve.points[curve.points.len() - 1].0;
    let (mut low, mut high) = (0.5, 1.0);
    let with = |part: f64| with_service(curve, part * LINE_BYTES * curve.nodes as f64 / peak);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let (gb_per_s, _) = measure(&with(middle)?, WITHOUT_PAUSES, options)?;
        *if gb_per_s * curve.nodes as f64 > peak { &mut low } else { &mut high } = middle;
    }
    with(f64::midpoint(low, high))
}

/// The same with a controller that takes so long for a line.
fn with_service(curve: &Curve, service_ns: f64) -> Result<Preset, Error> {
    let idle_ns = curve.points[0].1;
    // Caches and instructions are those of such a machine, and of little effect.
    let mut preset = Preset::named("dahu-2n")?;
    let (cores, outstanding_misses) = curve.load;
    preset.nodes.truncate(1);
    preset.nodes[0] = Node { cores: 1 + cores, ..preset.nodes[0] };
    (preset.links, preset.routes, preset.distances) = (Vec::new(), vec![vec![Vec::new()]], vec![vec![10]]);
    preset.core.outstanding_misses = outstanding_misses;
    preset.core.adjacent_line_prefetches = 0;
    preset.controller = Controller { idle_latency_ns: idle_ns, service_ns, ..preset.controller }.with_banks();
    Ok(preset.scaled(SCALE))
}

/// A node's bandwidth in GB/s, and the latency in ns, if cores ask for a share of the bandwidth.
fn measure(preset: &Preset, percent: u64, options: &Options) -> Result<(f64, f64), Error> {
    let load = (preset.cpus() - 1) as f64;
    let pause_ns = load * preset.controller.service_ns * 100.0 / percent as f64;
    let delay = (pause_ns * preset.core.ghz / preset.core.cycles_per_instruction) as u64;
    let threads = preset.cpus();
    let parameters = Parameters { threads, scale: SCALE * options.scale, seed: options.seed };
    let cores: Vec<usize> = (0..threads).collect();
    let outcome = bare::run(preset, &mut Loaded::delayed(parameters, delay), &cores, |_, _, _| 0)?;
    // The threads touch their pages before.
    let time_ns = (outcome.time_ps - outcome.begun_ps) as f64 / 1000.0;
    let bytes = outcome.counters.since(&outcome.begun).controllers[0].bytes as f64;
    Ok((bytes / time_ns, time_ns / Loaded::chases() as f64))
}

fn rows(
    curve: &Curve,
    preset: &Preset,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Vec<Row>, Error> {
    let measured =
        super::in_parallel(&SHARES, options.jobs, progress, |&share| measure(preset, share, options));
    let mut measured: Vec<(f64, f64)> = measured.into_iter().collect::<Result<_, _>>()?;
    for point in &mut measured {
        point.0 *= curve.nodes as f64;
    }
    let without_pauses = measured[measured.len() - 1];
    measured.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (last, peak) = (curve.points.len() - 1, curve.points[curve.points.len() - 1].0);
    let row = |(number, &(gb_per_s, published)): (usize, &(f64, f64))| {
        let what = format!("{}: latency at {gb_per_s} GB/s of {peak}", curve.name);
        // Next to its peak a bandwidth tells little of the latency. The last point is the one without pauses.
        let simulated = if number == last { without_pauses.1 } else { latency_at(&measured, gb_per_s) };
        let row = Row::new(what, "ns", published, simulated, Tolerance::percent_of(published, 10.0));
        let calibrated = curve.calibrates || number == 0 || number == last;
        if calibrated { row.of_kind(Kind::Calibrated) } else { row }
    };
    let mut rows: Vec<Row> = curve.points.iter().enumerate().map(row).collect();
    let what = format!("{}: bandwidth when all cores read without pauses", curve.name);
    rows.push(
        Row::new(what, "GB/s", peak, without_pauses.0, Tolerance::percent_of(peak, 5.0))
            .of_kind(Kind::Calibrated),
    );
    Ok(rows)
}

/// The latency at a bandwidth, between the two nearest points.
fn latency_at(points: &[(f64, f64)], gb_per_s: f64) -> f64 {
    let above = points.partition_point(|point| point.0 < gb_per_s).clamp(1, points.len() - 1);
    let ((low, low_ns), (high, high_ns)) = (points[above - 1], points[above]);
    let share = ((gb_per_s - low) / (high - low)).clamp(0.0, 1.0);
    low_ns + (high_ns - low_ns) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(banks: bool) -> Vec<Row> {
        let curve = &CURVES[0];
        let mut preset = machine(curve, &Options::default()).unwrap();
        if !banks {
            preset.controller = Controller { banks: 0, bank_ns: 0.0, ..preset.controller };
        }
        rows(curve, &preset, &Options::default(), &|_| ()).unwrap()
    }

    /// The controllers' bandwidth that trials find is that of a closed form (Little's law, and banks as M/D/1
    /// queues). The banks' waits at a share of the bandwidth are what the latency of the last point has
    /// beyond the idle one. Curves whose last latency is more than that of the peak have their peak there.
    #[test]
    fn the_last_point_is_below_the_peak_where_its_latency_says_so() {
        for curve in &CURVES {
            let ((_, idle_ns), (last, last_ns)) = (curve.points[0], curve.points[curve.points.len() - 1]);
            let controller = machine(curve, &Options::default()).unwrap().controller;
            let bank_ns = controller.bank_ns;
            let waits = (last_ns - idle_ns) / bank_ns;
            let busy_banks = 2.0 * waits / (1.0 + 2.0 * waits);
            let at_peak = bank_ns / controller.service_ns / controller.banks as f64;
            let (share, peak) =
                ((busy_banks / at_peak).min(1.0), LINE_BYTES * curve.nodes as f64 / controller.service_ns);
            assert!((peak * share / last - 1.0).abs() < 0.04, "{}: {share} of {peak}", curve.name);
        }
    }

    /// Without banks the latency at 80 % of the peak is that of an idle machine, nearly.
    #[test]
    fn the_knee_comes_of_banks() {
        let at = |rows: &[Row], gb_per_s: &str| {
            rows.iter().find(|row| row.what.contains(gb_per_s)).map(|row| (row.simulated, row.holds)).unwrap()
        };
        let (with, without) = (curve(true), curve(false));
        for point in ["87 GB/s", "120 GB/s", "181 GB/s"] {
            let (with, without) = (at(&with, point), at(&without, point));
            assert!(with.1, "{point}: {with:?}");
            assert!(without.0 < with.0 - 8.0, "{point}: {without:?} and {with:?}");
        }
        assert!(!at(&without, "181 GB/s").1);
    }
}
