//! Memory that is being spread over nodes, and how much of it still waits.

use crate::known_homes::KnownHomes;
use nodewise_engine::{Action, Decision, Interleaving, PageNumber, PageRange, Pid, RangeMap, Unmoved};
use std::collections::BTreeMap;

/// Ranges that were to be interleaved: where the last band ends, and the seed of the choice.
#[derive(Default)]
pub(crate) struct Spreads {
    ranges: BTreeMap<Pid, RangeMap<(u64, u64)>>,
    /// Whether pages were to be spread since the last observation.
    lately: bool,
}

impl Spreads {
    pub(crate) fn retain(&mut self, keep: impl Fn(Pid) -> bool) {
        self.ranges.retain(|&pid, _| keep(pid));
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
        for ((start, end), band) in bands {
            self.ranges.entry(pid).or_default().insert(PageRange { start, end }, band);
        }
    }

    /// Where pages are of ranges that are being spread, if any of them may be elsewhere than they were.
    pub(crate) fn unmoved(
        &self,
        pid: Pid,
        known: Option<&KnownHomes>,
        nodes: usize,
        sampled: bool,
    ) -> Vec<Unmoved> {
        /// Blocks of 2 MiB, in all ranges together (2 GiB take some ms), and in each at least.
        const LOOKED_AT: (u64, u64) = (1024, 8);
        let (Some(spread), Some(known)) = (self.ranges.get(&pid), known) else { return Vec::new() };
        if !sampled && !self.lately {
            return Vec::new();
        }
        let most = (LOOKED_AT.0 / spread.iter().count().max(1) as u64).max(LOOKED_AT.1);
        let seen = spread.iter().map(|(range, &(end, seed))| {
            let waits = |page| u64::from(Interleaving::hash(page, seed)) >= end;
            let (pages, mut all, mut waiting) = known.unmoved(range, most, nodes, waits);
            all.iter_mut().chain(&mut waiting).for_each(|share| *share /= pages.max(1) as f32);
            Unmoved { range, all, waiting }
        });
        seen.collect()
    }

    /// Pages that are spread from now on come before the next observation.
    pub(crate) const fn observed(&mut self) {
        self.lately = false;
    }
}
