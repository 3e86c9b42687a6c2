//! Where each page of a process was when it was last seen.
//!
//! This tells two things that a fault alone does not. The first fault on a page allocates it and says nothing
//! about who uses it later, while every further one is a hint fault. And a hint fault may itself have moved
//! the page (the kernel migrates in the fault handler), so that asking afterwards finds it local: where it
//! was before is what the access met.

use crate::maps::has_hint_faults;
use nodewise_engine::{HUGE_PAGE_PAGES, Mapping, PageNumber, PageRange};
use nodewise_topology::NodeIndex;
use std::collections::HashMap;

/// The last known home of the pages of one process. Takes memory by the pattern, not by the page: a 2 MiB
/// block whose pages are all at one node takes a few bytes.
#[derive(Debug, Default)]
pub(crate) struct KnownHomes {
    /// By the first page of each 2 MiB.
    blocks: HashMap<u64, Block>,
    /// When (in which interval) pages of each 2 MiB were last accessed, and one that was.
    used: HashMap<u64, (u32, PageNumber)>,
    /// Pages of the largest folio that was seen in each 2 MiB, if it has more than one.
    folios: HashMap<u64, u16>,
    /// Where we have moved pages of each 2 MiB.
    moved: HashMap<u64, Moved>,
    /// The home at which each page was first seen, as long as the page is there.
    first: HashMap<u64, Block>,
    /// Mappings from before we came of which only some pages were asked for, and how many pages each of those
    /// stands for, in address order. The kernel may have moved any other in the very fault that shows it, so
    /// that its first home stays unknown.
    partly: Vec<(PageRange, f64)>,
    /// The number of the kernel's scan when these were asked for.
    scan: Option<u64>,
    /// Pages that the kernel's balancing had moved, machine-wide, when the process was met.
    moved_before: Option<u64>,
    /// Whether it has moved so many since that a page may have been moved before it is first seen.
    is_late: bool,
    /// About the bytes that all of this takes, and may take.
    bytes: usize,
    /// The interval's number.
    interval: u32,
    limit: Option<usize>,
    /// Whether that was met.
    is_full: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Block {
    Same(u8),
    Each(Box<[u8; PAGES]>),
}

#[derive(Debug)]
struct Moved {
    /// The node, `INTERLEAVED` or `ABSENT`.
    placed: Box<[u8; PAGES]>,
    /// The interval in which we moved any of them last.
    since: u32,
    /// A bit for each page that had rested by then, and may move again.
    rested: [u64; PAGES / 64],
}

const PAGES: usize = HUGE_PAGE_PAGES as usize;
/// Bytes of a table's entry, and of an array of pages besides.
const ENTRY_BYTES: usize = 48;
const PAGES_BYTES: usize = PAGES + 16;
/// Bytes of what was done to the pages of 2 MiB.
const MOVED_BYTES: usize = ENTRY_BYTES + PAGES_BYTES + PAGES / 8;
/// Not known to be present, or not moved.
const ABSENT: u8 = u8::MAX;
/// Moved as one of many that were interleaved over nodes.
const INTERLEAVED: u8 = u8::MAX - 1;

/// The last thing that we did to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It was one of many that were interleaved over nodes.
    Interleaved,
    /// It was collocated with its accessor.
    At(NodeIndex),
}

impl Placed {
    const fn by(noted: u8) -> Option<Self> {
        match noted {
            ABSENT => None,
            INTERLEAVED => Some(Self::Interleaved),
            node => Some(Self::At(NodeIndex(node))),
        }
    }
}

impl Block {
    fn homes(&self) -> [u8; PAGES] {
        match self {
            Self::Same(home) => [*home; PAGES],
            Self::Each(homes) => **homes,
        }
    }

    fn bytes(&self) -> usize {
        ENTRY_BYTES + if matches!(self, Self::Each(_)) { PAGES_BYTES } else { 0 }
    }

    fn at(&self, page: PageNumber) -> Option<NodeIndex> {
        let home = match self {
            Self::Same(home) => *home,
            Self::Each(homes) => homes[(page.0 % HUGE_PAGE_PAGES) as usize],
        };
        (home != ABSENT).then_some(NodeIndex(home))
    }

