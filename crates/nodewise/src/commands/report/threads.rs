//! Threads against nodes: where each ran when its accesses were sampled, and where they went.

use super::text::shares;
use nodewise_engine::{Observation, Pid, Tid};
use nodewise_topology::NodeIndex;
use nodewise_verdict::html::escaped;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Threads on the page, those with most accesses.
const SHOWN: usize = 32;

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Thread {
    pub pid: Pid,
    pub tid: Tid,
    /// None where it was not there any more when it was asked for.
    pub name: Option<String>,
    pub samples: u64,
    /// Its share of all sampled accesses to memory.
    pub accesses_percent: f64,
    /// The nodes from which it made them.
    pub runs_on_percent: Vec<f64>,
    /// The nodes whose memory served them.
    pub uses_percent: Vec<f64>,
    /// The share that went to another node's memory.
    pub far_percent: f64,
}

/// Counts of samples.
#[derive(Default)]
pub struct Threads {
    nodes: usize,
    by_thread: BTreeMap<(Pid, Tid), Counts>,
}

struct Counts {
    samples: u64,
    from: Vec<f64>,
    to: Vec<f64>,
    far: f64,
}

impl Threads {
    pub fn new(nodes: usize) -> Self {
        Self { nodes, by_thread: BTreeMap::new() }
    }

    pub fn take_in(&mut self, seen: &Observation) {
        for sample in seen.samples.iter().filter(|sample| sample.source.is_of_memory()) {
            let (from, to) = (sample.accessor.get(), sample.home.map(NodeIndex::get));
            let Some(to) = to.filter(|&to| from.max(to) < self.nodes) else { continue };
            let none =
                || Counts { samples: 0, from: vec![0.0; self.nodes], to: vec![0.0; self.nodes], far: 0.0 };
            let counts = self.by_thread.entry((sample.pid, sample.tid)).or_insert_with(none);
            let weight = f64::from(sample.weight);
            counts.samples += 1;
            counts.from[from] += weight;
            counts.to[to] += weight;
            counts.far += if from == to { 0.0 } else { weight };
        }
    }

    /// The threads, those with most accesses first.
    pub fn finish(self, names: &BTreeMap<Tid, String>) -> Vec<Thread> {
        let sum = |counts: &Counts| counts.from.iter().sum::<f64>();
        let all: f64 = self.by_thread.values().map(sum).sum();
        let mut threads: Vec<Thread> = self
            .by_thread
            .into_iter()
            .map(|((pid, tid), counts)| {
                let own = sum(&counts);
                let percents = |of: &[f64]| of.iter().map(|part| 100.0 * part / own).collect();
                Thread {
                    pid,
                    tid,
                    name: names.get(&tid).cloned(),
                    samples: counts.samples,
                    accesses_percent: 100.0 * own / all,
                    runs_on_percent: percents(&counts.from),
                    uses_percent: percents(&counts.to),
                    far_percent: 100.0 * counts.far / own,
                }
            })
            .collect();
        threads.sort_by(|one, other| other.accesses_percent.total_cmp(&one.accesses_percent));
        threads
    }
}

/// A table, if the sampler tells threads apart.
pub fn html(out: &mut String, threads: &[Thread], nodes: &[u32]) {
    if threads.len() < 2 {
        return;
    }
    out.push_str(
        "<h2>Threads</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>thread</th><th>accesses %</th>\
         <th>far %</th><th>ran on</th><th>used memory of</th></tr></thead>\n<tbody>\n",
    );
    for thread in threads.iter().take(SHOWN) {
        let name = thread.name.as_deref().map_or(String::new(), |name| format!(" {}", escaped(name)));
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}{name}</td><td>{:.1}</td><td>{:.0}</td><td>{}</td><td>{}</td></tr>",
            thread.tid.0,
            thread.accesses_percent,
            thread.far_percent,
            shares(&thread.runs_on_percent, nodes),
            shares(&thread.uses_percent, nodes)
        );
    }
    let hidden = threads.len().saturating_sub(SHOWN);
    let more = if hidden == 0 { String::new() } else { format!(" {hidden} more have fewer accesses.") };
    let _ = writeln!(
        out,
        "</tbody>\n</table></div>\n<p class=\"faint\">Shares by node are node:percent of a thread's sampled \
         accesses.{more}</p>"
    );
}
