//! A node's memory: how much, in which pages, how fast from where, behind which cache.

use crate::error::{Error, ParseError};
use crate::ids::NodeId;
use crate::root::{Root, Text, number_after};
use crate::set::NodeSet;
use crate::warnings::Warnings;
use serde::Serialize;

/// A node's pool of hugetlb pages of one size. Numbers that are unknown are `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HugePages {
    /// Size of one page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: Option<u64>,
    /// Pages of the pool nobody has allocated.
    pub free: Option<u64>,
    /// Pages in the pool above its configured number.
    pub surplus: Option<u64>,
}

/// How well the best initiators reach a node's memory, from ACPI's HMAT or a device's CDAT
/// (Documentation/admin-guide/mm/numaperf.rst, Linux 6.1). Values firmware does not give, or gives as 0, are
/// `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Access {
    /// The access class. 0 is for the best initiators of any kind, devices included; 1 is for the best that
    /// have CPUs.
    pub class: u32,
    /// The nodes these figures hold for: the best initiators of this memory.
    pub initiators: NodeSet,
    /// Latency of a read.
    pub read_latency_ns: Option<u64>,
    /// Latency of a write.
    pub write_latency_ns: Option<u64>,
    /// Bandwidth of reads.
    pub read_bandwidth_bytes_per_s: Option<u64>,
    /// Bandwidth of writes.
    pub write_bandwidth_bytes_per_s: Option<u64>,
}

/// A cache in front of a node's memory: DRAM before persistent memory, say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemorySideCache {
    /// The level; 1 is nearest to the memory.
    pub level: u32,
    /// Its size, where firmware gives it.
    pub size_bytes: Option<u64>,
    /// Its line size, where firmware gives it.
    pub line_bytes: Option<u64>,
}

/// Nodes whose memory is about equally fast; the kernel demotes pages from one tier to the next
/// (Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers, Linux 6.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryTier {
    /// The kernel's number: the lower, the faster. Ordinary DRAM is in tier 4.
    pub id: u32,
    /// The nodes of the tier.
    pub nodes: NodeSet,
}

/// The value of a line like `MemTotal:  8386704 kB`.
pub(crate) fn meminfo_bytes(meminfo: &Text, key: &str) -> Result<u64, Error> {
    let line = meminfo.lines().find_map(|(number, text)| Some((number, text.strip_prefix(key)?.trim())));
    let Some((number, value)) = line else {
        let last = meminfo.lines().count().max(1);
        return Err(meminfo.error(last, format!("expected a line '{key}', found none up to here")));
    };
    let kilobytes: Option<u64> = value.strip_suffix("kB").and_then(|digits| digits.trim_end().parse().ok());
    kilobytes
        .and_then(|kilobytes| kilobytes.checked_mul(1024))
        .ok_or_else(|| meminfo.error(number, ParseError::new("a size like '8386704 kB'", value)))
}

/// The pools in a directory of `hugepages-2048kB` and the like, by ascending page size.
pub(crate) fn huge_pages(root: &Root, dir: &str, warnings: &Warnings) -> Vec<HugePages> {
    let mut pools = Vec::new();
    for name in warnings.known(root.names(dir)) {
        let kilobytes = name.strip_suffix("kB").and_then(|name| number_after(name, "hugepages-"));
        let Some(kilobytes) = kilobytes else { continue };
        let count = |file: &str| warnings.known(root.number(&format!("{dir}/{name}/{file}")));
        pools.push(HugePages {
            page_bytes: u64::from(kilobytes) * 1024,
            total: count("nr_hugepages"),
            free: count("free_hugepages"),
            surplus: count("surplus_hugepages"),
        });
    }
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

/// The access classes of a node, from its `accessN/initiators`; a node that only initiates has none.
pub(crate) fn access(root: &Root, node_dir: &str, warnings: &Warnings) -> Vec<Access> {
    let mut classes = Vec::new();
    for class in warnings.known(root.numbered(node_dir, "access")) {
        let dir = format!("{node_dir}/access{class}/initiators");
        let value =
            |file: &str| warnings.known(root.number(&format!("{dir}/{file}"))).filter(|&value| value != 0);
        // The files are in MiB/s.
        let bandwidth = |file: &str| value(file).map(|mebibytes| mebibytes.saturating_mul(1 << 20));
        let access = Access {
            class,
            initiators: warnings.known(root.numbered(&dir, "node")).into_iter().map(NodeId).collect(),
            read_latency_ns: value("read_latency"),
            write_latency_ns: value("write_latency"),
            read_bandwidth_bytes_per_s: bandwidth("read_bandwidth"),
            write_bandwidth_bytes_per_s: bandwidth("write_bandwidth"),
        };
        if !access.initiators.is_empty() {
            classes.push(access);
        }
    }
    classes
}

/// The memory-side caches of a node, from its `memory_side_cache/indexN`.
pub(crate) fn side_caches(root: &Root, node_dir: &str, warnings: &Warnings) -> Vec<MemorySideCache> {
    let dir = format!("{node_dir}/memory_side_cache");
    let mut caches = Vec::new();
    for level in warnings.known(root.numbered(&dir, "index")) {
        let value = |file: &str| {
            warnings.known(root.number(&format!("{dir}/index{level}/{file}"))).filter(|&value| value != 0)
        };
        caches.push(MemorySideCache { level, size_bytes: value("size"), line_bytes: value("line_size") });
    }
    caches
}

/// The memory tiers, fastest first; none before Linux 6.1.
pub(crate) fn tiers(root: &Root, warnings: &Warnings) -> Vec<MemoryTier> {
    let dir = "sys/devices/virtual/memory_tiering";
    let mut tiers = Vec::new();
    for id in warnings.known(root.numbered(dir, "memory_tier")) {
        if let Some(nodes) = warnings.known(root.set(&format!("{dir}/memory_tier{id}/nodelist"))) {
            tiers.push(MemoryTier { id, nodes });
        }
    }
    tiers
}
