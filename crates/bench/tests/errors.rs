//! Every fault is told clearly, in one line, with a documented exit code; and every end is a clean one.

mod guests;

use guests::{programs, run};
use nodewise_bench::scenario::Finished;
use nodewise_rig::Guest;
use std::process::Command;

/// The status and the standard error of a `try`.
fn tried<'a>(finished: &'a Finished, name: &str) -> (u8, &'a str) {
    let status = finished.file(&format!("{name}.status")).unwrap().trim().parse().unwrap();
    (status, finished.file(&format!("{name}.err")).unwrap())
}

/// All files of these tries.
fn files(names: &[&str], more: &[&str]) -> Vec<String> {
    let of_tries = names
        .iter()
        .flat_map(|name| [format!("{name}.status"), format!("{name}.err"), format!("{name}.out")]);
    of_tries.chain(more.iter().map(|&file| file.to_owned())).collect()
}

fn run_tries(guest: Guest, script: &str, names: &[&str], more: &[&str]) -> Finished {
    let files = files(names, more);
    let finished = run(guest, script, &files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(finished.status, 0, "{finished:?}");
    finished
}

fn two_nodes() -> Guest {
    Guest::uniform(2, 1, 384 << 20)
}

/// Checks a failed start: status, what the message says, that it is one line, and that nothing was started or
/// left.
#[track_caller]
fn refused(finished: &Finished, name: &str, status: u8, says: &[&str]) {
    let (found, message) = tried(finished, name);
    assert_eq!(found, status, "{name}: {message}");
    for part in says {
        assert!(message.contains(part), "{name}: no '{part}' in {message}");
    }
    // The line before says why the hardware's sampler is not used.
    let lines = message.lines().filter(|line| !line.ends_with("using hint faults"));
    assert_eq!(lines.count(), 1, "{name}: {message}");
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_starts() {
    let names = [
        "paranoid",
        "paranoid-attach",
        "others",
        "own",
        "wrong-pid",
        "one-ended",
        "log",
        "json",
        "log-directory",
        "not-found",
        "not-executable",
        "old-log",
        "read-only",
        "hidden",
        "small-group",
        "no-room",
    ];
    let script = "
        chmod 777 .
        sleep 300 & other=$!
        nobody() { su -s /bin/sh nobody -c \"$*\"; }
        echo 3 >/proc/sys/kernel/perf_event_paranoid
        try paranoid nobody $NODEWISE run --log u.jsonl --json u.json -- touch $PWD/started
        try paranoid-attach nobody $NODEWISE attach $other --duration 5
        echo -1 >/proc/sys/kernel/perf_event_paranoid
        try others nobody $NODEWISE attach $other --duration 5
        mount -o remount,hidepid=2 /proc
        try hidden nobody $NODEWISE attach $other --duration 5
        mount -o remount,hidepid=0 /proc
        try own nobody $NODEWISE run --json $PWD/own.json -- sh -c \"'exit 9'\"
        try wrong-pid $NODEWISE attach 99999
        try one-ended $NODEWISE attach 99999 $other --duration 1
        try log $NODEWISE run --log /no/such/directory/log --json j.json -- touch started
        try json $NODEWISE run --json /no/such/directory/json --log l.jsonl -- touch started
        try log-directory $NODEWISE run --log / -- touch started
        chmod 755 .
        try read-only nobody $NODEWISE run --log $PWD/log -- touch $PWD/started
        try not-found $NODEWISE run --log l.jsonl -- no-such-program
        try not-executable $NODEWISE run --json j.json -- /etc/passwd
        echo old >old.jsonl
        try old-log $NODEWISE run --log old.jsonl -- no-such-program
        mkdir -p /groups; mount -t cgroup2 none /groups; echo +memory >/groups/cgroup.subtree_control
        mkdir /groups/small; echo 64M >/groups/small/memory.max
        small() { sh -c \"echo \\$\\$ >/groups/small/cgroup.procs; exec $*\"; }
        try small-group small $NODEWISE measure --only latency --quick --json
        try no-room small $NODEWISE measure --only latency --quick --mebibytes 60
        cat old.jsonl >old
        rm old.jsonl old
        ls -A | grep -v -e '\\.out$' -e '\\.err$' -e '\\.status$' -e '^left$' >left
        true";
    let f = run_tries(two_nodes(), script, &names, &["left", "own.json"]);
    let perf = ["nodewise: ", "CAP_PERFMON", "kernel.perf_event_paranoid"];
    refused(&f, "paranoid", 77, &perf);
    let (status, message) = tried(&f, "paranoid-attach");
    assert!(status == 77 && message.contains("CAP_"), "{status}: {message}");
    refused(&f, "others", 77, &["belongs to somebody else", "CAP_SYS_PTRACE"]);
    refused(&f, "hidden", 77, &["is hidden", "hidepid", "CAP_SYS_PTRACE"]);
    assert_eq!(
        tried(&f, "own").0,
        9,
        "one's own program needs no capability when perf events are allowed: {f:?}"
    );
    assert_eq!(f.json("own.json").unwrap()["sampler"], "hint-faults");
    refused(&f, "wrong-pid", 1, &["there is no process 99999"]);
    let (status, message) = tried(&f, "one-ended");
    assert!(status == 0 && message.contains("nodewise: there is no process 99999\n"), "{status}: {message}");
    assert!(message.contains("seconds managed by policy"), "{message}");
    refused(&f, "log", 1, &["cannot write /no/such/directory/log", "No such file or directory"]);
    refused(&f, "json", 1, &["cannot write /no/such/directory/json", "No such file or directory"]);
    refused(&f, "log-directory", 1, &["cannot write /", "Is a directory"]);
    refused(&f, "read-only", 1, &["cannot write ", "Permission denied"]);
    refused(&f, "not-found", 127, &["no-such-program"]);
    refused(&f, "not-executable", 126, &["/etc/passwd"]);
    refused(&f, "old-log", 127, &["no-such-program"]);
    let (status, message) = tried(&f, "small-group");
    assert_eq!(status, 0, "{message}");
    let bytes = f.json("small-group.out").unwrap()["buffer_bytes"].as_u64().unwrap();
    assert!((1..=10 << 20).contains(&bytes), "a third of what the group leaves each of two nodes: {bytes}");
    refused(&f, "no-room", 1, &["MiB free for this process, too little to measure with 60 MiB"]);
    assert_eq!(
        f.file("left").unwrap(),
        "own.json\n",
        "no program was started, and no half-written file stays"
    );
}

#[test]
fn the_program_gets_its_signals_and_nodewise_its_status() {
    let names = ["exit", "limit", "killed", "term", "hup", "untrapped", "usr", "interrupt", "dry"];
    let script = "
        try exit $NODEWISE run -- sh -c 'exit 7'
        # Fewer than samplers take: nodewise raises its own limit, not the program's.
        ulimit -S -n 40
        try limit $NODEWISE run -- sh -c 'ulimit -S -n; grep \"open files\" /proc/$PPID/limits'
        ulimit -S -n 1024
        try killed $NODEWISE run -- sh -c 'kill -SEGV $$'
        # signal NAME SIGNAL HANDLER
        signal() {
            rm -f ready
            try $1 $NODEWISE run --json $1.json -- sh -c \"trap '$3' $2; : >ready; while :; do sleep 0.1; done\" & trying=$!
            within 60 [ -e ready ]
            kill -$2 $(pidof nodewise)
            wait $trying
        }
        signal term TERM 'echo got it; exit 3'
        signal hup HUP 'echo got it; exit 4'
        signal usr USR1 'echo got it; exit 5'
        signal untrapped TERM -

        $WORKLOAD private --mebibytes 16 --seconds 100 >/dev/null & target=$!
        before=$(cat /sys/kernel/debug/sched/numa_balancing/scan_period_min_ms)
        changed() { [ $(cat /sys/kernel/debug/sched/numa_balancing/scan_period_min_ms) != $before ]; }
        try interrupt $NODEWISE attach $target --json interrupt.json --log interrupt.jsonl & trying=$!
        within 60 changed
        within 60 grep -q placement interrupt.jsonl
        kill -INT $(pidof nodewise)
        wait $trying
        changed && echo not restored
        kill -0 $target || echo the target is gone
        kill $target

        # The kernel gives samples, and moves nothing.
        try dry $NODEWISE run --dry-run --json dry.json --log dry.jsonl -- \\
            $WORKLOAD private --bound --mebibytes 32 --seconds 20 --report dry.report
        true";
    let more = ["term.json", "hup.json", "interrupt.json", "dry.json", "dry.jsonl", "dry.report"];
    let f = run_tries(two_nodes(), script, &names, &more);
    assert_eq!((f.stdout.as_str(), tried(&f, "exit").0, tried(&f, "killed").0), ("", 7, 128 + 11), "{f:?}");
    let limits = f.file("limit.out").unwrap();
    let numbers = limits.split_ascii_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let [of_program, of_nodewise, _] = numbers.collect::<Vec<_>>()[..] else { panic!("{limits}") };
    assert!(of_program == 40 && of_nodewise > 100, "{limits}");
    for (name, status) in [("term", 3), ("hup", 4), ("usr", 5), ("untrapped", 128 + 15)] {
        assert_eq!(tried(&f, name).0, status, "{name}: {f:?}");
        assert_eq!(f.file(&format!("{name}.out")).unwrap(), if status < 128 { "got it\n" } else { "" });
    }
    assert!(f.json("term.json").is_ok() && f.json("hup.json").is_ok());

    let (status, message) = tried(&f, "interrupt");
    assert_eq!(status, 0, "{message}");
    assert!(message.contains("seconds managed by policy"), "{message}");
    assert!(f.json("interrupt.json").unwrap()["rounds"].as_u64().unwrap() >= 1);

    let (status, message) = tried(&f, "dry");
    assert_eq!(status, 0, "{message}");
    assert!(message.contains("dry run: nothing was moved"), "{message}");
    let summary = f.json("dry.json").unwrap();
    assert_eq!((summary["pages_moved"].as_u64(), summary["outcome"]["moved"].as_u64()), (Some(0), Some(0)));
    assert!(summary["outcome"]["planned"].as_u64().unwrap() > 0, "there was something to move: {summary}");
    let decisions = f.lines::<serde_json::Value>("dry.jsonl").unwrap();
    for line in decisions.iter().filter(|line| line["event"] == "decision") {
        assert_eq!(
            (&line["outcome"]["moved"], &line["outcome"]["only_reported"]),
            (&0.into(), &true.into()),
            "{line}"
        );
    }
}

#[test]
fn malformed_distances_are_named_by_row_and_entry() {
    for (distances, says) in [
        ("10,20;2x,10", "row 2, entry 1: '2x' is not a distance"),
        ("10,20;20", "row 2 has 1 entries for 2 nodes"),
        ("10,20;20,10;1,1", "3 rows for 2 nodes"),
        ("11,20;20,10", "row 1, entry 1: 11 must be 10"),
        ("10,9;20,10", "row 1, entry 2: 9 is not between 11 and 254"),
        ("10,300;20,10", "row 1, entry 2: '300' is not a distance"),
    ] {
        let rig = ["rig", "--nodes", "2", "--distances", distances, "--", "true"];
        let output = Command::new(&programs().nodewise).args(rig).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{distances}: {message}");
        assert!(message.contains("--distances") && message.contains(says), "{distances}: {message}");
    }
}
