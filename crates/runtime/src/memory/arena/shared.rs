//! [`SharedArena`]: an arena that the collections in it keep.

use super::NodeArena;
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A [`NodeArena`] with several owners: each collection that takes its memory from it is one, and so is each
/// clone.
///
/// It is an allocator of the crate `allocator-api2`, as the arena itself. The last owner gives the memory
/// back to the system.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use nodewise_runtime::{NodeArena, SharedArena, current_node};
///
/// let arena = SharedArena::from(NodeArena::on(current_node())?);
/// let mut near: Vec<u64, SharedArena> = Vec::new_in(arena);
/// near.extend(0..1000);
/// assert_eq!(near.allocator().placement()?.misplaced, 0);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedArena(Arc<NodeArena>);

impl From<NodeArena> for SharedArena {
    fn from(arena: NodeArena) -> Self {
        Self(Arc::new(arena))
    }
}

impl Deref for SharedArena {
    type Target = NodeArena;

    fn deref(&self) -> &NodeArena {
        &self.0
    }
}

impl fmt::Debug for SharedArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: clones are the same arena, which keeps its blocks as long as one of them lives.
unsafe impl Allocator for SharedArena {
    #[inline]
    fn allocate(&self, layout: alloc::Layout) -> Result<NonNull<[u8]>, AllocError> {
        Allocator::allocate(&*self.0, layout)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: alloc::Layout) {
        // SAFETY: by contract.
        unsafe { Allocator::deallocate(&*self.0, block, layout) };
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: alloc::Layout,
        new: alloc::Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by contract.
        unsafe { self.0.grow(block, old, new) }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: alloc::Layout,
        new: alloc::Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by contract.
        unsafe { self.0.shrink(block, old, new) }
    }
}
