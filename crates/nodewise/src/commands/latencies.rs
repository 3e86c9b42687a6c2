//! The time that sampled accesses took, for a model of what changes would save.

use super::costs::{Machine, Times, Unit};
use nodewise_engine::{Access, DataSource, Measure, Observation, PageNumber, Pid, Sample, Tid};
use nodewise_topology::NodeIndex;
use nodewise_verdict::load::{Load, ways};
use std::collections::HashMap;

/// A process's page as one number: processes are far apart, and neighbours are neighbours in memory.
pub fn page_number(pid: Pid, page: PageNumber) -> u64 {
    u64::from(pid.0) << 40 | page.0 & ((1 << 40) - 1)
}

/// Whether another node served it, nobody knows which.
pub const fn is_far_somewhere(sample: &Sample) -> bool {
    let is_remote = matches!(sample.source, DataSource::RemoteDram { .. } | DataSource::RemoteCache { .. });
    is_remote && sample.home.is_none()
}

/// The time that accesses took, by the CPU's node and the memory's.
#[derive(Default)]
pub struct Latencies {
    /// The latencies of samples, in cycles.
    sampled: Vec<Vec<Vec<u32>>>,
    /// The time of accesses to lines in other nodes' caches, by the CPU's node.
    taken: Vec<f64>,
    /// How many these were.
    lines_taken: Vec<f64>,
    /// The accesses that the samples stand for.
    weights: Vec<Vec<f64>>,
    /// All that were counted, but for what was prefetched.
    counted: f64,
    /// Cycles that accesses took which a CPU's own LLC served, by node.
    cached: Vec<f64>,
    cycles: f64,
    instructions: f64,
    /// The time in which these were counted.
    time_ns: f64,
    /// In some interval the counts were not measured.
    is_incomplete: bool,
    /// The time of all samples, and of those whose line came from a node that had written it.
    all_time: f64,
    /// By thread and node: not all samplers tell the threads of a process apart.
    walks: HashMap<(Tid, NodeIndex), Walk>,
}

/// The way of a thread through memory, from sample to sample: as if it went through one array, or through
/// several side by side. The guess by which most steps are in order is right. With more arrays than there
/// are, a step is taken from where the thread was long ago, and with fewer from another array.
#[derive(Default)]
struct Walk {
    guesses: [SideBySide; Self::ARRAYS],
    steps: i64,
    /// The lowest address, and the highest.
    ends: Option<(u64, u64)>,
}

/// A way through so many arrays.
#[derive(Default)]
struct SideBySide {
    /// Where it was last in each, and at which step.
    places: Vec<(u64, i64)>,
    /// Steps upwards less those downwards.
    upwards: i64,
}

impl Walk {
    const ARRAYS: usize = 4;
    /// An array that was not met in so many steps is left.
    const STEPS: i64 = 16;

    /// One more sample, in the order of time. From one end to the other it is nearer beyond the end: whoever
    /// has gone through all begins again.
    fn to(&mut self, address: u64) {
        let (lowest, highest) = self.ends.unwrap_or((address, address));
        self.ends = Some((lowest.min(address), highest.max(address)));
        let is_around = |before: u64| highest > lowest && address.abs_diff(before) > (highest - lowest) / 2;
        for (arrays, SideBySide { places, upwards }) in (1..).zip(&mut self.guesses) {
            places.retain(|(_, step)| step + Self::STEPS > self.steps);
            let nearest = places.iter().enumerate().min_by_key(|(_, place)| place.0.abs_diff(address));
            if let Some((at, &(before, _))) = nearest {
                let step = i64::from(address > before) - i64::from(address < before);
                *upwards += if is_around(before) { -step } else { step };
                if places.len() == arrays {
                    places.remove(at);
                }
            }
            places.push((address, self.steps));
        }
        self.steps += 1;
    }

    /// The share of steps that were in order, if there were more than chance has.
    fn in_order(&self) -> f64 {
        let upwards = self.guesses.iter().map(|guess| guess.upwards.abs()).max().unwrap_or(0);
        let (upwards, steps) = (upwards as f64, self.steps.max(1) as f64);
        if upwards > 3.0 * steps.sqrt() { upwards / steps } else { 0.0 }
    }
}

impl Latencies {
    pub fn new(nodes: usize) -> Self {
        let (sampled, weights) = (vec![vec![Vec::new(); nodes]; nodes], vec![vec![0.0; nodes]; nodes]);
        let [taken, lines_taken, cached] = [0; 3].map(|_| vec![0.0; nodes]);
        Self { sampled, taken, lines_taken, weights, cached, ..Self::default() }
    }

