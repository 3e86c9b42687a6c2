//! The machine that was recorded: its nodes, their CPUs, and their memory.

use super::file::{Head, Parts, feature};
use nodewise_engine::DataSource;
use nodewise_topology::{CpuId, CpuSet, NodeIndex};

/// Nodes have indices of one byte.
const MOST_NODES: u32 = 255;

/// The nodes, by index.
pub(super) struct Machine {
    /// Their numbers, ascending.
    pub nodes: Vec<u32>,
    cpus: Vec<CpuSet>,
    has_memory: Vec<bool>,
    /// Bytes of a block of memory; 0 where blocks are not known.
    block_bytes: u64,
    /// By node, a bit for each block.
    blocks: Vec<Vec<u64>>,
}

impl Machine {
    /// The machine, by `NUMA_TOPOLOGY` and `MEM_TOPOLOGY`; none without the former.
    pub fn of(head: &Head) -> Option<Self> {
        let mut nodes = numa_topology(Parts(head.feature(feature::NUMA_TOPOLOGY)?))?;
        nodes.sort_by_key(|node| node.number);
        let mut machine = Self {
            nodes: nodes.iter().map(|node| node.number).collect(),
            has_memory: nodes.iter().map(|node| node.memory_kib > 0).collect(),
            blocks: vec![Vec::new(); nodes.len()],
            cpus: nodes.into_iter().map(|node| node.cpus).collect(),
            block_bytes: 0,
        };
        if let Some(blocks) = head.feature(feature::MEM_TOPOLOGY) {
            machine.mem_topology(Parts(blocks));
        }
        Some(machine)
    }

    /// `write_mem_topology` of `tools/perf/util/header.c`: version, bytes of a block, nodes. Each has its
    /// number, its bits twice, and the bits in words.
    fn mem_topology(&mut self, mut parts: Parts<'_>) -> Option<()> {
        const VERSION: u64 = 1;
        parts.u64().filter(|&version| version == VERSION)?;
        self.block_bytes = parts.u64()?;
        for _ in 0..parts.u64()? {
            let number = parts.u64()?;
            parts.u64()?;
            let words = parts.u64()?.div_ceil(64);
            let words = (0..words).map_while(|_| parts.u64()).collect();
            if let Some(node) = self.nodes.iter().position(|&node| u64::from(node) == number) {
                self.blocks[node] = words;
            }
        }
        Some(())
    }

    /// The node of a CPU.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<NodeIndex> {
        self.cpus.iter().position(|cpus| cpus.contains(CpuId(cpu))).map(|node| NodeIndex(node as u8))
    }

    /// The node of a byte of physical memory, if its block is that of one node.
    pub fn node_of_physical(&self, address: u64) -> Option<NodeIndex> {
        let block = address.checked_div(self.block_bytes)?;
        let has = |words: &Vec<u64>| {
            let word = usize::try_from(block / 64).ok().and_then(|at| words.get(at));
            word.is_some_and(|word| word >> (block % 64) & 1 == 1)
        };
        let mut nodes = (0..).zip(&self.blocks).filter(|(_, words)| has(words));
        let (node, _) = nodes.next()?;
        nodes.next().is_none().then_some(NodeIndex(node))
    }

    /// The node whose memory served an access from a node. None where that is not told: among three nodes or
    /// more, another node's memory is that of any of them.
    pub fn node_of_source(&self, accessor: NodeIndex, source: DataSource) -> Option<NodeIndex> {
        let others = || (0..).zip(&self.has_memory).filter(|&(node, &has)| has && node != accessor.0);
        match source {
            DataSource::LocalDram => Some(accessor),
            DataSource::RemoteDram { .. } if others().count() == 1 => {
                others().next().map(|(node, _)| NodeIndex(node))
            }
            _ => None,
        }
    }
}

struct Node {
    number: u32,
    memory_kib: u64,
    cpus: CpuSet,
}

/// `write_numa_topology` of `tools/perf/util/header.c`: each node's number, memory, free memory, and CPUs.
fn numa_topology(mut parts: Parts<'_>) -> Option<Vec<Node>> {
    let count = parts.u32().filter(|&count| (1..=MOST_NODES).contains(&count))?;
    let node = |_| {
        let (number, memory_kib) = (parts.u32()?, parts.u64()?);
        parts.u64()?;
        Some(Node { number, memory_kib, cpus: parts.text()?.trim().parse().ok()? })
    };
    (0..count).map(node).collect()
}
