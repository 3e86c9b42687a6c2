//! The knowledge of a process's memory: address ranges that adapt to its patterns.
//!
//! A region is a range within one mapping over which accesses look alike. Regions exist only where samples
//! fell. Each interval: new samples are counted into the region they hit, samples beside all regions make new
//! ones (cut at wide gaps, so that cold memory gets no opinion); a region whose pages differ is tracked page
//! by page and cut where the pattern changes along the addresses; neighbours that agree are merged. So the
//! number of regions follows the number of patterns. The idea of adaptive regions is DAMON's (Linux,
//! Documentation/mm/damon/design.rst); it has no accessors.

mod cut;
mod evidence;
mod false_sharing;
mod folios;
mod huge;
mod key;
mod mapped;
mod pages;
mod pattern;
mod questions;
mod ranges;
mod sharing;
mod table;

pub use evidence::Evidence;
pub use false_sharing::FalseSharing;
pub(crate) use folios::Folios;
pub use huge::Part;
pub(crate) use key::Key;
use pattern::Records;
pub use pattern::Region;
pub use ranges::RangeMap;
pub(crate) use ranges::oldest;
pub(crate) use sharing::Nature;
use sharing::Sharing;
pub(crate) use table::Table;

use crate::memory::HUGE_PAGE_PAGES;
use crate::{Mapping, PageRange};
use cut::Profiles;
use huge::HugePages;
use mapped::Mapped;
use pages::Pages;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a process's memory is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionSettings {
    /// After this many intervals evidence counts half. 0 forgets everything each interval, as Carrefour does
    /// (module source: the table is emptied when profiling begins); hint faults need several, since a
    /// page gives one sample a scan.
    pub half_life_intervals: f32,
    /// The same for single pages, which gather samples slower than regions.
    pub page_half_life_intervals: u32,
    /// A node with a smaller share of a region's accesses does not count as its accessor: who initialised
    /// the memory, or a thread passing by.
    pub min_accessor_share: f32,
    /// Most pages that have a record of their own, of all processes together (the Carrefour module: 30 000).
    /// The record of a huge page's parts counts as ten.
    pub max_tracked_pages: usize,
    /// Most regions of a process; beyond, the most alike neighbours of a mapping are merged.
    pub max_regions: usize,
    /// Gaps without samples up to this many pages never separate regions.
    pub min_gap_pages: u64,
}

impl Default for RegionSettings {
    fn default() -> Self {
        Self {
            half_life_intervals: 4.0,
            page_half_life_intervals: 8,
            min_accessor_share: 0.05,
            max_tracked_pages: 1 << 21,
            max_regions: 4096,
            min_gap_pages: HUGE_PAGE_PAGES,
        }
    }
}

/// Neighbouring regions with several accessors are merged when their distributions of accesses are nearer
/// than this (half the sum of differences, 0 to 1), and cut only where they are farther than a little more.
const MERGE_BELOW: f64 = 0.35;

/// The record of a huge page, and that it is falsely shared, take as much memory as so many of single pages.
const HUGE_PAGE_RECORDS: usize = 10;

/// Page records looked at to tell what a range is like.
const SURVEYED: usize = 1 << 15;

/// The memory of one process.
#[derive(Clone, Debug)]
pub struct RegionMap {
    nodes: usize,
    settings: RegionSettings,
    mappings: Mapped,
    regions: Vec<Region>,
    pages: Pages,
    huge: HugePages,
    false_sharing: FalseSharing,
    /// Folios of the last interval's samples.
    folios: Folios,
    round: u32,
    /// The accesses that one sample stood for in the last interval.
    weight: f32,
    /// Whether samples are hint faults.
    by_faults: bool,
    outside: u64,
    contradiction_rate: f32,
    most_regions: usize,
    most_records: usize,
    /// Regions that found no room.
    regions_dropped: u64,
    /// There are records nobody needs.
    stale: bool,
}