    fn from_homes(homes: &[u8; PAGES]) -> Self {
        if homes.iter().all(|&home| home == homes[0]) {
            Self::Same(homes[0])
        } else {
            Self::Each(Box::new(*homes))
        }
    }
}

impl Moved {
    /// Whether only the first page is noted, as that of a huge page is.
    fn is_of_huge_page(&self) -> bool {
        self.placed[0] != ABSENT && self.placed[1..].iter().all(|&placed| placed == ABSENT)
    }

    /// Memory that was collocated may turn out to be shared, as in a program's next phase. The kernel, or
    /// somebody else, may have taken away what was interleaved. But shared memory can look private for a
    /// while, and what was taken may be taken again: nothing is moved twice within so many intervals.
    fn may_be_interleaved(&self, at: usize, interval: u32) -> bool {
        let has_rested = self.rested[at / 64] >> (at % 64) & 1 != 0;
        self.placed[at] == ABSENT || has_rested || self.have_rested(interval)
    }

    /// Whether all of them have.
    const fn have_rested(&self, interval: u32) -> bool {
        const RESTS_FOR: u32 = 60;
        interval.saturating_sub(self.since) >= RESTS_FOR
    }

    /// Whether the page had been moved before.
    fn note(&mut self, at: usize, placed: Placed, interval: u32) -> bool {
        if self.have_rested(interval) {
            self.rested = [u64::MAX; PAGES / 64];
        }
        self.since = interval;
        self.rested[at / 64] &= !(1 << (at % 64));
        let new = match placed {
            Placed::Interleaved => INTERLEAVED,
            Placed::At(node) => node.0,
        };
        std::mem::replace(&mut self.placed[at], new) != ABSENT
    }
}

impl KnownHomes {
    /// Counts intervals.
    pub(crate) const fn begin_interval(&mut self, interval: u32) {
        self.interval = interval;
    }

    /// Takes in how many pages the kernel's balancing has moved so far, machine-wide. Samples of accesses
    /// show a page long after it was touched: where it lay at first is not known if the kernel moves many.
    pub(crate) fn note_kernels_moves(&mut self, moved: u64, resident_pages: u64) {
        /// Such a share of a process's pages.
        const FEW: f64 = 0.05;
        let since = moved.saturating_sub(*self.moved_before.get_or_insert(moved));
        self.is_late |= since as f64 > FEW * resident_pages as f64;
    }

    /// Its size in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets it take so many bytes, and no less than it does: of pages beyond that nothing is known.
    pub(crate) const fn limit(&mut self, bytes: usize) {
        self.limit = Some(bytes);
    }

