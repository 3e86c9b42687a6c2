//! A machine as a TOML file: what a user copies, edits and runs.

use crate::link::Link;
use crate::{Error, ErrorKind, route};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{fs, path::Path};
use toml::Spanned;

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
    ("epyc-nps4", include_str!("../../presets/epyc-nps4.toml")),
    ("epyc-cxl-4n", include_str!("../../presets/epyc-cxl-4n.toml")),
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
    /// How the operating system numbers the cores of the real machine.
    pub cpu_numbering: CpuNumbering,
}

/// How an operating system numbers cores, in the terms of Grid'5000's reference repository.
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

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    about: String,
    line_bytes: Spanned<u64>,
    core: Spanned<Core>,
    l1: Option<Spanned<Cache>>,
    l2: Option<Spanned<Cache>>,
    llc: Option<Spanned<Cache>>,
    uncached: Option<Spanned<Uncached>>,
    controller: Spanned<Controller>,
    node: Vec<Spanned<NodeEntry>>,
    #[serde(default)]
    link: Vec<Spanned<LinkEntry>>,
    #[serde(default)]
    route: Vec<Spanned<RouteEntry>>,
    distances: Option<Spanned<Vec<Vec<u32>>>>,
    #[serde(default)]
    cpu_numbering: CpuNumbering,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    count: usize,
    cores: usize,
    memory_mib: u64,
    controller: Option<Controller>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    /// Two nodes, joined in both directions.
    between: Option<[usize; 2]>,
    /// One direction only.
    from: Option<usize>,
    to: Option<usize>,
    gb_per_s: f64,
    hop_latency_ns: f64,
    #[serde(default)]
    message_bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteEntry {
    from: usize,
    to: usize,
    #[serde(default)]
    via: Vec<usize>,
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

    /// A preset in a JSON file with the fields of the TOML ones, as a program writes it that has measured a
    /// machine.
    pub fn load_json(path: impl AsRef<Path>) -> Result<Self, Error> {
        let origin = path.as_ref().display().to_string();
        let refused = |reason: String, line| Error::new(ErrorKind::Malformed, &origin, line, reason);
        let text = fs::read_to_string(path).map_err(|error| Error::unreadable(&origin, &error))?;
        let value: toml::Table =
            serde_json::from_str(&text).map_err(|error| refused(error.to_string(), Some(error.line())))?;
        let text = toml::to_string(&value).map_err(|error| refused(error.to_string(), None))?;
        // Lines of the TOML in between would lead nowhere.
        Self::parse(&text, &origin).map_err(Error::without_line)
    }

    /// The machine as JSON that [`load_json`](Preset::load_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        let cache = |cache: Option<Cache>| {
            cache.map(|cache| {
                json!({
                    "kib": cache.kib,
                    "ways": cache.ways,
                    "latency_cycles": cache.latency_cycles,
                    "cores": cache.cores,
                })
            })
        };
        // TOML, by which it is read, knows no null.
        let without_null = |mut value: Value| {
            if let Value::Object(fields) = &mut value {
                fields.retain(|_, field| !field.is_null());
            }
            value
        };
        let controller = |controller: &Controller| {
            without_null(json!({
                "idle_latency_ns": controller.idle_latency_ns,
                "service_ns": controller.service_ns,
                "write_service_ns": controller.write_service_ns,
                "banks": controller.banks,
                "bank_ns": controller.bank_ns,
                "probe_bytes": controller.probe_bytes,
            }))
        };
        let link = |link: &Link| {
            json!({
                "from": link.from,
                "to": link.to,
                "gb_per_s": link.gb_per_s,
                "hop_latency_ns": link.hop_latency_ns,
                "message_bytes": link.message_bytes,
            })
        };
        let route = |from: usize, to: usize| {
            let via: Vec<usize> = self.routes[from][to].iter().map(|&link| self.links[link].to).collect();
            json!({ "from": from, "to": to, "via": via[..via.len() - 1] })
        };
        let ends = (0..self.nodes.len()).flat_map(|from| (0..self.nodes.len()).map(move |to| (from, to)));
        let routes = ends.filter(|(from, to)| from != to).map(|(from, to)| route(from, to));
        let all = json!({
            "name": self.name,
            "about": self.about,
            "line_bytes": self.line_bytes,
            "core": {
                "ghz": self.core.ghz,
                "cycles_per_instruction": self.core.cycles_per_instruction,
                "outstanding_misses": self.core.outstanding_misses,
                "adjacent_line_prefetches": self.core.adjacent_line_prefetches,
                "snoop_cycles": self.core.snoop_cycles,
                "atomic_cycles": self.core.atomic_cycles,
            },
            "l1": cache(self.l1),
            "l2": cache(self.l2),
            "llc": cache(self.llc),
            "uncached": self.uncached.map(|times| json!({
                "local_fetch_ns": times.local_fetch_ns,
                "local_store_ns": times.local_store_ns,
                "global_fetch_ns": times.global_fetch_ns,
                "global_store_ns": times.global_store_ns,
            })),
            "controller": controller(&self.controller),
            "node": self.nodes.iter().map(|node| without_null(json!({
                "count": 1,
                "cores": node.cores,
                "memory_mib": node.memory_bytes >> 20,
                "controller": node.controller.as_ref().map(controller),
            }))).collect::<Vec<_>>(),
            "link": self.links.iter().map(link).collect::<Vec<_>>(),
            "route": routes.collect::<Vec<_>>(),
            "distances": self.distances,
            "cpu_numbering": match self.cpu_numbering {
                CpuNumbering::Contiguous => "contiguous",
                CpuNumbering::RoundRobin => "round-robin",
            },
        });
        without_null(all).to_string()
    }

    /// A preset as text; `origin` is what errors name as its place.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Error> {
        let line_at = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
        toml::from_str::<File>(text)
            .map_err(|error| {
                let at = error.span().map(|span| span.start);
                (ErrorKind::Malformed, error.message().to_string(), at)
            })
            .and_then(|file| {
                check(file).map_err(|Refusal { reason, at }| (ErrorKind::Impossible, reason, at))
            })
            .map_err(|(kind, reason, at)| Error::new(kind, origin, at.map(line_at), reason))
    }

    /// How many cores there are.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores).sum()
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

    /// The bandwidth in GB/s at which a node reads a node's memory at most, as firmware tells it: that of the
    /// controller, or of the narrowest link.
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

