//! The parts of a machine that this process can measure.

use crate::error::{Error, ErrorKind};
use nodewise_topology::{Allowed, CacheKind, CpuId, CpuQuota, CpuSet, Topology, memory_left_bytes};
use serde::Serialize;
use std::fs;

/// A machine as this process may use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The nodes that have a CPU or memory for this process.
    pub nodes: Vec<Place>,
    /// The data caches, nearest to the core first: one entry a level.
    pub caches: Vec<CacheFacts>,
    /// Size of a huge page that the kernel may give who asks for it; `None` if it gives none.
    pub huge_page_bytes: Option<u64>,
    /// The CPUs' frequency governor; `None` where there is none, as in virtual machines.
    pub governor: Option<String>,
    /// The nodes that lack something, and limits of control groups, in words.
    pub notes: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kernel's number.
    pub id: u32,
    /// The CPUs that may be used, one of each core first.
    pub cpus: Vec<u32>,
    /// Memory of the node; 0 if this process may have none of it.
    pub memory_bytes: u64,
    /// Memory that is free, where that is known.
    pub free_bytes: Option<u64>,
    /// Distances to the nodes of [`Machine::nodes`], in firmware's units.
    pub distances: Vec<u32>,
}

/// A level of data caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheFacts {
    /// The level; 1 is nearest to the core.
    pub level: u32,
    /// Size of one cache.
    pub size_bytes: u64,
    /// Associativity, where the kernel knows it.
    pub ways: Option<u64>,
    /// Sum of the sizes of a node's caches of this level, on the node that has most.
    pub node_bytes: u64,
}

impl Machine {
    /// This machine.
    pub fn live() -> Result<Self, Error> {
        let unreadable = |error: nodewise_topology::Error| Error::new(ErrorKind::System, error.to_string());
        let topology = Topology::live().map_err(unreadable)?;
        let allowed = Allowed::of_this_thread(&topology).map_err(unreadable)?;
        let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok();
        let mut machine =
            Self { governor: governor.map(|text| text.trim().to_owned()), ..Self::new(&topology, &allowed) };
        // A limit that is not known is none.
        let left = memory_left_bytes().unwrap_or_else(|error| {
            machine.notes.push(error.to_string());
            None
        });
        let quota = CpuQuota::of_this_process().unwrap_or_else(|error| {
            machine.notes.push(error.to_string());
            None
        });
        Ok(machine.within(left, quota))
    }

    /// The machine as far as control groups leave it to this process. Each node has an equal part of the
    /// memory that they leave, as buffers on all nodes are held at the same time.
    fn within(mut self, left_bytes: Option<u64>, quota: Option<CpuQuota>) -> Self {
        let columns: Vec<usize> = self.columns().collect();
        let part = left_bytes.map(|left| left / columns.len().max(1) as u64);
        for &column in &columns {
            let free = &mut self.nodes[column].free_bytes;
            if part.is_some_and(|part| free.is_none_or(|free| part < free)) {
                *free = part;
            }
        }
        let cpus: usize = self.nodes.iter().map(|node| node.cpus.len()).sum();
        if let Some(quota) = quota.filter(|quota| quota.quota_us < quota.period_us * cpus as u64) {
            let most = quota.quota_us as f64 / quota.period_us as f64;
            self.notes.push(format!(
                "a control group gives this process the time of {most:.1} CPUs: more threads wait for each other"
            ));
        }
        self
    }

    /// A machine, as far as a process may use it.
    #[must_use]
    pub fn new(topology: &Topology, allowed: &Allowed) -> Self {
        let (mut nodes, mut lacks, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (index, node) in topology.nodes().iter().enumerate() {
            let cpus = by_core(topology, &(&node.cpus & &allowed.cpus));
            let may = node.may_have_memory() && allowed.memory_nodes.contains(node.id);
            // A node of unknown size has some.
            let memory_bytes = if may { node.memory_total_bytes.unwrap_or(1 << 30) } else { 0 };
            let id = node.id.0;
            match (cpus.is_empty(), memory_bytes == 0) {
                (true, true) => {
                    lacks.push(format!("node {id} has neither CPUs nor memory for this process: left out"));
                    continue;
                }
                (true, false) => lacks.push(format!("node {id} has no CPU for this process, and no row")),
                (false, true) => {
                    lacks.push(format!("node {id} has no memory for this process, and no column"));
                }
                (false, false) => {}
            }
            kept.push(index);
            let free_bytes = node.memory_free_bytes;
            nodes.push(Place { id, cpus, memory_bytes, free_bytes, distances: node.distances.clone() });
        }
        for node in &mut nodes {
            node.distances = kept.iter().map(|&index| node.distances[index]).collect();
        }
        let huge = topology.transparent_huge_pages().filter(|huge| huge.enabled != "never");
        Self {
            caches: caches(topology),
            nodes,
            huge_page_bytes: huge.map(|huge| huge.page_bytes.unwrap_or(2 << 20)),
            governor: None,
            notes: lacks,
        }
    }

    /// The nodes with CPUs, by their place in [`Machine::nodes`]: the rows of matrices.
    pub fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|&node| !self.nodes[node].cpus.is_empty())
    }

    /// The nodes with memory, by their place in [`Machine::nodes`]: the columns of matrices.
    pub fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].memory_bytes > 0)
    }

    /// The caches of a node's last level, all together; 0 if that is unknown.
    #[must_use]
    pub fn last_level_bytes(&self) -> u64 {
        self.caches.last().map_or(0, |cache| cache.node_bytes)
    }

    /// The node whose memory a row's CPUs have nearest.
    pub(crate) fn nearest_memory(&self, row: usize) -> Option<usize> {
        self.columns().min_by_key(|&column| (self.nodes[row].distances[column], column != row, column))
    }
}

