//! First touches so far: what is known of processes, apart from the events that tell it.

use super::{FirstTouchReport, News, Touched};
use crate::NamedMapping;
use crate::jit::JitNames;
use crate::sampler::RawSample;
use crate::symbols::Symbols;
use nodewise_engine::{HUGE_PAGE_PAGES, PAGE_BYTES, PageNumber, PageRange, Pid, Tid};
use nodewise_topology::NodeIndex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Ranges that are kept, of all processes together: some 64 MiB.
const MOST_RANGES: usize = 1 << 20;
/// Call chains that are kept, of all processes together.
pub(crate) const MOST_STACKS: usize = 1 << 16;
/// Mappings of code that are kept of a process.
const MOST_MODULES: usize = 1 << 12;

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
    /// Processes that are gone, whose numbers are given again.
    ended: BTreeSet<Pid>,
    runs: BTreeMap<Pid, BTreeMap<u64, Run>>,
    /// All together.
    ranges: usize,
    stacks: HashMap<Pid, HashMap<Vec<u64>, u32>>,
    /// Call chains of all processes together.
    stack_count: usize,
    /// The last fault of each thread: the page, and the call chain.
    last: HashMap<Tid, (PageNumber, Vec<u64>)>,
    /// By process; where two overlap the later one holds.
    modules: BTreeMap<Pid, Vec<Module>>,
    /// Once so many processes have modules, those of processes that nobody asks for are forgotten.
    most_with_modules: usize,
    left_out: u64,
}

