//! The behaviour that every command has in common, on whatever machine this is.

use assert_cmd::cargo::cargo_bin;
use nodewise_topology::Topology;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn nodewise(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("nodewise"));
    command.args(arguments);
    command
}

fn message(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Commands that print what they were asked for, and soon.
const PRINTING: [&[&str]; 11] = [
    &["rig", "--list-kernels"],
    &["--help"],
    &["--version"],
    &["topo", "--help"],
    &["topo"],
    &["topo", "--json"],
    &["doctor"],
    &["doctor", "--json"],
    &["completions", "bash"],
    &["sim", "list"],
    &["sim", "list", "--json"],
];

/// With a kernel to list, on any machine.
fn printing(arguments: &[&str]) -> Command {
    let mut command = nodewise(arguments);
    command.env("NODEWISE_KERNEL", "/nonexistent/vmlinuz");
    command
}

#[test]
fn a_full_disk_is_one_clear_error() {
    for arguments in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = printing(arguments).stdout(full).output().unwrap();
        assert_eq!(
            (output.status.code(), message(&output).as_str()),
            (Some(1), "nodewise: cannot write to standard output: No space left on device (os error 28)\n"),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for arguments in PRINTING {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let output = printing(arguments).stdout(OwnedFd::from(writer)).output().unwrap();
        assert_eq!(message(&output), "", "{arguments:?}");
    }
}

/// A report that nobody can be given is lost; the status, and a program that is run, stay as they are.
#[test]
fn reports_that_cannot_be_written_stop_nothing() {
    let this = std::process::id().to_string();
    let reporting: [(&[&str], i32); 6] = [
        (&["run", "--", "sh", "-c", "echo ran; exit 3"], 3),
        (&["run", "--", "/no/such/program"], 127),
        (&["attach", &this, "--json", "/no/such/directory/json"], 1),
        (&["topo", "--from", "/no/such/tree"], 1),
        (&["sim", "run", "--workload", "no-such-program"], 2),
        (&["rig", "--nodes", "0", "--", "true"], 2),
    ];
    for (arguments, status) in reporting {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        for lost in [OwnedFd::from(full), OwnedFd::from(writer)] {
            let output = nodewise(arguments).stderr(lost).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{arguments:?}");
            let ran = if status == 3 { "ran\n" } else { "" };
            assert_eq!(String::from_utf8(output.stdout).unwrap(), ran, "{arguments:?}");
        }
    }
}

/// The program takes nodewise's place at once: there is nobody who could say anything.
#[test]
fn a_program_that_is_only_placed_is_as_under_numactl() {
    for options in ["-N 0 -m 0", "-C 0", "-l", "--policy none", "--policy none -q -i all"] {
        let script = format!("echo $$; exec $0 run {options} -- sh -c 'echo $$ $0; exit 7' \u{e9}");
        let mut command = Command::new("sh");
        let output = command.args(["-c", &script]).arg(cargo_bin("nodewise")).output().unwrap();
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        let (before, after) = said.trim_end().split_once('\n').unwrap_or((&said, ""));
        assert_eq!((after, output.status.code()), (&*format!("{before} \u{e9}"), Some(7)), "{options}");
        assert_eq!(message(&output), "", "{options}");
    }
    for (options, why) in [("--json json", "--json"), ("--log log", "--log"), ("--wait", "--wait")] {
        let words: Vec<&str> = options.split(' ').collect();
        let output =
            nodewise(&["run", "--policy", "none"]).args(words).args(["--", "echo"]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{options}");
        assert!(message(&output).starts_with(&format!("nodewise: {why}: with --policy none")), "{output:?}");
    }
}

/// In the background, after the program has ended with its own status.
#[test]
fn everything_that_a_program_started_can_be_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let script = "exec >/dev/null 2>&1; (sleep 0.5; sh -c ': >ended') & exit 3";
    let mut command = nodewise(&["run", "--wait", "-q", "--", "sh", "-c", script]);
    let output = command.current_dir(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(directory.path().join("ended").exists());
}

const COUNTING: &str = "NODEWISE_TEST_COUNTING";

/// The other half of the tests below: a program that counts signals for a second, and writes how many came.
/// Shells and flags would take two in a row for one.
#[test]
fn a_program_that_counts_signals() {
    if std::env::var_os(COUNTING).is_none() {
        return;
    }
    let heeded = [SIGINT, SIGHUP].into_iter().filter(|&signal| !nodewise_sys::is_ignored(signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(heeded).unwrap();
    std::fs::write("ready", "").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    std::fs::write("count.new", signals.pending().count().to_string()).unwrap();
    std::fs::rename("count.new", "count").unwrap();
}

/// Runs the counting program by this command, and does this to it; returns what it wrote.
fn counted(command: &mut Command, act: impl FnOnce(&mut Child)) -> String {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let test = std::env::current_exe().unwrap();
    let script = format!("exec {} a_program_that_counts_signals --exact", test.display());
    std::fs::write(at("counting"), script).unwrap();
    let command = command.env(COUNTING, "1");
    let command = command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.stdin(Stdio::piped()).spawn().unwrap();
    let wait = |name: &str| {
        let begin = Instant::now();
        while !at(name).exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{name} never comes");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("ready");
    act(&mut running);
    wait("count");
    running.wait().unwrap();
    std::fs::read_to_string(at("count")).unwrap().trim().to_owned()
}

/// Starts a program that heeds signals, also where this test ignores them: in the background, or by nohup.
const HEEDING: [&str; 2] = ["env", "--default-signal=INT,HUP"];

fn heeding(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(HEEDING[0]);
    command.args([HEEDING[1], program]).args(arguments);
    command
}

/// Ctrl-C goes to all of the terminal's foreground group, a hangup to the session's leader, which Nodewise is
/// here.
#[test]
fn signals_of_a_terminal_reach_the_program_once() {
    let run = format!("exec {} {} run -q -- sh counting", HEEDING.join(" "), cargo_bin("nodewise").display());
    let terminal = || {
        let mut script = Command::new("script");
        script.args(["-q", "-c", &run, "/dev/null"]);
        script
    };
    let ctrl_c = |script: &mut Child| script.stdin.as_ref().unwrap().write_all(b"\x03").unwrap();
    assert_eq!(counted(&mut terminal(), ctrl_c), "1");
    assert_eq!(counted(&mut terminal(), |script| script.kill().unwrap()), "1");
}

#[test]
fn signals_to_nodewise_alone_are_passed_on_but_for_those_that_were_ignored() {
    let send = |signal| move |running: &mut Child| nodewise_sys::kill(running.id() as i32, signal).unwrap();
    let program = cargo_bin("nodewise").display().to_string();
    let run = || heeding(&program, &["run", "-q", "--", "sh", "counting"]);
    assert_eq!(counted(&mut run(), send(SIGINT)), "1");
    assert_eq!(counted(&mut run(), send(SIGHUP)), "1");
    // As nohup has it.
    let ignored = |signal: &str| {
        heeding("sh", &["-c", &format!("trap '' {signal}; exec {program} run -q -- sh counting")])
    };
    assert_eq!(counted(&mut ignored("HUP"), send(SIGHUP)), "0");
    assert_eq!(counted(&mut ignored("INT"), send(SIGINT)), "0");
    assert_eq!(counted(&mut ignored("HUP"), send(SIGINT)), "1");
}

/// The program, which heeds no SIGTERM, has ended; then the signal is for nodewise.
#[test]
fn a_signal_ends_the_waiting_and_nothing_else() {
    let script = "trap '' TERM; sleep 1000 >/dev/null & echo $!; exit 3";
    let mut command = nodewise(&["run", "--wait", "-q", "--", "sh", "-c", script]);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut background = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut background).unwrap();
    let status = loop {
        Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        if let Some(status) = running.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(3));
    let ended = Command::new("kill").args(["-KILL", background.trim()]).status().unwrap();
    assert!(ended.success(), "what runs in the background goes on");
}

#[test]
fn what_only_numactl_does_is_said_in_a_line() {
    for options in
        ["--shm=A --dump", "--length 1g --file /dev/shm/a -m 0", "-S A -t -i 0", "--offset=2m", "-uI1"]
    {
        let output = nodewise(&["run"]).args(options.split(' ')).output().unwrap();
        let said = message(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{options}: {said}");
        assert!(said.contains("numactl itself") && said.contains("past an alias"), "{options}: {said}");
    }
    let strict = nodewise(&["run", "--strict", "-l", "echo", "ran", "-t"]).output().unwrap();
    assert_eq!((strict.status.code(), &*strict.stdout), (Some(0), &b"ran -t\n"[..]));
    assert_eq!(message(&strict).lines().count(), 1, "{strict:?}");
}

#[test]
fn the_old_spelling_of_attach_is_answered() {
    let output = nodewise(&["attach", "-p", "1", "--json", "/no/such/directory/json"]).output().unwrap();
    let said = message(&output);
    assert!(
        said.starts_with("nodewise: -p: a node in 'nodewise run'") && said.contains("nodewise attach 1\n"),
        "{said}"
    );
}

#[test]
fn every_command_says_how_it_is_used_and_what_it_exits_with() {
    let commands =
        ["topo", "rig", "run", "attach", "doctor", "measure", "compare", "record-raw", "completions", "sim"];
    for command in commands.into_iter().chain([
        "sim list",
        "sim run",
        "sim matrix",
        "sim sweep",
        "sim merge",
        "sim reproduce",
    ]) {
        let words: Vec<&str> = command.split(' ').collect();
        let output = nodewise(&words).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success() && help.contains("Examples:"), "{command}: {help}");
        let statuses = help.split("Exit status:\n").nth(1).unwrap_or_default();
        // Every command can be called in a wrong way.
        assert!(statuses.lines().any(|line| line.starts_with("  2 ")), "{command}: {help}");
        // Lines that a terminal of 80 columns would break could not be pasted into a shell.
        let examples = help.split("Examples:\n").nth(1).unwrap().split("\n\n").next().unwrap();
        let broken = examples.lines().find(|line| line.len() > 80);
        assert_eq!(broken, None, "{command}");
        let wrong = nodewise(&words).arg("--no-such-option").output().unwrap();
        assert_eq!(wrong.status.code(), Some(2), "{command}");
        assert!(message(&wrong).contains("--no-such-option"), "{command}: {}", message(&wrong));
    }
    let help = nodewise(&["--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for code in ["  0 ", "  1 ", "  2 ", "  77 ", "126", "127", "128 + N"] {
        assert!(help.contains(code), "{code}: {help}");
    }
}

#[test]
fn a_word_that_is_no_utf8_is_named() {
    for words in [&["sim", "run", "--machine"][..], &["rig", "--with"]] {
        let wrong = OsStr::from_bytes(b"f\xff");
        let output = nodewise(words).arg(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(message(&output).starts_with("error: 'f\u{fffd}' is no UTF-8"), "{}", message(&output));
    }
}

#[test]
fn names_of_others_are_neither_styled_nor_lines() {
    let output = nodewise(&["run", "--", "./\u{1b}[31mX\n  1 fake"]).output().unwrap();
    let message = message(&output);
    assert_eq!(
        message.lines().last(),
        Some("nodewise: ./\\u001b[31mX\\u000a  1 fake: not found"),
        "{message}"
    );
}

/// Prose is. A word that is longer keeps a line of its own.
#[test]
fn narrow_terminals_have_narrow_lines() {
    for words in [&["doctor"][..], &["sim", "list"]] {
        let output = nodewise(words).env("COLUMNS", "40").output().unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let has_room = line.chars().count() <= 40 || line.split_whitespace().count() == 1;
            assert!(has_room, "{words:?}: {line}");
        }
    }
}

/// Few machines that run tests have a PMU that samples accesses: those without are told so.
#[test]
fn records_of_a_pmu_are_written_or_there_is_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw.json");
    let output = nodewise(&["record-raw"]).arg(&path).output().unwrap();
    if output.status.success() {
        let recording: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert!(recording["stretches"].is_array(), "{recording}");
    } else {
        assert!(matches!(output.status.code(), Some(1 | 77)));
        assert!(!message(&output).is_empty() && !path.exists());
    }
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = nodewise(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        for word in [
            "topo",
            "rig",
            "run",
            "attach",
            "doctor",
            "measure",
            "compare",
            "record-raw",
            "sim",
            "completions",
            "interleave",
        ] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        // No help has these.
        for word in ["shmmode", "dump-nodes", "patient", "end-with-parent"] {
            assert!(!script.contains(word), "{shell}: {word}");
        }
        // The others complete no values.
        if ["bash", "fish", "zsh"].contains(&shell) {
            for name in ["opteron-8385-4n", "streamcluster", "autonuma", "sockorder"] {
                assert!(script.contains(name), "{shell}: {name}");
            }
        }
    }
}

/// The program runs, and who asked for files has them, though there is nothing to place.
#[test]
fn a_machine_with_one_node_is_told_so_kindly() {
    let directory = tempfile::tempdir().unwrap();
    let script = "cd $DIRECTORY
        $NODEWISE run --json run.json --log log -- sh -c 'exit 7'; echo status $?
        $NODEWISE attach $$ --json attach.json; echo status $?
        $NODEWISE run --json /no/such/directory/json -- echo ran; echo status $?
        tail -n 1000 log run.json attach.json";
    // On a machine with several, a guest has one.
    let mut command = if Topology::live().unwrap().node_count() == 1 {
        Command::new("sh")
    } else {
        let mut rig = nodewise(&["rig", "--nodes", "1", "--copy"]);
        rig.arg(cargo_bin("nodewise")).arg("--copy").arg(directory.path()).args(["--", "sh"]);
        rig.env("NODEWISE_RIG_EXCLUSIVE", "1");
        rig
    };
    command.args(["-c", script]).env("NODEWISE", cargo_bin("nodewise")).env("DIRECTORY", directory.path());
    let output = command.output().unwrap();
    let (said, notes) = (String::from_utf8(output.stdout.clone()).unwrap(), message(&output));
    let (statuses, files) = said.split_once("==> log <==\n").unwrap_or_else(|| panic!("{said}{notes}"));
    assert_eq!(statuses, "status 7\nstatus 0\nstatus 1\n", "{notes}");
    assert_eq!(notes.matches("this machine has one NUMA node").count(), 2, "{notes}");
    let last = notes.lines().last().unwrap();
    assert!(
        last.starts_with("nodewise: cannot write /no/such/directory/json: No such file or directory"),
        "{last}"
    );
    let (log, summaries) = files.split_once("\n\n==> run.json <==\n").unwrap();
    let start: Value = serde_json::from_str(log).unwrap();
    assert_eq!((&start["event"], &start["sampler"]), (&"start".into(), &"none".into()));
    let (run, attach) = summaries.split_once("\n\n==> attach.json <==\n").unwrap();
    for summary in [run, attach] {
        let summary: Value = serde_json::from_str(summary).unwrap();
        assert_eq!((&summary["sampler"], &summary["samples"]), (&"none".into(), &0.into()));
        assert_eq!((&summary["pages_moved"], &summary["actions"]["collocated"]), (&0.into(), &0.into()));
    }
}

#[test]
fn every_command_has_a_manual_page_that_groff_understands() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("made/man1");
    let output = nodewise(&["man", pages.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let shown = |name: &str| {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tutf8", "-Kutf8", "-ww", "-P-cbou"]).arg(pages.join(format!("{name}.1")));
        let output = groff.output().expect("groff-base is installed by `make setup`");
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", message(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    // Options, examples and statuses of each help are on the page.
    let help = |arguments: &[&str]| {
        let output = nodewise(arguments).arg("--help").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let words = |text: &str| text.replace("‐\n", "-\n").split_whitespace().collect::<Vec<_>>().join(" ");
    let mut count = 0;
    for path in std::fs::read_dir(&pages).unwrap() {
        let path = path.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let page = shown(&name);
        let command: Vec<&str> = match name.strip_prefix("nodewise-") {
            Some("record-raw") => vec!["record-raw"],
            Some(rest) => rest.split('-').collect(),
            None => Vec::new(),
        };
        let help = help(&command);
        let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let long =
            options.filter_map(|line| line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--")));
        for option in long {
            assert!(page.replace('‐', "-").contains(option), "{name}(1) has no {option}");
        }
        if let Some((_, examples)) = help.split_once("Examples:\n") {
            let first = examples.lines().next().unwrap();
            assert!(words(&page).contains(&words(first)), "{name}(1) has no example {first}");
        }
        count += 1;
    }
    let commands = help(&[])
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .count();
    // `help` has none, `sim` has six more, and there is nodewise(1) itself.
    assert_eq!(count, commands - 1 + 6 + 1);
}
