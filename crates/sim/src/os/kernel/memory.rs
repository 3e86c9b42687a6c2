//! Where each page of the program is.

use crate::Area;
use nodewise_hardware::{MOST_NODES, Preset};

/// Bytes of a page, as a power of two.
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// Pages of a huge page, unless a simulation shrinks them with its problem.
pub(crate) const HUGE_PAGES: usize = 512;

// A page's state: its home, if nothing else has to be known; else one of these bits with it, or that there is
// no page.
const HOME: u8 = 63;
const _: () = assert!(MOST_NODES <= HOME as usize + 1);
const REPLICATED: u8 = 64;
const MARKED: u8 = 128;
const ABSENT: u8 = 255;

/// The state of a page that an access has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Never touched.
    Absent,
    /// Marked for a hint fault.
    Marked,
    /// Every node has a copy.
    Replicated,
    /// On one node.
    At(usize),
}

/// The page table of the one process, and the memory of the nodes.
///
/// A page is named by its index: 4 KiB pages from the first area's first page on.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    base: u64,
    states: Vec<u8>,
    /// Whether each `unit` pages are one.
    huge: Vec<bool>,
    /// Pages of a huge page.
    unit: usize,
    free: Vec<u64>,
    /// Pages of each node that are not in this table: others', or copies that a policy keeps account of.
    occupied: Vec<u64>,
    total: Vec<u64>,
    /// Nodes by distance, from each node.
    nearest: Vec<Vec<usize>>,
    /// The nodes that may have pages.
    nodes: Vec<usize>,
    /// The nodes with CPUs.
    with_cpus: Vec<usize>,
}

impl Memory {
    /// No page touched yet. With `huge`, first touches map 2 MiB at once.
    pub(crate) fn new(preset: &Preset, areas: &[Area], huge: bool) -> Self {
        let base = areas.first().map_or(0, |area| area.base);
        let end = areas.iter().map(|area| area.base + area.bytes).max().unwrap_or(0);
        let blocks = (end - base).div_ceil(PAGE_BYTES * HUGE_PAGES as u64).max(1) as usize;
        let total: Vec<u64> = preset.nodes.iter().map(|node| node.memory_bytes >> PAGE_SHIFT).collect();
        let nearest = |from: usize| {
            let mut nodes: Vec<usize> = (0..total.len()).collect();
            nodes.sort_by_key(|&to| (preset.distances[from][to], to));
            nodes
        };
        Self {
            base,
            states: vec![ABSENT; blocks * HUGE_PAGES],
            huge: vec![huge; blocks],
            unit: HUGE_PAGES,
            free: total.clone(),
            occupied: vec![0; total.len()],
            nearest: (0..total.len()).map(nearest).collect(),
            nodes: (0..total.len()).filter(|&node| total[node] > 0).collect(),
            with_cpus: (0..total.len()).filter(|&node| preset.nodes[node].cores > 0).collect(),
            total,
        }
    }

    /// Huge pages have so many pages, a divisor of 512. Only while nothing has been touched.
    pub(crate) fn set_huge_pages_of(&mut self, pages: usize) {
        assert!(pages > 0 && HUGE_PAGES % pages == 0, "{pages} pages do not divide a huge page");
        self.unit = pages;
        self.huge = vec![self.huge[0]; self.states.len() / pages];
    }

    /// Pages of a huge page.
    pub(crate) fn pages_of_huge(&self) -> usize {
        self.unit
    }

    /// The pages that a fault maps and moves together, when nothing was split.
    pub(crate) fn huge_unit(&self) -> usize {
        if self.huge.first() == Some(&true) { self.unit } else { 1 }
    }

    /// The page of an address.
    #[inline]
    pub(crate) fn page(&self, address: u64) -> usize {
        (address.wrapping_sub(self.base) >> PAGE_SHIFT) as usize
    }

    /// A page's first address.
    pub(crate) fn address(&self, page: usize) -> u64 {
        self.base.wrapping_add((page as u64) << PAGE_SHIFT)
    }

    /// The page's only home, if the access needs nobody's help.
    #[inline]
    pub(crate) fn plain_home(&self, page: usize) -> Option<usize> {
        let state = *self.states.get(page)?;
        (state <= HOME).then_some(usize::from(state))
    }

    /// The state of a page.
    pub(crate) fn state(&self, page: usize) -> State {
        match self.states[page] {
            ABSENT => State::Absent,
            state if state & MARKED != 0 => State::Marked,
            state if state & REPLICATED != 0 => State::Replicated,
            state => State::At(usize::from(state)),
        }
    }

