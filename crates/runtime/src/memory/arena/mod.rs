//! [`NodeArena`]: an allocator whose memory lies as a [`Layout`] says.
//!
//! Memory comes from the system in chunks, which are placed and looked at like a [`crate::NodeVec`]. Requests
//! are rounded up to size classes. Up to 8 KiB each CPU has free blocks of its own, for which hardly another
//! CPU's threads ask. It cuts new ones from a span of 64 KiB, and gives surplus blocks to the other CPUs a
//! batch at a time. Larger blocks, up to 256 KiB, are cut from the chunks under one lock. Each block that is
//! larger still is a mapping of its own, and the one that was freed last is kept.

#![allow(unsafe_code)]

mod blocks;
mod class;
mod shards;
mod shared;

use super::layout::{Layout, Plan};
use super::place::{Fallback, HUGE_BYTES, Placed, Placement, map};
use crate::error::{Error, Result};
use crate::nearest::MemoryNodes;
use crate::sync::{Mutex, lock};
use allocator_api2::alloc::{AllocError, Allocator};
use blocks::{Batches, Chain, Span, batch_of_one};
use class::{CLASSES, Class};
use nodewise_sys::page_bytes;
use nodewise_topology::NodeId;
use shards::Shards;
pub use shared::SharedArena;
use std::alloc;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

/// The least and the most that an arena takes from the system at once.
///
/// An arena grows by an eighth of what it has, as a process may have 65 530 mappings.
#[derive(Clone, Copy, Debug)]
struct Steps {
    /// Bytes that a CPU takes at a time.
    span: usize,
    /// Bytes of the first chunk.
    chunk: usize,
}

const STEPS: Steps = Steps { span: 64 << 10, chunk: HUGE_BYTES };
/// The steps of an arena with few blocks: a node's copy of a value may be a word.
const STEPS_OF_COPIES: Steps = Steps { span: 16 << 10, chunk: 16 << 10 };
const CHUNK_BYTES_MOST: usize = 128 << 20;
/// A large block that is freed is kept if it is not larger. A collection that moves takes one as large as it
/// gives back, and bringing memory in takes longer than filling it.
const SPARE_BYTES_MOST: usize = 8 << 20;

/// Memory that lies as a [`Layout`] says, for values of any size; given back to the system when the arena is
/// dropped.
///
/// It is an allocator of the crate [`allocator_api2`](crate::allocator_api2), as is a reference to it: that
/// crate's `Vec` and `Box`, and `hashbrown`'s maps, take their memory from it. Other languages use
/// [`NodeArena::allocate`] and [`NodeArena::deallocate`]. Any number of threads may; those of different
/// CPUs rarely wait for each other.
///
/// It grows in chunks aligned to huge pages, each brought in, placed and checked at once, so that a request
/// may take milliseconds. Small blocks that are freed serve requests of the same size class again. Only those
/// larger than 256 KiB go back to the system before the arena does, but for the last of up to 8 MiB. The
/// kernel's balancing leaves the memory alone.
///
/// ```
/// use nodewise_runtime::allocator_api2::vec::Vec;
/// use nodewise_runtime::{NodeArena, current_node};
///
/// let arena = NodeArena::on(current_node())?;
/// let mut near = Vec::new_in(&arena);
/// near.extend(0..1000);
/// assert_eq!(near[999], 999);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
pub struct NodeArena {
    layout: Layout,
    huge: bool,
    fallback: Fallback,
    nodes: MemoryNodes,
    steps: Steps,
    shards: Shards,
    central: Mutex<Central>,
}

// SAFETY: the addresses in it are of memory that it owns, free blocks that nobody uses; all is behind locks.
unsafe impl Send for NodeArena {}
// SAFETY: as above.
unsafe impl Sync for NodeArena {}

/// The parts that all CPUs share.
struct Central {
    batches: [Batches; CLASSES],
    span: Span,
    chunks: Vec<Placed>,
    /// Mappings of their own, by address.
    large: BTreeMap<usize, Placed>,
    /// The one that was given back last.
    spare: Option<(NonNull<u8>, Placed)>,
}

