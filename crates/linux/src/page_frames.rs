//! The page frames where processes have their pages. `/proc/PID/pagemap` names a page's frame,
//! `/proc/kpageflags` says what it is a part of, and `/proc/kpagecount` how often it is mapped
//! (`Documentation/admin-guide/mm/pagemap.rst`).

use crate::mover::Mapper;
use crate::process::ReadCost;
use nodewise_engine::{HUGE_PAGE_PAGES, PageNumber, PageRange};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

/// The files that tell. Without root none of them can be read.
#[derive(Debug)]
pub(crate) struct PageFrames {
    flags: Option<File>,
    counts: Option<File>,
    pagemaps: BTreeMap<u32, Option<File>>,
}

/// Most pagemaps open at once: there may be more processes than descriptors.
const PAGEMAPS_MAX: usize = 64;
/// `KPF_THP`: part of a transparent huge page, however it is mapped.
const KPF_THP: u64 = 1 << 22;
/// `KPF_HUGE`: part of a hugetlbfs page.
const KPF_HUGE: u64 = 1 << 17;
/// `KPF_COMPOUND_HEAD` and `KPF_COMPOUND_TAIL`: the first page of a folio, and each other one.
const KPF_COMPOUND_HEAD: u64 = 1 << 15;
const KPF_COMPOUND_TAIL: u64 = 1 << 16;
const IN_A_FOLIO: u64 = KPF_COMPOUND_HEAD | KPF_COMPOUND_TAIL;
/// Bit 63 of a pagemap entry.
const PRESENT: u64 = 1 << 63;
/// Bits 0-54 of a pagemap entry; 0 for those who may not know.
const FRAME: u64 = (1 << 55) - 1;

impl Default for PageFrames {
    fn default() -> Self {
        let open = |path| File::open(path).ok();
        Self { flags: open("/proc/kpageflags"), counts: open("/proc/kpagecount"), pagemaps: BTreeMap::new() }
    }
}

impl PageFrames {
    /// Whether huge pages are told from others.
    pub(crate) const fn have_flags(&self) -> bool {
        self.flags.is_some()
    }

    /// Closes the files of all processes but these.
    pub(crate) fn keep(&mut self, processes: &BTreeSet<u32>) {
        self.pagemaps.retain(|pid, _| processes.contains(pid));
    }

    /// How many pages move only together with this one, itself included. None where there is no page, and
    /// where the kernel does not tell.
    pub(crate) fn folio_pages(&mut self, cost: &mut ReadCost, pid: u32, page: PageNumber) -> Option<u16> {
        let frame = self.frame(cost, pid, page)?;
        let pages = folio_around(cost, self.flags.as_ref()?, frame);
        Some(if frame % pages == page.0 % pages { pages } else { 1 } as u16)
    }

    /// Whether the 2 MiB around a page are one huge page. None as above.
    pub(crate) fn is_huge(&mut self, cost: &mut ReadCost, pid: u32, page: PageNumber) -> Option<bool> {
        let frame = self.frame(cost, pid, page)?;
        let flags = self.flags.as_ref()?;
        Some(frame % HUGE_PAGE_PAGES == page.0 % HUGE_PAGE_PAGES && is_of_huge_page(cost, flags, frame))
    }

    /// The page frame where a page is, if it is there and flags can be read.
    fn frame(&mut self, cost: &mut ReadCost, pid: u32, page: PageNumber) -> Option<u64> {
        self.flags.as_ref()?;
        let entry = self.pagemap(cost, pid).and_then(|file| cost.word(file, page.0))?;
        Some(entry & FRAME).filter(|&frame| entry & PRESENT != 0 && frame != 0)
    }

    fn pagemap(&mut self, cost: &mut ReadCost, pid: u32) -> Option<&File> {
        // Samples come process by process, so that starting over is rare.
        if self.pagemaps.len() >= PAGEMAPS_MAX && !self.pagemaps.contains_key(&pid) {
            self.pagemaps.clear();
        }
        let open = || cost.open(&format!("/proc/{pid}/pagemap"));
        self.pagemaps.entry(pid).or_insert_with(open).as_ref()
    }

