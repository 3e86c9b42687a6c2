//! Nodes, CPUs, caches, distances and devices of a machine, read from a live or captured sysfs tree.
//!
//! Kernel numbers ([`NodeId`], [`CpuId`]) are what users write and see. [`NodeIndex`] is the dense position
//! of a node in [`Topology::nodes`], for arrays.
//!
//! # By task
//!
//! - **Read this machine.** [`Topology::live`], or [`Topology::live_nodes`] if only nodes and CPUs matter.
//! - **Read another one.** [`Topology::from_root`] takes a directory that stands for `/`: hwloc's captures,
//!   or `/proc` and `/sys` copied from elsewhere. Both go through the same code.
//! - **Invent one.** [`Topology::synthetic`], for tests.
//! - **Find the node of a CPU, or the CPUs near a node.** [`Topology::node_of_cpu`],
//!   [`Topology::nearest_cpus`], and [`Topology::distance`].
//! - **Understand a user's list.** [`Lists`] takes what numactl takes: `0,2-3`, `+0-1`, `!1`, `netdev:eth0`.
//! - **Know what this process may use.** [`Allowed::of_this_thread`], and [`CpuQuota`] for a container's
//!   share of the CPUs.
//! - **Find a device's node.** [`Topology::devices`].
//!
//! A file that is missing or malformed makes its part unknown, and is named in [`Topology::warnings`].
//!
//! ```
//! use nodewise_topology::{Allowed, CpuId, Lists, NodeId, Topology};
//! use std::path::Path;
//!
//! let machine = Topology::synthetic(2, 4, 1 << 30);
//! let node = machine.node_of_cpu(CpuId(5)).unwrap();
//! assert_eq!(machine.id_of(node), NodeId(1));
//! assert_eq!(machine.node(node).cpus.to_string(), "4-7");
//!
//! let lists = Lists::new(&machine, Allowed::everything(&machine), Path::new("/"));
//! assert_eq!(lists.cpus_of_nodes("!0")?.to_string(), "4-7");
//! assert_eq!(lists.memory_nodes("7").unwrap_err().to_string(), "node list '7': 7 is not allowed, only 0-1");
//! # Ok::<(), nodewise_topology::ListError>(())
//! ```
#![forbid(unsafe_code)]

mod allowed;
mod caches;
mod control_groups;
mod cpus;
mod device_nodes;
mod devices;
mod error;
mod ids;
mod list_error;
mod lists;
mod memory;
mod model;
mod nodes;
mod root;
mod set;
mod settings;
mod warnings;

/// The example that is shown to readers.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use allowed::Allowed;
pub use caches::{Cache, CacheKind};
pub use control_groups::{CpuQuota, memory_left_bytes};
pub use cpus::{Core, Package, Possible};
pub use devices::{Device, DeviceKind};
pub use error::{Error, ErrorKind, ParseError};
pub use ids::{CpuId, NodeId, NodeIndex};
pub use list_error::{ListError, ListErrorKind};
pub use lists::Lists;
pub use memory::{Access, HugePages, MemorySideCache, MemoryTier};
pub use model::Topology;
pub use nodes::Node;
pub use set::{CpuSet, Id, IdSet, MAX_ID, NodeSet};
pub use settings::{NumaBalancing, TransparentHugePages};
