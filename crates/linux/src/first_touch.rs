//! First touches of memory: the page faults of processes, each with the code that made it.
//!
//! The kernel places a page where it is first touched, so that whoever wants to know why memory lies where it
//! does asks for this. The faults come from the software event `page-faults`, which needs no PMU. It is told
//! before the kernel brings the page in, with the size of the page that is there. That is 0 at a first touch.
//! It is not 0 at a hint fault, nor where a page is to be copied. Pages that the kernel brings in for a
//! program (`MAP_POPULATE`, `mlock`) make no fault, and a huge page makes one.
//!
//! While the kernel migrates a page, none is there either. Threads that use it then wait
//! (`migration_entry_wait`, `mm/migrate.c`, Linux 6.12), and their faults look like first touches. A page
//! that had a hint fault just before is therefore not touched first.

use crate::jit::JitNames;
use crate::sampler::{MIGRATION_NS, PageFaultEvents, RawSample, Seen, Source};
use crate::symbols::{Frame, Symbols};
use crate::{Error, NamedMapping};
use nodewise_engine::{PAGE_BYTES, PageNumber, PageRange, Pid, Tid};
use nodewise_sys::perf::{CallChain, Record};
use nodewise_topology::{NodeIndex, Topology};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Callers of a call chain.
pub(crate) const CALLERS: u16 = 16;
/// Ranges that are kept, of all processes together: some 64 MiB.
const MOST_RANGES: usize = 1 << 20;
/// Call chains that are kept, of all processes together.
pub(crate) const MOST_STACKS: usize = 1 << 16;
/// Mappings of code that are kept of a process.
const MOST_MODULES: usize = 1 << 12;

/// Pages that one thread touched first, one after the other, by the same code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// The process.
    pub pid: Pid,
    /// The pages; for a huge page only the base page that was touched.
    pub range: PageRange,
    /// The node of the CPU.
    pub node: NodeIndex,
    /// The thread.
    pub tid: Tid,
    /// The number of the call chain; none when there was no room for another.
    pub stack: Option<u32>,
}

/// Everything that was learnt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstTouchReport {
    /// By process and address.
    pub touched: Vec<Touched>,
    /// Call chains, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Faults that were lost on the way.
    pub lost: u64,
    /// Faults for which there was no room.
    pub left_out: u64,
}

/// Watches first touches of processes and of what they start.
pub struct FirstTouches {
    events: PageFaultEvents,
    hints: HintFaults,
    known: Known,
}

impl FirstTouches {
    /// Watches from now on.
    ///
    /// # Errors
    /// The event is refused: it takes `CAP_PERFMON` or `perf_event_paranoid` at most 0.
    pub fn open(topology: &Topology) -> Result<Self, Error> {
        let events = PageFaultEvents::open(topology, Source::Called { callers: CALLERS })?;
        Ok(Self { events, hints: HintFaults::default(), known: Known::default() })
    }

    /// Follows a process, and all that it starts from now on.
    pub fn follow(&mut self, pid: Pid) {
        self.known.followed.insert(pid);
        // Code that was mapped before. A process that has just been started has none of its own yet.
        let mappings = NamedMapping::all_of(pid).into_iter().flatten();
        for NamedMapping { range, offset, name, .. } in mappings.filter(|mapping| mapping.is_code) {
            self.known.add_module(pid, Module { range, offset, path: name.into() });
        }
    }

    /// Takes in what has happened. To be called often: a ring holds some 10 000 faults.
    pub fn drain(&mut self) {
        let Self { events, hints, known } = self;
        let mut faults = Vec::new();
        events.read(&|_| true, |seen| match seen {
            Seen::Fault(fault, sample) => {
                if let Some(bytes) = sample.data_page_bytes.filter(|&bytes| bytes > 0) {
                    hints.add(&fault, bytes);
                } else if sample.data_page_bytes.is_some() {
                    let chain: Vec<u64> = sample.call_chain.iter().flat_map(CallChain::user).collect();
                    let top = sample.user_stack.and_then(|top| top.try_into().ok().map(u64::from_ne_bytes));
                    faults.push((fault, chain, top));
                }
            }
            Seen::Other(record, time_ns) => known.told(record, time_ns),
        });
        // Afterwards: another CPU's ring may have told of the fork that a process began with, or of a hint
        // fault.
        hints.sort();
        for (fault, mut chain, top) in faults.into_iter().filter(|(fault, ..)| !hints.has_before(fault)) {
            known.add_caller(fault.pid, &mut chain, top);
            known.fault(&fault, chain);
        }
    }