    /// The folios of a window, of those pages that lie as they do in their folio
    /// ([`Kernel::folios`](crate::mover::Kernel::folios)).
    pub(crate) fn folios(
        &mut self,
        cost: &mut ReadCost,
        pid: u32,
        window: PageRange,
        pages: &[PageNumber],
    ) -> Option<Vec<u16>> {
        self.flags.as_ref()?;
        let mut frames = vec![0; window.pages() as usize];
        let pagemap = self.pagemap(cost, pid)?;
        cost.words(pagemap, window.start.0, &mut frames);
        let flags = self.flags.as_ref()?;
        for entry in &mut frames {
            *entry = if *entry & PRESENT == 0 { 0 } else { *entry & FRAME };
        }
        let of_pages: Vec<u64> =
            pages.iter().map(|page| frames[(page.0 - window.start.0) as usize]).collect();
        let mut words = vec![0; of_pages.len()];
        let mut in_a_row = of_pages.chunk_by(|a, b| *a != 0 && *b == a + 1).filter(|run| run[0] != 0);
        let has_part = in_a_row.any(|run| {
            cost.words(flags, run[0], &mut words[..run.len()]);
            words[..run.len()].iter().any(|word| word & IN_A_FOLIO != 0)
        });
        if !has_part {
            return None;
        }
        let mut folios = Vec::with_capacity(frames.len());
        for run in frames.chunk_by(|a, b| *a != 0 && *b == a + 1) {
            folios.extend(folios_of(cost, flags, run[0], run.len()));
        }
        Some(folios)
    }

    /// Tells of each page of a window whether nobody has it mapped but for these.
    pub(crate) fn are_alone(
        &mut self,
        cost: &mut ReadCost,
        mappers: &[Mapper],
        window: PageRange,
    ) -> Vec<bool> {
        let pages = window.pages() as usize;
        let mut alone = vec![false; pages];
        if self.counts.is_none() {
            return alone;
        }
        // The frame of the first who has each page, and how many of all have the same.
        let (mut frames, mut found) = (vec![0; pages], vec![0; pages]);
        for mapper in mappers {
            let part = mapper.range.intersect(window);
            let Some(there) = mapper.place(part.start).filter(|_| part.pages() > 0) else { continue };
            let mut entries = vec![0; part.pages() as usize];
            let Some(file) = self.pagemap(cost, mapper.pid) else { continue };
            cost.words(file, there.0, &mut entries);
            let from = (part.start.0 - window.start.0) as usize;
            for (at, entry) in (from..).zip(entries) {
                let frame = if entry & PRESENT == 0 { 0 } else { entry & FRAME };
                if frames[at] == 0 {
                    frames[at] = frame;
                }
                found[at] += u64::from(frame != 0 && frame == frames[at]);
            }
        }
        let Some(counts) = &self.counts else { return alone };
        let (mut at, mut mapped) = (0, vec![0; pages]);
        for run in frames.chunk_by(|a, b| *a != 0 && *b == a + 1) {
            let mapped = &mut mapped[..run.len()];
            let told = if run[0] == 0 { 0 } else { cost.words(counts, run[0], mapped) };
            for i in 0..told {
                alone[at + i] = found[at + i] > 0 && mapped[i] <= found[at + i];
            }
            at += run.len();
        }
        alone
    }
}

/// Whether a frame is in a huge page. A smaller folio ends by the middle of 2 MiB, or begins there or behind
/// it.
fn is_of_huge_page(cost: &mut ReadCost, flags: &File, frame: u64) -> bool {
    let middle = cost.word(flags, frame - frame % HUGE_PAGE_PAGES + HUGE_PAGE_PAGES / 2);
    middle.is_some_and(|word| word & KPF_COMPOUND_TAIL != 0 && word & (KPF_THP | KPF_HUGE) != 0)
}

/// The pages of the folio of a frame, no more than 512. Their number is a power of two, and a folio begins at
/// a multiple of it.
fn folio_around(cost: &mut ReadCost, flags: &File, frame: u64) -> u64 {
    let mut has = |frame, which| cost.word(flags, frame).is_some_and(|word| word & which != 0);
    if !has(frame, IN_A_FOLIO) {
        return 1;
    }
    if is_of_huge_page(cost, flags, frame) {
        return HUGE_PAGE_PAGES;
    }
    let mut is_tail = |frame| cost.word(flags, frame).is_some_and(|word| word & KPF_COMPOUND_TAIL != 0);
    let sizes = || (0..HUGE_PAGE_PAGES.ilog2()).map(|log| 1 << log);
    let mut first = sizes().map(|pages| frame - frame % pages).filter(|&first| !is_tail(first));
    let Some(first) = first.next() else { return 1 };
    sizes().find(|&pages| !is_tail(first + pages)).unwrap_or(1)
}