/// CPUs, one of each core before the second of any.
fn by_core(topology: &Topology, cpus: &CpuSet) -> Vec<u32> {
    let sibling = |cpu: CpuId| {
        let core = topology.cores().iter().find(|core| core.cpus.contains(cpu));
        core.map_or(0, |core| core.cpus.iter().filter(|&other| other < cpu && cpus.contains(other)).count())
    };
    let mut ordered: Vec<CpuId> = cpus.iter().collect();
    ordered.sort_by_key(|&cpu| (sibling(cpu), cpu));
    ordered.into_iter().map(|cpu| cpu.0).collect()
}

fn caches(topology: &Topology) -> Vec<CacheFacts> {
    let mut levels: Vec<CacheFacts> = Vec::new();
    let data = topology.caches().iter().filter(|cache| cache.kind != CacheKind::Instruction);
    for cache in data.clone() {
        let Some(size_bytes) = cache.size_bytes else { continue };
        if levels.iter().any(|level| level.level == cache.level) {
            continue;
        }
        let of_node = |node: &nodewise_topology::Node| -> u64 {
            let near = data.clone().filter(|other| other.level == cache.level);
            near.filter(|other| other.cpus.intersects(&node.cpus)).filter_map(|other| other.size_bytes).sum()
        };
        let node_bytes = topology.nodes().iter().map(of_node).max().unwrap_or(size_bytes);
        levels.push(CacheFacts { level: cache.level, size_bytes, ways: cache.ways, node_bytes });
    }
    levels.sort_by_key(|level| level.level);
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_topology::NodeId;

    #[test]
    fn control_groups_leave_less() {
        let topology = Topology::synthetic(2, 2, 1 << 30);
        let mut machine = Machine::new(&topology, &Allowed::everything(&topology));
        (machine.nodes[0].free_bytes, machine.nodes[1].free_bytes) = (Some(300 << 20), None);
        let free = |left| {
            let machine = machine.clone().within(left, None);
            machine.nodes.iter().map(|node| node.free_bytes).collect::<Vec<_>>()
        };
        assert_eq!(free(None), [Some(300 << 20), None]);
        assert_eq!(free(Some(400 << 20)), [Some(200 << 20); 2], "a half each");
        assert_eq!(free(Some(800 << 20)), [Some(300 << 20), Some(400 << 20)]);
        let notes =
            |quota_us| machine.clone().within(None, Some(CpuQuota { quota_us, period_us: 1000 })).notes;
        assert!(notes(4000).is_empty(), "as many as there are");
        let said =
            "a control group gives this process the time of 2.5 CPUs: more threads wait for each other";
        assert_eq!(notes(2500), [said]);
    }

    #[test]
    fn nodes_without_cpus_or_memory_lack_rows_or_columns() {
        let topology = Topology::synthetic(4, 2, 1 << 30);
        let mut allowed = Allowed::everything(&topology);
        for cpu in [2, 3, 7] {
            allowed.cpus.remove(CpuId(cpu));
        }
        allowed.memory_nodes.remove(NodeId(2));
        let machine = Machine::new(&topology, &allowed);
        assert_eq!(machine.rows().collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(machine.columns().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(machine.nodes[3].cpus, [6]);
        assert_eq!(
            machine.notes,
            [
                "node 1 has no CPU for this process, and no row",
                "node 2 has no memory for this process, and no column"
            ]
        );
        assert_eq!(machine.nearest_memory(2), Some(0));
        allowed.memory_nodes.remove(NodeId(1));
        let machine = Machine::new(&topology, &allowed);
        assert_eq!(machine.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(machine.nodes[1].distances.len(), 3);
    }
}