impl RegionMap {
    /// Knows nothing.
    #[must_use]
    pub fn new(nodes: usize, settings: &RegionSettings) -> Self {
        Self {
            nodes,
            settings: settings.clone(),
            mappings: Mapped::default(),
            regions: Vec::new(),
            pages: Pages::new(nodes, settings),
            huge: HugePages::new(),
            false_sharing: BTreeMap::new(),
            folios: Folios::default(),
            round: 0,
            weight: 1.0,
            by_faults: false,
            outside: 0,
            contradiction_rate: 0.0,
            most_regions: usize::MAX,
            most_records: settings.max_tracked_pages,
            regions_dropped: 0,
            stale: false,
        }
    }

    /// Makes no new records of single pages beyond so many, and keeps no more regions than so many: those
    /// with most samples.
    pub(crate) const fn limit(&mut self, records: usize, regions: usize) {
        self.most_records = records;
        self.most_regions = regions;
    }

    /// Records of single pages, with those of huge pages as how many they count.
    pub(crate) fn records(&self) -> usize {
        self.pages.len() + HUGE_PAGE_RECORDS * self.huge.len()
    }

    /// Takes in an interval. `mappings`: as read now, none if not read again. `keys` gets sorted. `weight`:
    /// how many accesses a sample stands for.
    pub(crate) fn ingest(&mut self, mappings: Option<&[Mapping]>, keys: &mut [Key], weight: f32, round: u32) {
        self.round = round;
        self.weight = weight;
        if let Some(mappings) = mappings {
            self.remap(mappings);
        }
        self.decay();
        keys.sort_unstable();
        self.count(keys);
        self.note_contradictions();
        self.track(keys);
        self.split();
        self.merge();
        self.judge();
        if self.stale || round % 16 == 0 {
            self.forget_records();
        }
    }

    /// Counts stores that a cache served, by their pages. Memory that only caches were asked for is no
    /// region's.
    pub(crate) fn note_stored(&mut self, pages: &[u64]) {
        for &page in pages {
            let next = self.regions.partition_point(|region| region.range.end.0 <= page);
            if let Some(region) = self.regions.get_mut(next).filter(|region| region.range.start.0 <= page) {
                region.evidence.note_stored();
            }
        }
    }

    /// Says which folios the samples to come are of.
    pub(crate) fn samples_of(&mut self, folios: Folios) {
        self.folios = folios;
    }

    /// Says whether the samples to come are hint faults.
    pub(crate) const fn samples_by_faults(&mut self, by_faults: bool) {
        self.by_faults = by_faults;
    }

    /// The regions, in address order.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The one node that uses a region, if it is only one.
    #[must_use]
    pub fn only_accessor(&self, region: &Region) -> Option<usize> {
        region.evidence.only_accessor(self.settings.min_accessor_share)
    }

    /// Share of recent samples that contradicted what was known of their region, 0 to 1: how little a few
    /// intervals of the same accessor mean.
    #[must_use]
    pub const fn contradiction_rate(&self) -> f32 {
        self.contradiction_rate
    }

    /// How many accesses a sample of the last interval stood for.
    #[must_use]
    pub const fn weight(&self) -> f32 {
        self.weight
    }

