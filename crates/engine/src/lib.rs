//! Counters and samples in, placement decisions out.
//!
//! The engine does no I/O, reads no clock and names no operating system: a [`Machine`], live or simulated, is
//! its only window. Same observations and same seed give the same decisions.
#![forbid(unsafe_code)]

pub mod conformance;
mod counters;
mod decision;
mod eagerness;
mod engine;
mod hint;
mod history;
mod machine;
mod memory;
mod metrics;
mod policy;
pub mod recording;
mod region;
mod round;
mod sample;

pub use counters::{Counters, Measure, TrafficMatrix};
pub use decision::{Action, Decision, Figures, Interleaving, Outcome, PageTarget, Reason};
pub use eagerness::EagernessSettings;
pub use engine::{Engine, EngineSettings};
pub use hint::{Hint, Hinted, Hints};
pub use history::{History, PatienceSettings, Spread};
pub use machine::{Machine, Mapping, MappingKind, Observation, ProcessState, SamplingRate, Unmoved};
pub use memory::{HUGE_PAGE_PAGES, PAGE_BYTES, PageNumber, PageRange, Pid, Tid, VirtAddr};
pub use metrics::imbalance_percent;
pub use policy::{Carrefour, CarrefourSettings, Policy, ProcessView, View};
pub use region::{Evidence, FalseSharing, Part, RangeMap, Region, RegionMap, RegionSettings};
pub use round::{Finding, Footprint, Metrics, Round, RuleStatus, Standing};
pub use sample::{Access, DataSource, PageSize, Sample};
