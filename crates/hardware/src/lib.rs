//! Caches, memory controllers and links as queues: the machine under the simulator.
//!
//! Time is in picoseconds. Nodes, cores and links are dense indices.
#![deny(unsafe_code)]

mod banks;
mod cache;
mod counters;
mod directory;
mod error;
mod fabric;
mod hardware;
mod host;
mod link;
mod llc;
mod preset;
mod queue;
mod route;

pub use counters::{Counters, Load};
pub use error::{Error, ErrorKind};
pub use hardware::{Access, Hardware, Source, Touch};
pub use link::Link;
pub use preset::{
    Cache, Controller, Core, CpuNumbering, MOST_CORES_A_NODE, MOST_LLCS, MOST_NODES, Node, Preset, Uncached,
};
