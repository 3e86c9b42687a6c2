//! The decision log: one JSON line for every decision and every finding.

use nodewise_engine::{Action, Decision, Figures, Finding, Interleaving, Outcome, PageNumber, Part, Round};
use nodewise_topology::{NodeId, NodeIndex, Topology};
use serde::Serialize;

/// A line of the log. Nodes are the kernel's numbers; where a list runs over nodes, it is in the order of `nodes`.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Line<'a> {
    /// The first line.
    Start {
        /// Seconds since 1970.
        unix_seconds: u64,
        policy: &'a str,
        sampler: &'a str,
        dry_run: bool,
        /// The nodes that the lists of figures run over.
        nodes: Vec<NodeId>,
    },
    /// Something was decided.
    Decision {
        /// Seconds since management began.
        seconds: f64,
        pid: u32,
        /// First and one past the last byte, in hexadecimal.
        range: [String; 2],
        pages: u64,
        action: &'static str,
        /// Where the pages were, by their samples; the kernel's numbers.
        from: Vec<NodeId>,
        /// Where they should go.
        to: Vec<NodeId>,
        /// Which pages of the range leave which node, for `interleave`.
        #[serde(skip_serializing_if = "Option::is_none")]
        interleaving: Option<&'a Interleaving>,
        reason: &'a str,
        figures: &'a Figures,
        outcome: &'a Outcome,
    },
    /// A huge page whose parts different nodes use.
    FalselySharedHugePage {
        seconds: f64,
        pid: u32,
        /// Its first byte, in hexadecimal.
        address: String,
        /// The samples that show it.
        evidence: &'a [Part],
    },
}

/// The lines of one round.
pub fn lines<'a>(round: &'a Round, topology: &Topology, began_ns: u64) -> Vec<Line<'a>> {
    let seconds = round.end_ns.saturating_sub(began_ns) as f64 / 1e9;
    let decisions =
        round.decisions.iter().map(|(decision, outcome)| decision_line(seconds, decision, outcome, topology));
    let findings = round.findings.iter().map(|finding| match finding {
        Finding::FalselySharedHugePage { pid, page, samples } => {
            Line::FalselySharedHugePage { seconds, pid: pid.0, address: hex(*page), evidence: samples }
        }
    });
    decisions.chain(findings).collect()
}

fn decision_line<'a>(
    seconds: f64,
    decision: &'a Decision,
    outcome: &'a Outcome,
    topology: &Topology,
) -> Line<'a> {
    let all = || (0..topology.node_count()).map(|n| NodeIndex(n as u8));
    let figures = &decision.reason.figures;
    let homes = || all().filter(|n| figures.homes.get(n.get()).is_some_and(|&pages| pages > 0.0)).collect();
    let (action, from, to): (_, Vec<NodeIndex>, Vec<NodeIndex>) = match &decision.action {
        Action::Collocate { to } => ("collocate", homes(), vec![*to]),
        Action::CollocateEach { pages } => {
            ("collocate_each", homes(), all().filter(|n| pages.iter().any(|page| page.to == *n)).collect())
        }
        Action::Interleave(i) => {
            let to = all().filter(|n| i.weights.get(n.get()).is_some_and(|&weight| weight > 0));
            ("interleave", vec![i.from], to.collect())
        }
        Action::Replicate => ("replicate", homes(), Vec::new()),
    };
    let interleaving = match &decision.action {
        Action::Interleave(interleaving) => Some(interleaving),
        _ => None,
    };
    let ids = |nodes: Vec<NodeIndex>| nodes.into_iter().map(|n| topology.id_of(n)).collect();
    Line::Decision {
        seconds,
        pid: decision.pid.0,
        range: [hex(decision.range.start), hex(decision.range.end)],
        pages: decision.range.pages(),
        action,
        from: ids(from),
        to: ids(to),
        interleaving,
        reason: &decision.reason.rule,
        figures,
        outcome,
    }
}

fn hex(page: PageNumber) -> String {
    page.address().to_string()
}
