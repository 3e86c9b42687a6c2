//! The machine as one value.

use crate::caches::{self, Cache};
use crate::cpus::{self, Core, Package};
use crate::device_nodes;
use crate::devices::{self, Device};
use crate::error::{Error, ErrorKind};
use crate::ids::{CpuId, NodeId, NodeIndex};
use crate::memory::{self, MemoryTier};
use crate::nodes::{self, Detail, MOST_NODES, Node, Nodes};
use crate::root::Root;
use crate::set::CpuSet;
use crate::settings::{self, NumaBalancing, TransparentHugePages};
use crate::warnings::Warnings;
use serde::Serialize;
use std::path::Path;

/// A machine: its nodes, CPUs, caches, distances, devices and the settings that matter to memory placement.
///
/// Its serde form is what `nodewise topo --json` prints: one object whose fields are named as the accessors
/// below and the fields of the types they return; sets of CPUs and nodes are lists of numbers, what is
/// unknown is null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    nodes: Vec<Node>,
    uncounted_memory_bytes: Option<u64>,
    online_cpus: CpuSet,
    offline_cpus: CpuSet,
    packages: Vec<Package>,
    cores: Vec<Core>,
    caches: Vec<Cache>,
    memory_tiers: Vec<MemoryTier>,
    devices: Vec<Device>,
    transparent_huge_pages: Option<TransparentHugePages>,
    numa_balancing: Option<NumaBalancing>,
    warnings: Vec<String>,
    #[serde(skip)]
    node_of_cpu: Vec<Option<NodeIndex>>,
}

impl Topology {
    /// Reads this machine from /sys and /proc.
    pub fn live() -> Result<Self, Error> {
        Self::from_root(Path::new("/"))
    }

    /// Reads this machine's CPUs only, and its nodes' CPUs and memory, as placing a program takes no more.
    /// Packages, caches, devices and the rest stay empty, and distances are taken for 10 and 20.
    pub fn live_nodes() -> Result<Self, Error> {
        let root = Root::new(Path::new("/"));
        let warnings = Warnings::default();
        let (online_cpus, offline_cpus) = cpus::read(&root, &warnings)?;
        let Nodes { nodes, uncounted_memory_bytes } =
            nodes::read(&root, &online_cpus, Detail::Placement, &warnings)?;
        Ok(Self {
            packages: Vec::new(),
            cores: Vec::new(),
            caches: Vec::new(),
            memory_tiers: Vec::new(),
            devices: Vec::new(),
            transparent_huge_pages: None,
            numa_balancing: None,
            warnings: warnings.into_sentences(),
            node_of_cpu: node_of_cpu(&nodes),
            nodes,
            uncounted_memory_bytes,
            online_cpus,
            offline_cpus,
        })
    }

