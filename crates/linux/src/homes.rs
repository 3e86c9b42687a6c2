//! Where the pages of managed processes are, and where they were.

use crate::bounds;
use crate::huge::{HUGE, HugeCache};
use crate::kernel::LiveKernel;
use crate::known_homes::KnownHomes;
use crate::maps::mapping_of;
use crate::mover::Kernel as _;
use crate::placement::{BeforeAndAfter, Figures, Located, Looked, Placement, Unknown};
use crate::process::{Process, Processes};
use crate::sampler::RawSample;
use crate::survey::{QUERY_PAGES, Survey, ask, query, scan_sequence};
use nodewise_engine::{
    Access, DataSource, HUGE_PAGE_PAGES, Mapping, MappingKind, PageNumber, PageRange, PageSize, Pid, Sample,
    TrafficMatrix,
};
use nodewise_topology::{NodeIndex, Topology};
use std::collections::BTreeMap;
use std::time::Instant;

/// All that is known of pages, by process.
pub(crate) struct Homes {
    known: BTreeMap<Pid, KnownHomes>,
    huge: HugeCache,
    placement: Placement,
    /// Homes from before the sampler was opened.
    survey: Survey,
    /// Intervals so far in which sampling went on.
    interval: u32,
    /// Whether samples are in proportion to accesses.
    proportional: bool,
    asked: u64,
    first_touches: u64,
    is_full: bool,
}

/// Memory that was accessed so many intervals ago, and those of a pass, still counts as in use. Intervals in
/// which sampling pauses do not count.
const IN_USE_INTERVALS: u32 = 10;

/// So many samples are looked at, however long that takes.
const LEAST_LOCATED: usize = 1 << 12;

impl Homes {
    pub(crate) fn new(nodes: usize, proportional: bool) -> Self {
        Self {
            known: BTreeMap::new(),
            huge: HugeCache::default(),
            placement: Placement::new(nodes, proportional),
            survey: Survey::default(),
            interval: 0,
            proportional,
            asked: 0,
            first_touches: 0,
            is_full: false,
        }
    }

    /// Takes over what was known before the sampler was opened.
    pub(crate) fn learn(&mut self, survey: Survey) {
        self.survey = survey;
    }

    /// Pages whose home was asked for.
    pub(crate) const fn asked(&self) -> u64 {
        self.asked
    }

    /// Faults that allocated their page.
    pub(crate) const fn first_touches(&self) -> u64 {
        self.first_touches
    }

    /// Whether there were more pages than are remembered.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// The pages of a process, if any are known.
    pub(crate) fn get(&self, pid: Pid) -> Option<&KnownHomes> {
        self.known.get(&pid)
    }

    /// The same, to note more, within what all processes may take.
    pub(crate) fn entry(&mut self, pid: Pid) -> &mut KnownHomes {
        let room = self.room();
        let known = self.known.entry(pid).or_default();
        known.limit(known.bytes() + room);
        known.begin_interval(self.interval);
        known
    }

    /// Whether a page was a huge page when it was sampled lately.
    pub(crate) fn was_huge(&self, pid: Pid, page: PageNumber) -> bool {
        self.huge.was_huge(pid, page)
    }

    /// A huge page became base pages, or the other way round.
    pub(crate) fn resized(&mut self, pid: Pid, pages: &[PageNumber]) {
        for &page in pages {
            self.huge.forget(pid, page);
            if let Some(known) = self.known.get_mut(&pid) {
                known.forget_moved(page);
            }
        }
    }

    /// The room for further pages, in bytes.
    fn room(&self) -> usize {
        bounds::KNOWN_BYTES.saturating_sub(self.known.values().map(KnownHomes::bytes).sum())
    }

