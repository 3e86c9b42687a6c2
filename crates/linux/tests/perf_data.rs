//! Recordings of `perf`: made here, whose truth is known, and of the real `perf`, whose truth `perf script`
//! tells.

#[path = "perf_data/made.rs"]
mod made;

use made::{MEM_LOADS, Made, PAGE_FAULTS, RAW_PMU, SOFTWARE, Sample, part, source};
use nodewise_engine::{Access, DataSource, PageSize, Pid};
use nodewise_linux::perf_data::{Recording, is_perf_data, read};
use nodewise_topology::NodeIndex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::path::Path;
use std::process::Command;

const FILE: &str = "perf.data";

fn recording(bytes: &[u8]) -> Result<Recording, String> {
    assert!(is_perf_data(bytes) || bytes.len() < 8 || !bytes.starts_with(b"PERF"));
    read(Path::new(FILE), Cursor::new(bytes), bytes.len() as u64).map_err(|error| error.to_string())
}

fn refused(made: &Made) -> String {
    recording(&made.bytes()).unwrap_err()
}

fn sample(time: u64, cpu: u32, source: u64) -> Sample {
    Sample {
        ip: 0x40_1000,
        pid: 10,
        tid: 11,
        time,
        address: 0x7000_0000 + 64 * time,
        cpu,
        period: 1000,
        latency: 300,
        source,
        page_bytes: 4096,
        ..Sample::default()
    }
}

fn homes(recording: &Recording) -> Vec<Option<u8>> {
    recording.samples.iter().map(|sample| sample.home.map(|home| home.0)).collect()
}

proptest! {
    /// The parts that nodewise needs, with any others among them.
    #[test]
    fn a_sample_is_as_it_was_written_whatever_else_is_in_it(
        others in any::<u32>(), piped in any::<bool>(), address in 1_u64..1 << 47, period in 1_u64..1 << 32,
        latency in any::<u32>(), cpu in 0_u32..16, other_event in any::<bool>(),
    ) {
        let needed = part::TID | part::ADDR | part::DATA_SRC | part::CPU;
        let chosen = part::ALL.iter().zip(0..).filter(|(_, bit)| others >> bit & 1 == 1);
        let mut parts = chosen.fold(needed, |all, (part, _)| all | part);
        if parts & part::WEIGHT_STRUCT != 0 {
            parts &= !part::WEIGHT;
        }
        let mut events = vec![made::Event { parts, ..MEM_LOADS }];
        if other_event {
            // The first event tells nothing of memory, and has other parts.
            events[0].parts |= part::IDENTIFIER;
            events.insert(0, made::Event { pmu: SOFTWARE, config: 0, parts: part::IDENTIFIER | part::TIME });
        }
        let has = |part| events[events.len() - 1].parts & part != 0;
        let mut made = Made::of(&events, 4, 4);
        let physical = Made::physical(3, 5);
        let one = Sample { address, period, latency, physical, ..sample(77, cpu, source::REMOTE_HITM) };
        if other_event {
            made.sample(0, &one);
        }
        made.sample(events.len() - 1, &one);
        let told = recording(&if piped { made.piped() } else { made.bytes() }).unwrap();
        prop_assert_eq!(told.samples.len(), 1);
        let found = told.samples[0];
        prop_assert_eq!((found.pid.0, found.tid.0, found.address.0), (10, 11, address));
        prop_assert_eq!((found.accessor.0, found.access), ((cpu / 4) as u8, Access::Read));
        prop_assert_eq!(found.source, DataSource::RemoteCache { modified: true });
        prop_assert_eq!(found.time_ns, if has(part::TIME) { 77 } else { 0 });
        prop_assert_eq!(found.weight, if has(part::PERIOD) { period as u32 } else { 1 });
        let weighs = has(part::WEIGHT) || has(part::WEIGHT_STRUCT);
        prop_assert_eq!(found.latency_cycles, if weighs { latency } else { 0 });
        prop_assert_eq!(found.home, has(part::PHYS_ADDR).then_some(NodeIndex(3)));
    }

    #[test]
    fn flipped_bytes_are_refused_or_read_and_never_a_panic(
        flips in proptest::collection::vec((0_usize..1 << 16, any::<u8>()), 1..12), piped in any::<bool>(),
    ) {
        let made = story();
        let mut bytes = if piped { made.piped() } else { made.bytes() };
        for (at, byte) in flips {
            // Most of it is records: the head is as likely as all of them.
            let at = if at % 2 == 0 { at / 2 % bytes.len() } else { at / 2 % 512.min(bytes.len()) };
            bytes[at] = byte;
        }
        let _ = read(Path::new(FILE), Cursor::new(&bytes), bytes.len() as u64);
    }

    #[test]
    fn whatever_follows_the_magic_is_never_a_panic(
        rest in proptest::collection::vec(any::<u8>(), 0..400), small in any::<bool>(),
    ) {
        let mut bytes = b"PERFILE2".to_vec();
        bytes.extend(made::words(&[if small { 16 } else { 104 }]));
        bytes.extend(rest);
        let _ = read(Path::new(FILE), Cursor::new(&bytes), bytes.len() as u64);
    }
}