    /// Reads a machine from a directory that stands for `/`, with the captured `sys` and `proc` below it.
    ///
    /// A file that is missing, empty, unreadable or not as the kernel writes it leaves its part of the
    /// machine unknown; [`Topology::warnings`] names it, and its line, unless kernels or machines without
    /// it are common. Fails with [`ErrorKind::NotFound`] where there is no such directory or it names no
    /// CPU, with [`ErrorKind::TooLarge`] where there are more than 256 nodes.
    pub fn from_root(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            let what = if path.exists() { "is not a directory" } else { "there is no such directory" };
            return Err(Error::new(ErrorKind::NotFound, path, what));
        }
        let root = Root::new(path);
        if !root.is_dir(cpus::DIR) {
            let what = format!("does not stand for / of a Linux machine: it has no {}", cpus::DIR);
            return Err(Error::new(ErrorKind::NotFound, path, what));
        }
        let warnings = Warnings::default();
        let (online_cpus, offline_cpus) = cpus::read(&root, &warnings)?;
        let Nodes { nodes, uncounted_memory_bytes } =
            nodes::read(&root, &online_cpus, Detail::All, &warnings)?;
        Ok(Self {
            packages: cpus::packages(&root, &online_cpus, &warnings),
            cores: cpus::cores(&root, &online_cpus, &warnings),
            caches: caches::read(&root, &online_cpus, &warnings),
            memory_tiers: memory::tiers(&root, &warnings),
            devices: devices::read(&root, &nodes, &warnings),
            transparent_huge_pages: settings::transparent_huge_pages(&root, &warnings),
            numa_balancing: settings::numa_balancing(&root, &warnings),
            warnings: warnings.into_sentences(),
            node_of_cpu: node_of_cpu(&nodes),
            nodes,
            uncounted_memory_bytes,
            online_cpus,
            offline_cpus,
        })
    }

    /// Invents a machine for tests and simulators: nodes 0 to `nodes`-1, each a package with its own block of
    /// one-thread cores and a memory that is all free; distances 10 and 20.
    ///
    /// # Panics
    ///
    /// If `nodes` is 0 or above 256.
    #[must_use]
    pub fn synthetic(nodes: usize, cpus_per_node: usize, memory_bytes_per_node: u64) -> Self {
        Self::synthetic_of(&vec![cpus_per_node; nodes], memory_bytes_per_node)
    }

    /// The same with so many CPUs on each node; a node may have none.
    ///
    /// # Panics
    ///
    /// If there is no node, or more than 256.
    #[must_use]
    pub fn synthetic_of(cpus_of_nodes: &[usize], memory_bytes_per_node: u64) -> Self {
        let nodes = cpus_of_nodes.len();
        assert!((1..=MOST_NODES).contains(&nodes), "a machine has 1 to {MOST_NODES} nodes, not {nodes}");
        let cpu_range = |from: usize, to: usize| (from..to).map(|cpu| CpuId(cpu as u32)).collect();
        let node = |index: usize| {
            let first = cpus_of_nodes[..index].iter().sum();
            let cpus = cpu_range(first, first + cpus_of_nodes[index]);
            let distances = nodes::default_distances(index, nodes);
            Node::plain(NodeId(index as u32), cpus, memory_bytes_per_node, distances)
        };
        let nodes: Vec<Node> = (0..nodes).map(node).collect();
        let online_cpus: CpuSet = cpu_range(0, cpus_of_nodes.iter().sum());
        let with_cpus = nodes.iter().filter(|node| !node.cpus.is_empty());
        let package = |node: &Node| Package { id: Some(node.id.0), cpus: node.cpus.clone() };
        let core = |cpu: CpuId| Core { id: Some(cpu.0), cpus: CpuSet::from_iter([cpu]) };
        Self {
            packages: with_cpus.map(package).collect(),
            cores: online_cpus.iter().map(core).collect(),
            caches: Vec::new(),
            memory_tiers: Vec::new(),
            devices: Vec::new(),
            transparent_huge_pages: None,
            numa_balancing: None,
            warnings: Vec::new(),
            node_of_cpu: node_of_cpu(&nodes),
            nodes,
            uncounted_memory_bytes: Some(0),
            online_cpus,
            offline_cpus: CpuSet::new(),
        }
    }

    /// The same machine with so many of its CPUs on each core, which follow each other.
    ///
    /// # Panics
    ///
    /// If a core has none.
    #[must_use]
    pub fn with_threads_of_core(mut self, threads: usize) -> Self {
        let cpus: Vec<CpuId> = self.online_cpus.iter().collect();
        let core = |cpus: &[CpuId]| Core {
            id: Some(cpus[0].0 / threads as u32),
            cpus: cpus.iter().copied().collect(),
        };
        self.cores = cpus.chunks(threads).map(core).collect();
        self
    }

    /// The same machine with these distances, `distances[from][to]` in ACPI SLIT units.
    ///
    /// # Panics
    ///
    /// If they are not a row for each node with an entry for each.
    #[must_use]
    pub fn with_distances(mut self, distances: &[Vec<u32>]) -> Self {
        let count = self.nodes.len();
        let fit = distances.len() == count && distances.iter().all(|row| row.len() == count);
        assert!(fit, "distances are not {count} rows of {count}");
        self.nodes.iter_mut().zip(distances).for_each(|(node, row)| node.distances.clone_from(row));
        self
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

    /// Memory of the machine (`MemTotal` of /proc/meminfo) that no node's `MemTotal` counts: 0 where they
    /// agree, `None` where neither is known. Virtual machines whose memory grows while they run may have
    /// much of it, free on any node.
    #[must_use]
    pub fn uncounted_memory_bytes(&self) -> Option<u64> {
        self.uncounted_memory_bytes
    }

    /// The most memory that a node can have by all that is known: its own `MemTotal` and what no node counts.
    /// No smaller request should be refused. `None` where nothing is known.
    ///
    /// # Panics
    ///
    /// If the index is not one of this topology's.
    #[must_use]
    pub fn most_memory_bytes(&self, index: NodeIndex) -> Option<u64> {
        match self.node(index).memory_total_bytes {
            Some(0) => Some(0),
            own => Some(own.unwrap_or(0).saturating_add(self.uncounted_memory_bytes?)),
        }
    }

    /// The node an online CPU belongs to, in constant time; `None` for CPUs that are offline or unknown, and
    /// for the rare CPU whose node is not online.
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

    /// The node of one of this machine's disks or partitions, by its name or its numbers: `nvme0n1`, `8:1`.
    /// None if there is none such, if it consists of disks on several nodes, or if firmware does not say.
    #[must_use]
    pub fn node_of_disk(&self, disk: &str) -> Option<NodeId> {
        let root = Root::new(Path::new("/"));
        let by_numbers = || root.resolve(&format!("sys/dev/block/{disk}"));
        let name = if disk.contains(':') {
            by_numbers()?.file_name()?.to_str()?.to_owned()
        } else {
            disk.to_owned()
        };
        let nodes = device_nodes::nodes_of(&root, self.nodes(), "block", &name).ok()?;
        nodes.first().filter(|_| nodes.len() == 1)
    }

    /// The CPUs nearest to a node's memory, which are the node's own. For a node without CPUs they are those
    /// of its best initiators with CPUs, where firmware names them (HMAT). Else they are those of the nodes
    /// at the least distance to it.
    ///
    /// # Panics
    ///
    /// If the index is not one of this topology's.
    #[must_use]
    pub fn nearest_cpus(&self, index: NodeIndex) -> CpuSet {
        let node = self.node(index);
        if !node.cpus.is_empty() {
            return node.cpus.clone();
        }
        let cpus_of =
            |nodes: &mut dyn Iterator<Item = &Node>| nodes.flat_map(|node| node.cpus.iter()).collect();
        for access in node.access.iter().rev() {
            let cpus: CpuSet =
                cpus_of(&mut self.nodes.iter().filter(|node| access.initiators.contains(node.id)));
            if !cpus.is_empty() {
                return cpus;
            }
        }
        let with_cpus = || self.nodes.iter().filter(|node| !node.cpus.is_empty());
        let least = with_cpus().map(|from| from.distances[index.get()]).min();
        cpus_of(&mut with_cpus().filter(|from| Some(from.distances[index.get()]) == least))
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

    /// The physical packages, by lowest CPU. Empty where the kernel tells nothing of them.
    #[must_use]
    pub fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// The cores, by lowest CPU. Empty where the kernel tells nothing of them.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The CPUs' caches: highest level first, then by kind and lowest CPU.
    #[must_use]
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// The memory tiers, fastest first. Empty before Linux 6.1.
    #[must_use]
    pub fn memory_tiers(&self) -> &[MemoryTier] {
        &self.memory_tiers
    }

    /// Network, `InfiniBand`, block, graphics and accelerator devices, by kind and name.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Transparent huge page settings; `None` on kernels without.
    #[must_use]
    pub fn transparent_huge_pages(&self) -> Option<&TransparentHugePages> {
        self.transparent_huge_pages.as_ref()
    }

    /// The kernel's automatic NUMA balancing; `None` on kernels without.
    #[must_use]
    pub fn numa_balancing(&self) -> Option<NumaBalancing> {
        self.numa_balancing
    }

    /// Faults that the machine seems to have and how each was treated, one sentence each. Examples are
    /// firmware that lists a CPU in two nodes, and a file that could not be read.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn node_of_cpu(nodes: &[Node]) -> Vec<Option<NodeIndex>> {
    let highest = nodes.iter().filter_map(|node| node.cpus.last()).max();
    let mut table = vec![None; highest.map_or(0, |cpu| cpu.0 as usize + 1)];
    for (index, node) in nodes.iter().enumerate() {
        for cpu in node.cpus.iter() {
            table[cpu.0 as usize] = Some(NodeIndex(index as u8));
        }
    }
    table
}
