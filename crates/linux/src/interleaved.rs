//! Memory that is being interleaved over nodes, and how much of it still waits.

use crate::bounds;
use crate::known_homes::KnownHomes;
use nodewise_engine::{Action, Decision, Interleaving, PageNumber, PageRange, Pid, RangeMap, Unmoved};
use std::collections::BTreeMap;

/// Ranges that were to be interleaved: where the last band ends, and the seed of the choice.
#[derive(Default)]
pub(crate) struct InterleavedRanges {
    ranges: BTreeMap<Pid, RangeMap<(u64, u64)>>,
    /// The ranges of a process that come first are others each time, where there are too many to look at.
    turn: usize,
    /// Whether pages were to be interleaved since the last observation.
    lately: bool,
}

impl InterleavedRanges {
    pub(crate) fn retain(&mut self, keep: impl Fn(Pid) -> bool) {
        self.ranges.retain(|&pid, _| keep(pid));
    }

    /// Forgets what lies outside a process's memory (disjoint ranges, in order).
    pub(crate) fn clip(&mut self, pid: Pid, mapped: &[PageRange]) {
        if let Some(ranges) = self.ranges.get_mut(&pid) {
            ranges.clip(mapped);
        }
    }

    /// Whether ranges were forgotten for want of room.
    pub(crate) fn is_full(&self) -> bool {
        self.ranges.values().any(|ranges| ranges.dropped() > 0)
    }

    /// Notes decisions about one process.
    pub(crate) fn note(&mut self, pid: Pid, decisions: &[Decision]) {
        let mut bands: BTreeMap<(PageNumber, PageNumber), (u64, u64)> = BTreeMap::new();
        for decision in decisions {
            if let Action::Interleave(Interleaving { band, seed, .. }) = decision.action {
                let last = bands.entry((decision.range.start, decision.range.end)).or_insert((0, seed));
                last.0 = last.0.max(band.1);
            }
        }
        self.lately |= !bands.is_empty();
        let ranges = self.ranges.entry(pid).or_default();
        for ((start, end), band) in bands {
            ranges.insert(PageRange { start, end }, band);
        }
        let most = (bounds::RANGES / self.ranges.len()).min(bounds::RANGES_EACH);
        self.ranges.values_mut().for_each(|ranges| ranges.limit(most));
    }

    /// The homes of pages of ranges that are being interleaved, if any of them may be elsewhere than it was.
    pub(crate) fn unmoved(
        &self,
        pid: Pid,
        known: Option<&KnownHomes>,
        nodes: usize,
        is_huge: impl Fn(PageNumber) -> bool,
        sampled: bool,
    ) -> Vec<Unmoved> {
        /// Blocks of 2 MiB, in all ranges together (2 GiB take some ms), and in each at least.
        const LOOKED_AT: (usize, usize) = (1024, 8);
        let (Some(interleaved), Some(known)) = (self.ranges.get(&pid), known) else { return Vec::new() };
        if !sampled && !self.lately {
            return Vec::new();
        }
        let ranges = interleaved.iter().count().max(1);
        let most = (LOOKED_AT.0 / ranges).max(LOOKED_AT.1) as u64;
        let some = ranges.min(LOOKED_AT.0 / LOOKED_AT.1);
        let in_turn = interleaved.iter().chain(interleaved.iter()).skip(self.turn % ranges).take(some);
        let seen = in_turn.map(|(range, &(end, seed))| {
            let waits = |page, pages| u64::from(Interleaving::order(page, pages, seed)) >= end;
            let (pages, mut all, mut waiting) = known.unmoved(range, most, nodes, &is_huge, waits);
            all.iter_mut().chain(&mut waiting).for_each(|share| *share /= pages.max(1) as f32);
            Unmoved { range, all, waiting }
        });
        seen.collect()
    }

    /// Pages that are interleaved from now on come before the next observation.
    pub(crate) const fn observed(&mut self) {
        self.lately = false;
        self.turn = self.turn.wrapping_add(64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::Reason;
    use nodewise_topology::NodeIndex;

    fn interleave(start: u64) -> Decision {
        let action = Interleaving { from: NodeIndex(0), band: (0, 1 << 32), weights: vec![1; 4], seed: 1 };
        Decision {
            pid: Pid(1),
            range: PageRange::new(start, start + 1),
            action: Action::Interleave(action),
            reason: Reason::default(),
        }
    }

    #[test]
    fn ranges_without_end_take_neither_memory_nor_time() {
        let mut interleaved = InterleavedRanges::default();
        for round in 0..100 {
            let decisions: Vec<Decision> = (0..1000).map(|i| interleave((round * 1000 + i) * 2)).collect();
            interleaved.note(Pid(1), &decisions);
        }
        assert!(interleaved.ranges[&Pid(1)].iter().count() <= bounds::RANGES_EACH);
        assert!(interleaved.is_full());
        let known = KnownHomes::default();
        let mut look = || {
            let seen = interleaved.unmoved(Pid(1), Some(&known), 4, |_| false, true);
            interleaved.observed();
            seen.iter().map(|seen| seen.range.start).collect::<Vec<_>>()
        };
        let (first, second) = (look(), look());
        assert!(first.len() == 128 && first != second, "others in turn");
        interleaved.clip(Pid(1), &[PageRange::new(0, 10)]);
        assert!(
            interleaved.ranges[&Pid(1)].iter().all(|(range, _)| range.end.0 <= 10),
            "what is unmapped is gone"
        );
    }
}
