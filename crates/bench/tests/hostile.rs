//! Programs that mean harm to whoever manages them as root (`hostile/hostile.c`), and those that they would
//! harm.

mod guests;

use guests::{c_program, run_in};
use nodewise_bench::scenario::{Finished, Place};
use nodewise_rig::Guest;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// The program in C, built once.
fn hostile() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| c_program("hostile/hostile.c"))
}

/// Runs a script in a guest with four nodes.
fn guest(script: &str, files: &[&str]) -> Finished {
    guest_for(Duration::from_secs(300), script, files)
}

/// `as USER PROGRAM &` starts one for another user; `settings` shows the kernel's.
fn guest_for(limit: Duration, script: &str, files: &[&str]) -> Finished {
    let before = format!(
        "HOSTILE='{}'; as() {{ user=$1; shift; exec setpriv --reuid $user --regid $user --clear-groups \"$@\"; }}
         khugepaged=/sys/kernel/mm/transparent_hugepage/khugepaged
         knobs=\"/proc/sys/kernel/numa_balancing /sys/kernel/debug/sched/numa_balancing
             $khugepaged/pages_to_scan $khugepaged/scan_sleep_millisecs\"
         settings() {{ grep -r . $knobs; }}\nchmod 777 .\n",
        hostile().display()
    );
    let guest = Guest::uniform(4, 1, 512 << 20).copy(hostile());
    let finished = run_in(&Place::guest_for(limit, guest), &(before + script), files);
    println!("{}\n{}\nstatus: {}", finished.stdout, finished.stderr, finished.status);
    finished
}

#[track_caller]
fn says(finished: &Finished, line: &str) {
    assert!(finished.stdout.lines().any(|said| said == line), "{line}");
}

/// Without Nodewise nobody but its owner can move it: the kernel keeps moving what several processes map for
/// root.
#[test]
fn memory_of_another_user_stays_where_he_put_it() {
    let finished = guest(
        "mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm
         as 65534 $HOSTILE owner /dev/shm/memory 20 & owner=$!
         within 10 test -e /dev/shm/memory; sleep 2
         $NODEWISE run --log log -- setpriv --reuid 1000 --regid 1000 --clear-groups $HOSTILE reader /dev/shm/memory 12
         wait $owner",
        &["log"],
    );
    says(&finished, "owner: 0 of 8192 pages elsewhere, intact");
    let log = finished.lines::<serde_json::Value>("log").unwrap();
    let refused: u64 = log.iter().filter_map(|line| line["outcome"]["not_permitted"].as_u64()).sum();
    assert!(refused > 1000, "it was asked for: {refused}");
}

/// The count of mappings alone says that it is another's, too: his user is the same.
#[test]
fn memory_that_a_process_which_is_not_managed_has_mapped_stays() {
    let finished = guest(
        "mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm
         as 1000 $HOSTILE owner /dev/shm/memory 20 & owner=$!
         within 10 test -e /dev/shm/memory; sleep 2
         $NODEWISE run --log log -- setpriv --reuid 1000 --regid 1000 --clear-groups $HOSTILE reader /dev/shm/memory 12
         wait $owner",
        &["log"],
    );
    says(&finished, "owner: 0 of 8192 pages elsewhere, intact");
    let log = finished.lines::<serde_json::Value>("log").unwrap();
    let refused: u64 = log.iter().filter_map(|line| line["outcome"]["not_permitted"].as_u64()).sum();
    assert!(refused > 1000, "it was asked for: {refused}");
}

/// Its user alone says whose it is: all who have it mapped are managed. The files of a process that lets
/// nobody look into it are root's, and root's memory is not its own for that.
#[test]
#[ignore = "for `make slow`: memory_of_another_user_stays_where_he_put_it, not mapped"]
fn memory_of_another_user_stays_where_he_put_it_though_he_has_not_mapped_it() {
    let finished = guest(
        "mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm
         for user in 65534 0; do
             as $user $HOSTILE owner /dev/shm/memory.$user 24 0644 away & owner=$!
             within 10 test -e /dev/shm/memory.$user; sleep 4; shy=$([ $user = 0 ] && echo shy)
             $NODEWISE run --log log.$user -- sh -c \"
                 for reader in 1 2; do
                     setpriv --reuid 1000 --regid 1000 --clear-groups $HOSTILE reader /dev/shm/memory.$user 12 $shy &
                 done; wait\"
             wait $owner
         done",
        &["log.65534", "log.0"],
    );
    let count = |line: &str| finished.stdout.lines().filter(|said| *said == line).count();
    assert_eq!(count("owner: 0 of 8192 pages elsewhere, intact"), 2);
    for log in ["log.65534", "log.0"] {
        let log = finished.lines::<serde_json::Value>(log).unwrap();
        let refused: u64 = log.iter().filter_map(|line| line["outcome"]["not_permitted"].as_u64()).sum();
        assert!(refused > 1000, "it was asked for: {refused}");
    }
}

