//! The placements that make sense on a machine.

use nodewise_topology::{CacheKind, CpuId, CpuSet, Node, NodeId, NodeSet, Topology};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// One way to place a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// A word of its own: `default`, `node1`, `thp-always`.
    pub name: String,
    /// The meaning.
    pub how: How,
}

/// How a program is placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum How {
    /// As the kernel does it by itself.
    Default,
    /// CPUs and memory of one node.
    Node {
        /// The node.
        node: NodeId,
        /// Its CPUs.
        cpus: CpuSet,
    },
    /// CPUs of one node, and memory of the node that is farthest from it.
    Far {
        /// The node of the CPUs.
        node: NodeId,
        /// Its CPUs.
        cpus: CpuSet,
        /// The node of the memory.
        memory: NodeId,
    },
    /// Pages in turn on these nodes.
    Interleave {
        /// The nodes.
        nodes: NodeSet,
    },
    /// Pages in turn on these nodes, by the kernel's weights.
    WeightedInterleave {
        /// The nodes.
        nodes: NodeSet,
    },
    /// Each thread stays on a CPU, in the order in which threads are made. Memory is local.
    Pinned {
        /// The CPUs in order; the first follows the last.
        cpus: Vec<CpuId>,
    },
    /// The kernel's NUMA balancing is off or on.
    Balancing {
        /// Whether it is on.
        on: bool,
    },
    /// Transparent huge pages are given to none of the program's memory, or, machine-wide, where programs ask
    /// for them, or everywhere.
    HugePages {
        /// `never`, `madvise` or `always`.
        enabled: String,
    },
    /// `nodewise run` manages the program.
    Nodewise,
}

/// A placement that is not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// The things that this process may use and change.
#[derive(Clone, Debug)]
pub struct Rights {
    /// CPUs that it may run on.
    pub cpus: CpuSet,
    /// Nodes that it may allocate memory on.
    pub memory: NodeSet,
    /// Whether it may change the kernel's settings.
    pub settings: bool,
}

/// The placements to compare, the default first, and those that cannot be tried here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// To be compared.
    pub placements: Vec<Placement>,
    /// With the reason.
    pub skipped: Vec<Skipped>,
}

/// No transparent huge pages ([`How::HugePages`]).
pub const NEVER: &str = "never";

const NEEDS_ROOT: &str = "changes a kernel setting, which is root's";

impl Candidates {
    /// All that make sense on this machine.
    #[must_use]
    pub fn of(topology: &Topology, rights: &Rights) -> Self {
        let mut all = Self { placements: Vec::new(), skipped: Vec::new() };
        all.add("default", How::Default);
        let is_memory = |node: &&Node| node.may_have_memory() && rights.memory.contains(node.id);
        let nodes: NodeSet = topology.nodes().iter().filter(is_memory).map(|node| node.id).collect();
        if nodes.len() > 1 {
            all.add_nodes(topology, rights, &nodes);
        }
        all.add_orders(topology, rights);
        if let (Some(balancing), true) = (topology.numa_balancing(), nodes.len() > 1) {
            let on = !balancing.normal;
            let name = if on { "balancing-on" } else { "balancing-off" };
            all.add_setting(name, How::Balancing { on }, rights);
        }
        let now = topology.transparent_huge_pages().map(|pages| pages.enabled.as_str());
        for enabled in
            [NEVER, "madvise", "always"].into_iter().filter(|&word| now.is_some_and(|now| now != word))
        {
            let (name, how) = (format!("thp-{enabled}"), How::HugePages { enabled: enabled.to_owned() });
            // A program alone can go without.
            if enabled == NEVER { all.add(&name, how) } else { all.add_setting(&name, how, rights) }
        }
        if nodes.len() > 1 {
            all.add("nodewise", How::Nodewise);
        }
        all
    }

    fn add(&mut self, name: &str, how: How) {
        self.placements.push(Placement { name: name.to_owned(), how });
    }

