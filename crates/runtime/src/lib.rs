//! NUMA-friendly building blocks: where a thread runs, counters that move no cache line between nodes, and a
//! pool of workers that stay on their nodes.
//!
//! - [`current_node`] and [`current_cpu`]: one load, no system call. [`Allowance`]: what this process may
//!   use, under cpusets, affinity and quotas.
//! - [`NodeCounter`]: added to by all, read by few. [`TaskCounter`]: tasks submitted and done, and a sleeping
//!   waiter.
//! - [`NodePool`]: tasks, scopes, loops, sorting and scanning, on the node where they belong first.
//!   [`PerWorker`]: values that each of its workers has to itself.
//! - [`NodeVec`] and [`ReplicatedVec`]: arrays whose pages lie as a [`Layout`] says; [`NodeArena`]: an
//!   allocator with such memory.
//! - [`hint`]: how memory is used, for the manager or, without one, for the library itself.
//! - [`Replicated`] and [`NodeReplicated`]: a value that all read and few write, with copies on each node;
//!   the second keeps them alike by a log of operations.
//! - [`nodes_near`] and [`bind_thread`]: threads, pools and memory near a device.
//!
//! Nodes and CPUs have the kernel's numbers, as [`NodeId`]s and in [`NodeSet`]s and [`CpuSet`]s; elements of
//! arrays are [`Pod`]. These types are `nodewise-topology`'s and `bytemuck`'s, and here for programs that use
//! no more of those crates. So is [`allocator_api2`], whose `Allocator` a [`NodeArena`] is, as stable Rust
//! has none; a new incompatible version of these is one of this crate:
//!
//! ```
//! use nodewise_runtime::{Layout, NodeId, NodePool, NodeSet, NodeVec, Pod, current_node};
//!
//! fn sum<T: Pod + Into<u64>>(values: &NodeVec<T>) -> u64 {
//!     values.into_iter().map(|&value| value.into()).sum()
//! }
//!
//! let here: NodeId = current_node();
//! let nodes: NodeSet = [here].into_iter().collect();
//! let pool = NodePool::builder().nodes(&nodes).build()?;
//! assert_eq!(pool.nodes().collect::<NodeSet>(), nodes);
//! # if nodewise_runtime::Allowance::of_this_thread()?.nodes().iter().any(|node| node.id == here && node.memory) {
//! let mut ages = NodeVec::<u8>::new(1000, Layout::On(here))?;
//! for age in &mut ages {
//!     *age += 1;
//! }
//! assert_eq!(sum(&ages), 1000);
//! # }
//! # Ok::<(), nodewise_runtime::Error>(())
//! ```
//!
//! The ideas are those of Fedor Pikus's talk 'Nearly Unfathomable Morass of Arcana': state for each node
//! instead of shared state, encapsulated where nobody has to think of it.
//!
//! Only the modules `deque`, `job`, `replicated`, `memory::arena` and `memory::node_box` contain `unsafe`;
//! they say why it is sound.
#![deny(unsafe_code)]

mod allowance;
mod deque;
mod device;
mod error;
mod hint;
#[cfg(all(test, not(loom)))]
mod history;
mod injector;
mod job;
mod location;
mod memory;
mod nearest;
mod node_counter;
mod node_replicated;
mod parallel;
mod per_process;
mod per_worker;
mod pool;
mod pool_state;
mod replicated;
mod scan;
mod shared_pool;
mod sleep;
mod slots;
mod sort;
mod sync;
mod tally;
mod task_counter;
mod team;
mod unwind;
mod worker;

/// The example that is shown to readers.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use allocator_api2;
pub use bytemuck::{Pod, Zeroable};
pub use nodewise_topology::{Allowed, CpuId, CpuQuota, CpuSet, NodeId, NodeSet, Topology};

pub use allowance::{Allowance, AllowedNode};
pub use device::{bind_thread, nodes_near};
pub use error::{Error, ErrorKind, Result};
pub use hint::{Hint, HonouredBy, forget_hints, hint, is_managed};
#[doc(hidden)]
pub use job::{Ended, ForeignTask, Seat, seat};
pub use job::{Scope, Task};
pub use location::{current_cpu, current_node, refresh};
pub use memory::{
    Block, Fallback, Layout, NodeArena, NodeArenaBuilder, NodeVec, NodeVecBuilder, Placement, ReplicatedVec,
    SharedArena,
};
pub use node_counter::NodeCounter;
pub use node_replicated::{NodeReplicated, NodeReplicatedGuard, Operate};
pub use parallel::Loops;
pub use per_worker::PerWorker;
pub use pool::{NodePool, NodePoolBuilder, NodeStatistics};
pub use replicated::{ReadGuard, Replicated};
pub use task_counter::TaskCounter;