struct Refusal {
    reason: String,
    at: Option<usize>,
}

fn refuse<T>(at: usize, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { reason: reason.into(), at: Some(at) })
}

/// Times in ns, rates in GHz and GB/s: of machines from the first ones on to those that are not yet.
const LEAST: f64 = 1e-6;
const MOST: f64 = 1e6;

fn positive(at: usize, what: &str, value: f64) -> Result<(), Refusal> {
    if value.is_nan() || value <= 0.0 {
        refuse(at, format!("{what} is {value}, and has to be more than 0"))
    } else if !(LEAST..=MOST).contains(&value) {
        refuse(at, format!("{what} is {value:e}, not from {LEAST:e} to {MOST:e}"))
    } else {
        Ok(())
    }
}

fn at_most(at: usize, what: &str, value: u64, most: u64) -> Result<(), Refusal> {
    if value > most { refuse(at, format!("{what} is {value}, more than {most}")) } else { Ok(()) }
}

/// Whether this can be a machine.
fn check(file: File) -> Result<Preset, Refusal> {
    let line_bytes = *file.line_bytes.get_ref();
    if !line_bytes.is_power_of_two() || !(4..=4096).contains(&line_bytes) {
        return refuse(
            file.line_bytes.span().start,
            format!("line_bytes is {line_bytes}, not a power of two from 4 to 4096"),
        );
    }
    let (at, core) = (file.core.span().start, file.core.into_inner());
    positive(at, "ghz", core.ghz)?;
    positive(at, "cycles_per_instruction", core.cycles_per_instruction)?;
    let instruction_ns = core.cycles_per_instruction / core.ghz;
    if instruction_ns > MOST {
        return refuse(at, format!("an instruction takes {instruction_ns:e} ns, more than {MOST:e}"));
    }
    if !(1..=64).contains(&core.outstanding_misses) {
        return refuse(at, format!("outstanding_misses is {}, not from 1 to 64", core.outstanding_misses));
    }
    at_most(at, "snoop_cycles", core.snoop_cycles, MOST as u64)?;
    at_most(at, "atomic_cycles", core.atomic_cycles, MOST as u64)?;
    if core.adjacent_line_prefetches > 64 {
        return refuse(
            at,
            format!("adjacent_line_prefetches is {}, more than 64", core.adjacent_line_prefetches),
        );
    }
    let (at, controller) = (file.controller.span().start, file.controller.into_inner());
    check_controller(at, &controller)?;
    if let Some(uncached) = &file.uncached {
        let (at, uncached) = (uncached.span().start, uncached.get_ref());
        positive(at, "local_fetch_ns", uncached.local_fetch_ns)?;
        positive(at, "local_store_ns", uncached.local_store_ns)?;
        positive(at, "global_fetch_ns", uncached.global_fetch_ns)?;
        positive(at, "global_store_ns", uncached.global_store_ns)?;
        if file.l1.is_some() || file.l2.is_some() || file.llc.is_some() {
            return refuse(at, "a machine with caches has no uncached access times");
        }
    }
    let nodes = check_nodes(&file.node)?;
    let [l1, l2, llc] = check_caches([file.l1, file.l2, file.llc], line_bytes, &nodes)?;
    let (links, starts) = check_links(file.link, nodes.len())?;
    let mut routes = match route::shortest(nodes.len(), &links) {
        Ok(routes) => routes,
        Err((from, to)) => {
            return Err(Refusal {
                reason: format!("node {to} cannot be reached from node {from}: no links lead there"),
                at: starts.last().copied(),
            });
        }
    };
    for entry in &file.route {
        let (at, entry) = (entry.span().start, entry.get_ref());
        if entry.from >= nodes.len() || entry.to >= nodes.len() {
            return refuse(
                at,
                format!("a route between nodes {} and {} of {}", entry.from, entry.to, nodes.len()),
            );
        }
        match route::along(entry.from, &entry.via, entry.to, &links) {
            Ok(route) => routes[entry.from][entry.to] = route,
            Err((from, to)) => {
                return refuse(
                    at,
                    format!("the route takes a link from node {from} to node {to}, and there is none"),
                );
            }
        }
    }
    let distances = check_distances(file.distances, &routes)?;
    Ok(Preset {
        name: file.name,
        about: file.about,
        core,
        line_bytes,
        l1,
        l2,
        llc,
        uncached: file.uncached.map(Spanned::into_inner),
        controller,
        nodes,
        links,
        routes,
        distances,
        cpu_numbering: file.cpu_numbering,
    })
}

