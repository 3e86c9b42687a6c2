use super::super::{Placement, Ran, Runner};
use super::*;
use nodewise_topology::{CpuId, NodeId};
use std::collections::BTreeMap;

/// How a machine treats a program: times by placement, user and system.
struct Program {
    seconds: BTreeMap<&'static str, (f64, f64)>,
    wobble: u32,
    own_cpus: bool,
}

impl Runner for Program {
    type Error = std::convert::Infallible;

    fn run(&mut self, placement: &Placement) -> Result<Ran, Self::Error> {
        self.wobble = (self.wobble * 29 + 11) % 37;
        let factor = 1.0 + f64::from(self.wobble) / 5000.0;
        let (user, system) = self.seconds[placement.name.as_str()];
        let value = factor * (user + system) / 4.0;
        let moved = if placement.name == "balancing-off" { 0.0 } else { 1e4 * system };
        let events = [("numa_pages_migrated", moved), ("numa_other", 100.0 * user), ("odd", 3.0)];
        Ok(Ran::Well(Measured {
            value,
            wall_seconds: value,
            user_seconds: factor * user,
            system_seconds: factor * system,
            events: events.map(|(name, count)| (name.to_owned(), count)).into(),
            own_cpus: self.own_cpus && is_on_a_node(&placement.how),
        }))
    }
}

fn placements() -> Vec<Placement> {
    let cpus = || "0-3".parse().unwrap();
    [
        ("default", How::Default),
        ("node0", How::Node { node: NodeId(0), cpus: cpus() }),
        ("far", How::Far { node: NodeId(0), cpus: cpus(), memory: NodeId(3) }),
        ("interleave", How::Interleave { nodes: "0-3".parse().unwrap() }),
        ("pin-spread", How::Pinned { cpus: vec![CpuId(0), CpuId(4)] }),
        ("balancing-off", How::Balancing { on: false }),
        ("thp-always", How::HugePages { enabled: "always".to_owned() }),
        ("nodewise", How::Nodewise),
    ]
    .map(|(name, how)| Placement { name: name.to_owned(), how })
    .to_vec()
}

