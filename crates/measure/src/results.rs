//! The figures, as JSON has them.

use crate::figure::Figure;
use crate::machine::CacheFacts;
use crate::stream::Traffic;
use serde::Serialize;

/// All that was measured. A part that was not asked for, or that this machine cannot have, is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Results {
    /// Version of this package.
    pub version: &'static str,
    /// The nodes, in the order of all matrices.
    pub nodes: Vec<NodeFacts>,
    /// Data caches, nearest to the core first.
    pub caches: Vec<CacheFacts>,
    /// Memory that was measured on each node.
    pub buffer_bytes: u64,
    /// Size of the pages that most of that memory has.
    pub page_bytes: u64,
    /// The CPUs' frequency governor; null where there is none.
    pub governor: Option<String>,
    /// Limits of these figures, in words.
    pub notes: Vec<String>,
    /// Latency of a load that nothing else disturbs.
    pub idle_latency: Vec<IdleLatency>,
    /// Latency by size of pages, misses of the TLB included.
    pub page_latency: Vec<PageLatency>,
    /// Bandwidth from node to node.
    pub bandwidth: Vec<Bandwidth>,
    /// Bandwidth of the machine, each CPU with the memory nearest to it.
    pub peak: Vec<Peak>,
    /// Bandwidth of all CPUs on one node's memory, and on memory that is interleaved.
    pub all_cpus: Vec<AllCpus>,
    /// Latency while other CPUs read.
    pub loaded_latency: Vec<LoadedLatency>,
    /// Latency of a line that another CPU's caches have.
    pub cache_to_cache: Vec<Transfer>,
    /// Figures of a core, which only a preset takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreFigures>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    /// The kernel's number.
    pub id: u32,
    /// How many CPUs took part.
    pub cpus: usize,
    /// Its memory.
    pub memory_bytes: u64,
    /// Distances to all nodes, in firmware's units.
    pub distances: Vec<u32>,
}

/// Latency of a load that nothing else disturbs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct IdleLatency {
    /// The node of the CPU.
    pub cpu_node: u32,
    /// The node of the memory.
    pub memory_node: u32,
    /// From one load of a chase to the next.
    pub latency_ns: Figure,
}

/// Latency of the memory nearest to the first CPU, misses of the TLB included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PageLatency {
    /// Size of the pages.
    pub page_bytes: u64,
    /// From one load to the next of a chase all over the memory.
    pub latency_ns: Figure,
}

/// Bandwidth from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The node of the CPUs.
    pub cpu_node: u32,
    /// The node of the memory.
    pub memory_node: u32,
    /// The threads' accesses.
    pub traffic: Traffic,
    /// Whether stores go past the caches.
    pub non_temporal: bool,
    /// How many threads there are, each on a CPU of its own.
    pub threads: usize,
    /// Bytes read and written, all threads together.
    pub bandwidth_mb_per_s: Figure,
}

/// Bandwidth of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// The threads' accesses.
    pub traffic: Traffic,
    /// Whether stores go past the caches.
    pub non_temporal: bool,
    /// How many threads there are, each on a CPU of its own.
    pub threads: usize,
    /// Bytes read and written, all threads together.
    pub bandwidth_mb_per_s: Figure,
}

/// Bandwidth of reads by all CPUs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AllCpus {
    /// The node of the memory; null for memory that is interleaved over all nodes.
    pub memory_node: Option<u32>,
    /// How many threads there are, each on a CPU of its own.
    pub threads: usize,
    /// Whether caches answer a part, as what a node reads is less than twice what its caches hold.
    pub cached: bool,
    /// Bytes read, all threads together.
    pub bandwidth_mb_per_s: Figure,
}

/// Latency while all other CPUs read the memory nearest to them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadedLatency {
    /// How far each reader counts between two lines, about a cycle for each number.
    pub pause_cycles: u32,
    /// From one load of the chase to the next, in memory of the chasing CPU's node.
    pub latency_ns: Figure,
    /// Bytes that the readers read, all together.
    pub bandwidth_mb_per_s: Figure,
}

/// Latency of a line that another CPU's caches have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transfer {
    /// The CPU that has it.
    pub owner_cpu: u32,
    /// Its node.
    pub owner_node: u32,
    /// The CPU that reads it.
    pub reader_cpu: u32,
    /// Its node.
    pub reader_node: u32,
    /// The node of the line's memory.
    pub home_node: u32,
    /// Whether the owner has written to it.
    pub modified: bool,
    /// From one load of a chase to the next.
    pub latency_ns: Figure,
}

