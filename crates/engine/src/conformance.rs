//! The duties of every [`Machine`], as one test body that the engine's toy, the live machine and the
//! simulator all run.
//!
//! A machine's tests implement [`Testbed`]: they know how to put processes on the machine, and where pages
//! are in truth. Then they call [`check`] with a function that sets a testbed for several processes; it is
//! called once for each scenario:
//!
//! ```text
//! #[test]
//! fn the_simulated_machine_conforms() {
//!     check(|processes| SimulatedTestbed::new(presets::square(), processes));
//! }
//! ```

use crate::{
    Action, Decision, Figures, Interleaving, Machine, Mapping, Observation, Outcome, PageNumber, PageRange,
    PageTarget, Pid, Reason, SamplingRate,
};
use nodewise_topology::NodeIndex;

/// A part of a process's memory: a mapping of its own, private, anonymous, and writable. Its base pages are
/// all in place when the testbed is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How many pages.
    pub pages: u64,
    /// The node whose thread touched them first, and where they therefore are.
    pub touched_on: NodeIndex,
    /// The node whose thread writes to all of them over and over; none when nobody ever uses them again.
    pub used_on: Option<NodeIndex>,
}

impl Part {
    const fn idle(pages: u64, touched_on: NodeIndex) -> Self {
        Self { pages, touched_on, used_on: None }
    }
}

/// A machine that manages the processes it is given and no others, and the truth about them.
///
/// Nobody but the machine moves pages that are not in use. The machine has two nodes or more with CPUs and
/// memory, with some MiB free on each.
pub trait Testbed {
    /// The kind of machine that is tested.
    type Machine: Machine;

    /// The machine.
    fn machine(&mut self) -> &mut Self::Machine;

    /// The id of a process, by its place in that order.
    fn pid(&self, process: usize) -> Pid;

    /// Where a part of a process lies.
    fn range(&self, process: usize, part: usize) -> PageRange;

    /// The home of each page of a range, found out without the machine's help; none where no page is, as in
    /// all of a process that is gone.
    fn homes(&mut self, pid: Pid, range: PageRange) -> Vec<Option<NodeIndex>>;

    /// Lets an interval pass, as whoever calls the engine would.
    fn pass(&mut self);

    /// Ends a process; it is gone when this returns.
    fn end(&mut self, process: usize);

    /// Unmaps a part that is not in use; false where processes of this machine never unmap.
    fn unmap(&mut self, _process: usize, _part: usize) -> bool {
        false
    }

    /// Takes what is free on a node, so that pages find no room there; false where a node cannot be filled.
    fn fill(&mut self, _node: NodeIndex) -> bool {
        false
    }
}

/// Intervals within which what has to come must have come.
const PATIENCE: usize = 60;

/// Plays every scenario.
///
/// # Panics
/// When the machine does not do what it must, saying what it did.
pub fn check<S: Testbed>(mut set: impl FnMut(&[Vec<Part>]) -> S) {
    let nodes = usable_nodes(&mut set(&[vec![Part::idle(1, NodeIndex(0))]]));
    assert!(nodes.len() > 1, "the machine has nodes to move pages between: {nodes:?}");
    processes_are_fresh_once(&mut set, &nodes);
    samples_name_their_accessors(&mut set, &nodes);
    outcomes_are_in_order_and_true(&mut set, &nodes);
    a_process_that_ended_is_an_outcome(&mut set, &nodes);
    what_was_unmapped_is_passed_over(&mut set, &nodes);
    a_full_node_takes_no_page(&mut set, &nodes);
}

fn usable_nodes<S: Testbed>(testbed: &mut S) -> Vec<NodeIndex> {
    let machine = testbed.machine();
    let topology = machine.topology();
    let usable = |&n: &NodeIndex| {
        let node = topology.node(n);
        !node.cpus.is_empty() && node.may_have_memory()
    };
    topology.node_indices().filter(usable).collect()
}

