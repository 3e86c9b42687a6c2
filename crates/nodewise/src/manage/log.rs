//! The decision log. It has one JSON line for every decision, finding, and look where memory lies. So it has
//! for every change of the sampling rate and every reason to decide nothing.

use super::summary::Summary;
use nodewise_engine::{
    Action, Decision, Figures, Finding, Interleaving, Outcome, PageNumber, Part, Round, SamplingRate,
};
use nodewise_topology::{NodeId, NodeIndex, Topology};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A line of the log. Nodes are the kernel's numbers; where a list runs over nodes, it is in the order of
/// `nodes`.
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
    /// From now on a rule is in force and decides nothing, or for another reason than before.
    Idle { seconds: f64, rule: &'a str, why: &'a str },
    /// It was looked where memory in use lies.
    Placement {
        seconds: f64,
        /// Accesses that were seen so far.
        samples: u64,
        /// Share of the accesses that come from the page's own node; none while that is unknown.
        local_access_percent: Option<f64>,
        /// Share of the accesses that each node's memory serves.
        served_by: Option<&'a [f64]>,
        /// Imbalance of the nodes whose memory is accessed.
        controller_imbalance_percent: Option<f64>,
        /// Memory in use.
        bytes: Option<u64>,
        /// Why there is no figure.
        unknown: Option<&'a str>,
    },
    /// Samples are taken at another rate from now on. The first rate is the accurate one.
    Sampling { seconds: f64, rate: SamplingRate },
}

impl<'a> Line<'a> {
    /// The first line of what this summary is going to be of.
    pub fn start(summary: &'a Summary, topology: &Topology) -> Self {
        Self::Start {
            unix_seconds: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
            policy: summary.policy,
            sampler: summary.sampler,
            dry_run: summary.dry_run,
            nodes: topology.nodes().iter().map(|node| node.id).collect(),
        }
    }

    /// The placement that this summary has now.
    pub fn placement(summary: &'a Summary, samples: u64, seconds: f64) -> Self {
        Self::Placement {
            seconds,
            samples,
            local_access_percent: summary.local_access_percent.after,
            served_by: summary.served_by.as_deref(),
            controller_imbalance_percent: summary.controller_imbalance_percent.after,
            bytes: summary.memory_in_use.bytes,
            unknown: summary.memory_in_use.unknown.as_deref(),
        }
    }
}

/// The statements that the log makes once, and that hold until it says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// Samples are taken at this rate.
    pub sampling: SamplingRate,
    /// The last reason of each rule to decide nothing.
    pub idle: BTreeMap<String, String>,
}

impl Said {
    /// All that is said with a round.
    pub fn update(&mut self, round: &Round) {
        self.sampling = round.sampling;
        let idle = round.rules.iter().filter_map(|rule| Some((rule.name.clone(), rule.idle.clone()?)));
        self.idle.extend(idle);
    }
}

