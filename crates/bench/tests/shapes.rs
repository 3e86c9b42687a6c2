//! Machines of other shapes: 2, 4 and 8 nodes, a node without CPUs, a node without room.

mod guests;

use guests::run;
use nodewise_bench::report::{Placement, moved_again};
use nodewise_bench::scenario::Finished;
use nodewise_rig::{Device, Guest, Node};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn node(cpus: u32, mebibytes: u64) -> Node {
    Node { cpus, memory_bytes: mebibytes * MIB }
}

fn last(finished: &Finished, report: &str) -> Placement {
    finished.placements(report).unwrap().pop().expect("the workload reports")
}

/// Private data that one node touched first ends where it is used.
fn private_data_arrives(guest: Guest, nodes: usize) {
    let script = format!(
        "$NODEWISE run --log log --json json -- $WORKLOAD private --mebibytes {} --seconds 150 --after-placed 10 --report report \
         2>err; \
         status=$?; cat err >&2; exit $status",
        16 * nodes
    );
    let f = run(guest, &script, &["log", "json", "report"]);
    assert_eq!(f.status, 0, "{}", f.stderr);
    let placements = f.placements("report").unwrap();
    let end = placements.last().unwrap();
    assert_eq!(end.pages_by_node.len(), nodes);
    assert!(end.local_percent_min >= 99.0, "{placements:#?}\n{}", f.stderr);
    let summary = f.json("json").unwrap();
    assert!(summary["samples"].as_u64() > Some(0), "{summary}");
    assert_eq!(moved_again(&f.lines::<Value>("log").unwrap()), 0, "{summary}");
}

#[test]
fn two_nodes_of_two_cpus() {
    private_data_arrives(Guest::new([node(2, 384), node(2, 384)]), 2);
}

#[test]
fn four_nodes() {
    private_data_arrives(Guest::uniform(4, 1, 384 * MIB), 4);
}

#[test]
fn eight_nodes() {
    private_data_arrives(Guest::uniform(8, 1, 384 * MIB), 8);
}

/// The same with memory that is bound to its first node, so that the kernel gives samples and moves nothing:
/// all that arrives was moved by Nodewise.
fn private_data_arrives_by_nodewise_alone(guest: Guest, nodes: u64) {
    let script = "
        $NODEWISE run --log log --json json -- $WORKLOAD private --bound --mebibytes 32 --seconds 150 --after-placed 2 --report report 2>err
        status=$?; cat err >&2; [ $status = 0 ] || exit $status
        $NODEWISE run --log read.log --json read.json -- $WORKLOAD shared-read --bound --mebibytes 32 \
            --seconds 100 --after-placed 10 --report read";
    let f = run(guest, script, &["log", "json", "report", "read.log", "read.json", "read"]);
    assert_eq!(f.status, 0, "{}", f.stderr);
    let placements = f.placements("report").unwrap();
    let arrived = placements.iter().find(|placement| placement.local_percent_min >= 95.0);
    println!("95 % after {:?} s\n{}", arrived.map(|placement| placement.seconds), f.stderr);
    assert!(placements.last().unwrap().local_percent_min >= 99.0, "{placements:#?}\n{}", f.stderr);
    let summary = f.json("json").unwrap();
    let before = summary["local_access_percent"]["before"].as_f64().unwrap();
    let imbalance = summary["controller_imbalance_percent"]["before"].as_f64().unwrap();
    println!("before: {before} % local, {imbalance} % imbalance, {} samples lost", summary["samples_lost"]);
    // All was on one node at first.
    assert!((before - 100.0 / nodes as f64).abs() <= 5.0, "{summary}");
    assert!(
        imbalance >= 70.0 * (nodes as f64).sqrt(),
        "all on one of n nodes is 100 times the root of n: {summary}"
    );
    let elsewhere = 32 * 256 * (nodes - 1) / nodes;
    assert!(summary["pages_moved"].as_u64() >= Some(elsewhere * 99 / 100), "{summary}");
    assert_eq!(moved_again(&f.lines::<Value>("log").unwrap()), 0, "{summary}");
    // The memory that all nodes read, in the same guest, bound as well: else the kernel may spread it first.
    let read = f.placements("read").unwrap();
    assert!(read.last().unwrap().is_interleaved(), "{read:#?}\n{}", f.stderr);
    assert_eq!(moved_again(&f.lines::<Value>("read.log").unwrap()), 0);
}

#[test]
fn two_nodes_by_nodewise_alone() {
    private_data_arrives_by_nodewise_alone(Guest::new([node(2, 384), node(2, 384)]), 2);
}

#[test]
fn eight_nodes_by_nodewise_alone() {
    private_data_arrives_by_nodewise_alone(Guest::uniform(8, 1, 384 * MIB), 8);
}