/// One interval, with what holds for each.
fn look<S: Testbed>(testbed: &mut S) -> Observation {
    testbed.pass();
    let seen = testbed.machine().observe().expect("the machine can be observed");
    let nodes = testbed.machine().topology().node_count();
    assert!(seen.duration_ns > 0, "an interval takes time");
    let counters = &seen.counters;
    assert_eq!(
        (counters.free_bytes.len(), counters.total_bytes.len()),
        (nodes, nodes),
        "memory of each node"
    );
    assert!(counters.free_bytes.iter().zip(&counters.total_bytes).all(|(free, total)| free <= total));
    assert!(counters.controller_loads.get().is_none_or(|loads| loads.len() == nodes), "a load for each node");
    for (at, state) in seen.processes.iter().enumerate() {
        assert!(
            seen.processes[..at].iter().all(|other| other.pid != state.pid),
            "{} is listed twice",
            state.pid
        );
        let mappings = state.mappings.as_deref().unwrap_or_default();
        assert!(mappings.iter().all(|mapping| !mapping.range.is_empty()), "empty mapping: {mappings:?}");
        let apart = |pair: &[Mapping]| pair[0].range.end <= pair[1].range.start;
        assert!(mappings.windows(2).all(apart), "mappings overlap or are out of order: {mappings:?}");
    }
    for sample in &seen.samples {
        assert!(seen.processes.iter().any(|state| state.pid == sample.pid), "whose is {sample:?}?");
        assert!(
            sample.accessor.get() < nodes && sample.home.is_none_or(|home| home.get() < nodes),
            "{sample:?}"
        );
        assert!(sample.weight > 0 && sample.time_ns <= seen.end_ns, "{sample:?} by {} ns", seen.end_ns);
    }
    seen
}

fn processes_are_fresh_once<S: Testbed>(set: &mut impl FnMut(&[Vec<Part>]) -> S, nodes: &[NodeIndex]) {
    let processes =
        [vec![Part::idle(600, nodes[0]), Part::idle(5, nodes[1])], vec![Part::idle(100, nodes[1])]];
    let mut testbed = set(&processes);
    let mut end_ns = None;
    for interval in 0..3 {
        let seen = look(&mut testbed);
        assert_eq!(seen.processes.len(), processes.len(), "these and no others: {:?}", seen.processes);
        for (process, parts) in processes.iter().enumerate() {
            let pid = testbed.pid(process);
            let listed = seen.processes.iter().find(|state| state.pid == pid).expect("it is listed");
            assert_eq!(listed.fresh, interval == 0, "fresh when it is first seen, and only then");
            assert!(interval > 0 || listed.mappings.is_some(), "whoever is fresh has mappings");
            let pages: u64 = parts.iter().map(|part| part.pages).sum();
            assert!(listed.resident_pages >= pages, "{} resident, of {pages} touched", listed.resident_pages);
            let Some(mappings) = &listed.mappings else { continue };
            for part in 0..parts.len() {
                let range = testbed.range(process, part);
                let holds = |m: &Mapping| m.writable && m.range.intersect(range) == range;
                assert!(mappings.iter().any(holds), "{range} is mapped, but not in {mappings:?}");
            }
        }
        assert!(
            end_ns.is_none_or(|before| seen.end_ns == before + seen.duration_ns),
            "intervals leave no gaps"
        );
        end_ns = Some(seen.end_ns);
    }
}

fn samples_name_their_accessors<S: Testbed>(set: &mut impl FnMut(&[Vec<Part>]) -> S, nodes: &[NodeIndex]) {
    let used = |&node: &NodeIndex| Part { pages: 1024, touched_on: nodes[0], used_on: Some(node) };
    let parts: Vec<Part> = nodes.iter().map(used).chain([Part::idle(256, nodes[0])]).collect();
    let mut testbed = set(std::slice::from_ref(&parts));
    testbed.machine().set_sampling(SamplingRate::Accurate).expect("the machine samples eagerly");
    let mut samples = vec![0; parts.len()];
    for _ in 0..PATIENCE {
        for sample in look(&mut testbed).samples {
            let in_part = |part: &usize| testbed.range(0, *part).contains(sample.address.page());
            let Some(part) = (0..parts.len()).find(in_part) else { continue };
            assert_eq!(Some(sample.accessor), parts[part].used_on, "{sample:?}");
            samples[part] += 1;
        }
        if samples[..nodes.len()].iter().all(|&count| count > 0) {
            break;
        }
    }
    assert!(samples[..nodes.len()].iter().all(|&count| count > 0), "every node was sampled: {samples:?}");
    testbed.machine().set_sampling(SamplingRate::Cheap).expect("the machine samples cheaply");
    look(&mut testbed);
}

