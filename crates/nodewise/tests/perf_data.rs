//! `nodewise report` of recordings of `perf mem record`, made here: what is in them is known.

// The tests of nodewise-linux use the rest of it.
#[allow(dead_code)]
#[path = "../../linux/tests/perf_data/made.rs"]
mod made;

use assert_cmd::cargo::cargo_bin;
use made::{Event, MEM_LOADS, Made, PAGE_FAULTS, SOFTWARE, Sample, part, source};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::AtomicU64;

const NODES: u64 = 4;
const CPUS_EACH: u64 = 4;
/// Pages of the array.
const PAGES: u64 = 1024;
const ARRAY: u64 = 0x7f00_0000_0000;
const COUNTERS: u64 = 0x7f10_0000_0000;
const SECOND_NS: u64 = 1_000_000_000;

fn report(file: &Path, more: &[&str]) -> Output {
    let arguments = [&["report", file.to_str().unwrap()], more].concat();
    Command::new(cargo_bin("nodewise")).args(arguments).output().unwrap()
}

fn printed(file: &Path, more: &[&str]) -> String {
    let output = report(file, more);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A program on four nodes. Its first thread fills an array on node 0, and each node then works on a quarter
/// of it. Each node counts in a word of its own, and all words are on one line.
fn solver(knows_addresses: bool, nodes: u64) -> Made {
    let parts = if knows_addresses { part::MEM } else { part::MEM & !part::PHYS_ADDR };
    let faults = Event { pmu: SOFTWARE, config: PAGE_FAULTS, parts: parts | part::CALLCHAIN };
    let mut made = Made::of(&[Event { parts, ..MEM_LOADS }, faults], nodes as u32, CPUS_EACH as u32);
    made.exec(10, 1, "solver");
    made.map(10, 2, 0x40_0000, 0x10_0000, "/bin/solver-that-is-nowhere");
    made.map(10, 3, ARRAY, PAGES * 4096, "//anon");
    made.map(10, 4, COUNTERS, 4096, "/dev/shm/counters");
    for page in 0..PAGES {
        let callers = vec![0x40_0800, 0x40_0901];
        let fault = Sample {
            pid: 10,
            tid: 10,
            time: 100 + page,
            address: ARRAY + 4096 * page,
            callers,
            ..Sample::default()
        };
        made.sample(1, &fault);
    }
    // Node by node, so that records are not in order.
    for node in 0..nodes {
        for i in 0..1000 {
            let page = PAGES / nodes * node + i * 37 % (PAGES / nodes);
            let one = Sample {
                ip: 0x40_2000,
                pid: 10,
                tid: 10 + node as u32,
                time: SECOND_NS + i * 2_000_000 + node,
                address: ARRAY + 4096 * page + 8 * i % 4096,
                cpu: (CPUS_EACH * node + i % CPUS_EACH) as u32,
                period: 1000,
                latency: 400,
                source: if node == 0 { source::LOCAL_DRAM } else { source::REMOTE_DRAM },
                physical: Made::physical(0, 4096 * (page + 1)),
                page_bytes: 4096,
                ..Sample::default()
            };
            made.sample(0, &one);
            // Caches of the node itself serve some, and nobody's memory.
            made.sample(0, &Sample { source: source::LOCAL_CACHE, ..one.clone() });
            if i % 10 == 0 {
                let (address, physical) = (COUNTERS + 128 + 8 * node, Made::physical(0, 0x800_0080));
                made.sample(0, &Sample { address, physical, source: source::REMOTE_HITM, ..one });
            }
        }
    }
    made
}

fn written(made: &Made, place: &Path) -> std::path::PathBuf {
    let file = place.join("perf.data");
    std::fs::write(&file, made.bytes()).unwrap();
    file
}

fn row<'a>(json: &'a Value, memory: &str) -> &'a Value {
    json["rows"].as_array().unwrap().iter().find(|row| row["memory"] == memory).unwrap()
}

fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn what_perf_recorded_is_reported_for_people_programs_and_browsers() {
    let place = tempfile::tempdir().unwrap();
    let file = written(&solver(true, NODES), place.path());
    let json: Value = serde_json::from_str(&printed(&file, &["--json"])).unwrap();
    assert_eq!(json["command"], json!(["perf", "mem", "record", "./solver"]));
    assert_eq!((&json["nodes"], &json["samples"]), (&json!([0, 1, 2, 3]), &4400.into()));
    assert_eq!(json["samples_are"], "accesses");
    assert_eq!((figure(&json["far_percent"]), figure(&json["unknown_far_percent"])), (75.0, 0.0));
    let array = row(&json, "anonymous memory");
    assert_eq!(array["touched_by"][0], "solver-that-is-nowhere+0x800", "{array}");
    assert_eq!((&array["touched_pages"], &array["touching_threads"]), (&json!([PAGES, 0, 0, 0]), &1.into()));
    assert_eq!(array["used_from_percent"], json!([25.0, 25.0, 25.0, 25.0]));
    assert_eq!(array["lies_on_percent"], json!([100.0, 0.0, 0.0, 0.0]));
    assert_eq!((&array["remedy"], &array["write_percent"]), (&"touch_in_parallel".into(), &0.0.into()));
    assert_eq!((&array["samples"], &array["gain_is_bound"]), (&4000.into(), &true.into()));
    let counters = row(&json, "/dev/shm/counters");
    assert_eq!((&counters["remedy"], &counters["taken_percent"]), (&"privatise".into(), &100.0.into()));
    let line = &json["lines"][0];
    assert_eq!((&line["address"], &line["is_falsely_shared"]), (&(COUNTERS + 128).into(), &true.into()));
    assert_eq!((&line["samples"], &json["lines"][1]), (&400.into(), &Value::Null));
    let local: Vec<&Value> =
        json["over_time"].as_array().unwrap().iter().map(|moment| &moment["local_access_percent"]).collect();
    assert_eq!(local, [25.0, 25.0]);

    let page = place.path().join("a.html");
    let text = printed(&file, &["-o", page.to_str().unwrap()]);
    assert!(text.starts_with("perf mem record ./solver\n2.0 s, 4 nodes, 4400 samples, 75 % of"), "{text}");
    assert!(text.contains("Touch in parallel: anonymous memory, first touched in solver-that-is"), "{text}");
    assert!(text.contains("0x7f1000000080") && text.contains("of one node each: pad them"), "{text}");
    assert!(text.contains("Costs are by the kernel's default distances, as perf.data has none."), "{text}");
    assert!(!text.contains("?:") && !text.contains("do not tell"), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    for part in ["Touch in parallel", "/dev/shm/counters", "<code>0x7f1000000080</code>", "Over time"] {
        assert!(html.contains(part), "{part}: {html}");
    }
}

static GRID: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

/// A program that is this test, mapped elsewhere.
#[test]
fn global_variables_have_their_names() {
    const BEGINS: u64 = 0x5500_0000_0000;
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let first = maps.lines().find(|line| line.ends_with(this)).unwrap();
    let first = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let grid = BEGINS + (GRID.as_ptr() as u64 - first);

    let mut made = Made::of(&[Event { parts: part::MEM, ..MEM_LOADS }], 4, CPUS_EACH as u32);
    made.exec(10, 1, "solver");
    made.map(10, 2, BEGINS, 0x1000, this);
    made.fork(10, 11, 3);
    for i in 0..1000 {
        let one = Sample {
            pid: 10 + i as u32 % 2,
            tid: 10,
            time: SECOND_NS + i,
            address: grid + i * 128,
            cpu: (i % 16) as u32,
            period: 1000,
            source: source::LOCAL_DRAM,
            physical: Made::physical(0, 4096 * (1 + i)),
            page_bytes: 4096,
            ..Sample::default()
        };
        made.sample(0, &one);
    }
    let place = tempfile::tempdir().unwrap();
    let file = written(&made, place.path());
    let json: Value = serde_json::from_str(&printed(&file, &["--json"])).unwrap();
    let module = Path::new(this).file_name().unwrap().to_str().unwrap();
    assert_eq!(row(&json, &format!("perf_data::GRID ({module})"))["samples"], 1000, "{json:#}");
}

#[test]
fn without_physical_addresses_far_memory_is_on_the_other_of_two_nodes_or_nobody_knows_where() {
    let place = tempfile::tempdir().unwrap();
    let file = written(&solver(false, 2), place.path());
    let json: Value = serde_json::from_str(&printed(&file, &["--json"])).unwrap();
    assert_eq!(row(&json, "anonymous memory")["lies_on_percent"], json!([100.0, 0.0]));
    // Another node's cache served the rest, and no memory.
    assert!(figure(&json["unknown_far_percent"]) < 1e-9, "{json:#}");
    let file = written(&solver(false, NODES), place.path());
    let json: Value = serde_json::from_str(&printed(&file, &["--json"])).unwrap();
    let array = row(&json, "anonymous memory");
    assert_eq!((&array["far_percent"], &array["remedy"]), (&75.0.into(), &"touch_in_parallel".into()));
    assert_eq!(array["lies_on_percent"], json!([25.0, 0.0, 0.0, 0.0]));
    assert_eq!(
        (figure(&json["unknown_far_percent"]), figure(&json["far_percent"])),
        (75.0, 75.0),
        "{json:#}"
    );
    let local = figure(&json["over_time"][0]["local_access_percent"]);
    assert!((local - 25.0).abs() < 0.5, "{local}");
    let page = place.path().join("a.html");
    let text = printed(&file, &["-o", page.to_str().unwrap()]);
    for report in [text, std::fs::read_to_string(page).unwrap()] {
        assert!(report.contains("0:25 ?:75"), "{report}");
        assert!(report.contains("75 % of the accesses go to another node"), "{report}");
        assert!(report.contains("record with --phys-data"), "{report}");
    }
}

#[test]
fn samples_that_tell_nothing_of_memory_are_counted_and_not_guessed() {
    let place = tempfile::tempdir().unwrap();
    let mut made = Made::of(&[MEM_LOADS], 4, 4);
    let one = Sample {
        pid: 10,
        tid: 10,
        address: ARRAY,
        period: 1,
        source: source::STORE_MISS,
        ..Sample::default()
    };
    for time in 0..100 {
        made.sample(0, &Sample { time, ..one.clone() });
    }
    let text = printed(&written(&made, place.path()), &[]);
    assert!(text.contains("100 samples") && text.contains("No sample tells where its memory is"), "{text}");
    // Half of them are loads, which tell.
    for time in 100..200 {
        made.sample(0, &Sample { time, source: source::LOCAL_DRAM, ..one.clone() });
    }
    let text = printed(&written(&made, place.path()), &[]);
    assert!(text.contains("50 % of the samples do not tell where the memory is"), "{text}");
    assert!(text.contains("Samples are accesses"), "stores are no hint faults: {text}");
}

#[test]
fn a_bad_recording_is_one_clear_error_and_nothing_is_half_written() {
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("perf.data"), place.path().join("a.html"));
    let whole = solver(true, NODES);
    let mut foreign = whole.clone();
    foreign.feature(6, made::text("s390x"));
    let mut swapped = whole.bytes();
    swapped[..8].reverse();
    let mut blind = Made::of(&[Event { parts: part::MEM & !part::CPU, ..MEM_LOADS }], 4, 4);
    blind.sample(0, &Sample { pid: 10, tid: 10, address: ARRAY, ..Sample::default() });
    for (bytes, expected) in [
        (whole.bytes()[..5000].to_vec(), "cut off: 'perf record' was not ended properly"),
        (whole.bytes()[..50].to_vec(), "cut off: 'perf record' was not ended properly"),
        (foreign.bytes(), "recorded on s390x; this nodewise reads recordings of its own architecture"),
        (swapped, "recorded on a big-endian machine"),
        (blind.bytes(), "do not tell the CPU, so that nobody knows from which node memory was used; record"),
        (b"PERFFILE, of 2009".to_vec(), "not a profile; 'nodewise profile' and 'perf mem record' write them"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        for more in [&["--json"][..], &["-o", page.to_str().unwrap()]] {
            let output = report(&file, more);
            assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{output:?}");
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(error.lines().count() == 1 && error.contains(expected), "{error}");
        }
    }
    let left: Vec<_> = place.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["perf.data"]);
}

