//! The nodes: their CPUs, memory and distances.

use crate::error::{Error, ErrorKind, ParseError};
use crate::ids::NodeId;
use crate::memory::{self, Access, HugePages, MemorySideCache};
use crate::root::{Root, Text};
use crate::set::{CpuSet, NodeSet};
use serde::Serialize;

const DIR: &str = "sys/devices/system/node";
/// How many nodes a [`crate::NodeIndex`] can tell apart.
pub(crate) const MOST_NODES: usize = 256;
/// Distance of a node to itself where firmware says nothing (`LOCAL_DISTANCE`, include/linux/topology.h, Linux 6.1).
const LOCAL_DISTANCE: u32 = 10;
/// Distance between two nodes where firmware says nothing (`REMOTE_DISTANCE`, ibid.).
const REMOTE_DISTANCE: u32 = 20;

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
    /// Distance to each node in the order of [`crate::Topology::nodes`], in ACPI SLIT units: 10 is local, 20 twice as far.
    pub distances: Vec<u32>,
    /// Whether the node is a generic initiator: a device that accesses memory without CPUs of the operating system.
    pub generic_initiator: bool,
    /// How fast its best initiators reach its memory, one entry an access class; empty where firmware has no HMAT.
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
            memory_total_bytes: memory_bytes,
            memory_free_bytes: memory_bytes,
            huge_pages: Vec::new(),
            distances,
            generic_initiator: false,
            access: Vec::new(),
            memory_side_caches: Vec::new(),
            interleave_weight: None,
        }
    }
}

/// The nodes by ascending id, and warnings about what firmware got wrong.
pub(crate) fn read(root: &Root, online: &CpuSet) -> Result<(Vec<Node>, Vec<String>), Error> {
    let ids: Vec<NodeId> = root.numbered(DIR, "node")?.into_iter().map(NodeId).collect();
    if ids.is_empty() {
        return Ok((vec![whole_machine(root, online)?], Vec::new()));
    }
    if ids.len() > MOST_NODES {
        let what = format!("has {} nodes, {MOST_NODES} is the most that is supported", ids.len());
        return Err(Error::new(ErrorKind::TooLarge, &root.path(DIR), what));
    }
    let generic_initiators: NodeSet = root.set(&format!("{DIR}/has_generic_initiator"))?.unwrap_or_default();
    let mut nodes: Vec<Node> = Vec::new();
    let mut kept = Vec::new();
    let mut taken = CpuSet::new();
    let (mut dropped, mut claimed_twice) = (NodeSet::new(), CpuSet::new());
    for (index, &id) in ids.iter().enumerate() {
        let mut node = read_node(root, index, &ids)?;
        node.cpus = &node.cpus & online;
        // Firmware that lists all CPUs in every node (hwloc's 8em64t-2s2ca2c-buggynuma has eight such nodes at
        // distance 10) describes no NUMA machine. As in hwloc the first node keeps the CPUs and the others are left out:
        // a node that shares its CPUs cannot be anybody's home.
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
    let mut warnings = Vec::new();
    if !dropped.is_empty() {
        let plural = |len: usize| if len == 1 { "" } else { "s" };
        let (nodes, cpus) = (plural(dropped.len()), plural(claimed_twice.len()));
        warnings.push(format!(
            "left out node{nodes} {dropped}: firmware gives CPU{cpus} {claimed_twice} to a lower node too"
        ));
    }
    Ok((nodes, warnings))
}

fn read_node(root: &Root, index: usize, ids: &[NodeId]) -> Result<Node, Error> {
    let id = ids[index];
    let dir = format!("{DIR}/node{id}");
    // `cpulist` came with Linux 2.6.25; before, and in a few captures, there is only the mask.
    let cpus = match root.set(&format!("{dir}/cpulist"))? {
        Some(cpus) => cpus,
        None => root.required(&format!("{dir}/cpumap"))?.parse(CpuSet::from_mask)?,
    };
    let meminfo = root.required(&format!("{dir}/meminfo"))?;
    let weight = root.text(&format!("sys/kernel/mm/mempolicy/weighted_interleave/node{id}"))?;
    Ok(Node {
        id,
        cpus,
        memory_total_bytes: memory::meminfo_bytes(&meminfo, &format!("Node {id} MemTotal:"))?,
        memory_free_bytes: memory::meminfo_bytes(&meminfo, &format!("Node {id} MemFree:"))?,
        huge_pages: memory::huge_pages(root, &format!("{dir}/hugepages"))?,
        distances: distances(root, &dir, index, ids)?,
        generic_initiator: false,
        access: memory::access(root, &dir)?,
        memory_side_caches: memory::side_caches(root, &dir)?,
        interleave_weight: weight.as_ref().map(Text::number).transpose()?,
    })
}

/// A kernel without `CONFIG_NUMA` has no node directory: the machine is one node.
fn whole_machine(root: &Root, online: &CpuSet) -> Result<Node, Error> {
    let meminfo = root.required("proc/meminfo")?;
    let total = memory::meminfo_bytes(&meminfo, "MemTotal:")?;
    let mut node = Node::plain(NodeId(0), online.clone(), total, default_distances(0, 1));
    node.memory_free_bytes = memory::meminfo_bytes(&meminfo, "MemFree:")?;
    node.huge_pages = memory::huge_pages(root, "sys/kernel/mm/hugepages")?;
    Ok(node)
}

/// One row of the SLIT: a number for each online node (`node_read_distance`, drivers/base/node.c, Linux 6.1).
fn distances(root: &Root, dir: &str, index: usize, ids: &[NodeId]) -> Result<Vec<u32>, Error> {
    let Some(text) = root.text(&format!("{dir}/distance"))? else {
        return Ok(default_distances(index, ids.len()));
    };
    let row = text.parse(|row| {
        let number =
            |word: &str| word.parse::<u32>().map_err(|_| ParseError::new("distances like '10 20'", word));
        row.split_ascii_whitespace().map(number).collect::<Result<Vec<u32>, _>>()
    })?;
    if row.len() == ids.len() {
        return Ok(row);
    }
    // hwloc's offline-cpu0-node0 lists the distance to a node that is possible but not online.
    let possible: NodeSet = root.set(&format!("{DIR}/possible"))?.unwrap_or_default();
    let possible: Vec<NodeId> = possible.iter().collect();
    if row.len() == possible.len() {
        let at = |id: &NodeId| possible.binary_search(id).ok().map(|index| row[index]);
        if let Some(row) = ids.iter().map(at).collect() {
            return Ok(row);
        }
    }
    Err(text.error(1, format!("expected a distance for each of {} nodes, found {}", ids.len(), row.len())))
}

/// The distances from one of `count` nodes where firmware gives none.
pub(crate) fn default_distances(from: usize, count: usize) -> Vec<u32> {
    (0..count).map(|to| if to == from { LOCAL_DISTANCE } else { REMOTE_DISTANCE }).collect()
}
