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

mod known;

pub(crate) use known::{Known, MOST_STACKS, Module};

use crate::in_order::InOrder;
use crate::sampler::{MIGRATION_NS, PageFaultEvents, RawSample, Seen, Source};
use crate::symbols::Frame;
use crate::{Error, NamedMapping};
use nodewise_engine::{PAGE_BYTES, PageRange, Pid, Tid};
use nodewise_sys::perf::{CallChain, Record};
use nodewise_sys::{Clock, clock_ns};
use nodewise_topology::{NodeIndex, Topology};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Callers of a call chain.
pub(crate) const CALLERS: u16 = 16;

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
    pending: InOrder<News>,
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
        let (pending, hints, known) = (InOrder::default(), HintFaults::default(), Known::default());
        Ok(Self { events, pending, hints, known })
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
        let begin = clock_ns(Clock::Monotonic).unwrap_or(u64::MAX);
        self.read();
        self.take(begin);
    }

    fn read(&mut self) {
        let Self { events, pending, hints, .. } = self;
        events.read(&|_| true, |seen| match seen {
            Seen::Fault(fault, sample) => {
                if let Some(bytes) = sample.data_page_bytes.filter(|&bytes| bytes > 0) {
                    hints.add(&fault, bytes);
                } else if sample.data_page_bytes.is_some() {
                    let chain: Vec<u64> = sample.call_chain.iter().flat_map(CallChain::user).collect();
                    let top = sample.user_stack.and_then(|top| top.try_into().ok().map(u64::from_ne_bytes));
                    pending.add(fault.time_ns, News::Fault(fault, chain, top));
                }
            }
            Seen::Other(record, time_ns) => {
                if let Some(news) = News::of(record) {
                    pending.add(time_ns.unwrap_or(0), news);
                }
            }
        });
        hints.sort();
    }

    /// Takes in what has happened until then.
    fn take(&mut self, until_ns: u64) {
        let Self { pending, hints, known, .. } = self;
        for news in pending.until(until_ns) {
            match news {
                News::Fault(fault, ..) if hints.has_before(&fault) => {}
                news => known.take(news),
            }
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
        self.read();
        self.take(u64::MAX);
        FirstTouchReport { lost: self.events.lost(), ..self.known.report() }
    }
}

/// Something that happened to a process.
#[derive(Debug)]
enum News {
    Forked {
        parent: Pid,
        child: Pid,
    },
    Executed(Pid),
    Exited(Pid),
    Mapped(Pid, Module),
    /// With the call chain and the word on top of the stack.
    Fault(RawSample, Vec<u64>, Option<u64>),
}

impl News {
    fn of(record: &Record<'_>) -> Option<Self> {
        match *record {
            Record::Fork(task) if task.pid != task.parent_pid => {
                let (parent, child) = (Pid(task.parent_pid as u32), Pid(task.pid as u32));
                Some(Self::Forked { parent, child })
            }
            Record::Comm { pid, exec: true, .. } => Some(Self::Executed(Pid(pid as u32))),
            Record::Exit(task) if task.pid == task.tid => Some(Self::Exited(Pid(task.pid as u32))),
            Record::Mmap { pid, address, bytes, offset, name, .. } => {
                let range = address..address.saturating_add(bytes);
                let path = OsStr::from_bytes(name).into();
                Some(Self::Mapped(Pid(pid as u32), Module { range, offset, path }))
            }
            _ => None,
        }
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

#[cfg(test)]
mod tests {
    use super::known::tests::at;
    use super::*;

    const A: Pid = Pid(10);

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

    /// Twice as many pages as the largest ring holds faults.
    #[test]
    fn faults_that_a_ring_had_no_room_for_are_counted() {
        use nodewise_sys::{Advice, Mapping, MappingOptions};
        const PAGES: usize = 1 << 16;
        let topology = Topology::live().unwrap();
        let lost = |drains: bool| {
            let mut touches = match FirstTouches::open(&topology) {
                Err(error) if error.kind() == crate::ErrorKind::NotPermitted => return None,
                opened => opened.unwrap(),
            };
            touches.follow(Pid(std::process::id()));
            let memory = Mapping::new(PAGES * 4096, MappingOptions::default()).unwrap();
            memory.advise(0..memory.bytes(), Advice::NoHugePage).unwrap();
            for (page, word) in memory.as_atomics().iter().step_by(512).enumerate() {
                word.store(1, std::sync::atomic::Ordering::Relaxed);
                if drains && page % 1024 == 0 {
                    touches.drain();
                }
            }
            Some(touches.finish().lost)
        };
        let Some(undrained) = lost(false) else { return };
        let drained = lost(true).unwrap();
        assert!(undrained > 1000 && drained < undrained / 10, "{undrained}, {drained}");
    }
}