/// Two mappings side by side, and two processes with one memory, are not two who have it mapped.
#[test]
fn nobody_counts_twice() {
    let finished = guest(
        "mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm
         as 1000 $HOSTILE owner /dev/shm/memory 20 0666 & owner=$!
         within 10 test -e /dev/shm/memory; sleep 2
         $NODEWISE run -- setpriv --reuid 1000 --regid 1000 --clear-groups $HOSTILE forger /dev/shm/memory 12
         wait $owner",
        &[],
    );
    says(&finished, "owner: 0 of 8192 pages elsewhere, intact");
}

/// The other side of it: those who share memory among themselves are helped as ever.
#[test]
fn memory_that_managed_processes_share_is_spread() {
    let finished = guest(
        "$NODEWISE run --json summary -- setpriv --reuid 1000 --regid 1000 --clear-groups $HOSTILE family 150",
        &["summary"],
    );
    // Not by chance, for a second, on the way elsewhere.
    let ended: Vec<bool> = finished.stdout.lines().rev().take(5).map(|l| l.ends_with(", spread")).collect();
    assert_eq!(ended, [true; 5]);
    let again = finished.json("summary").unwrap()["outcome"]["moved_again"].as_u64();
    assert!(again < Some(1000), "moved again: {again:?}");
}

#[test]
fn whoever_gets_the_number_of_a_process_that_ended_is_left_alone() {
    let finished = guest(
        "for try in 1 2 3; do
             $HOSTILE runaway 40 & pid=$!
             $NODEWISE attach $pid --interval 8s --json summary.$try & nodewise=$!
             wait $pid; echo runaway: $?
             echo $((pid - 1)) >/proc/sys/kernel/ns_last_pid; as 65534 $HOSTILE successor 10 & got=$!
             wait $got; wait $nodewise; echo tried
             [ $got = $pid ] && echo same number && break
         done",
        &["summary.1", "summary.2", "summary.3"],
    );
    let count = |line: &str| finished.stdout.lines().filter(|said| *said == line).count();
    let tries = count("tried");
    assert_eq!(count("runaway: 0"), tries, "Nodewise has begun to move its pages");
    assert_eq!(count("same number"), 1, "of {tries} tries");
    assert_eq!(count("successor: 0 of 16384 pages elsewhere, intact"), tries);
}

#[test]
fn a_signal_reaches_nobody_who_got_the_programs_number() {
    let finished = guest(
        "$NODEWISE run --wait -- sh -c 'echo $$ >number; sleep 60 & exit 0' & nodewise=$!
         within 20 test -s number; read number <number
         within 20 eval '! kill -0 $number'; sleep 1
         echo $((number - 1)) >/proc/sys/kernel/ns_last_pid; as 65534 sleep 61 & got=$!
         [ $got = $number ] && echo same number
         sleep 1; kill -USR1 $nodewise; sleep 1; kill -TERM $nodewise; wait $nodewise; echo status: $?
         kill -0 $got && echo lives",
        &[],
    );
    for line in ["same number", "status: 0", "lives"] {
        says(&finished, line);
    }
}

#[test]
fn memory_that_a_confined_process_has_bound_stays() {
    let finished = guest("$HOSTILE faults 40 & $NODEWISE run --log log -- $HOSTILE bound 35", &["log"]);
    says(&finished, "bound: 0 of 4096 pages elsewhere, intact");
    says(&finished, "not bound: 0 of 4096 pages elsewhere");
    assert!(finished.file("log").unwrap().contains("the process may run on node 0 only"));
}

/// The kernel takes events from a CPU that goes offline, and does not give them back.
#[test]
fn a_cpu_that_was_offline_is_sampled_again() {
    let finished = guest(
        "online=/sys/devices/system/cpu/cpu3/online
         $NODEWISE run -- sh -c \"echo 0 >$online; sleep 4; echo 1 >$online; cat $online; sleep 4; $HOSTILE remote 3 60\"",
        &[],
    );
    says(&finished, "1");
    says(&finished, "remote: 0 of 4096 pages elsewhere");
}

#[test]
fn names_that_are_not_text_are_names() {
    let finished = guest("$NODEWISE run --json summary -- $HOSTILE nameless 20", &["summary"]);
    // A process that is passed over has none. How many there are hangs on how fast the kernel places them.
    assert!(finished.json("summary").unwrap()["samples"].as_u64() > Some(0));
    says(&finished, "nameless: 0 of 4096 pages elsewhere");
}

