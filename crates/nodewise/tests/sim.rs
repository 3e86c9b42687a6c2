//! `nodewise sim` as a person or a script uses it.

use assert_cmd::Command;
use serde_json::Value;

fn sim(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("nodewise").unwrap().arg("sim").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const RUN: [&str; 7] =
    ["run", "--machine", "opteron-8385-4n", "--workload", "streamcluster", "--scale", "0.001"];

#[test]
fn the_list_names_what_can_be_run() {
    let (code, text, _) = sim(&["list"]);
    assert_eq!(code, Some(0));
    for name in ["opteron-8385-4n", "streamcluster", "carrefour", "pikus"] {
        assert!(text.contains(name), "{text}");
    }
    let list: Value = serde_json::from_str(&sim(&["list", "--json"]).1).unwrap();
    for part in ["machines", "workloads", "policies", "studies"] {
        assert!(list[part].as_array().is_some_and(|entries| !entries.is_empty()), "{part}");
    }
}

#[test]
fn the_same_command_prints_the_same_bytes() {
    let arguments = [&RUN[..], &["--policy", "first-touch,interleave,carrefour", "--json"]].concat();
    let first = sim(&arguments);
    assert_eq!(first.0, Some(0), "{}", first.2);
    assert_eq!(first, sim(&arguments));
    let printed: Value = serde_json::from_str(&first.1).unwrap();
    assert_eq!(printed["threads"], 16);
    let policies: Vec<_> = printed["runs"].as_array().unwrap().iter().map(|run| &run["policy"]).collect();
    assert_eq!(policies, ["first-touch", "interleave", "carrefour"]);
    assert!(printed["runs"][0]["run_time_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_table_has_a_column_for_each_policy() {
    let (code, text, error) =
        sim(&[&RUN[..], &["--policy", "first-touch,bind:1", "--threads", "2"]].concat());
    assert_eq!(code, Some(0), "{error}");
    let header = text.lines().next().unwrap();
    assert!(header.contains("first-touch") && header.ends_with("bind:1"), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("speed-up over the first")), "{text}");
}

#[test]
fn the_plot_is_a_picture_with_every_policy_and_is_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("traffic.svg");
    let plot = ["--policy", "first-touch,ace,oracle", "--plot", file.to_str().unwrap()];
    let (code, _, error) = sim(&[&RUN[..], &plot].concat());
    assert_eq!(code, Some(0), "{error}");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(["first-touch", "ace", "oracle"].iter().all(|policy| svg.contains(&format!(">{policy}</text>"))));
    assert_eq!(svg.matches("<circle").count(), 3 * 4);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    // A run that fails leaves what was there.
    let failing = ["--policy", "bind:4", "--plot", file.to_str().unwrap()];
    assert_eq!(sim(&[&RUN[..], &failing].concat()).0, Some(2));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), svg);
}

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
    let (code, _, error) = run("/nowhere.json");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.starts_with("nodewise: --machine-from: /nowhere.json: cannot be read"), "{error}");
}

#[test]
fn what_there_is_not_is_named_with_what_there_is() {
    let refused = |arguments: &[&str], message: &str| {
        let (code, text, error) = sim(arguments);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.starts_with(message), "{error}");
    };
    refused(
        &["run", "--machine", "cray", "--workload", "streamcluster"],
        "nodewise: --machine: cray: no such machine; there are ace-7, ",
    );
    refused(
        &["run", "--machine", "dahu-2n", "--workload", "x"],
        "nodewise: --workload: no such program: x; there are ",
    );
    refused(
        &[&RUN[..], &["--policy", "magic"]].concat(),
        "nodewise: --policy: no such policy: magic; there are ",
    );
    refused(
        &[&RUN[..], &["--policy", "bind:4"]].concat(),
        "nodewise: bind:4: opteron-8385-4n has no memory on node 4",
    );
    refused(
        &[&RUN[..], &["--threads", "17"]].concat(),
        "nodewise: --threads 17: opteron-8385-4n has 16 cores",
    );
    refused(&["reproduce", "nobody"], "nodewise: no such study: nobody; there are ");
}
