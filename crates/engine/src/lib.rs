//! Counters and samples in, placement decisions out.
//!
//! The engine does no I/O, reads no clock and names no operating system: a [`Machine`], live or simulated, is
//! its only window. The same observations and the same seed give the same decisions.
//!
//! # By task
//!
//! - **Manage a machine of your own.** Implement [`Machine`], and call [`Engine::step`] once an interval.
//!   `examples/own_machine.rs` is a whole one, in a hundred lines.
//! - **Test it.** [`conformance::check`] holds it to everything that the engine relies on.
//! - **Read an outcome.** [`Round`] has the decisions with their [`Outcome`]s, the [`Metrics`], and the state
//!   of each rule.
//! - **Write a policy.** Implement [`Policy`], which turns a [`View`] into [`Decision`]s (below).
//! - **Tune one.** [`CarrefourSettings`] has the thresholds of [`Carrefour`], [`EngineSettings`] the rest.
//! - **Record a run, and play it again.** [`recording::Recorder`] lies around a machine, and
//!   [`recording::play`] tells whether an engine still decides the same.
//!
//! A policy that looks and moves nothing:
//!
//! ```
//! use nodewise_engine::{Decision, Engine, EngineSettings, Policy, RuleStatus, View};
//! use nodewise_topology::Topology;
//!
//! struct Watch;
//!
//! impl Policy for Watch {
//!     fn name(&self) -> &'static str {
//!         "watch"
//!     }
//!     fn decide(&mut self, view: &View<'_>) -> Vec<Decision> {
//!         for process in &view.processes {
//!             println!("{:?}: {} regions", process.pid, process.map.regions().len());
//!         }
//!         Vec::new()
//!     }
//!     fn rules(&self) -> Vec<RuleStatus> {
//!         Vec::new()
//!     }
//!     fn active(&self) -> bool {
//!         true
//!     }
//! }
//!
//! let machine = Topology::synthetic(2, 4, 1 << 30);
//! let engine = Engine::new(&machine, Box::new(Watch), EngineSettings::default());
//! assert_eq!(engine.policy(), "watch");
//! ```
#![forbid(unsafe_code)]

pub mod conformance;
mod counters;
mod decision;
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
mod sampling_schedule;
mod stale_loads;
mod wandering;

pub use counters::{Counters, Measure, TrafficMatrix};
pub use decision::{Action, Decision, Figures, Interleaving, Outcome, PageTarget, Reason};
pub use engine::{Engine, EngineSettings};
pub use hint::{Hint, Hinted, Hints};
pub use history::{History, InterleaveProgress, PatienceSettings};
pub use machine::{Machine, Mapping, MappingKind, Observation, ProcessState, SamplingRate, Unmoved};
pub use memory::{HUGE_PAGE_PAGES, PAGE_BYTES, PageNumber, PageRange, Pid, Tid, VirtAddr};
pub use metrics::imbalance_percent;
pub use policy::{Carrefour, CarrefourSettings, Policy, ProcessView, View};
pub use region::{Evidence, FalseSharing, Part, RangeMap, Region, RegionMap, RegionSettings};
pub use round::{Finding, Footprint, Metrics, Provenance, Round, RuleStatus};
pub use sample::{Access, DataSource, PageSize, Sample};
pub use sampling_schedule::SamplingScheduleSettings;
