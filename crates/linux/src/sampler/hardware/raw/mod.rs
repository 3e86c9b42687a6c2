//! Raw records of a PMU, with what it takes to decode them elsewhere, from machines that the project lacks.

use super::detect::Pmu;
use super::stream::Stream;
use super::{detect, thread_bytes};
use crate::{Error, ErrorKind};
use nodewise_engine::SamplingRate;
use nodewise_sys::perf::Target;
use nodewise_sys::{
    AffinityMask, Mapping, MappingOptions, MbindFlags, Policy, PolicyMode, mbind, sched_setaffinity,
};
use nodewise_topology::{Node, NodeId, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The content that `docs/record-raw.md` describes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The kernel's version.
    pub kernel: String,
    /// Files that tell what PMU there is, by their paths below `/`.
    pub files: BTreeMap<String, String>,
    /// Nodes, as `nodewise topo --json` prints them.
    pub nodes: serde_json::Value,
    /// Events that were opened, for people.
    pub events: Vec<String>,
    /// Records, by who accessed what.
    pub stretches: Vec<Stretch>,
}

/// Records of one thread on one node that reads and writes memory of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// The thread's node.
    pub accessor: NodeId,
    /// The memory's node.
    pub home: NodeId,
    /// Start of the memory.
    pub address: u64,
    /// Size of the memory.
    pub bytes: u64,
    /// Records of the ring, in hexadecimal digits, headers included.
    pub records: Vec<String>,
    /// Bytes of the AUX area, in hexadecimal digits.
    pub aux: String,
}

/// Memory of each node: more than most caches hold.
const MEMORY_BYTES: usize = 256 << 20;
/// Accesses between two looks at the ring: some ten milliseconds.
const ACCESSES: u32 = 200_000;
/// Records of a stretch that are enough, and bytes of its AUX area.
const ENOUGH_RECORDS: usize = 100;
const ENOUGH_AUX_BYTES: usize = 8 << 10;
/// How long a stretch may take.
const LONGEST: Duration = Duration::from_secs(1);

