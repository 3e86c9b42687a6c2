//! The actions on a process's pages so far, so that nothing is done twice and nothing bounces.

use crate::decision::BAND_END;
use crate::memory::HUGE_PAGE_PAGES;
use crate::region::{RangeMap, Table, oldest};
use crate::{Interleaving, PageRange, Unmoved};
use nodewise_topology::NodeIndex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How patiently ranges are left alone after they were acted upon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PatienceSettings {
    /// A range that was moved is left alone for this many intervals, twice as long after each time its
    /// accessor changed soon after a move.
    pub rest_intervals: u32,
    /// A range that was not moved again for this many rests counts as calm: the doubling starts over.
    pub calm_rests: u32,
    /// The doubling ends here.
    pub max_rest_intervals: u32,
}

impl Default for PatienceSettings {
    fn default() -> Self {
        Self { rest_intervals: 2, calm_rests: 8, max_rest_intervals: 512 }
    }
}

/// A range that was collocated.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Collocated {
    to: NodeIndex,
    round: u32,
    /// Changes of mind, or tries without success, in a row.
    doublings: u32,
}

/// A range that is being interleaved over nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct InterleaveProgress {
    /// Pages whose place in the order is below have had their chance (32-bit numbers).
    pub done: u64,
    /// The share of the range's pages, by home node, that have not had their chance.
    pub waiting: Vec<f32>,
    /// The share of the range's pages, by home node, that were never moved or have rested since, if the
    /// machine keeps account of that. Then `waiting` is known, too.
    pub unmoved: Option<Vec<f32>>,
    /// The least share of its pages that was seen to be so.
    pub least_unmoved: f32,
    /// Decided but put off by the machine: to be repeated unchanged before anything new is decided, as long
    /// as it is right.
    pub pending: Vec<Interleaving>,
    /// How often its pages have had their chance, this time included.
    pub times: u32,
    /// The interval from which on they may have another; none while they have this one, or for ever.
    pub again: Option<u32>,
}

impl InterleaveProgress {
    /// Its pages are just having their first chance.
    pub(crate) fn begin(waiting: Vec<f32>) -> Self {
        Self {
            done: 0,
            waiting,
            unmoved: None,
            least_unmoved: 1.0,
            pending: Vec::new(),
            times: 1,
            again: None,
        }
    }

    /// How its pages stand when they have another chance.
    pub(crate) fn once_more(&self) -> Self {
        let (unmoved, times) = (self.unmoved.clone(), self.times.saturating_add(1));
        let waiting = unmoved.clone().unwrap_or_default();
        Self { unmoved, times, ..Self::begin(waiting) }
    }

    /// Somebody else has interleaved it, for good.
    pub(crate) fn by_program(nodes: usize) -> Self {
        Self { done: BAND_END, ..Self::begin(vec![0.0; nodes]) }
    }
}

/// The actions on the pages of one process so far.
#[derive(Clone, Debug)]
pub struct History {
    patience: PatienceSettings,
    collocated: RangeMap<Collocated>,
    interleaved: RangeMap<InterleaveProgress>,
    replicated: RangeMap<()>,
    resized: BTreeMap<u64, Resized>,
    singled: Table,
    /// Ranges, and huge pages that were resized, of which there is to be a record.
    most_ranges: usize,
    /// Pages that were moved on their own of which there is to be a record.
    most_singled: usize,
    dropped: u64,
}

/// A page that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastMove {
    /// The last time.
    pub round: u32,
    /// How often on its own.
    pub times: u8,
}

impl LastMove {
    const BYTES: usize = 5;

    fn read(record: &[u8]) -> Self {
        Self { round: u32::from_le_bytes([record[0], record[1], record[2], record[3]]), times: record[4] }
    }

    fn write(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.round.to_le_bytes();
        [a, b, c, d, self.times]
    }
}

/// A huge page that was split, or made again since.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Resized {
    round: u32,
    /// How often its size was changed, or was to be.
    times: u32,
    /// Whether it is in base pages now.
    split: bool,
}