    fn skip(&mut self, name: &str, why: impl Into<String>) {
        self.skipped.push(Skipped { name: name.to_owned(), why: why.into() });
    }

    fn add_setting(&mut self, name: &str, how: How, rights: &Rights) {
        if rights.settings { self.add(name, how) } else { self.skip(name, NEEDS_ROOT) }
    }

    /// Each node alone, memory far away, and memory on all nodes.
    fn add_nodes(&mut self, topology: &Topology, rights: &Rights, memory: &NodeSet) {
        let mut far: Option<(u32, How)> = None;
        for index in topology.node_indices() {
            let node = topology.node(index);
            let cpus = &node.cpus & &rights.cpus;
            if cpus.is_empty() {
                continue;
            }
            if memory.contains(node.id) {
                self.add(&format!("node{}", node.id), How::Node { node: node.id, cpus: cpus.clone() });
                let others = topology.node_indices().filter(|&other| memory.contains(topology.id_of(other)));
                let others = others.filter(|&other| other != index);
                // The first of the farthest.
                let farthest = others.max_by_key(|&other| (topology.distance(index, other), Reverse(other)));
                if let Some(other) = farthest {
                    let distance = topology.distance(index, other);
                    if far.as_ref().is_none_or(|&(least, _)| distance > least) {
                        let memory = topology.id_of(other);
                        far = Some((distance, How::Far { node: node.id, cpus, memory }));
                    }
                }
            }
        }
        if let Some((_, how)) = far {
            self.add("far", how);
        }
        self.add("interleave", How::Interleave { nodes: memory.clone() });
        let weights =
            memory.iter().filter_map(|node| topology.node(topology.index_of(node)?).interleave_weight);
        let weights: Vec<u64> = weights.collect();
        if weights.len() < memory.len() {
            self.skip("weighted", "this kernel has no weighted interleaving (Linux 6.9 has)");
        } else if weights.iter().all(|weight| *weight == weights[0]) {
            self.skip("weighted", "all nodes have the same weight, so that it is as interleave");
        } else {
            self.add("weighted", How::WeightedInterleave { nodes: memory.clone() });
        }
    }

    /// The orders in which threads can be pinned, each that differs from those before.
    fn add_orders(&mut self, topology: &Topology, rights: &Rights) {
        let orders = [
            ("pin-sequential", sequential(rights)),
            ("pin-sockorder", in_turn(&[by_nodes(topology, rights).concat()])),
            ("pin-spread", in_turn(&by_nodes(topology, rights))),
            ("pin-l3", in_turn(&by_caches(topology, rights))),
        ];
        let mut seen: Vec<Vec<CpuId>> = Vec::new();
        for (name, cpus) in orders {
            if cpus.len() > 1 && !seen.contains(&cpus) {
                self.add(name, How::Pinned { cpus: cpus.clone() });
                seen.push(cpus);
            }
        }
    }

    /// Keeps those that are named by their names or by the first part of them (`node`, `pin`, `thp`), and
    /// the default. The error is a word that names none.
    pub fn only(&mut self, names: &[String]) -> Result<(), String> {
        let stem =
            |name: &str| name.split('-').next().unwrap_or(name).trim_end_matches(char::is_numeric).to_owned();
        let is_meant = |name: &str, word: &String| name == word || stem(name) == *word;
        let known = self.placements.iter().map(|placement| &placement.name);
        let known: Vec<&String> = known.chain(self.skipped.iter().map(|skipped| &skipped.name)).collect();
        if let Some(word) = names.iter().find(|word| !known.iter().any(|name| is_meant(name, word))) {
            return Err(word.clone());
        }
        let keep = |name: &str| name == "default" || names.iter().any(|word| is_meant(name, word));
        self.placements.retain(|placement| keep(&placement.name));
        self.skipped.retain(|skipped| keep(&skipped.name));
        Ok(())
    }
}

