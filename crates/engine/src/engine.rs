//! One interval after another: observe, understand, decide, act, remember.

use crate::decision::BAND_END;
use crate::hint::Hints;
use crate::history::{History, InterleaveProgress, PatienceSettings};
use crate::metrics::{balanced_nodes, metrics};
use crate::policy::{Confined, Policy, ProcessView, View};
use crate::region::{Folios, Key, RegionMap, RegionSettings};
use crate::round::{Finding, Footprint, Metrics, Round};
use crate::sampling_schedule::{SamplingInputs, SamplingSchedule, SamplingScheduleSettings};
use crate::stale_loads::StaleLoads;
use crate::wandering::Wandering;
use crate::{
    Action, Decision, HUGE_PAGE_PAGES, Interleaving, Machine, Observation, Outcome, PageNumber, PageRange,
    Pid, SamplingRate,
};
use nodewise_topology::{NodeIndex, Topology};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How the engine works, whatever the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineSettings {
    /// How memory is watched.
    pub regions: RegionSettings,
    /// How patiently ranges are left alone after they were acted upon.
    pub patience: PatienceSettings,
    /// When to sample eagerly.
    #[serde(alias = "eagerness")]
    pub sampling_schedule: SamplingScheduleSettings,
    /// For pseudo-random choices.
    pub seed: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            regions: RegionSettings::default(),
            patience: PatienceSettings::default(),
            sampling_schedule: SamplingScheduleSettings::default(),
            seed: 1,
        }
    }
}

/// Counters and samples in, placement decisions out.
pub struct Engine {
    topology: Topology,
    policy: Box<dyn Policy>,
    settings: EngineSettings,
    processes: BTreeMap<Pid, Process>,
    round: u32,
    sampling_schedule: SamplingSchedule,
    sampling: Option<SamplingRate>,
    put_off: bool,
    stale_loads: StaleLoads,
}

struct Process {
    map: RegionMap,
    history: History,
    keys: Vec<Key>,
    /// Pages of stores that a cache served.
    stores: Vec<u64>,
    weights: u64,
    /// Falsely shared huge pages that were reported.
    reported: Vec<u64>,
    /// As the program gave them.
    given_hints: Hints,
    /// The hints among them that hold where it has memory.
    hints: Hints,
    resident_pages: u64,
    confined: Option<Confined>,
    bound: Vec<PageRange>,
    to_interleave: Vec<PageRange>,
    /// Intervals in which its threads could run on several nodes.
    roamed: u32,
    wandering: Wandering,
}

impl Process {
    /// Takes in on how many nodes its threads may run. `looked`: they were asked anew.
    fn note_confined(&mut self, now: Option<NodeIndex>, looked: bool) {
        let Some(to) = now else {
            (self.confined, self.roamed) = (None, self.roamed.saturating_add(1));
            return;
        };
        let same = self.confined.filter(|confined| confined.to == to);
        let (intervals, looks) = same.map_or((0, 0), |before| (before.intervals, before.looks));
        let looks = looks + u32::from(looked);
        self.confined =
            Some(Confined { to, intervals: intervals.saturating_add(1), looks, roamed: self.roamed });
    }
}

/// A decision to interleave and what came of it.
type InterleaveStep<'a> = (&'a Decision, &'a Interleaving, &'a Outcome);

/// Regions of all processes together, some 250 bytes each. There are as many ranges with a record of what was
/// done there, of each kind, some 200 bytes each.
const REGIONS: usize = 1 << 16;
/// Such ranges of one process: a new one is put in order among the others, which takes longer the more there
/// are.
const RANGES_EACH: usize = 1 << 13;
/// Pages that were moved on their own, of all processes together, 13 bytes each.
const SINGLED: usize = 1 << 20;

