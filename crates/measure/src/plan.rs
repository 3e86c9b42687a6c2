//! The plan of a measurement: its parts, the steps that they take, and the memory that these need.

use crate::error::Error;
use crate::machine::Machine;
use crate::memory::check_free;
use crate::stream::{NON_TEMPORAL_STORES, Traffic};
use std::fmt;
use std::time::Duration;

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Idle latency from node to node.
    Latency,
    /// Idle latency by size of pages, misses of the TLB included.
    Pages,
    /// Bandwidth from node to node.
    Bandwidth,
    /// Bandwidth of all CPUs, each with the memory nearest to it.
    Peak,
    /// Bandwidth of all CPUs on one node's memory, and on interleaved memory.
    Interleaved,
    /// Latency while others read.
    Loaded,
    /// Latency from cache to cache.
    Cache,
}

impl Part {
    /// All parts, in the order in which they are measured.
    pub const ALL: [Self; 7] = [
        Self::Latency,
        Self::Pages,
        Self::Peak,
        Self::Bandwidth,
        Self::Interleaved,
        Self::Loaded,
        Self::Cache,
    ];

    /// Its name for users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Pages => "pages",
            Self::Bandwidth => "bandwidth",
            Self::Peak => "peak",
            Self::Interleaved => "interleaved",
            Self::Loaded => "loaded",
            Self::Cache => "cache",
        }
    }

    /// Whether Intel's Memory Latency Checker has the part, too.
    #[must_use]
    pub fn is_in_mlc(self) -> bool {
        !matches!(self, Self::Pages | Self::Interleaved)
    }
}

/// How to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The parts to measure.
    pub parts: Vec<Part>,
    /// Fewer and shorter passes.
    pub quick: bool,
    /// Memory of each node, in MiB; `None` for a multiple of the last-level caches.
    pub mebibytes: Option<u64>,
    /// Whether to measure a core and its caches, too.
    pub core: bool,
}

impl Default for Options {
    /// Everything but the core.
    fn default() -> Self {
        Self { parts: Part::ALL.to_vec(), quick: false, mebibytes: None, core: false }
    }
}

/// How much work a figure gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Passes of streams.
    pub passes: usize,
    /// Time of a pass of streams.
    pub stream: Duration,
    /// Passes of a chase alone. They are many and short, as a scheduler's interruptions are few and long.
    pub chases: usize,
    /// Loads of such a pass.
    pub hops: usize,
    /// Memory of a node, as a multiple of its last-level caches.
    pub caches: u64,
}

pub(crate) const THOROUGH: Effort =
    Effort { passes: 5, stream: Duration::from_millis(40), chases: 25, hops: 10_000, caches: 6 };
pub(crate) const QUICK: Effort =
    Effort { passes: 3, stream: Duration::from_millis(8), chases: 9, hops: 5_000, caches: 3 };

/// The pauses of MLC's curve.
const PAUSES: [u32; 19] =
    [0, 2, 8, 15, 50, 100, 200, 300, 400, 500, 700, 1000, 1300, 1700, 2500, 3500, 5000, 9000, 20_000];
const QUICK_PAUSES: [u32; 6] = [0, 50, 200, 500, 1700, 9000];

/// A step of the measurement. Nodes are places in [`Machine::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Core,
    /// From every row to a column.
    Latency {
        column: usize,
    },
    Pages {
        huge_page_bytes: Option<u64>,
    },
    Peak {
        traffic: Traffic,
        non_temporal: bool,
    },
    Bandwidth {
        row: usize,
        column: usize,
        traffic: Traffic,
        non_temporal: bool,
        threads: usize,
    },
    AllCpus {
        column: usize,
    },
    Interleaved,
    Loaded {
        pause_cycles: u32,
    },
    Transfer {
        owner: usize,
        reader: usize,
        home: usize,
        modified: bool,
    },
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "a core and its caches",
            Self::Latency { .. } => "idle latency",
            Self::Pages { .. } => "idle latency by size of pages",
            Self::Peak { .. } => "bandwidth of all CPUs",
            Self::Bandwidth { .. } => "bandwidth from node to node",
            Self::AllCpus { .. } => "all CPUs on one node's memory",
            Self::Interleaved => "all CPUs on interleaved memory",
            Self::Loaded { .. } => "latency under load",
            Self::Transfer { .. } => "cache to cache",
        })
    }
}

/// Traffic that may be asked for, with and without stores past the caches.
pub(crate) fn traffics() -> impl Iterator<Item = (Traffic, bool)> {
    let plain = Traffic::ALL.into_iter().map(|traffic| (traffic, false));
    let writing = Traffic::ALL.into_iter().filter(|traffic| traffic.writes() && NON_TEMPORAL_STORES);
    plain.chain(writing.map(|traffic| (traffic, true)))
}

/// MLC's five, of which the last is like STREAM's triad.
fn peaks() -> [(Traffic, bool); 5] {
    [
        (Traffic::Reads, false),
        (Traffic::ThreeToOne, false),
        (Traffic::TwoToOne, false),
        (Traffic::OneToOne, false),
        (Traffic::TwoToOne, NON_TEMPORAL_STORES),
    ]
}