    pub fn take_in(&mut self, seen: &Observation) {
        let counters = &seen.counters;
        match (&counters.cycles, &counters.instructions, &counters.traffic) {
            (Measure::Measured(cycles), Measure::Measured(instructions), Measure::Measured(traffic)) => {
                self.cycles += cycles;
                self.time_ns += seen.duration_ns as f64;
                self.instructions += instructions;
                self.counted += match counters.demand_percent {
                    Measure::Measured(percent) => traffic.total() * percent / 100.0,
                    _ => traffic.total(),
                };
                let cached = counters.llc_cycles.get().into_iter().flatten();
                self.cached.iter_mut().zip(cached).for_each(|(sum, cycles)| *sum += cycles);
            }
            _ => self.is_incomplete = true,
        }
        for sample in &seen.samples {
            let time = f64::from(sample.latency_cycles.max(1)) * f64::from(sample.weight);
            let is_taken = sample.source == DataSource::TAKEN;
            self.all_time += if is_taken || sample.source.is_of_memory() { time } else { 0.0 };
            let from = sample.accessor.get();
            if is_taken && from < self.taken.len() {
                self.taken[from] += time;
                self.lines_taken[from] += f64::from(sample.weight);
            }
        }
        let of_memory = |sample: &&Sample| sample.source.is_of_memory() && sample.latency_cycles > 0;
        let mut in_time: Vec<&Sample> = seen.samples.iter().filter(of_memory).collect();
        in_time.sort_unstable_by_key(|sample| sample.time_ns);
        for sample in in_time {
            self.walks.entry((sample.tid, sample.accessor)).or_default().to(sample.address.0);
            let (from, to) = (usize::from(sample.accessor.0), sample.home.map(|home| usize::from(home.0)));
            let Some(to) = to.filter(|&to| from.max(to) < self.weights.len()) else { continue };
            // A write is on its way for longer than it waits.
            if sample.access != Access::Write {
                self.sampled[from][to].push(sample.latency_cycles);
            }
            self.weights[from][to] += f64::from(sample.weight);
        }
    }

    /// The share of the time in which lines come from nodes that have written them. None without a sampler
    /// that tells.
    pub fn taken_percent(&self) -> Option<f64> {
        let taken: f64 = self.taken.iter().sum();
        (taken > 0.0).then(|| 100.0 * taken / self.all_time)
    }

    /// The load of a program that used so many CPUs, if all was measured.
    pub fn load(mut self, machine: &Machine, cpus: f64) -> Option<Load> {
        let all: f64 = self.weights.iter().flatten().sum();
        if self.is_incomplete || all == 0.0 {
            return None;
        }
        let mut ways = ways(&mut self.sampled, &machine.ratios)?;
        let times = machine.times.as_ref().map(|times| self.in_cycles(times, cpus));
        // If a memory was busy all the time, no sample tells how long the way is.
        for (row, known) in ways.iter_mut().zip(times.iter().flat_map(|times| &times.latencies)) {
            row.iter_mut().zip(known).for_each(|(way, known)| *way = way.min(*known));
        }
        // Samples may be missing.
        let scale = self.counted / all;
        let taken = self.taken.iter_mut().chain(&mut self.lines_taken);
        self.weights.iter_mut().flatten().chain(taken).for_each(|accesses| *accesses *= scale);
        let mean = |(sampled, way): (&Vec<u32>, &f64)| {
            let sum: u64 = sampled.iter().map(|&latency| u64::from(latency)).sum();
            if sampled.is_empty() { *way } else { sum as f64 / sampled.len() as f64 }
        };
        let latencies = self
            .sampled
            .iter()
            .zip(&ways)
            .map(|(sampled, ways)| sampled.iter().zip(ways).map(mean).collect());
        let work_cycles = machine.cycles_per_instruction * self.instructions;
        let steps: i64 = self.walks.values().map(|walk| walk.steps).sum();
        let in_order: f64 = self.walks.values().map(|walk| walk.steps as f64 * walk.in_order()).sum();
        Some(Load {
            latencies: latencies.collect(),
            accesses: self.weights,
            ways,
            cycles: self.cycles,
            work_cycles,
            cpus,
            in_order: in_order / (steps as f64).max(1.0),
            taken: self.taken,
            lines_taken: self.lines_taken,
            cached: self.cached,
            line_cycles: times.as_ref().and_then(|times| times.line),
            bank_cycles: times.as_ref().and_then(|times| times.bank),
        })
    }

