//! Huge pages whose parts are used by different nodes, among a process's regions.

use super::huge::{falsely_shared, order};
use super::key::Key;
use super::{Part, Region, RegionMap};
use crate::PageRange;
use crate::memory::HUGE_PAGE_PAGES;
use std::collections::BTreeMap;

/// A falsely shared huge page with its evidence, as found.
pub type FalseSharing = BTreeMap<u64, Vec<Part>>;

impl RegionMap {
    /// Counts samples of huge pages, and notes which of those turn out to be falsely shared, or not to be.
    pub(super) fn count_huge_pages(&mut self, keys: &[Key]) {
        let mut judged: Option<(PageRange, bool)> = None;
        for page in self.huge.add(keys, self.by_faults) {
            let parts = self.huge.parts(page);
            let others_are = || {
                let whole = PageRange::new(page, page + HUGE_PAGE_PAGES);
                let range = self.region_of(whole).map_or(whole, |(_, region)| region.range);
                let known = judged.filter(|&(of, _)| of == range);
                known.unwrap_or_else(|| *judged.insert((range, self.huge.are_falsely_shared(range)))).1
            };
            if falsely_shared(&parts, others_are) {
                self.false_sharing.entry(page).or_insert(parts);
            } else if order(&parts).is_some() {
                self.false_sharing.remove(&page);
            }
        }
    }

    /// How many huge pages that several nodes use have too few samples yet to say how, where their region's
    /// others do not say it either.
    #[must_use]
    pub fn unjudged_huge_pages(&self) -> usize {
        self.regions().iter().map(|region| self.huge.unjudged(region.range)).sum()
    }

    /// Whether more of a region's huge pages are known to be falsely shared than known to be shared by all.
    /// While the region is new, those that have too few samples count as falsely shared, unless all taken
    /// together are not.
    pub(crate) fn may_be_falsely_shared(&self, region: &Region) -> bool {
        const PATIENCE: u32 = 20;
        let is_new = region.rounds < PATIENCE && !self.huge.are_truly_shared(region.range);
        let (mut suspect, mut others) = (0, 0);
        for known in self.huge.known_in(region.range).filter(|known| known.shared) {
            let unjudged = !known.is_judged() && is_new;
            if unjudged || self.false_sharing.contains_key(&known.page) {
                suspect += 1;
            } else if known.is_judged() {
                others += 1;
            }
        }
        suspect > others
    }

    /// The huge pages of a region that are as good as known to be falsely shared. Pages with too few
    /// samples are among them if most have been split already (`before`), or if all taken together are
    /// falsely shared. A region has one pattern.
    pub(crate) fn falsely_shared_in(&self, range: PageRange, before: usize) -> Vec<u64> {
        let (mut found, mut unjudged, mut little_known) = (Vec::new(), Vec::new(), Vec::new());
        let (mut others, mut own) = (0, 0);
        for known in self.huge.known_in(range) {
            if self.false_sharing.contains_key(&known.page) {
                found.push(known.page);
            } else if known.is_little_known() {
                little_known.push(known.page);
            } else if !known.shared {
                own += 1;
            } else if known.is_judged() {
                others += 1;
            } else {
                unjudged.push(known.page);
            }
        }
        let together = || self.huge.are_falsely_shared(range);
        if before > others + unjudged.len() || (found.len() + unjudged.len() > others && together()) {
            found.append(&mut unjudged);
            // Pages that one node uses by now may have been made a huge page again.
            if found.len() > own {
                found.append(&mut little_known);
            }
            found.sort_unstable();
        }
        found
    }

    /// Notes huge pages that were found to be falsely shared by what is known of others.
    pub(crate) fn note_false_sharing(&mut self, pages: impl Iterator<Item = u64>) {
        for page in pages {
            self.false_sharing.entry(page).or_insert_with(|| self.huge.parts(page));
        }
    }

    /// Huge pages (ascending) are in base pages now, or are huge again: what was known of each as a whole is
    /// void.
    pub(crate) fn resized(&mut self, pages: &[u64]) {
        let is_one = |page: u64| pages.binary_search(&page).is_ok();
        self.huge.retain(|page| !is_one(page));
        for &page in pages {
            self.false_sharing.remove(&page);
            self.pages.forget(PageRange::new(page, page + HUGE_PAGE_PAGES));
        }
    }
}
