//! Programs with known sicknesses on a modelled machine: the gain that a report and the doctor predict,
//! against what the cure gives. The truth is the programs' own clocks, before and after.

mod guests;

use guests::{c_program, programs};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// A modelled machine, and how many of each node's CPUs a guest has: four in all.
#[derive(Clone, Copy)]
struct Machine {
    name: &'static str,
    cpus_per_node: &'static str,
    /// Shell that comes first.
    begin: &'static str,
    /// Scenes whose gain is not predicted to a quarter. docs/results has by how much it is off, and why.
    falls_short: &'static [&'static str],
}

const FOUR_NODES: Machine =
    Machine { name: "opteron-8385-4n", cpus_per_node: "1", begin: "", falls_short: &["sweep"] };
/// It prefetches. Memory is in base pages there: four huge pages do not tell two nodes apart. It is so fast
/// that programs have some 300 samples in as many rounds as on four nodes. Shares of these are 3 points off.
/// Its prefetcher brings more lines near than far, 2 points of the histogram's, and no sample shows them.
const TWO_NODES: Machine = Machine {
    name: "dahu-2n",
    cpus_per_node: "2",
    begin: "more=4; most=12; echo never >/sys/kernel/mm/transparent_hugepage/enabled",
    falls_short: &["sweep"],
};