/// Two processes on four nodes, the second a child of the first, which runs another program before that.
fn story() -> Made {
    let faults = made::Event { pmu: SOFTWARE, config: PAGE_FAULTS, parts: part::MEM | part::CALLCHAIN };
    let mut made = Made::of(&[made::Event { parts: part::MEM | part::CALLCHAIN, ..MEM_LOADS }, faults], 4, 4);
    made.map(10, 0, 0x7000_0000, 0x10_0000, "/old.so");
    made.exec(10, 5, "solver");
    made.map(10, 6, 0x40_0000, 0x1000, "/bin/solver");
    made.map(10, 7, 0x7000_0000, 0x10_0000, "//anon");
    made.map(10, 8, 0x7000_4000, 0x1000, "/dev/shm/x");
    made.fork(10, 12, 30);
    made.map(12, 31, 0x7000_0000, 0x1000, "[heap]");
    // CPU by CPU, as perf writes them.
    for (cpu, node) in [(0, 0), (9, 2)] {
        for time in [40, 50] {
            let one = sample(time + u64::from(cpu), cpu, source::REMOTE_DRAM);
            made.sample(0, &Sample { physical: Made::physical(node, 4096), ..one });
        }
    }
    let fault = |time, page: u64, page_bytes| Sample {
        address: 0x7000_0000 + 4096 * page,
        callers: vec![0x40_0800, 0x40_0900],
        page_bytes,
        mode: 1,
        ..sample(time, 5, source::UNKNOWN)
    };
    for (time, page) in [(20, 1), (21, 2), (22, 3)] {
        made.sample(1, &fault(time, page, 0));
    }
    // A hint fault, and an address of the kernel.
    made.sample(1, &fault(23, 2, 4096));
    made.sample(1, &Sample { address: 1 << 63, ..fault(24, 0, 0) });
    made
}

#[test]
fn records_of_all_cpus_are_told_in_the_order_of_time() {
    for bytes in [story().bytes(), story().piped()] {
        let told = recording(&bytes).unwrap();
        assert_eq!(told.command, ["perf", "mem", "record", "./solver"]);
        assert_eq!((told.nodes.as_slice(), told.samples.len()), (&[0, 1, 2, 3][..], 4));
        let times: Vec<u64> = told.samples.iter().map(|sample| sample.time_ns).collect();
        assert_eq!(times, [40, 49, 50, 59]);
        assert_eq!(homes(&told), [Some(0), Some(2), Some(0), Some(2)]);
        let name = |(pid, range, text): &(Pid, nodewise_engine::PageRange, String)| {
            (pid.0, range.start.0, range.pages(), text.clone())
        };
        let names: Vec<_> = told.names.iter().map(name).collect();
        let own = |at, pages, text: &str| (10, at, pages, text.to_owned());
        assert_eq!(
            names,
            [own(0x400, 1, "/bin/solver"), own(0x7_0004, 1, "/dev/shm/x")],
            "of sampled processes"
        );
        let [touched] = &told.first_touch.touched[..] else { panic!("{:?}", told.first_touch) };
        assert_eq!((touched.range.start.0, touched.range.pages(), touched.node.0), (0x7_0001, 3, 1));
        let stack = &told.first_touch.stacks[touched.stack.unwrap() as usize];
        let frame = |frame: &nodewise_linux::Frame| (frame.module.clone(), frame.offset);
        // But for the innermost one, it is the call that counts.
        assert_eq!(
            stack.iter().map(frame).collect::<Vec<_>>(),
            [("/bin/solver".into(), 0x800), ("/bin/solver".into(), 0x8ff)]
        );
    }
}

