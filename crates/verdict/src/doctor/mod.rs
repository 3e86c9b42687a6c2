//! A running program: does NUMA hurt it, how much at most, and what to do.

mod causes;

pub use causes::{Disk, KernelTime};

use crate::load::Load;
use serde::Serialize;

/// A gain below this share of time is no finding, in percent.
pub const LEAST_PERCENT: f64 = 5.0;
/// Controllers are unevenly loaded from this imbalance on, in percent (CACM 2015).
const UNEVEN_PERCENT: f64 = 35.0;
/// A program that uses less of one CPU than this share of the time waits for nothing but work.
const IDLE_PERCENT: f64 = 5.0;
/// The same of one whose memory is hardly accessed.
const QUIET_PERCENT: f64 = 25.0;

/// Everything that was seen of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// How long it was watched.
    pub seconds: f64,
    /// Its CPU time meanwhile, in percent of one CPU.
    pub cpu_percent: f64,
    /// Nodes with memory.
    pub nodes: usize,
    /// Whether each node has CPUs and memory, so that accesses should be even over it; empty if all have.
    pub balanced: Vec<bool>,
    /// Accesses that were sampled.
    pub samples: u64,
    /// The sampler.
    pub sampler: String,
    /// Share of the accesses that come from the page's own node, as memory lay when the watch began.
    pub local_percent: Option<f64>,
    /// The same as memory lay at the end: the kernel's balancing, by whose hint faults Nodewise may sample,
    /// moves pages meanwhile.
    pub local_at_end_percent: Option<f64>,
    /// By how many points that share, as of the beginning, would be larger if each page lay with the node
    /// that uses it most. Only of pages whose users are clear, or by pairs of accesses.
    pub collocation_adds_percent: Option<f64>,
    /// The same if huge pages were split first.
    pub split_adds_percent: Option<f64>,
    /// Why these are not known.
    pub unknown: Option<String>,
    /// Imbalance of the accesses that each node's memory serves, in percent.
    pub imbalance_percent: Option<f64>,
    /// How many nodes that is of: those with CPUs and memory, and others that serve accesses. None: all
    /// nodes.
    pub imbalance_nodes: Option<usize>,
    /// Memory in use, as far as samples tell, which may be a part of it.
    pub used_bytes: Option<u64>,
    /// Resident memory of the process and its descendants.
    pub resident_bytes: Option<u64>,
    /// The smallest last-level cache.
    pub cache_bytes: Option<u64>,
    /// How many times longer an access takes to another node, in the mean over nodes.
    pub far_ratio: f64,
    /// The origin of that figure.
    pub far_source: String,
    /// The time of its accesses, where that was measured.
    pub load: Option<Load>,
    /// Ranges that `nodewise attach` would move to the one node that uses them.
    pub to_collocate: u64,
    /// Ranges that it would spread, as several nodes use them.
    pub to_interleave: u64,
    /// Huge pages whose parts different nodes use.
    pub falsely_shared: u64,
    /// Share of local accesses if each node had a copy of what is only read.
    pub local_with_copies_percent: Option<f64>,
    /// Resident memory that hint faults cannot see or that nobody can move, in percent of all.
    pub hidden_percent: Option<f64>,
    /// Files that it only reads, of which hint faults do not tell; none where they are small or seen.
    pub unseen_files: Option<UnseenFiles>,
    /// Huge pages by reservation, of which hint faults do not tell either, in bytes.
    pub unseen_huge_bytes: u64,
    /// Pages that the kernel's balancing moved meanwhile, machine-wide.
    pub pages_moved_by_kernel: u64,
    /// Time that the kernel took, before Nodewise changed any of its settings.
    pub kernel: Option<KernelTime>,
    /// Share of the time of its accesses in which a line comes from another node's cache, since it was
    /// written there. It is that of the accesses where their times are not known.
    pub taken_percent: Option<f64>,
    /// The disks that it uses.
    pub disk: Option<Disk>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The Nodewise that manages it already.
    pub managed_by: Option<u32>,
    /// Support for NUMA that is switched off in silence, and whatever else is in the way.
    pub notes: Vec<String>,
}

