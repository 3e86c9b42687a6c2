//! The running kernel, as the mover and the machine see it.

use crate::bounds::MAPS_TIME;
use crate::ending::{Ending, Until};
use crate::maps;
use crate::mover::{Kernel, Mapper};
use crate::process::{ReadCost, has_ended};
use nodewise_engine::{HUGE_PAGE_PAGES, Mapping, PageNumber, PageRange, Pid};
use nodewise_sys::{Clock, Error, MoveFlags, clock_ns};
use nodewise_topology::NodeId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// System calls and files of the live machine.
#[derive(Debug, Default)]
pub struct LiveKernel {
    huge_pages: HugePages,
    /// Handles of the processes that these numbers are to mean.
    handles: BTreeMap<u32, Arc<OwnedFd>>,
    cost: ReadCost,
    /// Memory that the machine has and no node counts: it may be free on any.
    uncounted_bytes: u64,
    ending: Ending,
    /// Where pages of shared memory were seen, by their place in the first process that has mapped them.
    seen_at: HashMap<Place, Place>,
    /// The processes of [`keep`](Self::keep).
    kept: BTreeSet<u32>,
}

/// A page of a process.
pub(crate) type Place = (Pid, PageNumber);

/// Pages of shared memory of which it is known who has used them.
const PLACES_MOST: usize = 1 << 18;

impl Kernel for LiveKernel {
    fn query(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), Error> {
        self.while_it_lives(pid, || nodewise_sys::query_pages(pid as i32, addresses, status))
    }

    fn move_pages(
        &mut self,
        pid: u32,
        addresses: &[u64],
        nodes: &[i32],
        status: &mut [i32],
        flags: MoveFlags,
    ) -> Result<u64, Error> {
        self.while_it_lives(pid, || nodewise_sys::move_pages(pid as i32, addresses, nodes, status, flags))
    }

    fn is_huge(&mut self, pid: u32, page: PageNumber) -> Option<bool> {
        self.huge_pages.is_huge(&mut self.cost, pid, page)
    }

    fn folios(&mut self, pid: u32, window: PageRange, pages: &[PageNumber]) -> Option<Vec<u16>> {
        let Self { huge_pages, cost, .. } = self;
        huge_pages.folios(cost, pid, window, pages)
    }

    fn seen_at(&self, pid: u32, page: PageNumber) -> Option<(u32, PageNumber)> {
        self.last_seen((Pid(pid), page)).map(|(pid, page)| (pid.0, page))
    }

    /// By how often the kernel counts a page as mapped (`/proc/kpagecount`). Whoever maps it after that look
    /// is moved along.
    fn are_theirs_alone(&mut self, mappers: &[Mapper], window: PageRange) -> Vec<bool> {
        let Self { huge_pages, cost, .. } = self;
        huge_pages.are_alone(cost, mappers, window)
    }

    /// `/sys/devices/system/node/nodeN/meminfo`, and what no node counts; 0 where there is no such node.
    fn free_bytes(&mut self, node: NodeId) -> u64 {
        let text =
            self.cost.read(&format!("/sys/devices/system/node/node{node}/meminfo")).unwrap_or_default();
        free_kib(&text).map_or(0, |kib| kib * 1024 + self.uncounted_bytes)
    }

    fn now_ns(&mut self) -> u64 {
        now_ns()
    }

    fn is_ending(&self) -> bool {
        self.ending.is_set()
    }

    fn cpu_ns(&mut self) -> u64 {
        clock_ns(Clock::ThreadCpu).expect("every kernel has this clock")
    }
}

/// A node's memory that is free, or page cache that nobody used lately and that is clean. The kernel gives
/// the latter up for pages that are moved there (`alloc_migration_target`, `mm/migrate.c`, Linux 6.12). On
/// a server that has run for a day next to nothing else is free.
fn free_kib(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find(|line| line.contains(&format!(" {name}:")))?;
        line.split_ascii_whitespace().rev().nth(1)?.parse::<u64>().ok()
    };
    let dirty = ["Dirty", "Writeback"].into_iter().filter_map(kib).sum();
    Some(kib("MemFree")? + kib("Inactive(file)").unwrap_or(0).saturating_sub(dirty))
}

