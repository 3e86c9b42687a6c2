//! The live machine: samplers, the mover, processes, kernel settings, and the [`LinuxMachine`] made of them.
#![forbid(unsafe_code)]
// These panic where nothing can be written, and nothing that only reports may stop a program.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bounds;
mod error;
mod hints;
mod huge;
pub mod kernel;
mod known_homes;
mod machine;
mod maps;
pub mod mover;
mod pace;
pub mod placement;
pub mod probe;
pub mod process;
mod resize;
pub mod sampler;
pub mod settings;
mod shared;

pub use bounds::Bound;
pub use error::{Error, ErrorKind};
pub use machine::{LinuxMachine, MachineSettings, Survey, Totals, require_nodes};
