//! Where memory in use lies, against who uses it: the figures that people are shown.
//!
//! Samples say which nodes use which memory. Where they are hint faults, they cannot say how much of it is
//! local: a fault meets a page where the kernel has just put it, and only pages that were marked give faults.
//! So some pages are watched, picked evenly among those that samples hit, and the kernel is asked where each
//! lies now. Where each lay at first is on record.

#[cfg(test)]
mod tests;
mod users;

use crate::bounds;
use nodewise_engine::{HUGE_PAGE_PAGES, Mapping, PageNumber, PageRange, Pid, RangeMap, imbalance_percent};
use nodewise_topology::NodeIndex;
use std::collections::{BTreeMap, VecDeque};
pub(crate) use users::MIN_TURNS;
use users::{FULL_SHARE, FULL_SHARE_OF_PARTS, Users, acquit, followers, own, shares};

/// Pages that are watched, of all processes together.
const WATCHED: usize = 2048;
/// The same of each process at least.
const WATCHED_LEAST: usize = 64;
/// The last accessors that are remembered of a page: each hint fault is one in a pass over the memory.
const REMEMBERED: usize = 8;
/// The same of a huge page or another folio, as long as they are of so few intervals. One thread often has
/// all faults of many quick passes, since it alone runs when they end. Each of a folio's users needs its
/// turn.
const REMEMBERED_FOLIO: usize = 64;
const REMEMBERED_INTERVALS: u32 = 16;
/// Pages that are judged together, whether they are shared.
const JUDGED: usize = 128;
/// Fewer samples say too little.
const MIN_SAMPLES: u64 = 100;
/// The same of samples of pages whose users are not clear: each is then local or not by chance. One standard
/// error is 2.5 points at most.
const MIN_UNCLEAR_SAMPLES: u64 = 400;
/// While so much of the memory that is used first showed in the last intervals, there is more to come. A slow
/// thread comes late to what the kernel has marked, and it may be the one whose memory is near.
const MAX_NEW: f64 = 0.03;
const NEW_INTERVALS: u32 = 10;
/// So much of the memory may be left out of a figure.
const MAX_LEFT_OUT: f64 = 0.1;

/// Where a page lay at first, and where it lies now.
pub(crate) type Located = (Option<NodeIndex>, Option<NodeIndex>);

/// Pages of a process as they were looked at.
pub(crate) struct Looked {
    /// Each of the pages that were asked for.
    pub(crate) located: Vec<Located>,
    /// How often the kernel has marked all of the memory, where there is so much that it takes time.
    pub(crate) passes: Option<u64>,
}

/// Figures of the same accesses to the same memory, as it lay at first and as it lies now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BeforeAndAfter<T> {
    /// As if each page still lay where it was first seen.
    pub before: T,
    /// With each page where it was seen last.
    pub after: T,
}

/// How memory in use is placed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Share of the accesses that come from the page's own node, in percent.
    pub local_access_percent: f64,
    /// Share of the accesses that each node's memory serves, in the order of the nodes.
    pub served_by: Vec<f64>,
    /// Imbalance of the accesses that each node's memory serves, in percent; none where there is nothing to
    /// balance.
    pub controller_imbalance_percent: Option<f64>,
    /// Base pages in use of which this is known; none where samples say how often memory is accessed, and
    /// not which of it.
    pub pages: Option<u64>,
    /// The share of local accesses, in percent, if every node also had a copy of the memory that could be
    /// replicated; none where no memory in use could be.
    pub local_with_copies_percent: Option<f64>,
    /// The share of local accesses that there would be more, in points, if each page lay with the node that
    /// uses it most; of pages whose users are clear, and none where these are too few.
    pub collocation_adds_percent: Option<f64>,
    /// Samples that these figures rest on.
    pub samples: u64,
    /// How many pages, or folios, they are of.
    pub sampled: u64,
}

/// Why there is no figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// So few samples of memory whose users are clear.
    Samples(u64),
    /// The same, since the kernel's balancing was on before and still goes by its old pace.
    /// One or two samples a page are few then: all of a scan's faults are often one thread's.
    Pace(u64),
    /// Where most of the memory lay at first is not known.
    FirstHomes,
    /// The kernel has not marked all of the memory yet, or new memory still shows.
    Scan,
    /// The program has ended, and the kernel moved much of its memory after that was seen last.
    Moved,
}