    /// Follows CPUs that come and go.
    pub fn follow_cpus(&mut self) {
        self.events.follow();
    }

    /// Forgets memory that a process no longer has. It had these mappings at some time after `read_after_ns`
    /// (`CLOCK_MONOTONIC`).
    pub fn retain(&mut self, pid: Pid, mappings: &[NamedMapping], read_after_ns: u64) {
        self.known.retain(pid, mappings, read_after_ns);
    }

    /// Everything that was learnt, with names for code.
    #[must_use]
    pub fn finish(mut self) -> FirstTouchReport {
        self.drain();
        FirstTouchReport { lost: self.events.losses().lost, ..self.known.report() }
    }
}

/// Faults of late on pages that were there.
#[derive(Default)]
struct HintFaults {
    /// Process, first base page of the page, time; in order.
    faults: Vec<(Pid, u64, u64)>,
}

impl HintFaults {
    fn add(&mut self, fault: &RawSample, page_bytes: u64) {
        let pages = (page_bytes / PAGE_BYTES).max(1);
        self.faults.push((fault.pid, fault.address.page().0 / pages * pages, fault.time_ns));
    }

    /// Forgets what is long ago.
    fn sort(&mut self) {
        let latest = self.faults.iter().map(|&(.., time_ns)| time_ns).max().unwrap_or(0);
        self.faults.retain(|&(.., time_ns)| time_ns + MIGRATION_NS >= latest);
        // Most are in order.
        self.faults.sort();
    }

    /// Whether there was one on the same page, or on the huge page around it, just before this fault.
    fn has_before(&self, fault: &RawSample) -> bool {
        let page = fault.address.page();
        let has = |start: u64| {
            let until = self.faults.partition_point(|&other| other <= (fault.pid, start, fault.time_ns));
            let last = until.checked_sub(1).map(|last| self.faults[last]);
            last.is_some_and(|(pid, other, time_ns)| {
                (pid, other) == (fault.pid, start) && fault.time_ns - time_ns <= MIGRATION_NS
            })
        };
        has(page.0) || has(page.huge().0)
    }
}

/// A mapping of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) range: Range<u64>,
    /// The first byte's in the file.
    pub(crate) offset: u64,
    pub(crate) path: PathBuf,
}

impl Module {
    /// Whether it is a file's, and no memory that holds what a program made at run time.
    fn is_file(&self) -> bool {
        let is_memory = |name: &str| self.path.as_os_str().as_bytes().starts_with(name.as_bytes());
        self.path.is_absolute() && !["//anon", "/memfd:", "/dev/zero"].into_iter().any(is_memory)
    }
}

/// A range's own end, and who touched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u64,
    node: NodeIndex,
    tid: Tid,
    stack: Option<u32>,
    /// The time of the first page's touch.
    time_ns: u64,
}

/// The state, without the events.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) followed: BTreeSet<Pid>,
    runs: BTreeMap<Pid, BTreeMap<u64, Run>>,
    /// All together.
    ranges: usize,
    stacks: HashMap<(Pid, Vec<u64>), u32>,
    /// By process; where two overlap the later one holds.
    modules: BTreeMap<Pid, Vec<Module>>,
    /// When each process had its last exec.
    execs: HashMap<Pid, u64>,
    left_out: u64,
}

