//! Shared memory to be interleaved: neighbouring regions are one range, so that few decisions move much.

use super::interleave_plan::{Leaving, evens_out, plan};
use super::{ProcessView, View};
use crate::decision::BAND_END;
use crate::region::Evidence;
use crate::{
    Action, Decision, Figures, InterleaveProgress, Interleaving, Measure, PageNumber, PageRange, Reason,
};
use nodewise_topology::NodeIndex;

/// Neighbouring shared regions of one process.
struct SharedRange<'a> {
    process: ProcessView<'a>,
    range: PageRange,
    evidence: Evidence,
    /// Intervals with samples of its oldest region.
    rounds: u32,
}

/// A part of a shared range of which all pages have had the same chances.
struct Part<'a> {
    shared: &'a SharedRange<'a>,
    range: PageRange,
    /// Pages whose place in the order is below have had their chance.
    done: u64,
    /// By home node, the share of its pages that have not.
    waiting: Vec<f32>,
    /// Seed of the order, another one each time.
    seed: u64,
    /// Base pages that move at once.
    pages_at_once: u64,
}

/// All shared ranges, in order.
#[derive(Default)]
pub struct SharedRanges<'a> {
    ranges: Vec<SharedRange<'a>>,
    /// Accesses to regions that may turn out to be shared.
    unsettled: f32,
}

impl<'a> SharedRanges<'a> {
    /// Adds a shared region; regions come in order.
    pub fn add(&mut self, process: ProcessView<'a>, at: usize) {
        let range = process.map.reach(at);
        let region = &process.map.regions()[at];
        match self.ranges.last_mut() {
            Some(shared) if shared.process.pid == process.pid && shared.range.end == range.start => {
                shared.range.end = range.end;
                shared.evidence.add(&region.evidence);
                shared.rounds = shared.rounds.max(region.rounds);
            }
            _ => {
                let evidence = region.evidence.clone();
                self.ranges.push(SharedRange { process, range, evidence, rounds: region.rounds });
            }
        }
    }

    /// Counts a region of which one cannot say yet what it is.
    pub fn add_unsettled(&mut self, process: ProcessView<'a>, at: usize) {
        self.unsettled += process.map.regions()[at].evidence.total() * process.map.weight();
    }

    /// Decides about all ranges together: each changes the loads the others see. With `more`, further pages
    /// are interleaved over `targets`, in ranges seen for `min_rounds` intervals. Returns why nothing more is
    /// interleaved though it is to be.
    pub fn interleave(
        &self,
        view: &View<'_>,
        more: bool,
        targets: &[bool],
        min_rounds: u32,
        out: &mut Vec<Decision>,
    ) -> Option<&'static str> {
        // Else the little that is known to be shared would have to make up for all the rest.
        let known: f32 =
            self.ranges.iter().map(|shared| shared.evidence.total() * shared.process.map.weight()).sum();
        if !more {
            return None;
        }
        if 2.0 * known < self.unsettled {
            return Some("of most memory that is used it is not clear yet which nodes use it");
        }
        if self.ranges.is_empty() {
            return Some("no memory is known that several nodes use");
        }
        let Some(loads) = view.metrics.controller_loads.get() else { return Some("loads are not known") };
        let mut parts = Vec::new();
        for shared in self.ranges.iter().filter(|shared| shared.rounds >= min_rounds) {
            for (range, progress) in shared.parts(view.round, loads) {
                if progress.as_ref().is_some_and(|progress| is_pending(progress, loads)) {
                    continue;
                }
                let interleavable = shared.process.hints.interleavable(range);
                for part in interleavable.flat_map(|range| shared.process.unbound(range)) {
                    parts.extend(Part::new(shared, part, progress.as_ref(), loads, view.seed));
                }
            }
        }
        if parts.is_empty() {
            return Some("all memory that several nodes use has been interleaved, or rests, or is bound");
        }
        let before = out.len();
        decide(view, &parts, loads, targets, out);
        (out.len() == before)
            .then_some("to interleave more of what several nodes use would not even out loads")
    }
}