/// Memory of a node that is free, or that the kernel gives up at once ([`free_kib`]).
#[must_use]
pub fn free_bytes(node: NodeId) -> Option<u64> {
    let meminfo = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    Some(free_kib(&meminfo)? * 1024)
}

impl LiveKernel {
    /// The kernel of a machine of whose memory no node counts so much
    /// ([`nodewise_topology::Topology::uncounted_memory_bytes`]).
    #[must_use]
    pub fn new(uncounted_bytes: u64) -> Self {
        Self { uncounted_bytes, ..Self::default() }
    }

    /// Learns where pages of shared memory were seen. To have mapped such memory is not to have each of its
    /// pages: a process has those that it has touched. So the first may know nothing of a page.
    pub(crate) fn learn_places(&mut self, places: impl Iterator<Item = (Place, Place)>) {
        for (first, seen) in places {
            if self.seen_at.len() >= PLACES_MOST {
                self.seen_at.clear();
            }
            self.seen_at.insert(first, seen);
        }
    }

    /// The place where a page of shared memory was seen last, if that process is still there.
    pub(crate) fn last_seen(&self, first: Place) -> Option<Place> {
        self.seen_at.get(&first).copied().filter(|(pid, _)| self.kept.contains(&pid.0))
    }

    /// Hears when managing is to end.
    pub(crate) fn hear(&mut self, ending: &Ending) {
        self.ending = ending.clone();
    }

    /// From here on these numbers mean the processes of these handles, and no others.
    pub(crate) fn mean(&mut self, handles: impl Iterator<Item = (u32, Arc<OwnedFd>)>) {
        self.handles = handles.collect();
    }

    /// Calls the kernel about a process by its number, which may be given to another: what is learnt then is
    /// worth nothing, and the process is gone. A call is short, and so is the time in which another's
    /// pages could be moved.
    fn while_it_lives<T>(&self, pid: u32, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        const ESRCH: i32 = 3;
        self.ending.goes_on();
        let handle = self.handles.get(&pid);
        let gone = || handle.is_some_and(has_ended).then_some(Error::new("move_pages", ESRCH));
        if let Some(gone) = gone() {
            return Err(gone);
        }
        let returned = call();
        gone().map_or(returned, Err)
    }

    /// The cost of all that was read so far.
    #[must_use]
    pub const fn cost(&self) -> ReadCost {
        self.cost
    }

    /// How many pages move only together with this one, itself included: 512 are a huge page. None where
    /// there is no page, and where the kernel does not tell.
    pub(crate) fn folio_pages(&mut self, pid: u32, page: PageNumber) -> Option<u16> {
        self.huge_pages.look(&mut self.cost, pid, page)
    }

    /// Whether huge pages are told from others, which takes root.
    #[must_use]
    pub const fn sees_huge_pages(&self) -> bool {
        self.huge_pages.flags.is_some()
    }

    /// Memory that a process has bound itself, where that can be read in good time: the kernel walks all page
    /// tables for it, one mapping at a time.
    pub(crate) fn bound(&mut self, pid: Pid, mappings: &[Mapping]) -> Option<Vec<PageRange>> {
        let status = self.cost.read(&format!("/proc/{pid}/status"))?;
        let until = Until { at: Instant::now() + MAPS_TIME, ending: self.ending.clone() };
        maps::bound(self.cost.open(&policies_file(pid, &status)?)?, mappings, until).ok()
    }

    /// Pages that the kernel's balancing has moved since boot (`/proc/vmstat`, `numa_pages_migrated`); 0 on
    /// kernels without.
    pub fn pages_migrated(&mut self) -> u64 {
        vmstat_count(&self.cost.read("/proc/vmstat").unwrap_or_default(), "numa_pages_migrated")
    }

