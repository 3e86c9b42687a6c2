//! Carrefour: collocate, interleave, replicate (CACM 2015; code facts from carrefour-module and
//! carrefour-runtime).
//!
//! The rules are the article's. They are applied to regions instead of sampled pages, so a decision reaches
//! pages that no sample hit, and what the article leaves to chance page by page is a pure function of the
//! page ([`Interleaving`]).

mod collocating;
mod huge_pages;

use self::collocating::Collocating;
use super::hinted::{interleave_at_once, replicate_at_once};
use super::interleave::{SharedRanges, pending, reason};
use super::{Confined, Policy, ProcessView, View};
use crate::history::LastMove;
use crate::metrics::{balanced_nodes, local_access_percent, memory_bytes};
use crate::region::{Evidence, Nature};
use crate::{
    Action, Decision, MappingKind, Measure, PageNumber, PageRange, PageTarget, Pid, Provenance, RuleStatus,
};
use nodewise_topology::NodeIndex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The thresholds. Defaults are the article's unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CarrefourSettings {
    /// Below this many DRAM accesses in a microsecond, machine-wide, nothing is done (article: 50).
    pub enable_accesses_per_us: f64,
    /// Fewer are enough if there are so many in 1000 cycles of the CPUs that run. Ours: the article's
    /// machines have 16 and 24 cores, and 50 in a microsecond are 1.2 and 0.9 in 1000 of their cycles. A
    /// single thread that always waits for far memory makes 7 in a microsecond.
    pub enable_accesses_per_kcycle: f64,
    /// Without counters: below this many hint faults in a second nothing is done. Ours. Hint faults count
    /// touched pages, not accesses, so this only tells an idle program from a busy one.
    pub enable_hint_faults_per_s: f64,
    /// Collocation is on below this local access ratio, in percent (article: 80).
    pub collocate_below_percent: f64,
    /// Once on, collocation stays on up to this ratio. Ours: the article switches at one threshold and
    /// leaves the last fifth where it is; set to `collocate_below_percent` for that.
    pub collocate_until_percent: f64,
    /// Samples (decayed) of a page before it is collocated (module source: 2 unless interleaving is on).
    pub collocate_min_samples: u32,
    /// Samples (decayed) of a region of several pages. Ours: four of shared pages agree by chance in 2 % of
    /// cases on 4 nodes.
    pub collocate_min_region_samples: u32,
    /// Intervals in which a region was seen before its pages are moved. Ours: samples of one interval are
    /// not independent. Nodes that sweep over shared memory look like its only accessors, each of
    /// another part, until the next sweep.
    pub min_intervals: u32,
    /// How sure one must be that a page is private before it is collocated on its own. Ours.
    pub collocate_certainty: f64,
    /// Intervals, and looks at its threads, for which a process must have been confined to one node before
    /// its memory follows. Ours.
    pub confined_intervals: u32,
    /// An interval more for each so many resident pages. Ours: moving 256 MiB takes about a tenth of a
    /// second, and so does moving it back.
    pub confined_pages: u64,
    /// A process that has run on several nodes must have been confined for as many intervals as it did so,
    /// up to these. Ours.
    pub confined_most: u32,
    /// Interleaving is on above this controller imbalance, in percent (article: 35).
    pub interleave_above_percent: f64,
    /// Once it has been on, interleaving comes back on above this imbalance. Ours: the kernel's balancing may
    /// undo part of an interleaving. With 13 %, one node of four has 30 % of the load and the others the
    /// rest. Set to `interleave_above_percent` for the article's rule.
    pub interleave_again_percent: f64,
    /// Once on, interleaving stays on down to this imbalance. Ours: the article stops at 35 %, which on 8
    /// nodes leaves one node with 23 % of the load instead of 12.5 %; set to `interleave_above_percent`
    /// for that.
    pub interleave_until_percent: f64,
    /// Whether a page must have been written to be interleaved (article: yes; module source: no), on
    /// machines that make copies of what is only read. Accesses of unknown kind to a writable mapping
    /// count as writes.
    pub interleave_needs_write: bool,
    /// Whether nodes without CPUs may receive interleaved pages. Ours: no.
    pub interleave_to_cpuless: bool,
    /// Replication is on from this share of reads, in percent (article: 95).
    pub replicate_reads_percent: f64,
    /// Replication is on up to this much memory use, in percent ("enough free memory" in the article; the
    /// module says 25, ours is 75 since only the candidates are copied).
    pub replicate_memory_percent: f64,
    /// A node with less of its memory free, in percent, receives nothing. Ours.
    pub reserve_percent: f64,
}