/// Whether something was put off that is still to be done.
fn is_pending(progress: &InterleaveProgress, loads: &[f64]) -> bool {
    progress.pending.iter().any(|interleaving| is_right(interleaving, loads))
}

/// Whether a node still carries more than all that it gives to: others, the kernel among them, may have moved
/// pages meanwhile. Memory that is interleaved evenly, at a program's word, keeps its part and does not go by
/// loads.
fn is_right(interleaving: &Interleaving, loads: &[f64]) -> bool {
    let Interleaving { from, weights, .. } = interleaving;
    let gives_to = |&to: &usize| weights[to] > 0;
    interleaving.is_asked_for() || (0..weights.len()).filter(gives_to).all(|to| loads[to] < loads[from.get()])
}

impl SharedRange<'_> {
    /// The range by how far it was interleaved. A small part goes with its larger neighbour, at the price
    /// that some of its pages lose their chance.
    fn parts(&self, round: u32, loads: &[f64]) -> Vec<(PageRange, Option<InterleaveProgress>)> {
        const SMALL: u64 = 16;
        let is_small = |range: PageRange| range.pages() * SMALL <= self.range.pages();
        let pending = |progress: Option<&InterleaveProgress>| {
            progress.is_some_and(|progress| is_pending(progress, loads))
        };
        let mut parts: Vec<(PageRange, Option<InterleaveProgress>)> = Vec::new();
        for (range, progress) in self.process.history.interleave_progress(self.range) {
            let again = |progress: &InterleaveProgress| progress.again.is_some_and(|again| round >= again);
            let progress = progress.map(|progress| {
                let over = again(progress) && !is_pending(progress, loads);
                if over { progress.once_more() } else { progress.clone() }
            });
            match parts.last_mut() {
                Some((left, state)) if !pending(state.as_ref()) && !pending(progress.as_ref()) => {
                    let done = |progress: &Option<InterleaveProgress>| {
                        progress.as_ref().map_or(0, |progress| progress.done)
                    };
                    let (was, is) = (done(state), done(&progress));
                    if is_small(range) && is <= was {
                        left.end = range.end;
                    } else if is_small(*left) && was <= is {
                        *left = PageRange { start: left.start, end: range.end };
                        *state = progress;
                    } else {
                        parts.push((range, progress));
                    }
                }
                _ => parts.push((range, progress)),
            }
        }
        // A small part that was interleaved further than its neighbours has had its turn.
        parts.retain(|(range, progress)| {
            let begins = progress.as_ref().is_none_or(|progress| progress.done == 0);
            !is_small(*range) || begins || pending(progress.as_ref())
        });
        parts
    }
}

impl<'a> Part<'a> {
    fn new(
        shared: &'a SharedRange<'a>,
        range: PageRange,
        progress: Option<&InterleaveProgress>,
        loads: &[f64],
        seed: u64,
    ) -> Option<Self> {
        let done = progress.map_or(0, |progress| progress.done);
        let seed = seed.wrapping_add(progress.map_or(0, |progress| progress.times - 1).into());
        let homes = shared.evidence.homes();
        let known: f32 = homes.iter().sum();
        let pages_at_once = shared.process.map.pages_at_once(range);
        let known_well = progress.filter(|progress| progress.unmoved.is_some());
        // Best by looking at pages: others, the kernel among them, may have moved some.
        let sampled = || {
            shared
                .process
                .map
                .homes_in(range, |page| u64::from(Interleaving::order(page, pages_at_once, seed)) >= done)
        };
        let looked_at = known_well.map(|progress| progress.waiting.clone()).or_else(sampled);
        let waiting = match (looked_at, progress) {
            (Some(waiting), _) => waiting,
            // Too many: of the pages that were interleaved none waits.
            (None, Some(_)) if done > 0 => {
                let left = (1.0 - done as f64 / BAND_END as f64) / loads.iter().sum::<f64>();
                loads.iter().map(|load| (load * left) as f32).collect()
            }
            (None, _) if known > 0.0 => homes.iter().map(|home| home / known).collect(),
            (None, _) => return None,
        };
        (done < BAND_END).then_some(Self { shared, range, done, waiting, seed, pages_at_once })
    }

