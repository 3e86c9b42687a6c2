//! Policies turn what is known into decisions.

mod carrefour;
mod hinted;
mod interleave;
mod interleave_plan;

pub use carrefour::{Carrefour, CarrefourSettings};

use crate::region::RegionMap;
use crate::{Counters, Decision, Hints, History, Metrics, PageRange, Pid, RuleStatus};
use nodewise_topology::{NodeIndex, Topology};

/// Decides what to do about the placement of memory. Deterministic: same views, same decisions.
pub trait Policy {
    /// The name it goes by on the command line.
    fn name(&self) -> &'static str;

    /// Looks at everything known after an interval and decides. Called once an interval.
    fn decide(&mut self, view: &View<'_>) -> Vec<Decision>;

    /// How its rules stood in the last call of [`decide`](Self::decide).
    fn rules(&self) -> Vec<RuleStatus>;

    /// Whether there is anything to sample eagerly for, as of the last call: false while a rule says that
    /// nothing is to be gained.
    fn active(&self) -> bool;

    /// Whether something is known to be wrong, as of the last call, that the samples so far could not mend.
    fn unfinished(&self) -> bool {
        false
    }
}

/// Everything known after an interval.
pub struct View<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The machine's counts.
    pub counters: &'a Counters,
    /// Figures derived from counters and samples.
    pub metrics: &'a Metrics,
    /// The managed processes, by ascending pid.
    pub processes: Vec<ProcessView<'a>>,
    /// Pages that were to be collocated in the interval before were put off by the machine, or are still to
    /// be, since their huge pages were split.
    pub put_off: bool,
    /// Whether the machine makes copies, and does not only report what deserves them.
    pub replicates: bool,
    /// Whether the machine splits huge pages.
    pub splits: bool,
    /// The interval's number.
    pub round: u32,
    /// For pseudo-random choices.
    pub seed: u64,
}

/// A process whose threads may all run on one node only. That is a hint and no evidence: a program may be
/// between two phases, with other threads to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// The node.
    pub to: NodeIndex,
    /// Intervals in a row in which that was so.
    pub intervals: u32,
    /// Looks at its threads in a row that found it so.
    pub looks: u32,
    /// Intervals in all in which its threads could run on several nodes.
    pub roamed: u32,
}

/// A managed process.
#[derive(Clone, Copy)]
pub struct ProcessView<'a> {
    /// The process's id.
    pub pid: Pid,
    /// Its memory.
    pub map: &'a RegionMap,
    /// The history of what was done to it.
    pub history: &'a History,
    /// The program's own hints about it.
    pub hints: &'a Hints,
    /// How much of it is resident, in base pages.
    pub resident_pages: u64,
    /// The one node on which it may run, if it is confined to one.
    pub confined: Option<Confined>,
    /// Memory that it has bound itself, as far as that is known, in address order.
    pub bound: &'a [PageRange],
    /// Memory that is to be interleaved whoever uses it.
    pub to_interleave: &'a [PageRange],
    /// Whether many of its threads go from node to node, again and again.
    pub wanders: bool,
}

impl ProcessView<'_> {
    /// The parts of a range that the process has not bound itself.
    fn unbound(&self, range: PageRange) -> Vec<PageRange> {
        let first = self.bound.partition_point(|bound| bound.end <= range.start);
        range.without(self.bound[first..].iter().copied().take_while(|bound| bound.start < range.end))
    }
}
