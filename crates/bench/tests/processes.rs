//! The target ends, executes, forks and unmaps while its pages are moved: that is seen for what it is,
//! nothing hangs, nothing leaks.

mod guests;

use guests::{c_program, run, run_in};
use nodewise_bench::report::moved_again;
use nodewise_bench::scenario::{Finished, Place};
use nodewise_rig::Guest;
use serde_json::Value;

fn two_nodes() -> Guest {
    Guest::uniform(2, 1, 512 << 20)
}

fn decisions(finished: &Finished, log: &str) -> Vec<Value> {
    let lines = finished.lines::<Value>(log).unwrap();
    lines.into_iter().filter(|line| line["event"] == "decision").collect()
}

fn count(outcome: &Value, field: &str) -> u64 {
    outcome[field].as_u64().unwrap()
}

/// Every page of every decision is accounted for.
fn check_accounts(decisions: &[Value]) {
    for decision in decisions {
        let outcome = &decision["outcome"];
        if outcome["only_reported"] == true {
            continue;
        }
        let parts = ["moved", "deferred", "busy", "node_full", "vanished", "not_permitted"];
        let sum: u64 = parts.iter().map(|part| count(outcome, part)).sum();
        assert_eq!(sum, count(outcome, "planned"), "{decision}");
        assert_eq!(count(outcome, "not_permitted"), 0, "{decision}");
    }
}

#[test]
fn targets_that_exit_execute_fork_and_unmap_are_followed_and_nothing_leaks() {
    // 60 s of churn in all under one Nodewise, whose open files and memory are looked at early and late.
    // Beside it a program with so much to move, within so small a budget, that pages are moved all the
    // time; the kernel moves none of it.
    let script = "
        cost() { ls /proc/$nodewise/fd | wc -l; awk '/^VmRSS/ { print $2 }' /proc/$nodewise/status; }
        $NODEWISE run --move-budget 1M --log log.jsonl --json json -- sh -c '
            $WORKLOAD private --bound --mebibytes 128 --seconds 60 --report /dev/null &
            for mode in fork exec unmap mmap-churn fork unmap; do
                $CHURN $mode --mebibytes 48 --seconds 10 --life-ms 2500 || exit 1
            done; wait; exit 6' 2>err & nodewise=$!
        sleep 20; cost >early
        sleep 40; cost >late
        wait $nodewise; echo $? >status";
    let script = script.replace("$CHURN", "'$CHURN'").replace("$WORKLOAD", "'$WORKLOAD'");
    let files = ["early", "late", "log.jsonl", "json", "err", "status"];
    let f = run(two_nodes(), &script, &files);
    assert_eq!(f.file("status").unwrap(), "6\n", "{}\n{}", f.stderr, f.file("err").unwrap());
    let numbers = |name: &str| -> Vec<i64> {
        f.file(name).unwrap().lines().map(|line| line.trim().parse().unwrap()).collect()
    };

    let decisions = decisions(&f, "log.jsonl");
    check_accounts(&decisions);
    let summary = f.json("json").unwrap();
    assert!(count(&summary, "pages_moved") > 0, "{summary}");
    println!("{} pages moved", count(&summary, "pages_moved"));

    let (early, late) = (numbers("early"), numbers("late"));
    assert!(late[0] <= early[0] + 4, "open files: {} after 20 s, {} after 60 s", early[0], late[0]);
    assert!(late[1] <= early[1] + 4096, "resident KiB: {} after 20 s, {} after 60 s", early[1], late[1]);
}

#[test]
fn a_process_that_ends_in_the_middle_ends_the_management() {
    // The kernel gives samples, and moves nothing; with so small a budget, the process ends long before
    // Nodewise has.
    let script = "
        program=\"$WORKLOAD private --bound --mebibytes 64 --report /dev/null --seconds\"
        $NODEWISE run --move-budget 1M --log exit.jsonl -- $program 15 2>err || cat err >&2
        for end in KILL TERM; do
            $program 100 & target=$!
            $NODEWISE attach $target --move-budget 1M --log $end.jsonl 2>err & nodewise=$!
            moving() { grep -q '\"deferred\":[1-9]' $end.jsonl; }
            within 60 moving
            kill -$end $target
            wait $nodewise; echo $? >$end.status
            kill -0 $nodewise 2>/dev/null && echo still there
        done
        true";
    let files = ["exit.jsonl", "KILL.jsonl", "KILL.status", "TERM.jsonl", "TERM.status"];
    let f = run(two_nodes(), script, &files);
    assert_eq!((f.status, f.stdout.as_str()), (0, ""), "{f:?}");
    for log in ["exit.jsonl", "KILL.jsonl", "TERM.jsonl"] {
        let decisions = decisions(&f, log);
        check_accounts(&decisions);
        let sum = |field: &str| decisions.iter().map(|d| count(&d["outcome"], field)).sum::<u64>();
        assert!(
            sum("moved") > 0 && sum("deferred") > 0,
            "{log}: it was in the middle of moving: {decisions:?}"
        );
        assert!(sum("moved") < 32 * 256, "{log}: and not at the end");
    }
    assert_eq!((f.file("KILL.status").unwrap(), f.file("TERM.status").unwrap()), ("0\n", "0\n"));
}

