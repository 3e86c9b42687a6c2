//! Real programs from Debian's packages: their memory follows them, 95 % of it at least.

use nodewise_bench::follow::{Followed, redis, stress_ng, table};
use nodewise_bench::scenario::{Place, Programs};
use nodewise_rig::Guest;
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| Programs::build().expect("the programs build"))
}

#[track_caller]
fn follows(runs: &[Followed]) {
    println!("{}", table(runs));
    let nodewise = runs.iter().find(|run| run.placer == "nodewise").expect("it ran under nodewise");
    for run in runs {
        let first = &run.moments[0];
        assert!(first.pages > 8192, "{} had something to move: {first:?}", run.program);
        assert!(first.local_percent < 50.0, "{} was misplaced at first: {first:?}", run.program);
    }
    assert!(nodewise.last_percent() >= 95.0, "{:#?}\n{}", nodewise.moments, nodewise.log);
}

/// Before and after in the summary are within 5 points of what the kernel says of the program's own pages.
#[test]
fn redis_follows_to_the_node_it_runs_on() {
    let runs = redis(programs()).unwrap();
    follows(&runs);
    let nodewise = runs.iter().find(|run| run.placer == "nodewise").expect("it ran under nodewise");
    let said = nodewise.said.expect("it left a summary");
    // Nodewise comes a moment after the program was sent to its node, where the kernel's balancing has begun
    // to move pages.
    let at_first = nodewise.moments.iter().take_while(|moment| moment.seconds <= 2.0);
    let at_first = at_first.map(|moment| moment.local_percent).fold(0.0, f64::max);
    let truth =
        [(nodewise.moments[0].local_percent, at_first), (nodewise.last_percent(), nodewise.last_percent())];
    for (said, (least, most)) in said.into_iter().zip(truth) {
        let is_true = said.is_some_and(|said| (least - 5.0..=most + 5.0).contains(&said));
        assert!(is_true, "{said:?}, and {least} to {most} is true");
    }
}

#[test]
fn workers_of_stress_ng_follow_to_theirs() {
    follows(&stress_ng(programs()).unwrap());
}

/// The share of local accesses of a line of `unpinned.py`, if pages lay as they did `when`, and its passes.
fn local(line: &Value, when: &str) -> (f64, f64) {
    let counts = |field: &str| -> Vec<f64> {
        line[field].as_array().unwrap().iter().map(|count| count.as_f64().unwrap()).collect()
    };
    let (passes, pages) = (counts("passes"), counts(when));
    let local: f64 = passes.iter().zip(&pages).map(|(passes, pages)| passes * pages).sum();
    (100.0 * local / pages.iter().sum::<f64>(), passes.iter().sum())
}

/// The summary's before and after are within 5 points of the truth for unpinned processes in another
/// language. The truth is where they ran in the last seconds, and where `move_pages` found their pages.
#[test]
fn figures_are_true_of_python_processes_that_nobody_has_bound() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/unpinned.py");
    let python = std::fs::canonicalize("/usr/bin/python3").expect("python3 is installed");
    let library = Path::new("/usr/lib").join(python.file_name().unwrap());
    let guest = Guest::uniform(4, 1, 512 << 20).copy(&python).copy(&library).copy(script);
    let run = format!("$NODEWISE run --json summary -- {} {script} 45 >report", python.display());
    let finished = Place::guest(guest, programs()).run(programs(), &run, &["report", "summary"]).unwrap();
    println!("{}", finished.stderr);
    let lines: Vec<Value> = finished.lines("report").unwrap();
    let last: Vec<&Value> = lines.iter().filter(|line| line["second"].as_u64() > Some(35)).collect();
    assert_eq!(last.len(), 40, "{}", finished.stderr);
    let summary = finished.json("summary").unwrap();
    for (when, pages) in [("before", "first"), ("after", "now")] {
        let shares = last.iter().map(|line| local(line, pages));
        let (sum, passes) =
            shares.fold((0.0, 0.0), |(sum, all), (local, passes)| (sum + local, all + passes));
        let (truth, said) = (sum / passes, summary["local_access_percent"][when].as_f64());
        println!("{when}: {truth:.1} % are local, and the summary says {said:?}");
        assert!(
            said.is_some_and(|said| (said - truth).abs() <= 5.0),
            "{when}: {said:?}, and {truth} is true"
        );
    }
}
