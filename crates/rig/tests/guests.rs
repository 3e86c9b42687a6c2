//! Real guests, one at a time.

use nodewise_rig::{Distances, ErrorKind, Guest, Node, Output, Stage, Streams, kernels};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn small() -> Guest {
    Guest::uniform(1, 1, 512 * MIB).exclusive(true)
}

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// QEMU processes that hold files in `directory` of ours; every guest names its own on its command line.
fn qemus_of(directory: &Path) -> usize {
    let directory = directory.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    processes.filter(|line| line.contains("qemu-system") && line.contains(directory)).count()
}

#[test]
fn status_and_both_outputs_come_back_apart_and_nothing_waits_for_a_daemon() {
    let output = small().output(&sh("sleep 1000 & echo to out; echo to err >&2; exit 7")).unwrap();
    let expected = Output { status: 7, stdout: b"to out\n".to_vec(), stderr: b"to err\n".to_vec() };
    assert_eq!(output, expected);
}

#[test]
fn a_signal_is_128_and_its_number() {
    assert_eq!(small().output(&sh("kill -SEGV $$")).unwrap().status, 128 + 11);
}

#[test]
fn the_program_finds_what_it_was_given() {
    let directory = tempfile::tempdir().unwrap();
    let nested = directory.path().join("a/b");
    fs::create_dir_all(&nested).unwrap();
    fs::write(nested.join("data"), "x".repeat(5000)).unwrap();
    fs::copy("/usr/bin/env", nested.join("program")).unwrap();
    std::os::unix::fs::symlink("b/data", directory.path().join("a/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", directory.path().join("a/dangling")).unwrap();

    let mut program = sh(
        "pwd; id -u; echo \"$1|$2\"; a/b/program; wc -c <a/link; readlink a/dangling; cat; ls /etc/os-release; \
         [ -t 1 ] || echo no terminal; cat /sys/class/net/lo/operstate; ls /sys/kernel/debug/sched | head -n 1",
    );
    program.args(["name", "one 'word' $HOME", "\\ \"", "unused"]).current_dir(directory.path());
    program.env("SAID", "so it was").env_remove("HOME");
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut streams = Streams::new(&mut stdout, &mut stderr);
    streams.stdin = b"the input\n".to_vec();
    small().copy(directory.path()).copy("/usr/bin/id").run(&program, streams).unwrap();

    let lines: Vec<&str> = text(&stdout).lines().collect();
    let here = directory.path().to_str().unwrap();
    assert_eq!(lines[..3], [here, "0", "one 'word' $HOME|\\ \""]);
    assert!(lines.contains(&"SAID=so it was"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("PATH=")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("CARGO")), "the host's variables stay out: {lines:?}");
    let after = lines.iter().position(|line| *line == "5000").expect("the link leads to the data");
    assert_eq!(lines[after + 1..after + 3], ["nowhere", "the input"]);
    assert!(lines.contains(&"no terminal"), "{lines:?}");
    assert!(text(&stderr).contains("/etc/os-release"), "this machine's files are not in the guest");
}

/// As on this machine: owners, modes and times of what is copied, users and their rights, the time zone, and
/// two outputs that are one keep their order.
#[test]
fn copies_users_time_and_the_order_of_outputs_are_as_here() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o751)).unwrap();
    let file = directory.path().join("data");
    fs::write(&file, "data").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2640)).unwrap();
    let touched = Command::new("touch").args(["-d", "2001-02-03 04:05:06 UTC"]).arg(&file).status().unwrap();
    assert!(touched.success());
    // Another's file where this test runs as root, and else its user's.
    let _ = std::os::unix::fs::chown(&file, Some(1234), Some(2345));
    let stat = "stat -c '%a %u %g %Y %n' . data";
    let here = Command::new("sh").args(["-c", stat]).current_dir(directory.path()).output().unwrap();
    let nobody = "setpriv --reuid=nobody --regid=nogroup --clear-groups sh -c 'id -un; id -gn'";
    let script = format!(
        "{stat}; {nobody}; useful; date -d @1000000000 +%H:%M; \
         i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i + 1)); done"
    );
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut streams = Streams::new(&mut stdout, &mut stderr);
    streams.joined = true;
    let mut program = sh(&script);
    program.current_dir(directory.path()).env("TZ", "Pacific/Kiritimati");
    let useful = directory.path().join("useful.sh");
    fs::write(&useful, "#!/bin/sh\necho useful\n").unwrap();
    fs::set_permissions(&useful, fs::Permissions::from_mode(0o755)).unwrap();
    let guest = small().copy(directory.path()).command("useful", &useful).copy("/usr/bin/id");
    guest.run(&program, streams).unwrap();
    let pairs: Vec<String> = (0..200).flat_map(|i| [format!("out {i}"), format!("err {i}")]).collect();
    let stat: Vec<&str> = text(&here.stdout).lines().collect();
    let lines: Vec<&str> = text(&stdout).lines().collect();
    // The directory's own time is that of the last file in it, which came later.
    let but_time = |line: &str| {
        line.split(' ')
            .enumerate()
            .filter(|(at, _)| *at != 3)
            .map(|(_, word)| word.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(but_time(lines[0]), but_time(stat[0]));
    assert_eq!(lines[1], stat[1]);
    assert_eq!(lines[2..6], ["nobody", "nogroup", "useful", "15:46"]);
    assert_eq!(lines[6..], pairs);
    assert_eq!(text(&stderr), "");
}

/// The facts that `numactl --hardware` tells of a node: its CPUs and its memory in MiB.
type Seen = (Vec<u32>, u64);

fn seen(hardware: &str) -> (Vec<Seen>, Vec<Vec<u8>>) {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut nodes: Vec<Seen> = Vec::new();
    let mut distances = Vec::new();
    for line in hardware.lines().map(words) {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        match line.as_slice() {
            ["node", _, "cpus:", cpus @ ..] => {
                nodes.push((cpus.iter().map(|c| c.parse().unwrap()).collect(), 0));
            }
            ["node", node, "size:", mib, "MB"] => {
                nodes[node.parse::<usize>().unwrap()].1 = mib.parse().unwrap();
            }
            [row, entries @ ..] if row.ends_with(':') && !entries.is_empty() && *row != "available:" => {
                distances.push(entries.iter().map(|e| e.parse().unwrap()).collect());
            }
            _ => {}
        }
    }
    (nodes, distances)
}

fn shape_is_as_asked(nodes: &[Node], distances: Option<Distances>) {
    let mut guest = Guest::new(nodes).exclusive(true);
    if let Some(table) = &distances {
        guest = guest.distances(table.clone());
    }
    let output = guest.output(Command::new("numactl").arg("--hardware")).unwrap();
    let (found, table) = seen(text(&output.stdout));
    let mut first = 0;
    assert_eq!(found.len(), nodes.len(), "{}", text(&output.stdout));
    for (node, (cpus, mib)) in nodes.iter().zip(&found) {
        let expected: Vec<u32> = (first..first + node.cpus).collect();
        first += node.cpus;
        assert_eq!(*cpus, expected);
        // The kernel keeps some of each node for itself, most of node 0's.
        let asked_mib = node.memory_bytes / MIB;
        assert!((asked_mib * 3 / 4..=asked_mib).contains(mib), "{mib} of {asked_mib} MiB");
    }
    let apart = |a: usize, b: usize| if a == b { 10 } else { 20 };
    let usual: Vec<Vec<u8>> =
        (0..nodes.len()).map(|a| (0..nodes.len()).map(|b| apart(a, b)).collect()).collect();
    assert_eq!(table, distances.map_or(usual, |table| table.rows().to_vec()));
}

#[test]
fn two_nodes_of_two_cpus() {
    shape_is_as_asked(&[Node { cpus: 2, memory_bytes: 256 * MIB }; 2], None);
}

#[test]
fn four_nodes_in_a_square() {
    let square = Distances::parse("square", 4).unwrap();
    shape_is_as_asked(&[Node { cpus: 1, memory_bytes: 256 * MIB }; 4], Some(square));
}

#[test]
fn eight_nodes_in_a_ring() {
    let ring = Distances::parse("ring", 8).unwrap();
    shape_is_as_asked(&[Node { cpus: 1, memory_bytes: 256 * MIB }; 8], Some(ring));
}

#[test]
fn uneven_nodes_and_one_without_cpus() {
    let node = |cpus, mib| Node { cpus, memory_bytes: mib * MIB };
    let table = Distances::parse("10,20,17;20,10,28;17,28,10", 3).unwrap();
    shape_is_as_asked(&[node(2, 512), node(1, 256), node(0, 128)], Some(table));
}

#[test]
fn every_kernel_found_boots() {
    let kernels = kernels();
    assert!(!kernels.is_empty(), "no kernel: run 'make setup'");
    for kernel in kernels {
        let output = small().kernel(&kernel).output(Command::new("uname").arg("-r")).unwrap();
        let release = text(&output.stdout).trim();
        assert!(kernel.to_str().unwrap().ends_with(release), "{release} of {}", kernel.display());
    }
}

#[test]
fn five_megabytes_arrive_whole() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("numbers");
    let mut state = 1u64;
    let content: Vec<u8> = (0..5_000_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    fs::write(&file, &content).unwrap();
    let script = format!("cat {0} & head -c 500000 {0} >&2; wait", file.display());
    let output = small().copy(&file).output(&sh(&script)).unwrap();
    assert_eq!(output.status, 0);
    assert!(output.stdout == content, "{} bytes of standard output", output.stdout.len());
    assert!(output.stderr == content[..500_000], "{} bytes of standard error", output.stderr.len());
}

#[test]
fn a_time_limit_ends_a_program_that_hangs() {
    let guest = small().time_limit(Duration::from_secs(1));
    let error = guest.output(Command::new("sleep").arg("1000")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimeLimit);
    assert_eq!(error.to_string(), "the time limit of 1 s was reached");
}

#[test]
fn a_guest_that_does_not_come_up_is_an_error() {
    let guest = small().boot_limit(Duration::from_millis(10));
    let error = guest.output(&Command::new("true")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Guest);
    assert!(
        error.to_string().starts_with("the guest hangs: not up after 0.01 s; its console's last lines:"),
        "{error}"
    );
}

#[test]
fn a_panic_is_reported_with_the_consoles_last_lines() {
    let error = small().output(&sh("echo c >/proc/sysrq-trigger; sleep 1000")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Guest);
    let message = error.to_string();
    assert!(message.starts_with("the guest's kernel panicked: sysrq triggered crash; "), "{message}");
    assert!(message.contains("Call Trace") || message.contains("RIP:"), "{message}");
}

#[test]
fn what_the_emulation_did_is_not_said_of_the_kernel() {
    let oops =
        "echo '<0>Oops: int3: 0000 [#1] PREEMPT SMP' >/dev/kmsg; echo c >/proc/sysrq-trigger; sleep 1000";
    let error = small().output(&sh(oops)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Emulation, "{error}");
    assert!(error.to_string().contains("run it again; its console's last lines:"), "{error}");
}

#[test]
fn a_guest_switched_off_by_its_program_is_an_error() {
    let error = small().output(Command::new("busybox").args(["poweroff", "-f"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Guest);
    assert!(error.to_string().starts_with("the guest went away before the program ended"), "{error}");
}

#[test]
fn the_stop_flag_ends_a_run_and_nothing_stays() {
    let stop = AtomicBool::new(false);
    let mut stages = Vec::new();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut progress = |stage| {
        stages.push(stage);
        if stage == Stage::Running {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let mut streams = Streams::new(&mut stdout, &mut stderr);
    streams.progress = Some(&mut progress);
    streams.stop = &stop;
    let error = small().run(Command::new("sleep").arg("1000"), streams).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped);
    assert!(matches!(stages[..], [.., Stage::Booting(_), Stage::Running]), "{stages:?}");
    assert_eq!(qemus_of(&std::env::temp_dir().join("nodewise-rig-")), 0);
}
