//! The file of a profile: a line of JSON each. The first is the [`Head`], the last the [`Tail`], and between
//! them is an [`Interval`] for each time that was watched. docs/profile.md describes it for other programs.

use crate::commands::costs::Machine;
use nodewise_engine::recording::Interval;
use nodewise_engine::{PageRange, Pid, Tid};
use nodewise_linux::allocations::AllocationReport;
use nodewise_linux::first_touch::FirstTouchReport;
use nodewise_linux::kernel_time::KernelShares;
use nodewise_linux::{UnseenFiles, Variable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format. A reader refuses any other.
pub const VERSION: u32 = 1;

/// Everything that is known before the first interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    /// [`VERSION`]. A file without it is no profile.
    pub nodewise_profile: u32,
    /// The program and its arguments; none where that is not known.
    pub command: Option<Vec<String>>,
    /// The process, if it ran already.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Seconds since 1970 when it began.
    pub began_unix_s: u64,
    /// The numbers of the nodes: all else counts them from 0, in this order.
    pub nodes: Vec<u32>,
    /// Whether each has CPUs and memory; empty where that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub balanced: Vec<bool>,
    #[serde(flatten)]
    pub machine: Machine,
    /// The origin of its figures.
    pub ratios_by: String,
}

impl Head {
    /// Whether each node has CPUs and memory, as far as is known.
    pub fn balanced(&self) -> Vec<bool> {
        (0..self.nodes.len()).map(|node| self.balanced.get(node).copied().unwrap_or(true)).collect()
    }
}

/// A mapping that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    pub pid: Pid,
    pub range: PageRange,
    /// A file's path, or `[heap]` and the like.
    pub text: String,
}

/// Everything that is known at the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tail {
    /// The time for which it was watched.
    pub seconds: f64,
    pub names: Vec<Name>,
    /// Static memory of processes that had samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Variable>,
    pub first_touch: FirstTouchReport,
    /// Samples that there was no room for in the file.
    pub samples_left_out: u64,
    /// How many CPUs it used on average; 0 where that is not known.
    #[serde(default)]
    pub cpus: f64,
    /// The time that the kernel took; none where that could not be watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelShares>,
    /// Events of the kernel, most of them machine-wide.
    #[serde(default)]
    pub events: BTreeMap<String, f64>,
    /// The names of threads that had samples.
    #[serde(default)]
    pub threads: BTreeMap<Tid, String>,
    /// The blocks that the program asked for; none without `--allocations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<AllocationReport>,
    /// Files that gave no samples, as hint faults do not tell of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen_files: Option<UnseenFiles>,
}

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Head(Box<Head>),
    Interval(Box<Interval>),
    Tail(Box<Tail>),
}
