//! `nodewise profile` on whatever machine this is, and `nodewise report` on files that are no profiles, or
//! not whole.

use assert_cmd::cargo::cargo_bin;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn nodewise(arguments: &[&str]) -> Output {
    Command::new(cargo_bin("nodewise")).args(arguments).output().unwrap()
}

fn refused(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let output = nodewise(&["report", file.path().to_str().unwrap()]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error.replace(file.path().to_str().unwrap(), "FILE")
}

fn head() -> Value {
    let row = |near: usize| (0..4).map(|to| if to == near { 1.0 } else { 2.0 }).collect::<Vec<_>>();
    json!({"head": {
        "nodewise_profile": 1,
        "command": ["./solver", "input"],
        "began_unix_s": 1_800_000_000,
        "nodes": [0, 1, 2, 3],
        "ratios": (0..4).map(row).collect::<Vec<_>>(),
        "ratios_by": "firmware's distances",
    }})
}

/// Intervals that were recorded once.
fn recorded(name: &str) -> String {
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/recordings");
    std::fs::read_to_string(recordings.join(format!("{name}.jsonl"))).unwrap()
}

/// Hint faults that were recorded, as a profile.
fn profile() -> String {
    profile_of(&recorded("hint-faults"))
}

fn profile_of(recorded: &str) -> String {
    let intervals: Vec<String> = recorded.lines().map(|line| format!("{{\"interval\":{line}}}")).collect();
    let frame = |function: &str, line: u32| {
        let file = "/src/solver.c";
        json!({"module": "/bin/solver", "offset": 4096, "function": function, "file": file, "line": line})
    };
    let memory = json!({"start": 0, "end": 1_u64 << 35});
    let tail = json!({"tail": {
        "seconds": 1.5,
        "names": [],
        "first_touch": {
            "touched": [{"pid": 1, "range": memory, "node": 0, "tid": 1, "stack": 0}],
            "stacks": [[frame("fill", 42), frame("main", 7)]],
            "lost": 0,
            "left_out": 0,
        },
        "samples_left_out": 0,
    }});
    format!("{}\n{}\n{tail}\n", head(), intervals.join("\n"))
}

#[test]
fn a_profile_is_reported_for_people_and_programs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), profile()).unwrap();
    let report = |more: &[&str]| {
        let output = nodewise(&[&["report", file.path().to_str().unwrap()], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let row = &json["rows"][0];
    assert_eq!(row["touched_by"], json!(["fill (solver.c:42)", "main (solver.c:7)"]));
    let sum = |figure: &str| row[figure].as_array().unwrap().iter().filter_map(Value::as_f64).sum::<f64>();
    for figure in ["used_from_percent", "lies_on_percent"] {
        assert!((sum(figure) - 100.0).abs() < 1e-6, "{row}");
    }
    assert_eq!(json["samples_are"], "pages_in_use");
    let text = report(&[]);
    assert!(text.starts_with("./solver input\n1.5 s, 4 nodes, "), "{text}");
    assert!(text.contains("first touched in fill (solver.c:42)"), "{text}");
    let sum: f64 = json["traffic_percent"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .filter_map(Value::as_f64)
        .sum();
    assert!((sum - 100.0).abs() < 1e-6, "{json}");
}

/// An inference server's weights are a file that it only reads.
#[test]
fn files_that_gave_no_samples_are_told_of() {
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("a.profile"), place.path().join("a.html"));
    let report = |bytes: u64| {
        let shares = [(0, 28.0), (1, 0.0), (2, 72.0), (3, 0.0)];
        let shares = shares.map(|(node, percent)| json!({"node": node, "percent": percent}));
        let unseen = json!({"bytes": bytes, "shares": shares, "are_uneven": true});
        let whole = profile()
            .replace("\"samples_left_out\":0", &format!("\"samples_left_out\":0,\"unseen_files\":{unseen}"));
        std::fs::write(&file, whole).unwrap();
        let output = nodewise(&["report", file.to_str().unwrap(), "--output", page.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), std::fs::read_to_string(&page).unwrap())
    };
    let (text, page) = report(4 << 30);
    let said = "4096 MiB of files that are only read gave no samples: hint faults do not tell who uses them. 72 % of \
                them lie on node 2.";
    assert!(text.contains(said) && page.contains(said), "{text}");
    let (text, _) = report(1 << 20);
    assert!(!text.contains("gave no samples"), "it fits in caches: {text}");
}

/// Twenty samples, all of another node's memory, do not say who uses it.
#[test]
fn few_samples_of_far_memory_are_not_called_healthy() {
    let mut interval: Value = serde_json::from_str(recorded("hint-faults").lines().next().unwrap()).unwrap();
    let sample = interval["seen"]["samples"][0].clone();
    let far = |i: u64| {
        let mut sample = sample.clone();
        (sample["accessor"], sample["home"]) = (json!(1 + i % 3), json!(0));
        sample
    };
    interval["seen"]["samples"] = (0..20).map(far).collect();
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("a.profile"), place.path().join("a.html"));
    std::fs::write(&file, profile_of(&interval.to_string())).unwrap();
    let report = |more: &[&str]| {
        let output = nodewise(&[&["report", file.to_str().unwrap()], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    assert_eq!((&json["samples"], &json["far_percent"]), (&json!(20), &json!(100.0)));
    assert_eq!(json["verdict"], "unknown");
    let text = report(&["-o", page.to_str().unwrap()]);
    let html = std::fs::read_to_string(&page).unwrap();
    for told in [text, html] {
        assert!(told.contains("Cannot tell: ") && !told.contains("Nothing to do here"), "{told}");
    }
}

#[test]
fn a_page_for_a_browser_loads_nothing_and_takes_names_as_text() {
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("a.profile"), place.path().join("a.html"));
    std::fs::write(&file, profile().replace("./solver", "<img/onerror>")).unwrap();
    let report = |page: &Path| nodewise(&["report", file.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    let output = report(&page);
    assert!(output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty(), "{output:?}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("&lt;img/onerror&gt; input") && !html.contains("<img"), "{html}");
    for loading in ["http:", "https:", "src=", "url(", "@import"] {
        assert!(!html.contains(loading), "{loading}");
    }
    assert!(html.contains("fill (solver.c:42)") && html.contains("<svg class=\"map\""), "{html}");
    assert!(html.matches("<rect").count() > 100, "{html}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&page.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "addresses and names are private");
    let refused = report(Path::new("/no/such/place/a.html"));
    assert_eq!((refused.status.code(), &*refused.stdout), (Some(1), &b""[..]), "{refused:?}");
}

#[test]
fn names_that_end_lines_forge_no_row() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("a.profile");
    let forged = r"\n 99.0 %  100 % forged\u001b[31m";
    let hostile = profile()
        .replace("./solver", &format!("./solver{forged}"))
        .replace("\"fill\"", &format!("\"fill{forged}\""));
    std::fs::write(&file, hostile).unwrap();
    for more in [None, Some(&file)] {
        let mut command = Command::new(cargo_bin("nodewise"));
        let output = command.arg("report").arg(&file).args(more).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("solver\\u000a 99.0 %") && text.contains("fill\\u000a 99.0 %"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with(" 99.0 %")), "{text}");
    }
}

#[test]
fn a_process_that_ran_already_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let first_line = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        let output = nodewise(&["report", file.path().to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap().lines().next().unwrap().to_owned()
    };
    let started = profile();
    assert_eq!(first_line(&started), "./solver input");
    let ran = started.replacen("\"nodewise_profile\"", "\"pid\":190,\"nodewise_profile\"", 1);
    assert_eq!(first_line(&ran), "process 190: ./solver input");
    let unknown = ran.replacen("[\"./solver\",\"input\"]", "null", 1);
    assert_eq!(first_line(&unknown), "process 190");
    let older = unknown.replacen("\"pid\":190,", "", 1);
    assert_eq!(first_line(&older), "a process");
}

#[test]
fn what_is_no_whole_profile_is_one_clear_error() {
    assert_eq!(refused(""), "nodewise: FILE: not a profile: it is empty\n");
    for foreign in ["PERFFILE\0\0\0", "{\"seen\": 1}\n", "\n"] {
        assert_eq!(
            refused(foreign),
            "nodewise: FILE: not a profile; 'nodewise profile' and 'perf mem record' write them\n"
        );
    }
    let whole = profile();
    let cut: String = whole.split_inclusive('\n').take(3).collect();
    assert!(
        refused(&cut).starts_with("nodewise: FILE: cut off: its last line is missing"),
        "{}",
        refused(&cut)
    );
    let in_a_line = &whole[..whole.len() - 30];
    assert!(refused(in_a_line).starts_with("nodewise: FILE:"), "{}", refused(in_a_line));
    let newer = whole.replace("\"nodewise_profile\":1", "\"nodewise_profile\":2");
    assert!(
        refused(&newer).contains("of version 2, and this nodewise reads version 1"),
        "{}",
        refused(&newer)
    );
    let narrow = whole.replace("\"nodes\":[0,1,2,3]", "\"nodes\":[0,1]");
    assert!(
        refused(&narrow).contains("damaged: not a figure for each pair of nodes"),
        "{}",
        refused(&narrow)
    );
    let output = nodewise(&["report", "/no/such/profile"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("nodewise: cannot read /no/such/profile: "));
}

#[test]
fn accesses_that_caches_serve_are_left_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let recorded = recorded("hardware-samples");
    let (near, far) = ("\"source\":\"local_dram\"", "\"source\":{\"remote_dram\"");
    assert!(recorded.contains(near));
    let left = recorded.matches(far).count();
    std::fs::write(file.path(), profile_of(&recorded.replace(near, "\"source\":\"local_cache\""))).unwrap();
    let output = nodewise(&["report", "--json", file.path().to_str().unwrap()]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["samples"], &json["samples_are"]), (&left.into(), &"accesses".into()));
    assert_eq!(json["far_percent"], 100.0);
}

/// As PEBS has them, whose stores do not tell where their line came from.
#[test]
fn accesses_of_unknown_source_among_others_are_no_hint_faults() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let recorded = recorded("hardware-samples");
    let unknown = recorded.replacen("\"source\":\"local_dram\"", "\"source\":\"unknown\"", 5);
    assert_ne!(unknown, recorded);
    let of = |recorded: &str| {
        std::fs::write(file.path(), profile_of(recorded)).unwrap();
        let output = nodewise(&["report", "--json", file.path().to_str().unwrap()]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (unknown, told) = (of(&unknown), of(&recorded));
    assert_eq!(unknown["samples_are"], "accesses");
    // The kernel has told where their pages are.
    assert_eq!((&unknown["samples"], &unknown["far_percent"]), (&told["samples"], &told["far_percent"]));
}

#[test]
fn two_recordings_are_shown_side_by_side() {
    let place = tempfile::tempdir().unwrap();
    let [before, after] = ["before", "after"].map(|name| place.path().join(name));
    std::fs::write(&before, profile()).unwrap();
    // The function has moved, and has other memory; its caller is as before.
    let changed = profile().replace("\"line\":42", "\"line\":77").replace("\"node\":0,", "\"node\":1,");
    std::fs::write(&after, changed).unwrap();
    let both = [before.to_str().unwrap(), after.to_str().unwrap()];
    let printed = |more: &[&str]| {
        let output = nodewise(&[&["report"], &both[..], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&printed(&["--json"])).unwrap();
    let far = |when: &str| json[when]["far_percent"].as_f64().unwrap();
    assert!((far("before") - far("after")).abs() > 1e-3, "it lies on another node: {json:#}");
    let text = printed(&[]);
    assert!(text.contains(&format!("{:.0} % far", far("before"))), "{text}");
    assert!(text.contains(&format!("{:.0} % far", far("after"))), "{text}");
    let row: Vec<&str> = text.lines().filter(|line| line.contains("fill (")).collect();
    assert!(row.len() == 1 && row[0].contains("fill (solver.c:77)"), "one row for both: {text}");
    let refused = nodewise(&["report", both[0], both[1], "-o", "x.html"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// Numbers that no recording has, one at a time.
#[test]
fn a_damaged_profile_is_shown_or_refused_and_never_a_panic() {
    let whole = profile();
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = tempfile::tempdir().unwrap();
    let page = place.path().join("a.html");
    let damages = [
        ("\"end\":34359738368", "\"end\":18446744073709551615"),
        ("\"start\":0", "\"start\":18446744073709551615"),
        ("\"stack\":0", "\"stack\":4294967295"),
        ("\"node\":0,", "\"node\":255,"),
        ("\"node\":0,", "\"node\":-1,"),
        ("\"accessor\":0", "\"accessor\":255"),
        ("\"home\":0", "\"home\":200"),
        ("\"home\":0", "\"home\":null"),
        ("\"weight\":1", "\"weight\":4294967295"),
        ("\"weight\":1", "\"weight\":0"),
        ("\"page_size\":\"base\"", "\"page_size\":\"huge\""),
        ("\"address\":", "\"address\":1"),
        ("\"pid\":1,", "\"pid\":4294967295,"),
        ("\"time_ns\":", "\"time_ns\":9"),
        ("[1.0,2.0,2.0,2.0]", "[0.0,0.0,0.0,0.0]"),
        ("[1.0,2.0,2.0,2.0]", "[-1e308,1e308,1e308,1e308]"),
        ("\"seconds\":1.5", "\"seconds\":-1e300"),
    ];
    for (from, to) in damages {
        assert!(whole.contains(from), "{from}");
        for damaged in [whole.replace(from, to), whole.replacen(from, to, 1)] {
            std::fs::write(file.path(), damaged).unwrap();
            let output = nodewise(&["report", file.path().to_str().unwrap(), "-o", page.to_str().unwrap()]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{from} -> {to}: {error}");
            assert!(output.status.success() || error.lines().count() == 1, "{from} -> {to}: {error}");
        }
    }
}

#[test]
fn a_program_keeps_its_status_and_what_cannot_be_written_starts_none() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("a.profile");
    let output = nodewise(&["profile", "-o", file.to_str().unwrap(), "--", "sh", "-c", "exit 5"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) {
        // Without the right to watch page faults nothing is started, and nothing is left behind.
        assert!(error.contains("perf_event_paranoid") && !file.exists(), "{error}");
        return;
    }
    assert_eq!(output.status.code(), Some(5), "{error}");
    let report = nodewise(&["report", file.to_str().unwrap()]);
    assert!(report.status.success(), "{report:?}");
    let marker = place.path().join("started");
    let touch = format!("touch {}", marker.display());
    let output = nodewise(&["profile", "-o", "/no/such/place/a", "--", "sh", "-c", &touch]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!marker.exists(), "the file is tried before the program is started");
    let names: Vec<_> = place.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.profile"], "no file is left behind");
}

/// Two intervals in which four nodes take a line from each other again and again, each for a word of its own.
fn contended() -> String {
    let mut interval: Value =
        serde_json::from_str(recorded("hardware-samples").lines().next().unwrap()).unwrap();
    let sample = |i: u64| {
        json!({
            "time_ns": i, "address": 0x5_0080 + 8 * (i % 4), "pid": 1, "tid": 1 + i % 4, "accessor": i % 4,
            "home": 0, "access": "read", "source": {"remote_cache": {"modified": true}},
            "page_size": "base", "latency_cycles": 400, "weight": 1000
        })
    };
    interval["seen"]["samples"] = (0..400).map(sample).collect();
    let accesses = (0..16).map(|pair| if pair % 4 == 0 { 1000.0 } else { 0.0 });
    interval["seen"]["counters"]["traffic"] =
        json!({"standing": "measured", "value": {"nodes": 4, "accesses": accesses.collect::<Vec<_>>()}});
    let mut later = interval.clone();
    later["seen"]["end_ns"] = (interval["seen"]["end_ns"].as_u64().unwrap() + 1_000_000_000).into();
    profile_of(&format!("{interval}\n{later}\n"))
}

#[test]
fn lines_that_several_nodes_write_and_metrics_over_time_are_shown() {
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("a.profile"), place.path().join("a.html"));
    std::fs::write(&file, contended()).unwrap();
    let report = |more: &[&str]| {
        let output = nodewise(&[&["report", file.to_str().unwrap()], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let line = &json["lines"][0];
    assert_eq!((&line["address"], &line["is_falsely_shared"]), (&0x5_0080.into(), &true.into()), "{line}");
    assert_eq!(line["used_from_percent"], json!([25.0, 25.0, 25.0, 25.0]));
    assert_eq!((&json["lines"][1], &json["rows"][0]["remedy"]), (&Value::Null, &"privatise".into()));
    let local: Vec<&Value> =
        json["over_time"].as_array().unwrap().iter().map(|moment| &moment["local_access_percent"]).collect();
    assert_eq!(local, [25.0, 25.0], "{json:#}");
    let text = report(&["-o", page.to_str().unwrap()]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("100 % of its accesses take a line from the node that has just written"),
        "{text}"
    );
    let row = text.lines().find(|line| line.contains("0x50080")).unwrap();
    assert!(row.contains("100.0 %") && row.contains("of one node each: pad them"), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(
        html.contains("Lines that several nodes write") && html.contains("<code>0x50080</code>"),
        "{html}"
    );
    assert!(html.contains("Over time") && html.matches("class=\"line\"").count() >= 2, "{html}");
    // Fewer counts than pairs of nodes.
    let damaged =
        contended().replace("\"nodes\":4,", "\"nodes\":5,").replace(",\"nodes\":4}", ",\"nodes\":5}");
    assert!(refused(&damaged).contains("16 counts of traffic among 5 nodes"), "{}", refused(&damaged));
}

/// One thread on each of four nodes, of which the first two have all memory.
#[test]
fn threads_the_kernels_work_and_the_machine_are_shown() {
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("a.profile"), place.path().join("a.html"));
    let mut interval: Value =
        serde_json::from_str(recorded("hardware-samples").lines().next().unwrap()).unwrap();
    let sample = |i: u64| {
        json!({
            "time_ns": i, "address": 0x10_0000 + i * 4096, "pid": 1, "tid": 10 + i % 4, "accessor": i % 4,
            "home": i % 2, "access": "read", "source": "local_dram", "page_size": "base", "latency_cycles": 400,
            // The last thread has half of the accesses.
            "weight": if i % 4 == 3 { 3 } else { 1 }
        })
    };
    interval["seen"]["samples"] = (0..400).map(sample).collect();
    let tail = json!({"tail": {
        "seconds": 1.5, "names": [], "samples_left_out": 0,
        "first_touch": {"touched": [], "stacks": [], "lost": 0, "left_out": 0},
        "kernel": {"samples": 1000, "samples_lost": 60, "kernel_percent": 14.0, "balancing_percent": 7.5,
                   "returning_percent": 0.5, "taking_percent": 6.0, "runs_on": [25.0, 25.0, 25.0, 25.0]},
        "events": {"numa_hint_faults": 4096.0, "numa_pages_migrated": 0.0, "TLB shootdowns": 77.0},
        "threads": {"10": "<main>", "13": "worker"},
    }});
    std::fs::write(&file, format!("{}\n{}\n{tail}\n", head(), json!({"interval": interval}))).unwrap();
    let report = |more: &[&str]| {
        let output = nodewise(&[&["report", file.to_str().unwrap()], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let busiest = json!({
        "pid": 1, "tid": 13, "name": "worker", "samples": 100, "accesses_percent": 50.0,
        "runs_on_percent": [0.0, 0.0, 0.0, 100.0], "uses_percent": [0.0, 100.0, 0.0, 0.0], "far_percent": 100.0
    });
    assert_eq!(json["threads"][0], busiest, "{:#}", json["threads"]);
    let near = json["threads"].as_array().unwrap().iter().find(|thread| thread["tid"] == 10).unwrap();
    assert_eq!((&near["far_percent"], &near["name"]), (&0.0.into(), &"<main>".into()), "{near}");
    assert_eq!(
        (&json["kernel"]["balancing_percent"], &json["events"]["TLB shootdowns"]),
        (&7.5.into(), &77.0.into())
    );
    let text = report(&["-o", page.to_str().unwrap()]);
    let kernel =
        "The kernel took 14.0 % of the CPU time: 7.5 % to balance, 6.0 % to bring memory in, 0.5 % to take";
    assert!(text.contains(kernel), "{text}");
    assert!(text.contains("back (60 samples lost, of all processes, and 1000 taken)."), "{text}");
    assert!(text.contains("on the whole machine: 4096 hint faults, 77 interrupts to flush TLBs."), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    for part in ["<h2>Threads</h2>", "13 worker", "10 &lt;main&gt;", "The kernel&#39;s work", "3:100"] {
        assert!(html.contains(part) || html.contains(&part.replace("&#39;", "'")), "{part}: {html}");
    }
    // Nodes 0 and 1 serve a third and two thirds; 2 and 3 nothing.
    let machine = &html[html.find("class=\"machine\"").unwrap()..];
    let machine = &machine[..machine.find("</figure>").unwrap()];
    for serves in [">33 %<", ">67 %<", ">0 %<"] {
        assert!(machine.contains(serves), "{serves}: {machine}");
    }
    assert_eq!((machine.matches("<circle").count(), machine.matches("<line").count()), (4, 2), "{machine}");
}

/// Four nodes use 1 MiB at 0x100000, first as a block of one site, and then as one of another. One function
/// has touched the first half of it, and memory behind it that no site has.
fn allocated() -> String {
    let mut interval: Value =
        serde_json::from_str(recorded("hardware-samples").lines().next().unwrap()).unwrap();
    let sample = |i: u64| {
        json!({
            "time_ns": i, "address": 0x10_0000 + i * 8191 % (2 << 20), "pid": 1, "tid": 1, "accessor": i / 256 % 4,
            "home": 0, "access": "read", "source": "local_dram", "page_size": "base", "latency_cycles": 400,
            "weight": 1
        })
    };
    interval["seen"]["samples"] = (0..2048).map(sample).collect();
    let frame = |module: &str, function: &str, line: u32| {
        let file = "/src/solver.c";
        json!({"module": module, "offset": line, "function": function, "file": file, "line": line})
    };
    let solver = |function: &str, line: u32| frame("/bin/solver", function, line);
    let new = frame("/lib/x86_64-linux-gnu/libstdc++.so.6", "operator new", 1);
    let block = |from: u64, until: Value, stack: u32| {
        json!({"pid": 1, "tid": 1, "address": 0x10_0000, "bytes": 1 << 20, "from_ns": from, "until_ns": until,
               "stack": stack, "mapped": false})
    };
    let site = |stack: u32| json!({"stack": stack, "blocks": 1, "bytes": 1 << 20, "most_bytes": 1 << 20});
    let pages = |start: u64, end: u64| json!({"start": start, "end": end});
    let tail = json!({"tail": {
        "seconds": 1.5,
        "names": [],
        "first_touch": {
            "touched": [
                {"pid": 1, "range": pages(0x100, 0x180), "node": 0, "tid": 1, "stack": 0},
                {"pid": 1, "range": pages(0x1f0, 0x300), "node": 1, "tid": 2, "stack": 0},
            ],
            "stacks": [[solver("fill", 42), solver("main", 7)]],
            "lost": 0,
            "left_out": 0,
        },
        "samples_left_out": 0,
        "allocations": {
            "least_bytes": 4096,
            "blocks": [block(0, 1024.into(), 0), block(1024, Value::Null, 1)],
            "sites": [site(0), site(1)],
            "stacks": [
                [new, solver("helper", 5), solver("make_first", 10), solver("main", 7)],
                [solver("helper", 5), solver("make_second", 20), solver("main", 8)],
            ],
            "processes": 1,
            "lost": 0,
            "left_out": 0,
        },
    }});
    format!("{}\n{}\n{tail}\n", head(), json!({"interval": interval}))
}

#[test]
fn memory_is_named_by_who_asked_for_it_at_the_time() {
    let place = tempfile::tempdir().unwrap();
    let [file, page, moved] = ["a.profile", "a.html", "b.profile"].map(|name| place.path().join(name));
    std::fs::write(&file, allocated()).unwrap();
    let report = |more: &[&str]| {
        let output = nodewise(&[&["report", file.to_str().unwrap()], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let site = |function: &str, line: u32| {
        format!("site: helper (solver.c:5), called by {function} (solver.c:{line})")
    };
    let rows = json["rows"].as_array().unwrap();
    let row = |memory: &str| {
        let row = rows.iter().find(|row| row["memory"] == *memory);
        row.unwrap_or_else(|| panic!("{memory}: {json:#}"))
    };
    let (first, second) = (site("make_first", 10), site("make_second", 20));
    for (memory, samples, pages) in
        [(&*first, 512, [128, 16]), (&*second, 512, [128, 16]), ("anonymous memory", 1024, [0, 256])]
    {
        let row = row(memory);
        assert_eq!(row["touched_by"][0], "fill (solver.c:42)", "{row:#}");
        let found = row["samples"].as_u64().unwrap();
        assert!(found.abs_diff(samples) <= 8, "{memory}: {found} for {samples}: {row:#}");
        assert_eq!(row["touched_pages"].as_array().unwrap()[..2], pages, "{row:#}");
        let bytes = &row["allocated"]["bytes"];
        assert_eq!(*bytes, if memory.starts_with("site") { json!(1 << 20) } else { Value::Null }, "{row:#}");
    }
    assert_eq!(json["sites"][0]["by"][1], "make_first (solver.c:10)");
    let text = report(&["-o", page.to_str().unwrap()]);
    assert!(text.contains(&format!("{first}, fill (solver.c:42)")), "{text}");
    assert!(text.contains("The code that asked for large blocks of memory:"), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("The code that asked for large blocks") && html.contains(&second), "{html}");
    // Lines move when a program is changed.
    std::fs::write(&moved, allocated().replace("\"line\":10", "\"line\":11")).unwrap();
    let both = report(&[moved.to_str().unwrap()]);
    assert!(both.contains(&site("make_first", 11)) && !both.contains(&first), "{both}");
}

/// The same memory, as global variables of the program.
fn with_variables(variables: &[Value]) -> String {
    let allocated = allocated();
    let (before, tail) = allocated.trim_end().rsplit_once('\n').unwrap();
    let mut tail: Value = serde_json::from_str(tail).unwrap();
    tail["tail"].as_object_mut().unwrap().remove("allocations");
    tail["tail"]["variables"] = variables.into();
    format!("{before}\n{tail}\n")
}

#[test]
fn static_memory_is_named_by_its_variables() {
    let part = |start: u64, end: u64| json!({"pid": 1, "range": {"start": start, "end": end}, "module": "/bin/solver"});
    let variable = |name: &str, start: u64, end: u64| {
        let mut part = part(start, end);
        part["name"] = name.into();
        part
    };
    let parts = [
        variable("table_", 0x1f_0000, 0x30_0000),
        variable("grid", 0x10_0000, 0x14_0800),
        part(0x14_0800, 0x15_0000),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    let report = |text: &str, more: &[&str]| {
        std::fs::write(file.path(), text).unwrap();
        let output = nodewise(&[&["report", file.path().to_str().unwrap()], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&report(&with_variables(&parts), &["--json"])).unwrap();
    for (memory, samples, pages) in [
        ("grid (solver)", 258, [65, 0]),
        ("static memory (solver)", 62, [15, 0]),
        ("anonymous memory", 640, [48, 0]),
        ("table_ (solver)", 1088, [0, 272]),
    ] {
        let rows = json["rows"].as_array().unwrap();
        let row =
            rows.iter().find(|row| row["memory"] == memory && row["touched_by"][0] == "fill (solver.c:42)");
        let row = row.unwrap_or_else(|| panic!("{memory}: {json:#}"));
        let found = row["samples"].as_u64().unwrap();
        assert!(found.abs_diff(samples) <= 4, "{memory}: {found} for {samples}: {row:#}");
        assert_eq!(row["touched_pages"].as_array().unwrap()[..2], pages, "{row:#}");
    }
    let text = report(&with_variables(&parts), &[]);
    assert!(text.contains("table_ (solver), first touched in fill (solver.c:42)"), "{text}");
    // Parts that no program has.
    for (start, end) in [(u64::MAX, 0), (0, u64::MAX), (0x10_0800, 0x10_0000), (u64::MAX - 1, u64::MAX)] {
        let parts = [&parts[..], &[variable("none", start, end)]].concat();
        report(&with_variables(&parts), &["--json"]);
    }
}

/// Numbers that no recording has, one at a time.
#[test]
fn damaged_allocations_are_shown_or_refused_and_never_a_panic() {
    let whole = allocated();
    let file = tempfile::NamedTempFile::new().unwrap();
    let most = "18446744073709551615";
    for (from, to) in [
        ("\"address\":1048576,\"bytes\"", "\"address\":18446744073709551615,\"bytes\""),
        ("\"bytes\":1048576,\"from_ns\"", "\"bytes\":18446744073709551615,\"from_ns\""),
        ("\"bytes\":1048576,\"from_ns\"", "\"bytes\":0,\"from_ns\""),
        ("\"from_ns\":0", "\"from_ns\":5000"),
        ("\"stack\":1,", "\"stack\":77,"),
        ("\"stack\":1,", "\"stack\":0,"),
        ("\"mapped\":false", "\"mapped\":true"),
        ("\"blocks\":1,", "\"blocks\":18446744073709551615,"),
        ("\"most_bytes\":1048576", &format!("\"most_bytes\":{most}")),
        ("\"end\":768,", "\"end\":0,"),
        ("\"end\":768", "\"end\":18446744073709551615"),
    ] {
        for damaged in [whole.replace(from, to), whole.replacen(from, to, 1)] {
            if damaged == whole {
                continue;
            }
            std::fs::write(file.path(), damaged).unwrap();
            let output = nodewise(&["report", file.path().to_str().unwrap()]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{from} -> {to}: {error}");
            assert!(output.status.success() || error.lines().count() == 1, "{from} -> {to}: {error}");
        }
    }
}