impl Known {
    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Forked { parent, child } => {
                let had_ended = self.ended.remove(&child);
                if self.followed.contains(&parent) {
                    self.followed.insert(child);
                    self.fork(parent, child);
                } else if had_ended {
                    self.followed.remove(&child);
                }
            }
            // The memory that it had is gone.
            News::Executed(pid) => self.forget(pid),
            News::Exited(pid) => self.exited(pid),
            // Mappings of a program that is not followed yet count as well: it may be in a moment.
            News::Mapped(pid, module) => self.add_module(pid, module),
            News::Fault(fault, mut chain, top) => {
                self.add_callers(&fault, &mut chain, top);
                self.fault(&fault, chain);
            }
        }
    }

    /// A child has its parent's code. An earlier process may have had its number.
    pub(crate) fn fork(&mut self, parent: Pid, child: Pid) {
        self.forget(child);
        let modules = self.modules.get(&parent).cloned().unwrap_or_default();
        self.modules.insert(child, modules);
    }

    /// Code of a process that is gone is only needed to name what touched its memory. Its other threads may
    /// go on without the first one, so that it stays followed.
    fn exited(&mut self, pid: Pid) {
        if self.followed.contains(&pid) {
            self.ended.insert(pid);
        }
        if !self.stacks.contains_key(&pid) {
            self.modules.remove(&pid);
        }
    }

    pub(crate) fn add_module(&mut self, pid: Pid, module: Module) {
        if self.modules.len() >= self.most_with_modules {
            let Self { modules, followed, stacks, .. } = self;
            modules.retain(|pid, _| followed.contains(pid) || stacks.contains_key(pid));
            self.most_with_modules = (2 * modules.len()).max(MOST_MODULES);
        }
        let modules = self.modules.entry(pid).or_default();
        if modules.len() < MOST_MODULES {
            modules.push(module);
        }
    }

    /// Completes a fault's call chain by the word on top of the stack.
    ///
    /// The kernel marks the stack's pages for hint faults as well, and cannot read them until the thread has
    /// come back to them. A function that brings much memory in without them, as `memset` does, has the
    /// callers that it had a page before.
    fn add_callers(&mut self, fault: &RawSample, chain: &mut Vec<u64>, top: Option<u64>) {
        let page = fault.address.page();
        match self.last.get(&fault.tid) {
            Some((before, last))
                if top.is_none()
                    && chain.len() == 1
                    && chain.first() == last.first()
                    && (before.0..=before.0 + HUGE_PAGE_PAGES).contains(&page.0) =>
            {
                chain.clone_from(last);
            }
            _ => self.add_caller(fault.pid, chain, top),
        }
        if self.last.len() >= MOST_STACKS {
            self.last.clear();
        }
        self.last.insert(fault.tid, (page, chain.clone()));
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

    /// Whether the first touch of a page is known.
    pub(crate) fn has(&self, pid: Pid, page: PageNumber) -> bool {
        let before = self.runs.get(&pid).and_then(|runs| runs.range(..=page.0).next_back());
        before.is_some_and(|(_, run)| page.0 < run.end)
    }

    pub(crate) fn fault(&mut self, fault: &RawSample, chain: Vec<u64>) {
        let RawSample { pid, tid, accessor: node, time_ns, .. } = *fault;
        let PageNumber(page) = fault.address.page();
        if !self.followed.contains(&pid) {
            return;
        }
        let stack = self.stack(pid, chain);
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

    /// The number of a call chain, while there is room for another.
    fn stack(&mut self, pid: Pid, chain: Vec<u64>) -> Option<u32> {
        let known = self.stacks.get(&pid).and_then(|stacks| stacks.get(&chain));
        if known.is_some() || self.stack_count == MOST_STACKS {
            return known.copied();
        }
        let stack = self.stack_count as u32;
        self.stacks.entry(pid).or_default().insert(chain, stack);
        self.stack_count += 1;
        Some(stack)
    }

    pub(super) fn retain(&mut self, pid: Pid, mappings: &[NamedMapping], read_after_ns: u64) {
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
        let mut stacks = vec![Vec::new(); self.stack_count];
        let chains =
            self.stacks.iter().flat_map(|(pid, chains)| chains.iter().map(move |chain| (pid, chain)));
        for (pid, (chain, stack)) in chains {
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
pub(super) mod tests {
    use super::*;
    use crate::in_order::InOrder;
    use nodewise_sys::perf::Record;
    use nodewise_sys::perf::TaskChange;

    const A: Pid = Pid(10);

    fn touched(known: Known) -> Vec<(u32, PageRange, u8, Option<u32>)> {
        let all = known.report().touched;
        all.iter().map(|t| (t.pid.0, t.range, t.node.0, t.stack)).collect()
    }

    pub(in crate::first_touch) fn at(pid: Pid, page: u64, node: u8, time_ns: u64) -> RawSample {
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

    /// A program's code at 0x1000, and libc's at 0x7000.
    fn with_modules() -> Known {
        let mut known = Known::default();
        for (range, path) in [(0x1000..0x2000, "/bin/solver"), (0x7000..0x8000, "/lib/libc.so.6")] {
            known.add_module(A, Module { range, offset: 0, path: path.into() });
        }
        known
    }

    #[test]
    fn the_caller_of_a_library_is_on_the_stack() {
        let known = with_modules();
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
    fn a_stack_that_is_marked_itself_is_as_it_was_a_page_before() {
        let mut known = with_modules();
        let mut chain_of = |page, tid, code, top| {
            let mut chain = vec![code];
            known.add_callers(&RawSample { tid: Tid(tid), ..at(A, page, 0, 0) }, &mut chain, top);
            chain
        };
        let whole = vec![0x7100, 0x1200];
        assert_eq!(chain_of(100, 10, 0x7100, None), [0x7100], "never read");
        assert_eq!(chain_of(101, 10, 0x7100, Some(0x1200)), whole);
        assert_eq!(chain_of(102, 10, 0x7100, None), whole);
        assert_eq!(chain_of(103, 11, 0x7100, None), [0x7100], "another thread");
        assert_eq!(chain_of(103, 10, 0x7100, None), whole);
        assert_eq!(chain_of(104, 10, 0x7200, None), [0x7200], "other code");
        assert_eq!(chain_of(105, 10, 0x7100, Some(0x1200)), whole);
        assert_eq!(chain_of(5000, 10, 0x7100, None), [0x7100], "other memory");
    }

    #[test]
    fn children_are_followed_and_memory_that_is_gone_is_forgotten() {
        let mut known = Known::default();
        known.followed.insert(A);
        let module = Module { range: 0x1000..0x2000, offset: 0, path: "/bin/none".into() };
        known.add_module(A, module);
        known.take(forked(10, 11));
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
        known.take(News::of(&Record::Comm { pid: 11, tid: 11, exec: true, name: b"other" }).unwrap());
        known.fault(&at(Pid(11), 400, 0, 400), vec![0x1234]);
        assert_eq!(known.ranges, 3);
        assert_eq!(first_pages(known), [(A.0, 100), (A.0, 300), (11, 400)]);
    }

    #[test]
    fn of_a_process_that_is_gone_stays_what_it_touched() {
        let mut known = Known::default();
        known.followed.insert(A);
        let code = Module { range: 0x1000..0x2000, offset: 0, path: "//anon".into() };
        known.add_module(A, code);
        for child in 11..10_000 {
            known.take(forked(10, child));
            if child == 11 {
                known.fault(&at(Pid(11), 100, 0, 1), vec![0x1234]);
            }
            known.take(ended(child));
        }
        assert_eq!(known.modules.keys().copied().collect::<Vec<_>>(), [A, Pid(11)]);

        known.take(forked(10, 12));
        known.fault(&at(Pid(12), 200, 0, 2), vec![0x1234]);
        known.take(ended(12));
        known.take(forked(10, 12));
        known.fault(&at(Pid(12), 300, 0, 3), vec![0x1234]);
        assert_eq!(known.ranges, 2);
        // A stranger's.
        known.take(forked(1, 11));
        known.fault(&at(Pid(11), 400, 0, 4), vec![0x1234]);
        assert_eq!(first_pages(known), [(11, 100), (12, 300)], "the number belongs to another one");
    }

    #[test]
    fn code_of_strangers_is_forgotten() {
        let mut known = Known::default();
        known.followed.insert(A);
        for pid in 10..100_000 {
            known.add_module(Pid(pid), Module { range: 0x1000..0x2000, offset: 0, path: "/bin/none".into() });
        }
        assert!(known.modules.len() <= MOST_MODULES && known.modules.contains_key(&A));
    }

    fn ended(pid: i32) -> News {
        let mut task = TaskChange::default();
        (task.pid, task.tid) = (pid, pid);
        News::of(&Record::Exit(task)).unwrap()
    }

    fn forked(parent: i32, child: i32) -> News {
        let mut task = TaskChange::default();
        (task.pid, task.parent_pid) = (child, parent);
        News::of(&Record::Fork(task)).unwrap()
    }

    fn first_pages(known: Known) -> Vec<(u32, u64)> {
        touched(known).iter().map(|(pid, range, ..)| (*pid, range.start.0)).collect()
    }

    #[test]
    fn what_rings_tell_out_of_order_is_taken_in_order() {
        let (mut known, mut pending) = (Known::default(), InOrder::default());
        known.followed.insert(A);
        let fault = |pid, page, time_ns| News::Fault(at(Pid(pid), page, 0, time_ns), vec![0x1234], None);
        let module = |pid| {
            News::Mapped(Pid(pid), Module { range: 0x1000..0x2000, offset: 0, path: "/bin/none".into() })
        };
        // One ring has the grandchild, the next has its parent, and the last an exec between two touches.
        pending.add(30, forked(11, 12));
        pending.add(50, fault(12, 200, 50));
        pending.add(20, forked(10, 11));
        pending.add(31, fault(12, 100, 31));
        pending.add(10, module(10));
        pending.add(40, News::Executed(Pid(12)));
        // News of the next child, whose own ring was read too early.
        pending.add(61, fault(13, 300, 61));
        pending.until(55).for_each(|news| known.take(news));
        assert_eq!(known.modules[&Pid(12)].len(), 1, "a grandchild has the code, too");
        pending.add(60, forked(10, 13));
        pending.until(u64::MAX).for_each(|news| known.take(news));
        assert_eq!(first_pages(known), [(12, 200), (13, 300)]);
    }
}
