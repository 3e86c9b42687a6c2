//! The time that sampled accesses took, for a model of what changes would save.

use crate::manage::Observer;
use nodewise_engine::recording::Interval;
use nodewise_engine::{Access, DataSource, Measure, Observation, Pid, Sample};
use nodewise_verdict::load::{Load, ways};

/// Whatever a node's own caches serve goes to nobody's memory.
pub const fn is_of_memory(sample: &Sample) -> bool {
    !matches!(sample.source, DataSource::LocalCache | DataSource::Uncached)
}

/// The time that accesses took, by the CPU's node and the memory's.
#[derive(Default)]
pub struct Latencies {
    /// The latencies of samples, in cycles.
    sampled: Vec<Vec<Vec<u32>>>,
    /// The accesses that the samples stand for.
    weights: Vec<Vec<f64>>,
    /// All that were counted.
    counted: f64,
    cycles: f64,
    instructions: f64,
    /// In some interval the counts were not measured.
    is_incomplete: bool,
}

impl Latencies {
    pub fn new(nodes: usize) -> Self {
        let (sampled, weights) = (vec![vec![Vec::new(); nodes]; nodes], vec![vec![0.0; nodes]; nodes]);
        Self { sampled, weights, ..Self::default() }
    }

    pub fn take_in(&mut self, seen: &Observation) {
        let counters = &seen.counters;
        match (&counters.cycles, &counters.instructions, &counters.traffic) {
            (Measure::Measured(cycles), Measure::Measured(instructions), Measure::Measured(traffic)) => {
                self.cycles += cycles;
                self.instructions += instructions;
                self.counted += traffic.total();
            }
            _ => self.is_incomplete = true,
        }
        for sample in seen.samples.iter().filter(|sample| is_of_memory(sample) && sample.latency_cycles > 0) {
            let (from, to) = (usize::from(sample.accessor.0), sample.home.map(|home| usize::from(home.0)));
            let Some(to) = to.filter(|&to| from.max(to) < self.weights.len()) else { continue };
            // A write is on its way for longer than it waits.
            if sample.access != Access::Write {
                self.sampled[from][to].push(sample.latency_cycles);
            }
            self.weights[from][to] += f64::from(sample.weight);
        }
    }

    /// The load of a program that used so many CPUs, if all was measured. `ratios` has the cost of each pair
    /// of nodes if a near access costs 1. An instruction takes so many cycles without any wait.
    pub fn load(mut self, ratios: &[Vec<f64>], cycles_per_instruction: f64, cpus: f64) -> Option<Load> {
        let all: f64 = self.weights.iter().flatten().sum();
        if self.is_incomplete || all == 0.0 {
            return None;
        }
        let ways = ways(&mut self.sampled, ratios)?;
        // Samples may be missing.
        let scale = self.counted / all;
        self.weights.iter_mut().flatten().for_each(|accesses| *accesses *= scale);
        let mean = |(sampled, way): (&Vec<u32>, &f64)| {
            let sum: u64 = sampled.iter().map(|&latency| u64::from(latency)).sum();
            if sampled.is_empty() { *way } else { sum as f64 / sampled.len() as f64 }
        };
        let latencies = self
            .sampled
            .iter()
            .zip(&ways)
            .map(|(sampled, ways)| sampled.iter().zip(ways).map(mean).collect());
        let work_cycles = cycles_per_instruction * self.instructions;
        Some(Load {
            latencies: latencies.collect(),
            accesses: self.weights,
            ways,
            cycles: self.cycles,
            work_cycles,
            cpus,
        })
    }
}

impl Observer for Latencies {
    fn begin(&mut self, _: &[Pid]) {}

    fn interval(&mut self, interval: Interval) {
        self.take_in(&interval.seen);
    }
}
