//! `nodewise sim run --trace`: recorded programs on any machine.

mod simulated;

use serde_json::Value;
use simulated::{json, sim};

/// The nodes that some thread of a run came from.
fn accessors(run: &Value) -> Vec<usize> {
    let rows = run["traffic"].as_array().unwrap().iter().enumerate();
    rows.filter(|(_, row)| row.as_array().unwrap().iter().any(|lines| lines != 0)).map(|row| row.0).collect()
}

/// A trace as the format is documented (`nodewise-trace`): of each thread the instructions before an access,
/// its line, and its kind.
fn trace_of(threads: &[Vec<(u64, u64, u64)>]) -> Vec<u8> {
    fn varint(bytes: &mut Vec<u8>, mut value: u64) {
        while value > 127 {
            bytes.push(value as u8 | 128);
            value >>= 7;
        }
        bytes.push(value as u8);
    }
    let mut file = b"NWTRACE1".to_vec();
    varint(&mut file, threads.len() as u64);
    for (thread, accesses) in threads.iter().enumerate() {
        let (mut rest, mut last) = (Vec::new(), 0);
        for &(instructions, line, kind) in accesses {
            let step = line as i64 - last;
            last = line as i64;
            let zigzag = (step << 1 ^ step >> 63) as u64;
            varint(&mut rest, 8 * zigzag + 2 * kind + u64::from(instructions > 0));
            if instructions > 0 {
                varint(&mut rest, instructions);
            }
        }
        for number in [thread, accesses.len(), rest.len()] {
            varint(&mut file, number as u64);
        }
        file.extend(rest);
    }
    varint(&mut file, threads.len() as u64);
    varint(&mut file, threads.iter().map(|accesses| accesses.len() as u64).sum());
    file
}

/// Two threads: one reads 4 MiB and the other writes as much elsewhere. Caches of two nodes have no room for
/// that with prefetches. Each access follows three instructions.
fn two_threads() -> Vec<u8> {
    let lines = 1 << 16;
    let of_thread = |base: u64, kind| (0..lines).map(|line| (3, base + line * 2, kind)).collect();
    trace_of(&[of_thread(0, 0), of_thread(1 << 34, 1)])
}

#[test]
fn a_trace_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("program.nwtrace");
    std::fs::write(&file, two_threads()).unwrap();
    let run = ["run", "--machine", "opteron-8385-4n", "--trace", file.to_str().unwrap()];
    let printed = json(&[&run[..], &["--policy", "first-touch,bind:3,interleave"]].concat());
    assert_eq!((&printed["threads"], &printed["workload"]), (&2.into(), &Value::Null));
    assert_eq!((&printed["scale"], &printed["passes"]), (&1.0.into(), &1.0.into()));
    assert_eq!(printed["trace"], file.to_str().unwrap());
    let [own, far, spread] = [0, 1, 2].map(|run| &printed["runs"][run]);
    for run in [own, far, spread] {
        // Three instructions and the access itself, 65 536 times in each thread.
        assert_eq!(run["instructions"], 2 * 4 * (1 << 16));
        // Every other line of the memory: 2048 pages each.
        let pages: u64 =
            run["resident_pages"].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap()).sum();
        assert_eq!(pages, 2 * 2048);
    }
    assert_eq!(own["resident_pages"].to_string(), "[2048,2048,0,0]");
    assert_eq!((&own["local_access_percent"], &far["local_access_percent"]), (&100.0.into(), &0.0.into()));
    assert_eq!(far["traffic"][0].to_string(), format!("[0,0,0,{}]", 1 << 16));
    assert_eq!(far["traffic"][1].to_string(), format!("[0,0,0,{}]", 1 << 16));
    assert_eq!(spread["resident_pages"].to_string(), "[1024,1024,1024,1024]");
    let time = |run: &Value| run["run_time_s"].as_f64().unwrap();
    assert!(time(far) > time(own), "{far} {own}");
    let (code, text, error) = sim(&[&run[..], &["--policy", "oracle"]].concat());
    assert!(code == Some(0) && text.contains("run time"), "{error}");
    // Its threads are placed like a program's.
    let placed = json(&[&run[..], &["--cpus", "5,13"]].concat());
    assert_eq!(accessors(&placed["runs"][0]), [1, 3]);
}

#[test]
fn a_file_that_is_no_whole_trace_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broken.nwtrace");
    let path = file.to_str().unwrap();
    let refused = |bytes: &[u8], reason: &str| {
        std::fs::write(&file, bytes).unwrap();
        let (code, text, error) = sim(&["run", "--machine", "dahu-2n", "--trace", path]);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.starts_with(&format!("nodewise: --trace: {path}: ")), "{error}");
        assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
    };
    let small = trace_of(&[vec![(0, 1, 0), (7, 900, 1)], vec![(1, 5, 3)]]);
    for bytes in 9..small.len() {
        refused(&small[..bytes], "byte ");
    }
    let whole = two_threads();
    for bytes in [whole.len() - 1, whole.len() / 2, 100] {
        refused(&whole[..bytes], "byte ");
    }
    refused(b"", "");
    refused(b"\x7fELF\x02\x01\x01\0\0\0\0\0", "it is no trace: it does not begin with NWTRACE");
    refused(b"NWTRACE3\x01\x01\0", "version 3 is not known, and 1 and 2 are");
    // More after the end, and a count of accesses that is another.
    refused(&[&small[..], b"\0"].concat(), "byte ");
    refused(&[&small[..small.len() - 1], b"\x04"].concat(), "byte ");
    let (code, _, error) = sim(&["run", "--machine", "dahu-2n", "--trace", "/no/such.nwtrace"]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("nodewise: --trace: cannot read /no/such.nwtrace: No such file"), "{error}");
    let (code, _, error) = sim(&["run", "--machine", "dahu-2n", "--trace", "/"]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("nodewise: --trace: cannot read /: Is a directory"), "{error}");
    // A whole one that the machine has too few cores for.
    std::fs::write(&file, trace_of(&vec![vec![(0, 1, 0)]; 33])).unwrap();
    let (code, _, error) = sim(&["run", "--machine", "dahu-2n", "--trace", path]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("nodewise: 33 threads: dahu-2n has 32 CPUs"), "{error}");
}