    /// The mappings, joined where neighbours are alike.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        self.mappings.all()
    }

    /// Whether a page lies in a mapping.
    pub(crate) fn is_mapped(&self, page: u64) -> bool {
        self.mappings.at(page).is_some()
    }

    /// Huge pages found to be falsely shared.
    #[must_use]
    pub const fn false_sharing(&self) -> &FalseSharing {
        &self.false_sharing
    }

    /// Pages were moved: forget where they were. With each range the shares of its pages by home node now.
    pub(crate) fn moved(&mut self, ranges: &[(PageRange, Vec<f32>)]) {
        for region in &mut self.regions {
            let mut expected = vec![0.0; self.nodes];
            let mut covered = 0;
            for (range, shares) in ranges {
                let pages = region.range.intersect(*range).pages();
                covered += pages;
                expected.iter_mut().zip(shares).for_each(|(sum, share)| *sum += pages as f32 * share);
            }
            if 2 * covered >= region.range.pages() {
                for share in &mut expected {
                    *share /= covered as f32;
                }
                region.evidence.reset_homes(&expected);
            }
        }
    }

    /// A single page was moved.
    pub(crate) fn page_moved(&mut self, page: u64, to: u8) {
        self.pages.moved(page, to);
    }

    /// Pages with a record of their own.
    #[must_use]
    pub fn tracked_pages(&self) -> usize {
        self.pages.len()
    }

    /// How often a sampled page, or huge page, found no room for a record.
    #[must_use]
    pub const fn pages_dropped(&self) -> u64 {
        self.pages.dropped() + self.huge.dropped()
    }

    /// How many regions found no room.
    pub(crate) const fn regions_dropped(&self) -> u64 {
        self.regions_dropped
    }

    /// Samples of the last interval that lay outside all known mappings.
    #[must_use]
    pub const fn samples_outside(&self) -> u64 {
        self.outside
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let regions = self.regions.capacity() * size_of::<Region>();
        let evidence: usize = self.regions.iter().map(|r| r.evidence.heap_bytes()).sum();
        regions + evidence + self.pages.heap_bytes() + self.huge.heap_bytes()
    }

    /// Takes over new mappings and forgets what is gone.
    fn remap(&mut self, mappings: &[Mapping]) {
        let joined = Mapped::join(mappings);
        if joined == self.mappings {
            return;
        }
        self.mappings = joined;
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in std::mem::take(&mut self.regions) {
            for mapping in self.mappings.overlapping(region.range) {
                let range = region.range.intersect(mapping.range);
                let mut part =
                    Region { range, writable: mapping.writable, kind: mapping.kind, ..region.clone() };
                part.evidence.scale(range.pages() as f32 / region.range.pages() as f32);
                regions.push(part);
            }
        }
        self.regions = regions;
        let mappings = &self.mappings;
        let mapped = |page| mappings.at(page).is_some();
        self.pages.retain(self.round, mapped);
        self.huge.retain(mapped);
        self.false_sharing.retain(|&page, _| mapped(page));
    }

    fn decay(&mut self) {
        let half_life = self.settings.half_life_intervals;
        let factor = if half_life > 0.0 { 0.5_f32.powf(1.0 / half_life) } else { 0.0 };
        for region in &mut self.regions {
            region.evidence.scale(factor);
            region.recent = 0;
        }
        self.regions.retain(|region| region.evidence.total() > 0.05);
    }

    /// Counts samples into regions; those beside all regions make new ones.
    fn count(&mut self, keys: &[Key]) {
        let old = std::mem::take(&mut self.regions);
        let mut old = old.into_iter().peekable();
        let mut regions = Vec::with_capacity(old.len() + 8);
        self.outside = 0;
        let mut at = 0;
        for mapping in self.mappings.all() {
            let first = at + keys[at..].partition_point(|key| key.page() < mapping.range.start.0);
            self.outside += (first - at) as u64;
            at = first + keys[first..].partition_point(|key| key.page() < mapping.range.end.0);
            let inside = &keys[first..at];
            let gap = gap_limit(inside, self.settings.min_gap_pages);
            let mut next = 0;
            while let Some(mut region) = old.next_if(|region| region.range.start < mapping.range.end) {
                let start = next + inside[next..].partition_point(|key| key.page() < region.range.start.0);
                self.new_regions(&inside[next..start], mapping, gap, &mut regions);
                next = start + inside[start..].partition_point(|key| key.page() < region.range.end.0);
                region.update(&inside[start..next], self.nodes, self.round);
                regions.push(region);
            }
            self.new_regions(&inside[next..], mapping, gap, &mut regions);
        }
        self.outside += (keys.len() - at) as u64;
        self.regions = regions;
    }

    /// Follows how much of what is seen contradicts what was known.
    fn note_contradictions(&mut self) {
        const HALF_LIFE_INTERVALS: f32 = 4.0;
        let sum = |unlike: bool| -> f32 {
            let counted = self.regions.iter().filter(|region| !unlike || region.unlike);
            counted.map(|region| region.recent as f32).sum()
        };
        let (all, unlike) = (sum(false), sum(true));
        if all > 0.0 {
            let keep = 0.5_f32.powf(1.0 / HALF_LIFE_INTERVALS);
            self.contradiction_rate = self.contradiction_rate * keep + (1.0 - keep) * unlike / all;
        }
    }

    /// Makes regions of samples that no region holds, cut where more than `gap` pages have none.
    fn new_regions(&self, keys: &[Key], mapping: &Mapping, gap: u64, regions: &mut Vec<Region>) {
        for cluster in keys.chunk_by(|a, b| b.page() - a.page() <= gap) {
            let before = regions.last().map_or(0, |region: &Region| region.range.end.0);
            let start = cluster[0].unit().max(mapping.range.start.0).max(before);
            let end = cluster.iter().rev().take(1).map(|key| key.unit_end()).fold(start + 1, u64::max);
            let range = PageRange::new(start, end.min(mapping.range.end.0));
            regions.push(Region::new(range, mapping, cluster, self.nodes));
        }
    }

    /// Keeps page records where a region has several accessors.
    fn track(&mut self, keys: &[Key]) {
        let mut slices: Vec<(&[Key], bool)> = Vec::new();
        let mut at = 0;
        for region in &mut self.regions {
            // Far fewer than would make an accessor: they may sit at an end, where the region should be cut.
            let least = region.evidence.total() * self.settings.min_accessor_share / 10.0;
            let minority = region.evidence.minority();
            if region.forgot == Some(self.round) {
                self.pages.forget(region.range);
            }
            if region.records != Records::None && minority < 0.25 && region.age >= 3 {
                region.untrack();
                self.stale = true;
            }
            if region.records == Records::None && minority >= least.max(1.0) {
                region.records = Records::All;
            }
            if region.recent == 0 {
                continue;
            }
            let first = at + keys[at..].partition_point(|key| key.page() < region.range.start.0);
            at = first + keys[first..].partition_point(|key| key.page() < region.range.end.0);
            if region.records != Records::None {
                slices.push((&keys[first..at], region.records == Records::Chosen));
            }
        }
        self.pages.limit(self.most_records.saturating_sub(HUGE_PAGE_RECORDS * self.huge.len()));
        self.pages.add(&slices, &self.folios, self.round);
        self.huge.limit(self.most_records.saturating_sub(self.pages.len()) / HUGE_PAGE_RECORDS);
        self.count_huge_pages(keys);
    }

    /// Cuts regions where their pattern changes.
    fn split(&mut self) {
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in std::mem::take(&mut self.regions) {
            if region.records != Records::None && region.recent > 0 {
                self.split_one(region, &mut regions);
            } else {
                regions.push(region);
            }
        }
        self.regions = regions;
    }

    fn split_one(&mut self, mut region: Region, regions: &mut Vec<Region>) {
        let PageRange { start, end } = region.range;
        let cuts = Profiles::of(&self.pages, region.range, self.round).cuts(&self.pages, self.round);
        if cuts.is_empty() {
            regions.push(region);
            return;
        }
        let mut rest = self.page_sums(region.range);

        let (recent, records) = (u64::from(region.recent), self.pages.count(start.0, end.0) as u64);
        let bounds: Vec<u64> = std::iter::once(start.0).chain(cuts).chain([end.0]).collect();
        for bound in bounds.windows(2) {
            let range = PageRange::new(bound[0], bound[1]);
            let last = range.end == end;
            let count = self.pages.count(range.start.0, range.end.0).max(1) as u64;
            let mine = self.page_sums(range);
            let share = |(&mine, &rest): (&f32, &f32)| match () {
                () if last => 1.0,
                () if rest > 0.0 => (mine / rest).clamp(0.0, 1.0),
                () => 0.0,
            };
            let shares: Vec<f32> = mine.iter().zip(&rest).map(share).collect();
            rest.iter_mut().zip(&mine).for_each(|(rest, mine)| *rest -= mine);
            let part = Region {
                range,
                evidence: region.evidence.take(&shares),
                spacing: (range.pages() / count).min(region.spacing.max(1)),
                recent: (recent * count / records.max(1)) as u32,
                age: 1,
                sharing: None,
                ..region.clone()
            };
            regions.push(part);
        }
    }

    /// How accesses (reads and writes by node), homes and local samples are divided, judged by the page
    /// records in a range: `3 * nodes + 1` sums.
    fn page_sums(&self, range: PageRange) -> Vec<f32> {
        let mut sum = vec![0.0_f32; 3 * self.nodes + 1];
        for (_, record) in self.pages.survey(range, SURVEYED, self.round) {
            let total = record.total() as f32;
            if total > 0.0 {
                for node in 0..self.nodes {
                    let (reads, writes) = record.kinds(node);
                    sum[node] += reads as f32 / total;
                    sum[self.nodes + node] += writes as f32 / total;
                }
                if let Some(home) = record.home().map(usize::from).filter(|&home| home < self.nodes) {
                    sum[2 * self.nodes + home] += 1.0;
                    sum[3 * self.nodes] += record.accesses(home) as f32 / total;
                }
            }
        }
        // As if all had been looked at.
        let seen: f32 = sum[..2 * self.nodes].iter().sum();
        let weight = self.pages.count(range.start.0, range.end.0) as f32 / seen.max(1.0);
        sum.into_iter().map(|sum| sum * weight).collect()
    }

    /// Finds out which regions are shared and which are private page by page.
    fn judge(&mut self) {
        /// Records of a shared region beyond which a sixteenth of them is enough to notice a change.
        const ENOUGH: usize = 1 << 15;
        for at in 0..self.regions.len() {
            let region = &self.regions[at];
            if region.records == Records::None || region.recent == 0 {
                continue;
            }
            if self.only_accessor(region).is_some() {
                self.regions[at].sharing = None;
                continue;
            }
            let pages = self.pages.survey(region.range, SURVEYED, self.round);
            let sharing = Sharing::of(pages, self.nodes, self.by_faults);
            let records = self.pages.count(region.range.start.0, region.range.end.0);
            let region = &mut self.regions[at];
            region.sharing = Some(sharing);
            let shared = region.nature() == Nature::Shared;
            if !shared {
                region.records = Records::All;
            } else if region.records == Records::All && records > ENOUGH {
                region.records = Records::Chosen;
                self.stale = true;
            }
        }
    }

    /// Merges neighbours that agree, and, beyond the limit of regions, ever less alike ones.
    fn merge(&mut self) {
        let mut tolerance = 1.0;
        loop {
            let mut merged: Vec<Region> = Vec::with_capacity(self.regions.len());
            for region in std::mem::take(&mut self.regions) {
                match merged.last_mut() {
                    Some(left) if self.mergeable(left, &region, tolerance) => left.join(&region),
                    _ => merged.push(region),
                }
            }
            self.regions = merged;
            tolerance *= 4.0;
            if self.regions.len() <= self.settings.max_regions.min(self.most_regions) || tolerance > 1e12 {
                break;
            }
        }
        // There may be as many mappings.
        if self.regions.len() > self.most_regions {
            self.regions.sort_unstable_by(|a, b| b.evidence.total().total_cmp(&a.evidence.total()));
            self.regions_dropped += (self.regions.len() - self.most_regions) as u64;
            self.regions.truncate(self.most_regions);
            self.regions.sort_unstable_by_key(|region| region.range.start);
            self.stale = true;
        }
    }

    fn mergeable(&self, left: &Region, right: &Region, tolerance: f64) -> bool {
        let same_mapping =
            self.mappings.at(left.range.start.0).is_some_and(|m| right.range.start < m.range.end);
        if !same_mapping {
            return false;
        }
        let gap = (right.range.start.0 - left.range.end.0) as f64;
        let reach = self.settings.min_gap_pages.max(4 * left.spacing.max(right.spacing));
        if gap > reach as f64 * tolerance {
            return false;
        }
        let share = self.settings.min_accessor_share;
        let (a, b) = (left.evidence.only_accessor(share), right.evidence.only_accessor(share));
        if a != b && tolerance <= 1.0 && (a.is_some() || b.is_some()) {
            return false;
        }
        // Significance is not all: samples of an interval hang together, so two parts of shared memory differ
        // for long.
        let (g, degrees) = left.evidence.divergence(&right.evidence, true);
        g <= (2.0 * degrees + 4.0) * tolerance
            || f64::from(left.evidence.distance(&right.evidence)) <= MERGE_BELOW * tolerance
    }

    /// Forgets records that have faded or that no region needs.
    fn forget_records(&mut self) {
        let regions = &self.regions;
        let mut at = 0;
        self.pages.retain(self.round, |page| {
            while regions.get(at).is_some_and(|region| region.range.end.0 <= page) {
                at += 1;
            }
            regions.get(at).is_some_and(|region| {
                region.range.start.0 <= page
                    && match region.records {
                        Records::None => false,
                        Records::Chosen => Pages::is_chosen(page),
                        Records::All => true,
                    }
            })
        });
        self.stale = false;
    }
}

