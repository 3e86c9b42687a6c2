//! `nodewise sim` on machines of the user's own, and on the nodes and CPUs that he says.

mod simulated;

use assert_cmd::Command;
use serde_json::Value;
use simulated::{RUN, json, sim};
use std::fmt::Write as _;

#[test]
fn a_machine_may_come_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("measured.json");
    let node = r#"{ "count": 2, "cores": 2, "memory_mib": 1024 }"#;
    let link = r#"{ "between": [0, 1], "gb_per_s": 20, "hop_latency_ns": 60 }"#;
    let rest = r#""core": { "ghz": 2, "cycles_per_instruction": 1, "outstanding_misses": 10 },
        "controller": { "idle_latency_ns": 80, "service_ns": 1 }, "line_bytes": 64"#;
    let json =
        format!(r#"{{ "name": "mine", "about": "measured", "node": [{node}], "link": [{link}], {rest} }}"#);
    std::fs::write(&file, json).unwrap();
    let run = |file: &str| {
        sim(&["run", "--machine-from", file, "--workload", "streamcluster", "--scale", "0.001", "--json"])
    };
    let (code, text, error) = run(file.to_str().unwrap());
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["machine"], "mine");
    let as_a_machine = ["--machine", file.to_str().unwrap(), "--workload", "streamcluster"];
    let (code, again, error) = sim(&[&["run"], &as_a_machine[..], &["--scale", "0.001", "--json"]].concat());
    assert_eq!((code, again), (Some(0), text), "{error}");
    let (code, _, error) = run("/nowhere.json");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.starts_with("nodewise: --machine-from: /nowhere.json: cannot be read"), "{error}");
}