/// The users of memory by node, and where the memory lies.
#[derive(Debug)]
pub(crate) struct Placement {
    nodes: usize,
    /// Whether samples say how much memory is used, not only by which nodes.
    proportional: bool,
    processes: BTreeMap<Pid, Process>,
    /// Processes that have ended.
    ended: BeforeAndAfter<Sums>,
}

#[derive(Debug, Default)]
struct Process {
    /// By base page, or by the first one of a huge page or another folio.
    watched: BTreeMap<PageNumber, Watched>,
    /// One base page, and one folio, in two to these powers is watched.
    thinned: [u32; 2],
    /// Samples as they came, where they are proportional to accesses, and how many each stands for among
    /// those whose first home is known.
    accesses: VecDeque<(PageNumber, NodeIndex, Option<f64>)>,
    sums: BeforeAndAfter<Sums>,
    /// Memory that several nodes read and none writes.
    replicable: RangeMap<()>,
    /// Memory that was found to be used by several nodes.
    shared: RangeMap<()>,
    /// Huge pages of which several nodes use different parts.
    falsely_shared: RangeMap<()>,
    /// Shares of the nodes in its CPU time; empty while that is not known.
    cpu_time: Vec<f64>,
    /// Whether most of it was gone when it was looked at last.
    shrunk: bool,
}

/// The last accessors of a page.
#[derive(Clone, Debug)]
struct Watched {
    /// The page that was sampled first: others need not be there.
    page: PageNumber,
    /// How many pages move at once, those of a huge page or another folio.
    at_once: u64,
    /// How many such it stands for.
    pages: f64,
    /// The interval in which it first came.
    since: u32,
    last: VecDeque<Accessor>,
}

/// An accessor of a page, and the interval in which it came.
#[derive(Clone, Copy, Debug)]
struct Accessor {
    node: u8,
    interval: u32,
}

impl Watched {
    const fn is_folio(&self) -> bool {
        self.at_once > 1
    }

    const fn is_huge(&self) -> bool {
        self.at_once == HUGE_PAGE_PAGES
    }

    fn note(&mut self, node: NodeIndex, interval: u32) {
        let most = if self.is_folio() { REMEMBERED_FOLIO } else { REMEMBERED };
        let is_old = |first: &Accessor| interval.saturating_sub(first.interval) > REMEMBERED_INTERVALS;
        while self.last.len() == most
            || (self.last.len() >= REMEMBERED && self.last.front().is_some_and(is_old))
        {
            self.last.pop_front();
        }
        self.last.push_back(Accessor { node: node.0, interval });
    }
}

/// A page whose home is asked for.
struct Pick {
    page: PageNumber,
    /// Share of each node in its accesses.
    shares: Vec<f64>,
    /// Base pages that it stands for, or accesses.
    pages: f64,
    /// The same among those whose first home is known; none if its own is not.
    pages_at_first: Option<f64>,
    /// The interval in which it first came.
    since: u32,
    samples: u64,
    /// Whether its users are clear, and not only who used it in those samples.
    clear: bool,
    /// Several nodes read it, and none writes.
    replicable: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    /// Samples that tell who uses the memory, and pages, or folios, that they are of.
    samples: u64,
    sampled: u64,
    pages: f64,
    /// Samples of pages whose users are not clear, among them.
    unclear_samples: u64,
    /// The others.
    clear_pages: f64,
    /// Accesses to those that would be local with the node that uses each most, and are not.
    collocation_adds: f64,
    /// Pages that are left out: their users are not clear.
    unclear: f64,
    /// It is not known where they lay.
    not_seen: f64,
    /// The kernel has not marked all of their process's memory yet.
    not_scanned: f64,
    local: f64,
    /// Accesses to other nodes that copies would make local.
    copies_add: f64,
    /// Pages that could be replicated.
    replicable: f64,
    loads: Vec<f64>,
}