impl Engine {
    /// An engine that knows nothing of any process yet.
    #[must_use]
    pub fn new(topology: &Topology, policy: Box<dyn Policy>, settings: EngineSettings) -> Self {
        let topology = topology.clone();
        let sampling_schedule = SamplingSchedule::new(&settings.sampling_schedule);
        Self {
            topology,
            policy,
            settings,
            processes: BTreeMap::new(),
            round: 0,
            sampling_schedule,
            sampling: None,
            put_off: false,
            stale_loads: StaleLoads::default(),
        }
    }

    /// One interval: takes what the machine saw since the last call, decides, lets the machine act.
    pub fn step<M: Machine>(&mut self, machine: &mut M) -> Result<Round, M::Error> {
        let observation = machine.observe()?;
        self.ingest(&observation);
        let nodes = balanced_nodes(&self.topology, &observation.counters);
        let maps = self.processes.values().map(|process| &process.map);
        let mut metrics = metrics(&self.topology, &observation.counters, maps, &nodes);
        metrics.controller_imbalance_error +=
            self.stale_loads.next(&observation.counters, &metrics.controller_loads, observation.duration_ns);
        let processes = self.processes.iter();
        let view = View {
            topology: &self.topology,
            counters: &observation.counters,
            metrics: &metrics,
            processes: processes
                .map(|(&pid, p)| ProcessView {
                    pid,
                    map: &p.map,
                    history: &p.history,
                    hints: &p.hints,
                    resident_pages: p.resident_pages,
                    confined: p.confined,
                    bound: &p.bound,
                    to_interleave: &p.to_interleave,
                    wanders: p.wandering.is_frequent(),
                })
                .collect(),
            put_off: self.put_off || self.has_split(),
            replicates: machine.replicates(),
            splits: machine.splits(),
            round: self.round,
            seed: self.settings.seed,
        };
        let decisions = self.policy.decide(&view);
        let findings = self.findings(&decisions);
        let outcomes = if decisions.is_empty() { Vec::new() } else { machine.apply(&decisions)? };
        self.remember(&decisions, &outcomes);
        let acted: Vec<_> = decisions.into_iter().zip(outcomes).collect();
        self.put_off = acted.iter().any(|(decision, outcome)| {
            !matches!(decision.action, Action::Interleave(_))
                && !decision.action.resizes()
                && outcome.deferred > 0
        });
        self.stale_loads.note(metrics.controller_imbalance_percent.get().copied(), &acted);
        let signs = self.sampling_inputs(&observation, &metrics, &acted);
        let sampling = self.sampling_schedule.next(&signs);
        if self.sampling != Some(sampling) {
            machine.set_sampling(sampling)?;
            self.sampling = Some(sampling);
        }
        let round = Round {
            number: self.round,
            end_ns: observation.end_ns,
            duration_ns: observation.duration_ns,
            samples: observation.samples.len() as u64,
            samples_lost: observation.samples_lost,
            samples_outside: self.processes.values().map(|p| p.map.samples_outside()).sum(),
            metrics,
            rules: self.policy.rules(),
            decisions: acted,
            findings,
            sampling,
            footprint: self.footprint(),
        };
        self.round += 1;
        Ok(round)
    }