impl Default for CarrefourSettings {
    fn default() -> Self {
        Self {
            enable_accesses_per_us: 50.0,
            enable_accesses_per_kcycle: 1.0,
            enable_hint_faults_per_s: 5.0,
            collocate_below_percent: 80.0,
            collocate_until_percent: 99.0,
            collocate_min_samples: 2,
            collocate_min_region_samples: 4,
            min_intervals: 2,
            collocate_certainty: 0.95,
            confined_intervals: 3,
            confined_pages: 1 << 16,
            confined_most: 60,
            interleave_above_percent: 35.0,
            interleave_again_percent: 10.0,
            interleave_until_percent: 5.0,
            interleave_needs_write: true,
            interleave_to_cpuless: false,
            replicate_reads_percent: 95.0,
            replicate_memory_percent: 75.0,
            reserve_percent: 3.0,
        }
    }
}

/// The policy.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each of the article's rules")]
pub struct Carrefour {
    settings: CarrefourSettings,
    rules: Vec<RuleStatus>,
    enabled: bool,
    collocating: Collocating,
    /// The same by processes' own memory, where there are several: what one has far away counts for little
    /// in the share of all.
    collocating_of: BTreeMap<Pid, Collocating>,
    /// Whether the loads have been uneven and not yet even since.
    unbalanced: bool,
    /// Whether samples are hint faults.
    by_faults: bool,
    /// Whether the loads are so uneven that interleaving would begin again.
    uneven: bool,
    /// Interleaving has been on.
    interleaved_before: bool,
    interleaving: bool,
    replicating: bool,
}

impl Carrefour {
    /// With these thresholds.
    #[must_use]
    pub const fn new(settings: CarrefourSettings) -> Self {
        Self {
            settings,
            rules: Vec::new(),
            enabled: false,
            collocating: Collocating { now: false, last: None },
            collocating_of: BTreeMap::new(),
            unbalanced: false,
            by_faults: false,
            uneven: false,
            interleaved_before: false,
            interleaving: false,
            replicating: false,
        }
    }

    /// Which rules are in force.
    fn judge(&mut self, view: &View<'_>) {
        let s = &self.settings;
        let m = view.metrics;
        let mut rules = Vec::new();

        let (threshold, provenance) = match &m.access_rate {
            &Measure::Measured(rate) => (self.busy_from(view, rate), Provenance::Measured),
            Measure::Estimated(_) => (s.enable_accesses_per_us, Provenance::Estimated),
            Measure::Proxy(_) => {
                (s.enable_hint_faults_per_s, Provenance::Proxy("hint faults in a second".into()))
            }
            Measure::Unknown => {
                (s.enable_accesses_per_us, Provenance::Off("access rate unknown: never idle".into()))
            }
        };
        let value = m.access_rate.get().copied();
        // How often hint faults come is for us to say: when we ask for few in the midst of interleaving
        // pages, few say nothing.
        self.by_faults = matches!(provenance, Provenance::Proxy(_));
        let under_way = self.enabled && self.unbalanced && self.by_faults;
        // A move that was begun is carried through, whatever the samples that still come say.
        let put_off = self.collocates() && view.put_off;
        self.enabled = value.is_none_or(|rate| rate >= threshold) || under_way || put_off;
        rules.push(RuleStatus {
            name: "enable".into(),
            provenance,
            value,
            threshold,
            enabled: self.enabled,
            idle: None,
        });

        let value = m.local_access_percent.get().copied();
        let mut limit = self.collocating.judge(s, value, view);
        let mut shown = (value, provenance_of(&m.local_access_percent, "too few samples with a known home"));
        let several = view.processes.iter().filter(|_| view.processes.len() > 1);
        let before = std::mem::take(&mut self.collocating_of);
        for process in several {
            let mut own = before.get(&process.pid).copied().unwrap_or_default();
            let local = local_access_percent(process.map, view.topology.node_count());
            let own_limit = own.judge(s, local, view);
            // The worst process tells why, where all together do not.
            let is_worst = local.is_some_and(|local| shown.0.is_none_or(|worst| local < worst));
            if own.now && !self.collocating.now && is_worst {
                (limit, shown) = (own_limit, (local, Provenance::Estimated));
            }
            self.collocating_of.insert(process.pid, own);
        }
        rules.push(RuleStatus {
            name: "collocate".into(),
            provenance: shown.1,
            value: shown.0,
            threshold: limit,
            enabled: self.enabled && self.collocates(),
            idle: None,
        });

        let value = m.controller_imbalance_percent.get().copied();
        let limit = match (self.unbalanced, self.interleaved_before) {
            (true, _) => s.interleave_until_percent,
            (false, true) => s.interleave_again_percent,
            (false, false) => s.interleave_above_percent,
        };
        self.unbalanced = value.is_some_and(|imbalance| imbalance > limit);
        self.interleaved_before |= self.unbalanced;
        // An estimate must be beyond its own uncertainty.
        let limit = limit + m.controller_imbalance_error;
        self.interleaving = value.is_some_and(|imbalance| imbalance > limit);
        let again = s.interleave_again_percent + m.controller_imbalance_error;
        self.uneven = self.interleaving && value.is_some_and(|imbalance| imbalance > again);
        rules.push(RuleStatus {
            name: "interleave".into(),
            provenance: provenance_of(&m.controller_imbalance_percent, "too few samples with a known home"),
            value,
            threshold: limit,
            enabled: self.interleaving,
            idle: None,
        });

        let room = m.memory_use_percent <= s.replicate_memory_percent;
        let value = m.read_percent.get().copied();
        self.replicating = room && value.is_none_or(|reads| reads >= s.replicate_reads_percent);
        let provenance = match &m.read_percent {
            _ if !room => Provenance::Off(format!("memory use {:.0} %", m.memory_use_percent)),
            Measure::Unknown => {
                Provenance::Proxy("the share of reads is not known: only read-only mappings".into())
            }
            known => provenance_of(known, ""),
        };
        rules.push(RuleStatus {
            name: "replicate".into(),
            provenance,
            value,
            threshold: s.replicate_reads_percent,
            enabled: self.enabled && self.replicating,
            idle: None,
        });
        self.rules = rules;
    }