/// Figures of a core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreFigures {
    /// Dependent additions in a nanosecond, which is the frequency if an addition takes a cycle.
    pub additions_per_ns: Figure,
    /// Latency of each level of [`Results::caches`].
    pub cache_latency_ns: Vec<Figure>,
}

/// Half the distance of the quartiles, in percent of the median, from which on a figure is no machine's. Here
/// an idle machine has 1 to 5 %, and one with as many busy programs as CPUs 30 and more.
const UNREST_PERCENT: f64 = 20.0;

impl Results {
    /// Notes that figures spread so far that something else must have disturbed them.
    pub(crate) fn note_unrest(&mut self) {
        let latencies = self.idle_latency.iter().map(|row| row.latency_ns);
        let latencies = latencies.chain(self.page_latency.iter().map(|row| row.latency_ns));
        let bandwidths = self.bandwidth.iter().map(|row| row.bandwidth_mb_per_s);
        let widest = latencies.chain(bandwidths).map(|figure| figure.spread_percent()).fold(0.0, f64::max);
        if widest > UNREST_PERCENT {
            self.notes.push(format!(
                "these figures are not to be trusted: passes spread by up to {widest:.0} %, as other programs run"
            ));
        }
    }

    /// Idle latency between two nodes.
    #[must_use]
    pub fn latency_ns(&self, cpu_node: u32, memory_node: u32) -> Option<Figure> {
        let row =
            self.idle_latency.iter().find(|row| (row.cpu_node, row.memory_node) == (cpu_node, memory_node));
        row.map(|row| row.latency_ns)
    }

