//! Huge pages: which are split, and which are made again.

use super::super::interleave::reason;
use super::super::{Confined, ProcessView, View};
use super::Carrefour;
use crate::region::Evidence;
use crate::{Action, Decision, HUGE_PAGE_PAGES, PageNumber, PageRange};

/// Huge pages that are split or made in one interval, of one process: splitting 512 takes some 60 ms.
const RESIZED_AT_ONCE: usize = 512;

/// A huge page is likely to be falsely shared if so many next to it were.
const SPLIT_TOGETHER: u64 = 8;

impl Carrefour {
    /// Huge pages whose parts are used by different nodes become base pages, to be placed one by one.
    pub(super) fn split(view: &View<'_>, process: ProcessView<'_>, out: &mut Vec<Decision>) {
        // The share of local samples does not tell whether any is left to split: a huge page gives as many as
        // a base page. Where threads go from node to node, its parts have other users soon.
        if !view.splits || process.wanders {
            return;
        }
        // The rest of a range that was split is cut finely by now.
        let around = |PageRange { start, end }: PageRange| {
            let reach = SPLIT_TOGETHER * HUGE_PAGE_PAGES;
            PageRange::new(start.0.saturating_sub(reach), end.0.saturating_add(reach))
        };
        let movable = process.map.regions().iter().filter(|region| !process.unbound(region.range).is_empty());
        let found = movable.flat_map(|region| {
            process.map.falsely_shared_in(region.range, process.history.split_in(around(region.range)))
        });
        let ripe =
            |&page: &u64| process.hints.is_collocatable(page) && process.history.splittable(page, view.round);
        let pages: Vec<_> = found.filter(ripe).take(RESIZED_AT_ONCE).map(PageNumber).collect();
        let mut evidence = Evidence::new(view.topology.node_count());
        for parts in pages.iter().filter_map(|page| process.map.false_sharing().get(&page.0)) {
            evidence.add(&Evidence::from_parts(parts, view.topology.node_count()));
        }
        let rule = "its parts are used by different nodes";
        out.extend(resize(view, process, pages, |pages| Action::Split { pages }, rule, &evidence));
    }

    /// Base pages that were a huge page once, and that one node uses and has, become a huge page there again.
    pub(super) fn collapse(&self, view: &View<'_>, process: ProcessView<'_>, out: &mut Vec<Decision>) {
        let mut evidence = Evidence::new(view.topology.node_count());
        let mut pages = Vec::new();
        let settled = |confined: &Confined| self.is_settled(view, process, *confined);
        let confined = process.confined.is_some_and(|confined| settled(&confined));
        let split = process.history.split_before(view.round).filter(|_| view.splits);
        for page in split {
            let whole = PageRange::new(page, page + HUGE_PAGE_PAGES);
            // The kernel takes no samples of a single thread's memory that lies on its node
            // (`change_pte_range`, Linux 6.12).
            if confined && !process.map.was_used_lately(whole) && pages.len() < RESIZED_AT_ONCE {
                pages.push(PageNumber(page));
                continue;
            }
            let Some((at, region)) = process.map.region_of(whole) else { continue };
            let Some(accessor) = process.map.only_accessor(region) else { continue };
            let homes = region.evidence.homes();
            let known: f32 = homes.iter().sum();
            let there = Self::home_for(view, accessor).map_or(0.0, |home| homes[home.get()]);
            if known > 0.0
                && there > 0.95 * known
                && self.is_known(process, at)
                && pages.len() < RESIZED_AT_ONCE
            {
                pages.push(PageNumber(page));
                evidence.add(&region.evidence);
            }
        }
        let rule = "one node uses all of what was a huge page";
        out.extend(resize(view, process, pages, |pages| Action::Collapse { pages }, rule, &evidence));
    }
}

fn resize(
    view: &View<'_>,
    process: ProcessView<'_>,
    pages: Vec<PageNumber>,
    action: impl Fn(Vec<PageNumber>) -> Action,
    rule: &str,
    evidence: &Evidence,
) -> Option<Decision> {
    let (first, last) = (pages.first()?.0, pages.last()?.0);
    Some(Decision {
        pid: process.pid,
        range: PageRange::new(first, last + HUGE_PAGE_PAGES),
        action: action(pages),
        reason: reason(rule.into(), view, evidence),
    })
}