#[test]
fn children_are_followed_unless_told_otherwise() {
    let script = "
        program() { echo \"$WORKLOAD private --bound --mebibytes 64 --report /dev/null $*; true\"; }
        $NODEWISE run --json json --log log -- sh -c \"$(program --seconds 100 --after-placed 1)\" 2>err || cat err >&2
        $NODEWISE run --no-children --json json--no-children --log log--no-children -- \\
            sh -c \"$(program --seconds 10)\" 2>err || cat err >&2
        background() { rm -f pid; $NODEWISE run --json background$1 $1 -- sh -c \"
            $WORKLOAD private --bound --mebibytes 64 --report /dev/null --seconds 100 --after-placed 1 >/dev/null &
            echo \\$! >pid; exit 3\" 2>err$1; echo $?; }
        background --wait; kill -0 $(cat pid) 2>/dev/null && echo it is not waited for
        background; kill $(cat pid) || echo it is not left alone";
    let files =
        ["json", "log", "json--no-children", "log--no-children", "background--wait", "err--wait", "err"];
    let f = run(two_nodes(), script, &files);
    assert_eq!((f.status, f.stdout.as_str()), (0, "3\n3\n"), "{f:?}");
    for (file, what_happens) in
        [("err--wait", "managed until it ends"), ("err", "--wait manages until it ends")]
    {
        let said = f.file(file).unwrap();
        assert!(
            said.contains("the program has ended (exit status: 3), and a process that it started"),
            "{said}"
        );
        assert!(said.contains(what_happens), "{said}");
    }
    let waited = f.json("background--wait").unwrap();
    assert!(count(&waited, "pages_moved") > 0, "{waited}");
    let with = f.json("json").unwrap();
    let without = f.json("json--no-children").unwrap();
    // The kernel moves nothing of it, so what was moved was moved by Nodewise.
    assert!(count(&with, "pages_moved") > 0, "{with}");
    // The memory was empty when the child began, though Nodewise may have met it later.
    assert!(with["totals"]["first_touches"].as_u64() >= Some(64 * 256 * 9 / 10), "{with}");
    assert_eq!(count(&without, "pages_moved"), 0, "{without}");
    assert_eq!(decisions(&f, "log--no-children"), Vec::<Value>::new());
}

/// A shell that executes its last command leaves it the children that it has in the background. One of them
/// ends, and its own child becomes Nodewise's.
#[test]
fn who_was_there_before_is_not_managed_nor_waited_for() {
    let script = "
        program=\"$WORKLOAD private --bound --mebibytes 64 --report /dev/null --seconds\"
        sh -c \"
            $program 100 & echo \\$! >pids
            (sleep 8; exec true) & ($program 101 & echo \\$! >>pids; sleep 8) &
            sleep 3
            exec $NODEWISE run --wait --json json --log log -- $program 20\" >/dev/null 2>err
        status=$?; for pid in $(cat pids); do kill $pid || echo $pid was waited for; done; exit $status";
    let f = run(two_nodes(), script, &["json", "log", "pids", "err"]);
    let said = f.file("err").unwrap();
    assert_eq!((f.status, f.stdout.as_str()), (0, ""), "{said}");
    assert!(!said.contains("live"), "{said}");
    let decisions = decisions(&f, "log");
    check_accounts(&decisions);
    let before: Vec<u64> =
        f.file("pids").unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(before.len(), 2);
    assert!(
        decisions.iter().all(|decision| !before.contains(&count(decision, "pid"))),
        "{before:?}: {decisions:?}"
    );
    assert!(count(&f.json("json").unwrap(), "pages_moved") > 0, "the program itself is");
}

#[test]
fn threads_that_go_to_another_node_are_counted() {
    // Each thread but the first has its own CPU, and changes places with the other one twice. Few samples are
    // taken of them once their memory is placed.
    let script = "
        $WORKLOAD private --bound --mebibytes 64 --seconds 28 --report /dev/null &
        places() {
            for thread in $(ls /proc/$(pidof workload)/task | tail -n +2); do
                echo $thread $(awk '/^Cpus_allowed_list/ { print $2 }' /proc/$thread/status)
            done | grep ' [01]$'
        }
        both() { [ $(places | wc -l) = 2 ]; }
        within 30 both
        taskset -p 1 $! >/dev/null || exit 91
        $NODEWISE attach $! --json json 2>err &
        for time in 1 2; do
            sleep 8
            places >places; cat places
            while read -r thread cpu; do taskset -p $((2 - cpu)) $thread >/dev/null || exit 90; done <places
        done
        wait";
    let f = run(two_nodes(), script, &["json", "err"]);
    let moved = f.stdout.lines().count() as u64;
    assert_eq!((f.status, moved), (0, 4), "{f:?}");
    let summary = f.json("json").unwrap();
    assert_eq!(summary["totals"]["thread_moves"].as_u64(), Some(moved), "{summary}");
    let said = f.file("err").unwrap();
    assert!(said.contains("4  times that a thread had gone to another node"), "{said}");
}

/// The kernel gives no hint faults in files that are only read.
#[test]
fn files_that_are_only_read_are_told_of_and_interleaved_when_asked() {
    let weights = c_program("sharing/weights.c");
    let guest = Guest::uniform(4, 1, 512 << 20).copy(&weights);
    let script = format!(
        "mkdir -p /srv; mount -t tmpfs tmpfs /srv
         {0} /srv/private /srv/shared 32 4 & program=$!
         pages() {{ grep -E '/srv/(private|shared)' /proc/$program/numa_maps; }}
         all_on_the_first() {{ [ $(pages | grep -c N0=8192) = 2 ]; }}
         within 30 all_on_the_first || exit 90
         $NODEWISE doctor -p $program --seconds 8 --json >doctor
         $NODEWISE attach $program --duration 5 --json left
         pages
         $NODEWISE attach $program --duration 20 --interleave-files --json spread
         pages
         $NODEWISE attach $program --duration 8 --interleave-files --json again
         kill $program
         {0} /srv/private-1 /srv/shared-1 32 1 & program=$!
         within 30 all_on_the_first || exit 91
         $NODEWISE attach $program --duration 8 --interleave-files --json confined
         kill $program",
        weights.display()
    );
    let f = run_in(&Place::guest(guest), &script, &["doctor", "left", "spread", "again", "confined"]);
    assert_eq!(f.status, 0, "{f:?}");
    let pages: Vec<&str> = f.stdout.lines().collect();
    assert_eq!(pages.len(), 4, "{f:?}");
    let on = |line: &str, node: usize| -> u64 {
        let mut words = line.split(' ');
        words
            .find_map(|word| word.strip_prefix(&format!("N{node}=")))
            .map_or(0, |pages| pages.parse().unwrap())
    };
    for line in &pages[..2] {
        assert_eq!(on(line, 0), 8192, "moved only when asked: {line}");
    }
    for line in &pages[2..] {
        let even = |node| on(line, node).abs_diff(2048) <= 2048 / 50;
        assert!((0..4).all(even), "{line}");
    }
    let share = |summary: &str, node: usize| {
        let files = &f.json(summary).unwrap()["unseen_files"];
        let bytes = files["bytes"].as_u64().unwrap();
        assert!(bytes.abs_diff(64 << 20) <= 2 << 20, "{files}");
        files["shares"][node]["percent"].as_f64().unwrap()
    };
    assert!(
        share("left", 0) > 98.0 && (0..4).all(|node| (share("spread", node) - 25.0).abs() <= 3.0),
        "{f:?}"
    );
    assert_eq!(count(&f.json("again").unwrap(), "pages_moved"), 0, "they lie evenly");
    assert_eq!(count(&f.json("confined").unwrap(), "pages_moved"), 0, "one node alone uses them");
    let doctor = f.json("doctor").unwrap();
    assert_eq!(doctor["verdict"], "unknown", "{doctor}");
    assert!(doctor["command"].as_str().unwrap().ends_with(" --interleave-files"), "{doctor}");
}

/// They read it all over, so that no node is right for any of its pages. The kernel's balancing alone moves
/// them to whoever faults on them first, and leaves them uneven.
#[test]
fn a_file_that_four_processes_have_mapped_is_spread_once() {
    spread_once("/dev/shm", "");
}

/// On any other file system, too: who has it mapped is asked there as well. The first process has none of its
/// pages, as a database's has.
#[test]
#[ignore = "for `make slow`: a_file_that_four_processes_have_mapped_is_spread_once, elsewhere"]
fn a_file_elsewhere_that_four_processes_have_mapped_is_spread_once() {
    spread_once("/srv", "apart");
}

fn spread_once(directory: &str, how: &str) {
    let readers = c_program("sharing/readers.c");
    let guest = Guest::uniform(4, 1, 512 << 20).copy(&readers);
    let script = format!(
        "mkdir -p {directory}; mount -t tmpfs tmpfs {directory}
         $NODEWISE run --json summary --log log -- {} {directory}/file 32 60 {how} >pages",
        readers.display()
    );
    let f = run_in(&Place::guest(guest), &script, &["pages", "summary", "log"]);
    assert_eq!(f.status, 0, "{f:?}");
    let pages = f.file("pages").unwrap();
    println!("{pages}\n{}", f.stderr);
    let shares = |line: &str| -> Vec<f64> {
        line.split(' ').skip(1).map(|pages| pages.parse::<f64>().unwrap() / (32.0 * 256.0)).collect()
    };
    assert!(shares(pages.lines().next().unwrap())[0] >= 0.9, "it lies on node 0 at first: {pages}");
    let last = shares(pages.lines().last().unwrap());
    assert!(last.len() == 4 && last.iter().all(|share| (share - 0.25).abs() <= 0.05), "{last:?}\n{pages}");
    assert_eq!(moved_again(&f.lines::<Value>("log").unwrap()), 0, "{pages}");
}