/// Files of which hint faults do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UnseenFiles {
    /// Their pages in memory.
    pub bytes: u64,
    /// The node that has most of them.
    pub node: u32,
    /// Its share of them.
    pub node_percent: f64,
    /// Whether they lie unevenly on the nodes.
    pub are_uneven: bool,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// NUMA costs it time, and something can be done.
    Hurt,
    /// Nothing is to be done.
    Healthy,
    /// It cannot be told.
    Unknown,
}

/// The change that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Move pages to the nodes that use them.
    Collocate,
    /// Spread pages over the nodes.
    Interleave,
    /// Split huge pages, and move their parts.
    Split,
    /// Switch the kernel's NUMA balancing off.
    StopBalancing,
    /// Keep memory instead of giving it back.
    KeepMemory,
    /// Give each thread memory of its own, on lines of its own.
    Privatise,
    /// Run the threads on the node of the disk that they use.
    RunNearDisk,
}

/// The answer with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Whether NUMA hurts.
    pub verdict: Verdict,
    /// In plain words.
    pub text: String,
    /// Share of accesses that go to another node's memory.
    pub far_access_percent: Option<f64>,
    /// The time that this costs, in percent of the program's.
    pub cost_percent: Option<f64>,
    /// Whether the cost is that of a program that does nothing but wait for memory, by `far_source`, since no
    /// latencies were measured.
    pub cost_is_bound: bool,
    /// The change to make.
    pub remedy: Option<Remedy>,
    /// The command that makes it, or that finds out more.
    pub command: Option<String>,
    /// Everything that was seen.
    pub evidence: Evidence,
}

/// The answer for a process.
#[must_use]
pub fn diagnose(pid: u32, evidence: Evidence) -> Diagnosis {
    let other = causes::worst(pid, &evidence);
    let far_disk = causes::far_disk(pid, &evidence);
    let by_place = by_place(pid, evidence);
    let is_hurt = by_place.verdict == Verdict::Hurt;
    match (other, far_disk) {
        // If pages go back and forth, there is no better place for them.
        (Some(cause), _)
            if !is_hurt
                || cause.remedy == Remedy::StopBalancing
                || cause.cost_percent > by_place.cost_percent =>
        {
            by_place.with(cause, Verdict::Hurt)
        }
        (_, Some(cause)) if !is_hurt => by_place.with(cause, Verdict::Unknown),
        _ => by_place,
    }
}

impl Diagnosis {
    fn with(self, cause: causes::Cause, verdict: Verdict) -> Self {
        Self {
            verdict,
            text: cause.text,
            cost_percent: cause.cost_percent,
            cost_is_bound: cause.is_bound,
            remedy: Some(cause.remedy),
            command: Some(cause.command),
            ..self
        }
    }
}

/// The answer by where the pages lie.
fn by_place(pid: u32, evidence: Evidence) -> Diagnosis {
    let far = evidence.local_percent.map(|local| 100.0 - local);
    let remedies = remedies(&evidence);
    // The one that saves most, where that was measured.
    let measured = |&remedy: &Remedy| Some((remedy, measured_cost_percent(&evidence, remedy)?));
    let most = remedies.iter().filter_map(measured).max_by(|a, b| a.1.total_cmp(&b.1));
    let (remedy, measured) =
        most.map_or((remedies.first().copied(), None), |(of, cost)| (Some(of), Some(cost)));
    let cost = measured.or_else(|| far.map(|far| cost_percent(&evidence, far, remedy)));
    let (verdict, text) = verdict(&evidence, far, cost, measured.is_none(), remedy);
    let is_unseen = is_mostly_unseen(&evidence);
    let (verdict, text) = if is_unseen { by_part(&evidence, verdict, text) } else { (verdict, text) };
    let command = match verdict {
        Verdict::Unknown if is_unseen => evidence
            .unseen_files
            .filter(|files| files.are_uneven)
            .map(|_| format!("nodewise attach {pid} --interleave-files")),
        Verdict::Hurt if evidence.managed_by.is_some() => None,
        Verdict::Hurt => Some(format!("nodewise attach {pid}")),
        Verdict::Healthy => None,
        Verdict::Unknown => Some(format!("nodewise doctor -p {pid} --seconds {}", longer_s(&evidence))),
    };
    Diagnosis {
        verdict,
        text,
        far_access_percent: far,
        cost_percent: cost,
        cost_is_bound: measured.is_none(),
        remedy: remedy.filter(|_| verdict == Verdict::Hurt),
        command,
        evidence,
    }
}