    /// Whether anything is collocated.
    fn collocates(&self) -> bool {
        self.collocating.now || self.collocating_of.values().any(|own| own.now)
    }

    /// Whether memory of this process is.
    fn collocates_of(&self, pid: Pid) -> bool {
        self.collocating.now || self.collocating_of.get(&pid).is_some_and(|own| own.now)
    }

    /// The accesses in a microsecond from which on the machine is busy with them, where so many were counted.
    fn busy_from(&self, view: &View<'_>, rate: f64) -> f64 {
        let s = &self.settings;
        let (Measure::Measured(traffic), Measure::Measured(cycles)) =
            (&view.counters.traffic, &view.counters.cycles)
        else {
            return s.enable_accesses_per_us;
        };
        let per_kcycle = traffic.total() / (cycles / 1000.0);
        // Not a number where nothing was counted, which `min` passes over.
        s.enable_accesses_per_us.min(rate * s.enable_accesses_per_kcycle / per_kcycle)
    }

    /// A node's memory that may still be filled.
    fn room(&self, view: &View<'_>, node: usize) -> u64 {
        let total = memory_bytes(view.topology, view.counters, node);
        let free = view.counters.free_bytes.get(node).copied().unwrap_or(total);
        free.saturating_sub((total as f64 * self.settings.reserve_percent / 100.0) as u64)
    }

    /// The node where pages of an accessor node belong: itself, or if it has no memory the nearest that does.
    fn home_for(view: &View<'_>, accessor: usize) -> Option<NodeIndex> {
        let from = NodeIndex(accessor as u8);
        view.topology
            .node_indices()
            .filter(|node| memory_bytes(view.topology, view.counters, node.get()) > 0)
            .min_by_key(|&node| (node != from, view.topology.distance(from, node), node))
    }

    /// How many intervals a region must have had one accessor: more where the accessors of much memory keep
    /// changing, and more for memory that was found to be shared before.
    fn intervals(&self, process: ProcessView<'_>, at: usize) -> u32 {
        const PER_CONTRADICTION: f32 = 8.0;
        const ONCE_SHARED: u32 = 4;
        const CALM: f32 = 0.02;
        let least = self.settings.min_intervals;
        let interleaved = process.history.is_interleaved(process.map.regions()[at].range);
        let factor = if interleaved { ONCE_SHARED } else { 1 };
        let contradiction_rate = process.map.contradiction_rate();
        least * factor
            + if contradiction_rate > CALM {
                (1.0 + PER_CONTRADICTION * contradiction_rate) as u32
            } else {
                0
            }
    }

