//! The policy's questions about ranges of pages.

use super::pages::Page;
use super::{Region, RegionMap, SURVEYED};
use crate::{PageNumber, PageRange};

impl RegionMap {
    /// The page records in a range.
    pub(crate) fn page_records(&self, range: PageRange) -> impl Iterator<Item = (u64, Page<'_>)> {
        self.pages.range(range.start.0, range.end.0, self.round)
    }

    /// The homes of the recorded pages of a range as last sampled, as shares of all of them by node, counting
    /// only the pages that `which` picks; none if too few have a record.
    pub(crate) fn homes_in(&self, range: PageRange, which: impl Fn(PageNumber) -> bool) -> Option<Vec<f32>> {
        const FEW: f32 = 16.0;
        let mut homes = vec![0.0; self.nodes];
        let mut known = 0.0;
        for (page, record) in self.pages.survey(range, SURVEYED, self.round) {
            if let Some(home) = record.home().filter(|&home| usize::from(home) < self.nodes) {
                known += 1.0;
                homes[usize::from(home)] += if which(PageNumber(page)) { 1.0 } else { 0.0 };
            }
        }
        (known >= FEW).then(|| homes.into_iter().map(|home| home / known).collect())
    }

    /// How many base pages move at once in a range, of its folios the median.
    pub(crate) fn pages_at_once(&self, range: PageRange) -> u64 {
        const LOOKED_AT: usize = 64;
        let mut sizes: Vec<u64> =
            self.pages.survey(range, LOOKED_AT, self.round).map(|(_, record)| record.pages()).collect();
        sizes.sort_unstable();
        sizes.get(sizes.len().saturating_sub(1) / 2).copied().unwrap_or(1)
    }

    /// The range a decision about a region covers. Evidence reaches one spacing beyond the outermost samples,
    /// or to the next region or the end of the mapping if that is near. By chance, samples end more than
    /// five spacings before the last page in 0.7 % of cases.
    #[must_use]
    pub fn reach(&self, at: usize) -> PageRange {
        let region = &self.regions[at];
        let Some(mapping) = self.mappings.at(region.range.start.0) else { return region.range };
        let (first, last) = (mapping.range.start.0, mapping.range.end.0);
        let left = at.checked_sub(1).map_or(0, |left| self.regions[left].range.end.0);
        let right = self.regions.get(at + 1).map_or(u64::MAX, |right| right.range.start.0);
        let (low, high) = (left.max(first), right.min(last));
        let near = |is_mappings_end| region.spacing * if is_mappings_end { 5 } else { 2 };
        let PageRange { start, end } = region.range;
        let start = if start.0 - low <= near(low == first) { low } else { start.0 - region.spacing };
        let end = if high - end.0 <= near(high == last) { high } else { end.0 + region.spacing };
        PageRange::new(start, end)
    }

    /// The region that holds most of a range, of which no other holds any, and its place among the regions.
    pub(crate) fn region_of(&self, range: PageRange) -> Option<(usize, &Region)> {
        let at = self.regions.partition_point(|region| region.range.end <= range.start);
        let is_alone = |next: &Region| next.range.start >= range.end;
        let region = self.regions.get(at).filter(|_| self.regions.get(at + 1).is_none_or(is_alone))?;
        (2 * region.range.intersect(range).pages() > range.pages()).then_some((at, region))
    }

    /// Whether more is left of what was seen of a range than one sample.
    pub(crate) fn was_used_lately(&self, range: PageRange) -> bool {
        let first = self.regions.partition_point(|region| region.range.end <= range.start);
        let overlapping = self.regions[first..].iter().take_while(|region| region.range.start < range.end);
        overlapping.map(|region| region.evidence.total()).sum::<f32>() > 1.0
    }

    /// The parts of a range that no other node than this one was seen using.
    pub(crate) fn used_by_no_other(&self, range: PageRange, node: usize) -> Vec<PageRange> {
        let others = self.regions.iter().filter(|region| self.only_accessor(region) != Some(node));
        range.without(others.map(|region| region.range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HUGE_PAGE_PAGES;
    use crate::region::{Key, RegionSettings};
    use crate::{Mapping, MappingKind};

    #[test]
    fn a_region_holds_most_of_what_nobody_else_uses() {
        let whole = PageRange::new(HUGE_PAGE_PAGES, 2 * HUGE_PAGE_PAGES);
        let holds = |keys: &[Key]| {
            let mut map = RegionMap::new(4, &RegionSettings::default());
            let range = PageRange::new(0, 3 * HUGE_PAGE_PAGES);
            let mapping = Mapping { range, writable: true, kind: MappingKind::Anonymous };
            (0..4).for_each(|round| map.ingest(Some(&[mapping]), &mut keys.to_vec(), 1.0, round));
            map.region_of(whole).map(|(_, region)| region.range.pages())
        };
        let of = |pages: std::ops::Range<u64>, node: u8| -> Vec<Key> {
            pages.map(|page| Key::in_page(HUGE_PAGE_PAGES + page, node)).collect()
        };
        assert_eq!(holds(&of(20..490, 2)), Some(470));
        assert_eq!(holds(&of(20..200, 2)), None, "less than half");
        assert_eq!(holds(&[of(20..400, 2), of(400..500, 1)].concat()), None, "another node uses some");
        assert_eq!(holds(&[]), None);
    }
}
