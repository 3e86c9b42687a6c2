//! The CPUs and nodes that a process may use.

use crate::error::{Error, ParseError};
use crate::model::Topology;
use crate::root::Root;
use crate::set::{CpuSet, Id, IdSet, NodeSet};
use std::path::Path;

/// The resources that a process may use: the CPUs of its affinity and the memory nodes of its cpuset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// CPUs it may run on.
    pub cpus: CpuSet,
    /// Nodes it may have memory on.
    pub memory_nodes: NodeSet,
}

impl Allowed {
    /// The resources that the calling thread may use. They come from `Cpus_allowed_list` and
    /// `Mems_allowed_list` in its `/proc/thread-self/status`, as far as the machine has them.
    pub fn of_this_thread(topology: &Topology) -> Result<Self, Error> {
        Self::from_status(topology, &Root::new(Path::new("/")), "proc/thread-self/status")
    }

    /// Everything the machine has: online CPUs, and nodes with memory.
    #[must_use]
    pub fn everything(topology: &Topology) -> Self {
        let with_memory = topology.nodes().iter().filter(|node| node.may_have_memory());
        Self { cpus: topology.online_cpus().clone(), memory_nodes: with_memory.map(|node| node.id).collect() }
    }

    fn from_status(topology: &Topology, root: &Root, file: &str) -> Result<Self, Error> {
        let everything = Self::everything(topology);
        let status = root.required(file)?;
        // A kernel without cpusets writes no Mems_allowed_list: everything is allowed.
        Ok(Self {
            cpus: among(&status, "Cpus_allowed_list:", &everything.cpus)?,
            memory_nodes: among(&status, "Mems_allowed_list:", &everything.memory_nodes)?,
        })
    }
}

fn among<I: Id>(status: &crate::root::Text, key: &str, all: &IdSet<I>) -> Result<IdSet<I>, Error> {
    match status.lines().find_map(|(number, line)| Some((number, line.strip_prefix(key)?))) {
        None => Ok(all.clone()),
        Some((number, list)) => {
            let list: IdSet<I> = list.parse().map_err(|error: ParseError| status.error(number, error))?;
            Ok(&list & all)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_file_says_what_is_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Topology::synthetic(4, 4, 1 << 30);
        let read = |text: &str| {
            std::fs::write(dir.path().join("status"), text).unwrap();
            Allowed::from_status(&machine, &Root::new(dir.path()), "status")
        };
        let allowed = read("Name:\tx\nCpus_allowed_list:\t6-13\nMems_allowed_list:\t1,3-1023\n").unwrap();
        assert_eq!(
            (allowed.cpus.to_string(), allowed.memory_nodes.to_string()),
            ("6-13".into(), "1,3".into())
        );
        assert_eq!(read("Name:\tx\n").unwrap(), Allowed::everything(&machine));
        let error = read("Name:\tx\nCpus_allowed_list:\tall\n").unwrap_err();
        assert!(
            error.to_string().ends_with("status:2: expected a list like 0-3,8,10-11, found 'all'"),
            "{error}"
        );
    }
}
