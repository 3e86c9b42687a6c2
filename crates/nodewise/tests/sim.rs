//! `nodewise sim` as a person or a script uses it.

use assert_cmd::Command;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

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

/// A CPU that this process may run on.
fn first_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    allowed.split(['-', ',']).next().unwrap().to_owned()
}

#[test]
fn the_same_command_prints_the_same_bytes() {
    let arguments = [&RUN[..], &["--policy", "first-touch,interleave,carrefour", "--json"]].concat();
    let first = sim(&arguments);
    assert_eq!(first.0, Some(0), "{}", first.2);
    assert_eq!(first, sim(&arguments));
    let nodewise = assert_cmd::cargo::cargo_bin("nodewise");
    let mut on_one_cpu = Command::new("taskset");
    on_one_cpu.args(["--cpu-list", &first_cpu()]).arg(nodewise).arg("sim").args(&arguments);
    assert_eq!(String::from_utf8(on_one_cpu.output().unwrap().stdout).unwrap(), first.1);
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
    assert!(
        !text.lines().any(|line| line.ends_with(" -")),
        "nothing is said of tasks, as it has none: {text}"
    );
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
fn an_interrupted_run_ends_at_once_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // Whoever started the tests in a shell's background has interrupts ignored.
    let mut run = std::process::Command::new("env")
        .arg("--default-signal=INT")
        .arg(assert_cmd::cargo::cargo_bin("nodewise"))
        .args(["sim", "run", "--machine", "opteron-8385-4n", "--workload", "streamcluster"])
        .args(["--scale", "1", "--plot", "traffic.svg"])
        .current_dir(directory.path())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let interrupt = ["-INT", &run.id().to_string()];
    assert!(std::process::Command::new("kill").args(interrupt).status().unwrap().success());
    assert_eq!(run.wait().unwrap().signal(), Some(2));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The text on the terminal, by script(1), up to `mark`; then Ctrl-C is typed.
fn on_a_terminal_until(mark: &str, arguments: &str) -> String {
    let nodewise = assert_cmd::cargo::cargo_bin("nodewise");
    let command = format!(
        "stty rows 33 cols 99; exec env --default-signal=INT {} sim {arguments} >/dev/null",
        nodewise.display()
    );
    let mut script = std::process::Command::new("script")
        .args(["-q", "-e", "-c", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (mut seen, mut some) = (String::new(), [0; 4096]);
    while !seen.contains(mark) {
        let read = screen.read(&mut some).unwrap();
        assert_ne!(read, 0, "{mark} does not come: {seen}");
        seen += &String::from_utf8_lossy(&some[..read]);
    }
    keys.write_all(b"\x03").unwrap();
    // Or it could not write the rest, and would not see the key.
    screen.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(script.wait().unwrap().code(), Some(128 + 2));
    seen
}

#[test]
fn what_is_done_once_weighs_less_the_more_often_the_program_goes_over_its_data() {
    let kernel_s = |passes: &str| {
        let run = ["run", "--machine", "dahu-2n", "--workload", "intel-micro", "--scale", "0.0001", "--json"];
        let (code, text, error) = sim(&[&run[..], &["--passes", passes]].concat());
        assert_eq!(code, Some(0), "{error}");
        let printed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(printed["passes"], passes.parse::<f64>().unwrap());
        printed["runs"][0]["kernel_s"].as_f64().unwrap()
    };
    // A microsecond for each page's first touch: 160 GiB are 41.9 million.
    let once = kernel_s("1");
    assert!((0.0041..0.0043).contains(&once), "{once}");
    assert!((kernel_s("50") * 50.0 / once - 1.0).abs() < 0.01);
    for passes in ["0", "-1", "nan", "1e9"] {
        let (code, _, error) = sim(&["run", "--machine", "dahu-2n", "--workload", "cg", "--passes", passes]);
        assert_eq!(code, Some(2), "{passes}: {error}");
    }
}

fn json(arguments: &[&str]) -> Value {
    let (code, text, error) = sim(&[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_run_says_all_that_is_needed_to_run_it_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    let preset = concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware/presets/opteron-6272-8n.toml");
    std::fs::write(
        &file,
        std::fs::read_to_string(preset).unwrap().replace("\"opteron-6272-8n\"", "\"mine\""),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let odd = ["--threads", "24", "--pin", "sockorder", "--seed", "7", "--scale", "0.002", "--passes", "30"];
    let run =
        ["run", "--machine", file, "--workload", "cg", "--policy", "interleave,autonuma", "--huge-pages"];
    let printed = json(&[&run[..], &odd].concat());
    std::fs::remove_file(file).unwrap();
    let again = directory.path().join("again.json");
    std::fs::write(&again, printed["preset"].to_string()).unwrap();
    // Only what was printed.
    let text = |field: &str| match &printed[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let policies: Vec<_> =
        printed["runs"].as_array().unwrap().iter().map(|run| run["policy"].as_str().unwrap()).collect();
    let values: Vec<String> =
        ["workload", "threads", "pin", "seed", "scale", "passes"].map(text).into_iter().collect();
    let mut arguments = vec!["run", "--machine-from", again.to_str().unwrap()];
    for (name, value) in
        ["--workload", "--threads", "--pin", "--seed", "--scale", "--passes"].iter().zip(&values)
    {
        arguments.extend([name, value.as_str()]);
    }
    let huge_pages = format!("--huge-pages={}", printed["huge_pages"]);
    let policies = policies.join(",");
    arguments.extend([huge_pages.as_str(), "--policy", &policies]);
    assert_eq!(json(&arguments), printed);
    assert_eq!(printed["version"], env!("CARGO_PKG_VERSION"));
    let known = json(&[&RUN[..], &["--threads", "2"]].concat());
    assert_eq!((&known["machine"], known.get("preset")), (&Value::from("opteron-8385-4n"), None));
}

#[test]
fn huge_pages_shrink_with_the_problem_and_few_pages_are_told() {
    let run = ["run", "--machine", "opteron-6272-8n", "--workload", "ua", "--huge-pages", "--scale"];
    let pages = |scale: &str, base: u64| {
        let printed = json(&[&run[..], &[scale]].concat());
        assert_eq!(printed["huge_page_pages"], base);
        printed["runs"][0]["placeable_pages"].as_u64().unwrap()
    };
    // As many at either scale, but for the last of each area. There were 4 of 2 MiB.
    let (few, more) = (pages("0.03125", 16), pages("0.0625", 32));
    assert!(few > 40 && few.abs_diff(more) * 10 < more, "{few} and {more}");
    let (code, _, error) = sim(&[&run[..], &["0.03125"]].concat());
    assert_eq!(code, Some(0));
    assert!(error.starts_with(&format!("nodewise: 64 threads share {few} pages")), "{error}");
}

#[test]
fn a_row_of_a_study_is_run_again_by_name() {
    let run = ["run", "--as", "carrefour", "--workload", "is", "--policy", "first-touch,interleave"];
    let printed = json(&run);
    assert_eq!((&printed["as"], &printed["machine"]), (&"carrefour".into(), &"opteron-8385-4n".into()));
    let time_s = |run: usize| printed["runs"][run]["run_time_s"].as_f64().unwrap();
    let gain = 100.0 * (time_s(0) / time_s(1) - 1.0);
    // The row "is: gain of interleave over first touch" is 14 % (docs/fidelity.md), and 9 to 24 % with the
    // settings of a run without the study's.
    assert!((13.0..16.0).contains(&gain), "{gain}");
    let refused = |arguments: &[&str], message: &str| {
        let (code, text, error) = sim(arguments);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(message), "{error}");
    };
    refused(&["run", "--as", "pikus", "--workload", "cg"], "nodewise: --as pikus: no study with runs of");
    refused(
        &["run", "--as", "carrefour", "--workload", "llm"],
        "nodewise: --as: carrefour has no program llm",
    );
    refused(&[&run[..], &["--scale", "0.1"]].concat(), "cannot be used with");
}

#[test]
fn a_policy_that_cannot_be_is_refused_before_anything_is_run() {
    // At this scale a run takes minutes.
    let run = ["run", "--machine", "dahu-2n", "--workload", "streamcluster", "--scale", "1"];
    let (code, text, error) = sim(&[&run[..], &["--policy", "first-touch,bind:9"]].concat());
    assert_eq!((code, text.as_str()), (Some(2), ""));
    assert!(error.contains("bind:9: dahu-2n has no memory on node 9"), "{error}");
}

#[test]
fn a_long_command_shows_on_a_terminal_how_far_it_has_come() {
    // Each would take minutes.
    let run = "run --machine opteron-8385-4n --workload streamcluster --scale 1";
    for arguments in [run, "reproduce page-split", "matrix --scale 1"] {
        let seen = on_a_terminal_until(" %  ", arguments);
        assert!(seen.contains('░') && !seen.contains('\n'), "{seen:?}");
    }
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

/// The rows of what `nodewise sim reproduce --json` printed of one study, each as documented; and whether all
/// hold.
fn rows(study: &Value) -> (Vec<&Value>, bool) {
    assert!(study["study"].is_string());
    let rows: Vec<&Value> = study["rows"].as_array().unwrap().iter().collect();
    assert!(!rows.is_empty());
    for row in &rows {
        assert_eq!(row.as_object().unwrap().len(), 7, "{row}");
        let kind = row["kind"].as_str().unwrap();
        assert!(["predicted", "sign", "implied", "calibrated"].contains(&kind), "{row}");
        // A bound predicts no figure.
        assert!(kind != "predicted" || row["tolerance"].is_number(), "{row}");
        assert!(row["what"].is_string() && row["unit"].is_string(), "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        let (published, simulated) = (figure("published"), figure("simulated"));
        let holds = match &row["tolerance"] {
            Value::String(tolerance) if tolerance == "at least" => simulated >= published,
            Value::String(tolerance) if tolerance == "at most" => simulated <= published,
            Value::String(tolerance) if tolerance == "more than" => simulated > published,
            Value::String(tolerance) if tolerance == "less than" => simulated < published,
            tolerance => (simulated - published).abs() <= tolerance.as_f64().unwrap(),
        };
        assert_eq!(row["holds"], holds, "{row}");
    }
    let all = rows.iter().all(|row| row["holds"] == true);
    (rows, all)
}

#[test]
fn a_study_is_printed_row_by_row_and_fails_if_one_does_not_hold() {
    let (code, text, error) = sim(&["reproduce", "loaded-latency", "--json"]);
    let study: Value = serde_json::from_str(&text).unwrap();
    let (rows, all_hold) = rows(&study);
    assert_eq!(study["study"], "loaded-latency");
    assert_eq!(code, Some(i32::from(!all_hold)), "{error}");
    // It takes longer than two seconds, and this is no terminal.
    assert_eq!(error, "");
    assert!(rows.iter().any(|row| row["tolerance"].is_number()), "{text}");
    let machine = "2 x Cascade Lake: ";
    let calibrated: Vec<_> = rows
        .iter()
        .filter(|row| row["kind"] == "calibrated")
        .filter_map(|row| row["what"].as_str()?.strip_prefix(machine))
        .collect();
    assert_eq!(
        calibrated,
        [
            "latency at 2 GB/s of 226",
            "latency at 226 GB/s of 226",
            "bandwidth when all cores read without pauses"
        ]
    );
}

/// Rows that do not hold, and why: docs/fidelity.md.
const NOT_HOLDING: [&str; 10] = [
    "facerec: gain of AutoNUMA over first touch is small",
    "pca: gain of AutoNUMA over first touch is small",
    "2 x Cascade Lake: bandwidth when all cores read without pauses",
    "two nodes of 159 GB/s: latency at 158.6 GB/s of 159.2",
    "2 x Silver 4110: latency at 131.28 GB/s of 135.66",
    "2 x Silver 4110: latency at 135.66 GB/s of 135.66",
    "2 x Silver 4110: bandwidth when all cores read without pauses",
    "xeon-5120-4s: bandwidth lost when the threads of a node write memory of another",
    "dahu-2n: bandwidth lost when the threads of a node write memory of another",
    "xeon-snc: bandwidth lost when the threads of a node write memory of another",
];

#[test]
#[ignore = "minutes even in an optimised build, in which `make test` runs it"]
fn all_rows_hold_but_those_that_the_documentation_names() {
    let (code, text, error) = sim(&["reproduce", "all", "--json"]);
    let studies: Value = serde_json::from_str(&text).unwrap();
    let studies: Vec<_> = studies.as_array().unwrap().iter().map(rows).collect();
    let failing = studies.iter().flat_map(|(rows, _)| rows).filter(|row| row["holds"] == false);
    let failing: Vec<_> = failing.map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(failing, NOT_HOLDING, "{error}");
    assert_eq!(code, Some(i32::from(!failing.is_empty())));
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

#[test]
fn a_name_that_is_nearly_right_is_answered_with_the_right_one() {
    let meant = |arguments: &[&str]| {
        let (code, _, error) = sim(arguments);
        assert_eq!(code, Some(2), "{error}");
        error.split_once(". Did you mean ").map(|(_, name)| name.trim_end().to_owned())
    };
    let run = |machine, workload, policy| {
        meant(&["run", "--machine", machine, "--workload", workload, "--policy", policy])
    };
    let said = |name: &str| Some(format!("{name}?"));
    assert_eq!(run("opteron-8385", "cg", "ace"), said("opteron-8385-4n"));
    assert_eq!(run("dahu-2n", "streamcluser", "ace"), said("streamcluster"));
    assert_eq!(run("dahu-2n", "cg", "carefour"), said("carrefour"));
    assert_eq!(run("dahu-2n", "cg", "bnd:1"), said("bind:N"));
    assert_eq!(run("dahu-2n", "CG", "ace"), said("cg"));
    assert_eq!(meant(&[&RUN[..], &["--pin", "sock"]].concat()), said("sockorder"));
    assert_eq!(meant(&["reproduce", "carefour"]), said("carrefour"));
    // Its argument is wrong, and the message says so.
    assert_eq!(run("dahu-2n", "cg", "bind:x"), None);
    assert_eq!(run("dahu-2n", "cg", "magic"), None);
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_anything_is_run() {
    let plot = ["--scale", "1", "--plot", "/no/such/directory/traffic.svg"];
    let (code, text, error) = sim(&[&RUN[..5], &plot].concat());
    assert_eq!((code, text.as_str()), (Some(1), ""));
    let reason = "No such file or directory (os error 2)";
    assert_eq!(error, format!("nodewise: cannot write /no/such/directory/traffic.svg: {reason}\n"));
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
    refused(&["--nodes", "1,2", "--threads", "9"], "--threads 9: --nodes 1,2 has 8 cores");
    refused(&["--cpus", "0-1", "--threads", "3"], "--threads 3: --cpus 0-1 has 2 cores");
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
    // A whole one that the machine has too few cores for.
    std::fs::write(&file, trace_of(&vec![vec![(0, 1, 0)]; 33])).unwrap();
    let (code, _, error) = sim(&["run", "--machine", "dahu-2n", "--trace", path]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("nodewise: 33 threads: dahu-2n has 32 cores"), "{error}");
}
