//! The workload program's report of its own placement, one JSON line at a time.

use serde::{Deserialize, Serialize};

/// Placement at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Seconds since the threads began.
    pub seconds: f64,
    /// The first byte of the memory, and the first one after it.
    pub memory: [u64; 2],
    /// Pages by home node, by dense node index.
    pub pages_by_node: Vec<u64>,
    /// Share of the threads' accesses that go to their own node, in percent, if each thread touches its
    /// pages equally often (as it does). 0 without accesses.
    pub local_percent: f64,
    /// The worst thread's share.
    pub local_percent_min: f64,
    /// Passes over their pages that all threads together have finished.
    pub passes: u64,
    /// CPU time of the program so far, in seconds: user, then kernel.
    pub user_seconds: f64,
    /// Kernel CPU time so far, in seconds.
    pub system_seconds: f64,
}

impl Placement {
    /// Whether each node has its part of the pages, within a fifth of it: 25 +- 5 % on four nodes.
    #[must_use]
    pub fn is_interleaved(&self) -> bool {
        let (pages, nodes) = (self.pages_by_node.iter().sum::<u64>(), self.pages_by_node.len() as u64);
        self.pages_by_node.iter().all(|here| (4 * pages..=6 * pages).contains(&(5 * nodes * here)))
    }
}

/// Pages that a log (`--log`) says were moved more than once. The decisions that did it are printed.
#[must_use]
pub fn moved_again(log: &[serde_json::Value]) -> u64 {
    let again = |line: &serde_json::Value| line["outcome"]["moved_again"].as_u64().unwrap_or(0);
    log.iter().filter(|line| again(line) > 0).inspect(|line| println!("moved again: {line}")).map(again).sum()
}