/// The manager bounds everything that a program can make large. These programs have page faults, threads,
/// pages that lie apart, and mappings with names of 19 kB. Others say something else of their memory each
/// time.
#[test]
fn the_manager_stays_small_and_answers() {
    let finished = guest(
        "peak() { grep VmHWM /proc/$1/status | tr -dc 0-9; }
         settings >before; settings_are_back() { settings | cmp -s - before; }
         mkdir -m 777 deep
         (cd deep; as 1000 $HOSTILE maps 24 100 >../made) & mine=$!; within 60 grep -q mappings made
         for what in 'faults 100' 'sprawl 60000 100' 'crowd 3000 100' 'liar 100'; do as 1000 $HOSTILE $what & mine=\"$mine $!\"; done
         for what in $(seq 64); do as 1000 $HOSTILE perjurer 100 & mine=\"$mine $!\"; done
         sleep 3
         $NODEWISE attach $mine --interval 5s --json summary & nodewise=$!
         sleep 30
         peak $nodewise >peak; $HOSTILE work >work
         read up rest </proc/uptime; kill -TERM $nodewise
         within 10 settings_are_back && echo settings are back; read back rest </proc/uptime; echo $up $back >times
         wait $nodewise; echo status: $?; kill -KILL $mine",
        &["peak", "times", "summary", "made", "work"],
    );
    says(&finished, "status: 0");
    says(&finished, "settings are back");
    let peak: u64 = finished.file("peak").unwrap().trim().parse().unwrap();
    assert!(peak < 256 << 10, "{peak} kB");
    let summary = finished.json("summary").unwrap();
    // How many samples there are, and of how many pages, is a matter of the host's speed.
    println!("{}", summary["bounds_met"]);
    assert!(summary["bounds_met"].as_array().unwrap().iter().any(|met| met == "mappings"), "{summary}");
    assert!(finished.stderr.contains("more mappings than are read"));
    let times = finished.file("times").unwrap().split_whitespace().map(|time| time.parse::<f64>().unwrap());
    let times: Vec<f64> = times.collect();
    let seconds = |text: &str| text.trim().parse::<f64>().unwrap();
    let here = std::process::Command::new(hostile()).arg("work").output().unwrap();
    let slowdown =
        seconds(finished.file("work").unwrap()) / seconds(&String::from_utf8(here.stdout).unwrap());
    println!("{peak} kB; settings are back after {:.2} s, slowdown {slowdown:.1}", times[1] - times[0]);
    assert!(times[1] - times[0] < slowdown.max(1.0), "a second, as long as it is here");
}

/// The programs of the mix, which end by themselves. Each says at its end that its memory is intact.
const KINDS: [&str; 13] = [
    "reader /dev/shm/memory",
    "forger /dev/shm/common",
    "liar",
    "perjurer",
    "faults",
    "crowd 500",
    "sprawl 5000",
    "bound",
    "restless",
    "nameless",
    "huge",
    "misfits",
    "hog",
];

/// Everything at once, for as long as `NODEWISE_HOSTILE_SECONDS` says. Samples come with the CPU time of the
/// programs. A slow host leaves them little, and there it takes longer until memory is placed.
#[test]
fn a_hostile_mix_does_no_harm() {
    let asked = std::env::var("NODEWISE_HOSTILE_SECONDS");
    let lengths = asked.map_or(vec![60, 120], |text| vec![text.parse().unwrap()]);
    let places_memory = |seconds| {
        let (samples, interleaved) = mix(seconds);
        println!("{samples} samples in {seconds} s, {interleaved} decisions to interleave");
        samples > 100 * seconds && interleaved > 10
    };
    assert!(lengths.into_iter().any(places_memory), "too few samples or decisions (above) in each time");
}