/// The lines of one round, after what was said before.
pub fn lines<'a>(round: &'a Round, before: &Said, topology: &Topology, began_ns: u64) -> Vec<Line<'a>> {
    let seconds = round.end_ns.saturating_sub(began_ns) as f64 / 1e9;
    let decisions =
        round.decisions.iter().map(|(decision, outcome)| decision_line(seconds, decision, outcome, topology));
    let findings = round.findings.iter().map(|finding| match finding {
        Finding::FalselySharedHugePage { pid, page, samples } => {
            Line::FalselySharedHugePage { seconds, pid: pid.0, address: hex(*page), evidence: samples }
        }
    });
    let idle = round.rules.iter().filter_map(|rule| {
        let (rule, why) = (&rule.name, rule.idle.as_ref()?);
        (before.idle.get(rule) != Some(why)).then_some(Line::Idle { seconds, rule, why })
    });
    let rate =
        (round.sampling != before.sampling).then_some(Line::Sampling { seconds, rate: round.sampling });
    decisions.chain(findings).chain(idle).chain(rate).collect()
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
        Action::Split { .. } => ("split", homes(), Vec::new()),
        Action::Collapse { .. } => ("collapse", homes(), Vec::new()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manage::tests::recorded_rounds;
    use nodewise_linux::placement::{self, BeforeAndAfter, Unknown};
    use serde_json::Value;

    #[test]
    fn a_line_says_where_memory_in_use_lies() {
        let mut summary = Summary::new("carrefour", "hint-faults", String::new(), true);
        let line = |summary: &Summary| serde_json::to_value(Line::placement(summary, 70, 1.5)).unwrap();
        assert_eq!(line(&summary)["local_access_percent"], Value::Null);
        let (local_access_percent, served_by) = (25.0, vec![1.0, 0.0]);
        let figures = placement::Figures { local_access_percent, served_by, ..Default::default() };
        summary.set_placement(&BeforeAndAfter { before: Err(Unknown::FirstHomes), after: Ok(figures) });
        let line = line(&summary);
        assert_eq!((&line["event"], &line["samples"]), (&"placement".into(), &70.into()));
        let served: Vec<f64> = serde_json::from_value(line["served_by"].clone()).unwrap();
        assert_eq!((line["local_access_percent"].as_f64(), served), (Some(25.0), vec![1.0, 0.0]));
    }

    #[test]
    fn a_line_says_when_sampling_changes() {
        let (rounds, topology) = recorded_rounds("hint-faults");
        let rates = |before: SamplingRate| -> Vec<Value> {
            let before = Said { sampling: before, idle: BTreeMap::new() };
            let lines = lines(&rounds[0], &before, &topology, rounds[0].end_ns);
            let lines = lines.iter().map(|line| serde_json::to_value(line).unwrap());
            lines.filter(|line| line["event"] == "sampling").map(|line| line["rate"].clone()).collect()
        };
        assert_eq!(rates(SamplingRate::Cheap), ["accurate"]);
        assert!(rates(SamplingRate::Accurate).is_empty());
    }

    #[test]
    fn a_line_says_once_why_nothing_is_decided() {
        let (mut rounds, topology) = recorded_rounds("hint-faults");
        let round = &mut rounds[0];
        let mut said = Said { sampling: round.sampling, idle: BTreeMap::new() };
        let mut idle = |why: Option<&str>| -> Vec<Value> {
            round.decisions.clear();
            for rule in round.rules.iter_mut().filter(|rule| rule.name == "interleave") {
                rule.idle = why.map(str::to_owned);
            }
            let lines = lines(round, &said, &topology, 0);
            let lines: Vec<Value> = lines.iter().map(|line| serde_json::to_value(line).unwrap()).collect();
            said.update(round);
            lines.into_iter().filter(|line| line["event"] == "idle").map(|line| line["why"].clone()).collect()
        };
        assert_eq!(idle(Some("all rests")), ["all rests"]);
        assert!(idle(Some("all rests")).is_empty() && idle(None).is_empty());
        assert_eq!(idle(Some("loads are not known")), ["loads are not known"]);
    }

    /// When, process, range, action, from, to, reason and the figures behind it, outcome.
    #[test]
    fn a_line_says_all_of_a_decision() {
        let mut seen = std::collections::BTreeSet::new();
        for name in ["hint-faults", "hardware-samples"] {
            let (rounds, topology) = recorded_rounds(name);
            let nodes = topology.node_count();
            let before = Said { sampling: SamplingRate::Accurate, idle: BTreeMap::new() };
            let lines = rounds.iter().flat_map(|round| lines(round, &before, &topology, rounds[0].end_ns));
            for line in lines {
                let line = serde_json::to_value(&line).unwrap();
                if line["event"] == "idle" {
                    continue;
                }
                assert_eq!(line["event"], "decision");
                assert!(line["seconds"].as_f64() >= Some(0.0) && line["pid"].is_u64(), "{line}");
                let address = |end: usize| {
                    u64::from_str_radix(line["range"][end].as_str()?.strip_prefix("0x")?, 16).ok()
                };
                let bytes = address(1).unwrap() - address(0).unwrap();
                assert_eq!(line["pages"].as_u64(), Some(bytes / 4096), "{line}");
                for list in ["from", "to"] {
                    let list = line[list].as_array().unwrap();
                    let is_node = |node: &Value| node.as_u64().is_some_and(|node| node < nodes as u64);
                    assert!(!list.is_empty() && list.iter().all(is_node), "{line}");
                }
                assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
                let figures = line["figures"].as_object().unwrap();
                for list in ["homes", "reads", "writes"] {
                    assert_eq!(figures[list].as_array().map(Vec::len), Some(nodes), "{list}: {line}");
                }
                for count in
                    ["planned", "moved", "deferred", "busy", "node_full", "vanished", "not_permitted"]
                {
                    assert!(line["outcome"][count].is_u64(), "{count}: {line}");
                }
                seen.insert(line["action"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["collocate", "interleave"]);
    }
}
