//! The machine as data.

use crate::error::{Error, ErrorKind};
use crate::ids::{CpuId, NodeId, NodeIndex};
use crate::root::Root;
use crate::set::CpuSet;
use crate::{cpus, nodes};
use serde::Serialize;
use std::path::Path;

/// Distance of a node to itself where firmware says nothing (`LOCAL_DISTANCE`, include/linux/topology.h, Linux 6.1).
const LOCAL_DISTANCE: u32 = 10;
/// Distance between two nodes where firmware says nothing (`REMOTE_DISTANCE`, ibid.).
const REMOTE_DISTANCE: u32 = 20;

/// A machine: its nodes, CPUs, caches, distances, devices and the settings that matter to memory placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) online_cpus: CpuSet,
    pub(crate) offline_cpus: CpuSet,
    pub(crate) warnings: Vec<String>,
    #[serde(skip)]
    node_of_cpu: Vec<Option<NodeIndex>>,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// Its online CPUs; none for a node that is only memory.
    pub cpus: CpuSet,
    /// Memory the kernel manages on this node (`MemTotal`); 0 for a node without memory.
    pub memory_total_bytes: u64,
    /// Memory of it that was free when the topology was read (`MemFree`).
    pub memory_free_bytes: u64,
    /// Its pools of huge pages, by ascending page size.
    pub huge_pages: Vec<HugePages>,
    /// Distance to each node in the order of [`Topology::nodes`], in ACPI SLIT units: 10 is local, 20 twice as far.
    pub distances: Vec<u32>,
}

/// A node's pool of hugetlb pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// Size of one page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages of the pool nobody has allocated.
    pub free: u64,
}

impl Topology {
    /// Reads this machine from /sys and /proc.
    pub fn live() -> Result<Self, Error> {
        Self::from_root(Path::new("/"))
    }

    /// Reads a machine from a directory that stands for `/`, with the captured `sys` and `proc` below it.
    ///
    /// Fails with [`ErrorKind::NotFound`] where there is no such directory or it holds no `sys/devices/system/cpu`, with
    /// [`ErrorKind::Malformed`] naming file and line where a file does not hold what the kernel writes there.
    pub fn from_root(root: &Path) -> Result<Self, Error> {
        let root = Root::new(root);
        if !root.is_dir("") {
            return Err(Error::new(ErrorKind::NotFound, &root.path(""), "is not a directory"));
        }
        if !root.is_dir(cpus::DIR) {
            let what = "is not there: the directory given does not stand for / of a Linux machine";
            return Err(Error::new(ErrorKind::NotFound, &root.path(cpus::DIR), what));
        }
        let (online_cpus, offline_cpus) = cpus::read(&root)?;
        let (nodes, warnings) = nodes::read(&root, &online_cpus)?;
        Ok(Self::new(nodes, online_cpus, offline_cpus, warnings))
    }

    /// Invents a machine for tests and simulators: nodes 0 to `nodes`-1, each with its own block of CPUs and a memory
    /// that is all free; distances 10 and 20.
    ///
    /// # Panics
    ///
    /// If `nodes` is 0 or above 256.
    #[must_use]
    pub fn synthetic(nodes: usize, cpus_per_node: usize, memory_bytes_per_node: u64) -> Self {
        assert!((1..=256).contains(&nodes), "a machine has 1 to 256 nodes, not {nodes}");
        let cpu_range = |from: usize, to: usize| (from..to).map(|cpu| CpuId(cpu as u32)).collect();
        let node = |index: usize| Node {
            id: NodeId(index as u32),
            cpus: cpu_range(index * cpus_per_node, (index + 1) * cpus_per_node),
            memory_total_bytes: memory_bytes_per_node,
            memory_free_bytes: memory_bytes_per_node,
            huge_pages: Vec::new(),
            distances: default_distances(index, nodes),
        };
        Self::new(
            (0..nodes).map(node).collect(),
            cpu_range(0, nodes * cpus_per_node),
            CpuSet::new(),
            Vec::new(),
        )
    }

    fn new(nodes: Vec<Node>, online_cpus: CpuSet, offline_cpus: CpuSet, warnings: Vec<String>) -> Self {
        let mut node_of_cpu = vec![None; online_cpus.last().map_or(0, |cpu| cpu.0 as usize + 1)];
        for (index, node) in nodes.iter().enumerate() {
            for cpu in node.cpus.iter() {
                node_of_cpu[cpu.0 as usize] = Some(NodeIndex(index as u8));
            }
        }
        Self { nodes, online_cpus, offline_cpus, warnings, node_of_cpu }
    }

    /// The nodes, by ascending [`NodeId`].
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many nodes there are: at least 1, at most 256.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node at an index.
    ///
    /// # Panics
    ///
    /// If the index is not one of this topology's.
    #[must_use]
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.get()]
    }

    /// The indices of all nodes, ascending.
    pub fn node_indices(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.nodes.len()).map(|index| NodeIndex(index as u8))
    }

    /// The index of the node with this kernel number.
    #[must_use]
    pub fn index_of(&self, id: NodeId) -> Option<NodeIndex> {
        let index = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        Some(NodeIndex(index as u8))
    }

    /// The kernel number of the node at an index.
    ///
    /// # Panics
    ///
    /// If the index is not one of this topology's.
    #[must_use]
    pub fn id_of(&self, index: NodeIndex) -> NodeId {
        self.node(index).id
    }

    /// The node an online CPU belongs to, in constant time; `None` for CPUs that are offline or unknown, and for the rare
    /// CPU whose node is not online.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: CpuId) -> Option<NodeIndex> {
        self.node_of_cpu.get(cpu.0 as usize).copied().flatten()
    }

    /// The firmware's distance from one node to another; 10 is local. Not always symmetric.
    ///
    /// # Panics
    ///
    /// If an index is not one of this topology's.
    #[must_use]
    pub fn distance(&self, from: NodeIndex, to: NodeIndex) -> u32 {
        self.node(from).distances[to.get()]
    }

    /// All online CPUs.
    #[must_use]
    pub fn online_cpus(&self) -> &CpuSet {
        &self.online_cpus
    }

    /// CPUs that are present but not online.
    #[must_use]
    pub fn offline_cpus(&self) -> &CpuSet {
        &self.offline_cpus
    }

    /// What looked wrong about the machine and how it was treated, one sentence each: firmware that lists a CPU in two
    /// nodes, say.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// The distances from one of `count` nodes where firmware gives none.
pub(crate) fn default_distances(from: usize, count: usize) -> Vec<u32> {
    (0..count).map(|to| if to == from { LOCAL_DISTANCE } else { REMOTE_DISTANCE }).collect()
}
