//! Which page goes to which node.

use crate::error::{Error, Result};
use nodewise_topology::{NodeId, NodeSet};
use std::ops::Range;

/// Where the pages of an array go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All on one node.
    On(NodeId),
    /// Page after page round the nodes that this process may have memory on, in ascending order: for data that all use.
    Interleaved,
    /// The same with as many pages in a row on each node as its weight says, for nodes of unequal bandwidth. A weight of 0 leaves a node
    /// out.
    Weighted(Vec<(NodeId, u32)>),
    /// One block of neighbouring pages on each node that this process may have memory on, in ascending order, all but the last of the same
    /// size: for data that each node uses a part of. Intel's article on NUMA migrations finds this ahead of interleaving.
    Blocked,
}

/// A layout of so many units on real nodes: `run` units on each node of the cycle, round and round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    cycle: Vec<NodeId>,
    run: usize,
    units: usize,
}

/// Weights are sizes of runs in a table; a machine whose bandwidths differ more is none.
const WEIGHTS_SUM_MAX: u64 = 1 << 16;

impl Plan {
    /// Lays `units` over nodes, of which memory may be had on `allowed`.
    pub(crate) fn new(layout: &Layout, units: usize, allowed: &NodeSet) -> Result<Self> {
        let all = || allowed.iter().collect::<Vec<_>>();
        let (cycle, run) = match layout {
            Layout::On(node) => (vec![*node], units.max(1)),
            Layout::Interleaved => (all(), 1),
            Layout::Weighted(weights) => {
                let sum: u64 = weights.iter().map(|&(_, weight)| u64::from(weight)).sum();
                if sum > WEIGHTS_SUM_MAX {
                    let what = format!("weights add up to {sum}, more than {WEIGHTS_SUM_MAX}: divide them");
                    return Err(Error::layout(what));
                }
                let cycle = weights.iter().flat_map(|&(node, weight)| (0..weight).map(move |_| node));
                (cycle.collect(), 1)
            }
            Layout::Blocked => {
                let nodes = all();
                let run = units.div_ceil(nodes.len().max(1)).max(1);
                (nodes, run)
            }
        };
        if cycle.is_empty() {
            return Err(Error::layout(
                "a layout without a node: every weight is 0, or there are none".into(),
            ));
        }
        match cycle.iter().find(|&&node| !allowed.contains(node)) {
            Some(node) => Err(Error::layout(format!(
                "node {node} has no memory for this process; those that have: {allowed}"
            ))),
            None => Ok(Self { cycle, run, units }),
        }
    }

    /// The nodes that get something to hold, ascending.
    pub(crate) fn nodes(&self) -> NodeSet {
        let used = self.units.div_ceil(self.run).min(self.cycle.len());
        self.cycle[..used].iter().copied().collect()
    }

    /// The node of a unit.
    pub(crate) fn node_of(&self, unit: usize) -> NodeId {
        self.cycle[unit / self.run % self.cycle.len()]
    }

    /// The units in order, neighbours on the same node together.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (NodeId, Range<usize>)> + '_ {
        let mut start = 0;
        std::iter::from_fn(move || {
            let node = (start < self.units).then(|| self.node_of(start))?;
            let mut end = start + self.run;
            while end < self.units && self.node_of(end) == node {
                end += self.run;
            }
            let run = start..end.min(self.units);
            start = run.end;
            Some((node, run))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    fn laid(layout: &Layout, units: usize, allowed: &str) -> Vec<u32> {
        let plan = Plan::new(layout, units, &nodes(allowed)).unwrap();
        (0..units).map(|unit| plan.node_of(unit).0).collect()
    }

    #[test]
    fn units_go_where_the_layout_says() {
        assert_eq!(laid(&Layout::On(NodeId(2)), 3, "0-2"), [2, 2, 2]);
        assert_eq!(laid(&Layout::Interleaved, 5, "0,2-3"), [0, 2, 3, 0, 2]);
        assert_eq!(laid(&Layout::Blocked, 7, "0-2"), [0, 0, 0, 1, 1, 1, 2]);
        let weights = vec![(NodeId(1), 2), (NodeId(0), 1), (NodeId(3), 0)];
        assert_eq!(laid(&Layout::Weighted(weights), 7, "0-1"), [1, 1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused_with_the_reason() {
        let refused = |layout: &Layout| Plan::new(layout, 1, &nodes("0,2")).unwrap_err().to_string();
        assert_eq!(
            refused(&Layout::On(NodeId(1))),
            "node 1 has no memory for this process; those that have: 0,2"
        );
        assert!(refused(&Layout::Weighted(vec![(NodeId(0), 0)])).contains("without a node"));
        assert!(refused(&Layout::Weighted(vec![(NodeId(0), u32::MAX)])).contains("divide"));
        assert!(Plan::new(&Layout::Blocked, 1, &NodeSet::default()).is_err());
    }

    fn any_layout() -> impl Strategy<Value = Layout> {
        prop_oneof![
            (0..3u32).prop_map(|node| Layout::On(NodeId(node))),
            Just(Layout::Interleaved),
            Just(Layout::Blocked),
            proptest::collection::vec((0..3u32, 1..5u32), 1..4).prop_map(|weights| Layout::Weighted(
                weights.into_iter().map(|(n, w)| (NodeId(n), w)).collect()
            )),
        ]
    }

    proptest! {
        #[test]
        fn runs_are_the_units_in_order(layout in any_layout(), units in 0..100usize) {
            let plan = Plan::new(&layout, units, &nodes("0-2")).unwrap();
            let mut next = 0;
            let mut last = None;
            for (node, run) in plan.runs() {
                prop_assert_eq!(run.start, next);
                prop_assert!(!run.is_empty() && last != Some(node));
                prop_assert!(run.clone().all(|unit| plan.node_of(unit) == node));
                prop_assert!(plan.nodes().contains(node));
                (next, last) = (run.end, Some(node));
            }
            prop_assert_eq!(next, units);
        }
    }
}