#[test]
fn a_childs_memory_is_named_as_its_parents() {
    let mut made = story();
    made.sample(0, &Sample { pid: 12, ..sample(90, 0, source::LOCAL_DRAM) });
    let told = recording(&made.bytes()).unwrap();
    let names: Vec<_> =
        told.names.iter().filter(|(pid, ..)| pid.0 == 12).map(|(.., text)| text.as_str()).collect();
    assert_eq!(names, ["/bin/solver", "[heap]", "/dev/shm/x"]);
    let programs: Vec<_> = told.programs.iter().map(|(pid, name)| (pid.0, name.as_str())).collect();
    assert_eq!(programs, [(10, "solver"), (12, "solver")]);
}

#[test]
fn without_the_page_that_was_there_the_first_fault_counts() {
    let faults = made::Event { pmu: SOFTWARE, config: PAGE_FAULTS, parts: part::MEM & !part::DATA_PAGE_SIZE };
    let mut made = Made::of(&[MEM_LOADS, faults], 4, 4);
    for cpu in [3, 7] {
        made.sample(1, &Sample { address: 0x5000, ..sample(10 + u64::from(cpu), cpu, 0) });
    }
    made.sample(0, &sample(90, 0, source::LOCAL_DRAM));
    let told = recording(&made.bytes()).unwrap();
    let touched: Vec<u8> = told.first_touch.touched.iter().map(|one| one.node.0).collect();
    assert_eq!(touched, [0]);
}

#[test]
fn where_memory_is_comes_from_its_address_or_else_from_what_served_it() {
    let sources = [
        source::LOCAL_DRAM,
        source::REMOTE_DRAM,
        source::REMOTE_HITM,
        source::STORE_MISS,
        source::LOCAL_CACHE,
    ];
    let told = |nodes: u32, physical: &dyn Fn(u64) -> u64| {
        let mut made = Made::of(&[MEM_LOADS], nodes, 4);
        for (time, source) in (0..).zip(sources) {
            made.sample(0, &Sample { physical: physical(time), ..sample(time, 5, source) });
        }
        homes(&recording(&made.bytes()).unwrap())
    };
    // CPU 5 is on node 1.
    assert_eq!(told(2, &|_| 0), [Some(1), Some(0), None, None, None], "the other one of two");
    assert_eq!(told(4, &|_| 0), [Some(1), None, None, None, None], "one of three others");
    let exact = |time| Made::physical(time % 4, 4096);
    assert_eq!(told(4, &exact), [Some(0), Some(1), Some(2), Some(3), Some(0)]);
    let beyond = |_| Made::physical(9, 0);
    assert_eq!(told(4, &beyond), [Some(1), None, None, None, None], "memory that came later");
    // A block that two nodes have.
    let mut made = Made::of(&[MEM_LOADS], 2, 4);
    let both = [
        [1, 1 << 27, 2, 0, 64, 64, 3, 1, 64, 64].map(u64::to_le_bytes).concat(),
        2_u64.to_le_bytes().to_vec(),
    ];
    made.feature(22, both.concat());
    for block in 0..3 {
        made.sample(0, &Sample { physical: (block << 27) + 8, ..sample(block, 5, source::UNKNOWN) });
    }
    assert_eq!(homes(&recording(&made.bytes()).unwrap()), [Some(0), None, None]);
    // Without blocks the source is all there is.
    made.without_feature(22);
    assert_eq!(homes(&recording(&made.bytes()).unwrap()), [None, None, None]);
}

