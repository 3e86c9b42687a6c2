//! A part that a tree lacks or does not hold as the kernel writes it is unknown, with a warning that names
//! file and line. The rest of the machine stands; there is never a panic.

mod captures;

use captures::Capture;
use nodewise_topology::{ErrorKind, NodeId, NodeIndex, Topology};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

const NODE: &str = "sys/devices/system/node";
const CPU: &str = "sys/devices/system/cpu";

#[test]
fn no_link_leads_out_of_the_tree() {
    use std::os::unix::fs::symlink;
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    let outside = tempfile::tempdir().unwrap();
    let [secret, node, devices] = ["secret", "node9", "net"].map(|name| outside.path().join(name));
    fs::write(&secret, "root:$6$hash\n").unwrap();
    fs::create_dir_all(&node).unwrap();
    fs::write(node.join("meminfo"), "Node 9 MemTotal: 4711x\n").unwrap();
    fs::create_dir_all(devices.join("eth9")).unwrap();
    let relative = |path: &Path| Path::new(&"../".repeat(40)).join(path.strip_prefix("/").unwrap());
    for (link, target) in [
        (format!("{CPU}/possible"), relative(&secret)),
        (format!("{NODE}/node1/cpulist"), secret.clone()),
        (format!("{NODE}/node9"), node),
        ("sys/class/net".into(), devices),
    ] {
        let _ = fs::remove_file(root.join(&link));
        let _ = fs::remove_dir_all(root.join(&link));
        symlink(target, root.join(link)).unwrap();
    }
    // A link within it does, also one that is absolute in the tree.
    let balancing = root.join("proc/sys/kernel/numa_balancing");
    fs::create_dir_all(balancing.parent().unwrap()).unwrap();
    fs::write(root.join("mode"), "1\n").unwrap();
    symlink("/mode", balancing).unwrap();
    let machine = Topology::from_root(&root).unwrap();
    let told = format!("{machine:?}");
    assert!(!told.contains("hash") && !told.contains("eth9") && !told.contains("4711x"), "{told}");
    assert!(told.contains("NumaBalancing { normal: true"), "{told}");
}