    /// Whether there were such pages.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = self.limit.is_none_or(|limit| self.bytes + bytes <= limit);
        self.is_full |= !has_room;
        has_room
    }

    fn set(
        &mut self,
        which: impl Fn(&mut Self) -> &mut HashMap<u64, Block>,
        block: PageNumber,
        homes: &[u8; PAGES],
    ) {
        let before = which(self).remove(&block.0).map_or(0, |before| before.bytes());
        self.bytes -= before;
        let homes = Block::from_homes(homes);
        if homes != Block::Same(ABSENT) && self.has_room(homes.bytes()) {
            self.bytes += homes.bytes();
            which(self).insert(block.0, homes);
        }
    }

    /// Where the page was; none if it was not known to be there.
    pub(crate) fn get(&self, page: PageNumber) -> Option<NodeIndex> {
        self.blocks.get(&page.huge().0)?.at(page)
    }

    /// Where the page was first seen; none if its first home is not known.
    pub(crate) fn first(&self, page: PageNumber) -> Option<NodeIndex> {
        self.first.get(&page.huge().0)?.at(page)
    }

    /// The first home of a page that is at `home` and was never seen before; none if it may have been moved
    /// since.
    pub(crate) fn first_of_new(&self, page: PageNumber, home: Option<NodeIndex>) -> Option<NodeIndex> {
        home.filter(|_| !self.may_have_moved(page))
    }

    /// Whether a page that was never seen may have been moved by the kernel.
    fn may_have_moved(&self, page: PageNumber) -> bool {
        self.is_late || self.part(page).is_some()
    }

    /// How many pages this one stands for, of those whose first homes are known; none if its own is not.
    pub(crate) fn stands_for(&self, page: PageNumber) -> Option<f64> {
        let Some(pages) = self.part(page) else { return Some(1.0) };
        self.first(page).map(|_| pages)
    }

    /// How many pages each stands for that was asked for, if the page's mapping was asked for in part.
    fn part(&self, page: PageNumber) -> Option<f64> {
        let after = self.partly.partition_point(|(range, _)| range.start <= page);
        self.partly[..after].last().filter(|(range, _)| range.contains(page)).map(|&(_, pages)| pages)
    }

    /// How many scans of the kernel's have ended since some of the pages were asked for. None: all were asked
    /// for. A kernel that does not number them (`CONFIG_SCHED_DEBUG`) is taken to have made enough. Figures
    /// then only wait until hardly any memory shows for the first time.
    pub(crate) fn passes(&self, scan: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let passes = || self.scan.zip(scan()).map_or(u64::MAX, |(then, now)| now.saturating_sub(then));
        (!self.partly.is_empty()).then(passes)
    }

    /// Notes where pages are that were there before we came, at this scan of the kernel's. The mappings
    /// `partly` had others.
    pub(crate) fn survey(
        &mut self,
        pages: impl Iterator<Item = (PageNumber, Option<NodeIndex>)>,
        partly: Vec<(PageRange, f64)>,
        scan: Option<u64>,
    ) {
        self.note(pages);
        (self.partly, self.scan) = (partly, scan);
    }

    /// Notes where pages are now, in page order; none: not present any more.
    pub(crate) fn note(&mut self, pages: impl Iterator<Item = (PageNumber, Option<NodeIndex>)>) {
        let mut pages = pages.peekable();
        while let Some(&(PageNumber(first), _)) = pages.peek() {
            let block = PageNumber(first).huge();
            let of = |known: &HashMap<u64, Block>| known.get(&block.0).map_or([ABSENT; PAGES], Block::homes);
            let (mut homes, mut first) = (of(&self.blocks), of(&self.first));
            while let Some((page, home)) = pages.next_if(|(page, _)| page.huge() == block) {
                let at = (page.0 % HUGE_PAGE_PAGES) as usize;
                let before = std::mem::replace(&mut homes[at], home.map_or(ABSENT, |home| home.0));
                // A page that was given back is another one when it is there again. One that the kernel is
                // moving is absent for a moment, and not twice.
                let gone = home.is_none() && before == ABSENT;
                if let Some(moved) = self.moved.get_mut(&block.0).filter(|_| gone) {
                    // A huge page is noted by its first page, and goes as a whole.
                    let noted = if moved.is_of_huge_page() { 0 } else { at };
                    moved.placed[noted] = ABSENT;
                }
                if gone || (first[at] == ABSENT && !self.may_have_moved(page)) {
                    first[at] = homes[at];
                }
            }
            self.set(|known| &mut known.blocks, block, &homes);
            self.set(|known| &mut known.first, block, &first);
        }
    }

    /// Notes that a whole huge page is at one node.
    pub(crate) fn note_huge(&mut self, page: PageNumber, home: NodeIndex) {
        let block = page.huge();
        self.set(|known| &mut known.blocks, block, &[home.0; PAGES]);
        if self.part(page).is_none() && !matches!(self.first.get(&block.0), Some(Block::Same(_))) {
            let mut first = self.first.get(&block.0).map_or([ABSENT; PAGES], Block::homes);
            first.iter_mut().filter(|first| **first == ABSENT).for_each(|first| *first = home.0);
            self.set(|known| &mut known.first, block, &first);
        }
    }

    /// Notes that the page was accessed in this interval.
    pub(crate) fn note_used(&mut self, page: PageNumber, interval: u32) {
        if let Some(last) = self.used.get_mut(&page.huge().0) {
            *last = (interval, page);
        } else if self.has_room(ENTRY_BYTES) {
            self.bytes += ENTRY_BYTES;
            self.used.insert(page.huge().0, (interval, page));
        }
    }

    /// Adds the known pages by home node, of those 2 MiB that were accessed in `since` or later. Files that
    /// are only read have none, unless the access was there: hint faults of neighbours say nothing of pages
    /// that have none. `mappings` are the process's, in address order.
    pub(crate) fn add_used(&self, since: u32, mappings: &[Mapping], pages_by_home: &mut [f64]) {
        for (&first, &(_, page)) in self.used.iter().filter(|&(_, &(interval, _))| interval >= since) {
            let Some(block) = self.blocks.get(&first) else { continue };
            let range = PageRange::new(first, first + HUGE_PAGE_PAGES);
            let after = mappings.partition_point(|mapping| mapping.range.end <= range.start);
            let there = mappings[after..].iter().take_while(|mapping| mapping.range.start < range.end);
            // Shared memory goes by the mapping of one process, which may be another than the accessor.
            for mapping in there.filter(|mapping| has_hint_faults(mapping) || mapping.range.contains(page)) {
                let part = mapping.range.intersect(range);
                match block {
                    Block::Same(home) => pages_by_home[usize::from(*home)] += part.pages() as f64,
                    Block::Each(homes) => homes
                        [(part.start.0 - first) as usize..(part.end.0 - first) as usize]
                        .iter()
                        .filter(|&&home| home != ABSENT)
                        .for_each(|&home| pages_by_home[usize::from(home)] += 1.0),
                }
            }
        }
    }

    /// A huge page has become base pages, or the other way round: neither was moved as it is now.
    pub(crate) fn forget_moved(&mut self, page: PageNumber) {
        if self.moved.remove(&page.huge().0).is_some() {
            self.bytes -= MOVED_BYTES;
        }
        if self.folios.remove(&page.huge().0).is_some() {
            self.bytes -= ENTRY_BYTES;
        }
    }

    /// Notes that we moved this page; whether we had moved it before.
    pub(crate) fn note_moved(&mut self, page: PageNumber, placed: Placed) -> bool {
        let first = page.huge().0;
        if !self.moved.contains_key(&first) {
            if !self.has_room(MOVED_BYTES) {
                return false;
            }
            self.bytes += MOVED_BYTES;
        }
        let new = || Moved { placed: Box::new([ABSENT; PAGES]), since: 0, rested: [0; PAGES / 64] };
        let block = self.moved.entry(first).or_insert_with(new);
        block.note((page.0 % HUGE_PAGE_PAGES) as usize, placed, self.interval)
    }

    /// Notes how many pages move together with this one. A part of a folio, or one that lies across others'
    /// places, tells nothing of where others begin.
    pub(crate) fn note_folio(&mut self, page: PageNumber, pages: u16) {
        if pages < 2 || !pages.is_power_of_two() {
            return;
        }
        let block = page.huge().0;
        if let Some(largest) = self.folios.get_mut(&block) {
            *largest = pages.max(*largest);
        } else if self.has_room(ENTRY_BYTES) {
            self.bytes += ENTRY_BYTES;
            self.folios.insert(block, pages);
        }
    }

    /// How many pages move at once with this one. The largest folio that was seen in its 2 MiB tells.
    pub(crate) fn folio_pages(&self, page: PageNumber) -> u64 {
        self.folios.get(&page.huge().0).map_or(1, |&pages| pages.into())
    }

    /// How many pages of a range are known. With them come, by home node, those that may still be
    /// interleaved: all, and those that `waits` picks. It is told how many move at once with a page. A range
    /// with more than `most` blocks of 2 MiB is looked at in part.
    pub(crate) fn unmoved(
        &self,
        range: PageRange,
        most: u64,
        nodes: usize,
        is_huge: impl Fn(PageNumber) -> bool,
        waits: impl Fn(PageNumber, u64) -> bool,
    ) -> (u64, Vec<f32>, Vec<f32>) {
        let (mut known, mut all, mut waiting) = (0, vec![0.0; nodes], vec![0.0; nodes]);
        let within = range.start.huge().0..range.end.0;
        // A range may be small beside what is known, or mostly memory that was never touched.
        let blocks: Vec<(u64, &Block)> = if (range.pages() / HUGE_PAGE_PAGES) < self.blocks.len() as u64 {
            let firsts = within.step_by(HUGE_PAGE_PAGES as usize);
            firsts.filter_map(|first| Some((first, self.blocks.get(&first)?))).collect()
        } else {
            let known = self.blocks.iter().filter(|(first, _)| within.contains(first));
            known.map(|(&first, block)| (first, block)).collect()
        };
        let one_of = (blocks.len() as u64).div_ceil(most.max(1)).max(1);
        for (first, block) in blocks.into_iter().filter(|(first, _)| first / HUGE_PAGE_PAGES % one_of == 0) {
            let homes = block.homes();
            let moved = self.moved.get(&first);
            // The first page of a huge page is noted.
            let whole = matches!(block, Block::Same(_)) && moved.is_some_and(Moved::is_of_huge_page);
            let folio_pages = self.folio_pages(PageNumber(first));
            let at_once = (matches!(block, Block::Same(_)) && is_huge(PageNumber(first)))
                .then(|| waits(PageNumber(first), HUGE_PAGE_PAGES));
            for (page, &home) in (first..range.end.0).zip(&homes).filter(|&(page, _)| page >= range.start.0) {
                if home == ABSENT {
                    continue;
                }
                known += 1;
                let noted = if whole { 0 } else { (page - first) as usize };
                let may_move = |moved: &Moved| moved.may_be_interleaved(noted, self.interval);
                if !moved.is_none_or(may_move) {
                    continue;
                }
                all[usize::from(home)] += 1.0;
                let waits = at_once.unwrap_or_else(|| waits(PageNumber(page), folio_pages));
                waiting[usize::from(home)] += if waits { 1.0 } else { 0.0 };
            }
        }
        (known, all, waiting)
    }

    /// How we placed this page; none if we never moved it.
    pub(crate) fn placed(&self, page: PageNumber) -> Option<Placed> {
        Placed::by(self.moved.get(&page.huge().0)?.placed[(page.0 % HUGE_PAGE_PAGES) as usize])
    }

    /// Whether a page may still be interleaved, or again.
    pub(crate) fn may_be_interleaved(&self, page: PageNumber) -> bool {
        let at = (page.0 % HUGE_PAGE_PAGES) as usize;
        let moved = self.moved.get(&page.huge().0);
        moved.is_none_or(|moved| moved.may_be_interleaved(at, self.interval))
    }

    /// Forgets what lies outside of these mappings (in address order): if it is mapped again, it is allocated
    /// again.
    pub(crate) fn keep_mapped(&mut self, mappings: &[Mapping]) {
        let mapping_at = |page: u64| {
            let after = mappings.partition_point(|mapping| mapping.range.start.0 <= page);
            mappings[..after].last().filter(|mapping| page < mapping.range.end.0)
        };
        for known in [&mut self.blocks, &mut self.first] {
            known.retain(|&first, block| {
                if mapping_at(first).is_some_and(|mapping| first + HUGE_PAGE_PAGES <= mapping.range.end.0) {
                    return true;
                }
                let mut homes = block.homes();
                for (page, home) in (first..).zip(&mut homes) {
                    if mapping_at(page).is_none() {
                        *home = ABSENT;
                    }
                }
                *block = Block::from_homes(&homes);
                *block != Block::Same(ABSENT)
            });
        }
        self.partly.retain(|(range, _)| {
            let before = mappings.partition_point(|mapping| mapping.range.start < range.end);
            mappings[..before].last().is_some_and(|mapping| mapping.range.end > range.start)
        });
        let blocks = &self.blocks;
        self.moved.retain(|&first, moved| {
            if mapping_at(first).is_some_and(|mapping| first + HUGE_PAGE_PAGES <= mapping.range.end.0) {
                return blocks.contains_key(&first);
            }
            for (page, placed) in (first..).zip(moved.placed.iter_mut()) {
                if *placed != ABSENT && mapping_at(page).is_none() {
                    *placed = ABSENT;
                }
            }
            blocks.contains_key(&first)
        });
        self.used.retain(|first, _| blocks.contains_key(first));
        self.folios.retain(|first, _| blocks.contains_key(first));
        let kept = self.blocks.values().chain(self.first.values()).map(Block::bytes).sum::<usize>();
        self.bytes = kept + self.moved.len() * MOVED_BYTES;
        self.bytes += (self.used.len() + self.folios.len()) * ENTRY_BYTES;
        for known in [&mut self.blocks, &mut self.first] {
            known.shrink_to(2 * known.len());
        }
        self.moved.shrink_to(2 * self.moved.len());
        self.used.shrink_to(2 * self.used.len());
        self.folios.shrink_to(2 * self.folios.len());
    }
}

#[cfg(test)]
mod tests;
