//! How large pages are, by blocks of 2 MiB.

use crate::kernel::LiveKernel;
use crate::process::Processes;
use nodewise_engine::{HUGE_PAGE_PAGES, PageNumber, Pid};
use std::collections::HashMap;

/// Pages of a huge page.
pub(crate) const HUGE: u16 = HUGE_PAGE_PAGES as u16;

/// The known 2 MiB blocks. Asking takes two reads, so an answer is believed for some intervals, and only so
/// many blocks are asked for in one.
#[derive(Debug, Default)]
pub(crate) struct HugeCache {
    known: HashMap<(Pid, PageNumber), (u16, u32)>,
    interval: u32,
    asked: u32,
}

impl HugeCache {
    /// An answer holds this many intervals.
    const BELIEVED_INTERVALS: u32 = 5;
    /// Questions in an interval; two reads of some microseconds each.
    const ASKED_MAX: u32 = 4096;

    pub(crate) fn next_interval(&mut self, processes: &Processes) {
        self.interval += 1;
        self.asked = 0;
        let interval = self.interval;
        self.known.retain(|(pid, _), (_, asked)| {
            interval - *asked < 4 * Self::BELIEVED_INTERVALS && processes.contains(*pid)
        });
    }

    /// The page's size was changed.
    pub(crate) fn forget(&mut self, pid: Pid, page: PageNumber) {
        self.known.remove(&(pid, page.huge()));
    }

    /// Whether a page was a huge page when that was last asked, if lately.
    pub(crate) fn was_huge(&self, pid: Pid, page: PageNumber) -> bool {
        self.known.get(&(pid, page.huge())).is_some_and(|&(pages, _)| pages == HUGE)
    }

    /// How many pages move together with this one, or with one near by: [`HUGE`] if it is in a huge page.
    pub(crate) fn look(&mut self, kernel: &mut LiveKernel, pid: Pid, page: PageNumber) -> u16 {
        let known = self.known.get(&(pid, page.huge())).copied();
        if let Some((pages, asked)) = known {
            if self.interval - asked < Self::BELIEVED_INTERVALS || self.asked >= Self::ASKED_MAX {
                return pages;
            }
        } else if self.asked >= Self::ASKED_MAX {
            return 1;
        }
        self.asked += 1;
        let Some(pages) = kernel.folio_pages(pid.0, page) else { return known.map_or(1, |(pages, _)| pages) };
        self.known.insert((pid, page.huge()), (pages, self.interval));
        pages
    }
}