fn check_controller(at: usize, controller: &Controller) -> Result<(), Refusal> {
    positive(at, "the controller's idle_latency_ns", controller.idle_latency_ns)?;
    positive(at, "the controller's service_ns", controller.service_ns)?;
    let write_service_ns = controller.write_service_ns.unwrap_or(controller.service_ns);
    positive(at, "the controller's write_service_ns", write_service_ns)?;
    at_most(at, "probe_bytes", controller.probe_bytes, 4096)?;
    at_most(at, "banks", controller.banks as u64, 1 << 16)?;
    if controller.banks > 0 {
        positive(at, "bank_ns", controller.bank_ns)
    } else if controller.bank_ns != 0.0 {
        refuse(at, "bank_ns without banks")
    } else {
        Ok(())
    }
}

fn check_nodes(entries: &[Spanned<NodeEntry>]) -> Result<Vec<Node>, Refusal> {
    let mut nodes = Vec::new();
    for entry in entries {
        let (at, entry) = (entry.span().start, entry.get_ref());
        if entry.cores > MOST_CORES_A_NODE {
            return refuse(
                at,
                format!("{} cores on a node, and at most {MOST_CORES_A_NODE} are modelled", entry.cores),
            );
        }
        if entry.memory_mib == 0 || entry.memory_mib > 1 << 30 {
            return refuse(at, format!("memory_mib is {}, not from 1 to 2^30", entry.memory_mib));
        }
        if entry.count > MOST_NODES - nodes.len() {
            return refuse(at, format!("more than {MOST_NODES} nodes, and no more are modelled"));
        }
        if let Some(controller) = &entry.controller {
            check_controller(at, controller)?;
            if controller.probe_bytes > 0 {
                return refuse(at, "probe_bytes are the machine's, and no node has its own");
            }
        }
        let (memory_bytes, controller) = (entry.memory_mib << 20, entry.controller);
        nodes.extend(vec![Node { cores: entry.cores, memory_bytes, controller }; entry.count]);
    }
    if nodes.iter().all(|node| node.cores == 0) {
        return Err(Refusal { reason: "no node has cores".into(), at: None });
    }
    Ok(nodes)
}

