//! `nodewise doctor -p` tells the sick from the healthy, and names what helps. `nodewise top` shows where
//! they run and lie. The truth is the program's own `move_pages`, and for a program of Debian's it is where
//! that was started and sent.

mod guests;

use guests::run_in;
use nodewise_bench::scenario::{Finished, Place};
use nodewise_rig::{Device, Guest, Node};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// `examine NAME COMMAND...` starts a program and leaves the doctor's answer in NAME, and in NAME.top what
/// `nodewise top` shows of it before. The kernel's balancing is off but for sampling.
const EXAMINE: &str = "
echo 0 >/proc/sys/kernel/numa_balancing
examine() { name=$1; shift; \"$@\" & patient=$!; sleep 4; diagnose; }
diagnose() { $NODEWISE top --json -n 1 -i 2 -p $patient >$name.top
    $NODEWISE doctor -p $patient --seconds 12 --json >$name; kill $patient; wait $patient; }
";

fn examined(guest: Guest, script: &str, files: &[&str]) -> Finished {
    let place = Place::guest_for(Duration::from_secs(400), guest);
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

/// Asserts the shares of CPU time and memory of the patient on each node that `nodewise top` shows, and its
/// share of far accesses.
#[track_caller]
fn seen(finished: &Finished, name: &str, runs_on: [f64; 4], lies_on: [f64; 4], far_percent: f64) {
    let look = finished.json(&format!("{name}.top")).unwrap();
    // It has the most far accesses but for top itself, which may be far from its own memory.
    let patient =
        look["processes"].as_array().unwrap().iter().find(|process| process["program"] != "nodewise");
    let patient = patient.unwrap();
    println!("{name}: {patient}, {}", look["nodes"]);
    for (figure, truth) in [("runs_on", runs_on), ("lies_on", lies_on)] {
        let said = patient[figure].as_array().unwrap().iter().map(|share| share.as_f64().unwrap());
        let off = said.zip(truth).map(|(said, truth)| (said - truth).abs()).fold(0.0, f64::max);
        assert!(off <= 0.1, "{name}: {figure}: {patient}");
    }
    let said = patient["far_at_least_percent"].as_f64().unwrap();
    assert!((said - far_percent).abs() <= 10.0, "{name}: {said} % are far at least, not {far_percent}");
    // All of its data is in one mapping. Perl has a copy of its string.
    let region = &look["regions"][0];
    let bytes = f64::from(if name == "sent" { 128 << 20 } else { 64 << 20 });
    let resident = region["resident_bytes"].as_f64().unwrap();
    assert!((resident / bytes - 1.0).abs() < 0.05, "{name}: {region}");
    let threads = patient["threads"].as_array().unwrap();
    let nodes: BTreeSet<u64> = threads.iter().filter_map(|thread| thread["node"].as_u64()).collect();
    let expected: BTreeSet<u64> = (0..4).filter(|&node| runs_on[node as usize] > 0.0).collect();
    assert!(expected.is_subset(&nodes), "{name}: {threads:?}");
}

/// Where the workload's pages lay before it was examined, against the threads that use them.
fn far_percent(finished: &Finished, report: &str) -> f64 {
    100.0 - finished.placements(report).unwrap().first().expect("it reported").local_percent
}

#[test]
fn patients_on_four_nodes() {
    let finished = examined(
        Guest::uniform(4, 1, 512 << 20).copy("/usr/bin/taskset").copy("/usr/bin/perl"),
        // In step, or a thread that the host gave less time has fewer of the accesses than of the pages. Not
        // so with parts of huge pages: one thread in step is always ahead there, and has all hint faults.
        "for pattern in private shared-read; do
             examine $pattern $WORKLOAD $pattern --in-step --seconds 60 --report $pattern.report; done
         name=false-share; examine $name $WORKLOAD $name --seconds 60 --report $name.report
         for pattern in local idle; do examine $pattern $WORKLOAD $pattern --seconds 60 --report $pattern.report; done
         name=shared-update; examine $name $WORKLOAD $name --huge --seconds 60 --report $name.report
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
            "shared-update",
            "shared-update.report",
            "local",
            "idle",
            "sent",
            "private.top",
            "shared-read.top",
            "false-share.top",
            "local.top",
            "sent.top",
        ],
    );
    let (everywhere, first, last) = ([0.25; 4], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]);
    for pattern in ["private", "shared-read", "false-share"] {
        seen(&finished, pattern, everywhere, first, 75.0);
    }
    seen(&finished, "local", everywhere, everywhere, 0.0);
    seen(&finished, "sent", last, first, 100.0);
    for (pattern, remedy) in [
        ("private", "collocate"),
        ("shared-read", "interleave"),
        ("false-share", "split"),
        ("shared-update", "interleave"),
    ] {
        hurt(&finished, pattern, remedy, far_percent(&finished, &format!("{pattern}.report")));
    }
    hurt(&finished, "sent", "collocate", 100.0);
    for pattern in ["local", "idle"] {
        healthy(&finished, pattern);
    }
}

