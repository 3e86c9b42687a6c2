//! `nodewise rig` as a person or a script uses it.

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

fn rig(arguments: &[&str]) -> Command {
    // A shell has interrupts ignored by what it starts in the background, such as these tests.
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=INT").arg(cargo_bin("nodewise"));
    command.arg("rig").args(arguments).env("NODEWISE_RIG_EXCLUSIVE", "1");
    command
}

fn outcome(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = rig(arguments).output().unwrap();
    assert_eq!(stdout, b"");
    (status.code(), without_waiting(stderr))
}

/// Without what is said where other tests' guests are in the way.
fn without_waiting(output: Vec<u8>) -> String {
    String::from_utf8(output)
        .unwrap()
        .replace("nodewise: waiting for another guest of this user to end\n", "")
}

#[test]
fn the_command_line_is_checked_before_anything_is_booted() {
    let usage = |arguments: &[&str], message: &str| {
        assert_eq!(
            outcome(&[arguments, &["--", "true"]].concat()),
            (Some(2), format!("nodewise: {message}\n"))
        );
    };
    usage(
        &["--nodes", "2", "--distances", "10,20;2x,10"],
        "--distances: malformed distances: row 2, entry 1: '2x' is not a distance (10 to 254)",
    );
    usage(&["--mem-per-node", "1Q"], "--mem-per-node: '1Q' is not a size such as 512M or 2G");
    usage(&["--cpus-per-node", "1,2"], "--cpus-per-node: 2 values for 4 nodes");
    usage(&["--device", "1:disk"], "--device 1:disk: a device is written NODE:nvme or NODE:net");
    usage(&["--device", "4:nvme"], "a device on node 4, and this guest has 4 nodes");
    usage(&["--nodes", "0"], "a guest has 1 to 64 nodes, not 0");
    usage(&["--time-limit", "0"], "--time-limit 0: not a time in seconds");
    usage(&["--env", "NAME"], "--env NAME: a variable is written NAME=VALUE");
}

