//! Which processes are managed, and what `/proc` says of them.
//!
//! Only cheap files are read: `stat`, `maps`, `task/TID/children`. Never `smaps` or (but of small processes
//! that may run on one node only) `numa_maps`, which walk the page tables of the whole process under its
//! `mmap` lock and stall a large one for seconds.

mod life;
mod read_cost;

pub(crate) use life::Life;
pub use life::{descendants, require_access, start_time};
pub use read_cost::ReadCost;

use crate::bounds::{self, Bound, Limits};
use crate::ending::{Ending, Until};
use crate::maps::SharedMapping;
use crate::{Error, ErrorKind};
use life::Size;
use nodewise_engine::{Mapping, Pid};
use nodewise_sys::{AffinityMask, pidfd_open, poll_readable, sched_getaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
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
    /// Its mappings, when they were read again in this interval.
    pub mappings: Option<Vec<Mapping>>,
    /// The CPUs on which any of its threads may run, as of when its mappings were read last; none if it has
    /// too many threads to ask.
    pub(crate) cpus: Option<AffinityMask>,
    /// Whether its threads were asked for them in this interval.
    pub(crate) asked: bool,
    /// Where it says how it uses its memory, when that was among them.
    pub(crate) hints_at: Option<(u64, u64)>,
    /// Its shared memory.
    pub(crate) shared: Arc<[SharedMapping]>,
    /// Means this very process, also when its number has been given to another one; none where the kernel
    /// gives none (before 5.3, or a filter forbids it).
    pub(crate) handle: Option<Arc<OwnedFd>>,
    life: Life,
    /// Mappings that were read last.
    mapped: usize,
    /// The bytes that it had mapped when the mappings were read last; none if they are known to have changed
    /// since.
    mapped_bytes: Option<u64>,
    /// No sooner are the mappings read again.
    maps_due: Instant,
    /// No later are they read again, though as much is mapped as before.
    maps_old: Instant,
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

/// How long the mappings of a process are believed that has as much mapped as before.
const MAPS_BELIEVED: Duration = Duration::from_secs(30);

/// The managed processes: some roots, and (unless told otherwise) all that descends from them.
#[derive(Debug)]
pub struct Processes {
    follow_children: bool,
    /// Whether the roots were started by us just now.
    started: bool,
    /// The process whose children are managed without itself: orphans become its own.
    subreaper: Option<Pid>,
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

    /// Also follows this process's own children. The caller is the subreaper of the roots: a descendant that
    /// loses its parent before it was seen becomes its child.
    #[must_use]
    pub fn adopting_orphans(mut self) -> Self {
        self.subreaper = Some(Pid(std::process::id()));
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
        let now = stat.and_then(|stat| Some(Life::parse(&stat)?.0));
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
            children(&mut self.cost, subreaper, &mut found);
        }
        let count = |process: Option<&Process>| process.map_or(0, |process| process.mapped);
        let mut mapped: usize = before.values().map(|process| count(Some(process))).sum();
        let mut looked = BTreeSet::new();
        while let Some(pid) = found.pop() {
            ending.goes_on();
            if !looked.insert(pid) {
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
            mapped += process.mapped;
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
            process.mapped_bytes = None;
        }
    }

    /// News of the last interval is known from now on. There may be several updates in an interval.
    pub fn begin_interval(&mut self) {
        for process in self.alive.values_mut() {
            (process.fresh, process.mappings, process.asked) = (false, None, false);
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
        let (life, size) = Life::parse(&self.cost.read(&format!("/proc/{pid}/stat"))?)?;
        let Size { mapped_bytes, resident_pages } = size;
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
        let (mut maps_due, mut maps_old) = before.map_or((now, now), |p| (p.maps_due, p.maps_old));
        let before = before.filter(|_| !changed);
        let mut mappings = before.and_then(|p| p.mappings.clone());
        let mut hints_at = before.and_then(|p| p.hints_at);
        let mut shared = before.map_or_else(|| [].into(), |p| Arc::clone(&p.shared));
        let mut count = before.map_or(0, |p| p.mapped);
        let mut cpus = before.and_then(|p| p.cpus.clone());
        let mut asked = before.is_some_and(|p| p.asked);
        let mut mapped_then = before.and_then(|p| p.mapped_bytes);
        let first = changed || mappings.is_none();
        let is_due = changed || maps_due <= now;
        if is_due && !until.is_over() && (!first || self.first_reads.is_left(now)) {
            let spent = self.cost.time_ns;
            if changed || mapped_then != Some(mapped_bytes) || maps_old <= now {
                // Half of what is left, so that no process takes it all.
                let Limits { mappings: all, mappings_each, .. } = self.limits;
                let most = (all.saturating_sub(mapped) / 2).max(mappings_each);
                let maps = self.cost.maps(pid, most, until.clone());
                if maps.as_ref().is_some_and(|maps| maps.is_cut) {
                    self.met.insert(Bound::Mappings);
                }
                hints_at = maps.as_ref().and_then(|maps| maps.hints_at);
                count = maps.as_ref().map_or(0, |maps| maps.mappings.len());
                mappings = maps.map(|maps| {
                    shared = maps.shared.into();
                    maps.mappings
                });
                (mapped_then, maps_old) = (Some(mapped_bytes), now + MAPS_BELIEVED);
            }
            (cpus, asked) = (self.allowed_cpus(pid), true);
            if first {
                self.first_reads.take(self.cost.time_ns - spent);
            }
            maps_due = Instant::now() + pause(self.cost.time_ns - spent, processes);
        } else if changed {
            maps_due = now;
        }
        let fresh = changed || before.is_some_and(|p| p.fresh);
        let process = Process {
            pid,
            fresh,
            from_the_start,
            resident_pages,
            mappings,
            cpus,
            asked,
            hints_at,
            shared,
            handle,
            life,
            mapped: count,
            mapped_bytes: mapped_then,
            maps_due,
            maps_old,
        };
        (!process.has_ended()).then_some(process)
    }

    /// The CPUs on which any thread of `pid` may run.
    fn allowed_cpus(&mut self, pid: Pid) -> Option<AffinityMask> {
        const MOST_THREADS: usize = 256;
        let begin = Instant::now();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let tids: Vec<i32> = tasks
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse().ok())
            .take(MOST_THREADS + 1)
            .collect();
        let asked = tids.len() <= MOST_THREADS;
        let cpus = if asked { union(tids.iter().map(|&tid| sched_getaffinity(tid))) } else { None };
        self.cost.files += 1;
        self.cost.time_ns += begin.elapsed().as_nanos() as u64;
        cpus
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

/// The CPUs of all threads; none where one thread's are not known, which may run anywhere.
fn union(threads: impl Iterator<Item = nodewise_sys::Result<AffinityMask>>) -> Option<AffinityMask> {
    let mut union = AffinityMask::new();
    for cpus in threads {
        match cpus {
            Ok(cpus) => cpus.iter().for_each(|cpu| union.insert(cpu)),
            // It has ended meanwhile, and runs nowhere.
            Err(error) if error.kind() == nodewise_sys::ErrorKind::NoSuchProcess => {}
            Err(_) => return None,
        }
    }
    Some(union).filter(|union| !union.is_empty())
}

/// Something that takes 1 % of the time, however long it takes each time.
#[derive(Debug)]
pub(crate) struct OnePercent {
    due: Instant,
}

impl Default for OnePercent {
    /// Due at once.
    fn default() -> Self {
        Self { due: Instant::now() }
    }
}

impl OnePercent {
    pub(crate) fn is_due(&self) -> bool {
        self.due <= Instant::now()
    }

    pub(crate) fn took(&mut self, time: Duration) {
        self.due = Instant::now() + pause(time.as_nanos() as u64, 1);
    }
}

/// Time that comes with time: a twentieth of it, and at first as much as a look may take.
#[derive(Debug)]
struct Allowance {
    /// Less than none where more was taken than there was.
    left_ns: i64,
    since: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left_ns: bounds::MAPS_TIME.as_nanos() as i64, since: Instant::now() }
    }
}

impl Allowance {
    fn is_left(&mut self, now: Instant) -> bool {
        let came_ns = now.saturating_duration_since(self.since).as_nanos() as i64 / 20;
        let most_ns = bounds::MAPS_TIME.as_nanos() as i64;
        (self.left_ns, self.since) = (self.left_ns.saturating_add(came_ns).min(most_ns), now);
        self.left_ns > 0
    }

    fn take(&mut self, time_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub_unsigned(time_ns);
    }
}

/// How long not to read something of a process after it took `spent_ns`, so that with each of `processes` 1 %
/// of the time goes there.
pub(crate) fn pause(spent_ns: u64, processes: usize) -> Duration {
    Duration::from_nanos(spent_ns.saturating_mul(100).saturating_mul(processes.max(1) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::MappingKind;
    use nodewise_sys::sched_setaffinity;
    use std::io::Read;
    use std::process::Command;

    /// Such a name, as all longer ones of many languages when they are cut at 15 bytes, is neither UTF-8 in
    /// `stat` nor in `maps`.
    #[test]
    fn names_are_bytes() {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9 \xc3"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("100").spawn().unwrap();
        let pid = Pid(child.id());
        while !fs::read(format!("/proc/{pid}/comm")).unwrap().starts_with(b"caf\xe9") {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(require_access(pid).is_ok());
        let mut processes = Processes::new(&[pid], true, false).unwrap();
        processes.update();
        let process = processes.iter().next().unwrap();
        assert!(
            process.mappings.as_ref().unwrap().iter().filter(|m| m.kind == MappingKind::File).count() >= 2
        );
        assert!(processes.is_same(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!processes.is_same(pid));
    }

    #[test]
    fn the_cpus_of_a_process_are_those_of_all_its_threads() {
        let first = sched_getaffinity(0).unwrap().iter().next().unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid(child.id());
        sched_setaffinity(pid.0 as i32, &[first].into_iter().collect()).unwrap();
        let mut processes = Processes::new(&[pid], false, false).unwrap();
        let cpus = |processes: &mut Processes| {
            processes.update();
            processes.iter().next().unwrap().cpus.clone()
        };
        assert_eq!(cpus(&mut processes), Some([first].into_iter().collect()));
        child.kill().unwrap();
        child.wait().unwrap();
        // This process has threads besides the one that binds itself.
        let before = sched_getaffinity(0).unwrap();
        sched_setaffinity(0, &[first].into_iter().collect()).unwrap();
        let mut processes = Processes::new(&[Pid(std::process::id())], false, false).unwrap();
        let found = cpus(&mut processes);
        sched_setaffinity(0, &before).unwrap();
        assert_eq!(found, Some(before));
    }

    #[test]
    fn a_thread_that_cannot_be_asked_may_run_anywhere() {
        let cpus = |number: u32| Ok([number].into_iter().collect::<AffinityMask>());
        let refused = |errno| Err(nodewise_sys::Error::new("sched_getaffinity", errno));
        let (ended, not_permitted) = (3, 1);
        assert_eq!(union([cpus(1), refused(ended), cpus(2)].into_iter()), Some([1, 2].into_iter().collect()));
        assert_eq!(union([cpus(1), refused(not_permitted)].into_iter()), None);
        assert_eq!(union([refused(ended)].into_iter()), None);
    }

    #[test]
    fn mappings_are_read_again_when_they_have_changed() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid(child.id());
        let mut processes = Processes::new(&[pid], false, false).unwrap();
        // Until it has executed its program, and then whenever that is due.
        let look = |processes: &mut Processes| {
            processes.begin_interval();
            processes.alive.values_mut().for_each(|process| process.maps_due = Instant::now());
            processes.update();
            processes.iter().next().unwrap().mappings.is_some()
        };
        while look(&mut processes) {}
        assert!(!look(&mut processes), "as much is mapped as before");
        processes.distrust_mappings(pid);
        assert!(look(&mut processes), "something was seen outside");
        assert!(!look(&mut processes));
        processes.alive.get_mut(&pid).unwrap().mapped_bytes = Some(1);
        assert!(look(&mut processes), "less was mapped");
        processes.alive.get_mut(&pid).unwrap().maps_old = Instant::now();
        assert!(look(&mut processes), "after a while");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A shell with so many children, the processes that are managed of them, and the bounds that were met.
    fn managed(children: usize, limits: Limits) -> (Vec<usize>, BTreeSet<Bound>) {
        let script = format!("{} echo; wait", "sleep 100 >&- & ".repeat(children));
        let mut child =
            Command::new("sh").args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let mut processes = Processes::new(&[Pid(child.id())], true, false).unwrap();
        processes.limits = limits;
        processes.update();
        let mapped = processes.iter().map(|process| process.mapped).collect();
        let met = processes.met().clone();
        for pid in descendants(child.id()) {
            let _ = nodewise_sys::kill(pid.0 as i32, 9);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        (mapped, met)
    }

    #[test]
    fn bounds_are_those_of_all_processes_together() {
        let (mapped, met) = managed(5, Limits::default());
        assert_eq!((mapped.len(), met), (6, BTreeSet::new()));
        let (some, met) = managed(5, Limits { processes: 3, ..Limits::default() });
        assert_eq!((some.len(), met), (3, [Bound::Processes].into()));
        // The shell's thread, and those of two of its children.
        let (all, met) = managed(5, Limits { threads: 3, ..Limits::default() });
        assert_eq!((all.len(), met), (6, [Bound::Threads].into()));
        // Children in the middle of executing their program have few mappings.
        let (all, met) = managed(5, Limits { mappings: 16, mappings_each: 1, ..Limits::default() });
        assert!(all.len() == 6 && all.iter().all(|&mapped| (1..=8).contains(&mapped)), "{all:?}");
        assert!(all.iter().sum::<usize>() <= 16 + 6, "{all:?}");
        assert_eq!(met, [Bound::Mappings].into());
    }

    #[test]
    fn mappings_that_there_is_no_time_for_are_read_the_next_time() {
        let own = Pid(std::process::id());
        let mut processes = Processes::new(&[own], false, false).unwrap();
        processes.update_until(Instant::now());
        assert!(processes.get(own).unwrap().mappings.is_none());
        processes.update();
        assert!(processes.get(own).unwrap().mappings.is_some());
        assert!(processes.get(own).unwrap().fresh);
    }

    /// A program starts others, or executes another program, as often as it likes.
    #[test]
    fn new_processes_take_a_twentieth_of_the_time() {
        let mut allowance = Allowance::default();
        let begin = allowance.since;
        allowance.take(3_000_000_000);
        assert!(!allowance.is_left(begin + Duration::from_secs(19)));
        assert!(allowance.is_left(begin + Duration::from_secs(21)));
        allowance.take(200_000_000);
        assert!(!allowance.is_left(begin + Duration::from_secs(22)));
        // There is no more after a long time than there was at first.
        assert!(allowance.is_left(begin + Duration::from_secs(86_400)));
        allowance.take(2_000_000_000);
        assert!(!allowance.is_left(begin + Duration::from_secs(86_400)));

        let own = Pid(std::process::id());
        let mut processes = Processes::new(&[own], false, false).unwrap();
        processes.first_reads.take(3_600_000_000_000);
        for _ in 0..2 {
            processes.update();
            assert!(processes.get(own).unwrap().mappings.is_none());
        }
        processes.first_reads = Allowance::default();
        processes.update();
        assert!(processes.get(own).unwrap().mappings.is_some());
        assert!(processes.first_reads.left_ns < bounds::MAPS_TIME.as_nanos() as i64);
    }

    #[test]
    fn a_thousand_processes_cost_no_more_than_one() {
        assert_eq!(pause(1_000_000, 0), Duration::from_millis(100));
        assert_eq!(pause(1_000_000, 1), Duration::from_millis(100));
        assert_eq!(pause(1_000_000, 1000), Duration::from_secs(100));
    }

    #[test]
    fn children_are_looked_for_no_sooner_than_is_due() {
        let mut child = Command::new("sh").args(["-c", "sleep 100 & sleep 100 & wait"]).spawn().unwrap();
        let mut processes = Processes::new(&[Pid(child.id())], true, false).unwrap();
        processes.children.took(Duration::from_secs(1));
        for _ in 0..100 {
            processes.update();
            assert_eq!(processes.iter().count(), 1, "a look took a second, and the next is due in 100");
            std::thread::sleep(Duration::from_millis(1));
        }
        processes.children = OnePercent::default();
        while processes.iter().count() < 3 {
            processes.update();
        }
        processes.iter().filter(|process| process.pid.0 != child.id()).for_each(|process| {
            nodewise_sys::kill(process.pid.0 as i32, 9).unwrap();
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn follows_children_and_notices_their_end() {
        let mut child = Command::new("sh")
            .args(["-c", "echo; read x; sleep 100 >&- & wait"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // spawn returns in the middle of execve, when the stack's start is not set yet.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let root = Pid(child.id());
        let mut processes = Processes::new(&[root], true, false).unwrap();
        processes.update();
        assert!(processes.iter().all(|p| !p.from_the_start));
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
        let grandchild = loop {
            processes.begin_interval();
            processes.update();
            // Fresh ones may be in the middle of executing their program.
            if processes.iter().any(|p| p.fresh) {
                continue;
            }
            if let Some(p) = processes.iter().find(|p| p.pid != root) {
                assert!(p.from_the_start, "born since we came");
                break p.pid;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(processes.contains(root) && processes.is_same(root));
        child.kill().unwrap();
        child.wait().unwrap();
        processes.update();
        assert!(!processes.contains(root) && !processes.is_same(root));
        assert!(processes.contains(grandchild), "an orphan of a managed process stays managed");
        Command::new("sh").args(["-c", &format!("kill {grandchild}")]).status().unwrap();
        assert!(processes.cost().files > 0 && processes.cost().bytes > 0);
    }

    #[test]
    fn another_program_in_the_same_process_is_fresh() {
        use std::io::Write as _;
        let mut child = Command::new("sh")
            .args(["-c", "read x; exec sleep 100"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut processes = Processes::new(&[Pid(child.id())], true, true).unwrap();
        for _ in 0..2 {
            processes.update();
            assert!(
                processes.iter().all(|p| p.fresh && p.mappings.is_some()),
                "news until the interval ends"
            );
        }
        // spawn() may return while the kernel is still laying out the new program's stack.
        while processes.iter().any(|p| p.fresh) {
            processes.begin_interval();
            processes.update();
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        while !fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap().starts_with("sleep") {
            std::thread::sleep(Duration::from_millis(5));
        }
        processes.update();
        assert!(processes.iter().all(|p| p.fresh));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_wrong_pid_is_an_error() {
        assert_eq!(
            Processes::new(&[Pid(u32::MAX)], true, false).unwrap_err().kind(),
            ErrorKind::NoSuchProcess
        );
    }

    #[test]
    fn a_program_that_ended_as_soon_as_it_was_started_is_no_error() {
        let mut processes = Processes::new(&[Pid(u32::MAX)], true, true).unwrap();
        processes.update();
        assert_eq!(processes.iter().count(), 0);
    }
}
