//! The oracle: a policy that has seen the whole run before.
//!
//! Bolosky et al. (section 3.1) could not measure `T_optimal`, the time "when running under a page placement
//! strategy that minimizes the sum of user and NUMA-related system time using future knowledge". Here the
//! program runs first under first touch, which records who uses each page. Then each page is put where it
//! belongs when it is first touched, and stays there. That costs nothing but the first touch. The owner of a
//! page is a guess that a run has to judge, so there is a run for each of two guesses.
//!
//! A policy that moves pages after a program's phases, or copies them between writes, can do better. So can
//! one that spreads private pages when all threads are on one node. Under some policies threads come into
//! step, and share what their caches hold. The oracle therefore also sees the program run under every other
//! policy that names no node. The fastest of all these runs is the oracle's. It is an upper bound for the
//! policies that there are, and no claim that no placement is better.

use crate::Error;
use std::cmp::Reverse;

use nodewise_hardware::{Preset, Touch};

use super::machine::SimMachine;
use super::memory::State;
use super::{POLICIES, Policy, Report, Settings, Simulation};
use crate::Program;

/// The shares of a page's accesses, in percent, from which it belongs to one node: most of them, which is
/// best where controllers have time, and nearly all, which leaves more pages to even them out with.
const OWNED_PERCENT: [u64; 2] = [51, 75];

/// The accesses of each node to each page.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    nodes: usize,
    /// DRAM accesses, `[page * nodes + node]`; and those since the last write.
    accesses: Vec<u32>,
    since: Vec<u32>,
    /// Writes, those that caches absorbed too.
    writes: Vec<u32>,
}

impl Record {
    pub(crate) fn new(pages: usize, nodes: usize) -> Record {
        Record {
            nodes,
            accesses: vec![0; pages * nodes],
            since: vec![0; pages * nodes],
            writes: vec![0; pages],
        }
    }

    /// Notes an access.
    pub(crate) fn note(&mut self, page: usize, node: usize, write: bool, missed: bool) {
        let first = page * self.nodes;
        if write {
            self.writes[page] += 1;
            self.since[first..first + self.nodes].fill(0);
        }
        if missed {
            self.accesses[first + node] += 1;
            self.since[first + node] += u32::from(!write);
        }
    }

    /// Sums over the pages that can only be placed together.
    fn sum(&self, counts: &[u32], pages: &std::ops::Range<usize>) -> Vec<u64> {
        let mut sums = vec![0; self.nodes];
        for counts in counts[pages.start * self.nodes..pages.end * self.nodes].chunks(self.nodes) {
            sums.iter_mut().zip(counts).for_each(|(sum, &count)| *sum += u64::from(count));
        }
        sums
    }

    /// DRAM accesses of a page by each node.
    pub(crate) fn accesses(&self, page: usize) -> &[u32] {
        &self.accesses[page * self.nodes..(page + 1) * self.nodes]
    }

    /// Where each page may belong. `unit`: pages that can only be placed together; `nodes`: those that have
    /// memory.
    pub(crate) fn plans(&self, unit: usize, nodes: &[usize]) -> [Plan; OWNED_PERCENT.len()] {
        OWNED_PERCENT.map(|owned_percent| self.plan(unit, nodes, owned_percent))
    }

    fn plan(&self, unit: usize, nodes: &[usize], owned_percent: u64) -> Plan {
        let pages = self.writes.len();
        let mut plan =
            Plan { homes: vec![None; pages], copied: vec![false; pages], writes: self.writes.clone() };
        let mut loads = vec![0; self.nodes];
        let mut contended = Vec::new();
        for start in (0..pages).step_by(unit) {
            let range = start..(start + unit).min(pages);
            let mut accesses = self.sum(&self.accesses, &range);
            let total: u64 = accesses.iter().sum();
            if total == 0 {
                continue;
            }
            let top = (0..self.nodes).max_by_key(|&node| (accesses[node], Reverse(node))).unwrap_or(0);
            if accesses[top] * 100 >= total * owned_percent && nodes.contains(&top) {
                loads[top] += total;
                plan.homes[range].fill(Some(top as u8));
                continue;
            }
            let readers = self.sum(&self.since, &range);
            if unit == 1 && readers.iter().sum::<u64>() * 2 > total {
                // Every reader will find a copy at home; what comes before goes to the original.
                loads.iter_mut().zip(&readers).for_each(|(load, reads)| *load += reads);
                accesses.iter_mut().zip(&readers).for_each(|(all, reads)| *all -= reads);
                plan.copied[start] = true;
            }
            contended.push((accesses.iter().sum(), start, accesses));
        }
        // Pages that nobody owns even the controllers out, the heaviest first, their users' nodes preferred.
        contended.sort_by_key(|&(total, start, _): &(u64, usize, _)| (Reverse(total), start));
        for (total, start, accesses) in contended {
            let best = nodes.iter().copied().min_by_key(|&node| (loads[node] + total - accesses[node], node));
            let best = best.unwrap_or(0);
            loads[best] += total;
            plan.homes[start..(start + unit).min(pages)].fill(Some(best as u8));
        }
        plan
    }
}

