//! The counts of the hardware.

/// Counts since the start. The difference of two is what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// How many nodes there are.
    pub nodes: usize,
    /// Instructions of each CPU.
    pub instructions: Vec<u64>,
    /// Reads and writes that a program's DRAM accesses came to, by accessor node and home node: `[accessor *
    /// nodes + home]`. Fills only; lines written back are in the controllers' bytes.
    pub dram: Vec<u64>,
    /// Sum of their latencies, in the same order.
    pub dram_latency_ps: Vec<u64>,
    /// Misses of each node's LLC.
    pub llc_misses: Vec<u64>,
    /// Misses whose lines another node's LLC held modified and delivered.
    pub remote_llc: Vec<u64>,
    /// Modified lines that were written back, `[node * nodes + home]`.
    pub writebacks: Vec<u64>,
    /// Bytes of pages that were copied between memories: each is read once and written once.
    pub copied_bytes: u64,
    /// Work of each controller.
    pub controllers: Vec<Load>,
    /// Work of each link, in the preset's order.
    pub links: Vec<Load>,
}

/// Work of a controller or a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes it moved.
    pub bytes: u64,
    /// Time it was busy.
    pub busy_ps: u64,
    /// Time that requests waited for it.
    pub wait_ps: u64,
}

impl Counters {
    /// Counts of nothing, for a machine of this many nodes, CPUs and links.
    #[must_use]
    pub fn new(nodes: usize, cpus: usize, links: usize) -> Self {
        Self {
            nodes,
            instructions: vec![0; cpus],
            dram: vec![0; nodes * nodes],
            dram_latency_ps: vec![0; nodes * nodes],
            llc_misses: vec![0; nodes],
            remote_llc: vec![0; nodes],
            writebacks: vec![0; nodes * nodes],
            copied_bytes: 0,
            controllers: vec![Load::default(); nodes],
            links: vec![Load::default(); links],
        }
    }

    /// The counts since an earlier state of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference =
            |now: &[u64], then: &[u64]| now.iter().zip(then).map(|(now, then)| now - then).collect();
        let loads = |now: &[Load], then: &[Load]| {
            now.iter()
                .zip(then)
                .map(|(now, then)| Load {
                    bytes: now.bytes - then.bytes,
                    busy_ps: now.busy_ps - then.busy_ps,
                    wait_ps: now.wait_ps - then.wait_ps,
                })
                .collect()
        };
        Self {
            nodes: self.nodes,
            instructions: difference(&self.instructions, &earlier.instructions),
            dram: difference(&self.dram, &earlier.dram),
            dram_latency_ps: difference(&self.dram_latency_ps, &earlier.dram_latency_ps),
            llc_misses: difference(&self.llc_misses, &earlier.llc_misses),
            remote_llc: difference(&self.remote_llc, &earlier.remote_llc),
            writebacks: difference(&self.writebacks, &earlier.writebacks),
            copied_bytes: self.copied_bytes - earlier.copied_bytes,
            controllers: loads(&self.controllers, &earlier.controllers),
            links: loads(&self.links, &earlier.links),
        }
    }

    /// DRAM accesses from one node to another's memory.
    #[must_use]
    pub fn dram_between(&self, accessor: usize, home: usize) -> u64 {
        self.dram[accessor * self.nodes + home]
    }

    /// Lines that went from one node to another: fills from another node's memory or LLC, and lines written
    /// back to another node's memory; on a machine without caches, words. Pages that were copied are not
    /// in it.
    #[must_use]
    pub fn lines_between_nodes(&self) -> u64 {
        let between = |lines: &[u64]| -> u64 {
            let crossing = |index: usize| index / self.nodes != index % self.nodes;
            lines.iter().enumerate().filter(|&(index, _)| crossing(index)).map(|(_, lines)| lines).sum()
        };
        between(&self.dram) + between(&self.writebacks) + self.remote_llc.iter().sum::<u64>()
    }

    /// Mean latency of DRAM accesses; 0 if there were none.
    #[must_use]
    pub fn mean_dram_latency_ps(&self) -> f64 {
        let accesses: u64 = self.dram.iter().sum();
        self.dram_latency_ps.iter().sum::<u64>() as f64 / accesses.max(1) as f64
    }
}

impl std::ops::Sub for &Counters {
    type Output = Counters;

    fn sub(self, earlier: &Counters) -> Counters {
        self.since(earlier)
    }
}
