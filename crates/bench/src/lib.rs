//! Programs whose access pattern is known, to see what a placement policy makes of them.
#![forbid(unsafe_code)]

pub mod follow;
pub use nodewise_verdict::paired;
pub mod pattern;
pub mod programs;
pub mod report;
pub mod results;
pub mod scenario;
pub mod table;

use nodewise_sys::{AffinityMask, Mapping, sched_setaffinity};
use nodewise_topology::{Node, Topology};
use std::sync::atomic::Ordering;

/// Pins the calling thread to the CPUs of node `n` of those that have any; the last one for larger numbers.
pub fn pin_to_node(topology: &Topology, n: usize) -> anyhow::Result<()> {
    let with_cpus: Vec<_> = topology.nodes().iter().filter(|node| !node.cpus.is_empty()).collect();
    with_cpus.get(n).or(with_cpus.last()).map_or(Ok(()), |node| pin_to(node))
}

/// Pins the calling thread to the CPUs of a node.
pub fn pin_to(node: &Node) -> anyhow::Result<()> {
    let cpus: AffinityMask = node.cpus.iter().map(|cpu| cpu.0).collect();
    Ok(sched_setaffinity(0, &cpus)?)
}

/// Writes to every page.
pub fn first_touch(memory: &Mapping) {
    memory.as_atomics().iter().step_by(512).for_each(|word| word.store(1, Ordering::Relaxed));
}
