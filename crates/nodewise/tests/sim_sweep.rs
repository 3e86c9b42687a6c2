//! `nodewise sim sweep` and `nodewise sim merge` as a cluster's scheduler uses them.

use assert_cmd::Command;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

const SPEC: &str = "machines = ['opteron-8385-4n', 'ace-7']
workloads = ['mg', 'pca']
policies = ['first-touch', 'interleave', 'carrefour']
scales = [0.001]
seeds = 2
";

fn sim(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::cargo_bin("nodewise").unwrap();
    let output = command.current_dir(directory).arg("sim").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn done(directory: &Path, arguments: &[&str]) -> String {
    let (code, text, error) = sim(directory, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {error}");
    text
}

fn directory(spec: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("spec.toml"), spec).unwrap();
    directory
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    // A file that is still written has another name, and is gone once it is whole.
    let content = |entry: &std::fs::DirEntry| std::fs::read(entry.path()).ok();
    entries.filter_map(|entry| Some((entry.file_name().into_string().unwrap(), content(&entry)?))).collect()
}

#[test]
fn shards_of_any_number_merge_to_the_same_bytes() {
    let directory = directory(SPEC);
    let path = directory.path();
    let listed = done(path, &["sweep", "spec.toml", "--list"]);
    // The machine without caches does not run Carrefour.
    assert_eq!(listed.lines().count(), (3 + 2) * 2 * 2);
    let mut results = Vec::new();
    for shards in [1, 3, 7] {
        let out = format!("of-{shards}");
        // The last first: the order is nobody's affair.
        for shard in (0..shards).rev() {
            done(path, &["sweep", "spec.toml", "--shard", &format!("{shard}/{shards}"), "--out", &out]);
        }
        done(path, &["merge", &out]);
        results.push(files(&path.join(out)));
    }
    assert_eq!(results[0].len(), 20 + 1 + 3);
    assert!(results[0] == results[1] && results[0] == results[2]);
    let page = String::from_utf8(results[0]["plots.html"].clone()).unwrap();
    assert!(page.matches("<svg").count() == 4 && !page.contains("http:") && !page.contains("<script"));
    let table = String::from_utf8(results[0]["runs.csv"].clone()).unwrap();
    let columns: Vec<usize> = table.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [20; 21]);
}

/// A sweep's run is the one that `sim run` does with its seed, and a relative time is of two such.
#[test]
fn a_run_says_what_sim_run_says() {
    let directory = directory(SPEC);
    let path = directory.path();
    done(path, &["sweep", "spec.toml", "--out", "out"]);
    let summary: Value = serde_json::from_str(&done(path, &["merge", "out", "--json"])).unwrap();
    let cell = &summary["cells"][1];
    assert_eq!((&cell["workload"], &cell["policy"]), (&"mg".into(), &"interleave".into()));
    let listed = done(path, &["sweep", "spec.toml", "--list"]);
    let seeds: Vec<u64> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|run| {
            run["machine"] == cell["machine"] && run["workload"] == "mg" && run["policy"] == "interleave"
        })
        .map(|run| run["seed"].as_u64().unwrap())
        .collect();
    assert!(seeds.len() == 2 && seeds[0] != seeds[1]);
    let mut relative: Vec<f64> = Vec::new();
    for seed in seeds {
        let seed = seed.to_string();
        let run = ["run", "--machine", "opteron-8385-4n", "--workload", "mg", "--scale", "0.001", "--json"];
        let more = ["--seed", &seed, "--policy", "first-touch,interleave"];
        let printed: Value = serde_json::from_str(&done(path, &[&run[..], &more[..]].concat())).unwrap();
        let time = |index: usize| printed["runs"][index]["run_time_s"].as_f64().unwrap();
        relative.push(time(1) / time(0));
    }
    relative.sort_by(f64::total_cmp);
    let near = |field: &str, expected: f64| {
        let found = cell["relative_time"][field].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-12, "{field}: {found}, not {expected}");
    };
    near("low", relative[0]);
    near("high", relative[1]);
    near("median", f64::midpoint(relative[0], relative[1]));
}

/// No other policy takes the first one's place, where a sweep is half done.
#[test]
fn without_the_first_policy_there_are_no_relative_times() {
    let directory = directory(SPEC);
    let path = directory.path();
    done(path, &["sweep", "spec.toml", "--out", "out"]);
    let merged =
        || -> Value { serde_json::from_str(&done(path, &["merge", "out", "--partial", "--json"])).unwrap() };
    let all = merged();
    let (first, other) = (&all["cells"][0], &all["cells"][1]);
    assert!(first["relative_time"].is_object() && other["relative_time"].is_object());
    for (name, content) in files(&path.join("out")).into_iter().filter(|(name, _)| name.len() == 21) {
        let run: Value = serde_json::from_slice(&content).unwrap();
        if run["run"]["policy"] == first["policy"] {
            std::fs::remove_file(path.join("out").join(name)).unwrap();
        }
    }
    let left = merged();
    let cells = left["cells"].as_array().unwrap();
    assert!(!cells.is_empty() && cells.iter().all(|cell| cell["policy"] != first["policy"]));
    assert!(cells.iter().all(|cell| cell["relative_time"].is_null()), "{left}");
}