#[test]
fn only_accesses_of_user_code_to_its_memory_count() {
    let mut made = Made::of(&[MEM_LOADS], 2, 4);
    let one = sample(1, 0, source::LOCAL_DRAM);
    for other in [
        Sample { address: 0, ..one.clone() },
        Sample { address: 0xffff_8880_0000_0000, ..one.clone() },
        Sample { mode: 1, ..one.clone() },
        Sample { mode: 5, ..one.clone() },
        Sample { page_bytes: 2 << 20, ..one.clone() },
        Sample { cpu: 99, ..one },
    ] {
        made.sample(0, &other);
    }
    made.record(2, 0, &made::words(&[700, 5, 0, 0, 0, 0, 0]));
    let told = recording(&made.bytes()).unwrap();
    assert_eq!((told.samples.len(), told.from_nowhere, told.lost), (1, 1, 5));
    assert_eq!(told.samples[0].page_size, PageSize::Huge);
}

#[test]
fn a_file_that_was_cut_anywhere_is_refused() {
    let whole = story().bytes();
    recording(&whole).unwrap();
    for length in 8..whole.len() {
        let error = recording(&whole[..length]).unwrap_err();
        assert!(error.starts_with("perf.data: cut off: 'perf record' was not ended"), "{length}: {error}");
    }
    let piped = story().piped();
    let cut = (8..piped.len()).filter(|&length| recording(&piped[..length]).is_err()).count();
    // A pipe's end may be where a record ends.
    assert!(cut > piped.len() - 100, "{cut} of {}", piped.len());
    // perf writes the size of the records when it ends.
    let mut killed = whole.clone();
    killed[48..56].fill(0);
    assert!(recording(&killed).unwrap_err().starts_with("perf.data: cut off"));
}

#[test]
fn whatever_is_no_recording_of_accesses_here_is_one_clear_error() {
    let mut made = story();
    made.feature(6, made::text("riscv64"));
    let expected = format!(
        "perf.data: recorded on riscv64; this nodewise reads recordings of its own architecture, {}",
        std::env::consts::ARCH
    );
    assert_eq!(refused(&made), expected);
    assert_eq!(recording(&made.piped()).unwrap_err(), expected);
    let mut swapped = story().bytes();
    swapped[..8].reverse();
    assert_eq!(
        recording(&swapped).unwrap_err(),
        "perf.data: recorded on a big-endian machine; this nodewise reads those of its own"
    );
    let of = |pmu, parts| {
        let mut made = Made::of(&[made::Event { pmu, config: 0, parts }], 2, 4);
        made.sample(0, &sample(1, 0, source::LOCAL_DRAM));
        made
    };
    let no_accesses = "perf.data: none of its events samples accesses to memory; record with \
                       'perf mem record --phys-data --sample-cpu'";
    assert_eq!(refused(&of(SOFTWARE, part::MEM)), no_accesses);
    assert_eq!(refused(&of(RAW_PMU, part::MEM & !part::DATA_SRC)), no_accesses);
    assert!(refused(&of(RAW_PMU, part::MEM & !part::CPU)).contains("do not tell the CPU"));
    let mut spe = of(SOFTWARE, part::MEM);
    spe.record(70, 0, &[0; 16]);
    // A record with bytes behind it, which are no records.
    let bytes = [made::words(&[24, 0, 0]), vec![0; 16]].concat();
    spe.record(71, 0, &bytes);
    spe.records.extend([0xff; 24]);
    assert!(refused(&spe).contains("its samples are AUX data"), "{}", refused(&spe));
    let mut nodeless = story();
    nodeless.without_feature(14);
    assert_eq!(refused(&nodeless), "perf.data: it does not tell the nodes of its machine (NUMA_TOPOLOGY)");
    let unlike = [MEM_LOADS, made::Event { parts: part::ADDR, ..MEM_LOADS }];
    let mut untold = Made::of(&unlike, 2, 4);
    untold.sample(0, &sample(1, 0, source::LOCAL_DRAM));
    let untold = refused(&untold);
    assert!(untold.ends_with("damaged: its records do not tell of which event they are"), "{untold}");
    let mut foreign = story();
    foreign.record(9, 2, &made::words(&[12_345; 12]));
    assert_eq!(refused(&foreign), "perf.data: damaged: a record is of no event that it has");
    let mut packed = story();
    packed.record(81, 0, b"this is no Zstandard");
    assert_eq!(refused(&packed), "perf.data: damaged: its records are no stream of Zstandard");
}

