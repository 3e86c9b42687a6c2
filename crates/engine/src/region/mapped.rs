//! The mappings of a process, joined where neighbours are alike.

use crate::{Mapping, PageRange};

/// Disjoint mappings in address order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped(Vec<Mapping>);

impl Mapped {
    /// Sorts mappings, and joins those that touch and differ in nothing. Where two overlap, the one that
    /// begins first counts.
    pub fn join(mappings: &[Mapping]) -> Self {
        let mut joined: Vec<Mapping> = Vec::with_capacity(mappings.len());
        let mut sorted: Vec<_> = mappings.iter().filter(|m| !m.range.is_empty()).copied().collect();
        sorted.sort_by_key(|m| m.range.start);
        for mapping in sorted {
            match joined.last_mut() {
                Some(last) if mapping.range.start < last.range.end => {}
                Some(last)
                    if last.range.end == mapping.range.start
                        && (last.writable, last.kind) == (mapping.writable, mapping.kind) =>
                {
                    last.range.end = mapping.range.end;
                }
                _ => joined.push(mapping),
            }
        }
        Self(joined)
    }

    /// All of them.
    pub fn all(&self) -> &[Mapping] {
        &self.0
    }

    /// The mapping that holds a page.
    pub fn at(&self, page: u64) -> Option<&Mapping> {
        let at = self.0.partition_point(|mapping| mapping.range.end.0 <= page);
        self.0.get(at).filter(|mapping| mapping.range.start.0 <= page)
    }

    /// The mappings that overlap a range.
    pub fn overlapping(&self, range: PageRange) -> impl Iterator<Item = &Mapping> {
        let first = self.0.partition_point(|mapping| mapping.range.end <= range.start);
        self.0[first..].iter().take_while(move |mapping| mapping.range.start < range.end)
    }
}
