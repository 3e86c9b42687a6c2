//! The operating system under a simulated program: page table, placement, migration and what they cost.

mod ace_pages;
mod autonuma27;
mod balancing;
mod by_hand;
#[cfg(test)]
mod charges;
mod clockwork;
mod costs;
mod exchange;
mod hint_faults;
mod machine;
mod manage;
mod memory;
mod oracle;
mod pinning;
mod policy;
mod report;
mod sampler;
mod scan;
mod sharing;
mod simulation;
mod task;
mod task_placement;

pub use costs::Costs;
pub use machine::SimMachine;
pub use oracle::{candidates, oracle, simulate};
pub use pinning::{PINNINGS, Pinning};
pub use policy::{POLICIES, Policy};
pub use report::{LinkReport, Report};
pub(crate) use simulation::Watched;
pub use simulation::{PASSES, Settings, Simulation};