#[test]
fn a_preset_is_copied_and_edited_and_a_mistake_in_it_is_named_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let preset = concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware/presets/opteron-8385-4n.toml");
    let text = std::fs::read_to_string(preset).unwrap();
    let edited = |from: &str, to: &str| {
        std::fs::write(directory.path().join("mine.toml"), text.replacen(from, to, 1)).unwrap();
        let mut run = Command::cargo_bin("nodewise").unwrap();
        run.args(["sim", "run", "--machine", "mine.toml", "--workload", "streamcluster", "--json"]);
        let output = run.args(["--scale", "0.001"]).current_dir(directory.path()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let run_time_s =
        |printed: &str| serde_json::from_str::<Value>(printed).unwrap()["runs"][0]["run_time_s"].as_f64();
    let (code, as_it_was, error) = edited("", "");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    // Nearly all of its memory is on one node, whose controller is the bottleneck.
    let (code, slower, error) = edited("service_ns = 10.7", "service_ns = 21.4");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(run_time_s(&slower) > run_time_s(&as_it_was).map(|as_it_was| 1.5 * as_it_was));
    let refused = |from: &str, to: &str, reason: &str| {
        let (code, printed, error) = edited(from, to);
        assert_eq!((code, printed.as_str()), (Some(2), ""));
        let line = 1 + text[..text.find(from).unwrap()].matches('\n').count();
        assert_eq!(error, format!("nodewise: --machine: mine.toml:{line}: {reason}\n"));
    };
    refused("ghz = 2.3", "ghz = \"2.3\"", "invalid type: string \"2.3\", expected f64");
    refused(
        "[[link]]\nbetween = [1, 3]",
        "[[link]]\nbetween = [1, 9]",
        "a link from node 1 to node 9 on a machine of 4 nodes",
    );
}

/// The nodes that some thread of a run came from.
fn accessors(run: &Value) -> Vec<usize> {
    let rows = run["traffic"].as_array().unwrap().iter().enumerate();
    rows.filter(|(_, row)| row.as_array().unwrap().iter().any(|lines| lines != 0)).map(|row| row.0).collect()
}

#[test]
fn threads_run_where_the_user_says() {
    let eight = ["run", "--machine", "opteron-6272-8n", "--workload", "streamcluster", "--scale", "0.001"];
    let run = json(&[&eight[..], &["--nodes", "0-1,4", "--policy", "first-touch,autonuma"]].concat());
    assert_eq!(run["threads"], 24);
    let cpus: Vec<u64> = run["cpus"].as_array().unwrap().iter().map(|cpu| cpu.as_u64().unwrap()).collect();
    // One of each node in turn.
    assert_eq!(cpus[..6], [0, 8, 32, 1, 9, 33]);
    for run in run["runs"].as_array().unwrap() {
        assert_eq!((accessors(run), &run["threads_moved"]), (vec![0, 1, 4], &Value::from(0)));
    }
    let on_one = ["--nodes", "5,2", "--threads", "8", "--pin", "sockorder"];
    assert_eq!(accessors(&json(&[&eight[..], &on_one].concat())["runs"][0]), [2]);
    // CPUs have the operating system's numbers, which on this machine go round the nodes.
    let dahu = ["run", "--machine", "dahu-2n", "--workload", "streamcluster", "--scale", "0.001"];
    let odd = json(&[&dahu[..], &["--cpus", "1,3,5-5"]].concat());
    assert_eq!((&odd["threads"], accessors(&odd["runs"][0])), (&Value::from(3), vec![1]));
    // Threads get CPUs in the order of the list: the first one is the master, and has most to do.
    let first_has_most = |list: &str| {
        let run = json(&[&dahu[..], &["--cpus", list]].concat());
        run["runs"][0]["resident_pages"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect()
    };
    let (on_0, on_1): (Vec<u64>, Vec<u64>) = (first_has_most("0,1"), first_has_most("1,0"));
    assert!(on_0[0] > on_0[1] && on_1[1] > on_1[0], "{on_0:?} {on_1:?}");
    // A run is repeated by the CPUs that it prints, whatever order they have.
    for (machine, chosen) in [(dahu, "1"), (eight, "0-1,4")] {
        let nodes = json(&[&machine[..], &["--nodes", chosen, "--threads", "7"]].concat());
        let list: Vec<String> = nodes["cpus"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(list.len(), 7);
        assert_eq!(json(&[&machine[..], &["--cpus", &list.join(",")]].concat()), nodes);
    }
    assert_eq!(json(&[&dahu[..], &["--threads", "2"]].concat()).get("cpus"), None);
}

/// As Linux numbers them: the second threads of cores after all first ones, here going round the nodes too.
#[test]
fn second_threads_of_cores_have_the_upper_numbers() {
    let smt = ["run", "--machine", "dahu-2n-smt", "--workload", "parmult", "--scale", "0.05"];
    let time = |list: &str| {
        let run = json(&[&smt[..], &["--policy", "first-touch", "--cpus", list]].concat());
        run["runs"][0]["run_time_s"].as_f64().unwrap()
    };
    // CPU 32 is the other thread of CPU 0's core, and CPU 34 of CPU 2's.
    let (apart, together) = (time("0,34"), time("0,32"));
    assert!((together / apart / (2.0 / 1.2) - 1.0).abs() < 0.02, "{together} and {apart}");
    let all = json(&[&smt[..], &["--nodes", "1", "--policy", "first-touch"]].concat());
    assert_eq!(all["threads"], 32);
    let cpus: Vec<u64> = all["cpus"].as_array().unwrap().iter().map(|cpu| cpu.as_u64().unwrap()).collect();
    assert_eq!((cpus[0], cpus[15], cpus[16], cpus[31]), (1, 31, 33, 63));
    let (code, _, error) = sim(&[&smt[..], &["--cpus", "64"]].concat());
    let expected = "nodewise: --cpus 64: dahu-2n-smt has no CPU 64; its CPUs are 0 to 63\n";
    assert_eq!((code, error.as_str()), (Some(2), expected));
}

#[test]
fn a_place_where_no_thread_can_run_is_named() {
    let refused = |arguments: &[&str], message: &str| {
        let (code, text, error) = sim(&[&RUN[..], arguments].concat());
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.starts_with(&format!("nodewise: {message}")), "{error}");
    };
    refused(&["--nodes", "2-4"], "--nodes 2-4: opteron-8385-4n has no node 4; its nodes are 0 to 3");
    refused(&["--cpus", "16"], "--cpus 16: opteron-8385-4n has no CPU 16; its CPUs are 0 to 15");
    refused(&["--nodes", "one"], "--nodes one: ");
    refused(&["--cpus", "3-1"], "--cpus 3-1: ");
    refused(&["--cpus", "1,,2"], "--cpus 1,,2: ");
    refused(&["--cpus", "0-3,2"], "--cpus 0-3,2: CPU 2 is there twice, and has one thread");
    refused(&["--nodes", "0-4000000000"], "--nodes 0-4000000000: ");
    refused(&["--nodes", ""], "--nodes: the list is empty, and no thread can run");
    refused(&["--nodes", "1,2", "--threads", "9"], "--threads 9: --nodes 1,2 has 8 CPUs");
    refused(&["--cpus", "0-1", "--threads", "3"], "--threads 3: --cpus 0-1 has 2 CPUs");
    let bare = ["run", "--machine", "epyc-cxl-4n", "--workload", "cg", "--nodes", "1-2"];
    let (code, _, error) = sim(&bare);
    assert_eq!(
        (code, error.as_str()),
        (Some(2), "nodewise: --nodes 1-2: epyc-cxl-4n has no CPUs on node 2\n")
    );
    for both in [["--nodes", "0", "--cpus", "0"], ["--pin", "spread", "--cpus", "0"]] {
        let (code, _, error) = sim(&[&RUN[..], &both].concat());
        assert!(code == Some(2) && error.contains("cannot be used with"), "{error}");
    }
}

/// A ring of nodes with so many cores each.
fn ring(nodes: usize, cores: usize) -> String {
    let mut text = r#"
        name = "ring"
        about = "a ring"
        line_bytes = 64
        core = { ghz = 2.0, cycles_per_instruction = 1.0, outstanding_misses = 10 }
        l1 = { kib = 32, ways = 8, latency_cycles = 4 }
        llc = { kib = 1024, ways = 16, latency_cycles = 40 }
        controller = { idle_latency_ns = 100.0, service_ns = 2.0 }
        "#
    .to_owned();
    writeln!(text, "[[node]]\ncount = {nodes}\ncores = {cores}\nmemory_mib = 1024").unwrap();
    for node in 0..nodes {
        let next = (node + 1) % nodes;
        let ends = format!("between = [{node}, {next}]");
        writeln!(text, "[[link]]\n{ends}\ngb_per_s = 20.0\nhop_latency_ns = 5.0").unwrap();
    }
    text
}

#[test]
fn a_machine_of_sixty_four_nodes_runs_under_every_policy() {
    let directory = tempfile::tempdir().unwrap();
    let (file, plot) = (directory.path().join("ring.toml"), directory.path().join("ring.svg"));
    std::fs::write(&file, ring(64, 2)).unwrap();
    let policies = "first-touch,interleave,weighted-interleave,blocked,bind:63,autonuma,autonuma-27,carrefour,\
                    ace,oracle";
    let run = ["run", "--machine", file.to_str().unwrap(), "--workload", "pagerank", "--scale", "0.002"];
    let printed = json(&[&run[..], &["--policy", policies, "--plot", plot.to_str().unwrap()]].concat());
    assert_eq!(printed["threads"], 128);
    let runs = printed["runs"].as_array().unwrap();
    let pages = |policy: &str| -> Vec<u64> {
        let run = runs.iter().find(|run| run["policy"] == policy).unwrap();
        assert_eq!(accessors(run), (0..64).collect::<Vec<_>>(), "{policy}");
        run["resident_pages"].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap()).collect()
    };
    let spread = pages("interleave");
    assert!(*spread.iter().min().unwrap() > 0 && spread.len() == 64, "{spread:?}");
    assert_eq!(pages("weighted-interleave"), spread);
    let bound = pages("bind:63");
    assert_eq!(bound.iter().sum::<u64>(), bound[63]);
    for policy in ["first-touch", "blocked", "autonuma", "autonuma-27", "carrefour", "ace"] {
        assert!(pages(policy).iter().sum::<u64>() >= bound[63], "{policy}");
    }
    assert_eq!(std::fs::read_to_string(&plot).unwrap().matches("<circle").count(), 10 * 64);
    std::fs::write(&file, ring(65, 2)).unwrap();
    let (code, _, error) = sim(&run);
    assert_eq!(code, Some(2));
    assert!(error.ends_with("more than 64 nodes, and no more are modelled\n"), "{error}");
}

#[test]
fn nodes_of_two_hundred_and_fifty_six_cores_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wide.toml");
    std::fs::write(&file, ring(3, 256)).unwrap();
    let run = ["run", "--machine", file.to_str().unwrap(), "--workload", "pagerank", "--scale", "0.002"];
    let printed = json(&[&run[..], &["--policy", "first-touch,interleave,carrefour"]].concat());
    assert_eq!(printed["threads"], 768);
    for run in printed["runs"].as_array().unwrap() {
        assert_eq!(accessors(run), [0, 1, 2]);
    }
    std::fs::write(&file, ring(3, 257)).unwrap();
    let (code, _, error) = sim(&run);
    assert_eq!(code, Some(2));
    assert!(error.ends_with("257 cores on a node, and at most 256 are modelled\n"), "{error}");
}
