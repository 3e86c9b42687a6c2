//! Which processes are managed, and what `/proc` says of them.
//!
//! Only cheap files are read: `stat`, `maps`, `task/TID/children`. Never `smaps` or (but of small processes
//! that may run on one node only) `numa_maps`, which walk the page tables of the whole process under its
//! `mmap` lock and stall a large one for seconds.

mod budget;
mod cpus;
mod details;
mod life;
mod read_cost;
mod stat;
mod strangers;
#[cfg(test)]
mod tests;

pub(crate) use budget::{OnePercent, pause};
pub(crate) use life::Life;
pub use life::{descendants, require_access, start_time};
pub use read_cost::ReadCost;
pub(crate) use stat::Stat;
pub use strangers::Strangers;

use crate::bounds::{self, Bound, Limits};
use crate::ending::{Ending, Until};
use crate::{Error, ErrorKind};
use budget::Allowance;
use details::Details;
use nodewise_engine::Pid;
use nodewise_sys::{pidfd_open, poll_readable};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A managed process as it was at the last [`Processes::update`].
#[derive(Clone, Debug)]
pub struct Process {
    /// The process's id.
    pub pid: Pid,
    /// Seen for the first time, or begun to run another program, in this interval.
    pub fresh: bool,
    /// Whether it was started, or executed its program, since we came: the first fault on each of its pages
    /// allocates it.
    pub from_the_start: bool,
    /// Resident base pages.
    pub resident_pages: u64,
    /// The CPU on which its only thread ran last; none where it has several.
    pub(crate) last_cpu: Option<u32>,
    /// Means this very process, also when its number has been given to another one; none where the kernel
    /// gives none (before 5.3, or a filter forbids it).
    pub(crate) handle: Option<Arc<OwnedFd>>,
    pub(crate) details: Details,
    life: Life,
}

impl Process {
    /// Whether it has ended, though its number may be another's by now.
    pub(crate) fn has_ended(&self) -> bool {
        self.handle.as_ref().is_some_and(has_ended)
    }
}

