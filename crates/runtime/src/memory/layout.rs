//! Which page goes to which node.

use crate::error::{Error, Result};
use crate::nearest::MemoryNodes;
use nodewise_topology::{NodeId, NodeSet};
use std::ops::Range;

/// Where the pages of an array go.
///
/// Layouts that name no nodes take the nodes with CPUs that this process may have memory on. Memory that lies
/// apart from all CPUs, such as that of an expander (CXL) or a device, is used only where it is named, or is
/// the nearest that some CPU has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// All pages on one node.
    On(NodeId),
    /// Page after page round the nodes with CPUs, in ascending order: for data that all use.
    Interleaved,
    /// As [`Layout::Interleaved`], with as many pages in a row on each node as its weight says: for nodes of
    /// unequal bandwidth. A weight of 0 leaves a node out.
    Weighted(Vec<(NodeId, u32)>),
    /// One block of neighbouring pages on each node with CPUs, in ascending order, all but the last of the
    /// same size: for data that each node uses a part of. Intel's article on NUMA migrations finds this
    /// ahead of interleaving.
    Blocked,
}

/// Layouts of so many units on real nodes, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Without gaps, from unit 0 on.
    parts: Vec<Part>,
}

/// Units laid out together: `run` units on each node of the cycle, round and round.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    units: Range<usize>,
    cycle: Vec<NodeId>,
    run: usize,
    /// The unit that the cycle began with.
    origin: usize,
}

/// Weights are sizes of runs in a table; a machine whose bandwidths differ more is none.
const WEIGHTS_SUM_MAX: u64 = 1 << 16;

impl Plan {
    /// Lays `units` over nodes.
    pub(crate) fn new(layout: &Layout, units: usize, memory: &MemoryNodes) -> Result<Self> {
        let MemoryNodes { allowed, near_cpus, .. } = memory;
        let all = || near_cpus.iter().collect::<Vec<_>>();
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
            None => Ok(Self { parts: vec![Part { units: 0..units, cycle, run, origin: 0 }] }),
        }
    }

    /// Lays the units from `start` on out as another plan does, as many as that has.
    pub(crate) fn lay_out(&mut self, start: usize, other: Self) {
        let moved = other.parts.into_iter().map(|part| Part {
            units: part.units.start + start..part.units.end + start,
            origin: part.origin + start,
            ..part
        });
        let moved: Vec<Part> = moved.filter(|part| !part.units.is_empty()).collect();
        let end = moved.last().map_or(start, |part| part.units.end);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for part in std::mem::take(&mut self.parts) {
            before.extend(part.clone().within(0..start));
            after.extend(part.within(end..usize::MAX));
        }
        self.parts = [before, moved, after].concat();
    }

    /// How many units there are.
    pub(crate) fn units(&self) -> usize {
        self.parts.last().map_or(0, |part| part.units.end)
    }

    /// The nodes that get something to hold, ascending.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.parts.iter().flat_map(|part| part.nodes().iter().collect::<Vec<_>>()).collect()
    }

    /// The node of a unit.
    pub(crate) fn node_of(&self, unit: usize) -> NodeId {
        let part = self.parts.partition_point(|part| part.units.end <= unit);
        self.parts[part].node_of(unit)
    }

    /// The units in order, neighbours on the same node together.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (NodeId, Range<usize>)> + '_ {
        let mut runs = self.parts.iter().flat_map(Part::runs).peekable();
        std::iter::from_fn(move || {
            let (node, mut units) = runs.next()?;
            while let Some((_, more)) = runs.next_if(|(next, _)| *next == node) {
                units.end = more.end;
            }
            Some((node, units))
        })
    }

    /// Parts of `units` and where they go: a node, or several in turn.
    pub(crate) fn policies(&self, units: &Range<usize>) -> Vec<(Range<usize>, Vec<NodeId>)> {
        let mut policies = Vec::new();
        for part in self.parts.iter().filter_map(|part| part.clone().within(units.clone())) {
            let nodes: Vec<NodeId> = part.nodes().iter().collect();
            let runs: Vec<_> = part.runs().take(nodes.len() + 1).collect();
            // A mapping for each node at most; what is finer interleaves.
            if runs.len() <= nodes.len() {
                policies.extend(runs.into_iter().map(|(node, units)| (units, vec![node])));
            } else {
                policies.push((part.units, nodes));
            }
        }
        policies
    }
}

impl Part {
    /// The part of it that is among `units`.
    fn within(mut self, units: Range<usize>) -> Option<Self> {
        self.units = self.units.start.max(units.start)..self.units.end.min(units.end);
        (!self.units.is_empty()).then_some(self)
    }