    /// The end of the band of pages that leave a node, and the weights of their targets; none if no page
    /// leaves. One of few pages leaves the node with most load, though its share be small.
    fn leaving(&self, home: usize, leaving: &Leaving, has_most: bool) -> Option<(u64, Vec<u32>)> {
        let Leaving { fraction, weights } = leaving;
        let Some(waiting) = self.few_waiting(home) else {
            let most = weights.iter().copied().fold(0.0, f64::max);
            let end = self.done + (fraction * (BAND_END - self.done) as f64) as u64;
            return Some((end, weights.iter().map(|weight| (weight / most * 1e6) as u32).collect()));
        };
        let count = (fraction * waiting.len() as f64).round().max(f64::from(u8::from(has_most)));
        let count = (count as usize).min(waiting.len());
        // The band is cut between pages, so that each target has as many as it should.
        let behind = |pages: usize| match pages.checked_sub(1).map(|last| waiting[last]) {
            None => self.done,
            Some(last) => waiting.get(pages).map_or(BAND_END, |&next| last.midpoint(next) + 1),
        };
        let all: f64 = weights.iter().sum();
        let (mut sum, mut cut) = (0.0, self.done);
        let mut width = |weight: f64| {
            sum += weight;
            let before = cut;
            cut = behind((count as f64 * sum / all).round() as usize);
            u32::try_from(cut - before).unwrap_or(u32::MAX)
        };
        let widths = weights.iter().map(|&weight| width(weight)).collect();
        (count > 0).then_some((cut, widths))
    }

    /// The places in the order of the pages that wait at a node, where they are few that move at once. A
    /// share that is right for many pages is too often one too many or too few of few.
    fn few_waiting(&self, home: usize) -> Option<Vec<u64>> {
        const FEW: u64 = 64;
        /// After so many samples for each, a page in use has one but for three cases of ten thousand.
        const SAMPLES_EACH: f64 = 8.0;
        let units = self.range.pages() / self.pages_at_once;
        if units > FEW {
            return None;
        }
        let records: Vec<_> = self.shared.process.map.page_records(self.range).collect();
        // Some may be used by nobody, as where an allocator maps more than is asked for.
        let samples = f64::from(self.shared.evidence.total()) * self.share();
        if (records.len() as u64) < units && samples < SAMPLES_EACH * units as f64 {
            return None;
        }
        let at_home = records.iter().filter(|(_, record)| record.home().map(usize::from) == Some(home));
        let orders = at_home.map(|&(page, _)| {
            u64::from(Interleaving::order(PageNumber(page), self.pages_at_once, self.seed))
        });
        let mut waiting: Vec<u64> = orders.filter(|&order| order >= self.done).collect();
        waiting.sort_unstable();
        Some(waiting)
    }

    /// The accesses that go to its pages.
    fn traffic(&self) -> f64 {
        f64::from(self.shared.evidence.total() * self.shared.process.map.weight()) * self.share()
    }

    /// Its share of all that is shared there.
    fn share(&self) -> f64 {
        self.range.pages() as f64 / self.shared.range.pages() as f64
    }
}