/// Runs a script in a guest with the time of the machine, whose caches are small. In the script, PATIENTS is
/// the program, and MODEL the machine. Prints a line of what was said of each name: "NAME TEXT".
fn guest(machine: Machine, slow: &str, script: &str) -> BTreeMap<String, String> {
    let patients = c_program("modelled/patients.c");
    let patients = patients.to_str().unwrap();
    let script = format!(
        "cd /tmp; echo 0 >/proc/sys/kernel/numa_balancing
         one_line() {{ echo $1 $(cat $2); }}
         patients() {{ PATIENTS \"$@\"; }}
         {}
         {script}",
        machine.begin
    );
    let script = script.replace("PATIENTS", patients).replace("MODEL", machine.name);
    let mut command = Command::new(&programs().nodewise);
    // The machine's time does not hang on what else runs here, and such a guest is on one CPU of it.
    command.env("NODEWISE_RIG_EXCLUSIVE", "0");
    command.args(["rig", "--machine", machine.name, "--cpus-per-node", machine.cpus_per_node]);
    command.args(["--scale", "0.1", "--slow", slow]);
    let output = command.args(["--copy", patients, "--", "sh", "-c", &script]).output().unwrap();
    let (text, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    println!("{text}\n{error}");
    assert!(output.status.success(), "{error}");
    let named = text.lines().filter_map(|line| line.split_once(' '));
    named.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

impl Machine {
    /// Asserts that a share of time is predicted to a quarter of it.
    #[track_caller]
    fn within_a_quarter(self, scene: &str, what: &str, said: f64, truth: f64) {
        println!("{scene}, {what}: {said:.1} % said, {truth:.1} % true");
        let is_close = (said / truth - 1.0).abs() <= 0.25;
        assert!(
            is_close || self.falls_short.contains(&scene),
            "{scene}, {what}: {said} % instead of {truth}"
        );
    }
}

/// Asserts that the traffic by a program's samples is what the machine counts of all programs' accesses, of
/// which it makes next to all.
#[track_caller]
fn traffic_is_as_counted(scene: &str, report: &Value) {
    let entries = |matrix: &Value| -> Vec<f64> {
        let rows = matrix.as_array().unwrap().iter();
        rows.flat_map(|row| row.as_array().unwrap()).map(|share| share.as_f64().unwrap()).collect()
    };
    let counted = &report["counted"];
    let (sampled, counted) = (entries(&report["traffic_percent"]), entries(&counted["user_traffic_percent"]));
    let off = sampled.iter().zip(&counted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{scene}: an entry of the traffic matrix is {off:.1} points off at most");
    assert!(off <= 5.0, "{scene}: {sampled:?} by samples, {counted:?} counted");
}

/// Asserts that a report knows four threads that make next to all accesses, each of them from one node.
#[track_caller]
fn threads_are_told_apart(report: &Value) {
    let threads = report["threads"].as_array().unwrap().iter();
    let works = |thread: &&Value| thread["accesses_percent"].as_f64() > Some(5.0);
    let working: Vec<&Value> = threads.filter(works).collect();
    let all: f64 = working.iter().map(|thread| thread["accesses_percent"].as_f64().unwrap()).sum();
    assert!(working.len() == 4 && all > 95.0, "{working:#?}");
    let stays = |thread: &Value| {
        thread["runs_on_percent"].as_array().unwrap().iter().any(|share| share.as_f64() > Some(99.0))
    };
    assert!(working.into_iter().all(stays), "{report:#}");
}

/// The share of time that is saved, in percent: of what passed, and of all CPUs.
fn saved(said: &BTreeMap<String, String>, scene: &str, cure: &str) -> [f64; 2] {
    let times = |name: &str| -> Vec<f64> {
        said[name].split_whitespace().map(|seconds| seconds.parse().unwrap()).collect()
    };
    let (sick, cured) = (times(scene), times(&format!("{scene}-{cure}")));
    [0, 1].map(|which| 100.0 * (1.0 - cured[which] / sick[which]))
}

#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
fn what_a_report_says_is_gained_is_gained() {
    reports_are_true(FOUR_NODES);
}

#[test]
#[ignore = "takes five minutes more, and CI has 90"]
fn what_a_report_says_is_gained_is_gained_on_two_nodes() {
    reports_are_true(TWO_NODES);
}

fn reports_are_true(machine: Machine) {
    let script = "
        scene() { scene=$1 rounds=$2; shift 2
            echo $scene $(patients $scene $rounds)
            for cure in $@; do echo $scene-$cure $(patients $scene $rounds $cure); done
            echo $scene-profiled $(nodewise profile --model MODEL -o p -- PATIENTS $scene $rounds)
            nodewise report p; nodewise report p --json >json; one_line $scene-report json; }
        scene slices $((3000000 * ${more:-1})) parallel
        scene stream $((6000000 * ${more:-1})) parallel
        scene table $((1500000 * ${more:-1})) copies interleave
        scene histogram $((3000000 * ${most:-1})) interleave
        scene far 2000000 near
        scene hidden 700000 near
        scene own 12000000";
    let said = guest(machine, "8", script);
    let report = |scene: &str| -> Value { serde_json::from_str(&said[&format!("{scene}-report")]).unwrap() };
    for (scene, remedy, cure) in [
        ("slices", "touch_in_parallel", "parallel"),
        ("stream", "touch_in_parallel", "parallel"),
        ("table", "replicate", "copies"),
        ("histogram", "interleave", "interleave"),
        ("far", "bind_threads", "near"),
    ] {
        let report = report(scene);
        traffic_is_as_counted(scene, &report);
        let row = &report["rows"][0];
        assert_eq!((&row["remedy"], &row["gain_is_bound"]), (&remedy.into(), &false.into()), "{row:#}");
        assert!(row["touched_by"][0].as_str().unwrap().starts_with("fill ("), "{row:#}");
        let gains = ["gain_percent", "slowest_gain_percent"].map(|gain| row[gain].as_f64().unwrap());
        let [time, cpu_time] = saved(&said, scene, cure);
        machine.within_a_quarter(scene, "CPU time", gains[0], cpu_time);
        machine.within_a_quarter(scene, "time", gains[1], time);
        let [longer, _] = saved(&said, scene, "profiled");
        println!("{scene}: profiled, it took {:.2} % longer", -longer);
    }
    // Each load is followed by a store, which a cache serves.
    let histogram = &report("histogram")["rows"][0];
    assert!(histogram["write_percent"].as_f64() > Some(40.0), "{histogram:#}");
    let stream = report("stream");
    threads_are_told_apart(&stream);
    // The machine's own count of what the samples say, from second to second.
    let (mut began, mut counted, mut passed) = (0.0, 0.0, 0.0);
    for moment in stream["over_time"].as_array().unwrap() {
        let ends = moment["seconds"].as_f64().unwrap();
        if let Some(local) = moment["local_access_percent"].as_f64() {
            counted += (ends - began) * local;
            passed += ends - began;
        }
        began = ends;
    }
    let local = counted / passed;
    let sampled = 100.0 - stream["far_percent"].as_f64().unwrap();
    println!("stream: {local:.1} % local by counts, {sampled:.1} % by samples");
    assert!((local - sampled).abs() < 5.0, "{local}, {sampled}");
    for name in ["own", "hidden"] {
        let healthy = report(name);
        assert_eq!(healthy["rows"][0]["remedy"], Value::Null, "{healthy:#}");
    }
    let [hidden, _] = saved(&said, "hidden", "near");
    println!("hidden: {hidden:.1} % true");
    assert!(hidden < 5.0 && report("hidden")["far_percent"].as_f64() > Some(50.0), "{hidden}");
    // The model gives one node's memory to all, and the other cure is worth less.
    let [copies, _] = saved(&said, "table", "copies");
    let [spread, _] = saved(&said, "table", "interleave");
    assert!(spread < copies, "{spread}, {copies}");
}

#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
fn what_the_doctor_says_it_costs_it_costs() {
    the_doctor_is_right(FOUR_NODES);
}

#[test]
fn what_the_doctor_says_one_thread_costs_it_costs() {
    the_doctor_is_right_about_one_thread(FOUR_NODES);
}

#[test]
#[ignore = "takes six minutes more, and CI has 90"]
fn what_the_doctor_says_of_memory_given_back_and_of_healthy_threads_is_true() {
    the_doctor_is_right_about_threads_by_themselves(FOUR_NODES);
}

#[test]
#[ignore = "takes 18 minutes more, and CI has 90"]
fn what_the_doctor_says_it_costs_it_costs_on_two_nodes() {
    the_doctor_is_right(TWO_NODES);
    the_doctor_is_right_about_one_thread(TWO_NODES);
    the_doctor_is_right_about_threads_by_themselves(TWO_NODES);
}

/// A guest that times scenes and has the doctor examine them, who knows idle latencies by the firmware.
fn examined(machine: Machine, script: &str) -> BTreeMap<String, String> {
    let script = format!(
        "scene() {{ echo $1 $(patients $1 $2); echo $1-$3 $(patients $1 $2 $3); }}
         examine() {{ PATIENTS $1 1000000000000 & patient=$!; sleep 1
             nodewise doctor -p $patient --seconds ${{2:-8}} --model MODEL --json >json
             kill $patient; wait $patient 2>/dev/null; one_line $1-doctor json; }}
         {script}"
    );
    guest(machine, "16", &script)
}

/// The doctor's word on a scene.
fn doctor(said: &BTreeMap<String, String>, scene: &str) -> Value {
    serde_json::from_str(&said[&format!("{scene}-doctor")]).unwrap()
}

impl Machine {
    #[track_caller]
    fn the_cost_is_right(self, said: &BTreeMap<String, String>, scene: &str, remedy: &str, cure: &str) {
        let said_of = doctor(said, scene);
        assert_eq!(
            (&said_of["verdict"], &said_of["remedy"]),
            (&"hurt".into(), &remedy.into()),
            "{said_of:#}"
        );
        assert_eq!(said_of["cost_is_bound"], false, "{said_of:#}");
        let (cost, [truth, _]) = (said_of["cost_percent"].as_f64().unwrap(), saved(said, scene, cure));
        self.within_a_quarter(scene, "cost", cost, truth);
    }
}

fn the_doctor_is_right(machine: Machine) {
    let script = "
        scene stream 3000000 parallel; examine stream
        scene sweep 3000000 interleave; scene staggered 3000000 interleave; examine staggered";
    let said = examined(machine, script);
    machine.the_cost_is_right(&said, "stream", "collocate", "parallel");
    machine.the_cost_is_right(&said, "staggered", "interleave", "interleave");
    // The doctor cannot tell where threads are at a time.
    let ([cost, _], said_of) = (saved(&said, "sweep", "interleave"), doctor(&said, "staggered"));
    machine.within_a_quarter("sweep", "cost", said_of["cost_percent"].as_f64().unwrap(), cost);
}

fn the_doctor_is_right_about_one_thread(machine: Machine) {
    let script = "
        scene far 3000000 near; examine far
        echo far-managed $(nodewise run --quiet -- PATIENTS far 6000000)";
    let said = examined(machine, script);
    machine.the_cost_is_right(&said, "far", "collocate", "near");
    // A single thread makes few accesses in a microsecond, but does nothing else.
    let [cure, _] = saved(&said, "far", "near");
    // It runs for twice as long, as the manager takes its time.
    let seconds = |name: &str| -> f64 { said[name].split(' ').next().unwrap().parse().unwrap() };
    let managed = 100.0 * (1.0 - seconds("far-managed") / (2.0 * seconds("far")));
    println!("far: {managed:.1} % saved by Nodewise, {cure:.1} % by the cure");
    assert!(managed > 0.5 * cure, "{managed} of {cure}");
}

fn the_doctor_is_right_about_threads_by_themselves(machine: Machine) {
    let said = examined(machine, "scene unmap 60 keep; examine unmap 5; examine own 4");
    let unmap = doctor(&said, "unmap");
    assert_eq!((&unmap["verdict"], &unmap["remedy"]), (&"hurt".into(), &"keep_memory".into()), "{unmap:#}");
    let [_, truth] = saved(&said, "unmap", "keep");
    machine.within_a_quarter("unmap", "CPU time", unmap["cost_percent"].as_f64().unwrap(), truth);
    let own = doctor(&said, "own");
    assert_eq!(own["verdict"], "healthy", "{own:#}");
}

#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
fn what_compare_says_is_faster_is_faster() {
    // Four huge pages, on four nodes, may happen to be their users' own.
    let script = "
        echo never >/sys/kernel/mm/transparent_hugepage/enabled
        scene() { echo $1 $(patients $1 $2); echo $1-$3 $(patients $1 $2 $3); }
        compare() { nodewise compare --metric '^([0-9.]+)' --less-is-better --repeat 8 \
                --only ${3:-interleave,pin-sequential} --json json --state state -- PATIENTS $1 $2 >table
            one_line $1-compared json; }
        scene slices 150000 interleave; compare slices 150000
        scene table 60000 interleave; compare table 60000
        scene far 40000 near; compare far 40000 node3,far
        compare own 300000";
    let said = guest(FOUR_NODES, "1", script);
    let compared =
        |scene: &str| -> Value { serde_json::from_str(&said[&format!("{scene}-compared")]).unwrap() };
    for (scene, winner, cure) in [
        ("slices", "interleave", "interleave"),
        ("table", "interleave", "interleave"),
        ("far", "node3", "near"),
    ] {
        let answer = compared(scene);
        // Both have its memory on node 3, and chance says which is named.
        let winner = if answer["winner"] == "far" { &"far".into() } else { &winner.into() };
        assert_eq!((&answer["verdict"], &answer["winner"]), (&"hurt".into(), winner), "{answer:#}");
        let gain = 100.0 * (1.0 - 1.0 / answer["speedup"].as_f64().unwrap());
        FOUR_NODES.within_a_quarter(scene, "gain", gain, saved(&said, scene, cure)[0]);
    }
    // Its thread stays on node 3 by its own choice, so that it has no run on node 0's CPUs.
    let far = compared("far");
    assert_eq!((&far["own_cpus"], &far["far"], &far["ace"]), (&true.into(), &Value::Null, &Value::Null));
    assert!(far["remedy"]["command"].as_str().unwrap().starts_with("nodewise run -m 3 -- "), "{far:#}");
    let healthy = compared("own");
    assert_eq!((&healthy["verdict"], &healthy["winner"]), (&"healthy".into(), &Value::Null), "{healthy:#}");
}
