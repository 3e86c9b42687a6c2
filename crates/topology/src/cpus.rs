//! The CPUs: which are online, and which make up a core and a package.

use crate::error::{Error, ErrorKind, ParseError};
use crate::ids::{CpuId, NodeId};
use crate::root::Root;
use crate::set::{CpuSet, NodeSet};
use crate::warnings::Warnings;
use serde::Serialize;
use std::path::Path;

/// Every Linux with sysfs has this directory.
pub(crate) const DIR: &str = "sys/devices/system/cpu";

/// CPUs that sit in one physical package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Package {
    /// The kernel's `physical_package_id`; `None` where firmware gives none.
    pub id: Option<u32>,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

/// A core: the CPUs that are its hardware threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Core {
    /// The kernel's `core_id`, which tells cores of one package apart, not cores of different packages;
    /// `None` where firmware gives none.
    pub id: Option<u32>,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

/// The CPUs and nodes that may ever be there while this kernel runs, hot-plugged or not. Tables that are
/// indexed by kernel numbers need room for them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Possible {
    /// CPUs (`/sys/devices/system/cpu/possible`).
    pub cpus: CpuSet,
    /// Nodes (`/sys/devices/system/node/possible`); node 0 alone on kernels without NUMA.
    pub nodes: NodeSet,
}

impl Possible {
    /// The possible CPUs and nodes of this machine.
    pub fn live() -> Result<Self, Error> {
        Self::from_root(Path::new("/"))
    }

    /// The possible CPUs and nodes of the machine whose `/` a directory stands for.
    pub fn from_root(path: &Path) -> Result<Self, Error> {
        let root = Root::new(path);
        let cpus = match root.set(&format!("{DIR}/possible"))? {
            Some(cpus) => cpus,
            None => root.numbered(DIR, "cpu")?.into_iter().map(CpuId).collect(),
        };
        let nodes = root.set("sys/devices/system/node/possible")?;
        Ok(Self { cpus, nodes: nodes.unwrap_or_else(|| NodeSet::from_iter([NodeId(0)])) })
    }
}

/// The online CPUs, and those present but not online. A directory that cannot be read or names none is an
/// error.
pub(crate) fn read(root: &Root, warnings: &Warnings) -> Result<(CpuSet, CpuSet), Error> {
    let listed: CpuSet = root.numbered(DIR, "cpu")?.into_iter().map(CpuId).collect();
    let online: Option<CpuSet> = warnings.known(root.set(&format!("{DIR}/online")));
    let online =
        online.filter(|online| !online.is_empty()).unwrap_or_else(|| switched_on(root, &listed, warnings));
    if online.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, &root.path(DIR), "names no CPU that is online"));
    }
    let present = warnings.known(root.set(&format!("{DIR}/present"))).unwrap_or(listed);
    let offline = &present - &online;
    Ok((online, offline))
}

/// Linux before 2.6.26 has no lists; a CPU that can be switched off says itself whether it is.
fn switched_on(root: &Root, listed: &CpuSet, warnings: &Warnings) -> CpuSet {
    let is_on = |cpu: &CpuId| {
        let switch = root.number(&format!("{DIR}/cpu{cpu}/online"));
        warnings.known(switch) != Some(0)
    };
    listed.iter().filter(is_on).collect()
}

/// The packages, by lowest CPU.
pub(crate) fn packages(root: &Root, online: &CpuSet, warnings: &Warnings) -> Vec<Package> {
    // `package_cpus` is the name since Linux 5.2 of what `core_siblings` was.
    let groups = groups(root, online, "physical_package_id", ["package_cpus", "core_siblings"], warnings);
    groups.into_iter().map(|(id, cpus)| Package { id, cpus }).collect()
}

/// The cores, by lowest CPU.
pub(crate) fn cores(root: &Root, online: &CpuSet, warnings: &Warnings) -> Vec<Core> {
    let groups = groups(root, online, "core_id", ["core_cpus", "thread_siblings"], warnings);
    groups.into_iter().map(|(id, cpus)| Core { id, cpus }).collect()
}

/// Partitions the CPUs by one of the sibling sets in their `topology` directories. The set and not the id
/// decides: ids repeat (core 0 of each package) and may be unknown. CPUs whose kernel says nothing are in no
/// group.
fn groups(
    root: &Root,
    online: &CpuSet,
    id_file: &str,
    sets: [&str; 2],
    warnings: &Warnings,
) -> Vec<(Option<u32>, CpuSet)> {
    let mut groups = Vec::new();
    let mut grouped = CpuSet::new();
    for cpu in online.iter() {
        if grouped.contains(cpu) {
            continue;
        }
        let dir = format!("{DIR}/cpu{cpu}/topology");
        let mut siblings = None;
        for name in sets {
            if siblings.is_none() {
                let set = root.list_or_mask(&format!("{dir}/{name}_list"), &format!("{dir}/{name}"));
                siblings = warnings.known(set);
            }
        }
        let Some(siblings) = siblings else { continue };
        let id = warnings.known(root.parsed(&format!("{dir}/{id_file}"), group_id)).flatten();
        let mut siblings = &(&siblings & online) - &grouped;
        siblings.insert(cpu);
        grouped = &grouped | &siblings;
        groups.push((id, siblings));
    }
    groups
}

/// -1 is the kernel's word for unknown; printed unsigned by some architectures.
fn group_id(text: &str) -> Result<Option<u32>, ParseError> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(id) if (0..=i64::from(u32::MAX)).contains(&id) => {
            Ok(u32::try_from(id).ok().filter(|&id| id != u32::MAX))
        }
        _ => Err(ParseError::new("a number or -1", text)),
    }
}