/// Samples, and decisions to interleave, while the programs did no harm for so long.
fn mix(seconds: u64) -> (u64, u64) {
    let kinds = KINDS.map(|kind| format!("'{kind}'")).join(" ");
    let script = format!(
        "mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm; mkdir -m 777 deep
         settings >before
         # The hog's children say that they are to be killed first. All others are to live, the shell that
         # waits for this one most of all.
         echo -1000 >/proc/$$/oom_score_adj; echo -900 >/proc/self/oom_score_adj
         as 65534 $HOSTILE owner /dev/shm/memory $(({seconds} + 10)) & owner=$!
         as 1000 $HOSTILE owner /dev/shm/common $(({seconds} + 10)) 0666 & common=$!
         $WORKLOAD private --seconds $(({seconds} + 5)) --mebibytes 32 --bound --report stranger & stranger=$!
         within 10 test -e /dev/shm/memory; sleep 2
         (cd deep; as 1000 $HOSTILE maps 5 {seconds}) & mine=$!
         for what in {kinds}; do as 1000 $HOSTILE $what {seconds} & mine=\"$mine $!\"; done
         as 1000 sh -c \"end=\\$((\\$(date +%s) + {seconds})); while [ \\$(date +%s) -lt \\$end ]; do
             $HOSTILE runaway 5 & echo \\$! >runaway; wait \\$!; echo runaway ended: \\$?; done\" & mine=\"$mine $!\"
         sleep 1
         $NODEWISE attach $mine --json summary & nodewise=$!
         # Until it has ended, so that its last word is its most.
         while now=$(grep VmHWM /proc/$nodewise/status | tr -dc 0-9); [ \"$now\" ]; do
             echo $now >peak; settings | cmp -s - before || touch changed; sleep 1; done &
         # A stranger gets the number of a managed process that has just ended, again and again.
         (end=$(($(date +%s) + {seconds} - 10)); while [ $(date +%s) -lt $end ]; do
             # A thread of the kernel may have got it, and lives for ever.
             until read had <runaway; do sleep 0.1; done 2>/dev/null
             while grep -q runaway /proc/$had/cmdline && [ $(date +%s) -lt $end ]; do sleep 0.1; done 2>/dev/null
             for try in $(seq 20); do
                 echo $((had - 1)) >/proc/sys/kernel/ns_last_pid; as 65534 $HOSTILE successor 2 & got=$!
                 [ $got = $had ] && break
                 kill $got; wait $got; got=; done
             [ \"$got\" ] && {{ echo same number; wait $got; echo successor ended: $?; }}; done) & successors=$!
         wait $nodewise; echo status: $?; wait $successors
         test -e changed && echo settings were changed
         settings | cmp - before && echo settings as before
         wait $stranger; echo stranger: $?; wait $owner; echo owner ended: $?; wait $common; echo common ended: $?"
    );
    let limit = Duration::from_secs(seconds * 2 + 240);
    let finished = guest_for(limit, &script, &["before", "peak", "summary", "stranger"]);
    let lines = |line: &str| finished.stdout.lines().filter(|said| *said == line).count();

    says(&finished, "status: 0");
    let summary = finished.json("summary").unwrap();
    println!("{summary:#}");
    let (moved, same_number) = (lines("runaway ended: 0"), lines("same number"));
    println!("{moved} ended while their pages moved; strangers got the numbers of {same_number}");

    // No stranger's page has moved, and no signal has reached any.
    let ended = |who: &str| {
        let said: Vec<&str> = finished.stdout.lines().filter(|line| line.starts_with(who)).collect();
        assert!(
            said.iter().all(|line| line.ends_with(" 0 of 8192 pages elsewhere, intact")
                || line.ends_with(" 0 of 16384 pages elsewhere, intact")),
            "{said:?}"
        );
        said.len()
    };
    assert_eq!(ended("owner: "), 2);
    for line in ["stranger: 0", "owner ended: 0", "common ended: 0"] {
        says(&finished, line);
    }
    assert_eq!((ended("successor: "), lines("successor ended: 0")), (same_number, same_number));
    // Bound, so that the kernel moves nothing of it either.
    let placements = finished.placements("stranger").unwrap();
    assert!(placements.len() as u64 > seconds / 4, "{} reports", placements.len());
    for placement in placements {
        assert!(
            placement.pages_by_node[0] > 0 && placement.pages_by_node[1..].iter().all(|&pages| pages == 0)
        );
    }

    assert!(finished.file("before").unwrap().lines().count() >= 6, "all settings can be seen");
    says(&finished, "settings were changed");
    says(&finished, "settings as before");
    let peak: u64 = finished.file("peak").unwrap().trim().parse().unwrap();
    let peak = peak.max(summary["own_cost"]["resident_max_bytes"].as_u64().unwrap() >> 10);
    println!("{peak} kB at most");
    assert!(peak > 1 << 10 && peak < 256 << 10, "{peak} kB");

    assert!(!finished.stdout.contains("CHANGED"), "contents");
    assert!(!finished.stderr.contains('\x1b'), "a name that terminals would obey");
    let kinds = KINDS.iter().map(|kind| kind.split(' ').next().unwrap());
    for kind in kinds.filter(|kind| !["bound", "hog"].contains(kind)).chain(["maps"]) {
        says(&finished, &format!("{kind}: intact"));
    }
    says(&finished, "bound: 0 of 4096 pages elsewhere, intact");

    // There was something to bear, and the manager worked all the time.
    says(&finished, "hog: killed for want of memory");
    assert!(same_number >= 1);
    let count = |of: &serde_json::Value, key: &str| of[key].as_u64().unwrap();
    assert!(summary["elapsed_seconds"].as_f64().unwrap() > seconds as f64 * 0.9);
    assert!(count(&summary, "rounds") > seconds / 4, "{summary}");
    // How far the rest gets in a short time depends on the host.
    if seconds >= 600 {
        assert!(count(&summary, "pages_moved") > 2 * seconds);
        assert!(count(&summary["outcome"], "not_permitted") > 1000, "strangers' pages were asked for");
    }
    (count(&summary, "samples"), count(&summary["actions"], "interleaved"))
}