    /// Whether a region has shown its accessor for long enough.
    fn is_known(&self, process: ProcessView<'_>, at: usize) -> bool {
        let region = &process.map.regions()[at];
        let samples = match region.range.pages() {
            1 => self.settings.collocate_min_samples,
            _ => self.settings.collocate_min_region_samples,
        };
        region.evidence.total() + 0.1 >= samples as f32 && region.age >= self.intervals(process, at)
    }

    /// All pages of a region to its one accessor node.
    fn collocate(
        &self,
        view: &View<'_>,
        process: ProcessView<'_>,
        at: usize,
        accessor: usize,
        out: &mut Vec<Decision>,
    ) {
        let region = &process.map.regions()[at];
        let evidence = &region.evidence;
        if !self.is_known(process, at) {
            return;
        }
        let Some(to) = Self::home_for(view, accessor) else { return };
        let homes: f32 = evidence.homes().iter().sum();
        let misplaced = homes - evidence.homes()[to.get()];
        if (homes > 0.0 && misplaced < 0.5) || self.room(view, to.get()) == 0 {
            return;
        }
        let parts = process.hints.collocatable(process.map.reach(at));
        // A few pages at the ends of a range may be left over: samples came to them too late.
        let free = |range| {
            if self.collocates_of(process.pid) {
                process.history.collocatable(range, to, view.round)
            } else {
                process.history.left_over(range, to)
            }
        };
        for range in parts.flat_map(|range| process.unbound(range)).flat_map(free) {
            let rule = format!("only node {} uses it", view.topology.id_of(NodeIndex(accessor as u8)));
            out.push(Decision {
                pid: process.pid,
                range,
                action: Action::Collocate { to },
                reason: reason(rule, view, evidence),
            });
        }
    }

    /// Whether a process has been confined for so long that its memory may follow it. A wrong move costs the
    /// time to move the pages and to move them back, so that more pages take more patience. A program
    /// that has run on several nodes may do so again in its next phase: what it did for a while it must
    /// not have done for as long.
    fn is_settled(&self, view: &View<'_>, process: ProcessView<'_>, confined: Confined) -> bool {
        let Confined { intervals, looks, roamed, .. } = confined;
        let CarrefourSettings { confined_intervals, confined_pages, confined_most, .. } = self.settings;
        let for_cost = u64::from(confined_intervals) + process.resident_pages / confined_pages.max(1);
        // The samples of the first intervals may have been mended since, and the rest never sampled.
        let own = self.collocating_of.get(&process.pid).and_then(|own| own.last);
        let far_since = self.collocating.last.max(own).is_some_and(|last| last + intervals >= view.round);
        far_since
            && looks >= confined_intervals
            && u64::from(intervals) >= for_cost.max(roamed.min(confined_most).into())
    }

    /// All private memory of a process that may run on one node only, also what was not sampled: hint faults
    /// come late from mappings that were little used (`vma_is_accessed`, `kernel/sched/fair.c`, Linux
    /// 6.12). Ranges that other nodes were seen using stay, as does what the program has bound itself,
    /// and all where nodes without CPUs hold memory, for what is cold belongs there.
    fn collocate_all(&self, view: &View<'_>, process: ProcessView<'_>, out: &mut Vec<Decision>) {
        /// Pages in a decision (64 MiB), and looked through in an interval (1 GiB).
        const AT_ONCE: (u64, u64) = (1 << 14, 1 << 18);
        /// A mapping so many times larger than all that is resident is mostly empty, and looking through it
        /// takes long.
        const MOSTLY_EMPTY: u64 = 4;
        let settled = |confined: &Confined| self.is_settled(view, process, *confined);
        let Some(accessor) = process.confined.filter(settled).map(|confined| confined.to) else { return };
        let Some(to) = Self::home_for(view, accessor.get()).filter(|to| self.room(view, to.get()) > 0) else {
            return;
        };
        let has_memory = |node: NodeIndex| memory_bytes(view.topology, view.counters, node.get()) > 0;
        let has_cpus = balanced_nodes(view.topology, view.counters);
        let tiered = view.topology.node_indices().any(|node| has_memory(node) && !has_cpus[node.get()]);
        if tiered || process.map.regions().is_empty() {
            return;
        }
        let mut evidence = Evidence::new(view.topology.node_count());
        process.map.regions().iter().for_each(|region| evidence.add(&region.evidence));
        let mappings = process.map.mappings().iter().filter(|mapping| {
            mapping.kind == MappingKind::Anonymous
                && mapping.range.pages() <= MOSTLY_EMPTY * process.resident_pages
        });
        let parts = mappings
            .flat_map(|mapping| process.hints.collocatable(mapping.range))
            .flat_map(|range| process.map.used_by_no_other(range, accessor.get()))
            .flat_map(|range| process.unbound(range))
            .flat_map(|range| process.history.collocatable_anew(range, to, view.round))
            .flat_map(|range| range.portions(AT_ONCE.0));
        let mut pages = 0;
        for range in parts {
            pages += range.pages();
            if pages > AT_ONCE.1 {
                break;
            }
            let rule = format!("the process may run on node {} only", view.topology.id_of(accessor));
            out.push(Decision {
                pid: process.pid,
                range,
                action: Action::Collocate { to },
                reason: reason(rule, view, &evidence),
            });
        }
    }