/// Whether the process has ended that the handle means.
pub(crate) fn has_ended(handle: &Arc<OwnedFd>) -> bool {
    poll_readable(&[handle.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

/// `EMFILE` and `ENFILE`.
const NO_MORE_FILES: [i32; 2] = [24, 23];

/// The managed processes: some roots, and (unless told otherwise) all that descends from them.
#[derive(Debug)]
pub struct Processes {
    follow_children: bool,
    /// Whether the roots were started by us just now.
    started: bool,
    /// The process whose children are managed without itself: orphans become its own.
    subreaper: Option<Pid>,
    /// Its descendants that are not managed.
    strangers: Strangers,
    /// Whether those that were there when we came are known.
    updated: bool,
    roots: BTreeSet<Pid>,
    alive: BTreeMap<Pid, Process>,
    /// The newest process (or thread) id of the machine at the last update, and whether it was a new one
    /// then.
    newest: (Option<String>, bool),
    /// When children are looked for again.
    children: OnePercent,
    /// Time for mappings of processes that are new, or have executed another program.
    first_reads: Allowance,
    ending: Ending,
    limits: Limits,
    cost: ReadCost,
    met: BTreeSet<Bound>,
}

impl Processes {
    /// Begins with `roots`. `started`: they were started just now, so that none of their memory is older than
    /// our knowledge of it, and they may have ended already; otherwise they must exist.
    pub fn new(roots: &[Pid], follow_children: bool, started: bool) -> Result<Self, Error> {
        // One of several may end at any time.
        if let Some(pid) =
            roots.first().filter(|_| !started && roots.iter().all(|pid| start_time(pid.0).is_none()))
        {
            return Err(Error::new(ErrorKind::NoSuchProcess, format!("there is no process {pid}")));
        }
        let roots = roots.iter().copied().collect();
        let (alive, cost) = (BTreeMap::new(), ReadCost::default());
        let (subreaper, updated, newest) = (None, false, (None, true));
        let (children, met) = (OnePercent::default(), BTreeSet::new());
        Ok(Self {
            follow_children,
            started,
            subreaper,
            strangers: Strangers::default(),
            updated,
            roots,
            alive,
            newest,
            children,
            first_reads: Allowance::default(),
            ending: Ending::default(),
            limits: Limits::default(),
            cost,
            met,
        })
    }

    /// Also follows this process's own children, but for strangers. The caller is the subreaper of the roots:
    /// a descendant that loses its parent before it was seen becomes its child.
    #[must_use]
    pub fn adopting_orphans(mut self, but: Strangers) -> Self {
        (self.subreaper, self.strangers) = (Some(Pid(std::process::id())), but);
        self
    }

    /// The same, that end their looks early when managing is to end.
    #[must_use]
    pub fn hearing(mut self, ending: &Ending) -> Self {
        self.hear(ending);
        self
    }

    /// Hears when managing is to end.
    pub(crate) fn hear(&mut self, ending: &Ending) {
        self.ending = ending.clone();
    }

    /// The word that they hear.
    pub(crate) const fn ending(&self) -> &Ending {
        &self.ending
    }

    /// The managed processes, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.alive.values()
    }

    /// One of them.
    pub(crate) fn get(&self, pid: Pid) -> Option<&Process> {
        self.alive.get(&pid)
    }

    /// Whether this process is managed.
    #[must_use]
    pub fn contains(&self, pid: Pid) -> bool {
        self.alive.contains_key(&pid)
    }

    /// The cost of all updates so far.
    #[must_use]
    pub const fn cost(&self) -> ReadCost {
        self.cost
    }

    /// Whether the process still is the one that [`Processes::update`] saw.
    #[must_use]
    pub fn is_same(&mut self, pid: Pid) -> bool {
        let stat = self.cost.read(&format!("/proc/{pid}/stat"));
        let now = stat.and_then(|stat| Some(Life::of(&Stat::parse(&stat)?)));
        let is_same = |process: &Process| now.is_some_and(|life| !life.zombie && life == process.life);
        self.alive.get(&pid).is_some_and(|process| is_same(process) && !process.has_ended())
    }

    /// The bounds that were met so far.
    pub(crate) const fn met(&self) -> &BTreeSet<Bound> {
        &self.met
    }

    /// Looks again: who is alive, who is new, who runs another program. Reads mappings no more often than
    /// costs 1 % of the time, all processes together.
    pub fn update(&mut self) {
        self.update_until(Instant::now() + bounds::MAPS_TIME);
    }

    /// The same; mappings that are not read until then are read the next time.
    fn update_until(&mut self, until: Instant) {
        let ending = self.ending.clone();
        let until = Until { at: until, ending: ending.clone() };
        let before = std::mem::take(&mut self.alive);
        let mut found: Vec<Pid> = before.keys().copied().chain(self.roots.iter().copied()).collect();
        let births = self.follow_children && self.children.is_due() && self.births();
        let (mut threads, mut looking_ns) = (self.limits.threads, 0);
        let mut children = |cost: &mut ReadCost, pid, found: &mut Vec<Pid>| {
            let spent = cost.time_ns;
            cost.children(pid, &mut threads, found, &ending);
            looking_ns += cost.time_ns - spent;
        };
        if let Some(subreaper) = self.subreaper.filter(|_| births) {
            self.strangers.update(&mut self.cost, &ending);
            children(&mut self.cost, subreaper, &mut found);
        }
        let count = |process: Option<&Process>| process.map_or(0, |process| process.details.count);
        let mut mapped: usize = before.values().map(|process| count(Some(process))).sum();
        let mut looked = BTreeSet::new();
        while let Some(pid) = found.pop() {
            ending.goes_on();
            if !looked.insert(pid) || self.strangers.contains(pid) {
                continue;
            }
            if self.alive.len() >= self.limits.processes {
                self.met.insert(Bound::Processes);
                break;
            }
            mapped -= count(before.get(&pid));
            let Some(process) = self.look(pid, before.get(&pid), before.len(), mapped, &until) else {
                continue;
            };
            mapped += process.details.count;
            if births {
                children(&mut self.cost, pid, &mut found);
            }
            self.alive.insert(pid, process);
        }
        if threads == 0 {
            self.met.insert(Bound::Threads);
        }
        if births {
            self.children.took(Duration::from_nanos(looking_ns));
        }
        self.updated = true;
        // A root that has ended is no longer one: its number may come back as somebody else.
        self.roots.retain(|pid| self.alive.contains_key(pid));
    }

    /// Something was seen of the process outside of its mappings as they were read last.
    pub(crate) fn distrust_mappings(&mut self, pid: Pid) {
        if let Some(process) = self.alive.get_mut(&pid) {
            process.details.distrust_mappings();
        }
    }

    /// News of the last interval is known from now on. There may be several updates in an interval.
    pub fn begin_interval(&mut self) {
        for process in self.alive.values_mut() {
            process.fresh = false;
            process.details.begin_interval();
        }
    }

    /// `processes`: how many there were at the last update; `mapped`: how many mappings others have. Mappings
    /// that are not read `until` then are read in the next look.
    fn look(
        &mut self,
        pid: Pid,
        before: Option<&Process>,
        processes: usize,
        mapped: usize,
        until: &Until,
    ) -> Option<Process> {
        // Opened before anything is read by number, and looked at afterwards.
        let handle = match before {
            Some(before) => before.handle.clone(),
            None => match pidfd_open(pid.0 as i32) {
                Ok(handle) => Some(Arc::new(handle)),
                Err(error) if NO_MORE_FILES.contains(&error.errno()) => {
                    self.met.insert(Bound::Processes);
                    return None;
                }
                Err(_) => None,
            },
        };
        let stat = Stat::parse(&self.cost.read(&format!("/proc/{pid}/stat"))?)?;
        let (life, Stat { mapped_bytes, resident_pages, thread_count, cpu, .. }) = (Life::of(&stat), stat);
        let last_cpu = (thread_count == 1).then_some(cpu);
        if life.zombie || before.is_some_and(|p| p.life.start_time != life.start_time) {
            return None;
        }
        let changed = before.is_none_or(|p| p.life != life);
        // Whoever was not there at first was born since. A child of fork has its parent's pages until exec
        // starts over; that the first fault on each of them is taken for its allocation costs no more
        // than that one sample.
        let from_the_start = match before {
            Some(before) => changed || before.from_the_start,
            None => self.started || (self.updated && !self.roots.contains(&pid)),
        };
        let now = Instant::now();
        let before = before.filter(|_| !changed);
        let mut details = before.map_or_else(|| Details::unread(now), |p| p.details.clone());
        let first = details.mappings.is_none();
        if details.due <= now && !until.is_over() && (!first || self.first_reads.is_left(now)) {
            // Half of what is left, so that no process takes it all.
            let Limits { mappings: all, mappings_each, .. } = self.limits;
            let most = (all.saturating_sub(mapped) / 2).max(mappings_each);
            let spent = self.cost.time_ns;
            if details.read(pid, mapped_bytes, most, until, &mut self.cost) {
                self.met.insert(Bound::Mappings);
            }
            let took_ns = self.cost.time_ns - spent;
            if first {
                self.first_reads.take(took_ns);
            }
            details.due = Instant::now() + pause(took_ns, processes);
        }
        let fresh = changed || before.is_some_and(|p| p.fresh);
        let process = Process { pid, fresh, from_the_start, resident_pages, last_cpu, handle, details, life };
        (!process.has_ended()).then_some(process)
    }

    /// Whether any process was born lately: one file tells (proc(5), `/proc/loadavg`: the id given last), and
    /// saves one for each thread. True once more after a birth: a child has its id before its parent has
    /// the child (`copy_process`, `kernel/fork.c`).
    fn births(&mut self) -> bool {
        let text = self.cost.read("/proc/loadavg");
        let newest = text.and_then(|text| text.split_ascii_whitespace().nth(4).map(str::to_owned));
        let new = newest.is_none() || newest != self.newest.0;
        let before = std::mem::replace(&mut self.newest, (newest, new));
        new || before.1
    }
}
