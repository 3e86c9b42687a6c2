//! Moving pages: in batches short enough that no thread of the target waits long, within a budget, with every
//! page accounted for.

mod small;

use crate::batch_size::BatchSizer;
use nodewise_engine::{HUGE_PAGE_PAGES, Outcome, PAGE_BYTES, PageNumber, PageRange};
use nodewise_sys::{Error, ErrorKind, MoveFlags};
use nodewise_topology::NodeId;
use small::Small;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The calls that the mover needs of the kernel; another implementation stands in for it in tests.
pub trait Kernel {
    /// Where pages are: the node, or a negative error number (`-ENOENT` not present, `-EFAULT` not mapped).
    fn query(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), Error>;

    /// `move_pages(2)`; the number returned is that of pages whose status was left unset.
    fn move_pages(
        &mut self,
        pid: u32,
        addresses: &[u64],
        nodes: &[i32],
        status: &mut [i32],
        flags: MoveFlags,
    ) -> Result<u64, Error>;

    /// Whether the 2 MiB around this page are one huge page, which moves only as a whole. None where there is
    /// no page, or one that is just being migrated, and where the kernel does not tell.
    fn is_huge(&mut self, pid: u32, page: PageNumber) -> Option<bool>;

    /// How many pages of a window move only together with each of them, itself included: they are one folio.
    /// The first page of a folio has the number, the others 0. Only the part of a folio that is in the window
    /// counts: all have 0 if that is no more than half. None if each of `pages`, which are in the window, is
    /// on its own: asking of all takes longer, where they do not lie side by side.
    fn folios(&mut self, pid: u32, window: PageRange, pages: &[PageNumber]) -> Option<Vec<u16>>;

    /// Where a page of shared memory was seen last: a process that has it, and its place there.
    fn seen_at(&self, _pid: u32, _page: PageNumber) -> Option<(u32, PageNumber)> {
        None
    }

    /// Tells of each page of a window whether nobody has it mapped but for these.
    fn are_theirs_alone(&mut self, mappers: &[Mapper], window: PageRange) -> Vec<bool>;

    /// Memory of a node, in bytes, that is free or that the kernel gives up at once for pages that are moved.
    fn free_bytes(&mut self, node: NodeId) -> u64;

    /// Whether managing is to end, and nothing more is moved.
    fn is_ending(&self) -> bool {
        false
    }

    /// A monotonic clock, in ns.
    fn now_ns(&mut self) -> u64;

    /// CPU time of the calling thread, in ns.
    fn cpu_ns(&mut self) -> u64;
}

/// Bounds on moving.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoverSettings {
    /// How much may be moved in a second, in bytes. Carrefour's module could move 30 000 pages (117 MiB) a
    /// second; memtierd's sample configuration says 200 MB/s. Copying 512 MiB takes a current core about
    /// a tenth of a second.
    pub budget_bytes_per_s: f64,
    /// How long one call should work, in ns of CPU time. 20 ms brought blocking from minutes to milliseconds
    /// for others (katalyst issue 477). A thread that touches a page on its way waits for less: until the
    /// pages that the kernel moves together with it have arrived. There is one before Linux 6.3, and at most
    /// 512 since (`migrate_pages_batch`, `mm/migrate.c`). The call itself waits until all CPUs have emptied
    /// their lists of pages for the LRU lists; that wait holds nobody up.
    pub call_ns: u64,
    /// How often busy pages are tried again before they are reported as busy.
    pub retries: u32,
    /// The share of a target node's memory that must stay free, since the kernel reclaims below its
    /// watermarks. Clean page cache that nobody used lately counts as free ([`Kernel::free_bytes`]).
    pub reserve_share: f64,
    /// Count what would be moved, and move nothing.
    pub dry_run: bool,
}

impl Default for MoverSettings {
    fn default() -> Self {
        Self {
            budget_bytes_per_s: 512.0 * 1024.0 * 1024.0,
            call_ns: 20_000_000,
            retries: 3,
            reserve_share: 0.02,
            dry_run: false,
        }
    }
}

