//! Kernel numbers and dense indices are different types, so that neither is taken for the other.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kernel's number of a NUMA node, as in `/sys/devices/system/node/node5`. Not dense: a machine may
/// have nodes 0, 2 and 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// The kernel's number of a logical CPU, as in `/sys/devices/system/cpu/cpu17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuId(pub u32);

/// The position of a node in its topology's list of nodes, 0 to n-1, for arrays indexed by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeIndex(pub u8);

impl NodeIndex {
    /// The index as an array subscript.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
