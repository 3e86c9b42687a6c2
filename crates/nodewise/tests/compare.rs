//! `nodewise compare` on whatever machine this is: bad input, going on, and files.

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Pinning is compared on every machine of two CPUs or more, and takes no rights.
fn compare(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("nodewise"));
    command.args(["compare", "--only", "pin"]).args(arguments);
    command.env("XDG_STATE_HOME", home).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn bad_input_is_one_clear_error_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let json = home.path().join("out.json");
    let json = json.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--", "/no/such/program"], 127, "/no/such/program: not found"),
        (&["--", "/etc/hostname"], 126, "cannot execute"),
        (&["--", "sh", "-c", "echo sorry >&2; exit 3"], 1, "failed (exit status: 3), after it said: sorry"),
        (&["--", "sh", "-c", "kill -9 $$"], 1, "perhaps for want of memory"),
        (&["--timeout", "1", "--", "sleep", "100"], 124, "longer than 1 s (--timeout), and was killed"),
        (&["--metric", "rate ([0-9]+)", "--", "echo", "fast"], 1, "has a number that 'rate ([0-9]+)' finds"),
        (&["--metric", "([0-9]+)", "--", "echo", "0"], 1, "only numbers above 0"),
        (&["--metric-command", "cat >/dev/null", "--", "echo", "1"], 1, "it printed no number"),
        (&["--model", "no-such-machine", "--", "true"], 1, "--model"),
    ];
    for (arguments, status, why) in cases {
        let output = compare(home.path(), &["--json", json]).args(arguments).output().unwrap();
        let said = said(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{arguments:?}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.contains(why)).collect();
        assert_eq!(errors.len(), 1, "{arguments:?}: {said}");
        assert!(!Path::new(json).exists(), "{arguments:?}");
    }
    for (arguments, why) in
        [(&["--only", "foo", "--", "true"][..], "'foo'"), (&["--metric", "(", "--", "x"], "--metric")]
    {
        let output = compare(home.path(), arguments).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains(why), "{output:?}");
    }
}