fn outcomes_are_in_order_and_true<S: Testbed>(set: &mut impl FnMut(&[Vec<Part>]) -> S, nodes: &[NodeIndex]) {
    let (first, second, last) = (nodes[0], nodes[1], nodes[nodes.len() - 1]);
    let mine = [(700, first), (64, first), (512, first), (64, last), (64, first)];
    let mine = mine.map(|(pages, node)| Part::idle(pages, node)).to_vec();
    let mut testbed = set(&[mine, vec![Part::idle(200, first)]]);
    look(&mut testbed);
    let listed = testbed.range(0, 1);
    let each = (listed.start.0..listed.end.0).step_by(2).zip([second, last].into_iter().cycle());
    let each = each.map(|(page, to)| PageTarget { page: PageNumber(page), to }).collect();
    let mut weights = vec![0; testbed.machine().topology().node_count()];
    for node in nodes {
        weights[node.get()] = 1;
    }
    let spread = Interleaving { from: first, band: (0, 3 << 30), weights, seed: 7 };
    let decisions = [
        decide(&testbed, (0, 0), Action::Collocate { to: second }),
        Decision { pid: Pid(u32::MAX), ..decide(&testbed, (0, 0), Action::Collocate { to: second }) },
        decide(&testbed, (1, 0), Action::Collocate { to: last }),
        decide(&testbed, (0, 1), Action::CollocateEach { pages: each }),
        decide(&testbed, (0, 2), Action::Interleave(spread)),
        decide(&testbed, (0, 3), Action::Collocate { to: last }),
        decide(&testbed, (0, 4), Action::Replicate),
    ];
    let outcomes = carry_out(&mut testbed, &decisions);
    assert!(outcomes[1].process_gone && outcomes[1].moved == 0, "nobody has that id: {:?}", outcomes[1]);
    for (at, decision) in decisions.iter().enumerate().filter(|(at, _)| ![1, 6].contains(at)) {
        let left = wanted(&mut testbed, decision);
        assert_eq!(left, 0, "pages not where decision {at} wants them; last outcome: {:?}", outcomes[at]);
    }
    assert_eq!(testbed.machine().apply(&[]).expect("nothing can be done"), []);
}

fn a_process_that_ended_is_an_outcome<S: Testbed>(
    set: &mut impl FnMut(&[Vec<Part>]) -> S,
    nodes: &[NodeIndex],
) {
    let mut testbed = set(&[vec![Part::idle(300, nodes[0])], vec![Part::idle(300, nodes[0])]]);
    look(&mut testbed);
    let decisions = [0, 1].map(|process| decide(&testbed, (process, 0), Action::Collocate { to: nodes[1] }));
    testbed.end(0);
    // First when the machine cannot know yet, then when it does.
    for _ in 0..2 {
        let outcomes = carry_out(&mut testbed, &decisions);
        assert!(outcomes[0].process_gone && outcomes[0].moved == 0, "{:?}", outcomes[0]);
        assert!(!outcomes[1].process_gone, "{:?}", outcomes[1]);
        let listed: Vec<Pid> = look(&mut testbed).processes.iter().map(|state| state.pid).collect();
        assert_eq!(listed, [testbed.pid(1)], "who ended is no longer listed");
    }
    assert_eq!(wanted(&mut testbed, &decisions[1]), 0, "the other was moved");
    testbed.end(1);
    assert_eq!(look(&mut testbed).processes, [], "no process is left");
}

fn what_was_unmapped_is_passed_over<S: Testbed>(
    set: &mut impl FnMut(&[Vec<Part>]) -> S,
    nodes: &[NodeIndex],
) {
    let mut testbed = set(&[vec![Part::idle(300, nodes[0]), Part::idle(300, nodes[0])]]);
    look(&mut testbed);
    let decisions = [0, 1].map(|part| decide(&testbed, (0, part), Action::Collocate { to: nodes[1] }));
    if !testbed.unmap(0, 0) {
        return;
    }
    let outcomes = carry_out(&mut testbed, &decisions);
    assert_eq!((outcomes[0].moved, outcomes[0].process_gone), (0, false), "{:?}", outcomes[0]);
    assert_eq!(wanted(&mut testbed, &decisions[1]), 0, "the rest was moved: {:?}", outcomes[1]);
    let range = testbed.range(0, 0);
    let still_mapped = |seen: &Observation| {
        let mappings = seen.processes.iter().filter_map(|state| state.mappings.as_deref());
        mappings.flatten().any(|mapping| !mapping.range.intersect(range).is_empty())
    };
    let noticed = (0..PATIENCE).any(|_| {
        let seen = look(&mut testbed);
        seen.processes[0].mappings.is_some() && !still_mapped(&seen)
    });
    assert!(noticed, "{range} is reported as mapped for ever");
}