    /// Each page of a finely mixed region to its own accessor node.
    fn collocate_each(&self, view: &View<'_>, process: ProcessView<'_>, at: usize, out: &mut Vec<Decision>) {
        const AT_ONCE: usize = 1 << 15;
        let region = &process.map.regions()[at];
        let homes: f32 = region.evidence.homes().iter().sum();
        let all_local = homes > 0.0 && homes - region.evidence.local() < 0.5;
        let seen_for_long = region.rounds >= self.settings.min_intervals;
        let may_act = self.collocates_of(process.pid) && seen_for_long && !all_local;
        let Some(sharing) = region.sharing.as_ref().filter(|_| may_act) else { return };
        let targets: Vec<_> = (0..view.topology.node_count())
            .map(|node| Self::home_for(view, node).filter(|to| self.room(view, to.get()) > 0))
            .collect();
        let mut last_move = process.history.last_moves(region.range);
        let (mut leaving, mut moved_before) = (Vec::new(), 0);
        for (page, record) in process.map.page_records(region.range) {
            let last = last_move(page);
            let Some((owner, certainty)) = sharing.owner(record) else { continue };
            if record.total() < self.settings.collocate_min_samples
                || certainty < self.settings.collocate_certainty
            {
                continue;
            }
            moved_before += usize::from(last.is_some());
            if let Some(to) = targets[owner].filter(|to| record.home() != Some(to.0)) {
                let target = PageTarget { page: PageNumber(page), to };
                leaving.push(Leaving { target, rounds_alone: record.rounds_alone(owner), last });
            }
        }
        let threads_moved = are_most(leaving.iter().filter(|page| page.last.is_some()).count(), moved_before);
        let may_leave = |page: &Leaving| {
            let number = page.target.page.0;
            let again = page.last.is_none_or(|last| {
                process.history.has_rested(last, view.round)
                    && (threads_moved || page.rounds_alone >= rounds_alone(last.times))
            });
            again
                && process.hints.is_collocatable(number)
                && !process.unbound(PageRange::new(number, number + 1)).is_empty()
                && !process.map.false_sharing().contains_key(&number)
        };
        let pages: Vec<_> = leaving.iter().filter(|page| may_leave(page)).map(|page| page.target).collect();
        for chunk in pages.chunks(AT_ONCE) {
            out.push(Decision {
                pid: process.pid,
                range: PageRange::new(chunk[0].page.0, chunk[chunk.len() - 1].page.0 + 1),
                action: Action::CollocateEach { pages: chunk.to_vec() },
                reason: reason("each page is used by one node only".into(), view, &region.evidence),
            });
        }
    }

    /// Copies of a read-only region for each accessor node.
    fn replicate(view: &View<'_>, process: ProcessView<'_>, at: usize, out: &mut Vec<Decision>) {
        let region = &process.map.regions()[at];
        for range in process.history.replicatable(process.map.reach(at)) {
            out.push(Decision {
                pid: process.pid,
                range,
                action: Action::Replicate,
                reason: reason("several nodes read it, and no write was seen".into(), view, &region.evidence),
            });
        }
    }

    /// Nodes that may receive interleaved pages.
    fn targets(&self, view: &View<'_>) -> Vec<bool> {
        let balanced = balanced_nodes(view.topology, view.counters).into_iter().enumerate();
        balanced
            .map(|(node, ok)| (ok || self.settings.interleave_to_cpuless) && self.room(view, node) > 0)
            .collect()
    }
}