#[test]
fn a_comparison_is_told_in_full() {
    let home = tempfile::tempdir().unwrap();
    let [json, html] = ["out.json", "out.html"].map(|name| home.path().join(name));
    let files = ["--json", json.to_str().unwrap(), "--report", html.to_str().unwrap()];
    let output = compare(home.path(), &files)
        .args(["--repeat", "8", "--metric", r"rate ([\d.]+)", "--", "sh", "-c", "echo rate 5.0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    assert!(text.contains("Nothing to do here"), "the metric is always the same: {text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&report["verdict"], &report["winner"]), (&"healthy".into(), &Value::Null));
    assert_eq!(report["placements"][0]["name"], "default");
    assert_eq!(report["placements"][0]["value"]["median"], 5.0);
    let run = &report["runs"][0];
    assert!(run["wall_seconds"].as_f64().unwrap() > 0.0, "{run}");
    assert!(run["events"]["context switches, voluntary"].is_number(), "{run}");
    assert_eq!(json.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let left = std::fs::read_dir(home.path().join("nodewise")).unwrap().count();
    assert_eq!(left, 0, "there is nothing to go on with");
}

/// The machine's setting stays as it is, for everybody else.
#[test]
fn huge_pages_are_taken_from_the_program_alone() {
    let setting =
        || std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let before = setting();
    if before.is_empty() || before.contains("[never]") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let json = home.path().join("out.json");
    let says = "echo $(($(awk '/^THP_enabled/ { print $2 }' /proc/self/status) + 1)) $(cat $SETTING)";
    let output = Command::new(cargo_bin("nodewise"))
        .args(["compare", "--only", "thp-never", "--repeat", "1", "--metric", "^([12]) ", "--json"])
        .arg(&json)
        .args(["--", "sh", "-c", says])
        .env("SETTING", "/sys/kernel/mm/transparent_hugepage/enabled")
        .env("XDG_STATE_HOME", home.path())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let medians: Vec<_> =
        report["placements"].as_array().unwrap().iter().map(|row| &row["value"]["median"]).collect();
    assert_eq!((medians, setting()), (vec![&Value::from(2.0), &Value::from(1.0)], before), "{output:?}");
}

/// As root, settings can be changed on some machines only; others have none of these placements.
#[test]
fn placements_that_cannot_run_are_not_counted() {
    let home = tempfile::tempdir().unwrap();
    let compare = |repeat: &str, only: &str| {
        let mut command = Command::new(cargo_bin("nodewise"));
        command.args(["compare", "--repeat", repeat, "--only", only, "--", "true"]);
        command.env("XDG_STATE_HOME", home.path()).stdin(Stdio::null()).output().unwrap()
    };
    let output = compare("1", "thp");
    let text = String::from_utf8_lossy(&output.stdout);
    let nothing = said(&output).contains("there is no other placement to compare with")
        || said(&output).contains("there is no placement 'thp' here");
    assert!(output.status.success() != nothing && text.is_empty() == nothing, "{text}{}", said(&output));
    assert!(!text.contains("0 % interval"), "{text}");

    let output = compare("3", "pin,thp");
    let text = String::from_utf8_lossy(&output.stdout);
    let last_number = |text: &str, end: &str| {
        text.split(end).next().and_then(|before| before.split(' ').next_back()?.parse::<u32>().ok())
    };
    if let Some(at_start) = last_number(&said(&output), " can\n") {
        // Lines end anywhere.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(Some(at_start), last_number(&text, " can."), "{text}{}", said(&output));
    }
}

/// A program that is given twice the work under one placement is found out: the CPU that it is pinned to
/// tells.
#[test]
fn a_slower_placement_is_found() {
    let home = tempfile::tempdir().unwrap();
    let script = "case $(taskset -p $$) in *[1248]|*mask:*[1248]0*) echo 20;; *) echo 10;; esac";
    let arguments = ["--repeat", "9", "--metric", r"^\d+$", "--less-is-better", "--", "sh", "-c", script];
    let output = compare(home.path(), &arguments).output().unwrap();
    // Lines end anywhere.
    let text = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("0.50x"), "pinned to one CPU, it says 20: {text}{}", said(&output));
    assert!(text.contains("Placement matters to it: the worst here is 2.00x slower"), "{text}");
}

#[test]
fn ctrl_c_keeps_the_runs_and_the_same_command_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let (count, json) = (home.path().join("count"), home.path().join("out.json"));
    let script = format!("echo x >>{}; sleep 0.2; echo 7", count.display());
    let arguments =
        ["--repeat", "8", "--metric", r"\d+", "--json", json.to_str().unwrap(), "--", "sh", "-c", &script];
    let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    let first =
        compare(home.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while runs() < 5 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    nodewise_sys::kill(first.id() as i32, signal_hook::consts::SIGINT).unwrap();
    let output = first.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{}", said(&output));
    assert!(
        said(&output).contains("the same command goes on with them") && !json.exists(),
        "{}",
        said(&output)
    );
    let states: Vec<_> =
        std::fs::read_dir(home.path().join("nodewise")).unwrap().map(Result::unwrap).collect();
    assert_eq!(states.len(), 1, "{states:?}");
    assert_eq!(states[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(states[0].path()).unwrap()).unwrap();
    let kept = kept["experiment"]["runs"].as_array().unwrap().len();
    let broken_off = runs();
    assert!((3..broken_off).contains(&kept), "{kept} of {broken_off}, and the first does not count");

    let second = compare(home.path(), &arguments).output().unwrap();
    assert!(second.status.success(), "{}", said(&second));
    assert!(said(&second).contains(&format!("going on after {kept} runs")), "{}", said(&second));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let all = report["runs"].as_array().unwrap().len();
    assert_eq!(runs(), broken_off + all - kept, "no run is made twice, and none warms up again");
}

#[test]
fn what_the_command_leaves_behind_is_ended() {
    let home = tempfile::tempdir().unwrap();
    let script = "sleep 4711 & echo 1";
    let arguments = ["--repeat", "1", "--metric", r"\d+", "--", "sh", "-c", script];
    let output = compare(home.path(), &arguments).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let command_lines = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("cmdline")).ok());
    assert_eq!(command_lines.filter(|line| line == "sleep\x004711\0").count(), 0);
}