    /// Times in the cycles of the CPUs as fast as they ran.
    fn in_cycles(&self, times: &Times, cpus: f64) -> Times {
        let of_one = match times.unit {
            Unit::Nanoseconds => self.cycles / (cpus * self.time_ns),
            Unit::Cycles | Unit::Distance => 1.0,
        };
        let row = |row: &Vec<f64>| row.iter().map(|time| time * of_one).collect();
        Times {
            unit: Unit::Cycles,
            latencies: times.latencies.iter().map(row).collect(),
            line: times.line.map(|time| time * of_one),
            bank: times.bank.map(|time| time * of_one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Counters, PageSize, TrafficMatrix, VirtAddr};

    fn in_order(addresses: impl Iterator<Item = u64>) -> f64 {
        let mut walk = Walk::default();
        addresses.for_each(|address| walk.to(address));
        walk.in_order()
    }

    /// Accesses of node 0 to node 1's memory that took so many cycles each, by one CPU of 2 GHz.
    fn always_busy(latency_cycles: u32) -> Latencies {
        let mut latencies = Latencies::new(2);
        let sample = Sample {
            time_ns: 0,
            address: VirtAddr(0),
            pid: Pid(1),
            tid: Tid(1),
            accessor: NodeIndex(0),
            home: Some(NodeIndex(1)),
            access: Access::Read,
            source: DataSource::RemoteDram { hops: 1 },
            page_size: PageSize::Base,
            latency_cycles,
            weight: 1,
        };
        let mut counters = Counters::unknown(Vec::new(), Vec::new());
        (counters.cycles, counters.instructions) = (Measure::Measured(1e9), Measure::Measured(1e6));
        counters.traffic = Measure::Measured(TrafficMatrix::new(2));
        latencies.take_in(&Observation {
            end_ns: 500_000_000,
            duration_ns: 500_000_000,
            counters,
            samples: vec![sample; 100],
            samples_lost: 0,
            processes: Vec::new(),
        });
        latencies
    }

    #[test]
    fn known_times_tell_the_way_where_all_accesses_wait() {
        let ratios = vec![vec![1.0, 2.0], vec![2.0, 1.0]];
        let times = |unit, near: f64| Times {
            unit,
            latencies: ratios.iter().map(|row| row.iter().map(|ratio| near * ratio).collect()).collect(),
            line: Some(1.5),
            bank: None,
        };
        let load = |times: Option<Times>| {
            let machine = Machine { ratios: ratios.clone(), cycles_per_instruction: 1.0, times };
            always_busy(1000).load(&machine, 1.0).unwrap()
        };
        assert_eq!(load(None).ways, [[500.0, 1000.0], [1000.0, 500.0]]);
        let known = load(Some(times(Unit::Cycles, 200.0)));
        assert_eq!(
            (known.ways, known.line_cycles),
            (vec![vec![200.0, 400.0], vec![400.0, 200.0]], Some(1.5))
        );
        // 2 GHz.
        let known = load(Some(times(Unit::Nanoseconds, 100.0)));
        assert_eq!(
            (known.ways, known.line_cycles),
            (vec![vec![200.0, 400.0], vec![400.0, 200.0]], Some(3.0))
        );
        // Samples may show a shorter one than is known.
        assert_eq!(load(Some(times(Unit::Cycles, 900.0))).ways[0], [500.0, 1000.0]);
    }

    #[test]
    fn sweeps_are_in_order_and_random_accesses_are_not() {
        // Every 5000th line of 8 MiB, again and again.
        let sweep = (0..400).map(|i| i * 5000 * 64 % (8 << 20));
        assert!(in_order(sweep.clone()) > 0.8);
        assert!(in_order(sweep.rev()) > 0.8, "downwards");
        // Only some ten samples from one end to the other, at unlike distances.
        let few = (0..400).map(|i| (i * 103 + i * 7919 % 40) * 8192 % (8 << 20));
        assert!(in_order(few.clone()) > 0.95);
        let downwards: Vec<u64> = few.collect();
        assert!(in_order(downwards.into_iter().rev()) > 0.95);
        // A sum of two arrays into a third, from sample to sample any of them.
        let loops = (0..400_u64).map(|i| i * 7 % 3 * (1 << 30) + i * 640_000);
        assert!(in_order(loops) > 0.8);
        let mut random = 1_u64;
        let next = |_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % (8 << 20)
        };
        assert!(in_order((0..4000).map(next)) < 0.01);
        assert!(in_order([1, 2, 3].into_iter()) < 0.01, "too few");
    }
}