impl Policy for Carrefour {
    fn name(&self) -> &'static str {
        "carrefour"
    }

    fn decide(&mut self, view: &View<'_>) -> Vec<Decision> {
        self.judge(view);
        let mut decisions = Vec::new();
        pending(view, &mut decisions);
        let targets = self.targets(view);
        for &process in &view.processes {
            interleave_at_once(view, process, &targets, &mut decisions);
            if view.metrics.memory_use_percent <= self.settings.replicate_memory_percent {
                replicate_at_once(view, process, &mut decisions);
            }
        }
        if !self.enabled {
            return decisions;
        }
        let mut shared_ranges = SharedRanges::default();
        for &process in &view.processes {
            Self::split(view, process, &mut decisions);
            self.collapse(view, process, &mut decisions);
            let before = decisions.len();
            self.collocate_all(view, process, &mut decisions);
            if decisions.len() > before {
                continue;
            }
            for (at, region) in process.map.regions().iter().enumerate() {
                if process.unbound(region.range).is_empty() {
                    continue;
                }
                // Hint faults come in bursts, of one node or the other. Memory that was found to be shared
                // remains so until it is seen to be private for long enough to be collocated.
                let interleaved = self.by_faults && process.history.is_interleaved(region.range);
                if region.is_unsettled() && !interleaved {
                    shared_ranges.add_unsettled(process, at);
                }
                // In a burst, memory that several nodes read looks private.
                let nature = region.nature();
                let private = process.map.only_accessor(region);
                let shared = interleaved || (nature == Nature::Shared && private.is_none());
                let candidate = shared && region.is_read_only();
                if candidate && self.replicating {
                    Self::replicate(view, process, at, &mut decisions);
                }
                if let Some(accessor) = private {
                    self.collocate(view, process, at, accessor, &mut decisions);
                    if interleaved && !self.is_known(process, at) {
                        shared_ranges.add(process, at);
                    }
                    continue;
                }
                // Where there are no copies to be had, controllers that share the load are better than
                // nothing.
                let stays = view.replicates && (self.replicating || self.settings.interleave_needs_write);
                match nature {
                    _ if interleaved => shared_ranges.add(process, at),
                    Nature::Mixed => self.collocate_each(view, process, at, &mut decisions),
                    // No node is right for a huge page that is falsely shared.
                    Nature::Shared if view.splits && process.map.may_be_falsely_shared(region) => {
                        shared_ranges.add_unsettled(process, at);
                    }
                    Nature::Shared if !(candidate && stays) => shared_ranges.add(process, at),
                    Nature::Shared | Nature::Undecided => {}
                }
            }
        }
        let idle = shared_ranges.interleave(
            view,
            self.interleaving,
            &targets,
            self.settings.min_intervals,
            &mut decisions,
        );
        let interleaves = decisions.iter().any(|decision| matches!(decision.action, Action::Interleave(_)));
        if let Some(rule) = self.rules.iter_mut().find(|rule| rule.name == "interleave" && !interleaves) {
            rule.idle = idle.map(str::to_owned);
        }
        decisions
    }

    fn rules(&self) -> Vec<RuleStatus> {
        self.rules.clone()
    }

    fn active(&self) -> bool {
        self.enabled && (self.collocates() || self.interleaving || self.replicating)
    }

    /// Where samples are hint faults, more of them are asked for only where much is wrong: each is a chance
    /// for the kernel to move the page elsewhere.
    fn unfinished(&self) -> bool {
        if self.by_faults { self.uneven } else { self.interleaving }
    }
}

/// A page that one node most likely owns and that lies elsewhere.
struct Leaving {
    target: PageTarget,
    /// In how many rounds in a row only its owner was seen using it.
    rounds_alone: u32,
    /// When it was moved last.
    last: Option<LastMove>,
}

/// For how many rounds in a row one node must be the only user of a page that is to move again. `times` of
/// its moves were its own. Two nodes that use a page alike show that much once in 2¹⁶ times.
fn rounds_alone(times: u8) -> u32 {
    16 << u32::from(times.saturating_sub(1)).min(3)
}

/// Whether so many of all are more than half of them, and not by chance: by two standard errors.
fn are_most(some: usize, all: usize) -> bool {
    some as f64 / all as f64 - 1.0 / (all as f64).sqrt() > 0.5
}

fn provenance_of<T>(measure: &Measure<T>, why: &str) -> Provenance {
    match measure {
        Measure::Measured(_) => Provenance::Measured,
        Measure::Estimated(_) => Provenance::Estimated,
        Measure::Proxy(_) => Provenance::Proxy(String::new()),
        Measure::Unknown => Provenance::Off(why.into()),
    }
}

#[cfg(test)]
mod tests;
