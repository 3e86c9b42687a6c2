//! A machine as a TOML file: what a user copies, edits and runs.

mod file;
mod json;

use crate::link::Link;
use crate::{Error, ErrorKind};
use serde::Deserialize;
use std::{fs, path::Path};

/// Most nodes of a machine. Whatever keeps nodes in bits, or a node's number in few, is built for as many.
pub const MOST_NODES: usize = 64;
/// Most cores of a node.
pub const MOST_CORES_A_NODE: usize = 256;
/// Most last-level caches of a machine.
pub const MOST_LLCS: usize = 64;

/// The presets that come along: name and text.
const BUILT_IN: &[(&str, &str)] = &[
    ("ace-7", include_str!("../../presets/ace-7.toml")),
    ("opteron-8385-4n", include_str!("../../presets/opteron-8385-4n.toml")),
    ("opteron-6272-8n", include_str!("../../presets/opteron-6272-8n.toml")),
    ("xeon-e7-4830v3-4n", include_str!("../../presets/xeon-e7-4830v3-4n.toml")),
    ("xeon-5120-4s", include_str!("../../presets/xeon-5120-4s.toml")),
    ("dahu-2n", include_str!("../../presets/dahu-2n.toml")),
    ("dahu-2n-smt", include_str!("../../presets/dahu-2n-smt.toml")),
    ("epyc-nps4", include_str!("../../presets/epyc-nps4.toml")),
    ("epyc-cxl-4n", include_str!("../../presets/epyc-cxl-4n.toml")),
    ("epyc-cxl-4n-smt", include_str!("../../presets/epyc-cxl-4n-smt.toml")),
    ("xeon-snc", include_str!("../../presets/xeon-snc.toml")),
];

/// A machine that can be right: every node is reachable, every server has a speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Its name.
    pub name: String,
    /// The machine that it is, in one line.
    pub about: String,
    /// The properties of every core.
    pub core: Core,
    /// Bytes of a cache line, the unit of every transfer; a power of two.
    pub line_bytes: u64,
    /// First-level cache of each core.
    pub l1: Option<Cache>,
    /// Second-level cache of each core.
    pub l2: Option<Cache>,
    /// Last-level cache of each node, or of so many of its cores. Inclusive: what is in a core's caches is in
    /// it too.
    pub llc: Option<Cache>,
    /// Access times of a machine without caches.
    pub uncached: Option<Uncached>,
    /// The properties of every memory controller but those that a node has of its own.
    pub controller: Controller,
    /// The nodes. Cores are numbered node by node.
    pub nodes: Vec<Node>,
    /// The directed links.
    pub links: Vec<Link>,
    /// `routes[from][to]`: the links that a message from one node to another takes, in order.
    pub routes: Vec<Vec<Vec<usize>>>,
    /// `distances[from][to]`, in the firmware's unit (SLIT): 10 is local.
    pub distances: Vec<Vec<u32>>,
    /// How the operating system numbers the CPUs of the real machine.
    pub cpu_numbering: CpuNumbering,
}

/// How an operating system numbers CPUs, in the terms of Grid'5000's reference repository. Cores' second
/// threads follow all first threads, in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuNumbering {
    /// All of a node, then those of the next.
    #[default]
    Contiguous,
    /// One of each node in turn.
    RoundRobin,
}

/// The properties of every core.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Frequency in GHz.
    pub ghz: f64,
    /// Cycles an instruction takes when its data is in the first-level cache.
    pub cycles_per_instruction: f64,
    /// Hardware threads of a core, 1 or 2, each a CPU of the operating system. They share its caches, its
    /// issue slots and its misses.
    #[serde(default = "one_thread")]
    pub threads: usize,
    /// How many times the instructions of one thread the two of a core execute together while both have some
    /// to execute: 1 to 2. As many if nothing is said.
    #[serde(default = "no_speedup")]
    pub smt_speedup: f64,
    /// How many misses a core has outstanding before it waits for one.
    pub outstanding_misses: usize,
    /// How many more it has for neighbouring lines: a line that its private caches miss brings the other of
    /// its aligned pair along, as Intel's spatial prefetcher does. 0 if it has none.
    #[serde(default)]
    pub adjacent_line_prefetches: usize,
    /// The cost of asking a core for a line that its caches hold, beside the LLC's own latency. The core has
    /// modified the line, or somebody else wants to write it. 0 if that is not known.
    #[serde(default)]
    pub snoop_cycles: u64,
    /// The cycles of an atomic read-modify-write on a line that the core may write already.
    #[serde(default = "atomic_cycles")]
    pub atomic_cycles: u64,
}