/// Pages of a folio move only together. One that went for each of its pages would go several times, and be
/// counted as one page.
#[test]
fn folios_of_sixteen_pages_move_once_and_all_their_pages_are_counted() {
    let (placed, summary) = folios_move_once(16);
    // A folio has one first touch, and few samples. All of its pages count, also before it has moved.
    let most = placed.pages_by_node.iter().max().unwrap();
    assert!(*most <= 16_384 / 4 * 6 / 5, "{placed:?}");
    for (when, imbalance) in [("before", 200.0), ("after", 0.0)] {
        let local = summary["local_access_percent"][when].as_f64().unwrap_or(-100.0);
        let said = summary["controller_imbalance_percent"][when].as_f64().unwrap_or(-100.0);
        assert!((local - 25.0).abs() <= 5.0 && (said - imbalance).abs() <= 20.0, "{when}: {summary}");
    }
}

/// They lie side by side, where a huge page could. The kernel may take a few back to the node that they are
/// bound to.
#[test]
fn folios_of_half_a_huge_page_are_no_huge_pages() {
    let (placed, _) = folios_move_once(256);
    let most = placed.pages_by_node.iter().max().unwrap();
    assert!(*most <= 16_384 / 4 * 3 / 2, "{placed:?}");
}

fn folios_move_once(pages: u64) -> (Placement, Value) {
    const PAGES: u64 = 16_384;
    let script = format!(
        "sizes=/sys/kernel/mm/transparent_hugepage
        echo never >$sizes/enabled && echo always >$sizes/hugepages-{}kB/enabled || exit 90
        count() {{ awk -v name=$1 '$1 == name {{ print $2 }}' /proc/vmstat; }}
        migrated() {{ echo $(($(count pgmigrate_success) - $(count numa_pages_migrated))); }}
        before=$(migrated)
        $NODEWISE run --log log --json json -- $WORKLOAD shared-update --bound --huge --mebibytes 64 --seconds 50 --after-placed 5 --report report
        status=$?; echo $(($(migrated) - before)); exit $status",
        4 * pages
    );
    let f = run(Guest::uniform(4, 1, 384 * MIB), &script, &["log", "json", "report"]);
    assert_eq!(f.status, 0, "{}", f.stderr);
    let end = last(&f, "report");
    println!("{end:?}");
    let (migrated, summary) = (f.stdout.trim().parse::<u64>().unwrap(), f.json("json").unwrap());
    let moved = summary["pages_moved"].as_u64().unwrap();
    assert!(moved > 0 && migrated.abs_diff(moved) <= moved / 20, "{migrated} were migrated: {summary}");
    let first_touches = summary["totals"]["first_touches"].as_u64().unwrap();
    // The program itself has some 250 pages.
    assert!(first_touches < PAGES / pages + 512, "{summary}");
    assert_eq!(moved_again(&f.lines::<Value>("log").unwrap()), 0, "{summary}");
    (end, summary)
}

/// Nodes that decisions moved pages to.
fn targets(finished: &Finished, log: &str) -> Vec<u64> {
    let lines = finished.lines::<Value>(log).unwrap();
    let decisions = lines.iter().filter(|line| line["event"] == "decision");
    let to = decisions.flat_map(|line| line["to"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()));
    let mut to: Vec<u64> = to.collect();
    to.sort_unstable();
    to.dedup();
    to
}

#[test]
fn a_node_without_cpus_gives_its_pages_and_gets_none() {
    // The pages of the first program are put on the memory-only node, 2, before Nodewise comes; the kernel
    // does not balance until then, and a report sees them there.
    let script = "
        echo 0 >/proc/sys/kernel/numa_balancing
        $WORKLOAD private --mebibytes 32 --seconds 150 --after-placed 5 --report private & target=$!
        within 60 [ -s private ]
        migratepages $target 0,1 2
        sleep 2
        $NODEWISE attach $target --log private.log --json private.json 2>err & nodewise=$!
        wait $target; wait $nodewise || cat err >&2
        $NODEWISE run --log shared.log --json shared.json -- \\
            $WORKLOAD shared-write --mebibytes 32 --seconds 15 --report shared 2>err || cat err >&2";
    let files = ["private", "private.log", "private.json", "shared", "shared.log", "shared.json"];
    let guest = Guest::new([node(1, 384), node(1, 384), node(0, 256)]).copy("/usr/bin/migratepages");
    let f = run(guest, script, &files);
    let placements = f.placements("private").unwrap();
    let most_there = placements.iter().map(|placement| placement.pages_by_node[2]).max();
    let all: u64 = placements[0].pages_by_node.iter().sum();
    assert!(most_there > Some(all / 2), "the pages were put there: {placements:?} {}", f.stderr);
    let end = last(&f, "private");
    assert!(
        end.pages_by_node[2] * 100 <= all && end.local_percent_min >= 99.0,
        "{placements:#?}\n{}",
        f.stderr
    );
    assert!(!targets(&f, "private.log").contains(&2), "{:?}", targets(&f, "private.log"));
    assert!(!targets(&f, "shared.log").contains(&2), "{:?}", targets(&f, "shared.log"));
    assert_eq!(last(&f, "shared").pages_by_node[2], 0);
}