    /// The region map of a process.
    #[must_use]
    pub fn regions(&self, pid: Pid) -> Option<&RegionMap> {
        self.processes.get(&pid).map(|process| &process.map)
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Sorts samples by process and takes them in.
    fn ingest(&mut self, observation: &Observation) {
        let nodes = self.topology.node_count();
        let still = observation.processes.iter().filter(|state| !state.fresh);
        let still: BTreeSet<Pid> = still.map(|state| state.pid).collect();
        self.processes.retain(|pid, _| still.contains(pid));
        for state in &observation.processes {
            self.processes.entry(state.pid).or_insert_with(|| Process {
                map: RegionMap::new(nodes, &self.settings.regions),
                history: History::new(&self.settings.patience),
                keys: Vec::new(),
                stores: Vec::new(),
                weights: 0,
                reported: Vec::new(),
                given_hints: Hints::default(),
                hints: Hints::default(),
                resident_pages: 0,
                confined: None,
                bound: Vec::new(),
                to_interleave: Vec::new(),
                roamed: 0,
                wandering: Wandering::default(),
            });
        }
        for run in observation.samples.chunk_by(|a, b| a.pid == b.pid) {
            if let Some(process) = self.processes.get_mut(&run[0].pid) {
                process.wandering.note(run);
                process.map.samples_of(Folios::of(run));
                for sample in run.iter().filter(|sample| sample.source.is_of_memory()) {
                    process.keys.extend(Key::pack(sample, nodes));
                    process.weights += u64::from(sample.weight.max(1));
                }
                let stores = run.iter().filter(|sample| sample.is_cached_store());
                process.stores.extend(stores.map(|sample| sample.address.page().0));
            }
        }
        let tracked = self.processes.values().map(|process| process.map.records());
        let mut room = self.settings.regions.max_tracked_pages.saturating_sub(tracked.sum());
        for state in &observation.processes {
            let Some(process) = self.processes.get_mut(&state.pid) else { continue };
            let before = process.map.records();
            let (regions, singled) =
                (REGIONS / observation.processes.len(), SINGLED / observation.processes.len());
            process.map.limit(before + room, regions);
            process.history.limit(regions.min(RANGES_EACH), singled);
            let weight = process.weights as f32 / process.keys.len().max(1) as f32;
            process.map.samples_by_faults(observation.counters.are_by_faults());
            process.map.ingest(state.mappings.as_deref(), &mut process.keys, weight.max(1.0), self.round);
            room = (room + before).saturating_sub(process.map.records());
            process.map.note_stored(&process.stores);
            process.keys.clear();
            process.keys.shrink_to(1 << 12);
            process.stores.clear();
            process.stores.shrink_to(1 << 12);
            process.weights = 0;
            process.resident_pages = state.resident_pages;
            process.note_confined(state.confined, state.asked);
            process.bound.clone_from(&state.bound);
            process.to_interleave.clone_from(&state.to_interleave);
            if state.mappings.is_some() {
                let mapped: Vec<_> = process.map.mappings().iter().map(|mapping| mapping.range).collect();
                process.history.clip(&mapped);
            }
            if let Some(hints) = &state.hints {
                process.given_hints = Hints::new(hints);
            }
            state.unmoved.iter().for_each(|seen| process.history.looked(seen));
            if state.hints.is_some() || state.mappings.is_some() {
                process.hints = process.given_hints.within(process.map.mappings());
                for range in process.hints.already_interleaved() {
                    process.history.note_interleaved_by_program(range, nodes);
                }
            }
            if self.round % 64 == 0 {
                process.history.forget_calm(self.round);
            }
        }
    }

    /// Notes what was done, so that it is not done twice.
    fn remember(&mut self, decisions: &[Decision], outcomes: &[Outcome]) {
        let nodes = self.topology.node_count();
        let mut moved: BTreeMap<Pid, Vec<(PageRange, Vec<f32>)>> = BTreeMap::new();
        let mut steps: BTreeMap<(Pid, PageRange), Vec<InterleaveStep<'_>>> = BTreeMap::new();
        for (decision, outcome) in decisions.iter().zip(outcomes) {
            let Some(process) = self.processes.get_mut(&decision.pid) else { continue };
            if outcome.process_gone {
                continue;
            }
            match &decision.action {
                Action::Replicate => process.history.replicated(decision.range),
                _ if outcome.only_reported => {}
                Action::Split { pages } | Action::Collapse { pages } => {
                    let split = matches!(decision.action, Action::Split { .. });
                    // The last of them are deferred.
                    let tried = pages.len().saturating_sub((outcome.deferred / HUGE_PAGE_PAGES) as usize);
                    let numbers: Vec<u64> = pages.iter().take(tried).map(|page| page.0).collect();
                    for &page in &numbers {
                        process.history.resized(page, split, self.round);
                    }
                    process.map.resized(&numbers);
                }
                Action::Collocate { to } => {
                    if outcome.deferred == 0 {
                        process.history.collocated(decision.range, *to, outcome.moved > 0, self.round);
                        let mut expected = vec![0.0; nodes];
                        expected[to.get()] = 1.0;
                        moved.entry(decision.pid).or_default().push((decision.range, expected));
                    }
                }
                Action::CollocateEach { pages } => {
                    if outcome.deferred == 0 {
                        for target in pages {
                            process.map.page_moved(target.page.0, target.to.0);
                        }
                        let pages = pages.iter().map(|target| target.page.0).collect();
                        process.history.note_singled(pages, self.round);
                    }
                }
                Action::Interleave(interleaving) => {
                    steps.entry((decision.pid, decision.range)).or_default().push((
                        decision,
                        interleaving,
                        outcome,
                    ));
                }
            }
        }
        for ((pid, range), group) in steps {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            let (before, expected) = progress_after(&process.history, range, &group, nodes);
            if before.pending.is_empty() {
                moved.entry(pid).or_default().push((range, expected));
            }
            process.history.note_interleaved(range, before, self.round);
        }
        for (pid, ranges) in moved {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.map.moved(&ranges);
            }
        }
    }

