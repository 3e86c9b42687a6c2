//! The runtime library on four nodes: what it lays out lies there, its workers stay where they belong, and
//! nothing hangs when a node is full or what the process may use shrinks.

mod guests;

use guests::{programs, run_in};
use nodewise_bench::scenario::{Finished, Place};
use nodewise_rig::{Device, Distances, Guest, Node};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn in_guest(script: &str, files: &[&str]) -> Finished {
    in_guest_with(&[], script, files)
}

fn in_guest_with(others: &[&Path], script: &str, files: &[&str]) -> Finished {
    in_this(others.iter().fold(Guest::uniform(4, 1, 256 << 20), Guest::copy), script, files)
}

fn in_this(guest: Guest, script: &str, files: &[&str]) -> Finished {
    let program = &programs().building_blocks;
    let guest = guest.copy(program);
    let place = Place::guest(guest).beside_others();
    let finished = run_in(&place, &script.replace("$BLOCKS", &program.display().to_string()), files);
    assert_eq!(finished.status, 0, "{}{}", finished.stdout, finished.stderr);
    finished
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A program in C or C++ with libnodewise in it, from its source.
fn in_c(source: &str) -> PathBuf {
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).join("../c");
    // With the packages of the guests' other programs, or cargo would build dependencies anew with fewer
    // features.
    let packages = ["nodewise", "nodewise-bench", "nodewise-c"].map(|package| format!("--package={package}"));
    let options = ["--locked", "--profile=guest", "--message-format=json"];
    let built = done(Command::new(env!("CARGO")).arg("build").args(options).args(packages));
    let library =
        built.split('"').rfind(|text| text.ends_with("/libnodewise.a")).expect("cargo built no library");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.replace('.', "-"));
    let (compiler, standard) = if source.split('.').next_back() == Some("cpp") {
        ("c++", "-std=c++17")
    } else {
        ("cc", "-std=gnu11")
    };
    done(
        Command::new(compiler)
            .args([standard, "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg(c.join("tests").join(source))
            .arg("-I")
            .arg(c.join("include"))
            .arg(library)
            .args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-o"])
            .arg(&program),
    );
    program
}

fn lines(finished: &Finished) -> Vec<Value> {
    finished.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Runs of pages by node, from the pattern that repeats.
fn expected(cycle: &[u64], unit: u64, pages: u64) -> Value {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let units = cycle.iter().cycle().take((pages / unit) as usize);
    for &node in units {
        match runs.last_mut() {
            Some((length, last)) if *last == node => *length += unit,
            _ => runs.push((unit, node)),
        }
    }
    json!(runs)
}

/// Checks the output of `layouts`: layouts that name no nodes go round these.
fn layouts_lie(lines: &[Value], on: u64, weighted: &[u64], with_cpus: &[u64]) {
    let mut seen = 0;
    for line in lines {
        let Some(layout) = line["layout"].as_str() else {
            assert!(line["left_pages"].as_u64() < Some(256), "memory is given back: {line}");
            continue;
        };
        let huge = line["huge"] == true;
        let unit = if huge { 512 } else { 1 };
        let laid = |pages: u64| match layout {
            "on" => expected(&[on], unit, pages),
            "interleaved" => expected(with_cpus, unit, pages),
            "weighted" => expected(weighted, unit, pages),
            _ => expected(with_cpus, unit.max(pages / with_cpus.len() as u64), pages),
        };
        assert_eq!(line["homes"], laid(2048), "{layout}, huge {huge}");
        let mut kib = 2048 * 4;
        if let Some(chunks) = line["chunks"].as_array() {
            assert_eq!(*chunks, [laid(512), laid(512)], "{layout}, huge {huge}");
            kib += 2 * 512 * 4;
        }
        if layout != "moved" {
            assert_eq!(line["huge_kib"], if huge { kib } else { 0 }, "{line}");
        }
        if let Some(pooled) = line["pooled"].as_bool() {
            brought_in(line, pooled);
        }
        seen += 1;
    }
    assert_eq!(seen, 21, "{lines:?}");
}

/// By each node's workers what lies there, by others what is of a node without any; or by no worker.
fn brought_in(line: &Value, by_workers: bool) {
    let mut all = 0;
    for (node, faults) in line["touched"].as_object().unwrap() {
        let number: u64 = node.parse().unwrap();
        let runs = line["homes"].as_array().unwrap().iter();
        let own: u64 = runs.filter(|run| run[1] == number).map(|run| run[0].as_u64().unwrap()).sum();
        let faults = faults.as_u64().unwrap();
        assert!(!by_workers || faults >= own, "node {node}: {line}");
        all += faults;
    }
    let pages = if by_workers { 2048 } else { 0 };
    assert!((pages..pages + 256).contains(&all), "{line}");
}

#[test]
fn layouts_lie_as_they_say_page_by_page_and_are_given_back() {
    // Huge pages are to be had by whoever asks, and then whether they ask or not. Hint faults would count as
    // pages that workers bring in.
    let script = "
        echo 0 >/proc/sys/kernel/numa_balancing || exit 90
        for huge in madvise always; do
            echo $huge >/sys/kernel/mm/transparent_hugepage/enabled || exit 90
            '$BLOCKS' layouts 2 0:1 1:3 3:2 >$huge || exit 91
        done";
    let finished = in_guest(script, &["madvise", "always"]);
    for file in ["madvise", "always"] {
        layouts_lie(&finished.lines(file).unwrap(), 2, &[0, 1, 1, 1, 3, 3], &[0, 1, 2, 3]);
    }
}

/// Node 2 has memory only, and node 1 is nearer to it than node 0. A disk is on node 1, a network adapter on
/// node 2. CPU 2, of node 1, is not started at boot.
#[test]
fn memory_apart_is_used_where_it_is_named_and_what_is_plugged_in_is_seen() {
    let node = |cpus| Node { cpus, memory_bytes: 256 << 20 };
    let guest = Guest::new([node(1), node(2), node(0)])
        .distances(Distances::parse("10,20,30;20,10,15;30,15,10", 3).unwrap())
        .device(1, Device::Nvme)
        .device(2, Device::Network)
        .append("maxcpus=2");
    let script = "
        echo 0 >/proc/sys/kernel/numa_balancing || exit 90
        '$BLOCKS' plug 2 >plug || exit 91
        GLIBC_TUNABLES=glibc.pthread.rseq=0 '$BLOCKS' plug 2 >plug_by_table || exit 92
        echo 1 >/sys/devices/system/cpu/cpu2/online || exit 93
        '$BLOCKS' layouts 2 0:1 2:3 >layouts || exit 94
        { '$BLOCKS' blocks && '$BLOCKS' blocks 2; } >blocks || exit 95
        '$BLOCKS' apart 2 >apart || exit 96
        for pci in /sys/bus/pci/devices/*; do
            case $(cat $pci/class) in 0x010802) disk=${pci##*/} ;; 0x020000) adapter=${pci##*/} ;; esac
        done
        for device in nvme0n1 block:nvme0n1 file:/dev/nvme0n1 $disk pci:$disk $adapter pci:$adapter; do
            '$BLOCKS' near $device || exit 97
        done >near
        $NODEWISE topo --json >topo || exit 101
        cat /sys/bus/pci/devices/$disk/numa_node /sys/bus/pci/devices/$adapter/numa_node >numa_nodes
        '$BLOCKS' pool 8 >pool & pool=$!
        within 60 grep -q looked pool || exit 102
        echo 1 >/sys/devices/system/cpu/cpu2/firmware_node/eject || exit 98
        within 60 [ ! -e /sys/devices/system/cpu/cpu2 ] || exit 99
        wait $pool || exit 100
        '$BLOCKS' pool 1 >pool_after";
    let files = [
        "plug",
        "plug_by_table",
        "layouts",
        "blocks",
        "apart",
        "near",
        "topo",
        "numa_nodes",
        "pool",
        "pool_after",
    ];
    let finished = in_this(guest, script, &files);
    let lines = |file| finished.lines::<Value>(file).unwrap();

    layouts_lie(&lines("layouts"), 2, &[0, 2, 2, 2], &[0, 1]);
    let worked = lines("blocks");
    let half = 2048 * 512 / 2;
    for (node, line) in worked[..2].iter().enumerate() {
        let expected = json!({"wanted": node, "kernel": node, "library": node, "parts": 32 * (node + 1), "elements": half});
        assert_eq!(*line, expected);
    }
    // Nobody is at home on node 2: 32 parts for each worker, wherever they are.
    let sum = |name: &str| worked[2..].iter().map(|line| line[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("parts"), sum("elements")), (3 * 32, 2 * half), "{worked:?}");
    assert!(worked[2..].iter().all(|line| line["wanted"] == 2 && line["kernel"] == line["library"]));
    let apart = json!({
        "nodes": [0, 1],
        "counts": [1, 1, 0],
        "homes": [[[2048, 0]], [[2048, 1]]],
        "hinted": [{"pages": {"0": 1024, "1": 1024}, "runs": 2048}, {"pages": {"0": 1024, "1": 1024}, "runs": 4}],
        "replicated": "Replicated { copies: 2, .. }",
        "log": "NodeReplicated { copies: 2, .. }",
        "pages_there": [0, 0],
    });
    assert_eq!(finished.json("apart").unwrap(), apart);

    for (file, before_refresh) in [("plug", 1), ("plug_by_table", 0)] {
        let [at_first, online, refreshed, offline] = &lines(file)[..] else { panic!("{:?}", finished.files) };
        let machine = |line: &Value| json!([line["cpus"], line["offline"], line["workers"]]);
        let two = json!([{"0": "0", "1": "1"}, "2", 2]);
        let three = json!([{"0": "0", "1": "1-2"}, "", 3]);
        assert_eq!(machine(at_first), two);
        assert_eq!((machine(online), machine(refreshed)), (three.clone(), three));
        assert_eq!(machine(offline), two);
        assert_eq!(online["on"], json!({"cpu": 2, "kernel": 1, "library": before_refresh}));
        assert_eq!(refreshed["on"], json!({"cpu": 2, "kernel": 1, "library": 1}));
        assert_eq!(offline["on"]["kernel"], offline["on"]["library"], "{offline}");
        let counts = [at_first, online, refreshed, offline].map(|line| &line["counts"]);
        assert_eq!(counts, [&json!([0, 0, 0]), &json!([7, 0, 0]), &json!([0, 7, 0]), &json!([0, 7, 0])]);
    }
    let workers = ["pool", "pool_after"].map(|file| lines(file).last().unwrap()["workers"].clone());
    assert_eq!(workers, [3, 2], "before and after a CPU was taken out");

    // As the kernel has it; no CPU is on the adapter's node.
    assert_eq!(finished.file("numa_nodes").unwrap(), "1\n2\n");
    let topo = finished.json("topo").unwrap();
    let devices = topo["devices"].as_array().unwrap().iter().filter(|device| device["node"].is_number());
    let attached: Vec<Value> =
        devices.map(|device| json!([device["kind"], device["name"], device["node"]])).collect();
    let [adapter, disk] = &attached[..] else { panic!("{attached:?}") };
    assert_eq!((&adapter[0], &adapter[2]), (&json!("network"), &json!(2)));
    assert_eq!(*disk, json!(["block", "nvme0n1", 1]), "and no way to it");
    let near = lines("near");
    assert_eq!(near.len(), 7, "{near:?}");
    for line in near {
        let device = line["device"].clone();
        let expected = json!({"device": device, "near": [1], "cpus": [1, 2], "library": 1, "arena": [1]});
        assert_eq!(line, expected);
    }
}

#[test]
fn a_full_node_is_an_error_or_a_stated_fallback() {
    let in_c = in_c("full_node.c");
    // Otherwise up to half of so small a node waits in lists of each CPU's (`zone_highsize` in
    // mm/page_alloc.c, Linux 6.12), free and for nobody else, or is kept below watermarks.
    let script = "
        echo 2048 >/proc/sys/vm/min_free_kbytes && echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction || exit 90
        '$BLOCKS' full 2 && '$IN_C' 2; status=$?; dmesg | grep -i oom-kill; exit $status";
    let script = script.replace("$IN_C", &in_c.display().to_string());
    let finished = in_guest_with(&[&in_c], &script, &[]);
    let lines = lines(&finished);
    let pages = |line: &Value, name: &str| line[name].as_u64().unwrap();
    let [line, from_c] = &lines[..] else { panic!("nobody was killed for it: {}", finished.stdout) };
    assert_eq!(line["first_misplaced"], 0, "{line}");
    let all = pages(line, "pages");
    assert!((all / 4..all).contains(&pages(line, "second_misplaced")), "{line}");
    assert!(line["refused"].as_str().unwrap().contains("found no room on their node"), "{line}");
    // The program has seen to the rest itself: the code of each function that gives it, and where pages are
    // then.
    let all = pages(from_c, "pages");
    assert!((all / 4..all).contains(&pages(from_c, "elsewhere")), "{from_c}");
}

/// In a container whose filter refuses memory policies and `move_pages(2)`. The kernel's balancing may move
/// such pages to whoever uses them.
#[test]
fn what_may_not_be_placed_lies_where_its_nodes_touched_it_first_if_the_caller_wants() {
    let in_c = in_c("refused.c");
    let script =
        format!("echo 0 >/proc/sys/kernel/numa_balancing && '{}' && echo '\"done\"'", in_c.display());
    assert_eq!(lines(&in_guest_with(&[&in_c], &script, &[])), ["done"]);
}

#[test]
fn blocks_are_worked_on_where_they_lie() {
    let finished = in_guest("'$BLOCKS' blocks", &[]);
    let lines = lines(&finished);
    assert_eq!(lines.len(), 4, "{}", finished.stdout);
    for (node, line) in lines.iter().enumerate() {
        let expected =
            json!({"wanted": node, "kernel": node, "library": node, "parts": 32, "elements": 512 * 512});
        assert_eq!(*line, expected);
    }
}

/// `command` prints a line for each of so many kinds of copies. After each update every copy lies on its
/// node, though the kernel's balancing would move pages to the nodes that change them.
fn contents_lie_on_their_nodes(program: &Path, command: &str, kinds: usize) {
    let script = format!("echo 1 >/proc/sys/kernel/numa_balancing && {command}");
    let guest = Guest::uniform(4, 1, 512 << 20).copy(program);
    // Contents of 4 MiB move some thousand times, which takes emulated guests minutes.
    let place = Place::guest_for(Duration::from_secs(900), guest).beside_others();
    let finished = run_in(&place, &script, &[]);
    assert_eq!(finished.status, 0, "{}{}", finished.stdout, finished.stderr);
    let lines = lines(&finished);
    assert_eq!(lines.len(), kinds, "{lines:?}");
    for line in lines {
        assert_eq!((&line["elsewhere"], &line["misplaced"]), (&json!(0), &json!(0)), "{line}");
        assert!(line["nodes"] == 4 && line["pages"].as_u64() >= Some(4 * 2 * 2), "{line}");
        assert!(line["updates"].as_u64() >= Some(10_000) && line["moves"].as_u64() >= Some(300), "{line}");
    }
}

#[test]
fn contents_of_copies_lie_on_their_nodes_in_rust() {
    let program = &programs().building_blocks;
    contents_lie_on_their_nodes(program, &format!("'{}' copies", program.display()), 7);
}

#[test]
fn contents_of_copies_lie_on_their_nodes_in_c() {
    let program = in_c("copies.c");
    contents_lie_on_their_nodes(&program, &format!("'{}'", program.display()), 8);
}

#[test]
fn contents_of_copies_lie_on_their_nodes_in_cpp() {
    let program = in_c("copies.cpp");
    contents_lie_on_their_nodes(&program, &format!("'{}'", program.display()), 7);
}

#[test]
fn a_log_is_one_order() {
    let finished = in_guest("'$BLOCKS' log", &[]);
    let lines = lines(&finished);
    assert_eq!(lines.len(), 4, "{}", finished.stdout);
    for (node, line) in lines.iter().enumerate() {
        assert_eq!(*line, json!({"node": node, "updates": 20_000, "homes": [[2048, node]]}));
    }
}

#[test]
fn a_pool_survives_what_is_taken_from_it() {
    // A CPU is unplugged and comes back, then the cpuset shrinks to one CPU.
    let script = "
        '$BLOCKS' pool 12 replugged >pool & pool=$!
        places() {
            for thread in /proc/$pool/task/*; do
                echo $(cat $thread/comm) $(grep Cpus_allowed_list $thread/status)
            done | grep ^node | sort
        }
        within 60 grep -q first pool || exit 95
        places >at_first
        echo 0 >/sys/devices/system/cpu/cpu3/online || exit 90
        sleep 2
        places >unplugged
        echo 1 >/sys/devices/system/cpu/cpu3/online || exit 91
        touch replugged
        within 60 grep -q again pool || { places >&2; exit 96; }
        places >refreshed
        mkdir -p /cpuset && mount -t cgroup2 none /cpuset || exit 92
        echo +cpuset >/cpuset/cgroup.subtree_control || exit 93
        mkdir /cpuset/small && echo 1 >/cpuset/small/cpuset.cpus && echo $pool >/cpuset/small/cgroup.procs || exit 94
        sleep 2; grep Cpus_allowed_list /proc/$pool/status >allowed
        wait $pool";
    let finished = in_guest(script, &["pool", "allowed", "at_first", "unplugged", "refreshed"]);
    let places = |when| finished.file(when).unwrap();
    let own = [0, 1, 2, 3].map(|node| format!("node{node}-{node} Cpus_allowed_list: {node}\n")).concat();
    assert_eq!(places("at_first"), own);
    assert_ne!(places("unplugged"), own, "the kernel lets a worker without a CPU run somewhere");
    assert_eq!(places("refreshed"), own);
    assert!(finished.file("allowed").unwrap().trim().ends_with('1'), "{:?}", finished.files);
    let reports: Vec<Value> = finished.lines("pool").unwrap();
    let [_, _, report] = &reports[..] else { panic!("{reports:?}") };
    assert!(report["rounds"].as_u64() > Some(10), "{report}");
    assert_eq!(report["run"].as_array().unwrap().len(), 4, "{report}");
    assert_eq!(report["workers"], 4, "{report}");
}

#[test]
fn a_pool_has_no_more_workers_than_it_may_use_cpus() {
    // A quota of two CPUs' time, three CPUs, and both of one control group in the other.
    let script = "
        mkdir -p /groups && mount -t cgroup2 none /groups || exit 90
        echo '+cpuset +cpu' >/groups/cgroup.subtree_control || exit 91
        mkdir /groups/quota /groups/three && echo '200000 100000' >/groups/quota/cpu.max || exit 92
        echo 1-3 >/groups/three/cpuset.cpus || exit 93
        echo '+cpu' >/groups/three/cgroup.subtree_control || exit 94
        mkdir /groups/three/one && echo '150000 100000' >/groups/three/one/cpu.max || exit 95
        for group in quota three/one; do
            sh -c \"echo \\$\\$ >/groups/$group/cgroup.procs; exec '$BLOCKS' pool 1\" || exit 96
        done
        sh -c \"echo \\$\\$ >/groups/cgroup.procs; exec taskset -c 1-3 '$BLOCKS' pool 1\" || exit 97";
    let finished = in_guest(script, &[]);
    let lines = lines(&finished);
    let workers: Vec<&Value> = lines.iter().filter_map(|line| line.get("workers")).collect();
    assert_eq!(workers, [2, 1, 3], "{}", finished.stdout);
}