fn a_full_node_takes_no_page<S: Testbed>(set: &mut impl FnMut(&[Vec<Part>]) -> S, nodes: &[NodeIndex]) {
    let mut testbed = set(&[vec![Part::idle(4096, nodes[0])]]);
    look(&mut testbed);
    if !testbed.fill(nodes[1]) {
        return;
    }
    let decision = decide(&testbed, (0, 0), Action::Collocate { to: nodes[1] });
    let outcomes = carry_out(&mut testbed, std::slice::from_ref(&decision));
    assert!(outcomes[0].node_full > 0, "{:?}", outcomes[0]);
    assert_eq!(wanted(&mut testbed, &decision), outcomes[0].node_full + outcomes[0].busy, "the others stay");
}

fn decide<S: Testbed>(testbed: &S, (process, part): (usize, usize), action: Action) -> Decision {
    let reason = Reason { rule: "conformance".to_owned(), figures: Figures::default() };
    Decision { pid: testbed.pid(process), range: testbed.range(process, part), action, reason }
}

/// Applies decisions, again and again while something is deferred or busy, and holds each outcome against the
/// truth. Returns the last outcomes.
fn carry_out<S: Testbed>(testbed: &mut S, decisions: &[Decision]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for _ in 0..PATIENCE {
        let before: Vec<_> = decisions
            .iter()
            .map(|decision| (testbed.homes(decision.pid, decision.range), wanted(testbed, decision)))
            .collect();
        outcomes = testbed.machine().apply(decisions).expect("the machine carries out decisions");
        assert_eq!(outcomes.len(), decisions.len(), "one outcome for each decision");
        for ((decision, outcome), (before, wanted)) in decisions.iter().zip(&outcomes).zip(&before) {
            let Outcome { planned, moved, deferred, busy, node_full, vanished, not_permitted, .. } = *outcome;
            let sum = moved + deferred + busy + node_full + vanished + not_permitted;
            assert!(outcome.only_reported || sum == planned, "pages are lost or invented: {outcome:?}");
            if decision.action == Action::Replicate {
                continue;
            }
            assert!(!outcome.only_reported, "{outcome:?}");
            // A page that is deferred before the machine has looked at it may be at its target already.
            let gone = outcome.process_gone || deferred > 0;
            assert!(gone || planned - vanished == *wanted, "{wanted} pages had to move: {outcome:?}");
            let arrived = check_moves(decision, before, &testbed.homes(decision.pid, decision.range));
            assert_eq!(arrived, moved, "pages that moved: {decision:?}");
        }
        if outcomes.iter().all(|outcome| outcome.deferred + outcome.busy == 0) {
            break;
        }
        look(testbed);
    }
    outcomes
}

/// Pages that changed their home; each must have gone where the decision says.
fn check_moves(decision: &Decision, before: &[Option<NodeIndex>], after: &[Option<NodeIndex>]) -> u64 {
    let mut moved = 0;
    for ((page, &before), &after) in (decision.range.start.0..).zip(before).zip(after) {
        if before != after {
            let to = before.and_then(|home| target(&decision.action, PageNumber(page), home));
            assert_eq!(after, to, "page {page} went from {before:?}: {decision:?}");
            moved += 1;
        }
    }
    moved
}

/// Pages of the decision's range that are not where it wants them.
fn wanted<S: Testbed>(testbed: &mut S, decision: &Decision) -> u64 {
    let homes = testbed.homes(decision.pid, decision.range);
    let elsewhere = (decision.range.start.0..).zip(homes).filter(|&(page, home)| {
        let Some(home) = home else { return false };
        target(&decision.action, PageNumber(page), home).is_some_and(|to| to != home)
    });
    elsewhere.count() as u64
}

/// Where a page that is at `home` should go.
fn target(action: &Action, page: PageNumber, home: NodeIndex) -> Option<NodeIndex> {
    match action {
        Action::Collocate { to } => Some(*to),
        Action::CollocateEach { pages } => {
            pages.iter().find(|target| target.page == page).map(|target| target.to)
        }
        Action::Interleave(interleaving) => {
            interleaving.target(page, 1).filter(|_| home == interleaving.from)
        }
        Action::Replicate | Action::Split { .. } | Action::Collapse { .. } => None,
    }
}
