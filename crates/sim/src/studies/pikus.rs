//! Fedor Pikus, "Nearly Unfathomable Morass of Arcana (NUMA)": what crossing to another node costs.
//!
//! Programs that measure memory are bound as with `numactl --cpunodebind --membind`, so they run on the bare
//! hardware. The parallel foreach runs as `nodewise sim run` runs it, but with whole caches: it needs little
//! memory, and what it does need is not what it is about.

use super::{Kind, Options, Progress, Row, Study, Tolerance};
use crate::Error;
use crate::{
    Pinning, Policy, Settings, Simulation, bare,
    workloads::{self, Parameters, bandwidth::Stream},
};
use nodewise_hardware::{Hardware, Preset};

/// Data and caches relative to the talk's and the machine's.
const SCALE: f64 = 1.0 / 32.0;

/// A node of each machine whose threads are bound, and the node of another socket, a hop away, whose memory
/// they use.
const CROSSINGS: [(&str, usize, usize); 4] =
    [("xeon-e7-4830v3-4n", 0, 1), ("xeon-5120-4s", 0, 1), ("dahu-2n", 0, 1), ("xeon-snc", 0, 4)];

/// The machine of the talk's latencies.
const TALK: &str = "xeon-e7-4830v3-4n";

/// The machine of the parallel foreach: "32 physical cores in 2 NUMA nodes".
const FOREACH: &str = "dahu-2n";

/// Million elements a second of `parallel_foreach`: unbound, then with all threads on node 0 and memory
/// there, and on node 1.
const UNBOUND: f64 = 4.74;
const ON_NODE_0: f64 = 7.92;
const MEMORY_ON_NODE_1: f64 = 7.30;

/// Workload, what it is, threads on all nodes or on node 0 alone, node of the memory or first touch, what was
/// printed, and whether that is to be met or beaten.
type Foreach = (&'static str, &'static str, bool, Option<usize>, f64, bool);

const FOREACHES: [Foreach; 6] = [
    ("foreach-shared", "one queue, one task count, threads on both nodes", true, None, UNBOUND, false),
    ("foreach-shared", "the same, threads and memory on node 0", false, Some(0), ON_NODE_0, false),
    (
        "foreach-shared",
        "the same, threads on node 0, memory on node 1",
        false,
        Some(1),
        MEMORY_ON_NODE_1,
        false,
    ),
    ("foreach-per-node", "the talk's queue and count for each node, both nodes", true, None, ON_NODE_0, true),
    ("foreach-nodewise", "NodePool, a task for each element, both nodes", true, None, ON_NODE_0, true),
    ("foreach-nodewise-range", "NodePool::parallel_for, both nodes", true, None, ON_NODE_0, true),
];

