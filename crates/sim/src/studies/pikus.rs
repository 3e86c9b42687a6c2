//! Fedor Pikus, "Nearly Unfathomable Morass of Arcana (NUMA)": what crossing to another node costs.
//!
//! Programs are bound as with `numactl --cpunodebind --membind`, so they run on the bare hardware.

use nodewise_hardware::{Hardware, Preset};

use super::{Options, Progress, Row, Study, Tolerance};
use crate::{
    bare,
    workloads::{Parameters, bandwidth::Stream},
};

/// Data and caches relative to the talk's and the machine's.
const SCALE: f64 = 1.0 / 32.0;

/// A node of each machine whose threads are bound, and the node of another socket, a hop away, whose memory they use.
const CROSSINGS: [(&str, usize, usize); 4] =
    [("xeon-e7-4830v3-4n", 0, 1), ("xeon-5120-4s", 0, 1), ("dahu-2n", 0, 1), ("xeon-snc", 0, 4)];

/// The machine of the talk's latencies.
const TALK: &str = "xeon-e7-4830v3-4n";

enum Run {
    /// Loss of bandwidth in per cent: machine, threads' node, memory's node.
    Crossing(&'static str, usize, usize),
    /// Idle latency in ns.
    Latency(usize),
    /// Threads of all nodes against threads of node 0, with all data on node 0: bandwidth in per cent.
    Crowding,
}

/// Runs the study.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Study, String> {
    let mut runs = vec![Run::Crowding];
    runs.extend(CROSSINGS.map(|(machine, threads, memory)| Run::Crossing(machine, threads, memory)));
    runs.extend([Run::Latency(0), Run::Latency(1)]);
    let rows = super::in_parallel(&runs, options.jobs, progress, |run| run.row(options));
    Ok(Study { name: "pikus".to_string(), rows: rows.into_iter().collect::<Result<_, _>>()? })
}

impl Run {
    fn row(&self, options: &Options) -> Result<Row, String> {
        match *self {
            Run::Crossing(machine, threads, memory) => {
                let preset = named(machine, options)?;
                let own =
                    |memory| bandwidth(&preset, Stream::own, &cores_of(&preset, threads), memory, options);
                let loss = 100.0 * (1.0 - own(memory)? / own(threads)?);
                let what =
                    format!("{machine}: bandwidth lost when the threads of a node write memory of another");
                Ok(Row::new(what, "%", 50.0, loss, Tolerance::Within(10.0)))
            }
            Run::Latency(memory) => {
                let simulated = latency_ns(&named(TALK, options)?, memory);
                let (what, published) = if memory == 0 { ("local", 129.8) } else { ("remote", 194.0) };
                // The talk's matrix: 129.0 to 130.7 on the diagonal, 187.9 to 203.4 elsewhere.
                Ok(Row::new(
                    format!("{TALK}: idle latency, {what}"),
                    "ns",
                    published,
                    simulated,
                    Tolerance::Within(9.4),
                ))
            }
            Run::Crowding => {
                let preset = named(TALK, options)?;
                let all = bandwidth(&preset, Stream::interleaved, &spread(&preset), 0, options)?;
                let one = bandwidth(&preset, Stream::interleaved, &cores_of(&preset, 0), 0, options)?;
                let what = format!(
                    "{TALK}: threads of all nodes against those of node 0 alone, all data on node 0, by lines"
                );
                Ok(Row::new(what, "% of the bandwidth", 100.0, 100.0 * all / one, Tolerance::AtMost))
            }
        }
    }
}

fn named(machine: &str, options: &Options) -> Result<Preset, String> {
    Ok(Preset::named(machine).map_err(|error| error.to_string())?.scaled(SCALE * options.scale))
}

/// The cores of a node.
fn cores_of(preset: &Preset, node: usize) -> Vec<usize> {
    (0..preset.cores()).filter(|&core| preset.nodes_of_cores()[core] == node).collect()
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
) -> Result<f64, String> {
    let parameters = Parameters { threads: cores.len(), scale: SCALE * options.scale, seed: options.seed };
    let mut stream = program(parameters);
    let outcome = bare::run(preset, &mut stream, cores, |_, _, _| memory)?;
    Ok(stream.bytes_written() as f64 / outcome.time_ps as f64 * 1e12)
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
        // Those that do not hold: see docs/fidelity.md.
        assert_eq!(held, [true, true, false, false, false, true, true], "{:#?}", study.rows);
    }
}