/// One, two, four and so on, and all.
fn thread_counts(all: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(1), |&count| Some(2 * count));
    doubled.take_while(move |&count| count < all).chain([all])
}

/// The steps of some parts.
pub(crate) fn jobs(machine: &Machine, options: &Options) -> Vec<Job> {
    let mut jobs = Vec::new();
    if options.core {
        jobs.push(Job::Core);
    }
    let pairs = || machine.rows().flat_map(|row| machine.columns().map(move |column| (row, column)));
    for part in Part::ALL.into_iter().filter(|part| options.parts.contains(part)) {
        match part {
            Part::Latency => jobs.extend(machine.columns().map(|column| Job::Latency { column })),
            Part::Pages => {
                let huge = machine.huge_page_bytes.map(Some);
                let sizes = std::iter::once(None).chain(huge);
                jobs.extend(sizes.map(|huge_page_bytes| Job::Pages { huge_page_bytes }));
            }
            Part::Peak => {
                jobs.extend(peaks().map(|(traffic, non_temporal)| Job::Peak { traffic, non_temporal }));
            }
            Part::Bandwidth => {
                for (row, column) in pairs() {
                    let job = |traffic, non_temporal, threads| Job::Bandwidth {
                        row,
                        column,
                        traffic,
                        non_temporal,
                        threads,
                    };
                    let all = machine.nodes[row].cpus.len();
                    jobs.extend(thread_counts(all).map(|threads| job(Traffic::Reads, false, threads)));
                    jobs.extend(traffics().skip(1).map(|(traffic, past)| job(traffic, past, all)));
                }
            }
            Part::Interleaved => {
                jobs.extend(machine.columns().map(|column| Job::AllCpus { column }));
                jobs.push(Job::Interleaved);
            }
            Part::Loaded if all_cpus(machine).len() > 1 => {
                let pauses = if options.quick { &QUICK_PAUSES[..] } else { &PAUSES };
                jobs.extend(pauses.iter().map(|&pause_cycles| Job::Loaded { pause_cycles }));
            }
            Part::Loaded => {}
            Part::Cache => jobs.extend(transfers(machine)),
        }
    }
    jobs
}

/// Within each node that has two CPUs, and between nodes with the line at home at either.
fn transfers(machine: &Machine) -> Vec<Job> {
    let mut jobs = Vec::new();
    for owner in machine.rows() {
        for reader in machine.rows() {
            if owner == reader {
                let Some(home) = machine.nearest_memory(owner) else { continue };
                if machine.nodes[owner].cpus.len() > 1 {
                    jobs.extend([false, true].map(|modified| Job::Transfer {
                        owner,
                        reader,
                        home,
                        modified,
                    }));
                }
                continue;
            }
            let homes = [owner, reader].into_iter().filter(|&node| machine.nodes[node].memory_bytes > 0);
            jobs.extend(homes.map(|home| Job::Transfer { owner, reader, home, modified: true }));
        }
    }
    jobs
}

/// Every CPU, and the row that it is in.
pub(crate) fn all_cpus(machine: &Machine) -> Vec<(u32, usize)> {
    machine.rows().flat_map(|row| machine.nodes[row].cpus.iter().map(move |&cpu| (cpu, row))).collect()
}

/// Bytes to measure with on each node.
pub(crate) fn buffer_bytes(machine: &Machine, options: &Options, effort: Effort) -> Result<u64, Error> {
    const MIB: u64 = 1 << 20;
    // One node may have as much again.
    let more = u64::from([Part::Interleaved, Part::Pages].iter().any(|part| options.parts.contains(part)));
    if let Some(mebibytes) = options.mebibytes {
        let bytes = mebibytes.saturating_mul(MIB);
        for column in machine.columns() {
            let node = &machine.nodes[column];
            check_free(node.id, bytes, 1 + more, node.free_bytes)?;
        }
        return Ok(bytes);
    }
    // All rows together read one node's, a part each.
    let parts = if options.parts.contains(&Part::Interleaved) { machine.rows().count() as u64 } else { 1 };
    let wanted = (machine.last_level_bytes() * effort.caches * parts).clamp(32 * MIB, 4096 * MIB);
    let free = machine.columns().filter_map(|column| machine.nodes[column].free_bytes).min();
    let most = free.map_or(256 * MIB, |free| free / (3 + more));
    let bytes = wanted.min(most) / MIB * MIB;
    if bytes == 0 {
        let poorest = machine.columns().min_by_key(|&column| machine.nodes[column].free_bytes);
        let node = &machine.nodes[poorest.unwrap_or(0)];
        check_free(node.id, MIB, 1 + more, node.free_bytes.or(Some(0)))?;
    }
    Ok(bytes.max(MIB))
}

/// The part that each node reads when all of them read one node's memory.
pub(crate) fn part_bytes(machine: &Machine, bytes: u64) -> u64 {
    bytes / (machine.rows().count() as u64).max(1)
}