impl Known {
    fn told(&mut self, record: &Record<'_>, time_ns: Option<u64>) {
        match *record {
            Record::Fork(task) if task.pid != task.parent_pid => {
                let (parent, child) = (Pid(task.parent_pid as u32), Pid(task.pid as u32));
                if self.followed.contains(&parent) {
                    self.followed.insert(child);
                    self.fork(parent, child);
                }
            }
            // The memory that it had is gone. Another CPU's ring may have told before of touches since.
            Record::Comm { pid, exec: true, .. } => {
                let pid = Pid(pid as u32);
                self.forget_before(pid, time_ns.unwrap_or(u64::MAX));
                if self.execs.len() > MOST_MODULES {
                    self.execs.retain(|pid, _| self.followed.contains(pid));
                }
                self.execs.extend(time_ns.map(|time_ns| (pid, time_ns)));
            }
            // Mappings of a program that is not followed yet count as well: it may be in a moment.
            Record::Mmap { pid, address, bytes, offset, name, .. } => {
                let range = address..address.saturating_add(bytes);
                let path = OsStr::from_bytes(name).into();
                self.add_module(Pid(pid as u32), Module { range, offset, path });
            }
            _ => {}
        }
    }

    /// A child has its parent's code.
    pub(crate) fn fork(&mut self, parent: Pid, child: Pid) {
        let modules = self.modules.get(&parent).cloned().unwrap_or_default();
        self.modules.insert(child, modules);
    }

    pub(crate) fn add_module(&mut self, pid: Pid, module: Module) {
        if self.modules.len() > MOST_MODULES {
            self.modules.retain(|pid, _| self.followed.contains(pid));
        }
        let modules = self.modules.entry(pid).or_default();
        if modules.len() < MOST_MODULES {
            modules.push(module);
        }
    }

    /// A function of a library that makes no frame, as `memset` does not, has its caller's address on top of
    /// the stack. The call chain leaves that caller out.
    fn add_caller(&self, pid: Pid, chain: &mut Vec<u64>, top: Option<u64>) {
        let modules = self.modules.get(&pid).map(Vec::as_slice).unwrap_or_default();
        let module = |address: u64| modules.iter().rev().find(|module| module.range.contains(&address));
        let is_library = |module: &Module| {
            module.path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
        };
        let (Some(&innermost), Some(top)) = (chain.first(), top) else { return };
        if module(innermost).is_some_and(is_library) && module(top).is_some() && chain.get(1) != Some(&top) {
            chain.insert(1, top);
        }
    }

    pub(crate) fn forget(&mut self, pid: Pid) {
        self.ranges -= self.runs.remove(&pid).map_or(0, |runs| runs.len());
    }

    fn forget_before(&mut self, pid: Pid, time_ns: u64) {
        let Some(runs) = self.runs.get_mut(&pid) else { return };
        let count = runs.len();
        runs.retain(|_, run| run.time_ns >= time_ns);
        self.ranges -= count - runs.len();
    }

    /// Whether the first touch of a page is known.
    pub(crate) fn has(&self, pid: Pid, page: PageNumber) -> bool {
        let before = self.runs.get(&pid).and_then(|runs| runs.range(..=page.0).next_back());
        before.is_some_and(|(_, run)| page.0 < run.end)
    }

    pub(crate) fn fault(&mut self, fault: &RawSample, chain: Vec<u64>) {
        let RawSample { pid, tid, accessor: node, time_ns, .. } = *fault;
        let PageNumber(page) = fault.address.page();
        let is_gone = self.execs.get(&pid).is_some_and(|&exec_ns| time_ns < exec_ns);
        if !self.followed.contains(&pid) || is_gone {
            return;
        }
        let count = self.stacks.len();
        let stack = match self.stacks.get(&(pid, chain.clone())) {
            Some(&stack) => Some(stack),
            None if count < MOST_STACKS => {
                self.stacks.insert((pid, chain), count as u32);
                Some(count as u32)
            }
            None => None,
        };
        let runs = self.runs.entry(pid).or_default();
        self.ranges -= runs.len();
        cut(runs, page);
        let has_room = self.ranges + runs.len() < MOST_RANGES;
        match runs.range_mut(..page).next_back() {
            Some((_, run)) if (run.end, run.node, run.tid, run.stack) == (page, node, tid, stack) => {
                run.end += 1;
            }
            _ if has_room => {
                runs.insert(page, Run { end: page + 1, node, tid, stack, time_ns });
            }
            _ => self.left_out += 1,
        }
        self.ranges += runs.len();
    }

