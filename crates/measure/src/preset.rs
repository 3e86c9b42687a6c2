//! The figures as a machine for the simulator and for modelled guests.

use crate::error::{Error, ErrorKind};
use crate::figure::Figure;
use crate::machine::CacheFacts;
use crate::results::{NodeFacts, Results};
use crate::slice::LINE_BYTES;
use crate::stream::Traffic;
use std::fmt::Write as _;

/// Most nodes of a simulated machine (`MOST_NODES` in `nodewise-hardware`).
const MOST_NODES: usize = 64;
/// Most cores of a simulated node (`MOST_CORES_A_NODE` there).
const MOST_CORES: usize = 256;
/// Most last-level caches of a simulated machine (`MOST_LLCS` there).
const MOST_LLCS: usize = 64;
/// Most misses that a simulated core has outstanding.
const MOST_MISSES: f64 = 64.0;
/// Most ways of a simulated cache.
const MOST_WAYS: u64 = 64;

/// A machine in TOML, with the source of each figure. Each pair of nodes has links of its own, as no
/// measurement tells which pairs share one.
///
/// # Errors
/// [`ErrorKind::Incomplete`] if idle latency, bandwidth or the core was not measured, or if the simulator has
/// no such machine.
pub fn text(results: &Results) -> Result<String, Error> {
    let incomplete = |reason: &str| Error::new(ErrorKind::Incomplete, reason);
    let nodes: Vec<&NodeFacts> = results.nodes.iter().filter(|node| node.memory_bytes >> 20 > 0).collect();
    if nodes.len() > MOST_NODES {
        let (found, most) = (nodes.len(), MOST_NODES);
        return Err(incomplete(&format!("{found} nodes, and the simulator has machines of at most {most}")));
    }
    let core = results.core.as_ref().ok_or_else(|| incomplete("a preset needs the figures of a core"))?;
    let local = Local::of(results, &nodes).ok_or_else(|| {
        incomplete("a preset needs idle latency and bandwidth of a node with CPUs and memory")
    })?;
    let ghz = core.additions_per_ns.median;
    let cycles = |ns: f64| (ns * ghz).round().max(0.0) as u64;
    let by = format!("measured by nodewise measure {}", results.version);

    let mut out = String::new();
    let count = nodes.len();
    let plural = if count == 1 { "" } else { "s" };
    let _ = write!(
        out,
        "name = \"measured\"\nabout = \"{count} node{plural}, {by}\"\nline_bytes = {LINE_BYTES}\n"
    );
    distances(&mut out, results, &nodes);

    // Little's law: as many lines are on their way as come in the time that one takes.
    let misses = local.one_thread_mb_per_s / 1000.0 * local.latency_ns / LINE_BYTES as f64;
    let _ = write!(
        out,
        "\n[core]\n\
         ghz = {ghz:.3} # {by}: additions that wait for each other, one a cycle\n\
         cycles_per_instruction = 1.0 # estimate\n\
         outstanding_misses = {:.0} # {by}: bandwidth of one thread times idle latency, in lines\n",
        misses.round().clamp(1.0, MOST_MISSES)
    );
    let of_core = caches(results, &core.cache_latency_ns);
    let llc_cycles = of_core.last().map_or(0, |(_, _, latency)| cycles(latency.median));
    let handed = results.cache_to_cache.iter().find(|row| row.modified && row.owner_node == row.reader_node);
    if let Some(handed) = handed {
        let snoop = cycles(handed.latency_ns.median).saturating_sub(llc_cycles);
        let _ =
            writeln!(out, "snoop_cycles = {snoop} # {by}: a modified line from core to core, less the LLC");
    }
    if of_core.is_empty() {
        // Machines without caches are machines of long ago, and modelled guests refuse them.
        out.push_str(
            "\n[llc]\nkib = 8192 # estimate\nways = 16 # estimate\nlatency_cycles = 40 # estimate\n",
        );
    }
    for (name, cache, latency) in of_core {
        let of_a_die = if name == "llc" { cores_of_a_die(cache, &nodes) } else { None };
        // A node whose caches are too many for the simulator has one of their size.
        let is_sum = name == "llc" && of_a_die.is_none();
        let bytes = if is_sum { cache.node_bytes.max(cache.size_bytes) } else { cache.size_bytes };
        let (ways, source) = match cache.ways {
            Some(ways) => (ways.clamp(1, MOST_WAYS), "sysfs"),
            None => (16, "estimate"),
        };
        let _ = write!(
            out,
            "\n[{name}]\n\
             kib = {} # sysfs\n\
             ways = {ways} # {source}\n\
             latency_cycles = {} # {by}: {:.1} ns\n",
            (bytes >> 10).max(ways * LINE_BYTES as u64 / 1024).max(1),
            cycles(latency.median),
            latency.median
        );
        if let Some(cores) = of_a_die {
            let _ = writeln!(
                out,
                "cores = {cores} # sysfs: {} caches a node",
                cache.node_bytes / cache.size_bytes
            );
        }
    }

    let service_ns = LINE_BYTES as f64 * 1000.0 / local.reads_mb_per_s;
    let _ = write!(
        out,
        "\n[controller]\n\
         idle_latency_ns = {:.2} # {by}\n\
         service_ns = {service_ns:.4} # {by}: {:.0} MB/s of reads\n",
        local.latency_ns, local.reads_mb_per_s
    );
    if let Some(mixed) = local.mixed_mb_per_s {
        let write_ns = 2.0 * LINE_BYTES as f64 * 1000.0 / mixed - service_ns;
        if write_ns > 0.0 {
            let _ = writeln!(out, "write_service_ns = {write_ns:.4} # {by}: {mixed:.0} MB/s of 1:1");
        }
    }
    for node in &nodes {
        let cores = node.cpus.min(MOST_CORES);
        let left_out =
            if cores < node.cpus { format!(", and {} more", node.cpus - cores) } else { String::new() };
        let _ = write!(
            out,
            "\n[[node]]\ncount = 1 # sysfs: node {}\ncores = {cores} # sysfs{left_out}\nmemory_mib = {} # sysfs\n",
            node.id,
            node.memory_bytes >> 20
        );
    }
    links(&mut out, results, &nodes, local.latency_ns, &by);
    Ok(out)
}

