//! `nodewise profile` and `nodewise report`: which code touched memory first, which nodes use it, and what to
//! change. The truth is the programs' own source.

mod guests;

use guests::{c_program, run_in};
use nodewise_bench::scenario::{Finished, Place};
use nodewise_rig::Guest;
use serde_json::Value;
use std::time::Duration;

/// `profile NAME COMMAND...` leaves the report in NAME, as JSON and, in NAME.text, for people. Huge pages are
/// off: a hint fault would tell of 512 pages at once.
const PROFILE: &str = "
echo never >/sys/kernel/mm/transparent_hugepage/enabled
profile() { name=$1; shift; $NODEWISE profile -o $name.profile \"$@\" >/dev/null; echo $? >$name.status
    stat -c %a $name.profile >$name.mode; report; }
report() { $NODEWISE report $name.profile --json >$name; $NODEWISE report $name.profile >$name.text; }
";

/// The memory that this function touched first.
#[track_caller]
fn touched_by<'a>(report: &'a Value, function: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    let is_its = |row: &&Value| row["touched_by"][0].as_str().is_some_and(|by| by.contains(function));
    rows.iter().find(is_its).unwrap_or_else(|| panic!("{function}: {report:#}"))
}

/// Asserts a figure of the four nodes, to 15 of a hundred.
#[track_caller]
fn about(row: &Value, figure: &str, truth: [f64; 4]) {
    let said = row[figure].as_array().unwrap().iter().map(|percent| percent.as_f64().unwrap());
    let off = said.zip(truth).map(|(said, truth)| (said - truth).abs()).fold(0.0, f64::max);
    assert!(off <= 15.0, "{figure}: {row:#}");
}

/// Asserts that memory was all touched by one thread on node 0, and what would help.
#[track_caller]
fn touched_on_node_0(row: &Value, pages: u64, remedies: &[&str]) {
    assert!(remedies.contains(&row["remedy"].as_str().unwrap_or("none")), "{row:#}");
    assert_eq!(row["touching_threads"], 1, "{row:#}");
    let touched = row["touched_pages"].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap());
    let touched: Vec<u64> = touched.collect();
    assert!(touched[0] > pages * 95 / 100 && touched[0] <= pages + 16, "{row:#}");
    assert_eq!(touched[1..], [0, 0, 0]);
    about(row, "lies_on_percent", [100.0, 0.0, 0.0, 0.0]);
    // At most what the queue at one of four nodes takes.
    let gain = row["gain_percent"].as_f64().unwrap();
    assert!((5.0..=76.0).contains(&gain), "{row:#}");
}

/// Asserts that each node uses a quarter, as threads in step do, and so finds three quarters far.
#[track_caller]
fn used_in_slices(row: &Value) {
    about(row, "used_from_percent", [25.0; 4]);
    let far = row["far_percent"].as_f64().unwrap();
    assert!((far - 75.0).abs() <= 15.0, "{row:#}");
}

fn profiled(guest: Guest, script: &str, files: &[&str]) -> Finished {
    let place = Place::guest_for(Duration::from_secs(400), guest);
    let finished = run_in(&place, &format!("{PROFILE}{script}"), files);
    println!("{}", finished.stderr);
    finished
}

