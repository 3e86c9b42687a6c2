//! Samplers, which tell who accesses which page, best first.

mod cpu_clock_event;
mod cpus;
mod files;
pub mod hardware;
pub mod hint_faults;
pub mod model;
mod page_fault_event;
mod streams;
mod switches;

pub(crate) use cpu_clock_event::{CpuClockEvents, Time};
pub(crate) use files::RINGS_BYTES;
pub(crate) use page_fault_event::{MIGRATION_NS, PageFaultEvents, Seen, Source};

#[cfg(fuzzing)]
pub use page_fault_event::fields_of_format;

use crate::Error;
use nodewise_engine::{Access, Counters, DataSource, PageSize, Pid, Sample, SamplingRate, Tid, VirtAddr};
use nodewise_sys::perf::Losses;
use nodewise_topology::NodeIndex;
use serde::Serialize;
use std::time::Duration;

/// One access to memory, as a sampler saw it. [`Homes`](crate::homes::Homes) finds out where its page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// When, in nanoseconds of the machine's clock.
    pub time_ns: u64,
    /// Which byte.
    pub address: VirtAddr,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// The node of the CPU that made the access.
    pub accessor: NodeIndex,
    /// Read or write.
    pub access: Access,
    /// The server of the access.
    pub source: DataSource,
    /// From issue to completion, in core cycles; 0 when not known.
    pub latency_cycles: u32,
    /// How many accesses this sample stands for; at least 1.
    pub weight: u32,
}

impl RawSample {
    /// The engine's sample, once the page's home and size have been looked up.
    pub(crate) const fn located(&self, home: Option<NodeIndex>, page_size: PageSize) -> Sample {
        Sample {
            time_ns: self.time_ns,
            address: self.address,
            pid: self.pid,
            tid: self.tid,
            accessor: self.accessor,
            home,
            access: self.access,
            source: self.source,
            page_size,
            latency_cycles: self.latency_cycles,
            weight: self.weight,
        }
    }
}

/// The result of an interval's sampling.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// How long it was.
    pub duration: Duration,
    /// Samples of managed processes.
    pub samples: u64,
    /// Resident pages of the largest of these.
    pub largest_pages: u64,
    /// Writable mappings of that process, where they are known.
    pub writable_mappings: Option<u64>,
    /// The number of the kernel's present scan of that process, where it is known (`mm->numa_scan_seq`).
    pub scan_sequence: Option<(Pid, u64)>,
    /// Pages that the kernel's balancing moved, machine-wide.
    pub moved_by_kernel: u64,
}

/// The machine's own counts since a sampler was opened. Lists are in the order of the nodes, or of the
/// machine's links.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted {
    /// DRAM accesses in a microsecond, of the machine at its own speed.
    pub accesses_per_us: f64,
    /// Share of DRAM accesses from the page's own node, in percent; none without accesses.
    pub local_access_percent: Option<f64>,
    /// Standard deviation (n-1) of the accesses to each controller over their mean, in percent.
    pub controller_imbalance_percent: Option<f64>,
    /// Share of reads among DRAM accesses, in percent; none without accesses.
    pub read_percent: Option<f64>,
    /// Mean latency of DRAM accesses, in core cycles.
    pub dram_latency_cycles: f64,
    /// Share of the time in which each controller was busy, in percent.
    pub controller_use_percent: Vec<f64>,
    /// Share of the time in which each link was busy, in percent.
    pub link_use_percent: Vec<f64>,
    /// DRAM accesses, a row for each accessor node and a column for each home node.
    pub traffic: Vec<Vec<u64>>,
}

/// A source of samples of user-mode accesses to memory.
pub trait Sampler {
    /// The sampler's name in summaries and on the command line.
    fn name(&self) -> &'static str;

    /// One line about how it samples: events, settings changed, what it cannot tell.
    fn description(&self) -> String;

    /// Whether samples stand for accesses in proportion to their number. Hint faults do not: a page gives one
    /// a scan, however often it is used.
    fn is_proportional(&self) -> bool;

    /// Takes all samples so far of the processes that `keep` names, in any order.
    fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<RawSample>);

    /// Hears which processes are managed, now and then; samplers that watch every CPU need not care.
    fn follow(&mut self, _pids: &mut dyn Iterator<Item = Pid>) {}

    /// How long its rings last: within that time, they are to be drained.
    fn drain_at_least_every(&self) -> Duration {
        Duration::MAX
    }

    /// Whether threads were left out since there were more than there is room for.
    fn is_full(&self) -> bool {
        false
    }

    /// The losses so far.
    fn losses(&self) -> Losses;

    /// From now on samples more or less eagerly.
    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error>;

    /// Hears at the end of each interval what it gave.
    fn adapt(&mut self, _interval: &Interval) -> Result<(), Error> {
        Ok(())
    }

    /// Fills in the figures of an interval that the machine itself counts, where there are such.
    fn count(&mut self, _duration_ns: u64, _into: &mut Counters) {}

    /// The machine's counts since the sampler was opened, where there are such.
    fn counted(&self) -> Option<Counted> {
        None
    }

    /// How long it takes, at the present rate, until every page in use has had its chance of a sample.
    fn pass(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the kernel still goes by another rate than the sampler's, so that there may be no samples for
    /// minutes.
    fn lags(&self) -> bool {
        false
    }

    /// Whether there are no samples on purpose, until another rate is set.
    fn is_paused(&self) -> bool {
        false
    }

    /// Stops and puts every kernel setting back.
    fn close(&mut self) -> Result<(), Error>;
}