/// Cores that share a last-level cache, if a node has several and the simulator has machines of so many.
fn cores_of_a_die(llc: CacheFacts, nodes: &[&NodeFacts]) -> Option<usize> {
    let cores = |node: &&NodeFacts| node.cpus.min(MOST_CORES);
    let dies = llc.node_bytes.checked_div(llc.size_bytes).filter(|&dies| dies > 1)? as usize;
    let each = nodes.iter().map(cores).max()?.div_ceil(dies).max(1);
    let all: usize = nodes.iter().map(|node| cores(node).div_ceil(each)).sum();
    (all <= MOST_LLCS).then_some(each)
}

/// The figures of a node's own memory: medians over the nodes that have CPUs and memory.
struct Local {
    latency_ns: f64,
    one_thread_mb_per_s: f64,
    reads_mb_per_s: f64,
    mixed_mb_per_s: Option<f64>,
}

impl Local {
    fn of(results: &Results, nodes: &[&NodeFacts]) -> Option<Self> {
        let median = |figure: &dyn Fn(u32) -> Option<f64>| {
            let figures: Vec<f64> = nodes.iter().filter_map(|node| figure(node.id)).collect();
            (!figures.is_empty()).then(|| Figure::of(figures).median)
        };
        let speed =
            |node, traffic| results.megabytes_per_s(node, node, traffic, false).map(|figure| figure.median);
        let one_thread = |node| {
            let mut rows = results.bandwidth.iter();
            let row = rows.find(|row| {
                (row.cpu_node, row.memory_node, row.traffic, row.threads) == (node, node, Traffic::Reads, 1)
            });
            row.map(|row| row.bandwidth_mb_per_s.median)
        };
        Some(Self {
            latency_ns: median(&|node| results.latency_ns(node, node).map(|figure| figure.median))?,
            one_thread_mb_per_s: median(&one_thread)?,
            reads_mb_per_s: median(&|node| speed(node, Traffic::Reads))?,
            mixed_mb_per_s: median(&|node| speed(node, Traffic::OneToOne)),
        })
    }
}