    /// Keeps what is known of pages in step with the processes: nothing of one that executed another program,
    /// nothing of what was unmapped, and all there is (within bounds) of one that ran before we came.
    pub(crate) fn update(
        &mut self,
        kernel: &mut LiveKernel,
        topology: &Topology,
        processes: &Processes,
        is_paused: bool,
    ) {
        self.interval += u32::from(!is_paused);
        self.huge.next_interval(processes);
        self.placement.keep(|pid| processes.contains(pid));
        self.known.retain(|&pid, _| processes.contains(pid));
        self.known.values_mut().for_each(|known| known.begin_interval(self.interval));
        let mut left = self.room();
        let is_new = |process: &&Process| !process.from_the_start && !self.known.contains_key(&process.pid);
        let new = processes.iter().filter(is_new).count();
        for process in processes.iter() {
            if process.fresh {
                self.placement.forget(process.pid);
                self.known.remove(&process.pid);
            }
            let Some(mappings) = &process.details.mappings else { continue };
            let known = self.known.entry(process.pid).or_insert_with(|| {
                let before = self.survey.0.remove(&process.pid);
                match before {
                    _ if process.from_the_start => KnownHomes::default(),
                    Some(before) => before,
                    None => {
                        let (known, asked) = ask(kernel, topology, process.pid, mappings, new, left);
                        left = left.saturating_sub(known.bytes());
                        self.asked += asked;
                        known
                    }
                }
            });
            known.keep_mapped(mappings);
            self.placement.keep_mapped(process.pid, mappings);
        }
        self.survey.0.clear();
    }

    /// Takes in how many pages the kernel's balancing has moved so far, machine-wide. A hint fault tells of
    /// its page before the kernel moves it.
    pub(crate) fn note_kernels_moves(&mut self, moved: u64, processes: &Processes) {
        for process in processes.iter().filter(|_| self.proportional) {
            if let Some(known) = self.known.get_mut(&process.pid) {
                known.note_kernels_moves(moved, process.resident_pages);
            }
        }
    }

