//! A captured tree with arbitrary files: never a panic, and nodes and CPUs that are read agree.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_topology::Topology;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const MEMINFO: &str = "Node 0 MemTotal: 2097152 kB\nNode 0 MemFree: 1048576 kB\n";

/// Two nodes of two CPUs each.
const TREE: &[(&str, &str)] = &[
    ("sys/devices/system/node/possible", "0-1\n"),
    ("sys/devices/system/node/online", "0-1\n"),
    ("sys/devices/system/node/node0/cpulist", "0-1\n"),
    ("sys/devices/system/node/node0/meminfo", MEMINFO),
    ("sys/devices/system/node/node0/distance", "10 21\n"),
    ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "4\n"),
    ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "4\n"),
    ("sys/devices/system/node/node0/access0/initiators/read_latency", "90\n"),
    ("sys/devices/system/node/node0/memory_side_cache/index1/size", "1048576\n"),
    ("sys/devices/system/node/node1/cpumap", "c\n"),
    ("sys/devices/system/node/node1/distance", "21 10\n"),
    ("sys/devices/system/cpu/possible", "0-3\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
    ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
    ("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0-1\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/level", "1\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0-1\n"),
    ("sys/devices/system/cpu/cpu2/topology/core_id", "1\n"),
    ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("proc/sys/kernel/numa_balancing", "1\n"),
    ("proc/meminfo", "MemTotal: 4194304 kB\n"),
];

fn write(root: &Path, file: &str, content: &[u8]) {
    let path = root.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = std::env::temp_dir().join(format!("nodewise-fuzz-tree-{}", std::process::id()));
        for (file, content) in TREE {
            write(&root, file, content.as_bytes());
        }
        root
    })
}

fuzz_target!(|changes: Vec<(u8, Vec<u8>)>| {
    let file = |at: u8| TREE[usize::from(at) % TREE.len()];
    for (at, content) in &changes {
        write(root(), file(*at).0, content);
    }
    if let Ok(machine) = Topology::from_root(root()) {
        for index in machine.node_indices() {
            assert_eq!(machine.index_of(machine.id_of(index)), Some(index));
            assert!(machine.node(index).cpus.iter().all(|cpu| machine.node_of_cpu(cpu) == Some(index)));
            let _ = machine.nearest_cpus(index);
            machine.node_indices().for_each(|other| _ = machine.distance(index, other));
        }
    }
    for (at, _) in &changes {
        let (path, content) = file(*at);
        write(root(), path, content.as_bytes());
    }
});
