//! Nodes, CPUs, caches, distances and devices of a machine, read from a live or captured sysfs tree.
//!
//! [`Topology::live`] reads this machine, [`Topology::from_root`] a directory that stands for `/` (hwloc's
//! captures, or `/proc` and `/sys` copied from elsewhere); both go through the same code.
//! [`Topology::synthetic`] invents a machine.
//!
//! Kernel numbers ([`NodeId`], [`CpuId`]) are what users write and see; [`NodeIndex`] is the dense position
//! of a node in [`Topology::nodes`], for arrays.
//!
//! ```
//! use nodewise_topology::{CpuId, NodeId, Topology};
//!
//! let machine = Topology::synthetic(2, 4, 1 << 30);
//! let node = machine.node_of_cpu(CpuId(5)).unwrap();
//! assert_eq!(machine.id_of(node), NodeId(1));
//! assert_eq!(machine.node(node).cpus.to_string(), "4-7");
//! ```
#![forbid(unsafe_code)]

mod affinity;
mod caches;
mod cpus;
mod devices;
mod error;
mod ids;
mod lists;
mod memory;
mod model;
mod nodes;
mod quota;
mod root;
mod set;
mod settings;
mod warnings;

/// The example that is shown to readers.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use caches::{Cache, CacheKind};
pub use cpus::{Core, Package, Possible};
pub use devices::{Device, DeviceKind};
pub use error::{Error, ErrorKind, ParseError};
pub use ids::{CpuId, NodeId, NodeIndex};
pub use lists::{Allowed, ListError, ListErrorKind, Lists};
pub use memory::{Access, HugePages, MemorySideCache, MemoryTier};
pub use model::Topology;
pub use nodes::Node;
pub use quota::CpuQuota;
pub use set::{CpuSet, Id, IdSet, MAX_ID, NodeSet};
pub use settings::{NumaBalancing, TransparentHugePages};