#[test]
fn a_sweep_that_was_interrupted_goes_on_where_it_was() {
    // So many that most are still to be run when the interrupt comes.
    const RUNS: usize = 40;
    let directory = directory(&SPEC.replace("seeds = 2", "seeds = 4"));
    let (path, out) = (directory.path(), directory.path().join("out"));
    let runs = || files(&out).into_iter().filter(|(name, _)| name.len() == 21).collect::<BTreeMap<_, _>>();
    // A shell has interrupts ignored by what it starts in the background, such as these tests.
    let mut child = std::process::Command::new("env")
        .arg("--default-signal=INT")
        .arg(assert_cmd::cargo::cargo_bin("nodewise"))
        .current_dir(path)
        .args(["sim", "sweep", "spec.toml", "--out", "out"])
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !out.exists() || runs().len() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(300), "no run ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupt = rustix::process::Signal::INT;
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, interrupt).unwrap();
    assert!(!child.wait().unwrap().success());
    let before = runs();
    assert!((3..RUNS).contains(&before.len()), "it was not interrupted in the middle: {}", before.len());
    // Every file that is there is whole.
    for (name, content) in &before {
        assert!(serde_json::from_slice::<Value>(content).is_ok(), "{name}");
    }
    let (code, _, error) = sim(path, &["merge", "out"]);
    let missing = RUNS - before.len();
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("{missing} of {RUNS} runs are missing")), "{error}");
    done(path, &["merge", "out", "--partial"]);
    // One is cut short, as a disk that was full leaves it, and is done again.
    let (cut, whole) = before.iter().next().unwrap();
    std::fs::write(out.join(cut), &whole[..whole.len() / 2]).unwrap();
    let modified = |name: &str| std::fs::metadata(out.join(name)).unwrap().modified().unwrap();
    let times: BTreeMap<&String, _> =
        before.keys().filter(|name| *name != cut).map(|name| (name, modified(name))).collect();
    done(path, &["sweep", "spec.toml", "--out", "out"]);
    let after = runs();
    assert_eq!(after.len(), RUNS);
    assert!(before.iter().all(|(name, content)| after[name] == *content));
    assert!(times.iter().all(|(name, time)| modified(name) == *time), "a run was done twice");
    done(path, &["merge", "out"]);
}

#[test]
fn what_is_wrong_is_refused_with_the_reason() {
    let refused = |spec: &str, arguments: &[&str], expected: &str| {
        let directory = directory(spec);
        let arguments = [&["sweep", "spec.toml", "--out", "out"][..], arguments].concat();
        let (code, _, error) = sim(directory.path(), &arguments);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(!directory.path().join("out").exists());
    };
    refused(&SPEC.replace("'mg'", "'mgg'"), &[], "spec.toml:2: workloads: no such program: mgg");
    refused(&SPEC.replace("'mg'", "'pca'"), &[], "named twice");
    refused(&SPEC.replace("seeds = 2", "seeds = 0"), &[], "there are no seeds");
    refused(&SPEC.replace("seeds = 2", "seeds = 9000000000"), &[], "more than 10000000 runs");
    refused(&SPEC.replace("scales", "scale"), &[], "unknown field `scale`");
    refused(&SPEC.replace("0.001", "2"), &[], "spec.toml:4: scales: 2: not above 0 and up to 1");
    refused(&SPEC.replace("'ace-7'", "\n'ace-8'"), &[], "spec.toml:2: machines: ace-8: no such machine");
    refused(&SPEC.replace("'carrefour'", "'magic'"), &[], "spec.toml:3: policies: no such policy: magic");
    refused(SPEC, &["--shard", "3/3"], "not I/N with I from 0 to N-1");
    let only = SPEC.replace("'opteron-8385-4n', ", "").replace("'first-touch', 'interleave', ", "");
    refused(&only, &[], "carrefour");
    let directory = directory(SPEC);
    let path = directory.path();
    let small = SPEC.replace("'opteron-8385-4n', 'ace-7'", "'dahu-2n'").replace("'mg', 'pca'", "'cg'");
    std::fs::write(path.join("small.toml"), small.replace("seeds = 2", "seeds = 1")).unwrap();
    let (_, _, error) = sim(path, &["sweep", "small.toml", "--out", "small"]);
    assert!(error.starts_with("nodewise: cg on dahu-2n, scale 0.001: 32 threads share "), "{error}");
    let (code, _, error) = sim(path, &["merge", "."]);
    assert_eq!(code, Some(2));
    assert!(error.contains("is no directory of a sweep"), "{error}");
    done(path, &["sweep", "spec.toml", "--shard", "0/20", "--out", "out"]);
    std::fs::write(path.join("spec.toml"), SPEC.replace("seeds = 2", "seeds = 3")).unwrap();
    let (code, _, error) = sim(path, &["sweep", "spec.toml", "--out", "out"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("holds another sweep"), "{error}");
}