#[test]
fn a_machine_that_cannot_be_is_refused_in_one_line() {
    let refused = |arguments: &[&str], message: &str| {
        let (code, error) = outcome(&[&["--machine"], arguments, &["--", "true"]].concat());
        assert_eq!(code, Some(2), "{error}");
        assert!(error.starts_with("nodewise: ") && error.contains(message), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    refused(&["opteron-8385-4m"], "Did you mean opteron-8385-4n?");
    refused(&["ace-7"], "a machine without caches");
    refused(&["/no/such/machine.toml"], "--machine: /no/such/machine.toml: ");
    refused(&["opteron-8385-4n", "--accel", "kvm"], "KVM runs the host's CPUs, at their own speed");
    refused(&["opteron-8385-4n", "--scale", "0"], "--scale 0: not above 0 and up to 1");
    refused(&["opteron-8385-4n", "--slow=-1"], "--slow -1: not above 0");
    refused(
        &["opteron-8385-4n", "--cpus-per-node", "5"],
        "--cpus-per-node 5: a node of opteron-8385-4n has 4 CPUs",
    );
    refused(&["opteron-8385-4n", "--json", "/no/such/file"], "/no/such");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.toml");
    fs::write(&file, "name = 1\n").unwrap();
    refused(&[file.to_str().unwrap()], "bad.toml:1: ");

    let (code, error) = outcome(&["--machine", "opteron-8385-4n", "--nodes", "2", "--", "true"]);
    assert!(code == Some(2) && error.contains("cannot be used with"), "{error}");
    let (code, error) = outcome(&["--json", "/tmp/file", "--", "true"]);
    assert!(code == Some(2) && error.contains("--machine"), "{error}");
}

#[test]
fn a_model_that_does_not_fit_is_said_to() {
    let no_plugin = rig(&["--machine", "opteron-8385-4n", "--cpus-per-node", "1", "--", "true"])
        .env("NODEWISE_MODEL", "/etc/os-release")
        .output()
        .unwrap();
    let error = without_waiting(no_plugin.stderr);
    assert_eq!(no_plugin.status.code(), Some(1), "{error}");
    assert!(error.contains("/etc/os-release"), "{error}");

    // QEMU's clock is known of one version only.
    let directory = tempfile::tempdir().unwrap();
    let qemu = directory.path().join("qemu-system-x86_64");
    fs::write(&qemu, "#!/bin/sh\necho QEMU emulator version 7.2.15\n").unwrap();
    fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let old = rig(&["--machine", "opteron-8385-4n", "--cpus-per-node", "1", "--", "true"])
        .env("PATH", path)
        .output()
        .unwrap();
    let error = without_waiting(old.stderr);
    assert_eq!(old.status.code(), Some(1), "{error}");
    assert_eq!(
        error,
        "nodewise: a modelled machine needs QEMU 10.0, whose clock is known, and this is 7.2\n"
    );
}

#[test]
fn programs_that_cannot_run_have_the_shells_statuses() {
    let (code, message) = outcome(&["--", "no-such-program-anywhere"]);
    assert_eq!(
        (code, message.as_str()),
        (Some(127), "nodewise: no-such-program-anywhere: not found in PATH\n")
    );
    let (code, message) = outcome(&["--", "/etc/os-release"]);
    assert_eq!((code, message.as_str()), (Some(126), "nodewise: /etc/os-release: is not executable\n"));
}

#[test]
fn what_is_missing_is_named_with_what_installs_it() {
    let (code, message) = outcome(&["--kernel", "/no/such/vmlinuz", "--", "true"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("cannot open the guest's kernel /no/such/vmlinuz"), "{message}");

    let without_qemu = rig(&["--", "/bin/true"]).env("PATH", "/nowhere").output().unwrap();
    let message = String::from_utf8(without_qemu.stderr).unwrap();
    assert_eq!(without_qemu.status.code(), Some(1));
    assert!(message.starts_with("nodewise: no QEMU: ") && message.contains("apt-get install"), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn shape_copies_and_streams_reach_the_guest() {
    let output = rig(&[
        "--nodes",
        "1",
        "--cpuless-node=128M",
        "--cpus-per-node",
        "2",
        "--append",
        "quiet nohz=off",
    ])
    .args(["--copy", "/etc/os-release", "--env", "A=b c", "--", "sh", "-c"])
    .arg(
        "cat /sys/devices/system/node/has_cpu /sys/devices/system/node/has_memory; echo $A; grep -c ^ID= \
              /etc/os-release; grep -o nohz=off /proc/cmdline; echo complaint >&2; exit 42",
    )
    .output()
    .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "0\n0-1\nb c\n1\nnohz=off\n");
    assert_eq!(without_waiting(output.stderr), "complaint\n");
    assert_eq!(output.status.code(), Some(42));
}

/// Kernels that `make setup` puts into the user's data directory are found from anywhere; where there is
/// nothing, that is said.
#[test]
fn kernels_of_the_setup_are_found_from_any_directory() {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup");
    let (data, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let done = Command::new(&setup).env("XDG_DATA_HOME", data.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let list = |data: &Path| {
        let mut command = rig(&["--list-kernels"]);
        command.current_dir(empty.path()).env("HOME", empty.path()).env("XDG_DATA_HOME", data);
        command.env_remove("NODEWISE_KERNEL").env_remove("XDG_CACHE_HOME").output().unwrap()
    };
    let found = list(data.path());
    let first = String::from_utf8(found.stdout).unwrap().lines().next().unwrap_or_default().to_owned();
    let kernels = data.path().join("nodewise/kernels/vmlinuz-");
    assert!(found.status.success() && first.starts_with(kernels.to_str().unwrap()), "{first}");
    // A file of one name is listed once, wherever else it lies.
    let name = Path::new(&first).file_name().unwrap().to_owned();
    fs::create_dir_all(empty.path().join("nodewise/kernels")).unwrap();
    fs::copy(&first, empty.path().join("nodewise/kernels").join(&name)).unwrap();
    let mut twice = rig(&["--list-kernels"]);
    twice.current_dir(empty.path()).env("XDG_DATA_HOME", data.path()).env("XDG_CACHE_HOME", empty.path());
    let lines = String::from_utf8(twice.output().unwrap().stdout).unwrap();
    assert_eq!(lines.lines().filter(|line| line.ends_with(name.to_str().unwrap())).count(), 1, "{lines}");
    let none = list(empty.path().join("nothing").as_path());
    // This machine's administrator may keep some for all users.
    if none.stdout.is_empty() {
        let message = String::from_utf8(none.stderr).unwrap();
        assert_eq!(none.status.code(), Some(1));
        assert!(message.starts_with("nodewise: no kernel for the guest: run 'make setup'"), "{message}");
    } else {
        assert!(none.status.success());
    }
}

/// The guest has nodewise in its PATH, wherever this machine has it, and one file for both outputs keeps
/// their order.
#[test]
fn the_guest_has_nodewise_and_the_order_of_outputs() {
    let script = "nodewise --version; echo one >&2; echo two; echo three >&2; echo four";
    let command = format!("exec {} rig --nodes 1 -- sh -c '{script}' 2>&1", cargo_bin("nodewise").display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).env("NODEWISE_RIG_EXCLUSIVE", "1");
    let output = shell.output().unwrap();
    let version = concat!("nodewise ", env!("CARGO_PKG_VERSION"));
    let expected = format!("{version}\none\ntwo\nthree\nfour\n");
    assert_eq!(without_waiting(output.stdout), expected);
}

#[test]
fn the_demo_leaves_the_program_to_go_on_with() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let planned = Command::new("make").args(["--dry-run", "demo"]).current_dir(root).output().unwrap();
    let planned = String::from_utf8(planned.stdout).unwrap();
    assert!(planned.contains("cargo build --release --locked --package nodewise\n"), "{planned}");
}

/// Ended with the test, so that one that fails does not leave its guest to the others.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest whose program says "ready" and then waits for ever, with all temporary files in `directory`.
fn running_guest(directory: &Path) -> Running {
    let script = "echo ready; sleep 1000";
    let child = rig(&["--nodes", "1", "--", "sh", "-c", script])
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Running(child.unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert_eq!(qemus_of(directory), 1);
    child
}

/// QEMU processes of guests whose temporary files are, or were, in `directory`.
fn qemus_of(directory: &Path) -> usize {
    let directory = directory.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    processes.filter(|line| line.contains("-initrd") && line.contains(directory)).count()
}

fn send(signal: Signal, child: &Running) {
    kill_process(Pid::from_child(&child.0), signal).unwrap();
}

#[test]
fn ctrl_c_and_sigterm_leave_no_process_and_no_file() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let directory = tempfile::tempdir().unwrap();
        let mut child = running_guest(directory.path());
        send(signal, &child);
        assert_eq!(child.0.wait().unwrap().code(), Some(status));
        assert_eq!(qemus_of(directory.path()), 0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn not_even_kill_9_leaves_anything() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = running_guest(directory.path());
    send(Signal::KILL, &child);
    assert_eq!(child.0.wait().unwrap().code(), None);
    // The kernel ends QEMU, soon.
    for _ in 0..500 {
        if qemus_of(directory.path()) == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(qemus_of(directory.path()), 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_time_limit_has_timeouts_status() {
    let (code, message) = outcome(&["--nodes", "1", "--time-limit", "0.5", "--", "sleep", "1000"]);
    assert_eq!((code, message.as_str()), (Some(124), "nodewise: the time limit of 0.5 s was reached\n"));
}

/// Under script(1) of bsdutils, which gives a command a terminal and, with -e, exits with its status.
#[test]
fn a_shell_in_the_guest_has_this_terminal() {
    let command = format!("{} rig -t --nodes 1 -- sh", cargo_bin("nodewise").display());
    let mut child = Command::new("script")
        .args(["-q", "-e", "-c", &format!("stty rows 33 cols 99; exec {command}"), "/dev/null"])
        .env("NODEWISE_RIG_EXCLUSIVE", "1")
        .env("PS1", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    // Typed ahead; the guest's terminal echoes what it gets, so that what is printed is told from what is
    // typed by the sum.
    // Ctrl-C right after a shell's own `echo` could come before its next command is in the foreground, and be
    // lost.
    keys.write_all(b"tty; stty size; sh -c 'echo $((6 * 7))ready; exec sleep 1000'\n").unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut until = |mark: &str| {
        let mut seen = String::new();
        while !seen.contains(mark) {
            assert_ne!(output.read_line(&mut seen).unwrap(), 0, "{mark} does not come: {seen}");
        }
        seen
    };
    let seen = until("42ready");
    assert!(seen.contains("/dev/ttyS1\r\n33 99\r\n"), "{seen}");
    keys.write_all(b"\x03").unwrap(); // Ctrl-C ends sleep, in the guest
    keys.write_all(b"echo $((50 + 6))on; exit 3\n").unwrap();
    until("56on");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_terminal_needs_a_terminal() {
    let (code, message) = outcome(&["-t", "--", "sh"]);
    assert_eq!(code, Some(2));
    assert_eq!(message, "nodewise: --terminal: standard input and output are not a terminal\n");
}
