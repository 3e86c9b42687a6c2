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
    /// Memory in use, as far as samples tell, which may be a part of it.
    pub used_bytes: Option<u64>,
    /// Resident memory of the process.
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
    /// Support for NUMA that is switched off in silence, and whatever else is in the way.
    pub notes: Vec<String>,
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
    let command = match verdict {
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
            Remedy::Interleave => all / nodes as f64,
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
    let (Some(imbalance), true) = (evidence.imbalance_percent, evidence.nodes > 1) else { return 0.0 };
    let nodes = evidence.nodes as f64;
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
    let fits = evidence.resident_bytes.zip(evidence.cache_bytes).is_some_and(|(all, cache)| all <= cache);
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
    (
        Verdict::Hurt,
        format!(
            "Yes: {far:.0} % of its accesses go to another node's memory, which costs {up_to} {cost:.0} % of its time. \
             The pages are {cause}; Nodewise {change}."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy program on four nodes, whose memory is where it was asked to be.
    fn evidence(local_percent: f64) -> Evidence {
        Evidence {
            seconds: 30.0,
            cpu_percent: 390.0,
            nodes: 4,
            samples: 5000,
            sampler: "hint faults".to_owned(),
            local_percent: Some(local_percent),
            imbalance_percent: Some(0.0),
            resident_bytes: Some(1 << 30),
            cache_bytes: Some(16 << 20),
            far_ratio: 2.0,
            far_source: "firmware's distances".to_owned(),
            hidden_percent: Some(1.0),
            ..Evidence::default()
        }
    }

    fn verdict_of(evidence: Evidence) -> (Verdict, String) {
        let diagnosis = diagnose(42, evidence);
        (diagnosis.verdict, diagnosis.text)
    }

    #[test]
    fn misplaced_memory_hurts_by_distance_and_by_the_queue() {
        // 75 % far at twice the time: 1.75 times longer, of which 43 % are the way.
        let far = Evidence { to_collocate: 8, ..evidence(25.0) };
        let diagnosis = diagnose(42, far.clone());
        assert_eq!((diagnosis.verdict, diagnosis.remedy), (Verdict::Hurt, Some(Remedy::Collocate)));
        assert!((diagnosis.cost_percent.unwrap() - 42.86).abs() < 0.01, "{diagnosis:?}");
        assert_eq!(diagnosis.command.as_deref(), Some("nodewise attach 42"));
        // All on one of four nodes (200 %): three quarters of the time are the queue.
        let queued = diagnose(42, Evidence { imbalance_percent: Some(200.0), ..far });
        assert!((queued.cost_percent.unwrap() - 75.0).abs() < 1e-9, "{queued:?}");
        let shared = Evidence { to_interleave: 3, imbalance_percent: Some(200.0), ..evidence(25.0) };
        assert_eq!(diagnose(42, shared).remedy, Some(Remedy::Interleave));
        // More ranges were to be spread at first, and next to all that is far has one user.
        let mixed = Evidence {
            to_collocate: 5,
            to_interleave: 8,
            collocation_adds_percent: Some(74.3),
            imbalance_percent: Some(175.0),
            ..evidence(25.6)
        };
        assert_eq!(diagnose(42, mixed.clone()).remedy, Some(Remedy::Collocate));
        let mostly_shared = Evidence { collocation_adds_percent: Some(20.0), ..mixed };
        assert_eq!(diagnose(42, mostly_shared).remedy, Some(Remedy::Interleave));
        // The engine had not come to what is shared yet.
        let early = Evidence {
            to_collocate: 3,
            collocation_adds_percent: Some(0.0),
            imbalance_percent: Some(196.0),
            ..evidence(25.0)
        };
        assert_eq!(diagnose(42, early.clone()).remedy, Some(Remedy::Interleave));
        let even = Evidence { imbalance_percent: Some(20.0), ..early };
        assert_eq!(diagnose(42, even).remedy, Some(Remedy::Collocate));
        // The kernel was quicker than the engine.
        let moved = Evidence { local_at_end_percent: Some(80.0), ..evidence(25.0) };
        assert_eq!(diagnose(42, moved).remedy, Some(Remedy::Collocate));
        // Where the memory lies at the end is not known, but who uses it is.
        let large = Evidence { collocation_adds_percent: Some(74.0), ..evidence(25.0) };
        assert_eq!(diagnose(42, large).remedy, Some(Remedy::Collocate));
        let split = Evidence { falsely_shared: 3, to_interleave: 9, ..evidence(25.0) };
        assert_eq!(diagnose(42, split).remedy, Some(Remedy::Split));
    }

    #[test]
    fn a_cost_that_was_measured_is_no_bound() {
        let matrix = |of: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
            (0..4).map(|from| (0..4).map(|to| of(from, to)).collect()).collect()
        };
        let ways = matrix(&|from, to| if from == to { 300.0 } else { 400.0 });
        let accesses = matrix(&|_, to| if to == 0 { 1e6 } else { 0.0 });
        // Each access is waited for, 375 cycles in the mean, after 125 others.
        let (cycles, work_cycles) = (4e6 * 500.0, 4e6 * 125.0);
        let load = Load {
            accesses,
            latencies: ways.clone(),
            ways,
            cycles,
            work_cycles,
            cpus: 4.0,
            in_order: 0.0,
            taken: Vec::new(),
            lines_taken: Vec::new(),
            cached: Vec::new(),
            line_cycles: None,
            bank_cycles: None,
        };
        let far = Evidence { to_collocate: 8, load: Some(load), ..evidence(25.0) };
        let Diagnosis { verdict, text, cost_percent, cost_is_bound, .. } = diagnose(42, far.clone());
        // The far ones take 525 cycles, and then 425.
        assert!(verdict == Verdict::Hurt && !cost_is_bound && text.contains("costs about 19 %"), "{text}");
        assert!((cost_percent.unwrap() - 100.0 * 100.0 / 525.0).abs() < 0.1, "{cost_percent:?}");
        let spread = Evidence { to_collocate: 0, to_interleave: 8, ..far.clone() };
        let Diagnosis { verdict, text, .. } = diagnose(42, spread);
        assert!(verdict == Verdict::Healthy && text.contains("about 4.8 %"), "{text}");
        // Some of its memory has one user, and only that gains.
        let hardly = Evidence { collocation_adds_percent: Some(2.0), to_interleave: 3, ..far.clone() };
        let Diagnosis { verdict, text, .. } = diagnose(42, hardly.clone());
        assert!(verdict == Verdict::Healthy && text.contains("about 4.8 %"), "{text}");
        let private = Evidence { to_interleave: 0, ..hardly };
        let text = diagnose(42, private).text;
        assert!(text.contains("about 0.5 %"), "{text}");
        // A queue that was not measured is none.
        let shared = Evidence {
            to_collocate: 0,
            local_at_end_percent: Some(25.0),
            imbalance_percent: Some(170.0),
            ..far
        };
        assert_eq!(diagnose(42, shared).verdict, Verdict::Healthy);
    }

    #[test]
    fn the_healthy_get_silence() {
        let healthy = |evidence: Evidence| {
            let diagnosis = diagnose(42, evidence);
            assert!(diagnosis.text.starts_with("Nothing to do here: "), "{}", diagnosis.text);
            assert_eq!(
                (diagnosis.verdict, diagnosis.remedy, diagnosis.command),
                (Verdict::Healthy, None, None)
            );
            diagnosis.text
        };
        healthy(evidence(99.0));
        // Memory that is far and cannot be nearer: shared by all, and spread.
        let spread = Evidence { local_at_end_percent: Some(27.0), ..evidence(25.0) };
        assert!(healthy(spread.clone()).contains("no other place is better"));
        // The engine saw its first look only: the kernel's balancing has spread it since.
        let even = Evidence { to_interleave: 9, imbalance_percent: Some(23.0), ..spread };
        assert!(!healthy(even.clone()).contains("copy"));
        let copies = Evidence { local_with_copies_percent: Some(99.0), ..even };
        assert!(healthy(copies).contains("would make 99 % near"));
        // Samples came of one node's part first, and one page of it looked shared.
        let near = Evidence { to_interleave: 1, imbalance_percent: Some(80.0), ..evidence(99.6) };
        assert!(healthy(Evidence { collocation_adds_percent: Some(0.1), ..near }).contains("are near"));
        // Little can be gained: 4 % far.
        healthy(Evidence { to_collocate: 1, ..evidence(96.0) });
        assert!(
            healthy(Evidence { cpu_percent: 1.0, to_collocate: 9, ..evidence(0.0) })
                .contains("1.0 % of one CPU")
        );
        healthy(Evidence { nodes: 1, ..evidence(0.0) });
        healthy(Evidence { resident_bytes: Some(1 << 20), to_collocate: 9, ..evidence(0.0) });
        let quiet = Evidence { local_percent: None, samples: 3, cpu_percent: 8.0, ..evidence(0.0) };
        assert!(healthy(quiet).contains("hardly works"));
    }

    /// Below 5 % there is no finding, and above there is.
    #[test]
    fn five_percent_is_where_findings_begin() {
        let at = |local| verdict_of(Evidence { to_collocate: 9, ..evidence(local) }).0;
        // 5 % of the time are 5.26 % of far accesses at twice the time.
        assert_eq!((at(94.8), at(94.7)), (Verdict::Healthy, Verdict::Hurt));
    }

    #[test]
    fn what_cannot_be_seen_is_not_called_healthy() {
        let blind = Evidence { local_percent: None, samples: 3, hidden_percent: Some(97.0), ..evidence(0.0) };
        let (verdict, text) = verdict_of(blind);
        assert!(verdict == Verdict::Unknown && text.contains("97 % of its memory is bound"), "{text}");
        let why = Some("only 150 samples tell who uses the memory".to_owned());
        let few = Evidence { local_percent: None, samples: 150, unknown: why, ..evidence(0.0) };
        assert_eq!(verdict_of(few).0, Verdict::Unknown);
        // The part that samples show may be small, and the memory large.
        let part = Evidence { used_bytes: Some(1 << 20), to_collocate: 9, ..evidence(0.0) };
        assert_eq!(verdict_of(part).0, Verdict::Hurt);
        let busy = Evidence { local_percent: None, samples: 3, ..evidence(0.0) };
        assert_eq!(verdict_of(busy).0, Verdict::Unknown);
        // One node serves all, and nothing was decided.
        let idle = Evidence { imbalance_percent: Some(200.0), ..evidence(25.0) };
        assert_eq!(verdict_of(idle).0, Verdict::Unknown);
        // There is so much memory that most of it has not shown yet.
        let (unknown, resident_bytes) = (Some("not all".to_owned()), Some(1 << 40));
        let large = Evidence { unknown, resident_bytes, ..evidence(25.0) };
        let Diagnosis { verdict, text, command, .. } = diagnose(42, large);
        assert!(verdict == Verdict::Unknown && text.contains("75 % of its accesses are far"), "{text}");
        assert_eq!(command.unwrap(), "nodewise doctor -p 42 --seconds 1228");
        let short = Evidence { local_percent: None, samples: 3, seconds: 3.0, ..evidence(0.0) };
        assert_eq!(verdict_of(short).0, Verdict::Unknown);
    }

    /// A busy program whose memory is where it is used, with so much of its CPU time in the kernel.
    fn in_kernel(balancing: f64, returning: f64, taking: f64) -> Evidence {
        let kernel = KernelTime {
            samples: 1000,
            kernel_percent: balancing + returning + taking,
            balancing_percent: balancing,
            returning_percent: returning,
            taking_percent: taking,
            faults: 1000,
            shootdowns_per_s: Some(4000.0),
            ..KernelTime::default()
        };
        let (kernel, command) = (Some(kernel), vec!["./solver".to_owned(), "a b".to_owned()]);
        Evidence { kernel, command, used_bytes: Some(64 << 20), ..evidence(99.0) }
    }

    #[track_caller]
    fn hurt_by(evidence: Evidence, remedy: Remedy, cost_percent: f64) -> Diagnosis {
        let found = diagnose(42, evidence);
        assert_eq!((found.verdict, found.remedy), (Verdict::Hurt, Some(remedy)), "{}", found.text);
        assert!((found.cost_percent.unwrap() - cost_percent).abs() < 1e-9, "{found:?}");
        found
    }

    #[test]
    fn pages_that_go_back_and_forth_cost_the_kernels_time() {
        // 64 MiB in use, and 128 moved.
        let moved = |pages| Evidence { pages_moved_by_kernel: pages, ..in_kernel(12.0, 0.0, 0.0) };
        let found = hurt_by(moved(32 << 10), Remedy::StopBalancing, 12.0);
        assert!(found.text.contains("moved 128 MiB, which is 2 times"), "{}", found.text);
        assert!(!found.cost_is_bound);
        // On their way to their users, once.
        assert_eq!(diagnose(42, moved(16 << 10)).verdict, Verdict::Healthy);
        // Whatever the engine would do with them meanwhile.
        let also = Evidence { to_collocate: 8, local_percent: Some(25.0), ..moved(32 << 10) };
        hurt_by(also, Remedy::StopBalancing, 12.0);
        let little = Evidence { pages_moved_by_kernel: 32 << 10, ..in_kernel(4.9, 0.0, 0.0) };
        assert_eq!(diagnose(42, little).verdict, Verdict::Healthy);
    }

    #[test]
    fn memory_that_is_taken_again_and_again_is_to_be_kept() {
        let found = hurt_by(in_kernel(0.0, 4.0, 90.0), Remedy::KeepMemory, 94.0);
        assert!(found.text.contains("4000 times a second"), "{}", found.text);
        assert!(found.command.unwrap().ends_with(" ./solver 'a b'"));
        // A program that fills its memory, and one that gives hardly any back.
        let mut fills = in_kernel(0.0, 4.0, 50.0);
        fills.kernel.as_mut().unwrap().grown_bytes = 600 * 4096;
        for healthy in [fills, in_kernel(0.0, 0.1, 50.0), in_kernel(0.0, 2.0, 2.9)] {
            assert_eq!(diagnose(42, healthy).verdict, Verdict::Healthy);
        }
        // The larger cost is named.
        let far = Evidence { to_collocate: 8, local_percent: Some(25.0), ..in_kernel(0.0, 2.0, 20.0) };
        assert_eq!(diagnose(42, far).remedy, Some(Remedy::Collocate));
        let idle = Evidence { cpu_percent: 1.0, ..in_kernel(0.0, 4.0, 90.0) };
        assert_eq!(diagnose(42, idle).verdict, Verdict::Healthy);
    }

    #[test]
    fn lines_that_nodes_take_from_each_other_are_named() {
        let small = Evidence { resident_bytes: Some(1 << 20), ..evidence(30.0) };
        let found = hurt_by(Evidence { taken_percent: Some(40.0), ..small.clone() }, Remedy::Privatise, 40.0);
        assert!(found.cost_is_bound && found.command.unwrap().starts_with("nodewise profile -p 42"));
        // Half of that time is hidden behind instructions.
        let near =
            |of: f64| (0..4).map(|a| (0..4).map(|b| if a == b { of } else { 0.0 }).collect()).collect();
        let load = Load {
            accesses: near(1e6),
            latencies: near(300.0),
            ways: near(300.0),
            cycles: 4e6 * 1000.0,
            work_cycles: 4e6 * 600.0,
            cpus: 4.0,
            in_order: 0.0,
            taken: vec![5e8; 4],
            lines_taken: Vec::new(),
            cached: Vec::new(),
            line_cycles: None,
            bank_cycles: None,
        };
        let measured = Evidence { taken_percent: Some(62.5), load: Some(load), ..small.clone() };
        let found = diagnose(42, measured);
        assert!(found.text.contains("costs about 25 %") && !found.cost_is_bound, "{}", found.text);
        assert_eq!(diagnose(42, Evidence { taken_percent: Some(19.0), ..small }).verdict, Verdict::Healthy);
    }

    #[test]
    fn a_disk_that_is_far_from_all_threads_is_named() {
        let disk = Disk {
            file: "/data/base".to_owned(),
            node: 2,
            cpus: "8-11".to_owned(),
            bytes_per_s: 1e9,
            runs_there_percent: 0.0,
        };
        let reads = |disk| Evidence { disk: Some(disk), cpu_percent: 3.0, ..evidence(99.0) };
        let found = diagnose(42, reads(disk.clone()));
        assert_eq!((found.verdict, found.remedy), (Verdict::Unknown, Some(Remedy::RunNearDisk)));
        assert_eq!(found.command.as_deref(), Some("taskset -apc 8-11 42"));
        assert!(found.text.contains("1000 MB a second") && found.text.contains("node 2"), "{}", found.text);
        for near in [
            Disk { runs_there_percent: 50.0, ..disk.clone() },
            Disk { bytes_per_s: 1e7, ..disk.clone() },
            Disk { cpus: String::new(), ..disk },
        ] {
            assert_eq!(diagnose(42, reads(near)).verdict, Verdict::Healthy);
        }
    }
}