    /// Bandwidth between two nodes with the most threads that were measured.
    #[must_use]
    pub fn megabytes_per_s(
        &self,
        cpu_node: u32,
        memory_node: u32,
        traffic: Traffic,
        non_temporal: bool,
    ) -> Option<Figure> {
        let here = |row: &&Bandwidth| {
            (row.cpu_node, row.memory_node, row.traffic, row.non_temporal)
                == (cpu_node, memory_node, traffic, non_temporal)
        };
        let most = self.bandwidth.iter().filter(here).max_by_key(|row| row.threads);
        most.map(|row| row.bandwidth_mb_per_s)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::{Machine, Options, Part, measure};
    use serde_json::Value;

    pub fn figure(median: f64) -> Figure {
        Figure::of(vec![median - 1.0, median, median + 1.0])
    }

    /// A machine of two nodes, each with two CPUs; most figures are of a capture of MLC 3.9.
    pub fn two_nodes() -> Results {
        let node = |id, distances: [u32; 2]| NodeFacts {
            id,
            cpus: 2,
            memory_bytes: 8 << 30,
            distances: distances.to_vec(),
        };
        let latency =
            |cpu_node, memory_node, ns| IdleLatency { cpu_node, memory_node, latency_ns: figure(ns) };
        let bandwidth = |cpu_node, memory_node, traffic, threads, speed| Bandwidth {
            cpu_node,
            memory_node,
            traffic,
            non_temporal: false,
            threads,
            bandwidth_mb_per_s: figure(speed),
        };
        let peak = |traffic, non_temporal, speed| Peak {
            traffic,
            non_temporal,
            threads: 4,
            bandwidth_mb_per_s: figure(speed),
        };
        let transfer = |owner_node: u32, reader_node: u32, home_node, modified, ns| Transfer {
            owner_cpu: 2 * owner_node,
            owner_node,
            reader_cpu: 2 * reader_node + u32::from(owner_node == reader_node),
            reader_node,
            home_node,
            modified,
            latency_ns: figure(ns),
        };
        let cache = |level, size_bytes, ways, caches| CacheFacts {
            level,
            size_bytes,
            ways: Some(ways),
            node_bytes: caches * size_bytes,
        };
        let reads = Traffic::Reads;
        Results {
            version: "0.1.0",
            nodes: vec![node(0, [10, 21]), node(1, [21, 10])],
            caches: vec![cache(1, 32 << 10, 8, 2), cache(2, 1 << 20, 16, 2), cache(3, 22 << 20, 11, 1)],
            buffer_bytes: 132 << 20,
            page_bytes: 2 << 20,
            governor: Some("performance".to_owned()),
            notes: Vec::new(),
            idle_latency: vec![
                latency(0, 0, 78.6),
                latency(0, 1, 144.1),
                latency(1, 0, 144.7),
                latency(1, 1, 78.5),
            ],
            page_latency: vec![PageLatency { page_bytes: 4096, latency_ns: figure(95.0) }],
            bandwidth: vec![
                bandwidth(0, 0, reads, 1, 12_000.0),
                bandwidth(0, 0, reads, 2, 79_670.3),
                bandwidth(0, 0, Traffic::OneToOne, 2, 70_000.0),
                bandwidth(0, 1, reads, 2, 34_393.4),
                bandwidth(1, 0, reads, 2, 34_385.7),
                bandwidth(1, 1, reads, 1, 12_000.0),
                bandwidth(1, 1, reads, 2, 79_678.3),
                bandwidth(1, 1, Traffic::OneToOne, 2, 70_000.0),
            ],
            peak: vec![
                peak(reads, false, 225_318.5),
                peak(Traffic::ThreeToOne, false, 212_855.2),
                peak(Traffic::TwoToOne, false, 211_005.5),
                peak(Traffic::OneToOne, false, 200_000.0),
                peak(Traffic::TwoToOne, true, 190_000.0),
            ],
            all_cpus: vec![AllCpus {
                memory_node: None,
                threads: 4,
                cached: false,
                bandwidth_mb_per_s: figure(9.0),
            }],
            loaded_latency: [(0, 329.3, 159_154.0), (20_000, 82.3, 900.0)]
                .map(|(pause_cycles, ns, speed)| LoadedLatency {
                    pause_cycles,
                    latency_ns: figure(ns),
                    bandwidth_mb_per_s: figure(speed),
                })
                .to_vec(),
            cache_to_cache: vec![
                transfer(0, 0, 0, false, 49.5),
                transfer(0, 0, 0, true, 50.5),
                transfer(0, 1, 0, true, 115.2),
                transfer(0, 1, 1, true, 184.8),
                transfer(1, 0, 1, true, 115.5),
                transfer(1, 0, 0, true, 185.9),
            ],
            core: Some(CoreFigures {
                additions_per_ns: figure(2.1),
                cache_latency_ns: [2.0, 7.0, 30.0].map(figure).to_vec(),
            }),
        }
    }

    /// Programs read these names.
    #[test]
    fn json_has_units_in_its_names() {
        let json = serde_json::to_value(two_nodes()).unwrap();
        assert_eq!(json["idle_latency"][1]["cpu_node"], 0);
        assert_eq!(json["idle_latency"][1]["memory_node"], 1);
        assert_eq!(json["idle_latency"][1]["latency_ns"]["median"], 144.1);
        assert_eq!(json["idle_latency"][1]["latency_ns"]["passes"], 3);
        for (pointer, expected) in [
            ("/page_latency/0/page_bytes", 4096.into()),
            ("/bandwidth/2/traffic", "1:1".into()),
            ("/bandwidth/0/traffic", "reads".into()),
            ("/bandwidth/0/bandwidth_mb_per_s/highest", Value::from(12_001.0)),
            ("/peak/4/non_temporal", true.into()),
            ("/all_cpus/0/memory_node", Value::Null),
            ("/all_cpus/0/cached", false.into()),
            ("/loaded_latency/0/pause_cycles", 0.into()),
            ("/cache_to_cache/3/home_node", 1.into()),
            ("/page_bytes", (2 << 20).into()),
            ("/governor", "performance".into()),
        ] {
            assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}");
        }
    }

    #[test]
    fn parts_that_were_not_asked_for_are_empty() {
        let machine = Machine::live().unwrap();
        let options =
            Options { parts: vec![Part::Latency], quick: true, mebibytes: Some(2), ..Options::default() };
        let results = measure(&machine, &options, |_, _, _| ()).unwrap();
        assert!(!results.idle_latency.is_empty() && results.bandwidth.is_empty() && results.peak.is_empty());
        assert!(results.all_cpus.is_empty() && results.cache_to_cache.is_empty() && results.core.is_none());
    }

    #[test]
    fn passes_that_spread_are_noted() {
        let mut results = two_nodes();
        results.note_unrest();
        assert_eq!(results.notes, Vec::<String>::new());
        results.idle_latency[1].latency_ns.upper_quartile *= 1.5;
        results.note_unrest();
        assert!(results.notes[0].contains("not to be trusted"), "{:?}", results.notes);
    }
}