    /// The page's home, or that of its first copy.
    pub(crate) fn home(&self, page: usize) -> Option<usize> {
        let state = *self.states.get(page)?;
        (state != ABSENT).then_some(usize::from(state & HOME))
    }

    /// The nodes that may have pages.
    pub(crate) fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// The nodes that have a page which is copied: its home, and all others with memory and CPUs.
    pub(crate) fn copied_to(&self, home: usize) -> impl Iterator<Item = usize> {
        let others = self.nodes.iter().copied().filter(|node| self.with_cpus.contains(node));
        std::iter::once(home).chain(others.filter(move |&node| node != home))
    }

    /// The nearest node with CPUs.
    pub(crate) fn nearest_with_cpus(&self, node: usize) -> usize {
        self.nearest[node].iter().copied().find(|node| self.with_cpus.contains(node)).unwrap_or(node)
    }

    /// Pages from the first to the last.
    pub(crate) fn pages(&self) -> usize {
        self.states.len()
    }

    /// Free bytes of each node.
    pub(crate) fn free_bytes(&self) -> Vec<u64> {
        self.free.iter().map(|pages| pages << PAGE_SHIFT).collect()
    }

    /// All bytes of each node.
    pub(crate) fn total_bytes(&self) -> Vec<u64> {
        self.total.iter().map(|pages| pages << PAGE_SHIFT).collect()
    }

    /// Whether a page is part of a huge page.
    pub(crate) fn is_huge(&self, page: usize) -> bool {
        self.huge[page / self.unit]
    }

    /// The pages that move together with one: all of its huge page, or itself.
    pub(crate) fn together(&self, page: usize) -> std::ops::Range<usize> {
        if self.is_huge(page) {
            let first = page / self.unit * self.unit;
            first..first + self.unit
        } else {
            page..page + 1
        }
    }

    /// Makes base pages of a huge page.
    pub(crate) fn split(&mut self, page: usize) {
        self.huge[page / self.unit] = false;
    }

    /// Maps an absent page on a node, or on the nearest that has room unless it has to be this one. Returns
    /// where, or none if there is no room.
    pub(crate) fn map(&mut self, page: usize, wanted: usize, only_there: bool) -> Option<usize> {
        let pages = self.together(page);
        let room = |node: &usize| self.free[*node] >= pages.len() as u64;
        let candidates = &self.nearest[wanted];
        let home =
            *candidates[..if only_there { 1 } else { candidates.len() }].iter().find(|node| room(node))?;
        self.free[home] -= pages.len() as u64;
        self.states[pages].fill(home as u8);
        Some(home)
    }

    /// Takes pages out of the table. A huge page of which a part goes is split.
    pub(crate) fn unmap(&mut self, pages: std::ops::Range<usize>) {
        for page in pages.clone() {
            let together = self.together(page);
            if together.start < pages.start || together.end > pages.end {
                self.split(page);
            }
            self.collapse(page);
            if let Some(home) = self.home(page) {
                self.free[home] += 1;
                self.states[page] = ABSENT;
            }
        }
    }

    /// Takes pages of a node for something that is not in this table; false if it has not as many.
    pub(crate) fn occupy(&mut self, node: usize, pages: u64) -> bool {
        let room = self.free[node] >= pages;
        if room {
            self.free[node] -= pages;
            self.occupied[node] += pages;
        }
        room
    }

    /// Pages of each node that are [occupied](Self::occupy).
    pub(crate) fn occupied(&self) -> &[u64] {
        &self.occupied
    }

    /// Gives pages back that were [occupied](Self::occupy).
    pub(crate) fn vacate(&mut self, node: usize, pages: u64) {
        self.occupied[node] -= pages;
        self.free[node] += pages;
    }

    /// Makes a page (or the huge page it is in) another node's; false if there is no room. Replicas and marks
    /// go.
    pub(crate) fn relocate(&mut self, page: usize, to: usize) -> bool {
        let pages = self.together(page);
        let count = pages.len() as u64;
        self.collapse(page);
        let from = self.home(page).expect("only pages that are mapped move");
        if from != to && self.free[to] < count {
            return false;
        }
        self.free[from] += count;
        self.free[to] -= count;
        self.states[pages].fill(to as u8);
        true
    }

    /// Gives every node with memory and CPUs a copy of a page; false if one has no room, or if it is huge.
    pub(crate) fn replicate(&mut self, page: usize) -> bool {
        let home = self.home(page).expect("only pages that are mapped are replicated");
        let others: Vec<usize> = self.copied_to(home).skip(1).collect();
        if self.is_huge(page) || others.iter().any(|&node| self.free[node] == 0) {
            return false;
        }
        for node in others {
            self.free[node] -= 1;
        }
        self.states[page] = home as u8 | REPLICATED;
        true
    }