impl Recording {
    /// Has a thread on each node read and write memory of each node, and records what the PMU writes of that
    /// thread.
    ///
    /// # Errors
    /// As [`super::HardwareSampler::open`].
    pub fn take(topology: &Topology) -> Result<Self, Error> {
        let root = Path::new("/");
        let pmu = Pmu::detect(root)?;
        let mut stretches = Vec::new();
        // A node that is almost full would give memory of another.
        let has_room =
            |node: &&Node| node.memory_free_bytes.is_some_and(|free| free > 2 * MEMORY_BYTES as u64);
        for home in topology.nodes().iter().filter(has_room) {
            let memory = memory_on(home.id).map_err(failed)?;
            for accessor in topology.nodes().iter().filter(|node| !node.cpus.is_empty()) {
                let cpus: AffinityMask = accessor.cpus.iter().map(|cpu| cpu.0).collect();
                let taken = std::thread::scope(|scope| {
                    let thread = scope.spawn(|| {
                        sched_setaffinity(0, &cpus).map_err(failed)?;
                        sampled(&pmu, &memory, ACCESSES)
                    });
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                let (records, aux) = taken?;
                stretches.push(Stretch {
                    accessor: accessor.id,
                    home: home.id,
                    address: memory.address(),
                    bytes: memory.bytes() as u64,
                    records: records.iter().map(|record| hex(record)).collect(),
                    aux: hex(&aux),
                });
            }
        }
        Ok(Self {
            kernel: text(root, "proc/sys/kernel/osrelease").unwrap_or_default(),
            files: files_below(root),
            nodes: serde_json::to_value(topology.nodes()).unwrap_or_default(),
            events: pmu.events().iter().map(|event| format!("{event:?}")).collect(),
            stretches,
        })
    }
}

fn failed(error: nodewise_sys::Error) -> Error {
    Error::with_source(ErrorKind::Unsupported, "cannot place memory or a thread on a node", error)
}

/// Memory whose pages are there, on a node. NUMA balancing leaves it alone, as it has a policy.
fn memory_on(node: NodeId) -> nodewise_sys::Result<Mapping> {
    let memory = Mapping::new(MEMORY_BYTES, MappingOptions::default())?;
    let policy = Policy::new(PolicyMode::Preferred, [node.0].into_iter().collect());
    mbind(&memory, 0..memory.bytes(), &policy, MbindFlags::FuturePages)?;
    memory.as_atomics().iter().step_by(512).for_each(|word| word.store(1, Ordering::Relaxed));
    Ok(memory)
}

/// Accesses the memory until there are enough records of that, or for a second.
fn sampled(pmu: &Pmu, memory: &Mapping, accesses: u32) -> Result<(Vec<Vec<u8>>, Vec<u8>), Error> {
    let mut stream = Stream::open(pmu, Target::Task(0), thread_bytes(pmu), SamplingRate::Accurate)
        .map_err(|refused| refused.error)?;
    let (mut records, mut aux) = (Vec::new(), Vec::new());
    let (begin, mut state) = (Instant::now(), 1);
    while records.len() < ENOUGH_RECORDS && aux.len() < ENOUGH_AUX_BYTES && begin.elapsed() < LONGEST {
        access(memory, &mut state, accesses);
        // The kernel writes what AUX data there is when the thread leaves its CPU.
        std::thread::sleep(Duration::from_millis(1));
        stream.ask_times();
        let keep = |record: &[u8]| {
            if is_ours(record) {
                records.push(record.to_vec());
            }
        };
        stream.drain_raw(keep, &mut aux);
    }
    Ok((records, aux))
}

/// Whether a record is none of a sample, or of one in user code. Not every PMU can leave out the kernel and
/// guests, whose addresses are nobody's business.
fn is_ours(record: &[u8]) -> bool {
    const SAMPLE: u32 = 9;
    const CPU_MODE: u16 = 7;
    const USER: u16 = 2;
    // The header: type, misc, size.
    let Some((&[a, b, c, d], rest)) = record.split_first_chunk() else { return false };
    let misc = rest.first_chunk().map_or(0, |&misc| u16::from_ne_bytes(misc));
    u32::from_ne_bytes([a, b, c, d]) != SAMPLE || misc & CPU_MODE == USER
}

/// Reads words at random, each only when the one before has come, and writes one in eight.
fn access(memory: &Mapping, state: &mut u64, accesses: u32) {
    let words = memory.as_atomics();
    for _ in 0..accesses {
        // Knuth's MMIX generator.
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = &words[(*state >> 32) as usize % words.len()];
        if *state >> 61 == 0 {
            word.store(1, Ordering::Relaxed);
        } else {
            *state = state.wrapping_add(word.load(Ordering::Relaxed));
        }
    }
}

/// All that [`Pmu::detect`] reads, and no more of `/proc/cpuinfo` than which CPU it is.
fn files_below(root: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let cpuinfo = text(root, "proc/cpuinfo").unwrap_or_default();
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let known = ["vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"];
    let tells = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default().trim();
        known.contains(&name) || name.starts_with("CPU ")
    };
    files.insert(
        "proc/cpuinfo".to_owned(),
        first.lines().filter(tells).flat_map(|line| [line, "\n"]).collect(),
    );
    let vendor = "sys/class/dmi/id/sys_vendor";
    files.extend(text(root, vendor).map(|text| (vendor.to_owned(), text)));
    for pmu in detect::DIRECTORIES {
        let directory = format!("{}/{pmu}", detect::DEVICES);
        for part in ["", "/caps", "/events", "/format"] {
            let directory = format!("{directory}{part}");
            let entries = fs::read_dir(root.join(&directory)).into_iter().flatten().flatten();
            for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
                let path = format!("{directory}/{name}");
                files.extend(text(root, &path).map(|text| (path, text)));
            }
        }
    }
    files
}

/// A file's text; none of a directory, or of what cannot be read.
fn text(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

#[cfg(test)]
mod tests;
