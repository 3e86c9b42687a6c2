//! The operating system under a simulated program: page table, placement, migration and what they cost.

mod engine_port;
mod kernel;
mod manual;
mod policies;
mod policy;
mod run;
#[cfg(test)]
mod tests;

pub use kernel::costs::Costs;
pub use kernel::machine::SimMachine;
pub use policy::{POLICIES, Policy};
pub use run::oracle::{candidates, oracle};
pub use run::pinning::{PINNINGS, Pinning};
pub use run::report::{LinkReport, Report};
pub use run::settings::{PASSES, Settings};
pub use run::simulate;
pub use run::simulation::Simulation;
pub(crate) use run::simulation::Watched;
