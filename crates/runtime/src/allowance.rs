//! The CPUs and nodes that this process may use, and how many workers that makes.

use crate::error::Result;
use nodewise_topology::{Allowed, CpuQuota, CpuSet, NodeId, NodeSet, Topology};

/// The nodes with CPUs that the calling thread may run on, and how much CPU time there is for them.
///
/// Left out are CPUs that are offline, outside of the cpuset or of the thread's affinity, and so nodes that
/// have none besides; a node without memory has its CPUs all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    nodes: Vec<AllowedNode>,
    cpu_quota: Option<CpuQuota>,
}

/// One node of an [`Allowance`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllowedNode {
    /// The kernel's number.
    pub id: NodeId,
    /// Its CPUs that may be used; at least one.
    pub cpus: CpuSet,
    /// Whether the process may have memory on it.
    pub memory: bool,
    /// Distance to each node of the allowance, in their order; 10 is local.
    pub distances: Vec<u32>,
    /// Its CPUs by the last-level cache (L3) that they share, ascending; one set of all where the kernel
    /// tells of none.
    pub caches: Vec<CpuSet>,
}

impl Allowance {
    /// The part of this machine that the calling thread may use now. A later change of its cpuset is not
    /// seen; read it anew.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Machine`]: `/sys` or `/proc` cannot be read.
    pub fn of_this_thread() -> Result<Self> {
        let topology = Topology::live()?;
        let allowed = Allowed::of_this_thread(&topology)?;
        Ok(Self::new(&topology, &allowed, CpuQuota::of_this_process()?))
    }

    /// The part of a machine that a process with this `allowed` part and this quota may use.
    #[must_use]
    pub fn new(topology: &Topology, allowed: &Allowed, cpu_quota: Option<CpuQuota>) -> Self {
        let usable: Vec<_> = topology
            .node_indices()
            .map(|index| (index, &topology.node(index).cpus & &allowed.cpus))
            .filter(|(_, cpus)| !cpus.is_empty())
            .collect();
        let levels = topology.caches().iter().map(|cache| cache.level);
        let last_level = levels.max().filter(|&level| level > 2);
        let by_cache = |cpus: &CpuSet| {
            let shared = topology.caches().iter().filter(|cache| Some(cache.level) == last_level);
            let mut caches: Vec<CpuSet> = shared.map(|cache| &cache.cpus & cpus).collect();
            let without =
                cpus.iter().filter(|&cpu| !caches.iter().any(|cache| cache.contains(cpu))).collect();
            caches.push(without);
            caches.retain(|cache| !cache.is_empty());
            caches.sort_by_key(CpuSet::first);
            caches
        };
        let node = |(index, cpus): &(_, CpuSet)| AllowedNode {
            caches: by_cache(cpus),
            id: topology.id_of(*index),
            cpus: cpus.clone(),
            memory: allowed.memory_nodes.contains(topology.id_of(*index)),
            distances: usable.iter().map(|(to, _)| topology.distance(*index, *to)).collect(),
        };
        Self { nodes: usable.iter().map(node).collect(), cpu_quota }
    }

    /// The nodes, ascending.
    #[must_use]
    pub fn nodes(&self) -> &[AllowedNode] {
        &self.nodes
    }

    /// The limit of CPU time, if there is one.
    #[must_use]
    pub fn cpu_quota(&self) -> Option<CpuQuota> {
        self.cpu_quota
    }

    /// The same allowance, reduced to these nodes.
    #[must_use]
    pub fn on_nodes(&self, nodes: &NodeSet) -> Self {
        let kept: Vec<usize> = (0..self.nodes.len()).filter(|&i| nodes.contains(self.nodes[i].id)).collect();
        self.kept(&kept)
    }

    /// The same allowance with an entry for each cache of a node instead of one for each node.
    pub(crate) fn by_cache(&self) -> Self {
        let groups: Vec<(usize, &CpuSet)> = (0..self.nodes.len())
            .flat_map(|node| self.nodes[node].caches.iter().map(move |cpus| (node, cpus)))
            .collect();
        let group = |&(node, cpus): &(usize, &CpuSet)| AllowedNode {
            cpus: cpus.clone(),
            distances: groups.iter().map(|&(to, _)| self.nodes[node].distances[to]).collect(),
            caches: vec![cpus.clone()],
            ..self.nodes[node].clone()
        };
        Self { nodes: groups.iter().map(group).collect(), cpu_quota: self.cpu_quota }
    }