fn decide(view: &View<'_>, parts: &[Part<'_>], loads: &[f64], targets: &[bool], out: &mut Vec<Decision>) {
    let all: f64 = loads.iter().sum();
    // The accesses that a sample stands for, so that regions and counters speak of the same accesses.
    let regions = view.processes.iter().flat_map(|p| p.map.regions().iter().map(|r| (p.map.weight(), r)));
    let sampled: f64 = regions.map(|(weight, region)| f64::from(region.evidence.total() * weight)).sum();
    let scale = if sampled > 0.0 { all / sampled } else { 0.0 };
    // Where samples are hint faults, loads are pages in use.
    let by_pages = matches!(view.counters.access_rate, Measure::Proxy(_))
        && !matches!(view.counters.controller_loads, Measure::Unknown);
    let traffic_of =
        |part: &Part<'_>| if by_pages { part.range.pages() as f64 } else { part.traffic() * scale };
    // The load that a page takes along.
    let load_at_once =
        |part: &Part<'_>| traffic_of(part) * part.pages_at_once as f64 / part.range.pages() as f64;
    let least = loads.iter().zip(targets).filter(|(_, target)| **target).map(|(load, _)| *load);
    let least = least.fold(f64::INFINITY, f64::min);
    let mut movable = vec![0.0; loads.len()];
    for part in parts {
        let (traffic, load) = (traffic_of(part), load_at_once(part));
        for (home, movable) in
            movable.iter_mut().enumerate().filter(|(home, _)| evens_out(loads[*home] - least, load))
        {
            *movable += traffic * f64::from(part.waiting[home]);
        }
    }
    movable.iter_mut().zip(loads).for_each(|(movable, &load)| *movable = movable.min(load));
    let plan = plan(loads, &movable, targets);
    let busiest = (0..loads.len()).max_by(|&a, &b| loads[a].total_cmp(&loads[b])).unwrap_or_default();
    for part in parts {
        let load = load_at_once(part);
        for (home, leaving) in plan.iter().enumerate() {
            let Some(leaving) = leaving.clone().in_pages_of(load, loads, home) else { continue };
            let pages = leaving.fraction * f64::from(part.waiting[home]) * part.range.pages() as f64;
            // Below one percent it is noise.
            if leaving.fraction < 0.01 || pages < 0.5 {
                continue;
            }
            let rule = format!(
                "several nodes use it, {:.0} % of traffic goes to node {}",
                100.0 * loads[home] / all,
                view.topology.id_of(NodeIndex(home as u8))
            );
            let Some((end, weights)) = part.leaving(home, &leaving, home == busiest) else { continue };
            out.push(Decision {
                pid: part.shared.process.pid,
                range: part.range,
                action: Action::Interleave(Interleaving {
                    from: NodeIndex(home as u8),
                    band: (part.done, end),
                    weights,
                    seed: part.seed,
                }),
                reason: reason(rule, view, &part.shared.evidence),
            });
        }
    }
}

/// Repeats decisions that the machine put off, as they were, if they are still right: also while nothing new
/// is decided for want of samples.
pub fn pending(view: &View<'_>, out: &mut Vec<Decision>) {
    let loads = view.metrics.controller_loads.get();
    for process in &view.processes {
        let is_right = |next: &Interleaving| loads.is_none_or(|loads| is_right(next, loads));
        let is_free = |range: PageRange| process.unbound(range) == [range];
        let pending = process.history.pending().filter(|(range, next)| is_right(next) && is_free(*range));
        for (range, interleaving) in pending {
            let mut evidence = Evidence::new(view.topology.node_count());
            let regions = process.map.regions().iter();
            regions
                .filter(|region| !region.range.intersect(range).is_empty())
                .for_each(|region| evidence.add(&region.evidence));
            let reason = reason("put off before".into(), view, &evidence);
            let action = Action::Interleave(interleaving.clone());
            out.push(Decision { pid: process.pid, range, action, reason });
        }
    }
}

/// A rule with the figures behind it.
pub fn reason(rule: String, view: &View<'_>, evidence: &Evidence) -> Reason {
    Reason {
        rule,
        figures: Figures {
            reads: evidence.reads().to_vec(),
            writes: evidence.writes().to_vec(),
            homes: evidence.homes().to_vec(),
            local_access_percent: view.metrics.local_access_percent.get().copied(),
            controller_imbalance_percent: view.metrics.controller_imbalance_percent.get().copied(),
        },
    }
}
