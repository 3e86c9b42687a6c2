//! A region: a range of pages and what is known of it as a whole.

use super::key::Key;
use super::{Evidence, Nature, Sharing};
use crate::{Mapping, MappingKind, PageRange};

/// A range with one pattern of accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// From the first to the last sampled page, or to where the pattern changes.
    pub range: PageRange,
    /// Whether the process may write to it.
    pub writable: bool,
    /// The backing of its memory.
    pub kind: MappingKind,
    /// The accesses to it, by accessor and home.
    pub evidence: Evidence,
    /// Mean distance of sampled pages in the best interval, in pages: how far evidence reaches beyond the
    /// last sample.
    pub spacing: u64,
    /// Samples of the last interval.
    pub recent: u32,
    /// Intervals with samples since it was new, cut or changed.
    pub age: u32,
    /// Intervals with samples in all.
    pub rounds: u32,
    /// Changed in the last interval it was sampled.
    pub(crate) unlike: bool,
    /// Which of its pages have records of their own.
    pub(crate) records: Records,
    /// The sharing of its pages, as the records tell.
    pub(crate) sharing: Option<Sharing>,
    /// Changed after it had been the same for a while: the next samples show whether for good.
    pub(crate) shaken: bool,
    /// When what was known before was given up.
    pub(crate) forgot: Option<u32>,
    /// The node from which most samples came while they were unlike what was known, and for how many
    /// intervals in a row.
    pub(crate) rival: (u8, u8),
}

/// Which pages of a region have records of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Records {
    /// None: they are alike, with one accessor.
    None,
    /// Some: they are alike, with several.
    Chosen,
    /// All that are sampled: they may differ.
    All,
}

impl Region {
    /// A region of samples that no other holds.
    pub(crate) fn new(range: PageRange, mapping: &Mapping, keys: &[Key], nodes: usize) -> Self {
        Self {
            range,
            writable: mapping.writable,
            kind: mapping.kind,
            evidence: Evidence::from_keys(keys, nodes),
            spacing: range.pages() / units(keys),
            recent: keys.len() as u32,
            age: 1,
            rounds: 1,
            unlike: false,
            shaken: false,
            // Until it has shown one accessor for a while.
            records: Records::All,
            sharing: None,
            forgot: None,
            rival: (0, 0),
        }
    }

    /// Adds an interval's samples.
    pub(crate) fn update(&mut self, keys: &[Key], nodes: usize, round: u32) {
        if keys.is_empty() {
            return;
        }
        let fresh = Evidence::from_keys(keys, nodes);
        self.unlike = self.is_unlike(&fresh);
        if !self.unlike {
            self.rival = (0, 0);
        } else if self.gives_up(&fresh) {
            // A change for good: no turmoil.
            self.unlike = false;
            self.age = 0;
            self.evidence.scale(0.0);
            self.forgot = Some(round);
        }
        self.shaken = self.unlike && self.age >= 2;
        self.age = if self.unlike { 1 } else { self.age + 1 };
        self.evidence.add(&fresh);
        self.rounds += 1;
        self.recent = keys.len() as u32;
        self.spacing = self.spacing.min(self.range.pages() / units(keys));
    }

    /// Whether new samples come from other nodes than could be expected.
    fn is_unlike(&self, fresh: &Evidence) -> bool {
        const FEW: f32 = 4.0;
        let (g, degrees) = self.evidence.divergence(fresh, false);
        fresh.total() >= FEW && g > 12.0 + 4.0 * degrees
    }

    /// Whether what was known is to be forgotten in favour of samples that contradict it: a program's phases
    /// change faster than evidence fades. But hint faults give the nodes that sweep over shared memory
    /// each a turn, scan by scan: if that made us forget, shared memory would seem to be private to one
    /// after the other. So the same node must insist.
    fn gives_up(&mut self, fresh: &Evidence) -> bool {
        const INSISTENCE: u8 = 2;
        let most = fresh.most_frequent() as u8;
        self.rival = if self.rival.0 == most { (most, self.rival.1.saturating_add(1)) } else { (most, 1) };
        self.rival.1 >= INSISTENCE
    }

    /// Takes in the right neighbour.
    pub(crate) fn join(&mut self, right: &Self) {
        self.range.end = right.range.end;
        self.evidence.add(&right.evidence);
        self.spacing = self.spacing.max(right.spacing);
        self.recent += right.recent;
        self.age = self.age.max(right.age);
        self.rounds = self.rounds.max(right.rounds);
        self.shaken |= right.shaken;
        self.records = self.records.max(right.records);
        self.forgot = self.forgot.max(right.forgot);
    }

    /// Its pages are alike: no records.
    pub(crate) fn untrack(&mut self) {
        self.records = Records::None;
        self.sharing = None;
    }

    /// Whether nobody can or was seen to write to it, but for stray writes: one access in two hundred, as
    /// where a region ends within somebody else's memory.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let writes = self.evidence.writes().iter().sum::<f32>() + self.evidence.stored();
        !self.writable
            || (self.evidence.unknown() < 0.5 && writes < 0.5_f32.max(self.evidence.total() / 200.0))
    }

    /// Whether more samples would help: it is new or changed, or it is not clear whether its pages are
    /// shared.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        const SETTLED: u32 = 3;
        match self.sharing {
            Some(_) => self.nature() == Nature::Undecided,
            None => self.age < SETTLED,
        }
    }

    /// Whether pages of a region with several accessors are shared, or private and finely mixed.
    pub(crate) fn nature(&self) -> Nature {
        /// Intervals after which pages sampled once each are no longer waited for: the region is too large
        /// for that.
        const PATIENCE: u32 = 6;
        const MANY: f32 = 64.0;
        match self.sharing.as_ref().and_then(Sharing::nature) {
            _ if self.shaken => Nature::Undecided,
            None if self.age >= PATIENCE && self.evidence.total() >= MANY => Nature::Shared,
            None => Nature::Undecided,
            Some(nature) => nature,
        }
    }
}

/// How many pages that move as a whole were sampled.
fn units(keys: &[Key]) -> u64 {
    keys.chunk_by(|a, b| a.unit() == b.unit()).count() as u64
}
