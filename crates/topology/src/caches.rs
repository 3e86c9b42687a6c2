//! The CPUs' caches and who shares them.

use crate::cpus::DIR;
use crate::error::{Error, ParseError};
use crate::root::Root;
use crate::set::CpuSet;
use crate::warnings::Warnings;
use serde::Serialize;
use std::fmt;

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Cache {
    /// The level; 1 is nearest to the core.
    pub level: u32,
    /// The kind of its contents.
    pub kind: CacheKind,
    /// Its size, where the kernel knows it.
    pub size_bytes: Option<u64>,
    /// Its line size, where the kernel knows it.
    pub line_bytes: Option<u64>,
    /// Its associativity, where the kernel knows it.
    pub ways: Option<u64>,
    /// The online CPUs that share it.
    pub cpus: CpuSet,
}

/// The contents of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// The caches, highest level first, then by kind and lowest CPU.
pub(crate) fn read(root: &Root, online: &CpuSet, warnings: &Warnings) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    for cpu in online.iter() {
        for index in warnings.known(root.numbered(&format!("{DIR}/cpu{cpu}/cache"), "index")) {
            let dir = format!("{DIR}/cpu{cpu}/cache/index{index}");
            let level = |text: &str| text.parse::<u32>().map_err(|_| ParseError::new("a cache level", text));
            let level = warnings.known(root.parsed(&format!("{dir}/level"), level));
            let kind = warnings.known(root.parsed(&format!("{dir}/type"), cache_kind)).flatten();
            let (Some(level), Some(kind)) = (level, kind) else { continue };
            if caches.iter().any(|c| (c.level, c.kind) == (level, kind) && c.cpus.contains(cpu)) {
                continue;
            }
            let sharers =
                root.list_or_mask(&format!("{dir}/shared_cpu_list"), &format!("{dir}/shared_cpu_map"));
            let mut cpus = &warnings.known(sharers).unwrap_or_default() & online;
            cpus.insert(cpu);
            // 0 is what firmware writes that does not know.
            let nonzero =
                |value: Result<Option<u64>, Error>| warnings.known(value).filter(|&value| value != 0);
            caches.push(Cache {
                level,
                kind,
                size_bytes: nonzero(root.parsed(&format!("{dir}/size"), size_bytes)),
                line_bytes: nonzero(root.number(&format!("{dir}/coherency_line_size"))),
                ways: nonzero(root.number(&format!("{dir}/ways_of_associativity"))),
                cpus,
            });
        }
    }
    caches.sort_by_key(|cache| (std::cmp::Reverse(cache.level), cache.kind, cache.cpus.first()));
    caches
}

/// `None` for kinds the kernel does not know.
fn cache_kind(text: &str) -> Result<Option<CacheKind>, ParseError> {
    match text {
        "Data" => Ok(Some(CacheKind::Data)),
        "Instruction" => Ok(Some(CacheKind::Instruction)),
        "Unified" => Ok(Some(CacheKind::Unified)),
        "Unknown" => Ok(None),
        _ => Err(ParseError::new("Data, Instruction, Unified or Unknown", text)),
    }
}

/// The kernel prints `%uK` (`size_show`, drivers/base/cacheinfo.c, Linux 6.1).
fn size_bytes(text: &str) -> Result<u64, ParseError> {
    text.strip_suffix('K')
        .and_then(|kilobytes| kilobytes.parse::<u64>().ok()?.checked_mul(1024))
        .ok_or_else(|| ParseError::new("a size like 32K", text))
}

/// As people write it: `L3`, `L1d`, `L1i`.
impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        write!(f, "L{}{kind}", self.level)
    }
}