/// The real `perf`; none where it is missing, or may not watch anything.
fn perf(place: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("perf").current_dir(place).args(arguments).output().ok()?;
    let is_fine = output.status.success();
    if !is_fine {
        eprintln!("perf {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_fine.then_some(output.stdout)
}

/// Has the page faults of a recording count as a PMU's samples, which no virtual machine has.
fn as_a_pmus(mut bytes: Vec<u8>) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (each, attrs, size) = (word(16), word(24), word(32));
    let is_of_faults = |at: &usize| word(at + 8) as u64 == PAGE_FAULTS;
    let events: Vec<usize> = (attrs..attrs + size).step_by(each).filter(is_of_faults).collect();
    for at in events {
        bytes[at..at + 4].copy_from_slice(&RAW_PMU.to_le_bytes());
    }
    bytes
}

const RECORD: [&str; 12] = [
    "record",
    "-q",
    "-d",
    "-W",
    "--phys-data",
    "--data-page-size",
    "--sample-cpu",
    "-e",
    "page-faults:u",
    "-c",
    "1",
    "-o",
];
/// A program of several processes.
const PROGRAM: [&str; 4] =
    ["--", "sh", "-c", "ls -lR /usr/lib >/dev/null; awk 'BEGIN { for (i = 0; i < 50000; i++) a[i] = i }'"];

/// Memory of no file. The kernel names the heap as soon as it grows, and not before.
const UNNAMED: [&str; 2] = ["[unknown]", "[heap]"];

#[test]
fn the_real_perfs_samples_are_as_perf_script_tells_them() {
    let place = tempfile::tempdir().unwrap();
    if perf(place.path(), &[&RECORD[..], &["a.data"], &PROGRAM].concat()).is_none() {
        return;
    }
    let fields = "pid,tid,cpu,time,addr,phys_addr,weight,period,misc";
    let script = perf(place.path(), &["script", "--ns", "-i", "a.data", "-F", fields]).unwrap();
    // PID/TID [CPU] MISC SECONDS: PERIOD ADDRESS WEIGHT PHYSICAL
    let mut truth = Vec::new();
    for line in String::from_utf8(script).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [task, cpu, misc, time, period, address, weight, _] = words[..] else { panic!("{line}") };
        let (pid, tid) = task.split_once('/').unwrap();
        if misc != "U" {
            continue;
        }
        let time: u64 = time.trim_end_matches(':').replace('.', "").parse().unwrap();
        let number = |text: &str| text.parse::<u64>().unwrap();
        truth.push((
            time,
            number(pid),
            number(tid),
            u64::from_str_radix(address, 16).unwrap(),
            number(period),
            number(weight),
            cpu.to_owned(),
        ));
    }
    truth.sort();
    assert!(truth.len() > 500, "{} samples", truth.len());
    let bytes = as_a_pmus(std::fs::read(place.path().join("a.data")).unwrap());
    let told = recording(&bytes).unwrap();
    let mut found: Vec<_> = told
        .samples
        .iter()
        .map(|one| {
            let (pid, tid) = (one.pid.0.into(), one.tid.0.into());
            let (period, latency) = (one.weight.into(), one.latency_cycles.into());
            (one.time_ns, pid, tid, one.address.0, period, latency)
        })
        .collect();
    found.sort_unstable();
    let expected: Vec<_> = truth.iter().map(|t| (t.0, t.1, t.2, t.3, t.4, t.5)).collect();
    assert_eq!(found, expected);
    // By process and file: perf finds the mapping of each sample in its own way.
    std::fs::write(place.path().join("b.data"), &bytes).unwrap();
    let report = ["report", "-i", "b.data", "--mem-mode", "-q", "-n", "--stdio", "-s", "pid,dso_daddr", "-F"];
    let report = [&report[..], &["sample,pid,dso_daddr", "-t", ";", "-g", "none"]].concat();
    let report = String::from_utf8(perf(place.path(), &report).unwrap()).unwrap();
    let mut truth: BTreeMap<(u32, String), i64> = BTreeMap::new();
    for line in report.lines().filter(|line| !line.trim().is_empty()) {
        let [count, task, file] = line.split(';').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let pid = task.split_once(':').unwrap().0.parse().unwrap();
        let file = if UNNAMED.contains(&file) { "anon" } else { file };
        *truth.entry((pid, file.to_owned())).or_default() += count.parse::<i64>().unwrap();
    }
    let mut found: BTreeMap<(u32, String), i64> = BTreeMap::new();
    for one in &told.samples {
        let named = told.names.iter().find(|(pid, range, _)| {
            *pid == one.pid && (range.start..range.end).contains(&one.address.page())
        });
        let name = named.map_or("anon", |(.., name)| name.rsplit('/').next().unwrap());
        let name = if UNNAMED.contains(&name) { "anon" } else { name };
        *found.entry((one.pid.0, name.to_owned())).or_default() += 1;
    }
    let pids = |sums: &BTreeMap<(u32, String), i64>| {
        let mut by_pid: BTreeMap<u32, i64> = BTreeMap::new();
        for ((pid, _), count) in sums {
            *by_pid.entry(*pid).or_default() += count;
        }
        by_pid
    };
    assert_eq!(pids(&found), pids(&truth));
    assert!(pids(&found).len() > 2, "{found:?}");
    // Names are those of the end: a file that was mapped for a moment may have had its place taken.
    let all: i64 = truth.values().sum();
    let keys = truth.keys().chain(found.keys()).collect::<BTreeSet<_>>();
    let count =
        |sums: &BTreeMap<(u32, String), i64>, key: &(u32, String)| sums.get(key).copied().unwrap_or(0);
    let differs = |key: &&&(u32, String)| count(&truth, key) != count(&found, key);
    let differ: Vec<_> =
        keys.iter().filter(differs).map(|key| (*key, count(&truth, key), count(&found, key))).collect();
    let sum: i64 = differ.iter().map(|(_, truth, found)| (truth - found).abs()).sum();
    assert!(sum * 20 < all, "{sum} of {all}: {differ:?}");
    let largest = truth.iter().max_by_key(|(_, count)| **count).unwrap().0;
    assert_eq!(count(&truth, largest), count(&found, largest), "{largest:?}");
}

