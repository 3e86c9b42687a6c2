//! The nodes: their CPUs, memory and distances.

use crate::cpus;
use crate::error::{Error, ErrorKind, ParseError};
use crate::ids::NodeId;
use crate::model::{HugePages, Node, default_distances};
use crate::root::{Root, Text};
use crate::set::{CpuSet, NodeSet};

const DIR: &str = "sys/devices/system/node";

/// The nodes by ascending id, and warnings about what firmware got wrong.
pub(crate) fn read(root: &Root, online: &CpuSet) -> Result<(Vec<Node>, Vec<String>), Error> {
    let ids: Vec<NodeId> = root.numbered(DIR, "node")?.into_iter().map(NodeId).collect();
    if ids.is_empty() {
        return Ok((vec![whole_machine(root, online)?], Vec::new()));
    }
    if ids.len() > 256 {
        let what = format!("has {} nodes, 256 is the most that is supported", ids.len());
        return Err(Error::new(ErrorKind::TooLarge, &root.path(DIR), what));
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut warnings = Vec::new();
    let mut taken = CpuSet::new();
    for (index, &id) in ids.iter().enumerate() {
        let cpus = &cpus_of(root, id)? & online;
        // Firmware that lists all CPUs in every node (hwloc's 8em64t-2s2ca2c-buggynuma has eight such nodes at
        // distance 10) describes no NUMA machine. As hwloc does, the first node keeps the CPUs and the others are left out:
        // a node that shares CPUs cannot be anybody's home.
        if cpus.intersects(&taken) {
            warnings.push(format!(
                "node {id} is left out: its CPUs {} already belong to another node (a firmware fault)",
                &cpus & &taken
            ));
            continue;
        }
        taken = &taken | &cpus;
        let (memory_total_bytes, memory_free_bytes) = memory_of(root, id)?;
        nodes.push(Node {
            id,
            cpus,
            memory_total_bytes,
            memory_free_bytes,
            huge_pages: huge_pages_of(root, id)?,
            distances: distances_of(root, id, index, &ids)?,
        });
    }
    let kept: Vec<usize> = ids
        .iter()
        .enumerate()
        .filter(|(_, id)| nodes.iter().any(|node| node.id == **id))
        .map(|(index, _)| index)
        .collect();
    for node in &mut nodes {
        node.distances = kept.iter().map(|&index| node.distances[index]).collect();
    }
    Ok((nodes, warnings))
}

/// A kernel without `CONFIG_NUMA` has no node directory: the machine is one node.
fn whole_machine(root: &Root, online: &CpuSet) -> Result<Node, Error> {
    let meminfo = root.required("proc/meminfo")?;
    Ok(Node {
        id: NodeId(0),
        cpus: online.clone(),
        memory_total_bytes: meminfo_bytes(&meminfo, "MemTotal:")?,
        memory_free_bytes: meminfo_bytes(&meminfo, "MemFree:")?,
        huge_pages: huge_pages_in(root, "sys/kernel/mm/hugepages")?,
        distances: default_distances(0, 1),
    })
}

/// `cpulist` came with Linux 2.6.25; before, and in a few captures, there is only the mask.
fn cpus_of(root: &Root, id: NodeId) -> Result<CpuSet, Error> {
    if let Some(list) = cpus::list(root, &format!("{DIR}/node{id}/cpulist"))? {
        return Ok(list);
    }
    root.required(&format!("{DIR}/node{id}/cpumap"))?.parse(CpuSet::from_mask)
}

fn memory_of(root: &Root, id: NodeId) -> Result<(u64, u64), Error> {
    let meminfo = root.required(&format!("{DIR}/node{id}/meminfo"))?;
    Ok((
        meminfo_bytes(&meminfo, &format!("Node {id} MemTotal:"))?,
        meminfo_bytes(&meminfo, &format!("Node {id} MemFree:"))?,
    ))
}

/// The value of a line like `MemTotal:  8386704 kB`.
fn meminfo_bytes(meminfo: &Text, key: &str) -> Result<u64, Error> {
    let Some((line, value)) =
        meminfo.lines().find_map(|(line, text)| Some((line, text.strip_prefix(key)?.trim())))
    else {
        return Err(
            meminfo.error(meminfo.lines().count().max(1), format!("expected a line '{key}', found none"))
        );
    };
    let kilobytes: Option<u64> = value.strip_suffix("kB").and_then(|number| number.trim_end().parse().ok());
    kilobytes
        .and_then(|kilobytes| kilobytes.checked_mul(1024))
        .ok_or_else(|| meminfo.error(line, ParseError::new("a size like '8386704 kB'", value)))
}

fn huge_pages_of(root: &Root, id: NodeId) -> Result<Vec<HugePages>, Error> {
    huge_pages_in(root, &format!("{DIR}/node{id}/hugepages"))
}

fn huge_pages_in(root: &Root, dir: &str) -> Result<Vec<HugePages>, Error> {
    let mut pools = Vec::new();
    for name in root.names(dir)? {
        let size = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB"));
        let Some(kilobytes) = size.and_then(|size| size.parse::<u64>().ok()).filter(|&kb| kb < 1 << 50)
        else {
            continue;
        };
        let count = |file: &str| -> Result<u64, Error> {
            root.text(&format!("{dir}/{name}/{file}"))?.as_ref().map_or(Ok(0), Text::number)
        };
        pools.push(HugePages {
            page_bytes: kilobytes * 1024,
            total: count("nr_hugepages")?,
            free: count("free_hugepages")?,
        });
    }
    pools.sort_by_key(|pool| pool.page_bytes);
    Ok(pools)
}

/// One row of the SLIT: a number for each online node (`node_read_distance`, drivers/base/node.c, Linux 6.1).
fn distances_of(root: &Root, id: NodeId, index: usize, ids: &[NodeId]) -> Result<Vec<u32>, Error> {
    let Some(text) = root.text(&format!("{DIR}/node{id}/distance"))? else {
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
    let possible = root.text(&format!("{DIR}/possible"))?.map(|text| text.parse(str::parse::<NodeSet>));
    let possible: Vec<NodeId> = possible.transpose()?.unwrap_or_default().iter().collect();
    if row.len() == possible.len() {
        let at = |id: &NodeId| possible.binary_search(id).ok().map(|index| row[index]);
        if let Some(row) = ids.iter().map(at).collect() {
            return Ok(row);
        }
    }
    Err(text.error(1, format!("expected a distance for each of {} nodes, found {}", ids.len(), row.len())))
}