/// Whether a node's caches answer a good part of so many bytes.
pub(crate) fn are_cached(machine: &Machine, bytes: u64) -> bool {
    bytes < 2 * machine.last_level_bytes()
}

/// Limits of the figures that will come.
pub(crate) fn notes(machine: &Machine, options: &Options, bytes: u64) -> Vec<String> {
    let mut notes = machine.notes.clone();
    let last_level = machine.last_level_bytes();
    if last_level == 0 {
        notes.push("the kernel does not tell the size of caches, which may answer a part".to_owned());
    } else if are_cached(machine, bytes) {
        let (buffer, caches) = (bytes >> 20, last_level >> 20);
        notes.push(format!("a node's caches of {caches} MiB answer a part of its {buffer} MiB"));
    }
    let wanted = |part| options.parts.contains(&part);
    let part_bytes = part_bytes(machine, bytes);
    if wanted(Part::Interleaved) && are_cached(machine, part_bytes) && !are_cached(machine, bytes) {
        let (part, caches) = (part_bytes >> 20, last_level >> 20);
        notes.push(format!(
            "all CPUs: a node's caches of {caches} MiB answer a part of the {part} MiB that it reads"
        ));
    }
    let cpus = all_cpus(machine).len();
    if wanted(Part::Loaded) && cpus == 1 {
        notes.push("one CPU: there is nobody to load the memory while it is measured".to_owned());
    }
    if wanted(Part::Cache) && cpus == 1 {
        notes.push("one CPU: no line goes from cache to cache".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use nodewise_topology::{Allowed, Topology};

    fn machine(nodes: usize, cpus: usize) -> Machine {
        let topology = Topology::synthetic(nodes, cpus, 1 << 30);
        Machine::new(&topology, &Allowed::everything(&topology))
    }

    fn only(parts: &[Part]) -> Options {
        Options { parts: parts.to_vec(), quick: true, ..Options::default() }
    }

    #[test]
    fn threads_double_up_to_all() {
        let counts = |all| thread_counts(all).collect::<Vec<_>>();
        assert_eq!((counts(1), counts(4), counts(6)), (vec![1], vec![1, 2, 4], vec![1, 2, 4, 6]));
    }

    #[test]
    fn every_pair_of_nodes_is_measured_once() {
        let machine = machine(3, 4);
        let jobs = |part| jobs(&machine, &only(&[part]));
        assert_eq!(jobs(Part::Latency).len(), 3);
        let past = if NON_TEMPORAL_STORES { 5 } else { 0 };
        assert_eq!(jobs(Part::Bandwidth).len(), 9 * (3 + 5 + past));
        assert_eq!(jobs(Part::Interleaved).len(), 4);
        assert_eq!(jobs(Part::Peak).len(), 5);
        assert_eq!(jobs(Part::Cache).len(), 3 * 2 + 6 * 2);
        assert_eq!(jobs(Part::Loaded).len(), QUICK_PAUSES.len());
    }

    #[test]
    fn one_cpu_has_nobody_beside_it() {
        let options = only(&[Part::Loaded, Part::Cache]);
        assert_eq!(jobs(&machine(1, 1), &options), []);
        assert_eq!(notes(&machine(1, 1), &options, 1 << 30).len(), 3);
    }

    #[test]
    fn the_memory_is_a_multiple_of_the_caches_that_fits() {
        let mut machine = machine(2, 1);
        let bytes = |machine: &Machine, mebibytes| {
            buffer_bytes(machine, &Options { mebibytes, ..only(&[Part::Latency]) }, QUICK)
        };
        assert_eq!(bytes(&machine, None).unwrap(), 32 << 20);
        let cache =
            crate::machine::CacheFacts { level: 3, size_bytes: 16 << 20, ways: None, node_bytes: 32 << 20 };
        machine.caches.push(cache);
        assert_eq!(bytes(&machine, None).unwrap(), 96 << 20);
        let all = only(&[Part::Latency, Part::Interleaved]);
        assert_eq!(buffer_bytes(&machine, &all, QUICK).unwrap(), 192 << 20, "each of two nodes reads a half");
        assert!(notes(&machine, &all, 128 << 20).is_empty());
        let said = notes(&machine, &all, 127 << 20);
        assert_eq!(said, ["all CPUs: a node's caches of 32 MiB answer a part of the 63 MiB that it reads"]);
        assert_eq!(notes(&machine, &all, 63 << 20).len(), 1, "of what a node alone reads, too");
        machine.nodes[1].free_bytes = Some(60 << 20);
        assert_eq!(bytes(&machine, None).unwrap(), 20 << 20);
        assert_eq!(bytes(&machine, Some(8)).unwrap(), 8 << 20);
        assert_eq!(bytes(&machine, Some(48)).unwrap_err().kind(), ErrorKind::Memory);
        machine.nodes[1].free_bytes = Some(1 << 20);
        assert!(bytes(&machine, None).unwrap_err().to_string().starts_with("node 1 has 1 MiB free"));
    }
}