#[test]
fn what_the_real_perf_compresses_or_pipes_is_the_same() {
    let place = tempfile::tempdir().unwrap();
    let compressed = [&["record", "-z"], &RECORD[1..], &["z.data"], &PROGRAM].concat();
    if perf(place.path(), &compressed).is_none() {
        return;
    }
    let fields = ["script", "-i", "z.data", "-F", "pid"];
    let samples = String::from_utf8(perf(place.path(), &fields).unwrap()).unwrap().lines().count();
    let told = recording(&as_a_pmus(std::fs::read(place.path().join("z.data")).unwrap())).unwrap();
    assert_eq!((told.samples.len(), told.nodes.is_empty()), (samples, false));
    assert!(told.names.iter().any(|(.., name)| name == "[heap]"), "{:?}", told.names);
    let Some(piped) = perf(place.path(), &[&RECORD[..], &["-"], &PROGRAM].concat()) else { return };
    // The event is in a record of its own, right after the head.
    let mut piped = piped;
    assert_eq!(piped[16..20], 64_u32.to_le_bytes());
    piped[24..28].copy_from_slice(&RAW_PMU.to_le_bytes());
    let told = recording(&piped).unwrap();
    assert!(told.samples.len().abs_diff(samples) < samples / 5, "{} and {samples}", told.samples.len());
    assert_eq!(told.command.get(1).map(String::as_str), Some("record"));
}