/// Whether hint faults do not tell of more memory than they tell of.
fn is_mostly_unseen(evidence: &Evidence) -> bool {
    let files = evidence.unseen_files.map_or(0, |files| files.bytes);
    files.saturating_add(evidence.unseen_huge_bytes) > evidence.used_bytes.unwrap_or(0)
}

/// The answer by the memory that is seen, for a program that has more that is not.
fn by_part(evidence: &Evidence, verdict: Verdict, text: String) -> (Verdict, String) {
    let Evidence { sampler, nodes, cpu_percent, unseen_files, unseen_huge_bytes, .. } = evidence;
    let files = unseen_files.map(|files| format!("{} MiB of files that it only reads", files.bytes >> 20));
    let huge = format!("{} MiB of huge pages by reservation", unseen_huge_bytes >> 20);
    let what: Vec<String> = files.into_iter().chain((*unseen_huge_bytes > 0).then_some(huge)).collect();
    let what = what.join(" and ");
    let lie = unseen_files.map_or(String::new(), |files| {
        let remedy =
            if files.are_uneven { ". If all nodes read them, --interleave-files spreads them" } else { "" };
        format!("; {:.0} % of the files lie on node {}{remedy}", files.node_percent, files.node)
    });
    match verdict {
        Verdict::Hurt => (verdict, format!("{text} Not in this are {what}: {sampler} cannot see them{lie}.")),
        // It does nothing, or there is no other node.
        Verdict::Healthy if *nodes < 2 || *cpu_percent < QUIET_PERCENT => (verdict, text),
        _ => (Verdict::Unknown, format!("Cannot tell: {what} cannot be seen by {sampler}{lie}.")),
    }
}

/// So long that the kernel may go through all of the memory twice, and somewhat longer. Also much longer than
/// what was too short.
fn longer_s(evidence: &Evidence) -> u64 {
    /// The most that it marks in a second (`MAX_SCAN_WINDOW`, `kernel/sched/fair.c`, Linux 6.12).
    const MARKED_BYTES_PER_S: u64 = 2560 << 20;
    let watched_s = evidence.seconds as u64;
    (3 * evidence.resident_bytes.unwrap_or(0) / MARKED_BYTES_PER_S).max(120).max(5 * watched_s)
}

/// The changes that the engine would make, those of most ranges first, or that the kernel has begun to make
/// meanwhile.
fn remedies(evidence: &Evidence) -> Vec<Remedy> {
    let nearer = evidence.local_percent.zip(evidence.local_at_end_percent).map(|(first, last)| last - first);
    // The end is not known of a large program before the kernel has gone through all of it again.
    let nearer = nearer.or(evidence.collocation_adds_percent);
    let split = (evidence.falsely_shared > 0).then_some(Remedy::Split);
    // The few ranges with one user may be what the engine came to first.
    let few_have_one_user = evidence.collocation_adds_percent.is_some_and(|points| points < LEAST_PERCENT);
    let is_uneven = is_uneven(evidence);
    // Ranges of unlike sizes tell less than the accesses to them.
    let most_has_one_user = evidence
        .collocation_adds_percent
        .zip(evidence.local_percent)
        .is_some_and(|(adds, local)| adds >= LEAST_PERCENT && 2.0 * adds >= 100.0 - local);
    let mut ranges = if most_has_one_user && evidence.to_collocate > 0 {
        [(Remedy::Collocate, evidence.to_collocate), (Remedy::Interleave, 0)]
    } else if few_have_one_user && is_uneven {
        [(Remedy::Collocate, 0), (Remedy::Interleave, evidence.to_interleave.max(1))]
    } else {
        // A first look may have been uneven where the whole is not, as the kernel spreads pages meanwhile.
        let to_interleave = if is_uneven || (evidence.load.is_some() && is_far(evidence)) {
            evidence.to_interleave
        } else {
            0
        };
        [(Remedy::Collocate, evidence.to_collocate), (Remedy::Interleave, to_interleave)]
    };
    ranges.sort_by_key(|&(_, ranges)| std::cmp::Reverse(ranges));
    let ranges = ranges.into_iter().filter(|&(_, ranges)| ranges > 0).map(|(remedy, _)| remedy);
    let remedies: Vec<Remedy> = split.into_iter().chain(ranges).collect();
    if remedies.is_empty() && nearer.is_some_and(|points| points >= LEAST_PERCENT) {
        return vec![Remedy::Collocate];
    }
    remedies
}