    fn retain(&mut self, pid: Pid, mappings: &[NamedMapping], read_after_ns: u64) {
        let is_mapped = |start: u64, end: u64| {
            let next = mappings.partition_point(|mapping| mapping.range.end <= start * PAGE_BYTES);
            mappings.get(next).is_some_and(|mapping| mapping.range.start < end * PAGE_BYTES)
        };
        let Some(runs) = self.runs.get_mut(&pid) else { return };
        let count = runs.len();
        // Memory that was touched later may have been mapped after these were read.
        runs.retain(|&start, run| run.time_ns >= read_after_ns || is_mapped(start, run.end));
        self.ranges -= count - runs.len();
    }

    pub(crate) fn report(self) -> FirstTouchReport {
        let (mut symbols, mut made) = (Symbols::default(), JitNames::default());
        let mut stacks = vec![Vec::new(); self.stacks.len()];
        for ((pid, chain), stack) in &self.stacks {
            let modules = self.modules.get(pid).map(Vec::as_slice).unwrap_or_default();
            let frames = chain.iter().enumerate().flat_map(|(depth, &address)| {
                // But for the innermost one, an address is that to return to, behind the call.
                let code = address.saturating_sub(u64::from(depth > 0));
                let module = modules.iter().rev().find(|module| module.range.contains(&code));
                match module.filter(|module| module.is_file()) {
                    Some(module) => {
                        symbols.frames_of(*pid, &module.path, code - module.range.start + module.offset)
                    }
                    None => vec![made.frame(*pid, code)],
                }
            });
            stacks[*stack as usize] = frames.collect();
        }
        let touched = self.runs.iter().flat_map(|(&pid, runs)| {
            runs.iter().map(move |(&start, run)| Touched {
                pid,
                range: PageRange::new(start, run.end),
                node: run.node,
                tid: run.tid,
                stack: run.stack,
            })
        });
        FirstTouchReport { touched: touched.collect(), stacks, lost: 0, left_out: self.left_out }
    }
}