#[test]
fn sick_programs_are_told_apart_and_the_healthy_one_is_left_alone() {
    let sick = c_program("profiled/sick.c");
    let guest = Guest::uniform(4, 1, 512 << 20).copy(&sick);
    let script = format!(
        "profile sick -- {sick} 12
         profile private -- $WORKLOAD private --mebibytes 64 --seconds 12 --in-step
         profile local -- $WORKLOAD local --mebibytes 64 --seconds 8
         # The kernel migrates huge pages meanwhile, and threads wait for them.
         profile update -- $WORKLOAD shared-update --huge --mebibytes 64 --seconds 12
         echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
         profile parts -- $WORKLOAD false-share --mebibytes 64 --seconds 12
         # One that runs already: nobody saw who touched its memory.
         echo 0 >/proc/sys/kernel/numa_balancing
         $WORKLOAD private --mebibytes 64 --seconds 60 --in-step >/dev/null & sleep 3
         profile running -p $! --seconds 8; kill $!",
        sick = sick.display()
    );
    let names = ["sick", "private", "local", "update", "parts", "running"];
    let files: Vec<String> = ["", ".text", ".status", ".mode"]
        .iter()
        .flat_map(|suffix| names.map(|name| format!("{name}{suffix}")))
        .collect();
    let finished = profiled(guest, &script, &files.iter().map(String::as_str).collect::<Vec<_>>());
    for name in names {
        println!("{}", finished.file(&format!("{name}.text")).unwrap());
        assert_eq!(finished.file(&format!("{name}.mode")).unwrap(), "600\n", "addresses are private");
    }
    let [sick, private, local, update, parts, running] = names.map(|name| finished.json(name).unwrap());
    assert_eq!(finished.file("sick.status").unwrap(), "7\n", "the program's own");
    let slices = touched_by(&sick, "fill_slices (sick)");
    touched_on_node_0(slices, 16384, &["touch_in_parallel"]);
    used_in_slices(slices);
    // A page that all use faults for whoever comes first after the kernel has marked it.
    let table = touched_by(&sick, "load_table (sick)");
    touched_on_node_0(table, 16384, &["replicate", "interleave"]);
    assert_eq!(table["memory"], "table (sick)", "a global variable has its name");
    let used = table["used_from_percent"].as_array().unwrap();
    assert!(used.iter().all(|percent| percent.as_f64() > Some(5.0)), "{table:#}");
    let own = touched_by(&sick, "allocate_own (sick)");
    assert_eq!((&own["remedy"], &own["touching_threads"]), (&Value::Null, &4.into()), "{own:#}");
    let touched = own["touched_pages"].as_array().unwrap();
    assert!(touched.iter().all(|pages| (3900..=4110).contains(&pages.as_u64().unwrap())), "{own:#}");
    assert!(own["far_percent"].as_f64().unwrap() < 5.0, "{own:#}");

    // Rust's own library has touched it for that function.
    let slices = touched_by(&private, "(workload.rs:");
    touched_on_node_0(slices, 16384, &["touch_in_parallel"]);
    used_in_slices(slices);
    let shared = touched_by(&update, "(workload.rs:");
    touched_on_node_0(shared, 16384, &["interleave"]);
    assert!(shared["accesses_percent"].as_f64() > Some(95.0), "{update:#}");
    // Each node uses a part of every huge page.
    let parts = touched_by(&parts, "(workload.rs:");
    assert_eq!(parts["remedy"], "split", "{parts:#}");
    assert!(parts["part_user_percent"].as_f64() > Some(90.0), "{parts:#}");
    let changes = |report: &Value| {
        report["rows"].as_array().unwrap().iter().filter(|row| row["remedy"].is_string()).count()
    };
    assert_eq!(changes(&local), 0, "{local:#}");
    assert!(finished.file("local.text").unwrap().contains("Nothing to do here"));
    let row = &running["rows"][0];
    assert_eq!(
        (&row["remedy"], &row["touched_by"]),
        (&"touch_in_parallel".into(), &Value::Array(vec![])),
        "{row:#}"
    );
    about(row, "lies_on_percent", [100.0, 0.0, 0.0, 0.0]);
    used_in_slices(row);
}

/// The memory that a function asked for, by a helper of its own.
#[track_caller]
fn asked_for_by<'a>(report: &'a Value, function: &str) -> &'a Value {
    let name = format!("site: helper (asked), called by {function} (asked)");
    let mut rows = report["rows"].as_array().unwrap().iter();
    rows.find(|row| row["memory"] == *name).unwrap_or_else(|| panic!("{name}: {report:#}"))
}