/// Three CPUs of four are on node 0, where the memory is, and so are three quarters of its uses: each CPU
/// does as much. The threads are as many on each node.
#[test]
fn users_with_unlike_cpu_time() {
    let node = |cpus| Node { cpus, memory_bytes: 512 << 20 };
    let finished = examined(
        Guest::new([node(3), node(1)]),
        "examine unlike $WORKLOAD shared-read --threads-per-node 3 --seconds 60 --report unlike.report",
        &["unlike"],
    );
    hurt(&finished, "unlike", "interleave", 25.0);
}

/// A disk on node 0, read from node 3 and from node 0.
#[test]
fn a_disk_that_is_far() {
    let guest = Guest::uniform(4, 1, 512 << 20).device(0, Device::Nvme);
    let finished = examined(
        guest.copy("/usr/bin/taskset").copy("/usr/bin/dd"),
        "reader='while :; do dd if=/dev/nvme0n1 of=/dev/null bs=1M iflag=direct 2>dd; done'
         examine far taskset 8 sh -c \"$reader\"; examine near taskset 1 sh -c \"$reader\"",
        &["far", "near"],
    );
    let far = finished.json("far").unwrap();
    let named = (&far["verdict"], &far["remedy"], &far["evidence"]["disk"]["node"]);
    assert_eq!(named, (&"unknown".into(), &"run_near_disk".into(), &0.into()), "{far:#}");
    assert!(far["command"].as_str().unwrap().starts_with("taskset -apc 0 "), "{far:#}");
    let near = finished.json("near").unwrap();
    assert_eq!(near["remedy"], Value::Null, "{near:#}");
}

#[test]
#[ignore = "for `make slow`: patients_on_four_nodes on other nodes"]
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

/// The kernel's balancing was on before, has done what it can, and goes on at the pace that it has come to.
#[test]
#[ignore = "takes two minutes more, and CI has 90"]
fn programs_that_the_kernel_has_placed() {
    let finished = examined(
        Guest::uniform(2, 1, 512 << 20),
        "echo 1 >/proc/sys/kernel/numa_balancing
         for pattern in private shared-write; do
             $WORKLOAD $pattern --seconds 300 & patient=$!; sleep 10
             $NODEWISE doctor -p $patient --seconds 16 --json >$pattern; kill $patient; wait $patient; done",
        &["private", "shared-write"],
    );
    let known = |name: &str| {
        let diagnosis = finished.json(name).unwrap();
        println!("{name}: {diagnosis}");
        let text = diagnosis["text"].as_str().unwrap();
        let is_known = diagnosis["verdict"] != "unknown";
        // Twelve seconds after the first look, and then up to four times as long.
        let has_waited = diagnosis["evidence"]["seconds"].as_f64().unwrap() > 36.0;
        assert!(is_known || (has_waited && text.contains("has its old pace")), "{diagnosis:#}");
        is_known.then_some(diagnosis)
    };
    if known("private").is_some() {
        healthy(&finished, "private");
    }
    if let Some(shared) = known("shared-write") {
        let far = shared["far_access_percent"].as_f64().unwrap();
        assert!((far - 50.0).abs() <= 5.0 && shared["remedy"] != "collocate", "{shared:#}");
    }
}

/// So much memory that where each page of it lies is not asked for, and that the kernel marks it portion by
/// portion. The doctor and then the manager come to a program that has run for a while.
#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
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