/// The simulator's names for some levels of caches, and their latencies.
fn caches(results: &Results, latencies: &[Figure]) -> Vec<(&'static str, CacheFacts, Figure)> {
    let names: &[&str] = match results.caches.len() {
        0 => &[],
        1 => &["llc"],
        2 => &["l1", "llc"],
        _ => &["l1", "l2", "llc"],
    };
    let levels = results.caches.iter().copied().zip(latencies.iter().copied());
    // A machine of more levels keeps its first two and its last.
    let left_out = results.caches.len() - names.len();
    let (before, last) = (names.len().saturating_sub(1), names.len().saturating_sub(1) + left_out);
    let kept = levels.enumerate().filter(|&(index, _)| index < before || index == last);
    names.iter().zip(kept).map(|(&name, (_, (cache, latency)))| (name, cache, latency)).collect()
}

/// Firmware's distances, unless they are none that a machine can have.
fn distances(out: &mut String, results: &Results, nodes: &[&NodeFacts]) {
    let place = |id| results.nodes.iter().position(|node| node.id == id);
    let rows: Option<Vec<Vec<u32>>> = nodes
        .iter()
        .map(|from| nodes.iter().map(|to| from.distances.get(place(to.id)?).copied()).collect())
        .collect();
    let possible = |rows: &Vec<Vec<u32>>| {
        rows.iter()
            .enumerate()
            .all(|(node, row)| row[node] == 10 && row.iter().all(|distance| (10..=254).contains(distance)))
    };
    if let Some(rows) = rows.filter(possible) {
        let _ = writeln!(out, "distances = {rows:?} # sysfs");
    }
}