    /// Drops all copies but the first.
    pub(crate) fn collapse(&mut self, page: usize) {
        let state = self.states[page];
        if state == ABSENT || state & REPLICATED == 0 {
            return;
        }
        let home = usize::from(state & HOME);
        for node in self.copied_to(home).skip(1).collect::<Vec<_>>() {
            self.free[node] += 1;
        }
        self.states[page] &= !REPLICATED;
    }

    /// Marks a page for a hint fault; false if it is absent, replicated or marked.
    pub(crate) fn mark(&mut self, page: usize) -> bool {
        let plain = self.states[page] <= HOME;
        if plain {
            self.states[page] |= MARKED;
        }
        plain
    }

    /// Takes the mark from a page, and from those of its huge page.
    pub(crate) fn unmark(&mut self, page: usize) {
        let pages = self.together(page);
        for state in &mut self.states[pages] {
            if *state != ABSENT {
                *state &= !MARKED;
            }
        }
    }

    /// All pages of the process, copies included.
    pub(crate) fn resident_pages(&self) -> u64 {
        let sum = |pages: &[u64]| pages.iter().sum::<u64>();
        sum(&self.total) - sum(&self.free) - sum(&self.occupied)
    }

    /// The pages of the process on each node, copies included.
    pub(crate) fn resident(&self) -> Vec<u64> {
        let mut resident = vec![0; self.total.len()];
        for &state in self.states.iter().filter(|&&state| state != ABSENT) {
            if state & REPLICATED == 0 {
                resident[usize::from(state & HOME)] += 1;
            } else {
                self.copied_to(usize::from(state & HOME)).for_each(|node| resident[node] += 1);
            }
        }
        resident
    }

    /// Whether an access of `node` that goes to `home` meets what was written last: writes need the only
    /// copy, reads any.
    pub(crate) fn serves(&self, page: usize, node: usize, home: usize, write: bool) -> bool {
        match self.state(page) {
            State::Absent => false,
            State::Marked | State::At(_) => self.home(page) == Some(home),
            State::Replicated => !write && (home == node || self.home(page) == Some(home)),
        }
    }

