//! The machine as boxes in boxes: packages, nodes, shared caches, and the CPUs in them.

use super::block::{Block, Boxed, Glyphs, Line, wrap};
use super::size;
use crate::output::shown;
use anstyle::{AnsiColor, Style};
use nodewise_topology::{Cache, CpuSet, Node, NodeIndex, Topology};
use std::cmp::Reverse;

/// How the machine is drawn.
pub struct Canvas<'a> {
    pub width: usize,
    pub glyphs: &'a Glyphs,
}

/// More parts alike than this in one box are drawn as one line.
const MOST_ALIKE: usize = 16;
/// Machines with more nodes than this are drawn with as little in each as possible; the table has the rest.
const MOST_NODES_IN_FULL: usize = 16;

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
const EDGE: Style = DIM;
const MEMORY: Style = AnsiColor::Cyan.on_default();
const DEVICES: Style = AnsiColor::Yellow.on_default();

/// A part of the machine and the smaller parts its CPUs make up.
struct Part {
    kind: Kind,
    cpus: CpuSet,
    parts: Vec<Self>,
}

#[derive(Clone)]
enum Kind {
    Machine,
    Package(Option<u32>),
    Node(NodeIndex),
    Cache(Cache),
}

/// The drawing, with a headline that counts and what all cores have in common.
pub fn draw(machine: &Topology, canvas: &Canvas) -> Block {
    let mut drawing = Block::default();
    for line in wrap(headline(machine), ", ", canvas.width) {
        drawing.push(Line::new(BOLD, line));
    }
    let private = private_caches(machine, machine.online_cpus(), canvas.glyphs);
    if let Some(caches) = &private {
        drawing.push(Line::plain(format!("each core with {caches}")));
    }
    let artist = Artist {
        machine,
        canvas,
        cores_are_alike: private.is_some() || machine.cores().is_empty(),
        compact: machine.node_count() > MOST_NODES_IN_FULL,
    };
    let tree = tree(machine);
    drawing.below(artist.flow(&tree.parts, canvas.width));
    drawing.lines.extend(artist.cpu_line(&tree.rest()));
    drawing
}