impl Central {
    /// All that it has from the system.
    fn all(&self) -> impl Iterator<Item = &Placed> {
        let spare = self.spare.iter().map(|(_, placed)| placed);
        self.chunks.iter().chain(self.large.values()).chain(spare)
    }

    /// The spare mapping, if it is large enough and not twice as large.
    fn take_spare(&mut self, bytes: usize, align: usize) -> Option<(NonNull<u8>, Placed)> {
        self.spare.take_if(|(start, placed)| {
            let has = placed.memory.len_bytes();
            (bytes..bytes.saturating_mul(2)).contains(&has) && start.addr().get() % align == 0
        })
    }
}

/// How a [`NodeArena`] is made.
#[derive(Clone, Debug)]
pub struct NodeArenaBuilder {
    layout: Layout,
    huge: bool,
    fallback: Fallback,
}

impl NodeArenaBuilder {
    /// Lays out each chunk by `layout`. Chunks start at 2 MiB and grow to 128 MiB. An arena on one node takes
    /// huge pages; others take base pages, so that few values too are spread.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { huge: matches!(layout, Layout::On(_)), layout, fallback: Fallback::default() }
    }

    /// Whether to take huge pages of 2 MiB where the system gives them, and to lay out in steps of 2 MiB.
    #[must_use]
    pub fn huge_pages(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }

    /// The arena's answer to pages that find no room on their node, or whose place nobody knows.
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Makes an arena. It takes no memory for values yet.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Layout`]: the layout names a node that has no memory for this process.
    /// [`crate::ErrorKind::Machine`]: `/sys` or `/proc` cannot be read.
    pub fn build(self) -> Result<NodeArena> {
        let nodes = MemoryNodes::of_this_process()?;
        Plan::new(&self.layout, 1, &nodes)?;
        Ok(self.with(nodes, STEPS, Shards::new()))
    }

    fn with(self, nodes: MemoryNodes, steps: Steps, shards: Shards) -> NodeArena {
        let central = Central {
            batches: std::array::from_fn(|_| Batches::default()),
            span: Span::default(),
            chunks: Vec::new(),
            large: BTreeMap::new(),
            spare: None,
        };
        NodeArena {
            layout: self.layout,
            huge: self.huge,
            fallback: self.fallback,
            nodes,
            steps,
            shards,
            central: Mutex::new(central),
        }
    }
}

impl NodeArena {
    /// An arena of huge pages that must all find room on this node.
    ///
    /// # Errors
    /// As [`NodeArenaBuilder::build`].
    pub fn on(node: NodeId) -> Result<Self> {
        NodeArenaBuilder::new(Layout::On(node)).build()
    }

    /// For a copy of a value on one of `nodes`. One thread at a time makes or changes a copy, and a full node
    /// is no error.
    pub(crate) fn of_copy(node: NodeId, nodes: &MemoryNodes) -> Self {
        let builder = NodeArenaBuilder::new(Layout::On(node)).fallback(Fallback::Anywhere);
        builder.with(nodes.clone(), STEPS_OF_COPIES, Shards::one())
    }

    /// Memory for at least `bytes`, aligned to `align`: the block's address and real length. Its contents are
    /// not defined. 0 bytes are a block like any other. Whoever takes it gives it back by
    /// [`NodeArena::deallocate`], or with the arena.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Memory`]: the nodes that this process could have memory on when the arena was made
    /// had less, `align` is no power of two, or the kernel refuses a call. A refusal by a container's filter
    /// is an error only where there are several nodes and the fallback is [`Fallback::Error`].
    /// [`crate::ErrorKind::NodeFull`]: pages found no room on their node, and the fallback is that. The arena
    /// can be used on after both. No error tells of a request for more than is free, as with
    /// [`crate::NodeVecBuilder::build`].
    #[inline]
    pub fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<[u8]>> {
        if !align.is_power_of_two() {
            return Err(Error::alignment(align));
        }
        match Class::of(bytes, align) {
            Some(class) => {
                let block = if class.is_small() { self.small(class)? } else { self.medium(class)? };
                Ok(NonNull::slice_from_raw_parts(block, class.bytes()))
            }
            None => self.large(bytes, align),
        }
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `block` is the start of what [`NodeArena::allocate`] of this arena returned, not given back since, and
    /// nobody uses it any more. `bytes` is what was asked for then, or up to the real length; `align` is
    /// what was asked for.
    #[inline]
    pub unsafe fn deallocate(&self, block: NonNull<u8>, bytes: usize, align: usize) {
        match Class::of(bytes, align) {
            Some(class) if class.is_small() => {
                // SAFETY: by contract; the same request has the same class.
                if !self.shards.own().is_some_and(|mut shard| unsafe { shard.try_push(class, block) }) {
                    // SAFETY: likewise.
                    unsafe { self.take_back(class, block) };
                }
            }
            // SAFETY: as above; batches are of more than one up to 8 KiB only.
            Some(class) => self.share(class, unsafe { batch_of_one(block) }),
            None => self.unmap(block),
        }
    }

    /// # Safety
    /// `block` is a block of the class that nobody uses.
    #[cold]
    unsafe fn take_back(&self, class: Class, block: NonNull<u8>) {
        // SAFETY: by contract.
        let full = unsafe { self.shards.any().push(class, block) };
        if let Some(batch) = full {
            self.share(class, batch);
        }
    }

    #[cold]
    fn share(&self, class: Class, batch: Chain) {
        lock(&self.central).batches[class.index()].push(batch);
    }

    #[cold]
    fn unmap(&self, block: NonNull<u8>) {
        let mut central = lock(&self.central);
        let Some(mapping) = central.large.remove(&block.addr().get()) else { return };
        let gone = if mapping.memory.len_bytes() <= SPARE_BYTES_MOST {
            central.spare.replace((block, mapping)).map(|(_, mapping)| mapping)
        } else {
            Some(mapping)
        };
        // The kernel takes it back while others may go on.
        drop(central);
        drop(gone);
    }

    /// The layout of each chunk.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory that it has from the system, in bytes.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        lock(&self.central).all().map(|placed| placed.memory.len_bytes()).sum()
    }

    /// Asks the kernel where the pages are now, used or free. A thread that needs new memory waits meanwhile.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Memory`]: a container's filter refuses `move_pages(2)`.
    pub fn placement(&self) -> Result<Placement> {
        let central = lock(&self.central);
        let mut sum = Placement::default();
        for placed in central.all() {
            sum.add(&placed.placement(placed.all())?);
        }
        Ok(sum)
    }

    #[inline]
    fn small(&self, class: Class) -> Result<NonNull<u8>> {
        let block = self.shards.own().and_then(|mut shard| shard.pop(class));
        block.map_or_else(|| self.refill(class), Ok)
    }

    #[cold]
    fn refill(&self, class: Class) -> Result<NonNull<u8>> {
        let shard = &mut *self.shards.any();
        if let Some(block) = shard.pop_spare(class) {
            return Ok(block);
        }
        let mut central = lock(&self.central);
        if let Some(batch) = central.batches[class.index()].pop(class) {
            shard.load(class, batch);
            return Ok(shard.pop(class).expect("a batch is not empty"));
        }
        let span_bytes = self.steps.span;
        let start = self.cut(&mut central, span_bytes, span_bytes)?;
        // SAFETY: just cut.
        shard.span = unsafe { Span::new(start, span_bytes) };
        Ok(shard.span.cut(class.bytes(), class.align()).expect("small blocks fit into a span"))
    }

    #[cold]
    fn medium(&self, class: Class) -> Result<NonNull<u8>> {
        let mut central = lock(&self.central);
        if let Some(mut batch) = central.batches[class.index()].pop(class) {
            return Ok(batch.pop().expect("a batch is not empty"));
        }
        self.cut(&mut central, class.bytes(), class.align())
    }

    /// Memory that was never used, from a new chunk if need be.
    fn cut(&self, central: &mut Central, bytes: usize, align: usize) -> Result<NonNull<u8>> {
        if let Some(block) = central.span.cut(bytes, align) {
            return Ok(block);
        }
        let has: usize = central.chunks.iter().map(|chunk| chunk.memory.len_bytes()).sum();
        let step = self.steps.chunk;
        let least = step.max(bytes);
        let wanted = (has / 8).next_multiple_of(step).min(CHUNK_BYTES_MOST).max(least);
        // Where there is no room for much there may be for little.
        let (start, chunk) = self
            .map(wanted, HUGE_BYTES)
            .or_else(|error| if wanted > least { self.map(least, HUGE_BYTES) } else { Err(error) })?;
        // SAFETY: the chunk is new and stays mapped as long as the arena.
        central.span = unsafe { Span::new(start, chunk.memory.len_bytes()) };
        central.chunks.push(chunk);
        Ok(central.span.cut(bytes, align).expect("blocks fit into a chunk"))
    }

    #[cold]
    fn large(&self, bytes: usize, align: usize) -> Result<NonNull<[u8]>> {
        let spare = lock(&self.central).take_spare(bytes, align);
        let (start, mapping) = match spare {
            Some(spare) => spare,
            None => self.map(bytes.max(1), align.max(HUGE_BYTES))?,
        };
        let bytes = mapping.memory.len_bytes();
        lock(&self.central).large.insert(start.addr().get(), mapping);
        Ok(NonNull::slice_from_raw_parts(start, bytes))
    }

    /// New memory in its place.
    fn map(&self, bytes: usize, align: usize) -> Result<(NonNull<u8>, Placed)> {
        let mut memory = map(bytes, align, &self.nodes)?;
        // Taken once: whoever borrows the memory as bytes later would claim what users of blocks have.
        let start = NonNull::from(memory.as_mut_bytes()).cast();
        let unit_bytes = if self.huge { HUGE_BYTES } else { page_bytes() };
        let plan = Plan::new(&self.layout, memory.len_bytes().div_ceil(unit_bytes), &self.nodes)?;
        let mut placed = Placed { memory, unit_bytes, plan };
        placed.touch_here(self.huge)?;
        placed.settle(placed.all(), self.fallback)?;
        Ok((start, placed))
    }

    /// The block again, if it serves the other request as well.
    fn in_place(block: NonNull<u8>, old: alloc::Layout, new: alloc::Layout) -> Option<NonNull<[u8]>> {
        let class = Class::of(new.size(), new.align())?;
        let same = Class::of(old.size(), old.align()) == Some(class);
        same.then(|| NonNull::slice_from_raw_parts(block, class.bytes()))
    }

    /// # Safety
    /// As [`Allocator::grow`] or [`Allocator::shrink`].
    unsafe fn resize(
        &self,
        block: NonNull<u8>,
        old: alloc::Layout,
        new: alloc::Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if let Some(same) = Self::in_place(block, old, new) {
            return Ok(same);
        }
        let other = Allocator::allocate(self, new)?;
        let bytes = old.size().min(new.size());
        // SAFETY: both are blocks of at least so many bytes, and the new one is nobody else's.
        unsafe { block.copy_to_nonoverlapping(other.cast(), bytes) };
        // SAFETY: by contract.
        unsafe { Self::deallocate(self, block, old.size(), old.align()) };
        Ok(other)
    }
}

// SAFETY: blocks stay where they are, and mapped, until they are given back or the arena is dropped; it has
// no copies.
unsafe impl Allocator for NodeArena {
    #[inline]
    fn allocate(&self, layout: alloc::Layout) -> Result<NonNull<[u8]>, AllocError> {
        Self::allocate(self, layout.size(), layout.align()).map_err(|_| AllocError)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: alloc::Layout) {
        // SAFETY: by contract.
        unsafe { Self::deallocate(self, block, layout.size(), layout.align()) };
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: alloc::Layout,
        new: alloc::Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by contract.
        unsafe { self.resize(block, old, new) }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: alloc::Layout,
        new: alloc::Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by contract.
        unsafe { self.resize(block, old, new) }
    }
}

impl fmt::Debug for NodeArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeArena").field("layout", &self.layout).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
