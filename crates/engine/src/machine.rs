//! The engine's only window on the world.

use crate::{Counters, Decision, Hinted, Outcome, PageRange, Pid, Sample};
use nodewise_topology::{NodeIndex, Topology};
use serde::{Deserialize, Serialize};

/// A machine with nodes whose processes can be watched and whose pages can be moved: Linux or the simulator.
pub trait Machine {
    /// An error of the machine as a whole. A process that is gone is not an error but an outcome.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The nodes. Fixed while the machine is managed.
    fn topology(&self) -> &Topology;

    /// Ends the interval and hands over what was seen in it. Does not wait: the caller paces the intervals.
    fn observe(&mut self) -> Result<Observation, Self::Error>;

    /// Carries out decisions; one outcome for each, in the same order.
    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Self::Error>;

    /// Whether [`crate::Action::Replicate`] makes copies. If it does not, the decision is only reported, and
    /// policies interleave what several nodes read.
    fn replicates(&self) -> bool {
        false
    }

    /// Whether it carries out [`crate::Action::Split`] and [`crate::Action::Collapse`]. Where it does not,
    /// they are never decided.
    fn splits(&self) -> bool {
        false
    }

    /// Asks for more or fewer samples from now on.
    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Self::Error>;
}

impl<M: Machine + ?Sized> Machine for &mut M {
    type Error = M::Error;

    fn topology(&self) -> &Topology {
        (**self).topology()
    }

    fn observe(&mut self) -> Result<Observation, Self::Error> {
        (**self).observe()
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Self::Error> {
        (**self).apply(decisions)
    }

    fn replicates(&self) -> bool {
        (**self).replicates()
    }

    fn splits(&self) -> bool {
        (**self).splits()
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Self::Error> {
        (**self).set_sampling(rate)
    }
}

/// How eagerly to sample. Carrefour's two modes (module source: IBS every 65 528 or every 262 112 cycles).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingRate {
    /// While there is little to do.
    Cheap,
    /// While pages are being placed.
    Accurate,
    /// Not at all, or at least cheaply: while pages are interleaved and when they have been, where every
    /// sample may undo it.
    Paused,
}

/// The events of one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// When the interval ended, in nanoseconds of the machine's clock.
    pub end_ns: u64,
    /// How long it was.
    pub duration_ns: u64,
    /// Counters of the interval.
    pub counters: Counters,
    /// Samples of managed processes, in any order.
    pub samples: Vec<Sample>,
    /// Samples that were taken but lost on the way (ring overruns, throttling).
    pub samples_lost: u64,
    /// The managed processes that are alive. One that is no longer listed has ended (or replaced its memory
    /// by exec, in which case it is listed with `fresh` set).
    pub processes: Vec<ProcessState>,
}

/// A managed process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The process's id.
    pub pid: Pid,
    /// First seen in this interval, or executed another program in it: forget what was known.
    pub fresh: bool,
    /// Resident memory, in base pages.
    pub resident_pages: u64,
    /// The one node on whose CPUs alone all of its threads may run, if that is so: whoever uses its memory
    /// is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confined: Option<NodeIndex>,
    /// Whether its threads were asked in this interval where they may run, so that `confined` is no older
    /// answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// Ranges, in address order, whose memory it has bound itself, as far as that is known. It is left where
    /// it is, whatever samples say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bound: Vec<PageRange>,
    /// Ranges, in address order, that are to be interleaved whoever uses them: the user said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_interleave: Vec<PageRange>,
    /// Its mappings in address order; none when they were not read again (the last ones still hold).
    pub mappings: Option<Vec<Mapping>>,
    /// The program's hints about its memory; none when they are as before. The later of two hints that
    /// overlap holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<Vec<Hinted>>,
    /// The pages that were not moved, in ranges that were to be interleaved; none where the machine keeps no
    /// account of that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmoved: Vec<Unmoved>,
}

/// Pages of a range that decisions may move, as shares of all of its present pages by home node. They were
/// never moved before, or long ago. Samples would not do: where they are hint faults, the kernel moves the
/// pages that are sampled, and only these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unmoved {
    /// Where.
    pub range: PageRange,
    /// All such pages.
    pub all: Vec<f32>,
    /// The pages beyond the band of the last decision.
    pub waiting: Vec<f32>,
}

/// A range of a process's address space with one nature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Where.
    pub range: PageRange,
    /// Whether the process may write to it.
    pub writable: bool,
    /// The memory's backing.
    pub kind: MappingKind,
}

/// The backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingKind {
    /// Private anonymous memory: heap, stacks, `mmap`.
    Anonymous,
    /// Memory shared between processes (shmem, memfd, `/dev/zero`).
    Shared,
    /// A file, or program text.
    File,
}