fn headline(machine: &Topology) -> Vec<String> {
    let counted: u64 = machine.nodes().iter().filter_map(|node| node.memory_total_bytes).sum();
    let memory = machine.uncounted_memory_bytes().map(|uncounted| counted.saturating_add(uncounted));
    let mut words = vec![count(machine.node_count(), "node")];
    if !machine.packages().is_empty() {
        words.push(count(machine.packages().len(), "package"));
    }
    if !machine.cores().is_empty() {
        words.push(count(machine.cores().len(), "core"));
    }
    let mut cpus = count(machine.online_cpus().len(), "CPU");
    if !machine.offline_cpus().is_empty() {
        cpus = format!("{cpus} online and {} not", machine.offline_cpus().len());
    }
    words.extend([cpus, memory.map_or_else(|| "memory unknown".into(), size)]);
    words
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The caches each core has to itself, `L2 1 MiB, L1d 32 KiB`; `None` if these cores differ, or have none.
fn private_caches(machine: &Topology, cpus: &CpuSet, glyphs: &Glyphs) -> Option<String> {
    let of_core = |core: &CpuSet| -> String {
        let private = machine.caches().iter().filter(|cache| cache.cpus.is_subset(core));
        let mut names: Vec<(String, usize)> = Vec::new();
        for cache in private {
            let name = cache_name(cache);
            match names.iter_mut().find(|(other, _)| *other == name) {
                Some((_, times)) => *times += 1,
                None => names.push((name, 1)),
            }
        }
        // Hardware threads with caches of their own.
        let names = names.into_iter().map(|(name, times)| match times {
            1 => name,
            times => format!("{times} {} {name}", glyphs.times),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let mut cores = machine.cores().iter().filter(|core| core.cpus.is_subset(cpus));
    let first = of_core(&cores.next()?.cpus);
    (!first.is_empty() && cores.all(|core| of_core(&core.cpus) == first)).then_some(first)
}

fn cache_name(cache: &Cache) -> String {
    match cache.size_bytes {
        Some(bytes) => format!("{cache} {}", size(bytes)),
        None => cache.to_string(),
    }
}

/// Sorts the parts of the machine into each other by their CPUs.
fn tree(machine: &Topology) -> Part {
    let mut root = Part { kind: Kind::Machine, cpus: machine.online_cpus().clone(), parts: Vec::new() };
    let mut parts: Vec<(Kind, CpuSet)> = Vec::new();
    parts.extend(machine.packages().iter().map(|package| (Kind::Package(package.id), package.cpus.clone())));
    let with_cpus = machine.node_indices().filter(|&index| !machine.node(index).cpus.is_empty());
    parts.extend(with_cpus.map(|index| (Kind::Node(index), machine.node(index).cpus.clone())));
    let shared = |cache: &&Cache| !machine.cores().iter().any(|core| cache.cpus.is_subset(&core.cpus));
    parts.extend(
        machine.caches().iter().filter(shared).map(|cache| (Kind::Cache(cache.clone()), cache.cpus.clone())),
    );
    // The larger contains the smaller; of equals, packages nodes, and nodes caches.
    parts.sort_by_key(|(kind, cpus)| {
        let rank = match kind {
            Kind::Machine | Kind::Package(_) => 0,
            Kind::Node(_) => 1,
            Kind::Cache(_) => 2,
        };
        (Reverse(cpus.len()), rank, cpus.first())
    });
    for (kind, cpus) in parts {
        root.insert(Part { kind, cpus, parts: Vec::new() }, &|_| true);
    }
    for index in machine.node_indices().filter(|&index| machine.node(index).cpus.is_empty()) {
        let part = Part { kind: Kind::Node(index), cpus: machine.nearest_cpus(index), parts: Vec::new() };
        // Memory stands beside the nodes it is near to, in their package.
        root.insert(part, &|kind| matches!(kind, Kind::Package(_)));
    }
    root
}

impl Part {
    /// Puts a part into the smallest one that holds its CPUs, going only into parts of allowed kinds.
    fn insert(&mut self, part: Self, into: &dyn Fn(&Kind) -> bool) {
        let holds = |candidate: &&mut Self| into(&candidate.kind) && part.cpus.is_subset(&candidate.cpus);
        match self.parts.iter_mut().find(holds) {
            Some(candidate) => candidate.insert(part, into),
            None => self.parts.push(part),
        }
    }

    /// The CPUs that are in none of its parts.
    fn rest(&self) -> CpuSet {
        self.parts.iter().fold(self.cpus.clone(), |rest, part| &rest - &part.cpus)
    }

    /// Whether a line says all there is: `L3 16 MiB: CPUs 0-7`.
    fn is_plain(&self) -> bool {
        self.parts.is_empty() && matches!(self.kind, Kind::Package(_) | Kind::Cache(_))
    }
}

struct Artist<'a> {
    machine: &'a Topology,
    canvas: &'a Canvas<'a>,
    cores_are_alike: bool,
    compact: bool,
}

impl Artist<'_> {
    fn flow(&self, parts: &[Part], width: usize) -> Block {
        let boxes = parts.iter().map(|part| self.boxed(part, width - 4)).collect();
        Block::flow(boxes, width, EDGE, self.canvas.glyphs)
    }

    /// A part in its box, whose inside is at most `width` wide.
    fn boxed(&self, part: &Part, width: usize) -> Boxed {
        let mut title = vec![self.title(part)];
        let mut body = self.facts(part, width);
        // A part with the same CPUs as the one it is alone in shares its box.
        let mut innermost = part;
        while let [only] = &innermost.parts[..] {
            if only.cpus != innermost.cpus {
                break;
            }
            title.push(self.title(only));
            body.below(self.facts(only, width));
            innermost = only;
        }
        let in_lines = innermost.parts.iter().all(Part::is_plain);
        if in_lines {
            body.lines.extend(self.plain_lines(&innermost.parts));
        }
        if !self.has_no_cpus(innermost) {
            body.lines.extend(self.cpu_line(&innermost.rest()));
        }
        if !self.cores_are_alike && innermost.parts.is_empty() {
            let caches = private_caches(self.machine, &innermost.cpus, self.canvas.glyphs);
            body.lines.extend(caches.map(|caches| Line::plain(format!("each core with {caches}"))));
        }
        if !in_lines {
            body.below(self.flow(&innermost.parts, width));
        }
        Boxed { title: Line::new(BOLD, title.join(", ")), body }
    }

    fn title(&self, part: &Part) -> String {
        match &part.kind {
            Kind::Machine => "machine".into(),
            Kind::Package(Some(id)) => format!("package {id}"),
            Kind::Package(None) => "package".into(),
            Kind::Node(index) => format!("node {}", self.machine.id_of(*index)),
            Kind::Cache(cache) => cache_name(cache),
        }
    }

    /// The facts about a part, besides its CPUs.
    fn facts(&self, part: &Part, width: usize) -> Block {
        let mut facts = Block::default();
        let Kind::Node(index) = part.kind else { return facts };
        let node = self.machine.node(index);
        facts.push(Line::new(MEMORY, self.memory(node)));
        for cache in &node.memory_side_caches {
            let bytes = cache.size_bytes.map_or_else(|| "of unknown size".into(), size);
            facts.push(Line::new(MEMORY, format!("behind a memory-side cache {bytes}")));
        }
        if node.generic_initiator {
            facts.push(Line::plain("generic initiator"));
        }
        if node.cpus.is_empty() {
            let near = self.near(index);
            facts.push(Line::plain(format!("no CPUs, {near}")));
        }
        let devices = self.machine.devices().iter().filter(|device| device.node == Some(node.id));
        let names = devices.map(|device| shown(&device.name));
        for line in wrap(names, " ", width.min(36)) {
            facts.push(Line::new(DEVICES, line));
        }
        facts
    }

    fn memory(&self, node: &Node) -> String {
        let Some(total) = node.memory_total_bytes else { return "memory unknown".into() };
        match node.memory_free_bytes.map(size) {
            _ if total == 0 => "no memory".into(),
            _ if self.compact => size(total),
            Some(free) => format!("{}, {free} free", size(total)),
            None => format!("{}, free unknown", size(total)),
        }
    }

    /// Which nodes a node without CPUs is near to.
    fn near(&self, index: NodeIndex) -> String {
        let near = self.machine.nearest_cpus(index);
        let nodes =
            self.machine.nodes().iter().filter(|node| node.cpus.intersects(&near)).map(|node| node.id);
        let nodes: nodewise_topology::NodeSet = nodes.collect();
        if nodes.is_empty() { "near no node".into() } else { format!("near node {nodes}") }
    }

    fn has_no_cpus(&self, part: &Part) -> bool {
        matches!(part.kind, Kind::Node(index) if self.machine.node(index).cpus.is_empty())
    }

    /// One line for each part, or one for all where there are many alike.
    fn plain_lines(&self, parts: &[Part]) -> Vec<Line> {
        let mut groups: Vec<(String, Vec<&Part>)> = Vec::new();
        for part in parts {
            let name = match &part.kind {
                Kind::Package(_) => "packages".into(),
                _ => format!("{} {}", self.canvas.glyphs.times, self.title(part)),
            };
            match groups.iter_mut().find(|(other, _)| *other == name) {
                Some((_, group)) => group.push(part),
                None => groups.push((name, vec![part])),
            }
        }
        let mut lines = Vec::new();
        for (name, group) in groups {
            let all = group.iter().fold(CpuSet::new(), |all, part| &all | &part.cpus);
            if self.compact {
                lines.push(Line::plain(cpus(&all)));
            } else if group.len() > MOST_ALIKE {
                lines.push(Line::plain(format!("{} in {} {name}", cpus(&all), group.len())));
            } else {
                let line = |part: &&Part| Line::plain(format!("{}: {}", self.title(part), cpus(&part.cpus)));
                lines.extend(group.iter().map(line));
            }
        }
        lines
    }

    /// The CPUs that belong to nothing smaller; `None` if there are none.
    fn cpu_line(&self, set: &CpuSet) -> Option<Line> {
        let node = self.machine.node_of_cpu(set.first()?);
        let cores = self.machine.cores().iter().filter(|core| core.cpus.is_subset(set));
        let threads: Vec<usize> = cores.map(|core| core.cpus.len()).collect();
        let mut line = Line::plain(cpus(set));
        if let Some(&each) = threads.first() {
            if each > 1 && !self.compact && threads.iter().all(|&other| other == each) {
                line = line.then(DIM, format!(", {each} a core"));
            }
        }
        Some(if node.is_none() { line.then(Style::new(), ", their node is not online") } else { line })
    }
}

fn cpus(set: &CpuSet) -> String {
    format!("{} {}", if set.len() == 1 { "CPU" } else { "CPUs" }, ranges(set))
}

/// The kernel's list, or where numbers alternate between nodes as many machines do, `0-76 by 4` instead of
/// twenty numbers.
pub fn ranges(set: &CpuSet) -> String {
    let ids: Vec<u32> = set.iter().map(|cpu| cpu.0).collect();
    if let [first, second, .., last] = ids[..] {
        let step = second - first;
        if step > 1 && ids.len() > 3 && ids.windows(2).all(|pair| pair[1] - pair[0] == step) {
            return format!("{first}-{last} by {step}");
        }
    }
    set.to_string()
}