/// Where pages belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// None for pages that nobody used.
    homes: Vec<Option<u8>>,
    /// Pages that every node shall have a copy of after the last write.
    copied: Vec<bool>,
    /// Writes that are still to come.
    writes: Vec<u32>,
}

impl Plan {
    /// The node for a page; the first one, for one that was not used.
    pub(crate) fn home(&self, page: usize) -> usize {
        self.homes[page].map_or(0, usize::from)
    }

    /// Whether every node shall have a copy of a page, some time.
    pub(crate) fn copies(&self, page: usize) -> bool {
        self.copied[page]
    }
}

impl SimMachine {
    /// An access to a page that will be copied once nobody writes it any more. Returns the node it goes to.
    pub(super) fn planned(&mut self, thread: usize, page: usize, touch: Touch) -> usize {
        let node = self.threads[thread].1;
        let (Some(home), Some(plan)) = (self.memory.home(page), &mut self.plan) else { return node };
        let left = &mut plan.writes[page];
        if touch.writes() {
            *left = left.saturating_sub(1);
            return home;
        }
        if *left > 0 {
            return home;
        }
        self.memory.unmark(page);
        if self.memory.replicate(page) {
            self.done.replicated += 1;
        }
        let copied = self.memory.state(page) == State::Replicated && self.memory.nodes().contains(&node);
        if copied { node } else { home }
    }
}

/// The policies whose runs the oracle has to have seen: all that name no node and that this machine runs.
#[must_use]
pub fn candidates(preset: &Preset, threads: usize, settings: &Settings) -> Vec<Policy> {
    let others = POLICIES.iter().filter_map(|(name, _)| name.parse().ok());
    others
        .filter(|policy| *policy != Policy::Oracle)
        .filter(|policy| Simulation::check(preset, threads, settings, policy).is_ok())
        .collect()
}

/// The oracle's run, given those under all [`candidates`]. `build` makes the program anew for each run;
/// `progress` is told now and then how many operations have been simulated, all runs together.
///
/// Fails as [`Simulation::new`] and [`Simulation::run`] do.
pub fn oracle(
    preset: &Preset,
    build: &dyn Fn() -> Box<dyn Program>,
    settings: &Settings,
    others: &[Report],
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Error> {
    let simulation = |policy: &Policy| Simulation::new(preset, build(), settings.clone(), policy.clone());
    let (mut before, mut last) = (0, 0);
    let (seen, plans) = simulation(&Policy::FirstTouch)?.observe(&mut |now| {
        last = now;
        progress(now);
    })?;
    let mut best = seen;
    for plan in plans {
        before += last;
        let report = simulation(&Policy::Oracle)?.after(plan).run(&mut |now| {
            last = now;
            progress(before + now);
        })?;
        if report.run_time_s < best.run_time_s {
            best = report;
        }
    }
    let fastest = others.iter().min_by(|one, other| one.run_time_s.total_cmp(&other.run_time_s));
    if let Some(other) = fastest.filter(|other| other.run_time_s < best.run_time_s) {
        best = other.clone();
    }
    Ok(Report { policy: Policy::Oracle.to_string(), ..best })
}

/// Runs a program under a policy to its end, as often as the policy needs: the [`oracle`] under all others
/// first. `build` makes the program anew each time; `progress` is told now and then how many operations have
/// been simulated, all runs together.
///
/// Fails as [`Simulation::new`] and [`Simulation::run`] do.
pub fn simulate(
    preset: &Preset,
    build: &dyn Fn() -> Box<dyn Program>,
    settings: &Settings,
    policy: &Policy,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Error> {
    if *policy != Policy::Oracle {
        return Simulation::new(preset, build(), settings.clone(), policy.clone())?.run(progress);
    }
    let threads = build().threads();
    Simulation::check(preset, threads, settings, policy)?;
    let (mut before, mut last) = (0, 0);
    let mut others = Vec::new();
    for other in candidates(preset, threads, settings).iter().filter(|other| **other != Policy::FirstTouch) {
        let run = simulate(preset, build, settings, other, &mut |now| {
            last = now;
            progress(before + now);
        });
        others.push(run.map_err(|error| error.of(other))?);
        before += last;
    }
    oracle(preset, build, settings, &others, &mut |now| progress(before + now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_belong_to_who_uses_them_most() {
        let mut record = Record::new(5, 4);
        let mut note = |page, node, write, times| {
            (0..times).for_each(|_| record.note(page, node, write, true));
        };
        // One node's but for a few accesses; all nodes' after one has written; written by all, much and
        // little.
        note(0, 2, true, 90);
        note(0, 1, false, 10);
        note(1, 3, true, 10);
        (0..4).for_each(|node| note(1, node, false, 20));
        (0..4).for_each(|node| note(2, node, true, 100));
        (0..4).for_each(|node| note(3, node, true, 10 + node as u32));
        let plan = record.plan(1, &[0, 1, 2, 3], 75);
        assert_eq!(plan.copied, [false, true, false, false, false]);
        assert_eq!(plan.writes, [90, 10, 400, 46, 0]);
        // Node 2 has 100 accesses already, the others their reads of the copies; what comes before these goes
        // where least else does.
        assert_eq!(plan.homes[..], [Some(2), Some(1), Some(0), Some(3), None]);
        assert_eq!(record.plan(1, &[1, 3], 75).homes[2], Some(1));
    }
}
