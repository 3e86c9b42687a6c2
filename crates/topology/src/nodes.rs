//! The nodes: their CPUs, memory and distances.

use crate::error::{Error, ErrorKind, ParseError};
use crate::ids::{CpuId, NodeId};
use crate::memory::{self, Access, HugePages, MemorySideCache};
use crate::root::Root;
use crate::set::{CpuSet, NodeSet};
use crate::warnings::Warnings;
use serde::Serialize;

const DIR: &str = "sys/devices/system/node";
/// How many nodes a [`crate::NodeIndex`] can tell apart.
pub(crate) const MOST_NODES: usize = 256;
/// Distance of a node to itself where firmware says nothing (`LOCAL_DISTANCE`, include/linux/topology.h,
/// Linux 6.1).
const LOCAL_DISTANCE: u32 = 10;
/// Distance between two nodes where firmware says nothing (`REMOTE_DISTANCE`, ibid.).
const REMOTE_DISTANCE: u32 = 20;

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// Its online CPUs; none for a node that is only memory.
    pub cpus: CpuSet,
    /// Memory the kernel manages on this node (`MemTotal`); 0 for a node without memory, `None` where it is
    /// unknown. A virtual machine's kernel may count too little
    /// ([`crate::Topology::most_memory_bytes`]).
    pub memory_total_bytes: Option<u64>,
    /// Memory of the node that was free when the topology was read (`MemFree`).
    pub memory_free_bytes: Option<u64>,
    /// Its pools of huge pages, by ascending page size.
    pub huge_pages: Vec<HugePages>,
    /// Distance to each node in the order of [`crate::Topology::nodes`], in ACPI SLIT units: 10 is local, 20
    /// twice as far.
    pub distances: Vec<u32>,
    /// Whether the node is a generic initiator: a device that accesses memory without CPUs of the operating
    /// system.
    pub generic_initiator: bool,
    /// How fast its best initiators reach its memory, one entry an access class; empty where firmware has no
    /// HMAT.
    pub access: Vec<Access>,
    /// Caches in front of its memory.
    pub memory_side_caches: Vec<MemorySideCache>,
    /// Its share under weighted interleaving, 1 to 255; `None` before Linux 6.9.
    pub interleave_weight: Option<u64>,
}

impl Node {
    /// A node of which nothing more is known than its CPUs and its memory, all free.
    pub(crate) fn plain(id: NodeId, cpus: CpuSet, memory_bytes: u64, distances: Vec<u32>) -> Self {
        Self {
            id,
            cpus,
            memory_total_bytes: Some(memory_bytes),
            memory_free_bytes: Some(memory_bytes),
            huge_pages: Vec::new(),
            distances,
            generic_initiator: false,
            access: Vec::new(),
            memory_side_caches: Vec::new(),
            interleave_weight: None,
        }
    }

    /// Whether it has memory, or may have some as far as is known.
    #[must_use]
    pub fn may_have_memory(&self) -> bool {
        self.memory_total_bytes != Some(0)
    }

    /// Whether it has CPUs, and may have memory. Accesses should be even over such nodes.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        !self.cpus.is_empty() && self.may_have_memory()
    }
}

/// The data that is read of a machine's memory.
pub(crate) struct Nodes {
    /// By ascending id.
    pub(crate) nodes: Vec<Node>,
    /// Memory that no node's `MemTotal` counts; `None` where that is unknown.
    pub(crate) uncounted_memory_bytes: Option<u64>,
}

/// How much is read of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The data that placing a program takes: the node's CPUs and its memory.
    Placement,
    /// Everything.
    All,
}