/// Whether the engine would spread pages: nodes whose own memory serves them, unevenly or not, share none.
fn is_uneven(evidence: &Evidence) -> bool {
    is_far(evidence) && evidence.imbalance_percent.is_some_and(|by| by > UNEVEN_PERCENT)
}

fn is_far(evidence: &Evidence) -> bool {
    evidence.local_percent.is_some_and(|local| 100.0 - local >= LEAST_PERCENT)
}

/// The share of time that the remedy saves, by the latencies that were measured. Pages then lie with the node
/// that uses them most, or are spread.
fn measured_cost_percent(evidence: &Evidence, remedy: Remedy) -> Option<f64> {
    let load = evidence.load.as_ref()?;
    let fitted = load.fitted()?;
    let nodes = load.accesses.len();
    let is_balanced = |node: usize| evidence.balanced.get(node).copied().unwrap_or(true);
    let spread_over = (0..nodes).filter(|&node| is_balanced(node)).count().max(1) as f64;
    // The share of far accesses that stays far.
    let adds = match remedy {
        Remedy::Split => evidence.split_adds_percent,
        _ => evidence.collocation_adds_percent,
    };
    let shares = evidence.local_percent.zip(adds);
    let stays =
        shares.map_or(0.0, |(local, adds)| (1.0 - adds / (100.0 - local).max(adds.max(1e-9))).max(0.0));
    let row = |from: usize| {
        let all: f64 = load.accesses[from].iter().sum();
        let far = all - load.accesses[from][from];
        let to = |to: usize| match remedy {
            Remedy::Interleave if is_balanced(to) => all / spread_over,
            Remedy::Interleave => 0.0,
            _ if from == to => all - far * stays,
            _ => load.accesses[from][to] * stays,
        };
        (0..nodes).map(to).collect()
    };
    let after: Vec<Vec<f64>> = (0..nodes).map(row).collect();
    Some(fitted.saves(&after).most().max(0.0))
}

/// The share of time that the remedy saves, if the program does nothing but wait for memory.
///
/// Pages that move to their users save the way: an access then takes the time of a near one. Pages that are
/// spread save the queue: the busiest node's memory then serves no more than its share.
fn cost_percent(evidence: &Evidence, far_percent: f64, remedy: Option<Remedy>) -> f64 {
    let longer = far_percent / 100.0 * (evidence.far_ratio - 1.0).max(0.0);
    let by_distance = 100.0 * longer / (1.0 + longer);
    match remedy {
        None => 0.0,
        Some(Remedy::Interleave) => by_queue(evidence),
        Some(_) => by_distance.max(by_queue(evidence)),
    }
}

/// The share of time that goes to the queue at the busiest node, if bandwidth is what the program waits for.
fn by_queue(evidence: &Evidence) -> f64 {
    let nodes = evidence.imbalance_nodes.unwrap_or(evidence.nodes);
    let (Some(imbalance), true) = (evidence.imbalance_percent, nodes > 1) else { return 0.0 };
    let nodes = nodes as f64;
    // The busiest node's load over the mean, where all others have the same: solved from the deviation.
    let busiest = 1.0 + imbalance / 100.0 * (nodes - 1.0) / nodes.sqrt();
    100.0 * (1.0 - 1.0 / busiest)
}

