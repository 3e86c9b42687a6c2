//! The disks that a process uses: how much goes to and from them, and on which node they are.

use crate::bounds;
use nodewise_engine::Pid;
use nodewise_topology::{NodeId, Topology};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files that are looked at.
const MOST_FILES: usize = 1024;

/// Use of disks that are all on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskUse {
    /// The node.
    pub node: NodeId,
    /// One of the files on them, or one of them.
    pub file: PathBuf,
}

impl DiskUse {
    /// The disks of the files that processes have open. None if they are on several nodes, or if firmware
    /// does not say where they are.
    #[must_use]
    pub fn of(pids: &[Pid], topology: &Topology) -> Option<Self> {
        let open = |pid: &Pid| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut used = BTreeMap::new();
        for link in pids.iter().flat_map(open).take(MOST_FILES).map(|entry| entry.path()) {
            // The link leads to the file itself, whatever the process's root is.
            let (Some(node), Ok(file)) = (topology.node_of_file(&link), fs::read_link(&link)) else {
                continue;
            };
            used.entry(node).or_insert(file);
        }
        let (node, file) = used.pop_first()?;
        used.is_empty().then_some(Self { node, file })
    }
}

/// Bytes that processes have read from disks and written to them so far (`read_bytes` and `write_bytes` of
/// `/proc/PID/io`, proc(5)).
#[must_use]
pub fn bytes_so_far(pids: impl IntoIterator<Item = Pid>) -> u64 {
    let of =
        |pid: Pid| bytes_of(&fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("io")).ok()?);
    pids.into_iter().take(bounds::PROCESSES).filter_map(of).sum()
}

fn bytes_of(io: &str) -> Option<u64> {
    let field = |name: &str| io.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
    field("read_bytes:")?.checked_add(field("write_bytes:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_to_disks_counts_and_what_the_page_cache_serves_does_not() {
        let io = "rchar: 9000\nwchar: 9000\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8192\n\
                  cancelled_write_bytes: 1\n";
        assert_eq!(bytes_of(io), Some(12_288));
        assert_eq!(bytes_of("rchar: 9000\n"), None);
        // This test may have read nothing, but it may be asked.
        assert_eq!(bytes_so_far([Pid(u32::MAX)]), 0);
    }
}
