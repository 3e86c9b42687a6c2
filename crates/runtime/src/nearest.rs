//! Which of several copies is nearest to a node.

use crate::error::Result;
use nodewise_topology::{NodeId, Topology};

/// For each node's number, the place of the nearest of some nodes.
#[derive(Clone, Debug)]
pub(crate) struct Nearest(Box<[usize]>);

impl Nearest {
    /// The nearest among `nodes` by the machine's distances; of several as near, the first.
    pub(crate) fn among(nodes: &[NodeId]) -> Result<Self> {
        let topology = Topology::live()?;
        let numbers = topology.nodes().iter().map(|node| node.id.0 as usize + 1).max().unwrap_or(0);
        let mut nearest = vec![0; numbers];
        for from in topology.node_indices() {
            let distance = |place: &usize| {
                let to = topology.index_of(nodes[*place]);
                to.map_or(u32::MAX, |to| topology.distance(from, to))
            };
            let best = (0..nodes.len()).min_by_key(distance);
            nearest[topology.id_of(from).0 as usize] = best.unwrap_or(0);
        }
        Ok(Self(nearest.into()))
    }

    /// The place of the nearest to this node; 0 for one that is not in the machine.
    #[inline]
    pub(crate) fn to(&self, node: NodeId) -> usize {
        self.0.get(node.0 as usize).copied().unwrap_or(0)
    }
}