/// Processes that are asked for pages of shared memory that the first does not have. Pages that were seen
/// elsewhere are asked for there.
const OTHERS_ASKED: usize = 32;
/// Pages asked for at once.
const QUERY_PAGES: u64 = 8 * HUGE_PAGE_PAGES;
/// A status no kernel gives: this page's status was left unset.
const UNSET: i32 = i32::MIN;

/// Moves pages of other processes.
#[derive(Debug)]
pub struct Mover<K> {
    kernel: K,
    settings: MoverSettings,
    node_bytes: BTreeMap<NodeId, u64>,
    /// Bytes that may be moved now; refilled with time, up to a second's worth.
    allowance_bytes: f64,
    refilled_ns: u64,
    /// Pages moved since they were last taken.
    moved: Vec<Moved>,
    /// Whether the allowance had no room for a unit: to look for more would be work for nothing.
    is_spent: bool,
    /// By job, the first page that was put off.
    put_off: BTreeMap<usize, PageNumber>,
    batch_sizer: BatchSizer,
}

/// A page that arrived at its target. Pages of a folio smaller than a huge page are told one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which job moved it.
    pub job: usize,
    /// The page, or one of a huge page.
    pub page: PageNumber,
    /// Base pages that are told of at once: 1, or those of a huge page.
    pub pages: u64,
    /// Base pages of its folio.
    pub folio_pages: u64,
    /// Where it was when the move was planned.
    pub from: NodeId,
    /// Where it is now.
    pub to: NodeId,
}

/// Where the pages of a window are.
struct Looked {
    window: PageRange,
    /// The node of each page, or why there is none.
    status: Vec<i32>,
    /// Pages of shared memory that the process does not have, at those who have.
    elsewhere: HashMap<u64, (u32, PageNumber)>,
}

/// The pages that move together: a base page, a huge page, or a folio in between.
#[derive(Clone, Copy, Debug)]
struct Unit {
    job: usize,
    page: PageNumber,
    pages: u64,
    /// The process by which it is moved, and the page's place there: of shared memory, one that has it.
    by: (u32, PageNumber),
    from: NodeId,
    to: NodeId,
    flags: MoveFlags,
    /// How often it was busy.
    tries: u32,
}

/// Pages to be moved, by process, flags and target. Pages of one target that follow each other in a call are
/// moved together (`do_pages_move`, `mm/migrate.c`). The kernel then interrupts the program's CPUs once for
/// all of them. So a call moves pages of one target, as far as possible.
type Waiting = BTreeMap<(u32, MoveFlags, NodeId), Batch>;

#[derive(Debug, Default)]
struct Batch {
    units: Vec<Unit>,
    /// The pages of all units together.
    pages: u64,
}

impl Batch {
    fn push(&mut self, unit: Unit) {
        self.pages += unit.pages;
        self.units.push(unit);
    }
}

/// A process that has mapped pages of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapper {
    /// Its number.
    pub pid: u32,
    /// Which pages it has, by their places in the job's process.
    pub range: PageRange,
    /// The place of the first of them in this process.
    pub at: PageNumber,
}

impl Mapper {
    /// Whether another has the next pages, and at the next place in the same process.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        let pages = self.range.pages();
        next.pid == self.pid && next.range.start == self.range.end && next.at.0 == self.at.0 + pages
    }

    /// Where this process has a page of the job's.
    #[must_use]
    pub fn place(&self, page: PageNumber) -> Option<PageNumber> {
        self.range.contains(page).then(|| PageNumber(self.at.0 + (page.0 - self.range.start.0)))
    }
}

/// A range of a process and where its pages should go.
pub struct Job<'a> {
    /// The range; pages that are not present are passed over.
    pub range: PageRange,
    /// Managed processes that have mapped pages of the range, or of huge pages at its ends, this one
    /// included. Only pages that no other process has mapped are moved; without any, only pages that this
    /// process alone has. They are asked for when the first page is to be moved: to find them takes time.
    pub mappers: &'a dyn Fn() -> Vec<Mapper>,
    /// The node where so many pages should go at once, given the first of them and their home; none to leave
    /// them.
    pub target: &'a dyn Fn(PageNumber, u64, NodeId) -> Option<NodeId>,
    /// Whether a folio is asked for as a whole, and not each of its pages.
    pub whole_folios: bool,
}

