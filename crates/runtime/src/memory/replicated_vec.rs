//! [`ReplicatedVec`]: one copy on each node.

use super::layout::Layout;
use super::node_vec::{NodeVec, NodeVecBuilder};
use super::place::Fallback;
use crate::error::{Error, Result};
use crate::location::current_node;
use crate::nearest::{MemoryNodes, Nearest};
use bytemuck::Pod;
use nodewise_topology::NodeId;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// An array with a copy on every node with CPUs, or on the nearest node that has memory for this process. It
/// is for data that all read and few write.
///
/// Reading never waits and goes to the local copy. Writing takes `&mut`, so that nobody reads meanwhile.
pub struct ReplicatedVec<T> {
    copies: Vec<(NodeId, NodeVec<T>)>,
    nearest: Nearest,
}

impl<T: Pod> ReplicatedVec<T> {
    /// Copies `values` to each node.
    ///
    /// Where a container's filter refuses memory policies and `move_pages(2)`, a copy lies where threads on
    /// its node's CPUs touch it first.
    ///
    /// # Errors
    /// As [`crate::NodeVecBuilder::build`], of any of the copies.
    pub fn new(values: &[T]) -> Result<Self> {
        Self::aligned(values, 1)
    }

    /// Copies `values` as [`ReplicatedVec::new`] does, to addresses that are multiples of so many bytes, as
    /// [`NodeVecBuilder::align`] has it.
    ///
    /// # Errors
    /// As [`crate::NodeVecBuilder::build`], of any of the copies.
    pub fn aligned(values: &[T], align_bytes: usize) -> Result<Self> {
        let builder =
            |node| NodeVecBuilder::new(Layout::On(node)).align(align_bytes).fallback(Fallback::Anywhere);
        let mut copies = Vec::new();
        for node in MemoryNodes::of_this_process()?.near_cpus.iter() {
            let mut copy = builder(node).build(values.len())?;
            if let Some(placement) = copy.placement().ok().filter(|placement| placement.misplaced > 0) {
                return Err(Error::node_full(&placement));
            }
            copy.copy_from_slice(values);
            copies.push((node, copy));
        }
        let nodes: Vec<NodeId> = copies.iter().map(|(node, _)| *node).collect();
        let nearest = Nearest::among(&nodes)?;
        Ok(Self { copies, nearest })
    }

    /// The copy nearest to the calling thread.
    #[inline]
    #[must_use]
    pub fn local(&self) -> &[T] {
        self.near(current_node())
    }

    /// The copy nearest to a node.
    #[inline]
    #[must_use]
    pub fn near(&self, node: NodeId) -> &[T] {
        &self.copies[self.nearest.to(node)].1
    }

    /// The nodes that have a copy, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.copies.iter().map(|(node, _)| *node)
    }

    /// Changes one copy, then makes the others like it.
    ///
    /// # Panics
    /// With what `change` panicked with; the others are like the changed copy all the same.
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [T]) -> R) -> R {
        let Some(((_, first), others)) = self.copies.split_first_mut() else {
            return change(&mut []);
        };
        let changed = catch_unwind(AssertUnwindSafe(|| change(first)));
        for (_, copy) in others {
            copy.copy_from_slice(first);
        }
        changed.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> fmt::Debug for ReplicatedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedVec").field("copies", &self.copies.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_has_what_was_written() {
        let mut primes = ReplicatedVec::new(&[2_u16, 3, 5, 8]).unwrap();
        assert_eq!(primes.local(), [2, 3, 5, 8]);
        assert_eq!(primes.update(|values| std::mem::replace(&mut values[3], 7)), 8);
        for node in primes.nodes().collect::<Vec<_>>() {
            assert_eq!(primes.near(node), [2, 3, 5, 7]);
        }
        assert_eq!(primes.near(NodeId(999)), [2, 3, 5, 7]);
        assert!(ReplicatedVec::<u64>::new(&[]).unwrap().local().is_empty());
    }

    #[test]
    fn copies_stay_alike_after_a_panic() {
        let here = MemoryNodes::of_this_process().unwrap().allowed.first().unwrap();
        let copy = || (here, NodeVec::<u16>::new(2, Layout::On(here)).unwrap());
        let nearest = Nearest::among(&[here]).unwrap();
        let mut copied = ReplicatedVec { copies: vec![copy(), copy(), copy()], nearest };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            copied.update(|values| {
                values[0] = 1;
                panic!("half way");
            });
        }));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"half way"));
        assert!(copied.copies.iter().all(|(_, copy)| copy[..] == [1, 0]));
    }
}