    /// Falsely shared huge pages that were not reported before; those that are to be split are.
    fn findings(&mut self, decisions: &[Decision]) -> Vec<Finding> {
        for decision in decisions {
            let (Action::Split { pages }, Some(process)) =
                (&decision.action, self.processes.get_mut(&decision.pid))
            else {
                continue;
            };
            process.map.note_false_sharing(pages.iter().map(|page| page.0));
        }
        let mut findings = Vec::new();
        for (&pid, process) in &mut self.processes {
            let found = process.map.false_sharing();
            process.reported.retain(|&page| process.map.is_mapped(page));
            if process.reported.len() > RANGES_EACH {
                // Some may be reported again.
                process.reported = process.reported.iter().copied().step_by(2).collect();
            }
            for (&page, samples) in found {
                if let Err(at) = process.reported.binary_search(&page) {
                    process.reported.insert(at, page);
                    findings.push(Finding::FalselySharedHugePage {
                        pid,
                        page: PageNumber(page),
                        samples: samples.clone(),
                    });
                }
            }
        }
        findings
    }

    /// Whether huge pages were split lately: of their base pages nothing was known before.
    fn has_split(&self) -> bool {
        self.processes.values().any(|process| process.history.has_split(self.round))
    }

    /// The interval's word on how eagerly to sample.
    fn sampling_inputs(
        &self,
        observation: &Observation,
        metrics: &Metrics,
        acted: &[(Decision, Outcome)],
    ) -> SamplingInputs {
        let by_page = |decision: &Decision| matches!(decision.action, Action::CollocateEach { .. });
        let moved: u64 =
            acted.iter().filter(|(decision, _)| by_page(decision)).map(|(_, outcome)| outcome.moved).sum();
        let (mut recent, mut unsettled) = (0.0, 0.0);
        let (mut known, mut interleaved, mut interleaved_pages) = (0.0, 0.0, 0);
        for (pid, process) in &self.processes {
            let mut pages = 0;
            for region in process.map.regions() {
                let samples = region.evidence.total() * process.map.weight();
                known += samples;
                recent += region.recent as f32;
                // Whatever it looks like later, memory that was interleaved stays so.
                if process.history.is_interleaved(region.range) {
                    interleaved += samples;
                    pages += region.range.pages();
                } else if region.is_unsettled() {
                    unsettled += region.recent as f32;
                }
            }
            // Most addresses of a region may have no page.
            let state = observation.processes.iter().find(|state| state.pid == *pid);
            interleaved_pages += pages.min(state.map_or(0, |state| state.resident_pages));
        }
        let settings = &self.settings.sampling_schedule;
        let split = acted
            .iter()
            .any(|(decision, outcome)| matches!(decision.action, Action::Split { .. }) && outcome.moved > 0);
        let interleaving = acted.iter().any(|(decision, outcome)| {
            matches!(decision.action, Action::Interleave(_)) && outcome.moved + outcome.deferred > 0
        });
        let unfinished = self.policy.unfinished();
        // A sample that is a hint fault is a chance for the kernel to move the page elsewhere. Pages are best
        // interleaved while few such samples come.
        let by_faults = observation.counters.are_by_faults();
        let busy = self.has_split()
            || moved >= settings.from_moves
            || unsettled > recent * settings.from_unsettled_share
            || (unfinished && !by_faults);
        let resident_pages: u64 = observation.processes.iter().map(|process| process.resident_pages).sum();
        let staying = self.processes.values().filter(|process| !process.wandering.is_frequent());
        let unjudged: usize = staying.map(|process| process.map.unjudged_huge_pages()).sum();
        let unjudged_pages = unjudged as f32 * HUGE_PAGE_PAGES as f32;
        SamplingInputs {
            curious: self.policy.active() && busy,
            unfinished,
            unjudged: unjudged_pages > resident_pages as f32 * settings.from_unsettled_share,
            interleaving,
            interleaved: interleaved > 0.5 * known,
            nearly_all_interleaved: interleaved > 0.9 * known && 2 * interleaved_pages > resident_pages,
            samples_move_pages: by_faults,
            fresh: split || observation.processes.iter().any(|process| process.fresh),
            resident_pages,
            local_access_percent: metrics.local_access_percent.get().copied(),
        }
    }

