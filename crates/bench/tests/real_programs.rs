//! Real programs from Debian's packages: their memory follows them, 95 % of it at least. The program
//! `guest-table` has the kernel's balancing beside it.

use nodewise_bench::follow::{Followed, redis, stress_ng, table};
use nodewise_bench::scenario::Programs;
use std::sync::OnceLock;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| Programs::build().expect("the programs build"))
}

/// Returns the one run, which it asserts to follow.
#[track_caller]
fn follows(runs: Vec<Followed>) -> Followed {
    println!("{}", table(&runs));
    let run = runs.into_iter().next().expect("it ran under nodewise");
    let first = &run.moments[0];
    assert!(first.pages > 8192, "{} had something to move: {first:?}", run.program);
    assert!(first.local_percent < 50.0, "{} was misplaced at first: {first:?}", run.program);
    assert!(run.last_percent() >= 95.0, "{:#?}\n{}", run.moments, run.log);
    run
}

/// Before and after in the summary are within 5 points of what the kernel says of the program's own pages.
#[test]
fn redis_follows_to_the_node_it_runs_on() {
    let nodewise = follows(redis(programs(), &["nodewise"]).unwrap());
    let said = nodewise.said.expect("it left a summary");
    // Nodewise comes a moment after the program was sent to its node, where the kernel's balancing has begun
    // to move pages.
    let at_first = nodewise.moments.iter().take_while(|moment| moment.seconds <= 2.0);
    let at_first = at_first.map(|moment| moment.local_percent).fold(0.0, f64::max);
    let truth =
        [(nodewise.moments[0].local_percent, at_first), (nodewise.last_percent(), nodewise.last_percent())];
    for (said, (least, most)) in said.into_iter().zip(truth) {
        let is_true = said.is_some_and(|said| (least - 5.0..=most + 5.0).contains(&said));
        assert!(is_true, "{said:?}, and {least} to {most} is true\n{}", nodewise.log);
    }
}

#[test]
fn workers_of_stress_ng_follow_to_theirs() {
    follows(stress_ng(programs(), &["nodewise"]).unwrap());
}
