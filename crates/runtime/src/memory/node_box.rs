//! [`NodeBox`]: a value on pages of its own.

#![allow(unsafe_code)]

use super::layout::{Layout, Plan};
use super::place::{Fallback, Placed, Placement, prefer};
use crate::error::{Error, Result};
use crate::nearest::MemoryNodes;
use nodewise_sys::{OwnedMemory, page_bytes};
use nodewise_topology::NodeId;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// A value that lies on its node, however small: what an allocator gives may be on a page that another node
/// touched first.
pub(crate) struct NodeBox<T> {
    value: NonNull<T>,
    /// The memory that the value lies in, unmapped after the value was dropped.
    placed: Placed,
}

// SAFETY: it owns the value and the memory.
unsafe impl<T: Send> Send for NodeBox<T> {}
// SAFETY: it gives nothing but `&T`.
unsafe impl<T: Sync> Sync for NodeBox<T> {}

impl<T> NodeBox<T> {
    /// On this one of `nodes`, if it has room. A huge page might hold those of several nodes, so it takes
    /// base pages. Memory that `make` allocates comes from the node, too, as far as the allocator asks the
    /// system for it.
    pub(crate) fn on(node: NodeId, nodes: &MemoryNodes, make: impl FnOnce() -> T) -> Result<Self> {
        let place = |placed: &mut Placed| {
            placed.touch_here(false)?;
            placed.settle(placed.all(), Fallback::Anywhere).map(drop)
        };
        prefer(node, || Self::placed(node, nodes, place, make))
            .map_err(|error| Error::memory("cannot prefer a node's memory".to_owned(), error))?
    }

    /// Where the calling thread gets memory.
    #[cfg(test)]
    pub(crate) fn new(make: impl FnOnce() -> T) -> Result<Self> {
        let nodes = || [NodeId(0)].into_iter().collect();
        let nodes = MemoryNodes { allowed: nodes(), near_cpus: nodes(), bytes: Some(u64::MAX) };
        Self::placed(NodeId(0), &nodes, |_| Ok(()), make)
    }

    fn placed(
        node: NodeId,
        nodes: &MemoryNodes,
        place: impl FnOnce(&mut Placed) -> Result<()>,
        make: impl FnOnce() -> T,
    ) -> Result<Self> {
        let bytes = size_of::<T>().max(1);
        let mut memory = OwnedMemory::new(bytes, page_bytes().max(align_of::<T>()))
            .map_err(|error| Error::memory(format!("cannot map {bytes} bytes"), error))?;
        // Taken once, as nobody else borrows the memory.
        let value = NonNull::from(memory.as_mut_bytes()).cast::<T>();
        let plan = Plan::new(&Layout::On(node), memory.len_bytes() / page_bytes(), nodes)?;
        let mut placed = Placed { memory, unit_bytes: page_bytes(), plan };
        place(&mut placed)?;
        // SAFETY: so many bytes are mapped, aligned, and used by nobody else.
        unsafe { value.write(make()) };
        Ok(Self { value, placed })
    }

    /// Asks the kernel where its pages are now.
    pub(crate) fn placement(&self) -> Result<Placement> {
        self.placed.placement(self.placed.all())
    }
}

impl<T> Deref for NodeBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: written when this was made, and valid as long as this lives.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for NodeBox<T> {
    fn drop(&mut self) {
        // SAFETY: nobody borrows the value any more, and nothing else drops it.
        unsafe { self.value.drop_in_place() };
    }
}

impl<T: fmt::Debug> fmt::Debug for NodeBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    #[test]
    fn a_value_lies_alone_and_is_dropped_once() {
        #[repr(align(128))]
        struct Padded(Arc<()>);
        let counted = Arc::new(());
        let boxes = [0, 1].map(|_| NodeBox::new(|| Padded(counted.clone())).unwrap());
        assert!(boxes.iter().all(|padded| Arc::ptr_eq(&padded.0, &counted)));
        assert!(boxes.iter().all(|padded| std::ptr::from_ref(&**padded).addr() % page_bytes() == 0));
        assert_eq!(Arc::strong_count(&counted), 3);
        drop(boxes);
        assert_eq!(Arc::strong_count(&counted), 1);
        let made = catch_unwind(AssertUnwindSafe(|| NodeBox::<()>::new(|| panic!("on order"))));
        assert!(made.is_err());
    }
}