/// The nodes, and memory of none of them.
pub(crate) fn read(
    root: &Root,
    online: &CpuSet,
    detail: Detail,
    warnings: &Warnings,
) -> Result<Nodes, Error> {
    let ids: Vec<NodeId> = warnings.known(root.numbered(DIR, "node")).into_iter().map(NodeId).collect();
    if ids.is_empty() {
        let node = whole_machine(root, online, warnings);
        let uncounted_memory_bytes = node.memory_total_bytes.map(|_| 0);
        return Ok(Nodes { nodes: vec![node], uncounted_memory_bytes });
    }
    if ids.len() > MOST_NODES {
        let what = format!("has {} nodes, {MOST_NODES} is the most that is supported", ids.len());
        return Err(Error::new(ErrorKind::TooLarge, &root.path(DIR), what));
    }
    let generic_initiators = root.set(&format!("{DIR}/has_generic_initiator"));
    let generic_initiators: NodeSet = warnings.known(generic_initiators).unwrap_or_default();
    let mut nodes: Vec<Node> = Vec::new();
    let mut counted_bytes = Vec::new();
    let mut kept = Vec::new();
    let mut taken = CpuSet::new();
    let (mut dropped, mut claimed_twice) = (NodeSet::new(), CpuSet::new());
    for (index, &id) in ids.iter().enumerate() {
        let mut node = read_node(root, index, &ids, detail, warnings);
        counted_bytes.push(node.memory_total_bytes);
        node.cpus = &node.cpus & online;
        // Firmware that lists all CPUs in every node (hwloc's 8em64t-2s2ca2c-buggynuma has eight such nodes
        // at distance 10) describes no NUMA machine. As in hwloc the first node keeps the CPUs and
        // the others are left out: a node that shares its CPUs cannot be anybody's home.
        if node.cpus.intersects(&taken) {
            dropped.insert(id);
            claimed_twice = &claimed_twice | &(&node.cpus & &taken);
            continue;
        }
        taken = &taken | &node.cpus;
        node.generic_initiator = generic_initiators.contains(id);
        nodes.push(node);
        kept.push(index);
    }
    for node in &mut nodes {
        node.distances = kept.iter().map(|&index| node.distances[index]).collect();
    }
    if !dropped.is_empty() {
        let plural = |len: usize| if len == 1 { "" } else { "s" };
        let (nodes, cpus) = (plural(dropped.len()), plural(claimed_twice.len()));
        warnings.add(format!(
            "left out node{nodes} {dropped}: firmware gives CPU{cpus} {claimed_twice} to a lower node too"
        ));
    }
    let uncounted_memory_bytes = match detail {
        Detail::Placement => None,
        Detail::All => uncounted(root, &counted_bytes, warnings),
    };
    Ok(Nodes { nodes, uncounted_memory_bytes })
}

/// Memory that /proc/meminfo counts and no node does. Kernels of virtual machines whose memory grows while
/// they run may count a third of it in the node's `MemTotal`.
fn uncounted(root: &Root, counted: &[Option<u64>], warnings: &Warnings) -> Option<u64> {
    /// Less is noise: the files are not read at the same moment, and early kernels reserve some memory in
    /// between.
    const SHARE_WORTH_A_WORD: u64 = 100;
    let machine = root
        .text("proc/meminfo")
        .and_then(|meminfo| meminfo.map(|meminfo| memory::meminfo_bytes(&meminfo, "MemTotal:")).transpose());
    let machine_bytes: Option<u64> = warnings.known(machine);
    let counted_bytes = counted.iter().flatten().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
    if counted.contains(&None) {
        return machine_bytes.map(|bytes| bytes.saturating_sub(counted_bytes));
    }
    let more = machine_bytes.unwrap_or(0).saturating_sub(counted_bytes);
    if more <= counted_bytes / SHARE_WORTH_A_WORD {
        return Some(0);
    }
    let mebibytes = |bytes: u64| bytes >> 20;
    warnings.add(format!(
        "the nodes' MemTotal add up to {} MiB, and the machine has {} MiB (proc/meminfo): \
         nodes may have more memory, and more of it free, than they say",
        mebibytes(counted_bytes),
        mebibytes(counted_bytes + more),
    ));
    Some(more)
}