/// Takes a page out: it was given back, and something else is there now.
fn cut(runs: &mut BTreeMap<u64, Run>, page: u64) {
    let Some((&start, &run)) = runs.range(..=page).next_back().filter(|(_, run)| page < run.end) else {
        return;
    };
    runs.remove(&start);
    for (start, end) in [(start, page), (page + 1, run.end)] {
        if start < end {
            runs.insert(start, Run { end, ..run });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::perf::TaskChange;

    const A: Pid = Pid(10);

    fn touched(known: Known) -> Vec<(u32, PageRange, u8, Option<u32>)> {
        let all = known.report().touched;
        all.iter().map(|t| (t.pid.0, t.range, t.node.0, t.stack)).collect()
    }

    fn at(pid: Pid, page: u64, node: u8, time_ns: u64) -> RawSample {
        RawSample {
            time_ns,
            address: PageNumber(page).address(),
            pid,
            tid: Tid(pid.0),
            accessor: NodeIndex(node),
            access: nodewise_engine::Access::Unknown,
            source: nodewise_engine::DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        }
    }

    #[test]
    fn neighbours_are_one_range_and_the_last_who_brought_a_page_in_counts() {
        let mut known = Known::default();
        known.followed.insert(A);
        let mut fault = |page, node, chain: &[u64]| known.fault(&at(A, page, node, 0), chain.to_vec());
        for page in 100..110 {
            fault(page, 0, &[1, 2]);
        }
        // It was given back meanwhile.
        fault(105, 3, &[7]);
        // Another node goes on, and then other code.
        fault(110, 1, &[1, 2]);
        fault(111, 1, &[7]);
        known.fault(&at(Pid(11), 5, 0, 0), vec![1]);
        let (first, other) = (Some(0), Some(1));
        assert_eq!(
            touched(known),
            [
                (10, PageRange::new(100, 105), 0, first),
                (10, PageRange::new(105, 106), 3, other),
                (10, PageRange::new(106, 110), 0, first),
                (10, PageRange::new(110, 111), 1, first),
                (10, PageRange::new(111, 112), 1, other),
            ]
        );
    }

    #[test]
    fn who_waits_for_a_page_that_migrates_does_not_touch_it_first() {
        const MS: u64 = 1_000_000;
        let mut hints = HintFaults::default();
        hints.add(&at(A, 5 * 512 + 7, 0, 1000 * MS), 2 << 20);
        hints.add(&at(A, 100, 0, 1050 * MS), 4096);
        hints.add(&at(A, 100, 0, 10 * MS), 4096);
        hints.sort();
        for (pid, page, time_ms, waits) in [
            (A, 5 * 512, 1001, true),
            (A, 5 * 512 + 511, 1499, true),
            (A, 5 * 512 + 511, 1501, false), // given back, and touched anew
            (A, 5 * 512, 999, false),
            (A, 6 * 512, 1001, false),
            (Pid(11), 5 * 512, 1001, false),
            (A, 100, 1060, true),
            (A, 101, 1060, false),
            (A, 100, 1040, false),
        ] {
            assert_eq!(hints.has_before(&at(pid, page, 1, time_ms * MS)), waits, "{page}, {time_ms}");
        }
        hints.add(&at(A, 300, 0, 2000 * MS), 4096);
        hints.sort();
        assert_eq!(hints.faults, [(A, 300, 2000 * MS)]);
    }

    #[test]
    fn the_caller_of_a_library_is_on_the_stack() {
        let mut known = Known::default();
        let module = |range, path: &str| Module { range, offset: 0, path: path.into() };
        known.add_module(A, module(0x1000..0x2000, "/bin/solver"));
        known.add_module(A, module(0x7000..0x8000, "/lib/libc.so.6"));
        for (chain, top, expected) in [
            (vec![0x7100, 0x1300], Some(0x1200), vec![0x7100, 0x1200, 0x1300]),
            (vec![0x7100], Some(0x1200), vec![0x7100, 0x1200]),
            (vec![0x7100, 0x1200], Some(0x1200), vec![0x7100, 0x1200]),
            (vec![0x7100, 0x1300], Some(42), vec![0x7100, 0x1300]),
            (vec![0x7100, 0x1300], None, vec![0x7100, 0x1300]),
            // The program's own functions have whatever they put there.
            (vec![0x1100, 0x1300], Some(0x1200), vec![0x1100, 0x1300]),
            (vec![], Some(0x1200), vec![]),
        ] {
            let mut got = chain.clone();
            known.add_caller(A, &mut got, top);
            assert_eq!(got, expected, "{chain:x?} {top:x?}");
        }
    }

    #[test]
    fn children_are_followed_and_memory_that_is_gone_is_forgotten() {
        let mut known = Known::default();
        known.followed.insert(A);
        let module = Module { range: 0x1000..0x2000, offset: 0, path: "/bin/none".into() };
        known.add_module(A, module);
        let mut task = TaskChange::default();
        (task.pid, task.parent_pid) = (11, 10);
        known.told(&Record::Fork(task), None);
        assert_eq!(known.modules[&Pid(11)].len(), 1, "a child has its parent's code");
        for pid in [A, Pid(11)] {
            for page in [100, 200, 300] {
                known.fault(&at(pid, page, 0, page), vec![0x1234]);
            }
        }
        let range = 90 * PAGE_BYTES..101 * PAGE_BYTES;
        let kept = NamedMapping { range, is_code: false, offset: 0, name: "[heap]".into() };
        // Memory that was touched at 300 or later may have been mapped since.
        known.retain(A, &[kept], 300);
        // The next program's touch at 300 was told before its exec, and an old one after it.
        known.told(&Record::Comm { pid: 11, tid: 11, exec: true, name: b"other" }, Some(250));
        known.fault(&at(Pid(11), 400, 0, 240), vec![0x1234]);
        assert_eq!(known.ranges, 3);
        let touched = touched(known);
        let pages: Vec<(u32, u64)> = touched.iter().map(|(pid, range, ..)| (*pid, range.start.0)).collect();
        assert_eq!(pages, [(A.0, 100), (A.0, 300), (11, 300)]);
    }
}