    /// Leaves out faults that allocated their page, asks the kernel where the sampled pages are now, and how
    /// large they are. Returns the other samples, and the traffic that they met: accesses by accessor and
    /// by the home before the fault. Returns also how many samples there was no time for.
    pub(crate) fn locate(
        &mut self,
        kernel: &mut LiveKernel,
        topology: &Topology,
        processes: &mut Processes,
        mappings: &BTreeMap<Pid, Vec<Mapping>>,
        mut raw: Vec<RawSample>,
    ) -> (Vec<Sample>, TrafficMatrix, usize) {
        let until = Instant::now() + bounds::LOCATE_TIME;
        let mut in_time = 0;
        let mut traffic = TrafficMatrix::new(topology.node_count());
        raw.sort_unstable_by_key(|s| (s.pid, s.address.page(), s.time_ns));
        let mut samples = Vec::with_capacity(raw.len());
        let mut left = self.room();
        // A process with very many samples comes last: it takes nobody's time but its own.
        let mut by_process: Vec<&[RawSample]> = raw.chunk_by(|a, b| a.pid == b.pid).collect();
        by_process.sort_by_key(|of_process| of_process.len());
        for of_process in by_process {
            let pid = of_process[0].pid;
            let from_the_start = processes.iter().any(|process| process.pid == pid && process.from_the_start);
            let known = self.known.entry(pid).or_default();
            let bytes = known.bytes();
            known.limit(bytes + left);
            let mappings = mappings.get(&pid).map_or(&[][..], Vec::as_slice);
            let by_page: Vec<_> = of_process.chunk_by(|a, b| a.address.page() == b.address.page()).collect();
            for piece in by_page.chunks(QUERY_PAGES) {
                if is_over(kernel, in_time, until) {
                    break;
                }
                let pages: Vec<PageNumber> = piece.iter().map(|of_page| of_page[0].address.page()).collect();
                self.asked += pages.len() as u64;
                let homes = query(kernel, topology, pid, &pages);
                for (of_page, &home) in piece.iter().zip(&homes) {
                    if is_over(kernel, in_time, until) {
                        break;
                    }
                    in_time += of_page.len();
                    let page = of_page[0].address.page();
                    let before = known.get(page);
                    let mapping = mapping_of(mappings, page);
                    if mapping.is_none() {
                        processes.distrust_mappings(pid);
                    }
                    let may_be_huge = mapping.is_none_or(|m| m.kind != MappingKind::File);
                    let folio_pages = if may_be_huge { self.huge.look(kernel, pid, page) } else { 1 };
                    let huge = folio_pages == HUGE;
                    match home {
                        Some(home) if huge => known.note_huge(page, home),
                        _ => known.note_folio(page, folio_pages),
                    }
                    // A PMU hardly ever samples the one access that allocates the page.
                    let allocates = !self.proportional && before.is_none() && from_the_start;
                    self.first_touches += u64::from(allocates);
                    // The first fault may have moved the page, so only it met the home before. Memory is
                    // allocated where it is first touched, unless a policy says otherwise.
                    let new = known.first_of_new(page, home);
                    let mut met = if allocates { Some(of_page[0].accessor) } else { before.or(new) };
                    let of_page = &of_page[usize::from(allocates)..];
                    let of_memory = || of_page.iter().filter(|sample| sample.source.is_of_memory());
                    if of_memory().next().is_some() {
                        known.note_used(page, self.interval);
                    }
                    let stands_for = known.stands_for(page);
                    let at_once = match known.folio_pages(page) {
                        _ if huge => HUGE_PAGE_PAGES,
                        // It was a huge page when it was moved, and is none any more.
                        HUGE_PAGE_PAGES => 1,
                        pages => pages,
                    };
                    for sample in of_memory() {
                        self.placement.note(pid, page, at_once, stands_for, sample.accessor, self.interval);
                    }
                    let wrote = |sample: &RawSample| {
                        sample.access == Access::Write || sample.source == DataSource::TAKEN
                    };
                    if of_page.iter().any(wrote) {
                        self.placement.note_written(pid, page, at_once);
                    }
                    for sample in of_memory() {
                        if let Some(met) = std::mem::replace(&mut met, home) {
                            traffic.add(sample.accessor, met, f64::from(sample.weight));
                        }
                    }
                    let page_size = match folio_pages {
                        HUGE => PageSize::Huge,
                        0 | 1 => PageSize::Base,
                        pages if is_whole(mapping, page, pages) => PageSize::Folio(pages),
                        _ => PageSize::Base,
                    };
                    for sample in of_page {
                        samples.push(sample.located(home, page_size));
                    }
                }
                let others = other_pages(kernel, known, (pid, mappings), &pages, &homes);
                known.note(pages.into_iter().zip(homes).chain(others));
            }
            left = (left + bytes).saturating_sub(known.bytes());
            self.is_full |= known.is_full();
        }
        // In order of processes again; the samples of each are in order.
        samples.sort_by_key(|sample: &Sample| sample.pid);
        (samples, traffic, raw.len() - in_time)
    }

    /// Pages in use by home node, where a pass of the sampler takes so many intervals.
    pub(crate) fn in_use(
        &self,
        nodes: usize,
        pass_intervals: u32,
        mappings: &BTreeMap<Pid, Vec<Mapping>>,
    ) -> Vec<f64> {
        // A page is sampled at most once a scan, and a scan spans several intervals. One interval's samples
        // do not show where the load is. They do show which pages are in use, and the homes of those are
        // known.
        let since = self.interval.saturating_sub(IN_USE_INTERVALS + pass_intervals);
        let mut pages = vec![0.0; nodes];
        for (pid, known) in &self.known {
            known.add_used(since, mappings.get(pid).map_or(&[], Vec::as_slice), &mut pages);
        }
        pages
    }

    /// Notes that several nodes read a range and none writes it.
    pub(crate) fn note_replicable(&mut self, pid: Pid, range: PageRange) {
        self.placement.note_replicable(pid, range);
    }

    /// Notes whether several nodes were found to use a range.
    pub(crate) fn note_shared(&mut self, pid: Pid, range: PageRange, is: bool) {
        self.placement.note_shared(pid, range, is);
    }

    /// Notes the nodes' shares in the CPU time of a process.
    pub(crate) fn note_cpu_time(&mut self, pid: Pid, by_node: Vec<f64>) {
        self.placement.note_cpu_time(pid, by_node);
    }