/// The caches of cores, and the LLC that has all that is in them.
fn check_caches(
    [l1, l2, llc]: [Option<Spanned<Cache>>; 3],
    line_bytes: u64,
    nodes: &[Node],
) -> Result<[Option<Cache>; 3], Refusal> {
    let of_cores = [&l1, &l2].map(|cache| cache.as_ref().map(|cache| cache.span().start));
    if let Some(llc) = &llc {
        let (at, each) = (llc.span().start, llc.get_ref().cores);
        at_most(at, "cores of the llc", each as u64, MOST_CORES_A_NODE as u64)?;
        let llcs: usize =
            nodes.iter().map(|node| if each == 0 { 1 } else { node.cores.div_ceil(each) }).sum();
        if llcs > MOST_LLCS {
            return refuse(at, format!("{llcs} LLCs, and at most {MOST_LLCS} are modelled"));
        }
    }
    let l1 = check_cache("l1", l1, line_bytes)?;
    let l2 = check_cache("l2", l2, line_bytes)?;
    let llc = check_cache("llc", llc, line_bytes)?;
    for (name, at, cache) in [("l1", of_cores[0], l1), ("l2", of_cores[1], l2)] {
        match (at.zip(cache), llc) {
            (Some((at, Cache { cores: 1.., .. })), _) => {
                return refuse(
                    at,
                    format!("{name} is each core's own: only an llc is that of several cores"),
                );
            }
            (Some((at, _)), None) => {
                return refuse(at, format!("{name} needs an llc, which knows who holds a line"));
            }
            (Some((at, cache)), Some(llc)) if cache.kib > llc.kib => {
                let (kib, holds) = (cache.kib, llc.kib);
                return refuse(
                    at,
                    format!(
                        "{name} of {kib} KiB is larger than the llc of {holds} KiB, which has all that is in it"
                    ),
                );
            }
            _ => {}
        }
    }
    Ok([l1, l2, llc])
}

fn check_cache(name: &str, cache: Option<Spanned<Cache>>, line_bytes: u64) -> Result<Option<Cache>, Refusal> {
    let Some(cache) = cache else { return Ok(None) };
    let (at, cache) = (cache.span().start, cache.into_inner());
    if !(1..=64).contains(&cache.ways) {
        return refuse(at, format!("{name} has {} ways, not from 1 to 64", cache.ways));
    }
    if cache.kib > 4 << 20 || cache.kib * 1024 < cache.ways as u64 * line_bytes {
        return refuse(at, format!("{name} of {} KiB: smaller than a set, or more than 4 GiB", cache.kib));
    }
    at_most(at, &format!("latency_cycles of {name}"), cache.latency_cycles, MOST as u64)?;
    Ok(Some(cache))
}

fn check_links(entries: Vec<Spanned<LinkEntry>>, nodes: usize) -> Result<(Vec<Link>, Vec<usize>), Refusal> {
    let (mut links, mut starts): (Vec<Link>, Vec<usize>) = (Vec::new(), Vec::new());
    for entry in entries {
        let (at, entry) = (entry.span().start, entry.into_inner());
        let ends = match (entry.between, entry.from, entry.to) {
            (Some([one, other]), None, None) => vec![(one, other), (other, one)],
            (None, Some(from), Some(to)) => vec![(from, to)],
            _ => return refuse(at, "a link is `between = [a, b]`, or has `from` and `to`"),
        };
        for (from, to) in ends {
            if from >= nodes || to >= nodes || from == to {
                return refuse(
                    at,
                    format!("a link from node {from} to node {to} on a machine of {nodes} nodes"),
                );
            }
            positive(at, &format!("bandwidth of the link from node {from} to node {to}"), entry.gb_per_s)?;
            if !(0.0..=MOST).contains(&entry.hop_latency_ns) {
                return refuse(
                    at,
                    format!("hop_latency_ns is {:e}, not from 0 to {MOST:e}", entry.hop_latency_ns),
                );
            }
            if links.iter().any(|link| (link.from, link.to) == (from, to)) {
                return refuse(
                    at,
                    format!("a second link from node {from} to node {to}: give one the bandwidth of both"),
                );
            }
            if entry.message_bytes > 4096 {
                return refuse(at, format!("message_bytes is {}, more than 4096", entry.message_bytes));
            }
            links.push(Link {
                from,
                to,
                gb_per_s: entry.gb_per_s,
                hop_latency_ns: entry.hop_latency_ns,
                message_bytes: entry.message_bytes,
            });
            starts.push(at);
        }
    }
    Ok((links, starts))
}

/// As given, or 10 and 10 more for every hop.
fn check_distances(
    given: Option<Spanned<Vec<Vec<u32>>>>,
    routes: &[Vec<Vec<usize>>],
) -> Result<Vec<Vec<u32>>, Refusal> {
    let Some(given) = given else {
        return Ok(routes
            .iter()
            .map(|row| row.iter().map(|route| 10 + 10 * route.len() as u32).collect())
            .collect());
    };
    let (at, given) = (given.span().start, given.into_inner());
    if given.len() != routes.len() || given.iter().any(|row| row.len() != routes.len()) {
        return refuse(at, format!("distances are not {0} rows of {0}", routes.len()));
    }
    for (node, row) in given.iter().enumerate() {
        if row[node] != 10 || row.iter().any(|&distance| !(10..=254).contains(&distance)) {
            return refuse(at, format!("distances of node {node}: 10 to itself, 10 to 254 to others"));
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests;