    /// Asserts that no page is lost or invented, since the pages that are mapped on a node, occupied and free
    /// are all there are. Copies are of base pages that carry no mark; a huge page is on one node.
    pub(crate) fn assert_sound(&self) {
        for (node, resident) in self.resident().into_iter().enumerate() {
            assert_eq!(
                resident + self.occupied[node] + self.free[node],
                self.total[node],
                "pages of node {node}"
            );
        }
        for (page, &state) in self.states.iter().enumerate() {
            if state == ABSENT {
                continue;
            }
            assert!(self.nodes.contains(&usize::from(state & HOME)), "page {page} is nowhere: {state:#x}");
            assert!(state & (MARKED | REPLICATED) != MARKED | REPLICATED, "page {page}: {state:#x}");
            if self.is_huge(page) {
                assert!(state & REPLICATED == 0, "page {page} is huge and copied");
                let first = self.states[page / self.unit * self.unit];
                assert_eq!((state & HOME, state == ABSENT), (first & HOME, first == ABSENT), "page {page}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Space};
    use proptest::prelude::*;

    #[test]
    fn copies_are_for_nodes_with_cpus() {
        let preset = Preset::named("epyc-cxl-4n").unwrap();
        let mut space = Space::new();
        space.area("area", PAGE_BYTES, Role::Unknown);
        let mut memory = Memory::new(&preset, &space.into_areas(), false);
        memory.map(0, 3, true).unwrap();
        assert!(memory.replicate(0));
        assert_eq!(memory.resident(), [1, 1, 0, 1]);
        memory.assert_sound();
        memory.collapse(0);
        assert_eq!(memory.resident(), [0, 0, 0, 1]);
        memory.assert_sound();
        assert_eq!([0, 1, 2, 3].map(|node| memory.nearest_with_cpus(node)), [0, 1, 0, 1]);
    }

    /// Its number has every bit of a home's, and no page there is taken for an absent one.
    #[test]
    fn the_last_of_the_most_nodes_has_pages() {
        let mut preset = Preset::named("epyc-cxl-4n").unwrap();
        preset.nodes = vec![preset.nodes[0]; MOST_NODES];
        let row = |from| (0..MOST_NODES).map(|to| if to == from { 10 } else { 20 }).collect();
        preset.distances = (0..MOST_NODES).map(row).collect();
        let mut space = Space::new();
        space.area("area", PAGE_BYTES, Role::Unknown);
        let mut memory = Memory::new(&preset, &space.into_areas(), false);
        let last = MOST_NODES - 1;
        assert_eq!((memory.state(0), memory.map(0, last, true)), (State::Absent, Some(last)));
        assert_eq!((memory.state(0), memory.plain_home(0)), (State::At(last), Some(last)));
        assert!(memory.mark(0));
        assert_eq!((memory.state(0), memory.home(0)), (State::Marked, Some(last)));
        assert!(memory.replicate(0));
        assert_eq!((memory.state(0), memory.home(0)), (State::Replicated, Some(last)));
        assert!(!memory.mark(0) && memory.resident() == vec![1; MOST_NODES]);
        memory.assert_sound();
        memory.collapse(0);
        assert_eq!(memory.state(0), State::At(last));
    }

    fn memory(huge: bool, mib: u64) -> Memory {
        let mut preset = Preset::named("opteron-8385-4n").unwrap();
        preset.nodes.iter_mut().for_each(|node| node.memory_bytes = mib << 20);
        let mut space = Space::new();
        space.area("data", 4 << 20, Role::Unknown);
        Memory::new(&preset, &space.into_areas(), huge)
    }

    #[test]
    fn a_full_node_hands_over_to_the_nearest() {
        let mut memory = memory(false, 1);
        for page in 0..256 {
            assert_eq!(memory.map(page, 1, false), Some(1));
        }
        assert_eq!(memory.map(256, 1, true), None);
        let next = memory.map(256, 1, false).unwrap();
        assert!(next == 0 || next == 3, "corners of the square that are a hop away: {next}");
        memory.assert_sound();
    }

    #[test]
    fn a_huge_page_moves_as_a_whole_until_it_is_split() {
        let mut memory = memory(true, 16);
        memory.map(3, 0, false);
        assert_eq!((memory.home(511), memory.home(512)), (Some(0), None));
        assert!(memory.relocate(7, 2));
        assert_eq!(memory.resident(), [0, 0, 512, 0]);
        memory.split(7);
        assert!(memory.relocate(7, 1));
        assert_eq!(memory.resident(), [0, 1, 511, 0]);
        memory.assert_sound();
    }

    /// The number that somebody wrote last, and the number in each node's copy.
    #[derive(Clone, Debug, Default)]
    struct Content {
        last: u32,
        copies: [Option<u32>; 4],
    }

    proptest! {
        /// A page table under random operations, beside one that says what is written in each copy: nothing
        /// stale is read, nothing is lost.
        #[test]
        fn every_read_sees_the_last_write(
            huge: bool,
            steps in prop::collection::vec((0..10u8, 0..1024usize, 0..4usize), 1..150),
        ) {
            let mut memory = memory(huge, 3);
            let mut contents = vec![Content::default(); memory.pages()];
            for (number, (what, page, node)) in (1..).zip(steps) {
                let home = memory.home(page);
                match (what, memory.state(page)) {
                    (0, State::At(_) | State::Marked | State::Replicated) => {
                        let together = memory.together(page);
                        if memory.relocate(page, node) {
                            for content in &mut contents[together] {
                                let moved = content.copies[home.unwrap()];
                                content.copies = [None; 4];
                                content.copies[node] = moved;
                            }
                        }
                    }
                    (1, State::At(home)) if memory.replicate(page) => {
                        contents[page].copies = [contents[page].copies[home]; 4];
                    }
                    (2, _) => drop(memory.mark(page)),
                    (3, _) => memory.unmark(page),
                    (4, _) => memory.split(page),
                    (5, _) => {
                        let pages = page..(page + 7 * node).min(memory.pages());
                        memory.unmap(pages.clone());
                        contents[pages].fill(Content::default());
                    }
                    (6, _) if memory.occupy(node, page as u64 % 90) => memory.vacate(node, page as u64 % 45),
                    (7, State::Absent) => {
                        if let Some(home) = memory.map(page, node, false) {
                            contents[memory.together(page)].iter_mut().for_each(|c| c.copies[home] = Some(0));
                        }
                    }
                    (8, State::Absent) | (6 | 7, _) => {}
                    (8, _) => {
                        // A write: the only copy is the writer's, wherever it is.
                        memory.collapse(page);
                        let home = memory.home(page).unwrap();
                        prop_assert!(memory.serves(page, node, home, true));
                        contents[page].last = number;
                        contents[page].copies = [None; 4];
                        contents[page].copies[home] = Some(number);
                    }
                    _ => {}
                }
                for home in 0..4 {
                    if memory.serves(page, node, home, false) {
                        prop_assert_eq!(contents[page].copies[home], Some(contents[page].last));
                    }
                }
                memory.assert_sound();
            }
        }
    }
}