#[test]
fn the_real_perf_reads_what_is_made_here_alike() {
    let place = tempfile::tempdir().unwrap();
    let mut made = Made::of(&[MEM_LOADS], 4, 4);
    made.map(10, 1, 0x7000_0000, 0x1_0000, "/dev/shm/x");
    for time in 10..110 {
        let one = sample(time, (time % 16) as u32, source::REMOTE_HITM);
        made.sample(0, &Sample { physical: Made::physical(time % 4, 4096 * time), ..one });
    }
    std::fs::write(place.path().join("m.data"), made.bytes()).unwrap();
    let fields = "pid,tid,cpu,addr,phys_addr,weight,period,data_src";
    let Some(script) = perf(place.path(), &["script", "-i", "m.data", "-F", fields]) else { return };
    let script = String::from_utf8(script).unwrap();
    let told = recording(&made.bytes()).unwrap();
    assert_eq!(script.lines().count(), told.samples.len());
    for (line, one) in script.lines().zip(&told.samples) {
        let address = format!("{:x}", one.address.0);
        let physical = format!("{:x}", Made::physical(u64::from(one.home.unwrap().0), 4096 * one.time_ns));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(words.contains(&address.as_str()) && words.contains(&physical.as_str()), "{line}: {one:?}");
        assert!(
            words[0] == "10/11" && line.contains("SNP HitM") && words.contains(&"300"),
            "{line}: {one:?}"
        );
        assert!(words.contains(&format!("[{:03}]", one.time_ns % 16).as_str()), "{line}: {one:?}");
    }
}

#[test]
fn the_real_perfs_page_faults_are_first_touches() {
    let place = tempfile::tempdir().unwrap();
    // A clock's ticks tell no addresses. Here they count as a PMU's samples, so that the file is read.
    let record =
        ["record", "-q", "-d", "--data-page-size", "--sample-cpu", "-g", "-o", "f.data", "-e", "cpu-clock"];
    let program =
        ["-e", "page-faults/period=1/", "--", "awk", "BEGIN { for (i = 0; i < 9999; i++) a[i] = i }"];
    if perf(place.path(), &[&record[..], &program].concat()).is_none() {
        return;
    }
    let fields = ["script", "-i", "f.data", "-G", "-F", "event,tid,addr,data_page_size"];
    let script = String::from_utf8(perf(place.path(), &fields).unwrap()).unwrap();
    let mut truth = BTreeSet::new();
    for line in script.lines().filter(|line| line.contains("page-faults")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = u64::from_str_radix(words[2], 16).unwrap();
        // No page was there.
        if line.trim_end().ends_with("N/A") && address < 1 << 63 {
            truth.insert(address / 4096);
        }
    }
    assert!(truth.len() > 100, "{script}");
    let mut bytes = std::fs::read(place.path().join("f.data")).unwrap();
    let first = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
    bytes[first..first + 4].copy_from_slice(&RAW_PMU.to_le_bytes());
    let told = recording(&bytes).unwrap();
    let pages = told.first_touch.touched.iter().flat_map(|one| one.range.start.0..one.range.end.0);
    assert_eq!(pages.collect::<BTreeSet<u64>>(), truth);
    assert_eq!((told.samples.len(), told.first_touch.left_out), (0, 0));
    let libc = told.first_touch.stacks.iter().flatten().filter(|frame| frame.module.ends_with("libc.so.6"));
    assert!(libc.count() > 0, "{:?}", told.first_touch.stacks.first());
}