impl<K: Kernel> Mover<K> {
    /// A mover between nodes of these sizes (bytes).
    pub fn new(mut kernel: K, settings: MoverSettings, node_bytes: BTreeMap<NodeId, u64>) -> Self {
        let refilled_ns = kernel.now_ns();
        Self {
            kernel,
            settings,
            node_bytes,
            allowance_bytes: settings.budget_bytes_per_s,
            refilled_ns,
            moved: Vec::new(),
            is_spent: false,
            put_off: BTreeMap::new(),
            batch_sizer: BatchSizer::UNKNOWN,
        }
    }

    /// The kernel underneath.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// The pages that the last [`Mover::carry_out`] moved, in no order.
    pub fn take_moved(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moved)
    }

    /// The jobs of the last [`Mover::carry_out`] that were not finished, each with its first page that was
    /// put off. All pages before it have had their turn.
    pub fn take_put_off(&mut self) -> BTreeMap<usize, PageNumber> {
        std::mem::take(&mut self.put_off)
    }

    /// Does the jobs, all of one process; one outcome for each. Stops at `deadline_ns`, and when the budget
    /// is spent; the rest is deferred. Small jobs share calls, since each has a price of its own.
    pub fn carry_out(&mut self, pid: u32, jobs: &[Job<'_>], deadline_ns: u64) -> Vec<Outcome> {
        self.refill();
        self.put_off.clear();
        self.is_spent = false;
        let mut outcomes =
            vec![Outcome { only_reported: self.settings.dry_run, ..Outcome::default() }; jobs.len()];
        let mut waiting = Waiting::default();
        let mut room: BTreeMap<NodeId, u64> = BTreeMap::new();
        // An earlier job, or the kernel's balancing meanwhile, may bring a page to where a later job takes
        // pages from.
        let mut taken: HashSet<PageNumber> = HashSet::new();
        let mut first = 0;
        // Memory that several nodes give pages of has a job for each of them, and is looked at once.
        for jobs_there in jobs.chunk_by(|a, b| a.range == b.range) {
            let (indices, range) = (first..first + jobs_there.len(), jobs_there[0].range);
            first = indices.end;
            let mut at = range.start.0;
            let mut mappers = None;
            while at < range.end.0 {
                if outcomes.iter().any(|outcome| outcome.process_gone) {
                    outcomes[indices.clone()].iter_mut().for_each(|outcome| outcome.process_gone = true);
                    break;
                }
                if self.is_over(deadline_ns) || self.is_spent {
                    let left = range.end.0 - at;
                    for index in indices.clone() {
                        outcomes[index].planned += left;
                        outcomes[index].deferred += left;
                        self.note_put_off(index, PageNumber(at));
                    }
                    break;
                }
                // Windows end at huge page boundaries, so that no huge page is seen in two halves.
                let end = ((at + QUERY_PAGES) / HUGE_PAGE_PAGES * HUGE_PAGE_PAGES).min(range.end.0);
                let window = PageRange::new(at, end);
                at = end;
                let found = self.look(pid, window, &jobs_there[0], &mut mappers);
                let units = found.map(|found| {
                    let of_job = |(index, job)| self.units(pid, &found, index, job, &mut mappers);
                    indices.clone().zip(jobs_there).flat_map(of_job).collect::<Vec<_>>()
                });
                let units = match units {
                    Ok(units) => units,
                    Err(error) => {
                        for outcome in &mut outcomes[indices.clone()] {
                            outcome.planned += window.pages();
                            fail(outcome, error, window.pages());
                        }
                        break;
                    }
                };
                for unit in units {
                    let index = unit.job;
                    if taken.contains(&unit.page) {
                        continue;
                    }
                    let outcome = &mut outcomes[index];
                    outcome.planned += unit.pages;
                    if self.settings.dry_run {
                        continue;
                    }
                    let deferred = outcome.deferred;
                    if let Some(counter) = self.refuse(outcome, &unit, deadline_ns, &mut room) {
                        *counter += unit.pages;
                        if outcome.deferred > deferred {
                            self.note_put_off(index, unit.page);
                        }
                        continue;
                    }
                    if index + 1 < jobs.len() {
                        taken.insert(unit.page);
                    }
                    let batch = waiting.entry((unit.by.0, unit.flags, unit.to)).or_default();
                    batch.push(unit);
                    if batch.pages >= self.batch_sizer.batch_pages() {
                        let batch = std::mem::take(batch);
                        self.call(pid, &batch.units, &mut outcomes, &mut waiting);
                    }
                }
            }
        }
        self.finish(pid, &mut waiting, &mut outcomes, deadline_ns);
        outcomes
    }

    fn is_over(&mut self, deadline_ns: u64) -> bool {
        self.kernel.is_ending() || self.kernel.now_ns() >= deadline_ns
    }

    fn note_put_off(&mut self, job: usize, page: PageNumber) {
        let first = self.put_off.entry(job).or_insert(page);
        *first = page.min(*first);
    }

    fn refill(&mut self) {
        let now = self.kernel.now_ns();
        let elapsed_s = now.saturating_sub(self.refilled_ns) as f64 / 1e9;
        let budget = self.settings.budget_bytes_per_s;
        self.allowance_bytes = (self.allowance_bytes + elapsed_s * budget).min(budget);
        self.refilled_ns = now;
    }

    /// Looks where the pages of a window are.
    fn look(
        &mut self,
        pid: u32,
        window: PageRange,
        job: &Job<'_>,
        mappers: &mut Option<Vec<Mapper>>,
    ) -> Result<Looked, Error> {
        let addresses: Vec<u64> = (window.start.0..window.end.0).map(|page| page * PAGE_BYTES).collect();
        let mut status = vec![UNSET; addresses.len()];
        self.kernel.query(pid, &addresses, &mut status)?;
        let elsewhere = self.look_elsewhere(pid, window, job, mappers, &mut status);
        Ok(Looked { window, status, elsewhere })
    }

    /// The units of a window that the job wants elsewhere.
    fn units(
        &mut self,
        pid: u32,
        looked: &Looked,
        index: usize,
        job: &Job<'_>,
        mappers: &mut Option<Vec<Mapper>>,
    ) -> Vec<Unit> {
        let Looked { window, status, elsewhere } = looked;
        let window = *window;
        let by = |page: u64| elsewhere.get(&page).copied().unwrap_or((pid, PageNumber(page)));
        let mut units = Vec::new();
        let mut page = window.start.0;
        while page < window.end.0 {
            let block = PageNumber(page).huge().0;
            let end = (block + HUGE_PAGE_PAGES).min(window.end.0);
            let homes = &status[(page - window.start.0) as usize..(end - window.start.0) as usize];
            let same_home = homes[0] >= 0 && homes.iter().all(|&home| home == homes[0]);
            let (who, there) = by(page);
            // A huge page of shared memory that begins elsewhere in the process that has it is none here.
            let as_here = there.0 % HUGE_PAGE_PAGES == page % HUGE_PAGE_PAGES;
            if same_home && as_here && self.kernel.is_huge(who, there) == Some(true) {
                // A range that holds less than half of a huge page must not pull the rest along.
                let covered = PageRange::new(block, block + HUGE_PAGE_PAGES).intersect(job.range).pages();
                let home = NodeId(homes[0] as u32);
                let to = (job.target)(PageNumber(block), HUGE_PAGE_PAGES, home).filter(|&to| to != home);
                if let Some(to) = to.filter(|_| covered * 2 > HUGE_PAGE_PAGES) {
                    units.push(Unit {
                        job: index,
                        page: PageNumber(page),
                        pages: HUGE_PAGE_PAGES,
                        by: by(page),
                        from: home,
                        to,
                        flags: MoveFlags::Exclusive,
                        tries: 0,
                    });
                }
            } else {
                let small = Small { first: page, homes, index, job, by: &by };
                let mut found = small.pages();
                if !found.is_empty() {
                    let pages: Vec<PageNumber> = found.iter().map(|unit| unit.page).collect();
                    if let Some(folios) = self.kernel.folios(pid, PageRange::new(page, end), &pages) {
                        found = small.folios(&found, &folios);
                    }
                }
                units.append(&mut found);
            }
            page = end;
        }
        if !units.is_empty() {
            let mappers = mappers.get_or_insert_with(job.mappers);
            if !mappers.is_empty() {
                self.flag(window, mappers, &mut units);
            }
        }
        units
    }

    /// Finds pages of shared memory that the process does not have, at those who have. Completes the status,
    /// and returns where these pages are.
    fn look_elsewhere(
        &mut self,
        pid: u32,
        window: PageRange,
        job: &Job<'_>,
        mappers: &mut Option<Vec<Mapper>>,
        status: &mut [i32],
    ) -> HashMap<u64, (u32, PageNumber)> {
        let mut found = HashMap::new();
        let mut absent: Vec<usize> = (0..status.len()).filter(|&i| status[i] == NOT_PRESENT).collect();
        if absent.is_empty() {
            return found;
        }
        let mappers = mappers.get_or_insert_with(job.mappers);
        let others = mappers.iter().filter(|mapper| {
            (mapper.pid, mapper.at) != (pid, mapper.range.start) && mapper.range.intersect(window).pages() > 0
        });
        // A database may have a thousand processes, of which few have the page.
        let mut seen: BTreeMap<u32, Vec<(usize, PageNumber)>> = BTreeMap::new();
        for &i in &absent {
            let page = PageNumber(window.start.0 + i as u64);
            let Some((other, there)) = self.kernel.seen_at(pid, page) else { continue };
            if others.clone().any(|mapper| mapper.pid == other && mapper.place(page) == Some(there)) {
                seen.entry(other).or_default().push((i, there));
            }
        }
        let mut seen = seen.into_iter();
        let mut others = others.take(OTHERS_ASKED);
        while !absent.is_empty() && !self.kernel.is_ending() {
            let next = seen.next().or_else(|| {
                let other = others.next()?;
                let place = |&i: &usize| Some((i, other.place(PageNumber(window.start.0 + i as u64))?));
                Some((other.pid, absent.iter().filter_map(place).collect()))
            });
            let Some((other, places)) = next else { break };
            let addresses: Vec<u64> = places.iter().map(|(_, there)| there.address().0).collect();
            let mut homes = vec![UNSET; places.len()];
            if self.kernel.query(other, &addresses, &mut homes).is_err() {
                continue;
            }
            for ((i, there), home) in places.into_iter().zip(homes).filter(|(_, home)| *home >= 0) {
                status[i] = home;
                found.insert(window.start.0 + i as u64, (other, there));
            }
            absent.retain(|&i| status[i] < 0);
        }
        found
    }

    /// Has those of a window's units moved from under all who have mapped them who are all managed.
    fn flag(&mut self, window: PageRange, mappers: &[Mapper], units: &mut [Unit]) {
        // All of each huge page, also where the window holds only a part of it.
        let start = window.start.huge().0;
        let end = window.end.0.next_multiple_of(HUGE_PAGE_PAGES);
        let alone = self.kernel.are_theirs_alone(mappers, PageRange::new(start, end));
        for unit in units {
            let first = if unit.pages == HUGE_PAGE_PAGES { unit.page.huge() } else { unit.page };
            let at = (first.0 - start) as usize;
            if alone[at..at + unit.pages as usize].iter().all(|&alone| alone) {
                unit.flags = MoveFlags::All;
            }
        }
    }

    /// Why this unit cannot be moved now, as the counter it belongs to; none if it can, and then it is paid
    /// for.
    fn refuse<'a>(
        &mut self,
        outcome: &'a mut Outcome,
        unit: &Unit,
        deadline_ns: u64,
        room: &mut BTreeMap<NodeId, u64>,
    ) -> Option<&'a mut u64> {
        let bytes = unit.pages * PAGE_BYTES;
        if outcome.process_gone {
            return Some(&mut outcome.vanished);
        }
        self.is_spent |= self.allowance_bytes < bytes as f64;
        if self.is_spent || self.is_over(deadline_ns) {
            return Some(&mut outcome.deferred);
        }
        let reserve = self.reserve_bytes(unit.to);
        let kernel = &mut self.kernel;
        let room = room.entry(unit.to).or_insert_with(|| kernel.free_bytes(unit.to).saturating_sub(reserve));
        if *room < bytes {
            return Some(&mut outcome.node_full);
        }
        *room -= bytes;
        self.allowance_bytes -= bytes as f64;
        None
    }

    fn reserve_bytes(&self, node: NodeId) -> u64 {
        let total = self.node_bytes.get(&node).copied().unwrap_or(0);
        (total as f64 * self.settings.reserve_share) as u64
    }

    /// Moves what waits, in as few calls as fit; what is busy each time is reported as that. Once the
    /// deadline has passed there is one call more, so that a little is moved however long looking takes.
    fn finish(&mut self, pid: u32, waiting: &mut Waiting, outcomes: &mut [Outcome], deadline_ns: u64) {
        let mut is_last = false;
        while !waiting.is_empty() {
            let left = std::mem::take(waiting).into_values().flat_map(|batch| batch.units);
            let mut left = left.peekable();
            while let Some(kind) = left.peek().map(|unit| (unit.by.0, unit.flags)) {
                if self.kernel.is_ending() || is_last {
                    for unit in left.by_ref() {
                        outcomes[unit.job].deferred += unit.pages;
                        self.note_put_off(unit.job, unit.page);
                        self.allowance_bytes += (unit.pages * PAGE_BYTES) as f64;
                    }
                    break;
                }
                is_last = self.is_over(deadline_ns);
                let (mut batch, most) = (Batch::default(), self.batch_sizer.batch_pages());
                while let Some(unit) =
                    left.next_if(|unit| batch.pages < most && (unit.by.0, unit.flags) == kind)
                {
                    batch.push(unit);
                }
                self.call(pid, &batch.units, outcomes, waiting);
            }
        }
    }

    /// One `move_pages` call. Busy pages wait for another, unless they have had theirs: what keeps a page
    /// busy is most often another CPU that has it in its batch of pages for the LRU list, and that
    /// passes.
    fn call(&mut self, pid: u32, batch: &[Unit], outcomes: &mut [Outcome], waiting: &mut Waiting) {
        let Some(first) = batch.first() else { return };
        let by = first.by.0;
        let (busy, out_of_memory) = match self.move_batch(by, batch, first.flags, outcomes) {
            Ok(left) => left,
            Err(error) => {
                for unit in batch {
                    let outcome = &mut outcomes[unit.job];
                    let was_gone = outcome.process_gone;
                    fail(outcome, error, unit.pages);
                    // That another is gone which had the page, too, says nothing of this one.
                    outcome.process_gone &= was_gone || by == pid;
                }
                return;
            }
        };
        for mut unit in busy {
            if unit.tries < self.settings.retries {
                unit.tries += 1;
                waiting.entry((unit.by.0, unit.flags, unit.to)).or_default().push(unit);
                continue;
            }
            let full = out_of_memory || self.kernel.free_bytes(unit.to) < self.reserve_bytes(unit.to);
            let outcome = &mut outcomes[unit.job];
            *(if full { &mut outcome.node_full } else { &mut outcome.busy }) += unit.pages;
        }
    }

    /// Returns what was busy, and whether the kernel said that it found no memory on a target: its watermarks
    /// may be above our reserve.
    fn move_batch(
        &mut self,
        pid: u32,
        batch: &[Unit],
        flags: MoveFlags,
        outcomes: &mut [Outcome],
    ) -> Result<(Vec<Unit>, bool), Error> {
        let addresses: Vec<u64> = batch.iter().map(|unit| unit.by.1.address().0).collect();
        let nodes: Vec<i32> = batch.iter().map(|unit| unit.to.0 as i32).collect();
        let mut status = vec![UNSET; batch.len()];
        let (begin, called_ns) = (self.kernel.cpu_ns(), self.kernel.now_ns());
        let returned = self.kernel.move_pages(pid, &addresses, &nodes, &mut status, flags);
        let took = self.kernel.cpu_ns().saturating_sub(begin);
        let pages: u64 = batch.iter().map(|unit| unit.pages).sum();
        let passed_ns = self.kernel.now_ns().saturating_sub(called_ns);
        self.batch_sizer.learn(pages, took, passed_ns, self.settings.call_ns);
        outcomes[batch[0].job].calls += 1;
        for unit in batch {
            let outcome = &mut outcomes[unit.job];
            outcome.blocked_ns += took * unit.pages / pages;
            outcome.longest_call_ns = outcome.longest_call_ns.max(took);
        }
        let out_of_memory = match returned {
            Ok(_) => false,
            // A node that fills up may fail the whole call after some pages went; which ones is asked below.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => true,
            Err(error) => return Err(error),
        };
        // Statuses that the kernel left unset, or that name another node than asked for, say nothing: ask. A
        // page on its way elsewhere, moved by the kernel's balancing, is not present for a moment.
        let unsure: Vec<usize> = (0..batch.len())
            .filter(|&i| {
                matches!(status[i], UNSET | NOT_PRESENT) || (status[i] >= 0 && status[i] != nodes[i])
            })
            .collect();
        if !unsure.is_empty() {
            let where_now: Vec<u64> = unsure.iter().map(|&i| addresses[i]).collect();
            let mut now = vec![UNSET; unsure.len()];
            self.kernel.query(pid, &where_now, &mut now)?;
            for (&i, now) in unsure.iter().zip(now) {
                status[i] = now;
            }
        }
        let mut again = Vec::new();
        for (unit, &status) in batch.iter().zip(&status) {
            let outcome = &mut outcomes[unit.job];
            match -status {
                _ if status == unit.to.0 as i32 => {
                    outcome.moved += unit.pages;
                    let Unit { job, page, pages, from, to, .. } = *unit;
                    if pages == HUGE_PAGE_PAGES {
                        self.moved.push(Moved { job, page, pages, folio_pages: pages, from, to });
                    } else {
                        let each = (page.0..page.0 + pages).map(PageNumber);
                        let folio_pages = if page.0 % pages == 0 { pages } else { 1 };
                        let one = Moved { job, page, pages: 1, folio_pages, from, to };
                        self.moved.extend(each.map(|page| Moved { page, ..one }));
                    }
                }
                ENOENT | EFAULT => outcome.vanished += unit.pages,
                EACCES | EPERM => outcome.not_permitted += unit.pages,
                ENOMEM | ENODEV => outcome.node_full += unit.pages,
                // Busy, or still where it was for a reason that the kernel did not give.
                _ => again.push(*unit),
            }
        }
        Ok((again, out_of_memory))
    }
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
/// A status: the page is not present.
const NOT_PRESENT: i32 = -ENOENT;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const ENODEV: i32 = 19;

/// Accounts for planned pages when a call failed as a whole.
fn fail(outcome: &mut Outcome, error: Error, pages: u64) {
    match error.kind() {
        ErrorKind::NoSuchProcess => {
            outcome.process_gone = true;
            outcome.vanished += pages;
        }
        ErrorKind::NotPermitted => outcome.not_permitted += pages,
        ErrorKind::OutOfMemory | ErrorKind::NoSuchDevice => outcome.node_full += pages,
        _ => outcome.busy += pages,
    }
}

#[cfg(test)]
mod tests;