enum Run {
    /// Loss of bandwidth in per cent: machine, threads' node, memory's node.
    Crossing(&'static str, usize, usize),
    /// Idle latency in ns.
    Latency(usize),
    /// Threads of all nodes against threads of node 0, with all data on node 0: bandwidth in per cent.
    Crowding(&'static str),
    Foreach(Foreach),
}

/// Runs the study.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Study, Error> {
    let mut runs = Vec::from(CROSSINGS.map(|(machine, ..)| Run::Crowding(machine)));
    runs.extend(CROSSINGS.map(|(machine, threads, memory)| Run::Crossing(machine, threads, memory)));
    runs.extend([Run::Latency(0), Run::Latency(1)]);
    runs.extend(FOREACHES.map(Run::Foreach));
    let rows = super::in_parallel(&runs, options.jobs, progress, |run| run.row(options));
    Ok(Study { name: "pikus".to_string(), rows: rows.into_iter().collect::<Result<_, _>>()? })
}

impl Run {
    fn row(&self, options: &Options) -> Result<Row, Error> {
        match *self {
            Self::Crossing(machine, threads, memory) => {
                let preset = named(machine, options)?;
                let own =
                    |memory| bandwidth(&preset, Stream::own, &cores_of(&preset, threads), memory, options);
                let loss = 100.0 * (1.0 - own(memory)? / own(threads)?);
                let what =
                    format!("{machine}: bandwidth lost when the threads of a node write memory of another");
                Ok(Row::new(what, "%", 50.0, loss, Tolerance::Within(10.0)))
            }
            Self::Latency(memory) => {
                let simulated = latency_ns(&named(TALK, options)?, memory);
                let (what, published) = if memory == 0 { ("local", 129.8) } else { ("remote", 194.0) };
                // The talk's matrix: 129.0 to 130.7 on the diagonal, 187.9 to 203.4 elsewhere.
                Ok(Row::new(
                    format!("{TALK}: idle latency, {what}"),
                    "ns",
                    published,
                    simulated,
                    Tolerance::Within(9.4),
                )
                .of_kind(Kind::Calibrated))
            }
            Self::Crowding(machine) => {
                let preset = named(machine, options)?;
                let all = bandwidth(&preset, Stream::interleaved, &spread(&preset), 0, options)?;
                let one = bandwidth(&preset, Stream::interleaved, &cores_of(&preset, 0), 0, options)?;
                let what = format!(
                    "{machine}: threads of all nodes against those of node 0 alone, all data on node 0, by lines"
                );
                Ok(Row::new(what, "% of the bandwidth", 100.0, 100.0 * all / one, Tolerance::LessThan))
            }
            Self::Foreach((workload, what, everywhere, memory, published, beaten)) => {
                let simulated = elements_a_second(workload, everywhere, memory, options)? / 1e6;
                let tolerance =
                    if beaten { Tolerance::MoreThan } else { Tolerance::percent_of(published, 25.0) };
                let what = format!("{FOREACH}: parallel foreach, {what}");
                Ok(Row::new(what, "million elements/s", published, simulated, tolerance))
            }
        }
    }
}

fn named(machine: &str, options: &Options) -> Result<Preset, Error> {
    Ok(Preset::named(machine)?.scaled(SCALE * options.scale))
}

/// The cores of a node.
fn cores_of(preset: &Preset, node: usize) -> Vec<usize> {
    (0..preset.cpus()).filter(|&core| preset.nodes_of_cpus()[core] == node).collect()
}

/// All cores, one of each node in turn: where Linux puts threads of a program that says nothing.
fn spread(preset: &Preset) -> Vec<usize> {
    let by_node: Vec<Vec<usize>> = (0..preset.nodes.len()).map(|node| cores_of(preset, node)).collect();
    let most = by_node.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|turn| by_node.iter().filter_map(move |cores| cores.get(turn).copied())).collect()
}

/// Bytes a second that threads on these cores write, all memory on one node.
fn bandwidth(
    preset: &Preset,
    program: fn(Parameters) -> Stream,
    cores: &[usize],
    memory: usize,
    options: &Options,
) -> Result<f64, Error> {
    let parameters = Parameters { threads: cores.len(), scale: SCALE * options.scale, seed: options.seed };
    let mut stream = program(parameters);
    let outcome = bare::run(preset, &mut stream, cores, |_, _, _| memory)?;
    Ok(stream.bytes_written() as f64 / outcome.time_ps as f64 * 1e12)
}

/// The elements a second of a parallel foreach, with a thread on each core of all nodes or of node 0.
fn elements_a_second(
    workload: &str,
    everywhere: bool,
    memory: Option<usize>,
    options: &Options,
) -> Result<f64, Error> {
    let preset = Preset::named(FOREACH)?;
    let (threads, pinning) = if everywhere {
        (preset.cpus(), Pinning::Spread)
    } else {
        (preset.nodes[0].cores, Pinning::SockOrder)
    };
    let all = workloads::all();
    let workload = all
        .iter()
        .find(|known| known.name == workload)
        .ok_or_else(|| Error::unknown("there is no such workload"))?;
    let scale = SCALE * options.scale;
    let program = (workload.build)(Parameters { threads, scale, seed: options.seed });
    let settings = Settings { pinning, seed: options.seed, ..Settings::scaled(1.0) };
    let policy = memory.map_or(Policy::FirstTouch, Policy::Bind);
    let report = Simulation::new(&preset, program, settings, policy)?.run(&mut |_| ())?;
    report.items_per_s.ok_or_else(|| Error::unknown(format!("{} has no elements", workload.name)))
}

/// A pointer chase by core 0 through memory that no cache holds.
fn latency_ns(preset: &Preset, memory: usize) -> f64 {
    const STEPS: u64 = 1000;
    let mut hardware = Hardware::new(preset);
    let latencies = (0..STEPS).map(|step| hardware.chase(0, step * 4160, memory).latency_ps);
    latencies.sum::<u64>() as f64 / STEPS as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_keeps_holding() {
        let options = Options { scale: 0.125, ..Options::default() };
        let study = run(&options, &|_| ()).unwrap();
        let held: Vec<bool> = study.rows.iter().map(|row| row.holds).collect();
        // For the rows that do not hold, see docs/fidelity.md.
        let memory = [&[true; 5][..], &[false; 3], &[true; 2]].concat();
        let foreach = [true; 6];
        assert_eq!(held, [&memory[..], &foreach[..]].concat(), "{:#?}", study.rows);
    }
}
