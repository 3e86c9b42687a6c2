//! Counters and samples in, placement decisions out.
//!
//! The engine does no I/O, reads no clock and names no operating system: a [`Machine`], live or simulated, is its only
//! window. Same observations and same seed give the same decisions.
#![forbid(unsafe_code)]

mod counters;
mod decision;
mod machine;
mod memory;
mod sample;

pub use counters::{Counters, Measure, TrafficMatrix};
pub use decision::{Action, Decision, Figures, Interleaving, Outcome, PageTarget, Reason};
pub use machine::{Machine, Mapping, MappingKind, Observation, ProcessState, SamplingRate};
pub use memory::{HUGE_PAGE_PAGES, PAGE_BYTES, PageNumber, PageRange, Pid, Tid, VirtAddr};
pub use sample::{Access, DataSource, PageSize, Sample};