impl Sums {
    fn count(&mut self, pick: &Pick, home: NodeIndex, pages: f64) {
        self.loads.resize(pick.shares.len(), 0.0);
        self.samples += pick.samples;
        self.sampled += 1;
        self.unclear_samples += if pick.clear { 0 } else { pick.samples };
        self.pages += pages;
        self.local += pages * pick.shares[home.get()];
        self.loads[home.get()] += pages;
        if pick.clear {
            let most = pick.shares.iter().copied().fold(0.0, f64::max);
            self.clear_pages += pages;
            self.collocation_adds += pages * (most - pick.shares[home.get()]);
        }
        if pick.replicable {
            self.replicable += pages;
            self.copies_add += pages * (1.0 - pick.shares[home.get()]);
        }
    }

    fn add(&mut self, other: &Self) {
        self.loads.resize(self.loads.len().max(other.loads.len()), 0.0);
        self.samples += other.samples;
        self.sampled += other.sampled;
        self.unclear_samples += other.unclear_samples;
        self.pages += other.pages;
        self.clear_pages += other.clear_pages;
        self.collocation_adds += other.collocation_adds;
        self.unclear += other.unclear;
        self.not_seen += other.not_seen;
        self.not_scanned += other.not_scanned;
        self.local += other.local;
        self.copies_add += other.copies_add;
        self.replicable += other.replicable;
        for (mine, theirs) in self.loads.iter_mut().zip(&other.loads) {
            *mine += theirs;
        }
    }

    fn figures(&self, balanced: &[bool], proportional: bool) -> Result<Figures, Unknown> {
        let few = self.samples < MIN_SAMPLES
            || (self.unclear_samples > 0 && self.samples < MIN_UNCLEAR_SAMPLES)
            || self.pages < self.unclear;
        let most = MAX_LEFT_OUT * self.pages;
        let why = [
            (self.not_seen > most, Unknown::FirstHomes),
            (self.not_scanned > most, Unknown::Scan),
            (few, Unknown::Samples(self.samples)),
        ];
        if let Some(&(_, why)) = why.iter().find(|(is_so, _)| *is_so) {
            return Err(why);
        }
        Ok(Figures {
            local_access_percent: 100.0 * self.local / self.pages,
            served_by: self.loads.iter().map(|load| load / self.pages).collect(),
            controller_imbalance_percent: imbalance_percent(&self.loads, balanced),
            pages: (!proportional).then_some(self.pages as u64),
            local_with_copies_percent: (self.replicable > 0.0)
                .then(|| 100.0 * (self.local + self.copies_add) / self.pages),
            collocation_adds_percent: (!proportional && self.samples - self.unclear_samples >= MIN_SAMPLES)
                .then(|| 100.0 * self.collocation_adds / self.clear_pages),
            samples: self.samples,
            sampled: self.sampled,
        })
    }
}

impl BeforeAndAfter<Sums> {
    fn add(&mut self, other: &Self) {
        self.before.add(&other.before);
        self.after.add(&other.after);
    }
}

impl Placement {
    /// Nothing is known yet.
    pub(crate) fn new(nodes: usize, proportional: bool) -> Self {
        Self { nodes, proportional, processes: BTreeMap::new(), ended: BeforeAndAfter::default() }
    }

    /// Takes in who accessed a page in this interval, with which so many move at once. It stands for so many
    /// of those whose first home is known. None: its own is not, and a hint fault tells of memory as the
    /// kernel has just moved it.
    pub(crate) fn note(
        &mut self,
        pid: Pid,
        page: PageNumber,
        at_once: u64,
        pages: Option<f64>,
        accessor: NodeIndex,
        interval: u32,
    ) {
        let most = (WATCHED / self.processes.len().max(1)).max(WATCHED_LEAST);
        let process = self.processes.entry(pid).or_default();
        if self.proportional {
            process.accesses.push_back((page, accessor, pages));
            if process.accesses.len() > most {
                process.accesses.pop_front();
            }
            return;
        }
        let Some(pages) = pages else { return };
        let unit = PageRange::around(page, at_once);
        if !is_picked(unit.start, process.thinned[usize::from(at_once > 1)]) {
            return;
        }
        if process.watched.get(&unit.start).is_none_or(|watched| watched.at_once != at_once) {
            process.forget_others(unit);
        }
        let watched = &mut process.watched;
        watched
            .entry(unit.start)
            .or_insert_with(|| Watched { page, at_once, pages, since: interval, last: VecDeque::new() })
            .note(accessor, interval);
        while watched.len() > most {
            // The kind that most are of, since a folio stands for much.
            let folios = 2 * watched.values().filter(|watched| watched.is_folio()).count() > watched.len();
            let thinned = &mut process.thinned[usize::from(folios)];
            *thinned += 1;
            watched.retain(|&first, watched| watched.is_folio() != folios || is_picked(first, *thinned));
        }
    }