fn read_node(root: &Root, index: usize, ids: &[NodeId], detail: Detail, warnings: &Warnings) -> Node {
    let id = ids[index];
    let dir = format!("{DIR}/node{id}");
    let meminfo = warnings.known(root.required(&format!("{dir}/meminfo")).map(Some));
    let bytes = |key: &str| {
        let bytes = memory::meminfo_bytes(meminfo.as_ref()?, &format!("Node {id} {key}:"));
        warnings.known(bytes.map(Some))
    };
    let node = Node {
        memory_total_bytes: bytes("MemTotal"),
        memory_free_bytes: bytes("MemFree"),
        ..Node::plain(id, cpus(root, &dir, warnings), 0, default_distances(index, ids.len()))
    };
    if detail == Detail::Placement {
        return node;
    }
    Node {
        huge_pages: memory::huge_pages(root, &format!("{dir}/hugepages"), warnings),
        distances: distances(root, &dir, index, ids, warnings),
        access: memory::access(root, &dir, warnings),
        memory_side_caches: memory::side_caches(root, &dir, warnings),
        interleave_weight: warnings
            .known(root.number(&format!("sys/kernel/mm/mempolicy/weighted_interleave/node{id}"))),
        ..node
    }
}

/// A node's CPUs. `cpulist` came with Linux 2.6.25; before, and in a few captures, there is only the mask.
/// Both say so of a node without CPUs. Links to the CPUs have been there all along.
fn cpus(root: &Root, dir: &str, warnings: &Warnings) -> CpuSet {
    let list = warnings.known(root.set(&format!("{dir}/cpulist")));
    let list_or_mask =
        list.or_else(|| warnings.known(root.parsed(&format!("{dir}/cpumap"), CpuSet::from_mask)));
    list_or_mask.unwrap_or_else(|| {
        let links: CpuSet = warnings.known(root.numbered(dir, "cpu")).into_iter().map(CpuId).collect();
        if links.is_empty() {
            warnings.add(format!(
                "{}: has neither cpulist nor cpumap: its CPUs are unknown",
                root.path(dir).display()
            ));
        }
        links
    })
}

/// A kernel without `CONFIG_NUMA` has no node directory: the machine is one node.
fn whole_machine(root: &Root, online: &CpuSet, warnings: &Warnings) -> Node {
    let meminfo = warnings.known(root.required("proc/meminfo").map(Some));
    let bytes = |key| warnings.known(memory::meminfo_bytes(meminfo.as_ref()?, key).map(Some));
    let mut node = Node::plain(NodeId(0), online.clone(), 0, default_distances(0, 1));
    node.memory_total_bytes = bytes("MemTotal:");
    node.memory_free_bytes = bytes("MemFree:");
    node.huge_pages = memory::huge_pages(root, "sys/kernel/mm/hugepages", warnings);
    node
}

/// One row of the SLIT: a number for each online node (`node_read_distance`, drivers/base/node.c, Linux 6.1).
fn distances(root: &Root, dir: &str, index: usize, ids: &[NodeId], warnings: &Warnings) -> Vec<u32> {
    let row = read_distances(root, dir, ids);
    warnings.known_or(row, "taken for 10 and 20").unwrap_or_else(|| default_distances(index, ids.len()))
}

fn read_distances(root: &Root, dir: &str, ids: &[NodeId]) -> Result<Option<Vec<u32>>, Error> {
    let Some(text) = root.text(&format!("{dir}/distance"))? else { return Ok(None) };
    let row = text.parse(|row| {
        let number =
            |word: &str| word.parse::<u32>().map_err(|_| ParseError::new("distances like '10 20'", word));
        row.split_ascii_whitespace().map(number).collect::<Result<Vec<u32>, _>>()
    })?;
    if row.len() == ids.len() {
        return Ok(Some(row));
    }
    // hwloc's offline-cpu0-node0 lists the distance to a node that is possible but not online.
    let possible: NodeSet = root.set(&format!("{DIR}/possible"))?.unwrap_or_default();
    let possible: Vec<NodeId> = possible.iter().collect();
    if row.len() == possible.len() {
        let at = |id: &NodeId| possible.binary_search(id).ok().map(|index| row[index]);
        if let Some(row) = ids.iter().map(at).collect() {
            return Ok(Some(row));
        }
    }
    Err(text.error(1, format!("expected a distance for each of {} nodes, found {}", ids.len(), row.len())))
}

/// The distances from one of `count` nodes where firmware gives none.
pub(crate) fn default_distances(from: usize, count: usize) -> Vec<u32> {
    (0..count).map(|to| if to == from { LOCAL_DISTANCE } else { REMOTE_DISTANCE }).collect()
}
