//! The simulator replays traces out of a modelled guest, on the same machine. It is to say what the guest
//! does itself when pages are placed so.

mod guests;

use guests::programs;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const MACHINE: &str = "opteron-8385-4n";

/// Runs a script under `nodewise rig --machine`.
fn rig(options: &[&str], program: &[&str]) -> Output {
    let mut command = Command::new(&programs().nodewise);
    // The machine's time does not hang on what else runs here, and such a guest is on one CPU of it.
    command.env("NODEWISE_RIG_EXCLUSIVE", "0");
    command.args(["rig", "--machine", MACHINE, "--cpus-per-node", "1"]).args(options);
    let output = command.arg("--").args(program).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The simulator's reports on a trace, one for each policy.
fn replay(trace: &Path, policies: &str) -> Vec<Value> {
    let mut command = Command::new(&programs().nodewise);
    command.args(["sim", "run", "--machine", MACHINE, "--pin", "spread", "--json", "--policy", policies]);
    let output = command.arg("--trace").arg(trace).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["runs"].as_array().unwrap().clone()
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_else(|| panic!("{field}: {of}"))
}

/// Four threads that each read a quarter, which main wrote first: the simulator has to know that they began
/// after it, and where they wait.
#[test]
fn a_replay_says_what_the_guest_does() {
    let directory = tempfile::tempdir().unwrap();
    let (trace, report) = (directory.path().join("trace"), directory.path().join("json"));
    let workload = programs().workload.to_str().unwrap();
    let program = format!("{workload} private --stream --mebibytes 32 --passes 40 --seconds 60");
    let run = |placed: &str, options: &[&str]| -> (f64, Value) {
        let script = format!("echo 0 >/proc/sys/kernel/numa_balancing; exec {placed} {program}");
        let own = ["--copy", workload, "--json", report.to_str().unwrap()];
        let output = rig(&[&own, options].concat(), &["sh", "-c", &script]);
        let lines = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        (number(&last, "seconds"), json(&report))
    };
    let (first_s, first) = run("", &["--trace", trace.to_str().unwrap()]);
    let (spread_s, _) = run("nodewise run --interleave=all --", &[]);
    let traced = &first["trace"];
    assert_eq!((&traced["reached_limit"], &traced["error"]), (&false.into(), &Value::Null), "{traced}");
    let simulated = replay(&trace, "first-touch,interleave");
    let local = ["local_access_percent"].map(|of| (number(&first, of), number(&simulated[0], of)))[0];
    let ratio = number(&simulated[0], "run_time_s") / number(&simulated[1], "run_time_s");
    let guests = first_s / spread_s;
    println!(
        "{traced}, {} bytes; local: {:.1} % in the guest, {:.1} % simulated; first touch over interleaving: \
         {first_s} s / {spread_s} s = {guests:.3} in the guest, {ratio:.3} simulated",
        trace.metadata().unwrap().len(),
        local.0,
        local.1
    );
    assert!((local.0 - local.1).abs() < 3.0, "{local:?}");
    assert!((ratio / guests - 1.0).abs() < 0.15, "{ratio} instead of {guests}");
    assert!(guests > 1.2, "it does not matter where pages lie: {guests}");
}

/// A program that nobody here wrote, with children of its own. The kernel alone touches 32 MiB for it.
#[test]
fn a_script_is_traced_with_its_children_and_up_to_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let script = "my @a = map { $_ * 7 } 1..300000; my $s = 0; $s += $a[($_ * 7919) % 300000] for 1..300000;
                  print \"$s\\n\"; system('true | cat') == 0 or die;
                  open my $zeros, '<', '/dev/zero'; sysread($zeros, my $b, 32 << 20) == 32 << 20 or die";
    let traced = |options: &[&str]| {
        let own = ["--trace", trace.to_str().unwrap()];
        let output = rig(&[&own, options].concat(), &["perl", "-e", script]);
        let sum: u64 = (1..=300_000u64).map(|i| (i * 7919 % 300_000 + 1) * 7).sum();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), sum.to_string());
        (said(&output), trace.metadata().unwrap())
    };
    let (whole_said, whole) = traced(&[]);
    println!("{whole_said}");
    // Perl's script, a shell and two programs of it: each process twice, before and after it executes one.
    let processes: u32 = whole_said.rsplit("processes: ").next().unwrap().trim().parse().unwrap();
    assert!((5..=8).contains(&processes), "{whole_said}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&whole.permissions());
    assert_eq!(mode & 0o777, 0o600);
    let placed = replay(&trace, "bind:0,bind:3");
    let pages = |of: &Value| -> u64 {
        of["resident_pages"].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap()).sum()
    };
    // 300 000 numbers in perl take 32 bytes each at least.
    assert!(pages(&placed[0]) > (300_000 * 32 + (32 << 20)) / 4096, "{placed:?}");
    let (near_s, far_s) = (number(&placed[0], "run_time_s"), number(&placed[1], "run_time_s"));
    assert!(far_s > 1.05 * near_s, "{far_s} s far away, {near_s} s near");

    let (cut_said, cut) = traced(&["--trace-limit", "1M"]);
    assert!(cut_said.contains("ends before the program, at --trace-limit 1M"), "{cut_said}");
    assert!(whole.len() > 1 << 20, "{} bytes", whole.len());
    assert!((1_000_000..=1 << 20).contains(&cut.len()), "{} bytes", cut.len());
    replay(&trace, "first-touch");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing lies beside it");
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let trace = path.to_str().unwrap();
    let outcome = |arguments: &[&str]| {
        let output = Command::new(&programs().nodewise).args(arguments).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, error) = outcome(&["rig", "--trace", trace, "--", "true"]);
    assert!(code == Some(2) && error.contains("--machine"), "{error}");
    let machine = ["rig", "--machine", MACHINE, "--cpus-per-node", "1"];
    let with = |options: &[&str]| outcome(&[&machine, options, &["--", "true"]].concat());
    let (code, error) = with(&["--trace", trace, "--instructions-only"]);
    assert!(code == Some(2) && error.contains("--instructions-only"), "{error}");
    let (code, error) = with(&["--trace", "/no/such/directory/trace"]);
    assert!(code == Some(2) && error.contains("cannot write /no/such/directory/trace"), "{error}");
    let (code, error) = with(&["--trace", "/dev/null"]);
    assert!(code == Some(2) && error.contains("no ordinary file"), "{error}");
    let (code, error) = with(&["--trace", trace, "--trace-limit", "much"]);
    assert!(code == Some(2) && error.contains("--trace-limit"), "{error}");
    // One that is ended leaves what was there.
    std::fs::write(&path, "from before").unwrap();
    let limit = ["--trace", trace, "--time-limit", "0.5", "--", "sleep", "1000"];
    let (code, error) = outcome(&[&machine[..], &limit].concat());
    assert_eq!(code, Some(124), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "from before");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing lies beside it");
    let (code, error) = outcome(&["sim", "run", "--machine", MACHINE, "--trace", trace]);
    assert!(code == Some(2) && error.contains("is no trace: it does not begin with NWTRACE"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}
