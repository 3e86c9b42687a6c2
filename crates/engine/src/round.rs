//! The results of one interval: metrics, rules, decisions, outcomes.

use crate::region::Part;
use crate::{Decision, Measure, Outcome, PageNumber, Pid, SamplingRate};
use serde::{Deserialize, Serialize};

/// One interval, from observation to outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Counts from 0.
    pub number: u32,
    /// When the interval ended, in nanoseconds of the machine's clock.
    pub end_ns: u64,
    /// How long it was.
    pub duration_ns: u64,
    /// Samples of managed processes.
    pub samples: u64,
    /// Samples lost on the way.
    pub samples_lost: u64,
    /// Samples outside the mappings that were known.
    pub samples_outside: u64,
    /// The figures the rules look at.
    pub metrics: Metrics,
    /// The policy's rules and whether they were on.
    pub rules: Vec<RuleStatus>,
    /// The decisions and their outcomes.
    pub decisions: Vec<(Decision, Outcome)>,
    /// The new findings that cannot be helped by moving pages.
    pub findings: Vec<Finding>,
    /// How eagerly the machine was told to sample next.
    pub sampling: SamplingRate,
    /// Regions and page records kept, and their bytes.
    pub footprint: Footprint,
}

/// The size of what the engine keeps in mind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Regions of all processes.
    pub regions: u64,
    /// Pages with a record of their own.
    pub tracked_pages: u64,
    /// How often, ever, a sampled page found no room for a record.
    pub pages_dropped: u64,
    /// How many regions, and records of what was done where, were forgotten for want of room.
    pub ranges_dropped: u64,
    /// Bytes of heap for regions and records.
    pub heap_bytes: u64,
}

/// The figures the rules look at, machine-wide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// DRAM accesses in a microsecond; as proxy, hint faults in a second.
    pub access_rate: Measure<f64>,
    /// Local access ratio, in percent.
    pub local_access_percent: Measure<f64>,
    /// Accesses each node's controller serves; as estimate, in samples.
    pub controller_loads: Measure<Vec<f64>>,
    /// Sample standard deviation (n-1) of the controllers' loads over their mean, in percent.
    pub controller_imbalance_percent: Measure<f64>,
    /// By how much the imbalance may be off, in percentage points. Samples may be few (one standard error; 0
    /// when measured), and some may be of before pages were interleaved.
    pub controller_imbalance_error: f64,
    /// Share of accesses that are reads, in percent.
    pub read_percent: Measure<f64>,
    /// Memory in use on all nodes, in percent.
    pub memory_use_percent: f64,
}

/// How a rule stood in an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// The rule's name.
    pub name: String,
    /// How its figure was found.
    #[serde(rename = "standing")]
    pub provenance: Provenance,
    /// The figure; none when the rule is off for want of one.
    pub value: Option<f64>,
    /// The threshold that the figure is held against.
    pub threshold: f64,
    /// Whether the rule was in force.
    pub enabled: bool,
    /// Why it was in force and decided nothing, as far as it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
}

/// How a rule's figure was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
pub enum Provenance {
    /// Counted.
    Measured,
    /// Computed from samples.
    Estimated,
    /// Replaced by another figure: which.
    Proxy(String),
    /// Unknown, so the rule is off: why.
    Off(String),
}

/// Something found that placement alone does not help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "finding")]
pub enum Finding {
    /// Different nodes use different parts of one huge page. It has to be split before its parts can be
    /// placed.
    FalselySharedHugePage {
        /// Whose.
        pid: Pid,
        /// Its first base page.
        page: PageNumber,
        /// The samples that show it, in address order.
        samples: Vec<Part>,
    },
}
