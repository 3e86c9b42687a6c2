//! CPUs that are online, and their nodes, as they come and go.

use nodewise_topology::{CpuId, CpuSet, NodeId, NodeIndex, Topology};
use std::fs;
use std::path::{Path, PathBuf};

const CPUS: &str = "sys/devices/system/cpu";

pub(super) struct Cpus {
    root: PathBuf,
    /// The kernel's numbers of the topology's nodes.
    nodes: Vec<NodeId>,
    online: CpuSet,
    /// By CPU, those that were online at any time.
    node_of: Vec<Option<NodeIndex>>,
}

impl Cpus {
    /// The CPUs of the machine whose files are below `root`.
    pub(super) fn new(root: &Path, topology: &Topology) -> Self {
        let online = topology.online_cpus().clone();
        let all = online.last().map_or(0, |last| last.0 + 1);
        Self {
            root: root.to_owned(),
            nodes: topology.nodes().iter().map(|node| node.id).collect(),
            online,
            node_of: (0..all).map(|cpu| topology.node_of_cpu(CpuId(cpu))).collect(),
        }
    }

    /// Lists them again, and tells whether others are online now. A list that cannot be read changes nothing.
    pub(super) fn update(&mut self) -> bool {
        let text = fs::read_to_string(self.root.join(CPUS).join("online")).unwrap_or_default();
        let Some(online) = text.parse::<CpuSet>().ok().filter(|online| !online.is_empty()) else {
            return false;
        };
        if online == self.online {
            return false;
        }
        for CpuId(cpu) in online.iter() {
            let at = cpu as usize;
            self.node_of.resize(self.node_of.len().max(at + 1), None);
            if self.node_of[at].is_none() {
                self.node_of[at] = self.find_node(cpu);
            }
        }
        self.online = online;
        true
    }

    pub(super) fn online(&self) -> &CpuSet {
        &self.online
    }

    pub(super) fn node_of(&self, cpu: u32) -> Option<NodeIndex> {
        self.node_of.get(cpu as usize).copied().flatten()
    }

    /// A CPU's directory has a link `node3`.
    fn find_node(&self, cpu: u32) -> Option<NodeIndex> {
        let entries = fs::read_dir(self.root.join(CPUS).join(format!("cpu{cpu}"))).ok()?;
        let mut numbers = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
        let id = NodeId(numbers.next()?);
        self.nodes.iter().position(|&node| node == id).map(|index| NodeIndex(index as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_come_later_have_a_node() {
        let root = tempfile::tempdir().unwrap();
        let cpus_path = root.path().join(CPUS);
        let topology = Topology::synthetic(2, 2, 1 << 30);
        let mut cpus = Cpus::new(root.path(), &topology);
        // No list: as it was.
        assert!(!cpus.update());
        assert_eq!(cpus.online().to_string(), "0-3");
        fs::create_dir_all(cpus_path.join("cpu6/node1")).unwrap();
        fs::write(cpus_path.join("cpu6/online"), "1\n").unwrap();
        fs::write(cpus_path.join("online"), "0-2,6\n").unwrap();
        cpus.update();
        assert_eq!(cpus.online().to_string(), "0-2,6");
        assert_eq!((cpus.node_of(6), cpus.node_of(5)), (Some(NodeIndex(1)), None));
        // A sample from before it went offline may still come.
        assert_eq!(cpus.node_of(3), Some(NodeIndex(1)));
    }
}