#[test]
fn memory_of_several_programs_is_told_apart() {
    let place = tempfile::tempdir().unwrap();
    let mut made = Made::of(&[MEM_LOADS], 2, 4);
    for (pid, name) in [(10, "redis-server"), (20, "nginx"), (21, "nginx")] {
        made.exec(pid, 1, name);
        made.map(pid, 2, ARRAY, 4096, "[heap]");
        for i in 0..60 {
            let (time, address) = (100 + i, ARRAY + 0x800 * (i % 3));
            made.sample(
                0,
                &Sample { pid, tid: pid, time, address, source: source::LOCAL_DRAM, ..Sample::default() },
            );
        }
    }
    let json: Value = serde_json::from_str(&printed(&written(&made, place.path()), &["--json"])).unwrap();
    let samples = |memory| row(&json, memory)["samples"].as_u64().unwrap();
    assert_eq!((samples("[heap] of redis-server"), samples("[heap] of nginx")), (40, 80));
    assert_eq!((samples("anonymous memory of redis-server"), samples("anonymous memory of nginx")), (20, 40));
}

/// Every byte of the head, of the sections and of some records, changed one at a time.
#[test]
fn a_damaged_recording_is_shown_or_refused_and_never_a_panic() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("perf.data");
    let mut made = solver(true, NODES);
    made.records.truncate(0);
    made.map(10, 2, ARRAY, 4096, "//anon");
    for time in 0..3 {
        made.sample(
            0,
            &Sample {
                pid: 10,
                tid: 10,
                address: ARRAY,
                time,
                source: source::LOCAL_DRAM,
                ..Sample::default()
            },
        );
    }
    let whole = made.bytes();
    let page = place.path().join("a.html");
    for at in (8..whole.len()).step_by(5) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&file, damaged).unwrap();
        let output = report(&file, &["-o", page.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{at}: {error}");
        assert!(error.lines().count() <= 1, "{at}: {error}");
    }
}