/// As the kernel numbers CPUs.
fn sequential(rights: &Rights) -> Vec<CpuId> {
    rights.cpus.iter().collect()
}

/// CPUs of a set: one of each core first, then the others of each core.
fn cores_first(topology: &Topology, cpus: &CpuSet) -> Vec<CpuId> {
    let place = |cpu: CpuId| {
        let core = topology.cores().iter().find(|core| core.cpus.contains(cpu));
        core.map_or(0, |core| core.cpus.iter().filter(|&other| other < cpu).count())
    };
    let mut cpus: Vec<CpuId> = cpus.iter().collect();
    cpus.sort_by_key(|&cpu| (place(cpu), cpu));
    cpus
}

fn by_nodes(topology: &Topology, rights: &Rights) -> Vec<Vec<CpuId>> {
    let cpus = topology.nodes().iter().map(|node| cores_first(topology, &(&node.cpus & &rights.cpus)));
    cpus.filter(|cpus| !cpus.is_empty()).collect()
}

/// By last-level cache, which several may be of a node.
fn by_caches(topology: &Topology, rights: &Rights) -> Vec<Vec<CpuId>> {
    let level = topology.caches().iter().map(|cache| cache.level).max().unwrap_or(0);
    let is_last =
        |cache: &&nodewise_topology::Cache| cache.level == level && cache.kind != CacheKind::Instruction;
    let last = topology.caches().iter().filter(is_last);
    let cpus = last.map(|cache| cores_first(topology, &(&cache.cpus & &rights.cpus)));
    cpus.filter(|cpus| !cpus.is_empty()).collect()
}

/// One CPU of each group in turn.
fn in_turn(groups: &[Vec<CpuId>]) -> Vec<CpuId> {
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|at| groups.iter().filter_map(move |group| group.get(at).copied())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(topology: &Topology) -> Rights {
        let memory = topology.nodes().iter().map(|node| node.id).collect();
        Rights { cpus: topology.online_cpus().clone(), memory, settings: true }
    }

    fn names(candidates: &Candidates) -> String {
        let names = candidates.placements.iter().map(|placement| placement.name.as_str());
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_node_alone_and_memory_far_away() {
        let topology = Topology::synthetic(3, 2, 1 << 30);
        let candidates = Candidates::of(&topology, &rights(&topology));
        // A synthetic machine has no settings and no caches; its CPUs are numbered node by node.
        assert_eq!(
            names(&candidates),
            "default node0 node1 node2 far interleave pin-sequential pin-spread nodewise"
        );
        let far = &candidates.placements[4].how;
        let How::Far { node, cpus, memory } = far else { panic!("{far:?}") };
        assert_eq!((node.0, cpus.to_string().as_str(), memory.0), (0, "0-1", 1));
        let spread = &candidates.placements[7].how;
        assert_eq!(spread, &How::Pinned { cpus: [0, 2, 4, 1, 3, 5].map(CpuId).to_vec() });
    }

    #[test]
    fn forbidden_nodes_and_cpus_are_left_out() {
        let topology = Topology::synthetic(3, 2, 1 << 30);
        let rights =
            Rights { cpus: "0-1,4".parse().unwrap(), memory: "1-2".parse().unwrap(), settings: false };
        let mut candidates = Candidates::of(&topology, &rights);
        assert_eq!(names(&candidates), "default node2 far interleave pin-sequential pin-spread nodewise");
        candidates.only(&["pin".to_owned(), "node2".to_owned()]).unwrap();
        assert_eq!(names(&candidates), "default node2 pin-sequential pin-spread");
        assert_eq!(candidates.only(&["node7".to_owned()]), Err("node7".to_owned()));
    }

    #[test]
    fn one_node_has_nothing_to_place() {
        let topology = Topology::synthetic(1, 2, 1 << 30);
        assert_eq!(names(&Candidates::of(&topology, &rights(&topology))), "default pin-sequential");
    }
}