    fn node_of(&self, unit: usize) -> NodeId {
        self.cycle[(unit - self.origin) / self.run % self.cycle.len()]
    }

    fn nodes(&self) -> NodeSet {
        let one_each = (self.units.clone().step_by(self.run)).take(self.cycle.len());
        let last = self.units.end.checked_sub(1);
        one_each.chain(last.filter(|last| self.units.contains(last))).map(|unit| self.node_of(unit)).collect()
    }

    fn runs(&self) -> impl Iterator<Item = (NodeId, Range<usize>)> + '_ {
        let mut start = self.units.start;
        std::iter::from_fn(move || {
            let node = (start < self.units.end).then(|| self.node_of(start))?;
            // Past the end of the run that it is in.
            let mut end = start + self.run - (start - self.origin) % self.run;
            while end < self.units.end && self.node_of(end) == node {
                end += self.run;
            }
            let run = start..end.min(self.units.end);
            start = run.end;
            Some((node, run))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Memory on some nodes, one of them without CPUs.
    fn nodes(list: &str, apart: u32) -> MemoryNodes {
        let allowed: NodeSet = list.parse().unwrap();
        let near_cpus = allowed.iter().filter(|node| node.0 != apart).collect();
        MemoryNodes { allowed, near_cpus, bytes: Some(1 << 30) }
    }

    fn laid(layout: &Layout, units: usize, allowed: &str) -> Vec<u32> {
        let plan = Plan::new(layout, units, &nodes(allowed, 4)).unwrap();
        (0..units).map(|unit| plan.node_of(unit).0).collect()
    }

    #[test]
    fn units_go_where_the_layout_says() {
        assert_eq!(laid(&Layout::On(NodeId(2)), 3, "0-2"), [2, 2, 2]);
        assert_eq!(laid(&Layout::On(NodeId(4)), 3, "0-4"), [4, 4, 4]);
        assert_eq!(laid(&Layout::Interleaved, 5, "0,2-4"), [0, 2, 3, 0, 2]);
        assert_eq!(laid(&Layout::Blocked, 7, "0-2,4"), [0, 0, 0, 1, 1, 1, 2]);
        let weights = vec![(NodeId(1), 2), (NodeId(0), 1), (NodeId(3), 0)];
        assert_eq!(laid(&Layout::Weighted(weights), 7, "0-1"), [1, 1, 0, 1, 1, 0, 1]);
        let weights = vec![(NodeId(4), 2), (NodeId(0), 1)];
        assert_eq!(laid(&Layout::Weighted(weights), 4, "0,4"), [4, 4, 0, 4]);
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused_with_the_reason() {
        let refused = |layout: &Layout| Plan::new(layout, 1, &nodes("0,2", 4)).unwrap_err().to_string();
        assert_eq!(
            refused(&Layout::On(NodeId(1))),
            "node 1 has no memory for this process; those that have: 0,2"
        );
        assert!(refused(&Layout::Weighted(vec![(NodeId(0), 0)])).contains("without a node"));
        assert!(refused(&Layout::Weighted(vec![(NodeId(0), u32::MAX)])).contains("divide"));
        assert!(Plan::new(&Layout::Blocked, 1, &nodes("", 4)).is_err());
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
            let plan = Plan::new(&layout, units, &nodes("0-2", 4)).unwrap();
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

        #[test]
        fn ranges_are_laid_out_anew_one_over_the_other(
            layout in any_layout(),
            others in proptest::collection::vec((any_layout(), 0..100usize, 0..100usize), 0..6),
        ) {
            let allowed = nodes("0-2", 4);
            let mut plan = Plan::new(&layout, 100, &allowed).unwrap();
            let mut expected: Vec<NodeId> = (0..100).map(|unit| plan.node_of(unit)).collect();
            for (layout, a, b) in others {
                let units = a.min(b)..a.max(b);
                let other = Plan::new(&layout, units.len(), &allowed).unwrap();
                for unit in units.clone() {
                    expected[unit] = other.node_of(unit - units.start);
                }
                plan.lay_out(units.start, other);
            }
            prop_assert_eq!(plan.units(), 100);
            let of_runs = plan.runs().flat_map(|(node, units)| units.map(move |_| node));
            prop_assert_eq!(of_runs.collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(plan.nodes(), expected.iter().copied().collect());
            for (units, nodes) in plan.policies(&(10..90)) {
                prop_assert!(units.start >= 10 && units.end <= 90);
                prop_assert!(expected[units].iter().all(|node| nodes.contains(node)));
            }
        }
    }
}