/// The kernel has filled the node with what was read, as on every machine that has run for a day. It has left
/// 5 MiB for the 8 that its thread uses.
#[test]
fn page_cache_that_nobody_used_lately_makes_room() {
    let script = "
        exec 3</dev/nvme0n1 4</dev/nvme1n1
        for disk in 0 1; do taskset 8 dd if=/dev/nvme${disk}n1 of=/dev/null bs=1M 2>err || cat err >&2; done
        awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node3/meminfo >free
        $NODEWISE run --log log -- $WORKLOAD private --bound --mebibytes 32 --seconds 100 --after-placed 2 \
            --report report 2>err; status=$?; cat err >&2; exit $status";
    let guest = Guest::new([node(1, 384), node(1, 384), node(1, 384), node(1, 140)]);
    let guest = guest.device(3, Device::Nvme).device(3, Device::Nvme);
    let f = run(guest.copy("/usr/bin/taskset").copy("/usr/bin/dd"), script, &["free", "log", "report"]);
    assert_eq!(f.status, 0, "{}", f.stderr);
    let free: u64 = f.file("free").unwrap().trim().parse().unwrap();
    assert!(free < 8, "{free} MiB");
    assert_eq!(last(&f, "report").pages_by_node, [2048; 4], "{}", f.stderr);
    let log = f.lines::<Value>("log").unwrap();
    let is_full = |line: &Value| line["outcome"]["node_full"].as_u64() > Some(0);
    assert!(!log.iter().any(is_full), "{}", f.stderr);
}

#[test]
fn a_full_node_is_left_alone_and_the_others_get_theirs() {
    // A file bound to node 2 leaves it 12 MiB of the 24 that its thread uses. The kernel keeps so much of a
    // node free for making huge pages that it would end the writer of the file first, so it is told to
    // keep less.
    let script = "
        echo 4096 >/proc/sys/vm/min_free_kbytes
        free() { awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node2/meminfo; }
        mkdir /full && mount -t tmpfs -o size=1G,mpol=bind:2 tmpfs /full
        dd if=/dev/zero of=/full/file bs=1M count=$(($(free) - 12)) 2>/dev/null
        free >free
        $NODEWISE run --log log --json json -- $WORKLOAD private --mebibytes 96 --seconds 25 --report report 2>err
        status=$?
        cat err >&2; free >>free; dmesg | grep -i -e 'out of memory' -e oom-kill >oom
        exit $status";
    let f = run(Guest::uniform(4, 1, 256 * MIB), script, &["log", "json", "report", "free", "oom"]);
    assert_eq!((f.status, f.file("oom").unwrap()), (0, ""), "{}", f.stderr);
    let placements = f.placements("report").unwrap();
    let end = placements.last().unwrap();
    let slice = end.pages_by_node.iter().sum::<u64>() / 4;
    println!("free MiB on node 2: {:?}; {:?}", f.file("free").unwrap(), end.pages_by_node);
    for node in [1, 3] {
        assert!(end.pages_by_node[node] * 100 >= slice * 95, "{placements:#?}\n{}", f.stderr);
    }
    assert!(
        end.pages_by_node[2] < slice * 3 / 4,
        "node 2 has no room for all of its thread's pages: {end:?}"
    );
    // The kernel may have filled the node before Nodewise decides, and then its own failures slow its scans
    // down until nothing is decided any more; that a full node is reported as full is part of the
    // machine's conformance.
    for line in f.lines::<Value>("log").unwrap().iter().filter(|line| line["to"] == json!([2])) {
        let (planned, moved) = (&line["outcome"]["planned"], &line["outcome"]["moved"]);
        assert!(planned.as_u64() <= Some(slice) && moved.as_u64() <= Some(12 * 256), "{line}");
    }
}

/// Bound to such a node, the program would be killed for want of memory. A smaller one is run there.
#[test]
fn compare_leaves_out_a_node_that_is_too_small_for_the_program() {
    let script = "
        for mebibytes in 128 16; do
            $NODEWISE compare --only node --repeat 2 --json $mebibytes -- \
                dd if=/dev/zero of=/dev/null bs=${mebibytes}M count=4 >/dev/null 2>err || { cat err >&2; exit 1; }
        done; dmesg | grep -i -e 'out of memory' -e oom-kill >oom; true";
    let f = run(Guest::new([node(1, 512), node(1, 140)]), script, &["128", "16", "oom"]);
    assert_eq!((f.status, f.file("oom").unwrap()), (0, ""), "{}", f.stderr);
    let left_out = |mebibytes: &str| -> Vec<(String, String)> {
        let compared = f.json(mebibytes).unwrap();
        let text = |skipped: &Value, key: &str| skipped[key].as_str().unwrap().to_owned();
        let skipped = compared["skipped"].as_array().unwrap().iter();
        skipped.map(|skipped| (text(skipped, "name"), text(skipped, "why"))).collect()
    };
    let (large, small) = (left_out("128"), left_out("16"));
    println!("{large:?} {small:?}");
    let [(name, why)] = &large[..] else { panic!("{large:?}") };
    assert!(name == "node1" && why.starts_with("node 1 has ") && why.contains(" MiB free, "), "{why}");
    assert_eq!(small, [], "an eighth of it fits");
}