    /// Closes the files of all processes but these. An open pagemap keeps showing the program that ran when
    /// it was opened. Leave a process out of `processes` when it has executed another program, so that its
    /// file is closed.
    pub fn keep(&mut self, processes: &BTreeSet<u32>) {
        self.huge_pages.pagemaps.retain(|pid, _| processes.contains(pid));
        self.kept.clone_from(processes);
    }
}

/// A count of `/proc/vmstat`; 0 on kernels without.
pub(crate) fn vmstat_count(vmstat: &str, name: &str) -> u64 {
    let value = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Now, on the clock that perf events are told to use.
#[must_use]
pub fn now_ns() -> u64 {
    clock_ns(Clock::Monotonic).expect("every kernel has this clock")
}

/// Which pages are huge: `/proc/PID/pagemap` for the page frame and `/proc/kpageflags` for what it is
/// (`Documentation/admin-guide/mm/pagemap.rst`). Both need root; without it no page is known to be huge.
#[derive(Debug)]
struct HugePages {
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

impl Default for HugePages {
    fn default() -> Self {
        let open = |path| File::open(path).ok();
        Self { flags: open("/proc/kpageflags"), counts: open("/proc/kpagecount"), pagemaps: BTreeMap::new() }
    }
}

impl HugePages {
    fn look(&mut self, cost: &mut ReadCost, pid: u32, page: PageNumber) -> Option<u16> {
        let frame = self.frame(cost, pid, page)?;
        let pages = folio_around(cost, self.flags.as_ref()?, frame);
        Some(if frame % pages == page.0 % pages { pages } else { 1 } as u16)
    }

    fn is_huge(&mut self, cost: &mut ReadCost, pid: u32, page: PageNumber) -> Option<bool> {
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

    /// Folios by `/proc/kpageflags`, of those pages that lie as they do in their folio.
    fn folios(
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

    fn are_alone(&mut self, cost: &mut ReadCost, mappers: &[Mapper], window: PageRange) -> Vec<bool> {
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

/// The file with a process's memory policies, if its page tables are small by its `status`. The kernel walks
/// all of them for it.
pub(crate) fn policies_file(pid: Pid, status: &str) -> Option<String> {
    /// 8 million pages, some tenths of a second.
    const PAGE_TABLES_KIB: u64 = 64 << 10;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    (kib <= PAGE_TABLES_KIB).then(|| format!("/proc/{pid}/numa_maps"))
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

    fn touched(advice: Advice) -> Mapping {
        let mapping =
            Mapping::new(4 << 20, MappingOptions { align_bytes: 2 << 20, ..MappingOptions::default() })
                .unwrap();
        mapping.advise(0..mapping.bytes(), advice).unwrap();
        mapping.as_atomics().iter().step_by(512).for_each(|word| word.store(1, Ordering::Relaxed));
        mapping
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
        let mut kernel = LiveKernel::default();
        let alone = kernel.are_theirs_alone(&mappers, window);
        // Without root nothing is known.
        let known = kernel.sees_huge_pages();
        assert_eq!(alone, [false, false, false, false, false, known, known, known]);
    }

    /// Nor are they taken for small ones where there are none, as while a huge page is being migrated.
    #[test]
    fn small_pages_are_not_huge_and_absent_ones_are_neither() {
        let mapping = touched(Advice::NoHugePage);
        let (mut kernel, me) = (LiveKernel::default(), std::process::id());
        let is_huge =
            |kernel: &mut LiveKernel, page| kernel.is_huge(me, VirtAddr(mapping.page_address(page)).page());
        // Without root nothing is known.
        let known = kernel.sees_huge_pages().then_some(false);
        assert_eq!(is_huge(&mut kernel, 3), known);
        mapping.advise(3 * 4096..4 * 4096, Advice::DontNeed).unwrap();
        assert_eq!(is_huge(&mut kernel, 3), None);
    }

    #[test]
    fn files_of_processes_that_are_gone_are_closed() {
        let mut kernel = LiveKernel::default();
        let me = std::process::id();
        kernel.is_huge(me, PageNumber(1));
        kernel.keep(&BTreeSet::from([me]));
        // Without root there is nothing to keep open.
        assert_eq!(kernel.huge_pages.pagemaps.len(), usize::from(kernel.huge_pages.flags.is_some()));
        kernel.keep(&BTreeSet::new());
        assert!(kernel.huge_pages.pagemaps.is_empty());
    }

    #[test]
    fn no_more_files_are_open_than_there_is_room_for() {
        let mut kernel = LiveKernel::default();
        for pid in 1..1000 {
            kernel.is_huge(pid, PageNumber(1));
            assert!(kernel.huge_pages.pagemaps.len() <= PAGEMAPS_MAX);
        }
    }

    #[test]
    fn clean_page_cache_that_nobody_used_lately_is_free() {
        let meminfo = "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 10 kB\nNode 1 Active(file): 500 kB\n\
                       Node 1 Inactive(file): 300 kB\nNode 1 Dirty: 40 kB\nNode 1 Writeback: 5 kB\n\
                       Node 1 WritebackTmp: 7 kB\n";
        assert_eq!(free_kib(meminfo), Some(265));
        assert_eq!(free_kib(&meminfo.replace("300", "30")), Some(10));
        assert_eq!(free_kib("Node 1 MemFree: 10 kB\n"), Some(10));
        assert_eq!(free_kib(""), None);
    }

    #[test]
    fn knows_the_free_memory_of_node_0_and_counts_what_it_read() {
        let mut kernel = LiveKernel::default();
        assert!(kernel.free_bytes(NodeId(0)) > 0);
        assert_eq!(kernel.free_bytes(NodeId(9999)), 0);
        // More than any machine has: what no node counts is on top of what this one says.
        let mut grown = LiveKernel::new(1 << 60);
        assert!(grown.free_bytes(NodeId(0)) > 1 << 60);
        assert_eq!(grown.free_bytes(NodeId(9999)), 0);
        let cost = kernel.cost();
        assert!(cost.files == 2 && cost.bytes > 0, "{cost:?}");
        kernel.pages_migrated();
        assert_eq!(kernel.cost().files, 3);
    }

    /// It may have got its number since.
    #[test]
    fn nobody_else_is_meant_by_the_number_of_a_process_that_has_ended() {
        let me = std::process::id();
        let mapping = touched(Advice::NoHugePage);
        let addresses = [mapping.page_address(0)];
        let sleep = || std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let end = |child: &mut std::process::Child| {
            child.kill().unwrap();
            child.wait().unwrap();
        };
        let handle_of =
            |child: &std::process::Child| Arc::new(nodewise_sys::pidfd_open(child.id() as i32).unwrap());
        let mut kernel = LiveKernel::default();
        assert!(kernel.query(me, &addresses, &mut [0]).is_ok());
        let mut child = sleep();
        kernel.mean([(me, handle_of(&child))].into_iter());
        assert!(kernel.query(me, &addresses, &mut [0]).is_ok(), "it lives");
        let is_gone = |result: Result<(), Error>| {
            result.is_err_and(|error| error.kind() == nodewise_sys::ErrorKind::NoSuchProcess)
        };
        let ended_meanwhile = kernel.while_it_lives(me, || {
            end(&mut child);
            Ok(())
        });
        assert!(is_gone(ended_meanwhile));
        assert!(is_gone(kernel.query(me, &addresses, &mut [0])));
        let moved = kernel.move_pages(me, &addresses, &[0], &mut [0], MoveFlags::Exclusive);
        assert!(is_gone(moved.map(drop)));
        assert!(is_gone(kernel.while_it_lives(me, || -> Result<(), Error> { panic!("nothing is asked") })));
    }

    #[test]
    fn the_clock_goes_forward() {
        let before = now_ns();
        assert!(now_ns() >= before);
    }
}