    /// Notes that several nodes read a range and none writes it.
    pub(crate) fn note_replicable(&mut self, pid: Pid, range: PageRange) {
        let most = self.ranges_each();
        if let Some(process) = self.processes.get_mut(&pid) {
            mark(&mut process.replicable, [range], true, most);
        }
    }

    /// Notes whether several nodes were found to use a range.
    pub(crate) fn note_shared(&mut self, pid: Pid, range: PageRange, is: bool) {
        let most = self.ranges_each();
        if let Some(process) = self.processes.get_mut(&pid) {
            mark(&mut process.shared, [range], is, most);
        }
    }

    /// Notes the nodes' shares in the CPU time of a process.
    pub(crate) fn note_cpu_time(&mut self, pid: Pid, by_node: Vec<f64>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.cpu_time = by_node;
        }
    }

    /// Forgets what was found of memory outside of these mappings (in order). Memory that comes there later
    /// may have other users.
    pub(crate) fn keep_mapped(&mut self, pid: Pid, mappings: &[Mapping]) {
        if let Some(process) = self.processes.get_mut(&pid).filter(|process| !process.shared.is_empty()) {
            let mapped: Vec<PageRange> = mappings.iter().map(|mapping| mapping.range).collect();
            process.shared.clip(&mapped);
        }
    }

    /// Notes whether several nodes use different parts of huge pages.
    pub(crate) fn note_falsely_shared(&mut self, pid: Pid, pages: &[PageNumber], are: bool) {
        let most = self.ranges_each();
        if let Some(process) = self.processes.get_mut(&pid) {
            let ranges = pages.iter().map(|page| PageRange::new(page.0, page.0 + HUGE_PAGE_PAGES));
            mark(&mut process.falsely_shared, ranges, are, most);
        }
    }

    /// Ranges of each kind that are kept of a process.
    fn ranges_each(&self) -> usize {
        (bounds::RANGES / self.processes.len().max(1)).min(bounds::RANGES_EACH)
    }

    /// Notes that a page was written, with which so many move at once: a copy of them would not stay one.
    pub(crate) fn note_written(&mut self, pid: Pid, page: PageNumber, at_once: u64) {
        let unit = PageRange::around(page, at_once);
        if let Some(process) =
            self.processes.get_mut(&pid).filter(|process| process.is_replicable(unit.start))
        {
            process.replicable.remove(unit);
        }
    }

    /// The process runs another program.
    pub(crate) fn forget(&mut self, pid: Pid) {
        if let Some(process) = self.processes.remove(&pid) {
            self.ended.add(&process.sums);
        }
    }

    /// Counts those that are not `alive` as they were last.
    pub(crate) fn keep(&mut self, alive: impl Fn(Pid) -> bool) {
        let ended: Vec<Pid> = self.processes.keys().copied().filter(|&pid| !alive(pid)).collect();
        for pid in ended {
            self.forget(pid);
        }
    }

    /// Looks where memory in use lies, in this interval. `ask` gives where pages (in order) lay at first and
    /// lie now; one that is not present has no home. Returns whether memory of any process was there.
    pub(crate) fn look(&mut self, interval: u32, mut ask: impl FnMut(Pid, &[PageNumber]) -> Looked) -> bool {
        let mut seen = false;
        for (&pid, process) in &mut self.processes {
            let picks = process.picks(self.nodes);
            let pages: Vec<PageNumber> = picks.iter().map(|pick| pick.page).collect();
            if pages.is_empty() {
                continue;
            }
            let Looked { located, passes } = ask(pid, &pages);
            let pages = |is_new: bool| -> f64 {
                let picks = picks.iter().filter(|pick| !is_new || pick.since + NEW_INTERVALS > interval);
                picks.map(|pick| pick.pages).sum()
            };
            let more_to_come = pages(true) > MAX_NEW * pages(false);
            let passes = passes.map(|passes| if more_to_come { 0 } else { passes });
            let mut sums = BeforeAndAfter::<Sums>::default();
            let (mut there, mut gone, mut not_asked) = (0.0, 0.0, 0.0);
            for (pick, (first, now)) in picks.iter().zip(located) {
                let Some(now) = now else {
                    gone += pick.pages;
                    continue;
                };
                there += pick.pages;
                let BeforeAndAfter { before, after } = &mut sums;
                match passes {
                    // Memory that is used has shown, and what was placed by that has its users.
                    Some(0..=1) => after.not_scanned += pick.pages,
                    // The kernel moves a page to who used it last, so that this would be found local.
                    _ if !pick.clear => after.unclear += pick.pages,
                    _ => after.count(pick, now, pick.pages),
                }
                let Some(pages) = pick.pages_at_first else {
                    not_asked += pick.pages;
                    continue;
                };
                match (first, passes) {
                    (None, _) => before.not_seen += pages,
                    // The kernel goes by address, and each thread may have its own.
                    (_, Some(0)) => before.not_scanned += pages,
                    (_, None) if !pick.clear => before.unclear += pages,
                    // With so many pages, each may tell by its last access alone.
                    (Some(first), _) => before.count(pick, first, pages),
                }
            }
            if sums.before.samples < MIN_SAMPLES {
                sums.before.not_seen += not_asked;
            }
            // A process that is ending has less and less, or nothing any more. One that only shrinks has as
            // little at the next look.
            let shrunk = gone > there;
            let ending = there == 0.0 || (shrunk && !process.shrunk);
            if !ending {
                process.sums = sums;
                seen = true;
            }
            process.shrunk = shrunk;
        }
        seen
    }

    /// How memory in use lay at first, and how it lies now. `balanced`: the nodes over which accesses should
    /// be even.
    pub(crate) fn figures(&self, balanced: &[bool]) -> BeforeAndAfter<Result<Figures, Unknown>> {
        let mut sums = self.ended.clone();
        for process in self.processes.values() {
            sums.add(&process.sums);
        }
        let figures = |sums: &Sums| sums.figures(balanced, self.proportional);
        BeforeAndAfter { before: figures(&sums.before), after: figures(&sums.after) }
    }
}