fn verdict(
    evidence: &Evidence,
    far: Option<f64>,
    cost: Option<f64>,
    is_bound: bool,
    remedy: Option<Remedy>,
) -> (Verdict, String) {
    let healthy = |why: String| (Verdict::Healthy, format!("Nothing to do here: {why}."));
    let unknown = |why: String| (Verdict::Unknown, format!("Cannot tell: {why}."));
    let Evidence { seconds, cpu_percent, samples, sampler, .. } = evidence;
    if evidence.nodes < 2 {
        return healthy("this machine has one node with memory, so that none is far".to_owned());
    }
    if *cpu_percent < IDLE_PERCENT {
        return healthy(format!("the program used {cpu_percent:.1} % of one CPU in {seconds:.0} s"));
    }
    let (Some(far), Some(cost)) = (far, cost) else {
        if let Some(hidden) = evidence.hidden_percent.filter(|&hidden| hidden > 50.0) {
            return unknown(format!(
                "{hidden:.0} % of its memory is bound, huge by reservation or of files, which {sampler} cannot see"
            ));
        }
        let why = evidence.unknown.clone().unwrap_or_else(|| "there are too few samples".to_owned());
        // A busy program that gives no samples may also be one that cannot be seen.
        return if *samples < 100 && *seconds >= 10.0 && *cpu_percent < QUIET_PERCENT {
            healthy(format!("it hardly works, with {samples} accesses sampled in {seconds:.0} s"))
        } else {
            unknown(why)
        };
    };
    let memory = evidence.resident_bytes.map(|all| all.max(evidence.used_bytes.unwrap_or(0)));
    let fits = memory.zip(evidence.cache_bytes).is_some_and(|(all, cache)| all <= cache);
    // Accesses that took time in memory were no hits in a cache.
    if fits && evidence.load.is_none() {
        return healthy(format!("{far:.0} % of its accesses are far, and all of its memory fits in a cache"));
    }
    let by_spreading = measured_cost_percent(evidence, Remedy::Interleave);
    let queue = by_spreading.unwrap_or_else(|| if is_uneven(evidence) { by_queue(evidence) } else { 0.0 });
    if remedy.is_none() && far >= LEAST_PERCENT && queue >= LEAST_PERCENT {
        return unknown(format!(
            "{far:.0} % of its accesses are far, and one node serves most of them, but what helps was not seen"
        ));
    }
    if let (None, None, true) = (remedy, evidence.local_at_end_percent, far >= LEAST_PERCENT) {
        let why = evidence.unknown.as_deref().unwrap_or("it was watched too shortly");
        return unknown(format!("{far:.0} % of its accesses are far, but what helps was not seen: {why}"));
    }
    let Some(remedy) = remedy.filter(|_| cost >= LEAST_PERCENT) else {
        return healthy(if far < LEAST_PERCENT {
            format!("{:.0} % of its accesses are near", 100.0 - far)
        } else if remedy.is_none() {
            let copies =
                evidence.local_with_copies_percent.filter(|local| local + far >= 100.0 + LEAST_PERCENT);
            let copies = copies.map_or(String::new(), |local| {
                format!("; a copy on each node of what is only read would make {local:.0} % near")
            });
            format!(
                "{far:.0} % of its accesses are far, and no other place is better for that memory{copies}"
            )
        } else {
            let at_most = if is_bound { "at most" } else { "about" };
            format!("what can be gained is {at_most} {cost:.1} % of its time")
        });
    };
    let (cause, change) = match remedy {
        Remedy::Split => ("huge, and nodes use different parts of them", "splits them and moves the parts"),
        Remedy::Interleave => ("used by all nodes and lie unevenly on them", "spreads them"),
        _ => ("used by one node each", "moves them there"),
    };
    let up_to = if is_bound { "up to" } else { "about" };
    let by = match evidence.managed_by {
        Some(manager) => format!("Nodewise, process {manager}, manages it already and"),
        None => "Nodewise".to_owned(),
    };
    (
        Verdict::Hurt,
        format!(
            "Yes: {far:.0} % of its accesses go to another node's memory, which costs {up_to} {cost:.0} % of its time. \
             The pages are {cause}; {by} {change}."
        ),
    )
}

#[cfg(test)]
mod tests;
