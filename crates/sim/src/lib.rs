//! A simulated NUMA machine: a small operating system, real algorithms as workloads, policies and published
//! studies.
#![forbid(unsafe_code)]

pub mod ace;
pub mod bare;
mod error;
mod matrix;
mod os;
mod program;
mod replay;
mod scheduler;
pub mod studies;
mod turns;
pub mod workloads;

pub use error::{Error, ErrorKind};
pub use matrix::{Cell, Matrix};
pub use os::{
    Costs, LinkReport, PASSES, PINNINGS, POLICIES, Pinning, Policy, Report, Settings, SimMachine, Simulation,
    simulate,
};
pub use program::{Area, Array, Op, Program, Progress, Role, Space, Trace};
pub use replay::Recording;
