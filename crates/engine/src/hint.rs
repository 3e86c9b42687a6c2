//! The statements of programs about their own memory.

use crate::region::RangeMap;
use crate::{Mapping, MappingKind, PageRange};
use serde::{Deserialize, Serialize};

/// How a program says that it uses a range: the placement pragmas that Bolosky et al. (SOSP 1989, sections
/// 4.3 and 4.4) wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Each page by the threads of one node: to be collocated, never interleaved.
    Private,
    /// Read by many, hardly ever written: to be replicated where that is possible, and never collocated.
    ReadShared,
    /// Written by many: to be interleaved at once, without waiting for evidence, and never collocated.
    WriteShared,
}

/// A hint and where it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hinted {
    /// Which pages.
    pub range: PageRange,
    /// How they are used.
    pub hint: Hint,
    /// Whether the program has interleaved them itself, so that they need not be again.
    #[serde(rename = "spread")]
    pub interleaved: bool,
}

/// The hints of one process: disjoint, and only where it has memory of its own.
#[derive(Clone, Debug, Default)]
pub struct Hints(RangeMap<(Hint, bool)>);

/// More than these are not taken in.
const HINTS_MAX: usize = 4096;

impl Hints {
    /// The later of two hints that overlap holds.
    pub(crate) fn new(hints: &[Hinted]) -> Self {
        let mut map = RangeMap::default();
        for hinted in hints.iter().take(HINTS_MAX) {
            map.insert(hinted.range, (hinted.hint, hinted.interleaved));
        }
        Self(map)
    }

    /// The hints that hold in anonymous and shared memory of these mappings, in order; a file's pages belong
    /// to others too.
    pub(crate) fn within(&self, mappings: &[Mapping]) -> Self {
        let own = mappings.iter().filter(|mapping| mapping.kind != MappingKind::File);
        let mut within = self.clone();
        within.0.clip(&own.map(|mapping| mapping.range).collect::<Vec<_>>());
        within
    }

    /// The hint that holds at a range's parts, in order; together the range.
    pub(crate) fn parts(&self, range: PageRange) -> impl Iterator<Item = (PageRange, Option<Hint>)> {
        self.0.parts(range).into_iter().map(|(part, hinted)| (part, hinted.map(|(hint, _)| *hint)))
    }

    /// The parts of a range that may be collocated.
    pub(crate) fn collocatable(&self, range: PageRange) -> impl Iterator<Item = PageRange> {
        let shared = [Some(Hint::ReadShared), Some(Hint::WriteShared)];
        self.parts(range).filter(move |(_, hint)| !shared.contains(hint)).map(|(part, _)| part)
    }

    /// Whether a page may be collocated.
    pub(crate) fn is_collocatable(&self, page: u64) -> bool {
        self.0.is_empty() || self.collocatable(PageRange::new(page, page + 1)).next().is_some()
    }

    /// The parts of a range that may be interleaved.
    pub(crate) fn interleavable(&self, range: PageRange) -> impl Iterator<Item = PageRange> {
        self.parts(range).filter(|(_, hint)| *hint != Some(Hint::Private)).map(|(part, _)| part)
    }

    /// The ranges with this hint.
    pub(crate) fn ranges(&self, wanted: Hint) -> impl Iterator<Item = PageRange> {
        self.0.iter().filter(move |(_, (hint, _))| *hint == wanted).map(|(range, _)| range)
    }

    /// The ranges that the program has interleaved itself.
    pub(crate) fn already_interleaved(&self) -> impl Iterator<Item = PageRange> {
        self.0.iter().filter(|(_, (_, interleaved))| *interleaved).map(|(range, _)| range)
    }
}