/// A link each way between all nodes one of which has CPUs. Lines that node `to` reads from node `from` take
/// the link between them, and so does a question in the other direction.
fn links(out: &mut String, results: &Results, nodes: &[&NodeFacts], local_ns: f64, by: &str) {
    let read = |to: u32, from: u32| {
        let speed = results.megabytes_per_s(to, from, Traffic::Reads, false)?;
        Some(speed.median / 1000.0)
    };
    for (from, home) in nodes.iter().enumerate() {
        for (to, reader) in nodes.iter().enumerate().filter(|&(to, _)| to != from) {
            let speed = read(reader.id, home.id).or_else(|| read(home.id, reader.id));
            let ways = [(reader.id, home.id), (home.id, reader.id)];
            let latencies: Vec<f64> = ways
                .iter()
                .filter_map(|&(cpu, memory)| Some(results.latency_ns(cpu, memory)?.median))
                .collect();
            let (Some(gb_per_s), false) = (speed, latencies.is_empty()) else { continue };
            let remote_ns = latencies.iter().sum::<f64>() / latencies.len() as f64;
            let hop_ns = ((remote_ns - local_ns) / 2.0).max(0.0);
            let _ = write!(
                out,
                "\n[[link]]\n\
                 from = {from}\n\
                 to = {to}\n\
                 gb_per_s = {gb_per_s:.3} # {by}: reads by node {}\n\
                 hop_latency_ns = {hop_ns:.2} # {by}: half of what {remote_ns:.1} ns are more than local\n",
                reader.id
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::two_nodes;
    use nodewise_hardware::Preset;

    fn preset(results: &Results) -> Preset {
        let text = text(results).unwrap();
        Preset::parse(&text, "measured").unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn the_simulated_machine_has_the_measured_figures() {
        let preset = preset(&two_nodes());
        assert_eq!(
            (preset.nodes.len(), preset.nodes[1].cores, preset.nodes[1].memory_bytes),
            (2, 2, 8 << 30)
        );
        assert_eq!(preset.distances, [[10, 21], [21, 10]]);
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 0.01;
        assert!(near(preset.controller.idle_latency_ns, 78.55), "{:?}", preset.controller);
        assert!(near(64.0 / preset.controller.service_ns, 79.674), "{:?}", preset.controller);
        // A line read and a line written take the time of 128 bytes at 70 GB/s.
        let pair_ns = preset.controller.service_ns + preset.controller.write_service_ns.unwrap();
        assert!(near(128.0 / pair_ns, 70.0), "{:?}", preset.controller);
        for link in &preset.links {
            // There and back is what remote is more than local.
            let remote_ns = preset.controller.idle_latency_ns + 2.0 * link.hop_latency_ns;
            assert!(near(remote_ns, 144.4), "{link:?}");
            let speed = if link.to == 0 { 34.3934 } else { 34.3857 };
            assert!((link.gb_per_s - speed).abs() < 0.001, "{link:?}");
        }
        assert_eq!(preset.links.len(), 2);
        assert_eq!((preset.core.outstanding_misses, preset.core.snoop_cycles), (15, 106 - 63));
        let cache = |cache: Option<nodewise_hardware::Cache>| {
            cache.map(|cache| (cache.kib, cache.ways, cache.latency_cycles))
        };
        assert_eq!(cache(preset.l1), Some((32, 8, 4)));
        assert_eq!(cache(preset.l2), Some((1024, 16, 15)));
        assert_eq!(cache(preset.llc), Some((22 << 10, 11, 63)));
        assert!(near(preset.core.ghz, 2.1));
    }

    #[test]
    fn every_figure_has_its_source() {
        let text = text(&two_nodes()).unwrap();
        let own = ["name", "about", "line_bytes", "from", "to"];
        for line in text.lines().filter(|line| line.contains(" = ")) {
            let field = line.split(" = ").next().unwrap();
            assert!(line.contains(" # ") || own.contains(&field), "{line}");
        }
    }

    #[test]
    fn odd_machines_are_machines_too() {
        // Memory alone on node 1.
        let mut results = two_nodes();
        results.nodes[1].cpus = 0;
        results.idle_latency.retain(|row| row.cpu_node == 0);
        results.bandwidth.retain(|row| row.cpu_node == 0);
        let machine = preset(&results);
        assert_eq!((machine.nodes[1].cores, machine.links.len()), (0, 2));
        // No memory on node 1.
        let mut results = two_nodes();
        results.nodes[1].memory_bytes = 0;
        assert_eq!(preset(&results).nodes.len(), 1);
        // Fewer caches than three, or none that the kernel tells of, and more.
        for (levels, l1, l2) in [(0, false, false), (1, false, false), (2, true, false), (3, true, true)] {
            let mut results = two_nodes();
            results.caches.truncate(levels);
            let machine = preset(&results);
            assert_eq!((machine.l1.is_some(), machine.l2.is_some(), machine.llc.is_some()), (l1, l2, true));
        }
        let mut results = two_nodes();
        let (size_bytes, node_bytes) = (128 << 20, 128 << 20);
        results.caches.push(CacheFacts { level: 4, size_bytes, node_bytes, ..results.caches[2] });
        results.core.as_mut().unwrap().cache_latency_ns.push(crate::results::tests::figure(50.0));
        let machine = preset(&results);
        assert_eq!(machine.llc.map(|cache| (cache.kib, cache.latency_cycles)), Some((128 << 10, 105)));
        // Distances that firmware made up.
        results.nodes[0].distances = vec![0, 0];
        assert_eq!(preset(&results).distances, [[10, 20], [20, 10]]);
        // Three dies a node, and more dies than a simulated machine has.
        let llc_of = |dies: u64| {
            let mut results = two_nodes();
            results.nodes.iter_mut().for_each(|node| node.cpus = 99);
            results.caches[2] =
                CacheFacts { node_bytes: dies * (32 << 20), size_bytes: 32 << 20, ..results.caches[2] };
            let machine = preset(&results);
            let llcs = machine.llcs_of_cores().last().map_or(0, |last| last + 1);
            (machine.llc.map_or(0, |llc| llc.kib), llcs)
        };
        assert_eq!(llc_of(1), (32 << 10, 2));
        assert_eq!(llc_of(3), (32 << 10, 6));
        assert_eq!(llc_of(33), (33 * (32 << 10), 2));
        // As many CPUs as no simulated node has.
        results.nodes[0].cpus = 300;
        assert_eq!(preset(&results).nodes[0].cores, 256);
    }

    #[test]
    fn figures_that_are_not_there_are_missed() {
        let kind = |results: &Results| text(results).unwrap_err().kind();
        let core = Results { core: None, ..two_nodes() };
        let bandwidth = Results { bandwidth: Vec::new(), ..two_nodes() };
        let latency = Results { idle_latency: Vec::new(), ..two_nodes() };
        for results in [core, bandwidth, latency] {
            assert_eq!(kind(&results), ErrorKind::Incomplete);
        }
        let mut many = two_nodes();
        many.nodes = vec![many.nodes[0].clone(); 65];
        assert_eq!(kind(&many), ErrorKind::Incomplete);
    }
}
