//! The pages of a job that are smaller than huge ones: base pages, and folios of several.

use super::{Job, Unit};
use nodewise_engine::PageNumber;
use nodewise_sys::MoveFlags;
use nodewise_topology::NodeId;

/// Memory smaller than huge pages, within 2 MiB.
pub(super) struct Small<'a> {
    pub(super) first: u64,
    /// The home of each page, from the first on.
    pub(super) homes: &'a [i32],
    pub(super) index: usize,
    pub(super) job: &'a Job<'a>,
    pub(super) by: &'a dyn Fn(u64) -> (u32, PageNumber),
}

impl Small<'_> {
    /// The base pages that the job wants elsewhere.
    pub(super) fn pages(&self) -> Vec<Unit> {
        let all = self.first..self.first + self.homes.len() as u64;
        all.filter_map(|page| self.unit(PageNumber(page), 1, page)).collect()
    }

    /// The same by folio: one unit for each that is to move. `folios` are those from the first page on.
    pub(super) fn folios(&self, pages: &[Unit], folios: &[u16]) -> Vec<Unit> {
        let mut left = pages;
        let mut found = Vec::new();
        let mut at = 0;
        while at < folios.len() {
            let (page, pages) = (self.first + at as u64, u64::from(folios[at]).max(1));
            let here = left.partition_point(|unit| unit.page.0 < page + pages);
            let (of_folio, rest) = left.split_at(here);
            left = rest;
            // A page within a folio of which the window has no more than half stays with it.
            let begins = folios[at] > 0;
            at += pages as usize;
            if !begins {
                continue;
            }
            // The place is that of a page which is there; it takes the others along.
            if self.job.whole_folios && pages > 1 {
                let there = (page..self.first + at as u64).find(|&page| self.home(page).is_some());
                found.extend(there.and_then(|there| self.unit(PageNumber(page), pages, there)));
            } else if let Some(&unit) = of_folio.first() {
                found.push(Unit { page: PageNumber(page), pages, ..unit });
            }
        }
        found
    }

    /// So many pages from this one on, of which the one is `there`, if the job wants them elsewhere.
    fn unit(&self, page: PageNumber, pages: u64, there: u64) -> Option<Unit> {
        let home = self.home(there)?;
        let to = (self.job.target)(page, pages, home).filter(|&to| to != home)?;
        let (by, flags) = ((self.by)(there), MoveFlags::Exclusive);
        Some(Unit { job: self.index, page, pages, by, from: home, to, flags, tries: 0 })
    }

    fn home(&self, page: u64) -> Option<NodeId> {
        let home = *self.homes.get((page - self.first) as usize)?;
        (home >= 0).then_some(NodeId(home as u32))
    }
}
