//! How many pages fit into a call that moves them.

use nodewise_engine::HUGE_PAGE_PAGES;

/// Most pages in one call: bounds the arrays, not the time.
const BATCH_MAX_PAGES: u64 = 16 * HUGE_PAGE_PAGES;
/// Least pages in one call, unless there are no more.
const BATCH_MIN_PAGES: u64 = 16;
/// Pages in the first call, when what a page takes is not known yet.
const BATCH_FIRST_PAGES: u64 = 64;
/// The share that earlier calls still count for in the pace when another is made.
const PACE_KEPT: f64 = 0.875;
/// The least part of its time that a call works, if it is to be long for that.
const LEAST_WORKING_SHARE: f64 = 0.25;

/// The cost of moving, over the last calls together: single calls vary, when a CPU that has to answer an
/// interrupt is someone else's for a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSizer {
    calls: f64,
    pages: f64,
    /// CPU time.
    ns: f64,
    /// From call to return.
    passed_ns: f64,
    batch_pages: u64,
}

impl BatchSizer {
    pub(crate) const UNKNOWN: Self =
        Self { calls: 0.0, pages: 0.0, ns: 0.0, passed_ns: 0.0, batch_pages: BATCH_FIRST_PAGES };

    /// Pages in the next call.
    pub(crate) const fn batch_pages(self) -> u64 {
        self.batch_pages
    }

    /// Has the next call work for `call_ns`, but move at most twice as many pages as this one could.
    ///
    /// Every call begins with a wait until all CPUs have emptied their lists of pages on the way to the LRU
    /// lists (`lru_cache_disable`, `mm/swap.c`), which holds nobody up but the caller. Where it is long,
    /// as in emulators with more CPUs than their host has, calls work for a part of what they wait:
    /// shorter ones would only wait more often.
    pub(crate) fn learn(&mut self, pages: u64, took_ns: u64, passed_ns: u64, call_ns: u64) {
        let add = |sum: &mut f64, number: f64| *sum = *sum * PACE_KEPT + number;
        add(&mut self.calls, 1.0);
        add(&mut self.pages, pages as f64);
        add(&mut self.ns, took_ns as f64);
        add(&mut self.passed_ns, passed_ns as f64);
        let target_ns = (call_ns as f64).max(LEAST_WORKING_SHARE * self.passed_ns / self.calls);
        let fitting = (target_ns * self.pages / self.ns.max(1.0)) as u64;
        self.batch_pages = fitting.clamp(BATCH_MIN_PAGES, (self.batch_pages * 2).min(BATCH_MAX_PAGES));
    }
}