impl Process {
    /// Forgets what was watched of these pages as others than a folio of them all: it was made since, or is
    /// none any more.
    fn forget_others(&mut self, unit: PageRange) {
        let around = self.watched.range(..unit.start).next_back();
        let around = around.filter(|(first, watched)| first.0 + watched.at_once > unit.start.0);
        let within = self.watched.range(unit.start..unit.end);
        let gone: Vec<(PageNumber, bool)> =
            around.into_iter().chain(within).map(|(&first, watched)| (first, watched.is_huge())).collect();
        for (first, was_huge) in gone {
            self.watched.remove(&first);
            if was_huge {
                // A huge page that comes here later is another one.
                self.falsely_shared.remove(PageRange::around(first, HUGE_PAGE_PAGES));
            }
        }
    }

    /// The pages to ask about, in order, with who uses them.
    fn picks(&self, nodes: usize) -> Vec<Pick> {
        let mut picks = Vec::new();
        for &(page, node, pages) in &self.accesses {
            let shares = (0..nodes).map(|n| f64::from(u8::from(n == node.get()))).collect();
            let replicable = self.is_replicable(page);
            let (pages, pages_at_first) = (1.0, pages);
            picks.push(Pick {
                page,
                shares,
                pages,
                pages_at_first,
                since: 0,
                samples: 1,
                clear: true,
                replicable,
            });
        }
        let weight = |watched: &Watched| {
            let thinned = f64::from(self.thinned[usize::from(watched.is_folio())]).exp2();
            watched.pages * thinned * watched.at_once as f64
        };
        let pick = |watched: &Watched, shares: Vec<f64>, clear: bool| Pick {
            page: watched.page,
            shares,
            pages: weight(watched),
            pages_at_first: Some(weight(watched)),
            since: watched.since,
            samples: watched.last.len() as u64,
            clear,
            replicable: self.is_replicable(watched.page),
        };
        let watched = self.watched.iter().map(|(&page, watched)| (page, watched));
        let (in_parts, watched): (Vec<_>, Vec<_>) =
            watched.partition(|(first, watched)| watched.is_huge() && holds(&self.falsely_shared, *first));
        let of_parts = Users::of(in_parts.iter().map(|(_, watched)| &watched.last), nodes)
            .map(|users| shares(&users.samples, &users.samples, FULL_SHARE_OF_PARTS, &[], &self.cpu_time));
        picks.extend(in_parts.into_iter().map(|(_, watched)| {
            let mine = of_parts.clone().unwrap_or_else(|| own(&watched.last, nodes));
            pick(watched, mine, of_parts.is_some())
        }));
        let judge = |pages: &[(PageNumber, &Watched)]| {
            let mut users = Users::of(pages.iter().map(|(_, watched)| &watched.last), nodes)?;
            // One thread may have all faults of a few passes. Decisions rest on more than these.
            let found = pages.iter().filter(|(first, _)| holds(&self.shared, *first)).count();
            users.private &= 2 * found <= pages.len() || !users.are_few();
            Some(users)
        };
        let mut judged: Vec<_> = watched.chunks(JUDGED).map(|pages| (pages, judge(pages))).collect();
        acquit(&mut judged.iter_mut().filter_map(|(_, users)| users.as_mut()).collect::<Vec<_>>());
        let groups: Vec<&Users> = judged.iter().filter_map(|(_, users)| users.as_ref()).collect();
        let follow = followers(&groups, &self.cpu_time, nodes);
        if follow.contains(&true) {
            let groups = judged.iter_mut().filter_map(|(_, users)| users.as_mut());
            groups.filter(|users| users.may_be_followed()).for_each(|users| users.private = false);
        }
        let mut all_shared = vec![0.0; nodes];
        for users in judged.iter().filter_map(|(_, users)| users.as_ref()).filter(|users| !users.private) {
            all_shared.iter_mut().zip(&users.samples).for_each(|(all, count)| *all += count);
        }
        for (pages, users) in judged {
            let shared = users.as_ref().map(|users| {
                let samples = if users.are_few() { &all_shared } else { &users.samples };
                shares(samples, &all_shared, FULL_SHARE, &follow, &self.cpu_time)
            });
            picks.extend(pages.iter().map(|&(_, watched)| {
                let mine = match (&users, &shared) {
                    (Some(users), Some(shared)) if !users.private => shared.clone(),
                    _ => own(&watched.last, nodes),
                };
                pick(watched, mine, users.is_some())
            }));
        }
        picks.sort_unstable_by_key(|pick: &Pick| pick.page);
        picks
    }

    fn is_replicable(&self, page: PageNumber) -> bool {
        holds(&self.replicable, page)
    }
}

/// Puts ranges among the marked ones, or takes them out.
fn mark(marked: &mut RangeMap<()>, ranges: impl IntoIterator<Item = PageRange>, are: bool, most: usize) {
    marked.limit(most);
    for range in ranges {
        if are {
            marked.insert(range, ());
        } else {
            marked.remove(range);
        }
    }
}

/// Whether a page is in one of the ranges.
fn holds(ranges: &RangeMap<()>, page: PageNumber) -> bool {
    if ranges.is_empty() {
        return false;
    }
    let parts = ranges.parts(PageRange::new(page.0, page.0 + 1));
    parts.iter().any(|(_, there)| there.is_some())
}

/// Whether a page is among those that are watched.
fn is_picked(page: PageNumber, thinned: u32) -> bool {
    page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros() >= thinned
}