    /// Notes whether several nodes use different parts of huge pages.
    pub(crate) fn note_falsely_shared(&mut self, pid: Pid, pages: &[PageNumber], are: bool) {
        self.placement.note_falsely_shared(pid, pages, are);
    }

    /// Looks where memory in use lies, for [`Homes::placement`]. Returns whether memory of any process was
    /// there.
    pub(crate) fn look(&mut self, kernel: &mut LiveKernel, topology: &Topology) -> bool {
        let Self { placement, known, asked, proportional, interval, .. } = self;
        placement.look(*interval, |pid, pages| {
            *asked += pages.len() as u64;
            let homes = query(kernel, topology, pid, pages);
            let known = known.entry(pid).or_default();
            Looked {
                passes: if *proportional { None } else { known.passes(|| scan_sequence(pid)) },
                located: first_and_now(known, pages, homes, *proportional),
            }
        })
    }

    /// How memory in use lay at first, and how it lay when it was looked at last.
    pub(crate) fn placement(&self, topology: &Topology) -> BeforeAndAfter<Result<Figures, Unknown>> {
        let nodes = topology.nodes().iter();
        let balanced: Vec<bool> = nodes.map(|node| !node.cpus.is_empty() && node.may_have_memory()).collect();
        self.placement.figures(&balanced)
    }
}

/// Where pages were first seen, of those that now are at `homes`.
fn first_and_now(
    known: &mut KnownHomes,
    pages: &[PageNumber],
    homes: Vec<Option<NodeIndex>>,
    proportional: bool,
) -> Vec<Located> {
    // A page that is new may have its first fault on record, which tells that it is: that is noted when the
    // fault is looked at.
    let seen = pages.iter().zip(&homes).filter(|&(&page, _)| proportional || known.get(page).is_some());
    let seen: Vec<_> = seen.map(|(&page, &home)| (page, home)).collect();
    known.note(seen.into_iter());
    let first = |page, home| known.first(page).or(known.first_of_new(page, home));
    pages.iter().zip(homes).map(|(&page, home)| (first(page, home), home)).collect()
}

/// The other pages of these pages' folios, as far as they are unknown. Pages of a folio have one home. If
/// those that were not sampled were unknown, nodes would seem to have less of what was not moved yet.
fn other_pages(
    kernel: &mut LiveKernel,
    known: &KnownHomes,
    (pid, mappings): (Pid, &[Mapping]),
    pages: &[PageNumber],
    homes: &[Option<NodeIndex>],
) -> Vec<(PageNumber, Option<NodeIndex>)> {
    let mut others = Vec::new();
    for (&page, &home) in pages.iter().zip(homes).filter(|(_, home)| home.is_some()) {
        let unknown = |&other: &PageNumber| other != page && known.get(other).is_none();
        let pages_of = |range: PageRange| (range.start.0..range.end.0).map(PageNumber);
        if !pages_of(PageRange::around(page, known.folio_pages(page))).any(|other| unknown(&other)) {
            continue;
        }
        // The block's largest folio need not be this one.
        let folio = PageRange::around(page, kernel.folio_pages(pid.0, page).map_or(1, u64::from));
        // A folio may have been unmapped in part.
        let mapping = mapping_of(mappings, page);
        let is_mapped = |other: &PageNumber| mapping.is_none_or(|m| m.range.contains(*other));
        others.extend(pages_of(folio).filter(is_mapped).filter(unknown).map(|other| (other, home)));
    }
    others
}

/// Whether the folio of so many pages around a page is mapped as a whole, as far as is known.
fn is_whole(mapping: Option<&Mapping>, page: PageNumber, pages: u16) -> bool {
    let folio = PageRange::around(page, pages.into());
    mapping.is_none_or(|mapping| mapping.range.intersect(folio) == folio)
}

/// Whether no more samples than `located` are looked at.
fn is_over(kernel: &LiveKernel, located: usize, until: Instant) -> bool {
    kernel.is_ending() || (located >= LEAST_LOCATED && Instant::now() >= until)
}
