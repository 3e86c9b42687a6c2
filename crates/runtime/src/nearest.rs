//! Which of several copies is nearest to a node.

use crate::error::Result;
use nodewise_topology::{Allowed, NodeId, NodeSet, Topology};

/// For each node's number, the place of the nearest of some nodes.
#[derive(Clone, Debug)]
pub(crate) struct Nearest(Box<[usize]>);

impl Nearest {
    /// The nearest among `nodes` by the machine's distances; of several as near, the first.
    pub(crate) fn among(nodes: &[NodeId]) -> Result<Self> {
        Ok(Self::on(&Topology::live()?, nodes))
    }

    fn on(topology: &Topology, nodes: &[NodeId]) -> Self {
        let numbers = topology.nodes().iter().map(|node| node.id.0 as usize + 1).max().unwrap_or(0);
        let mut nearest = vec![0; numbers];
        for from in topology.node_indices() {
            // A node is nearer to itself than to any other, whatever the table says.
            let distance = |place: &usize| match topology.index_of(nodes[*place]) {
                Some(to) if to == from => 0,
                Some(to) => topology.distance(from, to),
                None => u32::MAX,
            };
            let best = (0..nodes.len()).min_by_key(distance);
            nearest[topology.id_of(from).0 as usize] = best.unwrap_or(0);
        }
        Self(nearest.into())
    }

    /// The place of the nearest to this node; 0 for one that is not in the machine.
    #[inline]
    pub(crate) fn to(&self, node: NodeId) -> usize {
        self.0.get(node.0 as usize).copied().unwrap_or(0)
    }
}

/// The nodes that this process may have memory on.
#[derive(Clone, Debug)]
pub(crate) struct MemoryNodes {
    pub(crate) allowed: NodeSet,
    /// The nearest of the allowed nodes to each node with CPUs. Memory that is to be near its users goes
    /// there, and not to memory that lies apart: that is slower as a rule, or a device's.
    pub(crate) near_cpus: NodeSet,
    /// The memory of the allowed nodes at most, used or free; `None` where that is unknown.
    pub(crate) bytes: Option<u64>,
}

impl MemoryNodes {
    /// As the calling thread's status has them.
    pub(crate) fn of_this_process() -> Result<Self> {
        let topology = Topology::live()?;
        let allowed = Allowed::of_this_thread(&topology)?.memory_nodes;
        Ok(Self::new(&topology, allowed))
    }

    fn new(topology: &Topology, allowed: NodeSet) -> Self {
        let nodes: Vec<NodeId> = allowed.iter().collect();
        let nearest = Nearest::on(topology, &nodes);
        let with_cpus = topology.nodes().iter().filter(|node| !node.cpus.is_empty());
        let near_cpus = with_cpus.filter_map(|node| nodes.get(nearest.to(node.id)).copied()).collect();
        let own = topology.nodes().iter().filter(|node| allowed.contains(node.id));
        // Memory that no node counts may be any node's, and counts once.
        let bytes = own.map(|node| node.memory_total_bytes.unwrap_or(0)).sum::<u64>();
        let bytes = topology.uncounted_memory_bytes().map(|uncounted| bytes.saturating_add(uncounted));
        Self { allowed, near_cpus, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn memory_that_is_nearest_to_no_cpu_is_left_out() {
        let tree = tempfile::tempdir().unwrap();
        let write = |file: String, content: &str| {
            let file = tree.path().join("sys/devices/system").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        };
        write("cpu/online".into(), "0-1");
        // A whole node, one without memory, memory beside that, and memory apart.
        let nodes = [
            ("0", 1, "10 20 30 40"),
            ("1", 0, "20 10 15 40"),
            ("", 1, "30 15 10 40"),
            ("", 1, "40 40 40 10"),
        ];
        for (node, (cpus, memory, distances)) in nodes.into_iter().enumerate() {
            write(format!("node/node{node}/cpulist"), cpus);
            write(format!("node/node{node}/distance"), distances);
            let kb = memory << 20;
            let meminfo = format!("Node {node} MemTotal: {kb} kB\nNode {node} MemFree: {kb} kB\n");
            write(format!("node/node{node}/meminfo"), &meminfo);
        }
        let topology = Topology::from_root(tree.path()).unwrap();
        let near = |allowed: &[u32]| {
            let nodes = MemoryNodes::new(&topology, allowed.iter().copied().map(NodeId).collect());
            nodes.near_cpus.iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(near(&[0, 2, 3]), [0, 2]);
        assert_eq!(near(&[2, 3]), [2]);
        assert_eq!(near(&[3]), [3]);
        assert_eq!(near(&[]), [0; 0]);
        let bytes = |topology: &Topology, allowed: [u32; 2]| {
            MemoryNodes::new(topology, allowed.into_iter().map(NodeId).collect()).bytes
        };
        assert_eq!(bytes(&topology, [0, 2]), Some(2 << 30));
        // Memory plugged in later that no node counts may be on any; where nothing is known, nothing is
        // refused.
        let machine = tree.path().join("proc/meminfo");
        fs::create_dir(machine.parent().unwrap()).unwrap();
        fs::write(&machine, format!("MemTotal: {} kB\n", 23 << 20)).unwrap();
        let grown = Topology::from_root(tree.path()).unwrap();
        assert_eq!(bytes(&grown, [0, 2]), Some((2 + 20) << 30));
        fs::remove_file(&machine).unwrap();
        fs::remove_file(tree.path().join("sys/devices/system/node/node3/meminfo")).unwrap();
        assert_eq!(bytes(&Topology::from_root(tree.path()).unwrap(), [0, 2]), None);
    }
}
