//! The simulator against the server: workloads of the simulator as C programs on the same modelled machine.
//! The truth is the programs' own clocks there, and the machine's counters.

mod guests;

use guests::{c_program, programs};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A machine of four nodes, with caches of a sixteenth.
const MACHINE: [&str; 4] = ["--machine", "opteron-8385-4n", "--scale", "0.0625"];

/// How long a run took, and its share of local accesses in percent.
#[derive(Clone, Copy)]
struct Run {
    seconds: f64,
    local_percent: f64,
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Runs the program in a guest of its own, so that next to all of what is counted is its own. First come
/// these commands; all that was printed comes with the run.
fn in_guest(program: &Path, first: &str, arguments: &str) -> (Run, String) {
    let summary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulator.json");
    let script = format!(
        "echo never >/sys/kernel/mm/transparent_hugepage/enabled
         echo 0 >/proc/sys/kernel/numa_balancing; {first}
         {} {arguments}; grep numa_ /proc/vmstat",
        program.display()
    );
    let mut command = Command::new(&programs().nodewise);
    command.env("NODEWISE_RIG_EXCLUSIVE", "0").arg("rig").args(MACHINE).args(["--cpus-per-node", "1"]);
    command.arg("--json").arg(&summary).arg("--copy").arg(program).args(["--", "sh", "-c", &script]);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    let seconds = text.lines().find_map(|line| line.parse().ok()).expect("the program prints its time");
    let local_percent = json(&summary)["local_access_percent"].as_f64().expect("the machine counts");
    (Run { seconds, local_percent }, text)
}

/// Runs the workload in the simulator, with its report.
fn simulated(workload: &str, policy: &str) -> (Run, Value) {
    let mut command = Command::new(&programs().nodewise);
    command.args(["sim", "run"]).args(MACHINE).args(["--workload", workload, "--policy", policy]);
    // A thread on each node.
    let output = command.args(["--threads", "4", "--nodes", "0-3", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |name: &str| report["runs"][0][name].as_f64().unwrap();
    let run = Run { seconds: figure("run_time_s"), local_percent: figure("local_access_percent") };
    (run, report["runs"][0].clone())
}

#[test]
#[ignore = "takes ten minutes more, and CI has 90"]
fn programs_gain_as_the_simulator_says() {
    let program = c_program("modelled/workloads.c");
    // Where memory lies: on all threads' nodes by parts, on the first thread's, or spread. By policy, the
    // simulator places it so.
    let (parallel, main, spread) =
        (("parallel", "first-touch"), ("main", "bind:0"), ("interleave", "interleave"));
    let mut failed = Vec::new();
    for (name, workload, placements) in [
        ("own", "pikus-own", &[main, parallel, spread][..]),
        ("dealt", "pikus-bandwidth", &[main, spread]),
        ("cg", "cg", &[main, parallel, spread]),
        ("streamcluster", "streamcluster", &[main, spread]),
    ] {
        let mut first = None;
        for &(placement, policy) in placements {
            let (real, _) = in_guest(&program, "", &format!("{name} {placement}"));
            let (said, _) = simulated(workload, policy);
            let (real_first, said_first) = *first.get_or_insert((real, said));
            let gains = [real_first.seconds / real.seconds, said_first.seconds / said.seconds];
            let off = 100.0 * (gains[1] / gains[0] - 1.0);
            let (local, said_local) = (real.local_percent, said.local_percent);
            println!(
                "{name} {placement}: {:.2} times faster than main, {:.2} by the simulator ({off:+.1} %); \
                 {local:.1} % local, {said_local:.1} % by the simulator",
                gains[0], gains[1]
            );
            if off.abs() > 15.0 || (local - said_local).abs() > 3.0 {
                failed.push(format!("{name} {placement}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// The kernel's periods are a hundredth, as they are in the simulator, whose runs stand for a hundred times
/// longer ones.
#[test]
#[ignore = "takes four minutes more, and CI has 90"]
fn the_kernel_balances_as_the_simulator_says() {
    let program = c_program("modelled/workloads.c");
    let balanced = "
        knob() { echo $2 >/sys/kernel/debug/sched/numa_balancing/$1; }
        knob scan_size_mb 16; knob scan_delay_ms 10; knob scan_period_min_ms 10; knob scan_period_max_ms 600
        echo 1 >/proc/sys/kernel/numa_balancing";
    let workload = "streamcluster main 720";
    let (alone, _) = in_guest(&program, "", workload);
    let (real, text) = in_guest(&program, balanced, workload);
    let migrated = text.lines().find_map(|line| line.strip_prefix("numa_pages_migrated ")).unwrap();
    let (said_alone, _) = simulated("streamcluster", "first-touch");
    let (said, report) = simulated("streamcluster", "autonuma");
    let gains = [alone.seconds / real.seconds, said_alone.seconds / said.seconds];
    println!(
        "{:.2} times faster by the kernel's balancing, {:.2} by the simulator's; {:.1} % local, {:.1} % by the \
         simulator; {migrated} pages migrated, {} by the simulator",
        gains[0], gains[1], real.local_percent, said.local_percent, report["pages_migrated"]
    );
    assert!((gains[1] / gains[0] - 1.0).abs() <= 0.15);
    assert!((real.local_percent - said.local_percent).abs() <= 3.0);
    // Pages migrated fall short (docs/results).
}
