//! Nodes, CPUs, caches, distances and devices of a machine, read from a live or captured sysfs tree.
#![forbid(unsafe_code)]

mod ids;

pub use ids::{CpuId, NodeId, NodeIndex};
