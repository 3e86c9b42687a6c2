//! The TOML file of a machine: its fields, and the checks that there can be such a machine.

use super::{
    Cache, Controller, Core, CpuNumbering, MOST_CORES_A_NODE, MOST_LLCS, MOST_NODES, Node, Preset, Uncached,
};
use crate::link::Link;
use crate::{Error, ErrorKind, route};
use serde::Deserialize;
use toml::Spanned;

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
    if !(1..=2).contains(&core.threads) {
        return refuse(at, format!("threads is {}, and a core has 1 or 2", core.threads));
    }
    if !(1.0..=core.threads as f64).contains(&core.smt_speedup) {
        return refuse(at, format!("smt_speedup is {}, not from 1 to {}", core.smt_speedup, core.threads));
    }
    if core.outstanding_misses < core.threads {
        return refuse(at, "outstanding_misses is 1, and two threads need one each");
    }
    if core.threads > 1 && file.uncached.is_some() {
        return refuse(at, "a machine without caches has one thread a core");
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
