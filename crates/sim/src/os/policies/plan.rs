//! The oracle's record of a run, and the placement that it makes of it.

use crate::os::kernel::machine::SimMachine;
use crate::os::kernel::memory::State;
use nodewise_hardware::Touch;
use std::cmp::Reverse;

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
    pub(crate) fn new(pages: usize, nodes: usize) -> Self {
        Self {
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
    pub(crate) fn planned(&mut self, thread: usize, page: usize, touch: Touch) -> usize {
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
            self.counts.replicated += 1;
        }
        let copied = self.memory.state(page) == State::Replicated && self.memory.nodes().contains(&node);
        if copied { node } else { home }
    }
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