fn one_thread() -> usize {
    1
}

fn no_speedup() -> f64 {
    1.0
}

/// LOCK XADD: 18 cycles on Skylake, 19 on Haswell (Fog, instruction tables).
fn atomic_cycles() -> u64 {
    18
}

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Size in KiB.
    pub kib: u64,
    /// Ways of a set.
    pub ways: usize,
    /// Cycles from the access to its data.
    pub latency_cycles: u64,
    /// The cores of a node that share one, of an LLC. 0 if all do.
    #[serde(default)]
    pub cores: usize,
}

/// Access times of a machine without caches, on which every access waits for its data.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uncached {
    /// Fetching a word from the own node.
    pub local_fetch_ns: f64,
    /// Storing a word to the own node.
    pub local_store_ns: f64,
    /// Fetching a word from any other node.
    pub global_fetch_ns: f64,
    /// Storing a word to any other node.
    pub global_store_ns: f64,
}

/// The properties of every memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// From a miss to its data when nothing else goes on and the memory is local.
    pub idle_latency_ns: f64,
    /// How long a line keeps the controller busy: line size over bandwidth.
    pub service_ns: f64,
    /// The same of a line that is written, which is more where reads and writes in turn get less than reads
    /// alone: each change of direction costs. As much as `service_ns` if nothing is said.
    #[serde(default)]
    pub write_service_ns: Option<f64>,
    /// Banks of its memory that work side by side. 0 if none are modelled: then a line waits for the
    /// controller alone, and waits grow with the load later than on real machines.
    #[serde(default)]
    pub banks: usize,
    /// How long a line keeps its bank busy. While a request waits for its bank the controller serves others.
    #[serde(default)]
    pub bank_ns: f64,
    /// Bytes that every LLC miss of the machine puts on its links besides data, evenly: the request, probes
    /// to all other nodes and their answers, where no directory tells who has a line. 0 if that is
    /// little.
    #[serde(default)]
    pub probe_bytes: u64,
}

impl Controller {
    /// The same with banks that make its latency grow with the load as on a server of three generations.
    ///
    /// A bank is busy with a line for a share of the idle latency. At the peak of the bandwidth a share of
    /// the banks is busy. Both shares are calibrated by MLC's curve of a two-socket Ice Lake
    /// (`nodewise sim reproduce loaded-latency`).
    #[must_use]
    pub fn with_banks(self) -> Self {
        let bank_ns = (BANK_OF_LATENCY * self.idle_latency_ns * 10.0).round() / 10.0;
        Self { banks: (bank_ns / self.service_ns / BUSY_BANKS).round() as usize, bank_ns, ..self }
    }
}

/// The time for which a line keeps its bank, of the idle latency.
const BANK_OF_LATENCY: f64 = 0.8;
/// The banks that are busy at the peak of the bandwidth, of all.
const BUSY_BANKS: f64 = 0.74;

/// A node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Its cores; a node may have none.
    pub cores: usize,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its own controller, if that is not like the others: of memory behind CXL, say.
    pub controller: Option<Controller>,
}