impl History {
    pub(crate) fn new(patience: &PatienceSettings) -> Self {
        Self {
            patience: patience.clone(),
            collocated: RangeMap::default(),
            interleaved: RangeMap::default(),
            replicated: RangeMap::default(),
            resized: BTreeMap::new(),
            singled: Table::new(LastMove::BYTES),
            most_ranges: usize::MAX,
            most_singled: usize::MAX,
            dropped: 0,
        }
    }

    /// Keeps records of no more ranges, of each kind, and of no more single pages than so many. Beyond them
    /// some is forgotten, and may be done again.
    pub(crate) fn limit(&mut self, ranges: usize, singled: usize) {
        (self.most_ranges, self.most_singled) = (ranges, singled);
        self.collocated.limit(ranges);
        self.interleaved.limit(ranges);
        self.replicated.limit(ranges);
        self.thin();
    }

    /// How many records were forgotten for want of room.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped + self.collocated.dropped() + self.interleaved.dropped() + self.replicated.dropped()
    }

    /// Forgets the oldest of too many records of pages, and a quarter more.
    fn thin(&mut self) {
        let before = self.resized.len() + self.singled.len();
        if self.resized.len() > self.most_ranges {
            let rounds = self.resized.values().map(|last| last.round).collect();
            let mut is_old = oldest(rounds, self.resized.len() - self.most_ranges / 4 * 3);
            self.resized.retain(|_, last| !is_old(last.round));
        }
        if self.singled.len() > self.most_singled {
            let all = 0..self.singled.len();
            let rounds = all.map(|at| LastMove::read(self.singled.record(at)).round).collect();
            let mut is_old = oldest(rounds, self.singled.len() - self.most_singled / 4 * 3);
            self.singled.retain(|_, record| !is_old(LastMove::read(record).round));
        }
        self.dropped += (before - self.resized.len() - self.singled.len()) as u64;
    }

    /// The parts of a range that may be collocated now. A few pages are mostly in caches. They follow a
    /// thread that goes to another node only after a long rest.
    #[must_use]
    pub fn collocatable(&self, range: PageRange, to: NodeIndex, round: u32) -> Vec<PageRange> {
        const FEW_PAGES: u64 = 16;
        const DOUBLINGS_OF_FEW: u32 = 6;
        let anew = if range.pages() < FEW_PAGES { DOUBLINGS_OF_FEW } else { 1 };
        self.parts_free(range, |last| {
            let doublings = last.doublings + if last.to == to { 0 } else { anew };
            round >= last.round + self.rest(doublings)
        })
    }

    /// The parts among them that were not collocated with this node last.
    #[must_use]
    pub fn collocatable_anew(&self, range: PageRange, to: NodeIndex, round: u32) -> Vec<PageRange> {
        self.parts_free(range, |last| last.to != to && round >= last.round + self.rest(last.doublings + 1))
    }

    /// The rest of a range of which most was collocated with this node: the parts that never were.
    #[must_use]
    pub fn left_over(&self, range: PageRange, to: NodeIndex) -> Vec<PageRange> {
        let (mut there, mut rest) = (0, Vec::new());
        for (part, last) in self.collocated.parts(range) {
            match last {
                Some(last) if last.to == to => there += part.pages(),
                Some(_) => {}
                None => rest.push(part),
            }
        }
        if 2 * there > range.pages() { rest } else { Vec::new() }
    }

    fn parts_free(&self, range: PageRange, is_free: impl Fn(&Collocated) -> bool) -> Vec<PageRange> {
        let mut parts: Vec<PageRange> = Vec::new();
        for (part, last) in self.collocated.parts(range) {
            let free = last.is_none_or(&is_free);
            match parts.last_mut() {
                Some(left) if free && left.end == part.start => left.end = part.end,
                _ if free => parts.push(part),
                _ => {}
            }
        }
        parts
    }

    /// How long a range rests.
    fn rest(&self, doublings: u32) -> u32 {
        let rest =
            self.patience.rest_intervals.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        rest.min(self.patience.max_rest_intervals)
    }

    /// Tells of pages of a range, asked for in address order, when each was moved last, on its own or with
    /// its range.
    pub fn last_moves(&self, range: PageRange) -> impl FnMut(u64) -> Option<LastMove> {
        let mut alone = self.singled(range).peekable();
        let mut together = self.collocated.parts(range).into_iter().peekable();
        move |page| {
            while alone.next_if(|&(before, _)| before < page).is_some() {}
            while together.next_if(|(before, _)| before.end.0 <= page).is_some() {}
            let alone = alone.next_if(|&(at, _)| at == page).map(|(_, last)| last);
            let together = together.peek().and_then(|(_, last)| *last);
            let times = alone.map_or(0, |last| last.times);
            let round = alone.map(|last| last.round).max(together.map(|last| last.round))?;
            Some(LastMove { round, times })
        }
    }

    /// The pages of a range that were moved on their own, in address order.
    fn singled(&self, range: PageRange) -> impl Iterator<Item = (u64, LastMove)> {
        let positions = self.singled.positions(range.start.0, range.end.0);
        positions.map(|at| (self.singled.pages()[at], LastMove::read(self.singled.record(at))))
    }

    /// Whether a page that was moved has rested.
    #[must_use]
    pub fn has_rested(&self, last: LastMove, round: u32) -> bool {
        round >= last.round + self.rest(u32::from(last.times))
    }

    /// The parts of a range with how far each has been interleaved.
    #[must_use]
    pub fn interleave_progress(&self, range: PageRange) -> Vec<(PageRange, Option<&InterleaveProgress>)> {
        self.interleaved.parts(range)
    }

    /// Whether more than half of a range has been interleaved.
    #[must_use]
    pub fn is_interleaved(&self, range: PageRange) -> bool {
        let parts = self.interleaved.parts(range).into_iter();
        2 * parts.filter(|(_, progress)| progress.is_some()).map(|(part, _)| part.pages()).sum::<u64>()
            > range.pages()
    }

    /// Interleaving that was decided and put off by the machine.
    pub fn pending(&self) -> impl Iterator<Item = (PageRange, &Interleaving)> {
        self.interleaved
            .iter()
            .flat_map(|(range, progress)| progress.pending.iter().map(move |next| (range, next)))
    }

    /// The parts of a range that were not reported as worth replicating yet.
    #[must_use]
    pub fn replicatable(&self, range: PageRange) -> Vec<PageRange> {
        let fresh = self.replicated.parts(range).into_iter().filter(|(_, done)| done.is_none());
        fresh.map(|(part, _)| part).collect()
    }

    /// Whether a huge page may be split now: at once the first time, and after an ever longer rest when it
    /// was made again since.
    #[must_use]
    pub fn splittable(&self, page: u64, round: u32) -> bool {
        self.resized.get(&page).is_none_or(|last| round >= last.round + self.rest(last.times))
    }

    /// How many huge pages of a range were split.
    pub(crate) fn split_in(&self, range: PageRange) -> usize {
        self.resized.range(range.start.0..range.end.0).filter(|(_, last)| last.split).count()
    }

    /// Whether huge pages were split so lately that their base pages may not have shown who uses them.
    pub(crate) fn has_split(&self, round: u32) -> bool {
        const LATELY: u32 = 20;
        self.resized.values().any(|last| last.split && round < last.round + LATELY)
    }

    /// The huge pages that were split and have rested for as long since as pays for making them anew.
    pub(crate) fn split_before(&self, round: u32) -> impl Iterator<Item = u64> {
        const LEAST: u32 = 16;
        let rested = move |last: &Resized| round >= last.round + self.rest(last.times).max(LEAST);
        self.resized.iter().filter(move |(_, last)| last.split && rested(last)).map(|(&page, _)| page)
    }

    /// Notes that a huge page was split or made anew, or was to be. Earlier actions on it as it was before
    /// are void.
    pub(crate) fn resized(&mut self, page: u64, split: bool, round: u32) {
        let range = PageRange::new(page, page + HUGE_PAGE_PAGES);
        self.interleaved.remove(range);
        self.collocated.remove(range);
        let times = self.resized.get(&page).map_or(1, |last| last.times.saturating_add(1));
        self.resized.insert(page, Resized { round, times, split });
        self.thin();
    }

    pub(crate) fn collocated(&mut self, range: PageRange, to: NodeIndex, progress: bool, round: u32) {
        let parts: Vec<_> =
            self.collocated.parts(range).into_iter().map(|(p, last)| (p, last.copied())).collect();
        for (part, last) in parts {
            let doublings = last.map_or(0, |last| {
                let calm = self.rest(last.doublings).saturating_mul(self.patience.calm_rests);
                if round.saturating_sub(last.round) > calm {
                    0
                } else {
                    last.doublings + u32::from(last.to != to || !progress)
                }
            });
            let doublings = doublings.max(u32::from(!progress));
            self.collocated.insert(part, Collocated { to, round, doublings });
        }
    }

    /// Notes how far a range is interleaved. When next to all of its pages have had their chance they rest,
    /// and longer each time. Others, the kernel among them, may move pages meanwhile, or loads turn out
    /// otherwise than predicted.
    pub(crate) fn note_interleaved(&mut self, range: PageRange, mut state: InterleaveProgress, round: u32) {
        const NEXT_TO_ALL: u64 = BAND_END / 10 * 9;
        if state.done >= NEXT_TO_ALL {
            state.again = state.again.or(Some(round + self.rest(state.times)));
        }
        self.interleaved.insert(range, state);
    }

    /// Notes where pages of a range were seen to be. Their next chance is put off no more when many have
    /// rested, and may move again.
    pub(crate) fn looked(&mut self, seen: &Unmoved) {
        const MANY: f32 = 0.25;
        let all: f32 = seen.all.iter().sum();
        self.interleaved.alter(seen.range, |progress| {
            let have_rested = all >= progress.least_unmoved + MANY;
            let least_unmoved = if have_rested { all } else { progress.least_unmoved.min(all) };
            let again = progress.again.map(|again| if have_rested { 0 } else { again });
            let (waiting, unmoved) = (seen.waiting.clone(), Some(seen.all.clone()));
            InterleaveProgress { waiting, unmoved, least_unmoved, again, ..progress.clone() }
        });
    }

    /// Notes that the program has interleaved a range itself.
    pub(crate) fn note_interleaved_by_program(&mut self, range: PageRange, nodes: usize) {
        self.interleaved.insert(range, InterleaveProgress::by_program(nodes));
    }

    /// Notes that pages were moved each on its own.
    pub(crate) fn note_singled(&mut self, mut pages: Vec<u64>, round: u32) {
        let (mut new, mut bytes, mut at) = (Vec::new(), Vec::new(), 0);
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            at = self.singled.seek(at, page);
            if self.singled.pages().get(at) == Some(&page) {
                let record = self.singled.record_mut(at);
                let times = LastMove::read(record).times.saturating_add(1);
                record.copy_from_slice(&LastMove { round, times }.write());
            } else {
                new.push(page);
                bytes.extend(LastMove { round, times: 1 }.write());
            }
        }
        self.singled.insert(&new, &bytes);
        self.thin();
    }

    pub(crate) fn replicated(&mut self, range: PageRange) {
        self.replicated.insert(range, ());
    }

    pub(crate) fn clip(&mut self, mapped: &[PageRange]) {
        self.collocated.clip(mapped);
        self.interleaved.clip(mapped);
        self.replicated.clip(mapped);
        let holds = |page: u64| {
            let at = mapped.partition_point(|range| range.end.0 <= page);
            mapped.get(at).is_some_and(|range| range.start.0 <= page)
        };
        self.resized.retain(|&page, _| holds(page));
        self.singled.retain(|page, _| holds(page));
    }

    pub(crate) fn forget_calm(&mut self, round: u32) {
        let patience = self.patience.clone();
        let long = patience.max_rest_intervals.saturating_mul(patience.calm_rests);
        self.collocated.retain(|_, last| round.saturating_sub(last.round) <= long);
        self.singled.retain(|_, record| round.saturating_sub(LastMove::read(record).round) <= long);
    }

    /// Bytes on the heap, next to all.
    pub(crate) fn heap_bytes(&self) -> usize {
        let ranges =
            self.collocated.heap_bytes() + self.interleaved.heap_bytes() + self.replicated.heap_bytes();
        ranges + self.resized.len() * size_of::<(u64, Resized)>() + self.singled.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_what_never_went_where_most_is() {
        let mut history = History::new(&PatienceSettings::default());
        let (range, rest) = (PageRange::new(0, 100), PageRange::new(80, 100));
        assert!(history.left_over(range, NodeIndex(1)).is_empty(), "nothing was begun");
        history.collocated(PageRange::new(0, 70), NodeIndex(1), true, 5);
        history.collocated(PageRange::new(70, 80), NodeIndex(2), true, 5);
        assert_eq!(history.left_over(range, NodeIndex(1)), [rest]);
        assert!(history.left_over(range, NodeIndex(2)).is_empty());
        assert!(history.left_over(PageRange::new(30, 200), NodeIndex(1)).is_empty(), "the least of it");
    }

    #[test]
    fn pages_have_another_chance_when_many_may_move_again() {
        let mut history = History::new(&PatienceSettings::default());
        let range = PageRange::new(0, 100);
        let done = InterleaveProgress { done: BAND_END, times: 7, ..InterleaveProgress::begin(vec![0.0; 2]) };
        history.note_interleaved(range, done, 10);
        let again_after = |history: &mut History, unmoved: f32| {
            history.looked(&Unmoved { range, all: vec![unmoved, 0.0], waiting: vec![0.0; 2] });
            history.interleave_progress(range)[0].1.as_ref().unwrap().again
        };
        assert_eq!(again_after(&mut history, 0.02), Some(10 + 256));
        // Block by block.
        assert_eq!(again_after(&mut history, 0.1), Some(10 + 256));
        assert_eq!(again_after(&mut history, 0.2), Some(10 + 256));
        assert_eq!(again_after(&mut history, 0.3), Some(0));
    }

    #[test]
    fn a_few_pages_do_not_run_after_a_thread() {
        let mut history = History::new(&PatienceSettings::default());
        let (few, many) = (PageRange::new(0, 2), PageRange::new(100, 200));
        let (here, there) = (NodeIndex(0), NodeIndex(1));
        for range in [few, many] {
            history.collocated(range, here, true, 1);
        }
        let free = |range, to, round| !history.collocatable(range, to, round).is_empty();
        assert!(!free(many, there, 4) && free(many, there, 5));
        assert!(!free(few, there, 128) && free(few, there, 129));
        // Pages that did not come along the first time still may.
        assert!(free(few, here, 3) && free(many, here, 3));
    }

    #[test]
    fn what_was_done_last_is_remembered() {
        let mut history = History::new(&PatienceSettings::default());
        history.limit(100, 100);
        for round in 0..1000_u32 {
            // In no order of addresses.
            let page = u64::from(round) * 7919 % 1009;
            history.note_singled(vec![page], round);
            history.resized(page * HUGE_PAGE_PAGES, true, round);
            // Elsewhere: what was resized is not collocated any more.
            let at = (1 << 40) + 2 * page;
            history.collocated(PageRange::new(at, at + 1), NodeIndex(0), true, round);
        }
        let all = PageRange::new(0, 1 << 30);
        let mut singled: Vec<u32> = history.singled(all).map(|(_, last)| last.round).collect();
        let mut resized: Vec<u32> = history.resized.values().map(|last| last.round).collect();
        let mut collocated: Vec<u32> = history.collocated.iter().map(|(_, last)| last.round).collect();
        for rounds in [&mut singled, &mut resized, &mut collocated] {
            rounds.sort_unstable();
            let kept = rounds.len() as u32;
            assert!((75..=100).contains(&kept), "{kept}");
            assert_eq!(*rounds, (1000 - kept..1000).collect::<Vec<_>>());
        }
        assert_eq!(history.dropped(), 3000 - (singled.len() + resized.len() + collocated.len()) as u64);
        // All in one round.
        history.note_singled((5000..5200).collect(), 1000);
        assert!((75..=100).contains(&history.singled(all).count()));
    }
}