/// The report on a program that takes 10 s of user time and 1 s in the kernel, but for these.
fn report(others: &[(&'static str, (f64, f64))], repeat: u32) -> Report {
    report_on(false, others, repeat)
}

fn report_on(own_cpus: bool, others: &[(&'static str, (f64, f64))], repeat: u32) -> Report {
    report_of(4, own_cpus, others, repeat)
}

fn report_of(nodes: usize, own_cpus: bool, others: &[(&'static str, (f64, f64))], repeat: u32) -> Report {
    let names =
        ["default", "node0", "far", "interleave", "pin-spread", "balancing-off", "thp-always", "nodewise"];
    let mut seconds: BTreeMap<_, _> = names.map(|name| (name, (10.0, 1.0))).into();
    seconds.extend(others.iter().copied());
    let mut experiment = Experiment::new(placements(), repeat, 1, true);
    let Ok(()) = experiment.go(&mut Program { seconds, wobble: 1, own_cpus }, |_| Ok(()));
    let setting = Setting {
        command: vec!["./solver".to_owned()],
        metric: "seconds".to_owned(),
        less_is_better: true,
        machine: "four nodes".to_owned(),
        nodes,
    };
    let cost = FarCost { ratio: 2.0, source: "distances".to_owned() };
    Report::of(&experiment, setting, Vec::new(), Some(cost))
}

#[track_caller]
fn says(report: &Report, winner: &str, text: &str) {
    assert_eq!((report.answer.verdict, report.answer.winner.as_deref()), (Kind::Hurt, Some(winner)));
    assert!(report.answer.text.contains(text), "{}", report.answer.text);
}

#[test]
fn a_program_that_is_well_placed_has_nothing_to_do() {
    let report = report(&[("far", (16.0, 1.0)), ("interleave", (13.0, 1.0))], 12);
    assert_eq!((report.answer.verdict, &report.answer.winner), (Kind::Healthy, &None));
    let text = &report.answer.text;
    assert!(
        text.starts_with("Nothing to do here")
            && text.contains("x slower, and the kernel already keeps it near"),
        "{text}"
    );
}

#[test]
fn a_program_to_which_placement_does_not_matter_is_told_so() {
    let report = report(&[], 12);
    assert_eq!(report.answer.verdict, Kind::Healthy);
    assert!(report.answer.text.ends_with("Placement does not matter to it."), "{}", report.answer.text);
    assert_eq!(report.ace.unwrap().alpha, None);
}

#[test]
fn one_node_hurts_nobody() {
    let report = report_of(1, false, &[("pin-spread", (8.0, 1.0))], 12);
    let answer = &report.answer;
    assert_eq!((answer.verdict, answer.winner.as_deref()), (Kind::Healthy, Some("pin-spread")));
    let start = "NUMA does not hurt it: there is one node. It is 1.22x faster with each thread kept on a CPU";
    assert!(answer.text.starts_with(start), "{}", answer.text);
    assert!(answer.remedy.is_some());
}

#[test]
fn sharing_and_placement_are_told_apart() {
    let shares = report(&[("node0", (6.0, 0.6)), ("far", (6.1, 0.6))], 12);
    says(&shares, "node0", "1.67x faster on one node, node 0: sensitive to sharing, not to placement");
    let far = report(&[("node0", (6.0, 0.6)), ("far", (12.0, 0.6))], 12);
    says(&far, "node0", "sensitive to placement. Far memory alone makes it 1.91x slower");
    assert_eq!(far.answer.remedy.unwrap().systemd[0], "NUMAPolicy=bind");
    // ACE: 6 s near, 12 s far, 10 s by default; G/L 2.
    let ace = far.ace.unwrap();
    assert!((ace.alpha.unwrap() - 1.0 / 3.0).abs() < 0.01 && (ace.beta - 1.0).abs() < 0.02, "{ace:?}");
    assert!((ace.gamma - 10.0 / 6.0).abs() < 0.02, "{ace:?}");
}

/// A thread that a program keeps on node 3 is on no other node's CPUs, whatever a placement asks for.
#[test]
fn what_a_program_does_not_follow_is_not_measured() {
    let seconds = [("node0", (10.0, 1.0)), ("far", (6.0, 1.0))];
    let report = report_on(true, &seconds, 12);
    says(&report, "far", "x faster with all its memory on node 3. Its threads keep the CPUs");
    assert!(report.far.is_none() && report.ace.is_none() && report.note_on_cpus().is_some());
    assert_eq!(report.answer.remedy.unwrap().command, "nodewise run -m 3 -- ./solver");
    let report = report_on(true, &[("pin-spread", (5.0, 1.0))], 12);
    says(&report, "pin-spread", "on other CPUs than it chooses. Have it bind them to 0,4, in the order");
    assert_eq!(report.answer.remedy, None);
}

#[test]
fn each_winner_has_its_cause() {
    says(&report(&[("interleave", (5.0, 1.0))], 12), "interleave", "one node's memory serves most of it");
    says(&report(&[("pin-spread", (5.0, 1.0))], 12), "pin-spread", "each thread kept on a CPU");
    says(&report(&[("nodewise", (5.0, 1.0))], 12), "nodewise", "first touched on other nodes");
    let off = report(&[("default", (10.0, 8.0)), ("balancing-off", (10.5, 0.5))], 12);
    let rest: Vec<_> = ["node0", "far", "interleave", "pin-spread", "thp-always", "nodewise"]
        .map(|name| (name, (10.0, 8.0)))
        .to_vec();
    let off_alone =
        report(&[rest, vec![("default", (10.0, 8.0)), ("balancing-off", (10.5, 0.5))]].concat(), 12);
    says(&off_alone, "balancing-off", "costs more than it gives");
    for report in [off, off_alone] {
        let cost = report.migrations.unwrap();
        assert!((cost.system_seconds - 7.5).abs() < 0.1 && cost.pages > 7.9e4, "{cost:?}");
        assert!((cost.user_seconds + 0.5).abs() < 0.2, "it saves user time: {cost:?}");
    }
}

#[test]
fn huge_pages_are_not_numa() {
    let report = report(&[("thp-always", (8.0, 1.0))], 12);
    assert_eq!((report.answer.verdict, report.answer.winner.as_deref()), (Kind::Healthy, Some("thp-always")));
    assert!(report.answer.text.starts_with("NUMA does not hurt it."), "{}", report.answer.text);
}

#[test]
fn of_equals_the_one_that_asks_least_is_named() {
    let report = report(&[("interleave", (5.0, 1.0)), ("nodewise", (4.95, 1.0))], 12);
    says(&report, "interleave", "spread");
    assert_eq!(report.answer.as_good, ["nodewise"]);
}

#[test]
fn too_few_runs_say_so() {
    let report = report(&[("interleave", (5.0, 1.0))], 3);
    assert_eq!((report.answer.verdict, &report.answer.winner), (Kind::Unknown, &None));
    assert!(report.answer.text.contains("3 runs of each placement can show no difference among 7, 10 can"));
}

#[test]
fn events_that_come_with_slow_runs_are_listed_the_strongest_first() {
    let report = report(&[("far", (20.0, 1.0)), ("node0", (6.0, 0.9)), ("interleave", (8.0, 1.1))], 12);
    let first = &report.correlations[0];
    assert!(first.event == "numa_other" && first.correlation > 0.8, "{:?}", report.correlations);
    assert!(report.correlations.iter().all(|listed| listed.event != "odd"), "it is always the same");
}