/// Grandchildren of the program begin within milliseconds. The kernel's account of them is the truth.
#[test]
fn cpu_time_is_that_of_grandchildren_too() {
    let script = r#"
        profile many -- sh -c '
            for each in 1 2 3 4; do sh -c "seq 100000 | sort -r | tail -n 1" & done; wait
            cut -d" " -f14-17 /proc/$$/stat >ticks'"#;
    let finished = profiled(Guest::uniform(2, 1, 512 << 20), script, &["many", "many.text", "ticks"]);
    // Its own and its children's, in user mode and in the kernel, in hundredths of a second.
    let ticks = finished.file("ticks").unwrap();
    let ticks: Vec<f64> = ticks.split_whitespace().map(|ticks| ticks.parse().unwrap()).collect();
    let [user, kernel, user_of_children, kernel_of_children] = ticks[..] else { panic!("{ticks:?}") };
    let (kernel, all) = (kernel + kernel_of_children, ticks.iter().sum::<f64>());
    println!("{ticks:?}\n{}", finished.file("many.text").unwrap());
    assert!(user_of_children > 10.0 * user, "most is the grandchildren's: {ticks:?}");
    let seen = &finished.json("many").unwrap()["kernel"];
    let (seconds, accounted_s) = (seen["samples"].as_f64().unwrap() * 0.004, all / 100.0);
    let (percent, accounted) = (seen["kernel_percent"].as_f64().unwrap(), 100.0 * kernel / all);
    println!("{seconds} s of {accounted_s} s, {percent} % of {accounted} %");
    // No sample is taken while the host runs something else.
    assert!((0.5..1.2).contains(&(seconds / accounted_s)), "{seconds} s of {accounted_s} s: {seen}");
    assert!((percent - accounted).abs() < 10.0, "{percent} % of {accounted} %: {seen}");
}

#[test]
fn memory_is_named_by_the_code_that_asked_for_it() {
    let asked = c_program("profiled/asked.c");
    let guest = Guest::uniform(4, 1, 512 << 20).copy(&asked);
    let script = format!(
        "profile with --allocations -- {asked} 10
         profile without -- {asked} 6",
        asked = asked.display()
    );
    let files = ["with", "with.text", "with.status", "without", "without.text"];
    let finished = profiled(guest, &script, &files);
    println!("{}\n{}", finished.file("with.text").unwrap(), finished.file("without.text").unwrap());
    let (with, without) = (finished.json("with").unwrap(), finished.json("without").unwrap());
    assert_eq!(finished.file("with.status").unwrap(), "0\n");
    for function in ["make_slices", "make_table"] {
        let row = asked_for_by(&with, function);
        assert!(row["touched_by"][0].as_str().unwrap().starts_with("touch (asked"), "{row:#}");
        let touched: Vec<u64> =
            row["touched_pages"].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap()).collect();
        assert!(touched[0].abs_diff(12288) <= 128 && touched[1..] == [0, 0, 0], "{row:#}");
        assert_eq!(row["touching_threads"], 1, "{row:#}");
        about(row, "lies_on_percent", [100.0, 0.0, 0.0, 0.0]);
        let used = row["used_from_percent"].as_array().unwrap();
        assert!(used.iter().all(|percent| percent.as_f64() > Some(5.0)), "{row:#}");
        let allocated = &row["allocated"];
        let figures = ["blocks", "bytes", "most_bytes"].map(|figure| allocated[figure].as_u64().unwrap());
        assert_eq!(figures, [1, 48 << 20, 48 << 20], "{row:#}");
    }
    let sites = with["sites"].as_array().unwrap();
    assert!(sites.iter().any(|site| site["by"][1] == "make_scratch (asked)"), "{sites:#?}");
    // Both in one row, as one function has touched both.
    let row = touched_by(&without, "touch (asked");
    assert_eq!((&row["memory"], &row["allocated"]), (&"anonymous memory".into(), &Value::Null), "{row:#}");
    assert!(without["sites"].as_array().unwrap().is_empty());
}