impl Preset {
    /// The names of the presets that come along.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|&(name, _)| name)
    }

    /// The text of a preset that comes along, to copy and edit.
    #[must_use]
    pub fn text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
    }

    /// A preset that comes along.
    pub fn named(name: &str) -> Result<Self, Error> {
        let Some(text) = Self::text(name) else {
            let names: Vec<_> = Self::names().collect();
            let reason = format!("no such machine; there are {}", names.join(", "));
            return Err(Error::new(ErrorKind::Unknown, name, None, reason));
        };
        Self::parse(text, name)
    }

    /// A preset in a file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let origin = path.as_ref().display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &origin),
            Err(error) => Err(Error::unreadable(&origin, &error)),
        }
    }

    /// How many cores there are.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores).sum()
    }

    /// How many CPUs there are: threads of cores.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cores() * self.core.threads
    }

    /// How many CPUs a node has.
    #[must_use]
    pub fn cpus_of_node(&self, node: usize) -> usize {
        self.nodes[node].cores * self.core.threads
    }

    /// The node of each CPU. CPUs are numbered node by node and core by core, as the hardware
    /// ([`Hardware`](crate::Hardware)) has them.
    #[must_use]
    pub fn nodes_of_cpus(&self) -> Vec<usize> {
        (0..self.nodes.len()).flat_map(|node| vec![node; self.cpus_of_node(node)]).collect()
    }

    /// The node of each core.
    #[must_use]
    pub fn nodes_of_cores(&self) -> Vec<usize> {
        self.nodes.iter().enumerate().flat_map(|(index, node)| vec![index; node.cores]).collect()
    }

    /// The LLC of each core, numbered node by node. Without LLCs it is the place of the core's node among
    /// those with cores.
    #[must_use]
    pub fn llcs_of_cores(&self) -> Vec<usize> {
        let each = self.llc.map_or(0, |llc| llc.cores);
        let mut llcs = Vec::new();
        let mut first = 0;
        for node in &self.nodes {
            let share = if each == 0 { node.cores } else { each };
            llcs.extend((0..node.cores).map(|core| first + core / share));
            first = llcs.last().map_or(0, |last| last + 1);
        }
        llcs
    }

    /// Most cores that share an LLC.
    #[must_use]
    pub fn cores_of_an_llc(&self) -> usize {
        let of_a_node = self.nodes.iter().map(|node| node.cores).max().unwrap_or(0);
        match self.llc {
            Some(llc) if llc.cores > 0 => llc.cores.min(of_a_node),
            _ => of_a_node,
        }
    }

    /// The controller of a node's memory.
    #[must_use]
    pub fn controller_of(&self, node: usize) -> &Controller {
        self.nodes[node].controller.as_ref().unwrap_or(&self.controller)
    }

    /// The links of a request from one node to another's memory, and of the answer.
    fn there_and_back(&self, from: usize, to: usize) -> impl Iterator<Item = &Link> {
        let ways = [&self.routes[from][to], &self.routes[to][from]];
        ways.into_iter().flatten().map(|&link| &self.links[link])
    }

    /// The time from a node's miss to its data in a node's memory, when nothing else goes on: what firmware
    /// tells (ACPI's HMAT).
    #[must_use]
    pub fn idle_latency_ns(&self, from: usize, to: usize) -> f64 {
        let links_ns: f64 = self.there_and_back(from, to).map(|link| link.hop_latency_ns).sum();
        self.controller_of(to).idle_latency_ns + links_ns
    }

    /// The bandwidth in GB/s at which a node reads a node's memory at most, as firmware tells it. It is the
    /// controller's, or the narrowest link's.
    #[must_use]
    pub fn bandwidth_gb_per_s(&self, from: usize, to: usize) -> f64 {
        // A line in so many ns is as many GB/s.
        let controller = self.line_bytes as f64 / self.controller_of(to).service_ns;
        self.there_and_back(from, to).map(|link| link.gb_per_s).fold(controller, f64::min)
    }

    /// How many links a message from one node to another takes.
    #[must_use]
    pub fn hops(&self, from: usize, to: usize) -> usize {
        self.routes[from][to].len()
    }

    /// Picoseconds of a core's cycle.
    #[must_use]
    pub fn cycle_ps(&self) -> f64 {
        1000.0 / self.core.ghz
    }

    /// The same machine with caches shrunk by a factor (to a set at least), for problems that are shrunk by
    /// it. Latencies, bandwidths and memory stay.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let shrink = |cache: Option<Cache>| {
            cache.map(|cache| {
                let smallest = (cache.ways as u64 * self.line_bytes).div_ceil(1024).max(1);
                Cache { kib: ((cache.kib as f64 * factor).round() as u64).max(smallest), ..cache }
            })
        };
        Self { l1: shrink(self.l1), l2: shrink(self.l2), llc: shrink(self.llc), ..self.clone() }
    }

    /// The same machine with every part slower by a factor: cores, caches, controllers and links. Ratios of
    /// times stay.
    #[must_use]
    pub fn slowed(&self, factor: f64) -> Self {
        let mut slow = self.clone();
        slow.core.ghz /= factor;
        let own = slow.nodes.iter_mut().filter_map(|node| node.controller.as_mut());
        for controller in own.chain([&mut slow.controller]) {
            controller.idle_latency_ns *= factor;
            controller.service_ns *= factor;
            controller.bank_ns *= factor;
            controller.write_service_ns = controller.write_service_ns.map(|ns| ns * factor);
        }
        for link in &mut slow.links {
            link.gb_per_s /= factor;
            link.hop_latency_ns *= factor;
        }
        if let Some(times) = &mut slow.uncached {
            for ns in [
                &mut times.local_fetch_ns,
                &mut times.local_store_ns,
                &mut times.global_fetch_ns,
                &mut times.global_store_ns,
            ] {
                *ns *= factor;
            }
        }
        slow
    }
}

#[cfg(test)]
mod tests;