    /// The entries that get workers.
    pub(crate) fn with_workers(&self, workers: &[usize]) -> Self {
        self.kept(&(0..self.nodes.len()).filter(|&node| workers[node] > 0).collect::<Vec<_>>())
    }

    fn kept(&self, kept: &[usize]) -> Self {
        let node = |&index: &usize| {
            let node = &self.nodes[index];
            let distances = kept.iter().map(|&to| node.distances[to]).collect();
            AllowedNode { distances, ..node.clone() }
        };
        Self { nodes: kept.iter().map(node).collect(), cpu_quota: self.cpu_quota }
    }

    /// The number of threads that can run at a time: that of the CPUs, or of those that the quota keeps busy
    /// all the time, if these are fewer.
    #[must_use]
    pub fn parallelism(&self) -> usize {
        let cpus = self.nodes.iter().map(|node| node.cpus.len()).sum();
        self.cpu_quota.map_or(cpus, |quota| quota.whole_cpus().min(cpus))
    }

    /// The number of workers for each node, in the order of [`Allowance::nodes`]. All together are `most`, or
    /// [`Allowance::parallelism`] if that is less. They are in proportion to the nodes' CPUs (D'Hondt's
    /// method, ties to the lower node).
    #[must_use]
    pub fn workers(&self, most: usize) -> Vec<usize> {
        let mut workers = vec![0; self.nodes.len()];
        for _ in 0..most.min(self.parallelism()) {
            let free = (0..workers.len()).filter(|&node| workers[node] < self.nodes[node].cpus.len());
            // The greatest cpus / (workers + 1), compared without fractions; of equals max_by keeps the last.
            let best = free.rev().max_by(|&a, &b| {
                let share = |node: usize, other: usize| self.nodes[node].cpus.len() * (workers[other] + 1);
                share(a, b).cmp(&share(b, a))
            });
            if let Some(node) = best {
                workers[node] += 1;
            }
        }
        workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_topology::CpuId;
    use proptest::prelude::*;

    fn allowance(cpus: &[usize], quota: Option<u64>) -> Allowance {
        let topology = Topology::synthetic(cpus.len(), 8, 1 << 30);
        let mut allowed = Allowed::everything(&topology);
        allowed.cpus = cpus
            .iter()
            .enumerate()
            .flat_map(|(node, &cpus)| (0..cpus).map(move |cpu| CpuId((node * 8 + cpu) as u32)))
            .collect();
        let quota = quota.map(|cpus| CpuQuota { quota_us: cpus * 100_000, period_us: 100_000 });
        Allowance::new(&topology, &allowed, quota)
    }

    #[test]
    fn a_node_without_allowed_cpus_is_none() {
        let allowance = allowance(&[2, 0, 4], None);
        assert_eq!(allowance.nodes().iter().map(|node| node.id.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(allowance.nodes()[1].distances, [20, 10]);
        assert_eq!(allowance.workers(usize::MAX), [2, 4]);
    }

    #[test]
    fn a_quota_is_shared_in_proportion() {
        assert_eq!(allowance(&[8, 8], Some(5)).workers(usize::MAX), [3, 2]);
        assert_eq!(allowance(&[8, 4], Some(3)).workers(usize::MAX), [2, 1]);
        assert_eq!(allowance(&[8, 8], Some(0)).workers(usize::MAX), [1, 0]);
    }

    #[test]
    fn this_thread_may_use_what_the_kernel_says() {
        let allowance = Allowance::of_this_thread().unwrap();
        let cpus: Vec<u32> = nodewise_sys::sched_getaffinity(0).unwrap().iter().collect();
        let told: CpuSet = allowance.nodes().iter().flat_map(|node| node.cpus.iter()).collect();
        assert_eq!(told.iter().map(|cpu| cpu.0).collect::<Vec<_>>(), cpus);
    }

    proptest! {
        #[test]
        fn never_more_workers_than_cpus_nor_than_asked(
            cpus in proptest::collection::vec(0..=8_usize, 1..6),
            quota in proptest::option::of(0..20_u64),
            most in 0..40_usize,
        ) {
            let allowance = allowance(&cpus, quota);
            let workers = allowance.workers(most);
            prop_assert_eq!(workers.iter().sum::<usize>(), most.min(allowance.parallelism()));
            for (node, &workers) in allowance.nodes().iter().zip(&workers) {
                prop_assert!(workers <= node.cpus.len());
            }
        }
    }
}