#[test]
fn the_warning_names_file_line_and_what_was_expected() {
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    let cases = [
        (format!("{NODE}/node1/cpulist"), "8-1x\n", ":1: expected a list like 0-3,8,10-11, found '8-1x'"),
        (format!("{NODE}/node1/distance"), "21\n", ":1: expected a distance for each of 2 nodes, found 1"),
        (format!("{NODE}/node1/distance"), "21 far\n", ":1: expected distances like '10 20', found 'far'"),
        (
            format!("{NODE}/node1/meminfo"),
            "\nNode 1 MemTotal: 16777216 MB\nNode 1 MemFree: 1 kB\n",
            ":2: expected a size like '8386704 kB', found '16777216 MB'",
        ),
        (
            format!("{NODE}/node1/meminfo"),
            "Node 1 MemTotal: 99999999999999999999 kB\n",
            ":1: expected a size like '8386704 kB', found '99999999999999999999 kB'",
        ),
        (
            format!("{NODE}/node1/meminfo"),
            "\nNode 1 MemTotal: 16 kB\nNode 2 MemFree: 1 kB\n",
            ":3: expected a line 'Node 1 MemFree:', found none up to here",
        ),
        (format!("{CPU}/online"), "0-4000000000", ":1: expected numbers up to 65535, found '0-4000000000'"),
        (format!("{CPU}/cpu3/topology/core_id"), "zero", ":1: expected a number or -1, found 'zero'"),
        (
            format!("{CPU}/cpu3/cache/index1/type"),
            "\n\nJuice",
            ":3: expected Data, Instruction, Unified or Unknown, found 'Juice'",
        ),
        (format!("{CPU}/cpu3/cache/index1/size"), "32M", ":1: expected a size like 32K, found '32M'"),
        (
            format!("{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages"),
            "-1",
            ":1: expected a number, found '-1'",
        ),
        ("proc/sys/kernel/numa_balancing".into(), "on", ":1: expected a number, found 'on'"),
        (
            "sys/kernel/mm/transparent_hugepage/enabled".into(),
            "always madvise never",
            ":1: expected a choice in brackets like 'always [madvise] never', found 'always madvise never'",
        ),
        (
            "sys/bus/pci/devices/0000:82:00.0/numa_node".into(),
            "one",
            ":1: expected a node number or -1, found 'one'",
        ),
        (
            "sys/bus/pci/devices/0000:82:00.0/numa_node".into(),
            "2147483647",
            ":1: expected a node number or -1, found '2147483647'",
        ),
        (
            "sys/bus/pci/devices/0000:05:00.0/vendor".into(),
            "\u{1}",
            ":1: expected a hexadecimal number like 0x020000, found '\\u{1}'",
        ),
    ];
    for (file, text, expected) in cases {
        let path = root.join(&file);
        let before = fs::read(&path).ok();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let machine = Topology::from_root(&root).expect(&file);
        let warnings = machine.warnings();
        // A device's files are named by where they lie, not by the link that led there.
        let instead = if file.ends_with("distance") { "taken for 10 and 20" } else { "unknown therefore" };
        let end = format!("{expected}; {instead}");
        let named = warnings
            .iter()
            .filter_map(|warning| warning.strip_suffix(&end))
            .any(|named| Path::new(named).canonicalize().unwrap() == path.canonicalize().unwrap());
        assert!(named, "{warnings:?}\nexpected: ...{end}");
        check_invariants(&machine);
        match before {
            Some(before) => fs::write(&path, before).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
    let machine = Topology::from_root(&root).expect("every file is as it was");
    assert!(machine.warnings().is_empty(), "{:?}", machine.warnings());
}

#[test]
fn a_directory_that_is_no_machine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path, what: &str| {
        let error = Topology::from_root(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), format!("{}: {what}", path.display()));
    };
    refused(&dir.path().join("missing"), "there is no such directory");
    refused(dir.path(), "does not stand for / of a Linux machine: it has no sys/devices/system/cpu");
    fs::write(dir.path().join("file"), "").unwrap();
    refused(&dir.path().join("file"), "is not a directory");
    let cpus = dir.path().join(CPU);
    fs::create_dir_all(&cpus).unwrap();
    let error = Topology::from_root(dir.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: names no CPU that is online", cpus.display()));
}

#[test]
fn a_node_whose_memory_is_not_told_has_unknown_memory() {
    let capture = Capture::unpack("16amd64-8n2c");
    let root = capture.root();
    let whole = Topology::from_root(&root).unwrap();
    let third = whole.index_of(NodeId(3)).unwrap();
    let meminfo = root.join(NODE).join("node3/meminfo");
    let text = fs::read_to_string(&meminfo).unwrap();

    let no_free: String = text.split_inclusive('\n').filter(|line| !line.contains("MemFree")).collect();
    fs::write(&meminfo, no_free).unwrap();
    let machine = Topology::from_root(&root).unwrap();
    assert_eq!(machine.node(third).memory_total_bytes, whole.node(third).memory_total_bytes);
    assert_eq!(machine.node(third).memory_free_bytes, None);
    assert!(machine.warnings()[0].contains("expected a line 'Node 3 MemFree:'"), "{:?}", machine.warnings());

    fs::remove_file(&meminfo).unwrap();
    let machine = Topology::from_root(&root).unwrap();
    let unknown = machine.node(third);
    assert_eq!((unknown.memory_total_bytes, unknown.memory_free_bytes), (None, None));
    assert!(unknown.may_have_memory());
    let expected =
        format!("{}: is not there, but every machine has it; unknown therefore", meminfo.display());
    assert_eq!(machine.warnings(), [expected]);
    assert_eq!(machine.uncounted_memory_bytes(), None);
    assert_eq!(machine.most_memory_bytes(third), None);
    let (mut rest, mut others) = (whole.nodes().to_vec(), machine.nodes().to_vec());
    rest.remove(third.get());
    others.remove(third.get());
    assert_eq!(rest, others);

    // The node has at least the memory that the machine has and the others do not.
    fs::create_dir_all(root.join("proc")).unwrap();
    let all: u64 = whole.nodes().iter().filter_map(|node| node.memory_total_bytes).sum();
    fs::write(root.join("proc/meminfo"), format!("MemTotal: {} kB\n", all >> 10)).unwrap();
    let machine = Topology::from_root(&root).unwrap();
    assert_eq!(machine.most_memory_bytes(third), whole.node(third).memory_total_bytes);
}

/// As kernels have counted the memory of virtual machines that grew: 7.5 GiB in the node, 23.5 GiB in the
/// machine.
#[test]
fn memory_that_no_node_counts_is_told_and_may_be_on_any() {
    let capture = Capture::unpack("16amd64-8n2c");
    let root = capture.root();
    let before = Topology::from_root(&root).unwrap();
    assert_eq!((before.uncounted_memory_bytes(), before.warnings()), (Some(0), &[][..]));
    let counted: u64 = before.nodes().iter().filter_map(|node| node.memory_total_bytes).sum();
    let machine_of = |bytes: u64| {
        fs::create_dir_all(root.join("proc")).unwrap();
        fs::write(root.join("proc/meminfo"), format!("MemTotal: {} kB\nMemFree: 0 kB\n", bytes >> 10))
            .unwrap();
        Topology::from_root(&root).unwrap()
    };
    let grown = machine_of(3 * counted);
    assert_eq!(grown.uncounted_memory_bytes(), Some(2 * counted));
    for index in grown.node_indices() {
        let own = grown.node(index).memory_total_bytes;
        assert_eq!(own, before.node(index).memory_total_bytes, "what the kernel says is left as it is");
        assert_eq!(grown.most_memory_bytes(index), own.map(|own| own + 2 * counted));
    }
    let [warning] = grown.warnings() else { panic!("{:?}", grown.warnings()) };
    let figures = format!("add up to {} MiB, and the machine has {} MiB", counted >> 20, (3 * counted) >> 20);
    assert!(warning.contains(&figures), "{warning}");
    // Neither files read a moment apart nor memory in use are worth a word.
    for bytes in [counted, counted + counted / 200, counted / 2] {
        let machine = machine_of(bytes);
        assert_eq!((machine.uncounted_memory_bytes(), machine.warnings()), (Some(0), &[][..]));
    }
}

#[test]
fn cpus_are_found_by_what_is_left() {
    let capture = Capture::unpack("16em64t-4s2c2t-offlines");
    let root = capture.root();
    let whole = Topology::from_root(&root).unwrap();
    // A CPU that says nothing of itself is taken to run, as CPU 0 of most machines.
    fs::write(root.join(CPU).join("cpu0/online"), "").unwrap();
    assert_eq!(Topology::from_root(&root).unwrap().online_cpus(), whole.online_cpus());
    for text in [None, Some(""), Some("\n"), Some("0-3,"), Some("none")] {
        let online = root.join(CPU).join("online");
        let _ = fs::remove_file(&online);
        if let Some(text) = text {
            fs::write(&online, text).unwrap();
        }
        let machine = Topology::from_root(&root).unwrap();
        assert_eq!(machine.online_cpus(), whole.online_cpus(), "{text:?}: by the CPUs' own files");
        assert_eq!(machine.offline_cpus(), whole.offline_cpus());
    }
    for file in ["cpulist", "cpumap"] {
        let _ = fs::remove_file(root.join(NODE).join("node0").join(file));
        let machine = Topology::from_root(&root).unwrap();
        assert!(machine.nodes()[0].cpus == whole.nodes()[0].cpus || !machine.warnings().is_empty(), "{file}");
    }
}

/// Each file of these machines in turn is missing, empty or cut short. The machine is read all the same, with
/// its nodes.
#[test]
fn a_machine_that_lacks_one_file_is_read_all_the_same() {
    for name in [
        "16amd64-8n2c",
        "2arm-2c",
        "16em64t-4s2c2t-offlines",
        "offline-cpu0-node0",
        "fakememinitiators-1np2c+1npp+gi",
    ] {
        let capture = Capture::unpack(name);
        let root = capture.root();
        let whole = Topology::from_root(&root).unwrap();
        let ids = |machine: &Topology| machine.nodes().iter().map(|node| node.id).collect::<Vec<_>>();
        // The files of two CPUs and four nodes stand for those of all.
        let number =
            |part: &std::ffi::OsStr, prefix: &str| part.to_str()?.strip_prefix(prefix)?.parse::<u32>().ok();
        let alike = |path: &PathBuf| {
            path.iter().any(|part| number(part, "cpu") > Some(1) || number(part, "node") > Some(3))
        };
        for path in files_read(&root).into_iter().filter(|path| !alike(path)) {
            let bytes = fs::read(&path).unwrap();
            for left in [None, Some(0), Some(bytes.len() / 2), Some(bytes.len().saturating_sub(2))] {
                match left {
                    None => fs::remove_file(&path).unwrap(),
                    Some(left) => fs::write(&path, &bytes[..left]).unwrap(),
                }
                let machine = Topology::from_root(&root)
                    .unwrap_or_else(|error| panic!("{} left to {left:?}: {error}", path.display()));
                check_invariants(&machine);
                // A mask cut short is one of other CPUs, whose nodes may then be taken for broken ones.
                if left.is_none_or(|left| left == 0) {
                    assert_eq!(ids(&machine), ids(&whole), "{} left to {left:?}", path.display());
                }
            }
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(Topology::from_root(&root).unwrap(), whole, "every file is as it was");
    }
}

/// Sets are bitmaps: such numbers would cost half a gigabyte each.
#[test]
fn numbers_no_kernel_gives_are_not_taken_for_ids() {
    let capture = Capture::unpack("16em64t-4s2c2t-offlines");
    let root = capture.root();
    for dir in [format!("{CPU}/cpu4294967295"), format!("{NODE}/node4294967295"), format!("{CPU}/cpu017")] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    let machine = Topology::from_root(&root).unwrap();
    assert_eq!(machine.online_cpus().to_string(), "0-1,3-4,6-12,15");
    assert_eq!(machine.node_count(), 1);
}

#[test]
fn more_nodes_than_an_index_can_tell_apart_are_refused() {
    let capture = Capture::unpack("16amd64-8n2c");
    for id in 8..=256 {
        fs::create_dir(capture.root().join(NODE).join(format!("node{id}"))).unwrap();
    }
    let error = Topology::from_root(&capture.root()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().ends_with("has 257 nodes, 256 is the most that is supported"), "{error}");
}

#[test]
fn a_kernel_without_numa_is_one_node() {
    let capture = Capture::unpack("2arm-2c");
    let machine = Topology::from_root(&capture.root()).unwrap();
    assert_eq!(machine.node_count(), 1);
    assert_eq!(machine.nodes()[0].cpus.to_string(), "0-1");
    assert_eq!(machine.nodes()[0].memory_total_bytes, Some(280_840 << 10));
    fs::remove_file(capture.root().join("proc/meminfo")).unwrap();
    let machine = Topology::from_root(&capture.root()).unwrap();
    assert_eq!(
        (machine.nodes()[0].memory_total_bytes, machine.most_memory_bytes(NodeIndex(0))),
        (None, None)
    );
    assert!(machine.warnings()[0].contains("proc/meminfo: is not there"), "{:?}", machine.warnings());
}

/// The change to a file.
#[derive(Clone, Debug)]
enum Mutation {
    Remove,
    BecomeDirectory,
    Replace(Vec<u8>),
    Truncate(usize),
    /// Put these bytes in the place of the one at the position, both modulo the file's length.
    Splice(usize, &'static str),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Pieces that break careless parsers: signs, overflow, separators, ranges, line ends, NUL, UTF-8 in the
    // middle.
    let pieces = [
        "",
        "-",
        "-1",
        "+",
        ",",
        ",,",
        "0-",
        "99999999999999999999",
        "4294967295",
        "65535",
        "\n",
        "\0",
        "é",
        " ",
        "x",
    ];
    prop_oneof![
        Just(Mutation::Remove),
        Just(Mutation::BecomeDirectory),
        proptest::collection::vec(any::<u8>(), 0..64).prop_map(Mutation::Replace),
        any::<usize>().prop_map(Mutation::Truncate),
        (any::<usize>(), proptest::sample::select(pieces.to_vec()))
            .prop_map(|(at, text)| Mutation::Splice(at, text)),
    ]
}

fn mutate(path: &Path, mutation: &Mutation) {
    let mut bytes = fs::read(path).unwrap();
    match mutation {
        Mutation::Remove => return fs::remove_file(path).unwrap(),
        Mutation::BecomeDirectory => {
            fs::remove_file(path).unwrap();
            return fs::create_dir(path).unwrap();
        }
        Mutation::Replace(other) => bytes.clone_from(other),
        Mutation::Truncate(len) => bytes.truncate(len % (bytes.len() + 1)),
        Mutation::Splice(at, text) => {
            let at = at % (bytes.len() + 1);
            bytes.splice(at..(at + 1).min(bytes.len()), text.bytes());
        }
    }
    fs::write(path, bytes).unwrap();
}

fn files_below(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files_below(&entry.path(), files),
            kind if kind.is_file() => files.push(entry.path()),
            _ => (),
        }
    }
}

/// Holds of every topology, however strange the tree it came from.
fn check_invariants(machine: &Topology) {
    assert!((1..=256).contains(&machine.node_count()));
    for index in machine.node_indices() {
        let node = machine.node(index);
        assert_eq!(machine.index_of(node.id), Some(index));
        assert_eq!(node.distances.len(), machine.node_count());
        assert!(node.cpus.is_subset(machine.online_cpus()));
        assert!(machine.nearest_cpus(index).is_subset(machine.online_cpus()));
        assert!(node.cpus.iter().all(|cpu| machine.node_of_cpu(cpu) == Some(index)));
    }
    assert!(!machine.offline_cpus().intersects(machine.online_cpus()));
    serde_json::to_string(machine).unwrap();
}

/// The files of a capture that are worth changing, sorted.
fn files_read(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    // Not the dozens of files beside them that nobody reads.
    for dir in [NODE, CPU, "sys/kernel", "sys/devices/pci0000:80", "proc"] {
        if root.join(dir).is_dir() {
            files_below(&root.join(dir), &mut files);
        }
    }
    files.retain(|path| {
        !["cpufreq", "cpuidle", "power"].iter().any(|dir| path.iter().any(|part| part == *dir))
    });
    files.sort();
    files
}

/// Mutates one to three of a capture's files at random, `cases` times.
fn mutated_trees_load(capture: &str, cases: u32) {
    let capture = Capture::unpack(capture);
    let root = capture.root();
    let files = files_read(&root);
    let mutations = proptest::collection::vec((proptest::sample::select(files), mutation()), 1..=3);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let warned = std::cell::Cell::new(0);
    proptest!(config, |(mutations in mutations)| {
        let mut saved = Vec::new();
        for (path, mutation) in &mutations {
            if path.is_file() {
                saved.push((path, fs::read(path).unwrap()));
                mutate(path, mutation);
            }
        }
        let loaded = std::panic::catch_unwind(|| Topology::from_root(&root));
        for (path, bytes) in saved.into_iter().rev() {
            let _ = fs::remove_dir(path);
            fs::write(path, bytes).unwrap();
        }
        match loaded {
            Ok(Ok(machine)) => {
                warned.set(warned.get() + u32::from(!machine.warnings().is_empty()));
                check_invariants(&machine);
            }
            Ok(Err(error)) => prop_assert!(false, "{}", error),
            Err(_) => prop_assert!(false, "panicked"),
        }
    });
    // Some mutations must hit what is read, some must be harmless, or this tests nothing.
    assert!((cases / 50..cases).contains(&warned.get()), "{} of {cases} warned of", warned.get());
    check_invariants(&Topology::from_root(&root).expect("every file is as it was"));
}

#[test]
fn mutated_opteron_loads() {
    mutated_trees_load("16amd64-8n2c", 400);
}

#[test]
fn mutated_machine_with_slow_memory_loads() {
    mutated_trees_load("fakememinitiators-1np2c+1npp+gi", 400);
}

#[test]
fn mutated_machine_with_devices_loads() {
    mutated_trees_load("32em64t-2n8c+dax+nvme+mic+dimms", 200);
}
