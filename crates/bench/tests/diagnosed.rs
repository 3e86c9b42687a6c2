//! `nodewise doctor -p` tells the sick from the healthy, and names what helps. The truth is the program's own
//! `move_pages`, and for a program of Debian's it is where that was started and sent.

mod guests;

use guests::{programs, run_in};
use nodewise_bench::scenario::{Finished, Place};
use nodewise_rig::Guest;
use serde_json::Value;
use std::time::Duration;

/// `examine NAME COMMAND...` starts a program and leaves the doctor's answer in NAME. The kernel's balancing
/// is off but for sampling.
const EXAMINE: &str = "
echo 0 >/proc/sys/kernel/numa_balancing
examine() { name=$1; shift; \"$@\" & patient=$!; sleep 4; diagnose; }
diagnose() { $NODEWISE doctor -p $patient --seconds 12 --json >$name; kill $patient; wait $patient; }
";

fn examined(guest: Guest, script: &str, files: &[&str]) -> Finished {
    let place = Place::guest_for(Duration::from_secs(400), guest, programs());
    let finished = run_in(&place, &format!("{EXAMINE}{script}"), files);
    println!("{}", finished.stderr);
    finished
}

/// Asserts the answer, and that it was reached by what is true.
#[track_caller]
fn hurt(finished: &Finished, name: &str, remedy: &str, far_percent: f64) {
    let diagnosis = finished.json(name).unwrap();
    println!("{name}: {diagnosis}");
    assert_eq!((&diagnosis["verdict"], &diagnosis["remedy"]), (&"hurt".into(), &remedy.into()), "{name}");
    let said = diagnosis["far_access_percent"].as_f64().unwrap();
    assert!((said - far_percent).abs() <= 5.0, "{name}: {said} % are far, where {far_percent} % is true");
    assert!(diagnosis["command"].as_str().is_some_and(|command| !command.is_empty()), "{name}");
}

#[track_caller]
fn healthy(finished: &Finished, name: &str) {
    let diagnosis = finished.json(name).unwrap();
    println!("{name}: {diagnosis}");
    let silence = (&"healthy".into(), &Value::Null, &Value::Null);
    assert_eq!((&diagnosis["verdict"], &diagnosis["remedy"], &diagnosis["command"]), silence, "{name}");
    assert!(diagnosis["text"].as_str().unwrap().starts_with("Nothing to do here"), "{name}");
}

/// Where the workload's pages lay before it was examined, against the threads that use them.
fn far_percent(finished: &Finished, report: &str) -> f64 {
    100.0 - finished.placements(report).unwrap().first().expect("it reported").local_percent
}

#[test]
fn patients_on_four_nodes() {
    let finished = examined(
        Guest::uniform(4, 1, 512 << 20).copy("/usr/bin/taskset").copy("/usr/bin/perl"),
        "for pattern in private shared-read local idle; do
             examine $pattern $WORKLOAD $pattern --seconds 60 --report $pattern.report; done
         examine false-share $WORKLOAD false-share --huge --seconds 60 --report false-share.report
         # A program that its machine's owner sends away from its memory.
         name=sent; taskset 1 perl -e '$s = \"x\" x (1 << 26); $n += ord(substr($s, int(rand(1 << 26)), 1)) while 1' &
         patient=$!; sleep 4; taskset -p 8 $patient; diagnose",
        &[
            "private",
            "private.report",
            "shared-read",
            "shared-read.report",
            "false-share",
            "false-share.report",
            "local",
            "idle",
            "sent",
        ],
    );
    for (pattern, remedy) in
        [("private", "collocate"), ("shared-read", "interleave"), ("false-share", "split")]
    {
        hurt(&finished, pattern, remedy, far_percent(&finished, &format!("{pattern}.report")));
    }
    hurt(&finished, "sent", "collocate", 100.0);
    for pattern in ["local", "idle"] {
        healthy(&finished, pattern);
    }
}

#[test]
fn patients_on_two_nodes() {
    let finished = examined(
        Guest::uniform(2, 2, 512 << 20),
        "for pattern in private local; do
             examine $pattern $WORKLOAD $pattern --threads-per-node 2 --seconds 60 --report $pattern.report; done",
        &["private", "private.report", "local"],
    );
    hurt(&finished, "private", "collocate", far_percent(&finished, "private.report"));
    healthy(&finished, "local");
}

/// So much memory that where each page of it lies is not asked for, and that the kernel marks it portion by
/// portion. The doctor and then the manager come to a program that has run for a while.
#[test]
fn a_program_of_two_gibibytes() {
    let finished = examined(
        Guest::uniform(4, 1, 2 << 30),
        "patient() { rm -f report; $WORKLOAD private --huge --mebibytes 2048 --seconds 300 --report report & patient=$!
                       until [ -s report ]; do sleep 1; done; }
         last() { tail -n 1 report; }
         patient; $NODEWISE doctor -p $patient --seconds 30 --json >diagnosis; kill $patient; wait $patient
         patient; last >begin; $NODEWISE attach $patient --json summary & manager=$!
         for i in $(seq 150); do
             sleep 1; case $(last) in *'\"local_percent\":9[5-9]'*|*'\"local_percent\":100'*) break; esac
         done
         sleep 30 # until hardly any memory shows for the first time
         kill -INT $manager; wait $manager; last >end; kill $patient",
        &["begin", "diagnosis", "summary", "end"],
    );
    hurt(&finished, "diagnosis", "collocate", far_percent(&finished, "begin"));
    let (end, summary) = (finished.placements("end").unwrap(), finished.json("summary").unwrap());
    println!("{end:?}\n{summary}");
    assert!(end[0].local_percent >= 95.0, "{end:?}");
    for (figure, truth, must) in [("before", "begin", true), ("after", "end", false)] {
        let truth = finished.placements(truth).unwrap()[0].local_percent;
        let said = summary["local_access_percent"][figure].as_f64();
        assert!(said.map_or(!must, |said| (said - truth).abs() <= 5.0), "{figure}: {said:?}, not {truth}");
    }
}