/// How many frames from one on are of a folio that begins before them, up to 511. They are read piece by
/// piece, since mostly there is none.
fn tails_from(cost: &mut ReadCost, flags: &File, frame: u64) -> usize {
    const MOST: usize = HUGE_PAGE_PAGES as usize - 1;
    let mut words = [0; MOST];
    let (mut tails, mut more) = (0, 1);
    while tails < MOST {
        let piece = &mut words[tails..(tails + more).min(MOST)];
        cost.words(flags, frame + tails as u64, piece);
        let found = piece.iter().take_while(|word| *word & KPF_COMPOUND_TAIL != 0).count();
        tails += found;
        if found < more {
            break;
        }
        more *= 4;
    }
    tails
}

/// The folios of `count` pages with frames from `first` on, as [`crate::mover::Kernel::folios`] tells them.
/// The first and the last may be a part of one.
fn folios_of(cost: &mut ReadCost, flags: &File, first: u64, count: usize) -> Vec<u16> {
    const MOST: u64 = HUGE_PAGE_PAGES - 1;
    if first == 0 {
        return vec![1; count];
    }
    let mut words = vec![0; count];
    cost.words(flags, first, &mut words);
    let is_tail = |word: &u64| word & KPF_COMPOUND_TAIL != 0;
    // Pages before and behind that belong to the first and to the last folio.
    let mut before = vec![0; if is_tail(&words[0]) { MOST.min(first) as usize } else { 0 }];
    cost.words(flags, first - before.len() as u64, &mut before);
    let begins_before =
        if before.is_empty() { 0 } else { 1 + before.iter().rev().take_while(|word| is_tail(word)).count() };
    let is_part = words.last().is_some_and(|word| word & IN_A_FOLIO != 0);
    let ends_behind = if is_part { tails_from(cost, flags, first + count as u64) } else { 0 };
    let mut folios = vec![0; count];
    let mut at = 0;
    while at < count {
        let tails = words[at + 1..].iter().take_while(|word| is_tail(word)).count();
        let here = 1 + tails;
        let elsewhere =
            if at == 0 { begins_before } else { 0 } + if at + here == count { ends_behind } else { 0 };
        if here > elsewhere {
            folios[at] = here as u16;
        }
        at += here;
    }
    folios
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::VirtAddr;
    use nodewise_sys::{Advice, Mapping, MappingOptions};
    use std::sync::atomic::Ordering;

    /// A folio of four pages whose first three are mapped, one page, and the end of a folio of eight.
    #[test]
    fn folios_are_those_of_which_most_is_here() {
        const HEAD: u64 = KPF_COMPOUND_HEAD;
        const TAIL: u64 = KPF_COMPOUND_TAIL;
        let words =
            [0, HEAD, TAIL, TAIL, TAIL, 0, HEAD, TAIL, TAIL, TAIL, TAIL, TAIL, TAIL, TAIL, 0, HEAD, TAIL];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kpageflags");
        std::fs::write(&path, bytes).unwrap();
        let file = File::open(path).unwrap();
        let folios = |first, count| folios_of(&mut ReadCost::default(), &file, first, count);
        assert_eq!(folios(1, 4), [4, 0, 0, 0]);
        assert_eq!(folios(1, 3), [3, 0, 0], "most of it");
        assert_eq!(folios(3, 2), [0, 0], "no more than half");
        assert_eq!(folios(2, 4), [3, 0, 0, 1]);
        assert_eq!(folios(5, 4), [1, 0, 0, 0], "three of eight");
        assert_eq!(folios(9, 7), [5, 0, 0, 0, 0, 1, 0], "five of eight, one page, and half of two");
        assert_eq!(folios(0, 3), [1, 1, 1], "frame 0 is none");
    }

    /// Pages of no folio, a folio of four, and one of eight.
    #[test]
    fn a_folio_is_found_around_each_of_its_pages() {
        let tails = |count| std::iter::repeat_n(KPF_COMPOUND_TAIL, count);
        let head = || std::iter::once(KPF_COMPOUND_HEAD);
        let words = [0; 4].into_iter().chain(head()).chain(tails(3));
        let words = words.chain(head()).chain(tails(7)).chain(head()).chain(tails(1));
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let around = |frames: std::ops::Range<u64>| -> Vec<u64> {
            frames.map(|frame| folio_around(&mut ReadCost::default(), &file, frame)).collect()
        };
        assert_eq!(around(0..4), [1; 4]);
        assert_eq!(around(4..8), [4; 4]);
        assert_eq!(around(8..16), [8; 8]);
        assert_eq!(around(16..18), [2; 2], "the last of all");
    }

    /// Two folios of 1 MiB lie where a huge page could, and then comes one.
    #[test]
    fn folios_side_by_side_are_no_huge_page() {
        let folio = |pages: usize| {
            [KPF_COMPOUND_HEAD].into_iter().chain(std::iter::repeat_n(KPF_COMPOUND_TAIL, pages - 1))
        };
        let words = folio(256).chain(folio(256)).chain(folio(512)).map(|word| word | KPF_THP);
        let bytes: Vec<u8> = words.chain([0]).flat_map(u64::to_ne_bytes).collect();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let pages = [0, 255, 256, 511, 512, 768, 1023, 1024]
            .map(|frame| folio_around(&mut ReadCost::default(), &file, frame));
        assert_eq!(pages, [256, 256, 256, 256, 512, 512, 512, 1]);
    }

    /// Two mappings of one memory are all that there are of some pages. One of the others is not told of.
    #[test]
    fn pages_are_somebodys_alone_whose_mappings_are_all_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 12).unwrap();
        let [one, other] = [(), ()].map(|()| Mapping::of_file(&file, 8 << 12).unwrap());
        for mapping in [&one, &other] {
            (0..8).for_each(|page| mapping.as_atomics()[page * 512].store(1, Ordering::Relaxed));
        }
        let (first, second) = (VirtAddr(one.address()).page(), VirtAddr(other.address()).page());
        let whole = PageRange::new(first.0, first.0 + 8);
        let me = std::process::id();
        let mappers = [
            Mapper { pid: me, range: whole, at: first },
            Mapper { pid: me, range: PageRange::new(first.0 + 3, first.0 + 8), at: PageNumber(second.0 + 3) },
        ];
        // The window begins before the mapping, and ends in the middle of it.
        let window = PageRange::new(first.0 - 2, first.0 + 6);
        let mut frames = PageFrames::default();
        let alone = frames.are_alone(&mut ReadCost::default(), &mappers, window);
        // Without root nothing is known.
        let known = frames.have_flags();
        assert_eq!(alone, [false, false, false, false, false, known, known, known]);
    }

    /// Nor are they taken for small ones where there are none, as while a huge page is being migrated.
    #[test]
    fn small_pages_are_not_huge_and_absent_ones_are_neither() {
        let mapping =
            Mapping::new(4 << 20, MappingOptions { align_bytes: 2 << 20, ..MappingOptions::default() });
        let mapping = mapping.unwrap();
        mapping.advise(0..mapping.bytes(), Advice::NoHugePage).unwrap();
        mapping.as_atomics().iter().step_by(512).for_each(|word| word.store(1, Ordering::Relaxed));
        let (mut frames, me) = (PageFrames::default(), std::process::id());
        let page = VirtAddr(mapping.page_address(3)).page();
        // Without root nothing is known.
        let known = frames.have_flags().then_some(false);
        assert_eq!(frames.is_huge(&mut ReadCost::default(), me, page), known);
        mapping.advise(3 * 4096..4 * 4096, Advice::DontNeed).unwrap();
        assert_eq!(frames.is_huge(&mut ReadCost::default(), me, page), None);
    }

    #[test]
    fn files_of_processes_that_are_gone_are_closed() {
        let mut frames = PageFrames::default();
        let me = std::process::id();
        frames.is_huge(&mut ReadCost::default(), me, PageNumber(1));
        frames.keep(&BTreeSet::from([me]));
        // Without root there is nothing to keep open.
        assert_eq!(frames.pagemaps.len(), usize::from(frames.have_flags()));
        frames.keep(&BTreeSet::new());
        assert!(frames.pagemaps.is_empty());
    }

    #[test]
    fn no_more_files_are_open_than_there_is_room_for() {
        let mut frames = PageFrames::default();
        for pid in 1..1000 {
            frames.is_huge(&mut ReadCost::default(), pid, PageNumber(1));
            assert!(frames.pagemaps.len() <= PAGEMAPS_MAX);
        }
    }
}
