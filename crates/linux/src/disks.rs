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
    /// does not say where they are. No file is asked: one on a server that does not answer would hang.
    #[must_use]
    pub fn of(pids: &[Pid], topology: &Topology) -> Option<Self> {
        let mut used = BTreeMap::new();
        let mut left = MOST_FILES;
        for pid in pids {
            let directory = Path::new("/proc").join(pid.to_string());
            let mounts = fs::read_to_string(directory.join("mountinfo")).unwrap_or_default();
            for entry in fs::read_dir(directory.join("fd")).into_iter().flatten().flatten().take(left) {
                left -= 1;
                let Ok(file) = fs::read_link(entry.path()) else { continue };
                let info = fs::read_to_string(directory.join("fdinfo").join(entry.file_name()));
                let disk = disk_of(&file, &info.unwrap_or_default(), &mounts);
                let node = disk.and_then(|disk| topology.node_of_disk(&disk));
                used.extend(node.map(|node| (node, file)));
            }
        }
        let (node, file) = used.pop_first()?;
        used.is_empty().then_some(Self { node, file })
    }
}

/// The disk that an open file is, or lies on, as `/proc/PID/fdinfo` and `/proc/PID/mountinfo` say (proc(5)):
/// its name, or its numbers as `8:1`.
fn disk_of(file: &Path, info: &str, mounts: &str) -> Option<String> {
    if let Ok(name) = file.strip_prefix("/dev") {
        return name.to_str().map(str::to_owned);
    }
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let numbers = line.split(' ').nth(2)?;
    if !numbers.starts_with("0:") {
        return Some(numbers.to_owned());
    }
    // A file system of several disks, such as btrfs, has numbers of its own, and names one of them.
    let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
    source.strip_prefix("/dev/").map(str::to_owned)
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

    #[test]
    fn a_file_lies_on_the_disk_of_its_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:44 / /data rw,noatime shared:1 - btrfs /dev/sdb rw\n\
                      24 22 0:50 / /net rw - nfs server:/x rw\n";
        let disk = |file: &str, mount: &str| {
            disk_of(Path::new(file), &format!("pos:\t0\nflags:\t02\nmnt_id:\t{mount}\n"), mounts)
        };
        assert_eq!(disk("/var/lib/db", "22").as_deref(), Some("8:1"));
        assert_eq!(disk("/data/db", "23").as_deref(), Some("sdb"));
        assert_eq!(disk("/dev/nvme0n1", "5").as_deref(), Some("nvme0n1"));
        assert_eq!((disk("/net/db", "24"), disk("socket:[1]", "9")), (None, None));
    }
}