    fn footprint(&self) -> Footprint {
        self.processes.values().fold(Footprint::default(), |sum, process| Footprint {
            regions: sum.regions + process.map.regions().len() as u64,
            tracked_pages: sum.tracked_pages + process.map.tracked_pages() as u64,
            pages_dropped: sum.pages_dropped + process.map.pages_dropped(),
            ranges_dropped: sum.ranges_dropped + process.map.regions_dropped() + process.history.dropped(),
            heap_bytes: sum.heap_bytes + (process.map.heap_bytes() + process.history.heap_bytes()) as u64,
        })
    }
}

/// How far a range is interleaved after these decisions, and where its pages should be.
fn progress_after(
    history: &History,
    range: PageRange,
    group: &[InterleaveStep<'_>],
    nodes: usize,
) -> (InterleaveProgress, Vec<f32>) {
    let homes = &group[0].0.reason.figures.homes;
    let known: f32 = homes.iter().sum();
    let shares: Vec<f32> = (0..nodes).map(|n| if known > 0.0 { homes[n] / known } else { 0.0 }).collect();
    let old = history
        .interleave_progress(range)
        .into_iter()
        .filter_map(|(_, progress)| progress)
        .max_by_key(|old| old.done);
    let first = group[0].1;
    let begins = |old: &InterleaveProgress| first.band.0 < old.done && !old.pending.contains(first);
    let mut progress = match old.cloned() {
        None => InterleaveProgress::begin(shares.clone()),
        Some(old) if begins(&old) => {
            InterleaveProgress { times: old.times + 1, ..InterleaveProgress::begin(shares.clone()) }
        }
        Some(old) => old,
    };
    let mut expected = shares;
    progress.pending.clear();
    let mut done = progress.done;
    for (_, interleaving, outcome) in group {
        let (from, (start, end)) = (interleaving.from.get(), interleaving.band);
        done = done.max(end);
        if outcome.deferred > 0 {
            progress.pending.push((*interleaving).clone());
        }
        let left = (BAND_END - start).max(1) as f32;
        let leaves = (progress.waiting[from] * (end - start) as f32 / left).min(expected[from]);
        let weights: f32 = interleaving.weights.iter().map(|&w| w as f32).sum::<f32>().max(1.0);
        expected[from] -= leaves;
        for (share, &weight) in expected.iter_mut().zip(&interleaving.weights) {
            *share += leaves * weight as f32 / weights;
        }
    }
    let left = (BAND_END - done) as f32 / (BAND_END - progress.done).max(1) as f32;
    progress.waiting.iter_mut().for_each(|share| *share *= left);
    progress.done = done;
    (progress, expected)
}
