//! `nodewise measure` on whatever machine this is: what it prints and writes, not how fast anything is.

use assert_cmd::cargo::cargo_bin;
use nodewise_hardware::Preset;
use nodewise_topology::Topology;
use serde_json::Value;
use std::process::{Command, Output};

fn measure(arguments: &[&str]) -> Output {
    let mut command = Command::new(cargo_bin("nodewise"));
    command.args(["measure", "--quick", "--mebibytes", "4"]).args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = measure(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], status: i32) -> String {
    let output = measure(arguments);
    assert_eq!((output.status.code(), &*output.stdout), (Some(status), &b""[..]), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

const LISTS: [&str; 7] =
    ["idle_latency", "page_latency", "peak", "bandwidth", "all_cpus", "loaded_latency", "cache_to_cache"];

#[test]
fn json_has_every_part_that_was_asked_for_and_no_other() {
    let lists = |arguments: &[&str]| {
        let json: Value = serde_json::from_str(&printed(arguments)).unwrap();
        let filled = LISTS.into_iter().filter(|list| !json[list].as_array().unwrap().is_empty());
        (filled.collect::<Vec<_>>(), json)
    };
    let (filled, json) = lists(&["--json"]);
    let cpus: u64 = json["nodes"].as_array().unwrap().iter().map(|node| node["cpus"].as_u64().unwrap()).sum();
    let possible = if cpus == 1 { &LISTS[..5] } else { &LISTS[..] };
    assert_eq!(filled, possible);
    assert_eq!(json["buffer_bytes"], 4 << 20);
    assert!(json["page_bytes"].as_u64().unwrap() >= 4096 && json["governor"] != "");
    for figure in [&json["idle_latency"][0]["latency_ns"], &json["bandwidth"][0]["bandwidth_mb_per_s"]] {
        let [lowest, median, highest] =
            ["lowest", "median", "highest"].map(|key| figure[key].as_f64().unwrap());
        assert!(0.0 < lowest && lowest <= median && median <= highest, "{figure}");
        assert!(figure["passes"].as_u64().unwrap() > 1, "{figure}");
    }
    assert_eq!(lists(&["--json", "--only", "pages"]).0, ["page_latency"]);
    assert_eq!(lists(&["--json", "--only", "latency"]).0, ["idle_latency"]);
    assert_eq!(lists(&["--json", "--only", "interleaved,peak"]).0, ["peak", "all_cpus"]);
}

#[test]
fn tables_are_plain_where_no_terminal_is() {
    let text = printed(&["--only", "latency,bandwidth"]);
    for expected in
        ["Idle latency in ns", "Bandwidth of reads in MB/s", "1 thread ", "copy ", "frequency governor:"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains('\x1b') && !text.contains("Latency while"), "{text}");
    assert_eq!(text.lines().find(|line| line.len() > 110 || line.ends_with(' ')), None);
}

/// The figures are read in the crate's tests; here it is the form of each section on its own.
#[test]
fn mlcs_text_has_no_digit_before_a_line_but_in_rows() {
    let nodes = Topology::live().unwrap().node_count();
    let digits = |text: &str| {
        let starts = text.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        starts.count()
    };
    for (part, heading) in [
        ("latency", "Measuring idle latencies (in ns)...\n"),
        ("bandwidth", "Measuring Memory Bandwidths between nodes within system\n"),
    ] {
        let text = printed(&["--mlc", "--only", part]);
        assert!(text.contains(heading) && text.contains("\nNuma node  "), "{text}");
        assert!((1..=nodes).contains(&digits(&text)), "{text}");
        assert_eq!(text.matches("Measuring").count(), 1, "{text}");
    }
    let text = printed(&["--mlc", "--only", "peak"]);
    let last: Vec<&str> = text.lines().rev().take(6).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(last, ["", "Stream-triad", "1:1", "2:1", "3:1", "ALL"]);
    // The part that MLC does not have.
    assert!(!printed(&["--mlc", "--only", "peak,interleaved"]).to_lowercase().contains("interleaved"));
}

#[test]
fn a_machine_is_written_that_the_simulator_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml");
    let file = path.to_str().unwrap();
    let text = printed(&["--only", "latency,bandwidth", "--preset", file]);
    assert!(text.contains("Idle latency"), "{text}");
    let preset = Preset::load(&path).unwrap();
    assert!(preset.cores() > 0 && preset.controller.idle_latency_ns > 0.0);
    let mut run = Command::new(cargo_bin("nodewise"));
    run.args(["sim", "run", "--machine", file, "--workload", "counter-shared"]);
    run.args(["--policy", "first-touch", "--threads", "1", "--scale", "0.1"]);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_cannot_be_measured_is_one_clear_error() {
    let said = refused(&["--only", "latency,nonsense"], 2);
    assert!(said.contains("'nonsense'") && said.contains("interleaved"), "{said}");
    let said = refused(&["--mlc", "--only", "interleaved"], 2);
    assert_eq!(said, "nodewise: --only: MLC's text has no part 'interleaved'\n");
    let said = refused(&["--mlc", "--json"], 2);
    assert!(said.contains("cannot be used with"), "{said}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml");
    let said = refused(&["--only", "latency", "--preset", path.to_str().unwrap()], 2);
    assert_eq!(said, "nodewise: --preset: a machine takes the part 'bandwidth': add it to --only\n");
    assert!(!path.exists());
    let said = refused(&["--preset", "/no/such/directory/mine.toml"], 1);
    assert!(said.starts_with("nodewise: cannot write /no/such/directory/mine.toml: "), "{said}");
    let mut huge = Command::new(cargo_bin("nodewise"));
    let output = huge.args(["measure", "--mebibytes", "1000000000"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("MiB free for this process, too little to measure with 2000000000 MiB; --mebibytes "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!refused(&["--mebibytes", "0"], 2).is_empty());
}

/// Ctrl-C ends it at once, and neither file nor half a file is left.
#[test]
fn an_interrupt_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt as _;
    let directory = tempfile::tempdir().unwrap();
    // A shell has interrupts ignored by what it starts in the background, such as these tests.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(cargo_bin("nodewise"));
    command.args(["measure", "--mebibytes", "64", "--preset", "mine.toml"]).current_dir(directory.path());
    let mut running = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap();
    assert_eq!(running.wait().unwrap().signal(), Some(2));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
