//! What the workload program says about its own placement, one JSON line at a time.

use serde::{Deserialize, Serialize};

/// Placement at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Seconds since the threads began.
    pub seconds: f64,
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
    pub fn is_spread(&self) -> bool {
        let (pages, nodes) = (self.pages_by_node.iter().sum::<u64>(), self.pages_by_node.len() as u64);
        self.pages_by_node.iter().all(|here| (4 * pages..=6 * pages).contains(&(5 * nodes * here)))
    }
}

/// Pages that a log (`--log`) says were moved more than once, those of the heap left out: there small objects
/// of several threads share a page, which goes after whoever uses it most. Programs of x86-64 have their heap
/// below their mappings.
#[must_use]
pub fn moved_again(log: &[serde_json::Value]) -> u64 {
    const LOWEST_MAPPING: u64 = 0x7000_0000_0000;
    let start = |line: &serde_json::Value| {
        let digits = line["range"][0].as_str()?.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    };
    let mapped = log.iter().filter(|line| start(line).is_some_and(|start| start >= LOWEST_MAPPING));
    mapped.filter_map(|line| line["outcome"]["moved_again"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pages_of_mappings_that_moved_again_are_counted() {
        let decision = |start: &str, moved_again: u64| json!({ "range": [start, "0x7fffffffffff"], "outcome": { "moved_again": moved_again } });
        let log = [
            decision("0x7f4fc4400000", 3),
            decision("0x55c94bb70000", 5),
            decision("0x7f4fc4400000", 1),
            json!({ "event": "start" }),
        ];
        assert_eq!(moved_again(&log), 4);
    }
}