/// The widest gap without samples that still lies within one cluster: far more than the usual distance, so
/// that evenly scattered samples are not torn apart (a gap of 32 medians has chance e⁻²² among exponentially
/// distributed ones).
fn gap_limit(keys: &[Key], min: u64) -> u64 {
    const PROBES: usize = 1024;
    let step = (keys.len() / PROBES).max(1);
    let mut gaps: Vec<u64> = keys
        .windows(2)
        .step_by(step)
        .map(|pair| pair[1].page() - pair[0].page())
        .filter(|&gap| gap > 0)
        .collect();
    if gaps.len() < 16 {
        return min;
    }
    let middle = gaps.len() / 2;
    min.max(32 * *gaps.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MappingKind;

    /// A process's samples of huge pages, or of one page in each of so many mappings, within these limits.
    fn sampled(keys: &mut [Key], records: usize, regions: usize) -> RegionMap {
        let mut map = RegionMap::new(4, &RegionSettings::default());
        map.limit(records, regions);
        let mapping = |page| Mapping {
            range: PageRange::new(page, page + HUGE_PAGE_PAGES),
            writable: page / HUGE_PAGE_PAGES % 2 == 0,
            kind: MappingKind::Anonymous,
        };
        let mappings: Vec<Mapping> = keys.iter().map(|key| mapping(key.unit())).collect();
        map.ingest(Some(&mappings), keys, 1.0, 0);
        map
    }

    fn of_huge_pages(count: u64) -> Vec<Key> {
        (1..=count).map(|at| Key::in_huge_page(at * HUGE_PAGE_PAGES, 0)).collect()
    }

    #[test]
    fn records_of_huge_pages_count_among_those_of_pages() {
        let map = sampled(&mut of_huge_pages(1000), 20_000, 4096);
        assert_eq!((map.records(), map.pages_dropped()), (11_000, 0), "one as a page, ten for its parts");
        let map = sampled(&mut of_huge_pages(1000), 10_000, 4096);
        assert_eq!((map.records(), map.pages_dropped()), (10_000, 100));
        let map = sampled(&mut of_huge_pages(1000), 500, 4096);
        assert_eq!((map.records(), map.pages_dropped()), (500, 1500));
    }

    #[test]
    fn regions_that_find_no_room_are_counted() {
        let map = sampled(&mut of_huge_pages(100), 10_000, 10);
        assert_eq!((map.regions().len(), map.regions_dropped()), (10, 90));
    }
}
