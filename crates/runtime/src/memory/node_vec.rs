//! [`NodeVec`]: an array whose pages lie as a [`Layout`] says.

use super::layout::{Layout, Plan};
use super::place::{Fallback, HUGE_BYTES, Placed, Placement, map};
use crate::error::{Error, Result};
use crate::nearest::MemoryNodes;
use crate::parallel::Divide;
use crate::pool::NodePool;
use crate::team::in_teams;
use bytemuck::Pod;
use nodewise_sys::page_bytes;
use nodewise_topology::NodeId;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::slice;

/// An array of fixed length whose pages lie as a [`Layout`] says; all bits zero at first.
///
/// All pages are brought in when it is made, each node's by a thread that prefers its memory, and then looked
/// at: [`NodeVec::placement`] tells what came of it. The kernel's balancing leaves the memory alone. It is
/// given back to the system when dropped.
///
/// It is a slice to its user: any thread may read it, and `&mut` gives it to one writer, or to the pool by
/// [`NodeVec::for_each_block`].
///
/// ```
/// use nodewise_runtime::{Layout, NodePool, NodeVec};
///
/// let pool = NodePool::new()?;
/// let mut squares = NodeVec::<u64>::new(1 << 16, Layout::Blocked)?;
/// squares.for_each_block(&pool, |block, values| {
///     for (i, value) in block.elements.zip(values) {
///         *value = (i * i) as u64;
///     }
/// });
/// assert_eq!(squares[300], 90_000);
/// assert_eq!(squares.placement()?.misplaced, 0);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
pub struct NodeVec<T> {
    placed: Placed,
    layout: Layout,
    fallback: Fallback,
    len: usize,
    elements: PhantomData<T>,
}

/// How a [`NodeVec`] is made.
#[derive(Clone, Debug)]
pub struct NodeVecBuilder<'a> {
    layout: Layout,
    huge: bool,
    align_bytes: usize,
    fallback: Fallback,
    pool: Option<&'a NodePool>,
}

/// Neighbouring elements on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The node.
    pub node: NodeId,
    /// Their indices. An element that lies across two pages belongs to the first.
    pub elements: Range<usize>,
}

impl NodeVecBuilder<'_> {
    /// Describes an array that is laid out by `layout`.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { layout, huge: false, align_bytes: 1, fallback: Fallback::default(), pool: None }
    }

    /// Takes huge pages of 2 MiB where the system gives them: fewer TLB misses, and layouts in steps of 2
    /// MiB. It takes base pages otherwise, even where transparent huge pages are always on.
    #[must_use]
    pub fn huge_pages(mut self) -> Self {
        self.huge = true;
        self
    }

    /// Has the array begin at a multiple of so many bytes, a power of two. By default it begins at a multiple
    /// of a page and of the alignment of `T`.
    #[must_use]
    pub fn align(mut self, bytes: usize) -> Self {
        self.align_bytes = bytes;
        self
    }

    /// The array's answer to pages that find no room on their node, or whose place nobody knows.
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Has this pool's workers touch the pages first, instead of a thread for each node.
    #[must_use]
    pub fn pool(self, pool: &NodePool) -> NodeVecBuilder<'_> {
        NodeVecBuilder { pool: Some(pool), ..self }
    }

    /// Makes an array of `len` elements.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Layout`]: the layout names a node that has no memory for this process.
    /// [`crate::ErrorKind::Memory`]: the nodes that this process may have memory on have less, the alignment
    /// is no power of two, or the kernel (before 5.14) refuses a call; or a container's filter does, there
    /// are several nodes, and the fallback is [`Fallback::Error`]. [`crate::ErrorKind::NodeFull`]: pages
    /// found no room on their node, and the fallback is [`Fallback::Error`]. [`crate::ErrorKind::Machine`]:
    /// `/sys` or `/proc` cannot be read. No error tells of less than that, but more than is free or than the
    /// control group may have: the kernel then reclaims memory, and ends processes if it finds none.
    ///
    /// # Panics
    /// If elements have no size.
    pub fn build<T: Pod>(self, len: usize) -> Result<NodeVec<T>> {
        let size = size_of::<T>();
        assert!(size > 0, "elements of a NodeVec have a size");
        if !self.align_bytes.is_power_of_two() {
            return Err(Error::alignment(self.align_bytes));
        }
        let unit_bytes = if self.huge { HUGE_BYTES } else { page_bytes() };
        let bytes = len.checked_mul(size).and_then(|bytes| bytes.max(1).checked_next_multiple_of(unit_bytes));
        let bytes = bytes.ok_or_else(|| Error::too_large(len, size))?;
        let nodes = MemoryNodes::of_this_process()?;
        let plan = Plan::new(&self.layout, bytes / unit_bytes, &nodes)?;
        let memory = map(bytes, unit_bytes.max(align_of::<T>()).max(self.align_bytes), &nodes)?;
        let mut placed = Placed { memory, unit_bytes, plan };
        placed.first_touch(self.pool, self.huge)?;
        placed.settle(placed.all(), self.fallback)?;
        Ok(NodeVec { placed, layout: self.layout, fallback: self.fallback, len, elements: PhantomData })
    }
}

impl<T: Pod> NodeVec<T> {
    /// An array of `len` elements on base pages that must all find room on their nodes.
    ///
    /// # Errors
    /// As [`NodeVecBuilder::build`].
    pub fn new(len: usize, layout: Layout) -> Result<Self> {
        NodeVecBuilder::new(layout).build(len)
    }

    /// The layout, but for the ranges that [`NodeVec::lay_out_range`] has changed since.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Asks the kernel where the pages are now.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Memory`]: a container's filter refuses `move_pages(2)`.
    pub fn placement(&self) -> Result<Placement> {
        self.placed.placement(self.placed.all())
    }

    /// Asks the kernel where the pages of these elements are now. A page that an element across an end lies
    /// on counts whole.
    ///
    /// # Errors
    /// As [`NodeVec::placement`]; [`crate::ErrorKind::Range`]: there are no such elements.
    pub fn placement_of(&self, elements: Range<usize>) -> Result<Placement> {
        let mut placement = Placement::default();
        self.placed.for_each_home(self.pages(&elements, page_bytes())?, |page, home| match home {
            None => placement.absent += 1,
            Some(node) => placement.count(node, self.placed.wanted(page)),
        })?;
        Ok(placement)
    }

    /// Asks for the node of each base page of these elements; none for a page that is in no memory now.
    ///
    /// # Errors
    /// As [`NodeVec::placement_of`].
    pub fn nodes_of(&self, elements: Range<usize>) -> Result<Vec<Option<NodeId>>> {
        let mut nodes = Vec::new();
        self.placed.for_each_home(self.pages(&elements, page_bytes())?, |_, home| nodes.push(home))?;
        Ok(nodes)
    }

    /// Moves the pages to where another layout wants them; the contents stay as they are.
    ///
    /// # Errors
    /// As [`NodeVecBuilder::build`]; after [`crate::ErrorKind::NodeFull`] pages that found room have moved,
    /// the rest have not.
    pub fn lay_out(&mut self, layout: Layout) -> Result<Placement> {
        self.placed.plan = Plan::new(&layout, self.placed.plan.units(), &MemoryNodes::of_this_process()?)?;
        self.layout = layout;
        self.placed.move_there(self.placed.all())?;
        self.placed.settle(self.placed.all(), self.fallback)
    }

    /// Moves the pages of these elements to where another layout wants them, as if they were an array of
    /// their own, and tells where they are then. [`NodeVec::blocks`] and what counts as misplaced follow.
    /// Pages move whole, with the elements beside the range that are on them; of an array in huge pages,
    /// so do these.
    ///
    /// # Errors
    /// As [`NodeVec::lay_out`]; [`crate::ErrorKind::Range`]: there are no such elements.
    pub fn lay_out_range(&mut self, elements: Range<usize>, layout: &Layout) -> Result<Placement> {
        let units = self.pages(&elements, self.placed.unit_bytes)?;
        let plan = Plan::new(layout, units.len(), &MemoryNodes::of_this_process()?)?;
        if units.is_empty() {
            return Ok(Placement::default());
        }
        self.placed.plan.lay_out(units.start, plan);
        self.placed.move_there(units.clone())?;
        self.placed.settle(units, self.fallback)
    }

    /// The pages of some size that elements lie on.
    fn pages(&self, elements: &Range<usize>, page_bytes: usize) -> Result<Range<usize>> {
        if elements.start > elements.end || elements.end > self.len {
            return Err(Error::range(elements, self.len));
        }
        let bytes = elements.start * size_of::<T>()..elements.end * size_of::<T>();
        let start = bytes.start / page_bytes;
        Ok(start..if bytes.is_empty() { start } else { bytes.end.div_ceil(page_bytes) })
    }

    /// The array in blocks of neighbouring elements on one node, in order.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        let first_in = |unit: usize| (unit * self.placed.unit_bytes).div_ceil(size_of::<T>()).min(self.len);
        let runs = self.placed.plan.runs();
        let blocks = runs
            .map(move |(node, units)| Block { node, elements: first_in(units.start)..first_in(units.end) });
        blocks.filter(|block| !block.elements.is_empty())
    }

    /// Blocks are not divided into pieces smaller than 64 KiB.
    const PIECE: usize = match size_of::<T>() {
        0 => 1,
        size => (64 << 10) / size,
    };

    /// Calls `body` with each of [`NodeVec::blocks`], or with pieces of the larger ones. Workers of the
    /// block's node do so, and take pieces from each other; any workers do where the pool has none there.
    /// Returns when all are done.
    ///
    /// # Panics
    /// With what `body` panicked with first.
    pub fn for_each_block(&mut self, pool: &NodePool, body: impl Fn(Block, &mut [T]) + Sync)
    where
        T: Send,
    {
        let blocks: Vec<Block> = self.blocks().collect();
        let mut rest = &mut self[..];
        let pieces = blocks.into_iter().map(|block| {
            let (values, after) = std::mem::take(&mut rest).split_at_mut(block.elements.len());
            rest = after;
            (block.node, (block, values))
        });
        in_teams(pool, pieces, Self::PIECE, |pieces| pieces.for_each(|(block, values)| body(block, values)));
    }

    /// Calls `body` as [`NodeVec::for_each_block`] does, with the same elements of another array besides.
    /// That array has the same length. If it has the same layout too, its pages lie on the same nodes. Arrays
    /// that are only read need none of this: `body` may borrow them, and index them by the block's elements.
    ///
    /// ```
    /// use nodewise_runtime::{Layout, NodePool, NodeVec};
    ///
    /// let pool = NodePool::new()?;
    /// let [mut places, mut speeds] = [0, 1].map(|_| NodeVec::<f32>::new(1000, Layout::Blocked).unwrap());
    /// places.for_each_block_with(&mut speeds, &pool, |_, places, speeds| {
    ///     for (place, speed) in places.iter_mut().zip(speeds) {
    ///         *speed += 9.81;
    ///         *place += *speed;
    ///     }
    /// });
    /// assert_eq!((places[999], speeds[999]), (9.81, 9.81));
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the arrays differ in length; with what `body` panicked with first.
    pub fn for_each_block_with<U: Send>(
        &mut self,
        other: &mut [U],
        pool: &NodePool,
        body: impl Fn(Block, &mut [T], &mut [U]) + Sync,
    ) where
        T: Send,
    {
        assert_eq!(self.len, other.len(), "the arrays have one length");
        let blocks: Vec<Block> = self.blocks().collect();
        let (mut rest, mut other_rest) = (&mut self[..], other);
        let pieces = blocks.into_iter().map(|block| {
            let (values, after) = std::mem::take(&mut rest).split_at_mut(block.elements.len());
            let (others, other_after) = std::mem::take(&mut other_rest).split_at_mut(block.elements.len());
            (rest, other_rest) = (after, other_after);
            (block.node, ((block, values), (0, others)))
        });
        in_teams(pool, pieces, Self::PIECE, |pieces| {
            pieces.for_each(|((block, values), (_, others))| body(block, values, others));
        });
    }

    /// Calls `part` as [`NodeVec::for_each_block`] does, but only to read, and combines the results in any
    /// order: `combine` has to be associative and commutative. None if the array is empty.
    ///
    /// ```
    /// use nodewise_runtime::{Layout, NodePool, NodeVec};
    ///
    /// let pool = NodePool::new()?;
    /// let bytes = NodeVec::<u8>::new(1 << 20, Layout::Blocked)?;
    /// let zeros = |values: &[u8]| values.iter().filter(|&&value| value == 0).count();
    /// assert_eq!(bytes.reduce_blocks(&pool, |_, values| zeros(values), |a, b| a + b), Some(1 << 20));
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`NodeVec::for_each_block`].
    pub fn reduce_blocks<R: Send>(
        &self,
        pool: &NodePool,
        part: impl Fn(Block, &[T]) -> R + Sync,
        combine: impl Fn(R, R) -> R + Sync,
    ) -> Option<R>
    where
        T: Sync,
    {
        let part = |block: Block| {
            let values = &self[block.elements.clone()];
            part(block, values)
        };
        pool.grain(Self::PIECE).reduce_blocks(self.blocks(), part, combine)
    }
}

/// A block, or a part of one, and its values.
impl<T: Send> Divide for (Block, &mut [T]) {
    fn size(&self) -> usize {
        self.1.len()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let (first, rest) = self.0.divide(at);
        let (of_first, of_rest) = self.1.split_at_mut(at);
        ((first, of_first), (rest, of_rest))
    }
}

impl Divide for Block {
    fn size(&self) -> usize {
        self.elements.len()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let Self { node, elements } = self;
        let (first, rest) = elements.divide(at);
        (Self { node, elements: first }, Self { node, elements: rest })
    }
}

impl<T: Pod> Deref for NodeVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.placed.memory.as_bytes()[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for NodeVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.placed.memory.as_mut_bytes()[..self.len * size_of::<T>()])
    }
}

impl<'a, T: Pod> IntoIterator for &'a NodeVec<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: Pod> IntoIterator for &'a mut NodeVec<T> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T> fmt::Debug for NodeVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeVec")
            .field("len", &self.len)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn here() -> NodeId {
        MemoryNodes::of_this_process().unwrap().allowed.first().unwrap()
    }

    #[test]
    fn is_a_slice_of_zeros_that_keeps_what_is_written() {
        for layout in [Layout::On(here()), Layout::Interleaved, Layout::Blocked] {
            let mut vec = NodeVec::<u32>::new(3000, layout.clone()).unwrap();
            assert_eq!((vec.len(), vec.iter().sum::<u32>()), (3000, 0));
            vec[2999] = 7;
            let placement = vec.lay_out(Layout::Interleaved).unwrap();
            assert_eq!((placement.misplaced, placement.absent), (0, 0));
            assert_eq!(placement.pages.values().sum::<usize>(), 3);
            assert_eq!((vec[2999], vec[0]), (7, 0));
        }
    }

    #[test]
    fn blocks_cover_the_array_each_once() {
        // Neither divides a page.
        let mut vec = NodeVec::<[u8; 24]>::new(10_000, Layout::Interleaved).unwrap();
        let pool = NodePool::new().unwrap();
        vec.for_each_block(&pool, |block, values| {
            assert_eq!(block.elements.len(), values.len());
            for (i, value) in block.elements.zip(values) {
                assert_eq!(value[0], 0);
                value[..8].copy_from_slice(&(i as u64 + 1).to_le_bytes());
            }
        });
        for (i, value) in vec.iter().enumerate() {
            assert_eq!(value[..8], (i as u64 + 1).to_le_bytes());
        }
        let mut next = 0;
        for block in vec.blocks() {
            assert_eq!(block.elements.start, next);
            next = block.elements.end;
        }
        assert_eq!(next, 10_000);
    }

    #[test]
    fn small_and_huge_ones_work() {
        assert!(NodeVec::<u64>::new(0, Layout::Blocked).unwrap().is_empty());
        assert_eq!(
            NodeVec::<u8>::new(1, Layout::Interleaved)
                .unwrap()
                .placement()
                .unwrap()
                .pages
                .values()
                .sum::<usize>(),
            1
        );
        let pool = NodePool::new().unwrap();
        let huge =
            NodeVecBuilder::new(Layout::Interleaved).huge_pages().pool(&pool).build::<f64>(1000).unwrap();
        assert_eq!(huge.placement().unwrap().pages.values().sum::<usize>(), 512);
    }

    #[test]
    fn a_range_is_moved_and_looked_at_by_itself() {
        let mut vec = NodeVec::<u64>::new(512 * 10, Layout::Blocked).unwrap();
        vec[1000] = 7;
        // Pages 1 to 3.
        let placement = vec.lay_out_range(1000..1537, &Layout::On(here())).unwrap();
        assert_eq!(placement, Placement { pages: [(here(), 3)].into(), ..Placement::default() });
        assert_eq!(vec.nodes_of(1000..1537).unwrap(), [Some(here()); 3]);
        assert_eq!(vec.placement_of(0..512 * 10).unwrap(), vec.placement().unwrap());
        assert_eq!((vec.placement().unwrap().misplaced, vec[1000]), (0, 7));
        assert!(vec.nodes_of(5..5).unwrap().is_empty());
        vec.lay_out_range(5..5, &Layout::Interleaved).unwrap();
        #[allow(clippy::reversed_empty_ranges)]
        for wrong in [5..4, 0..5121] {
            assert_eq!(vec.nodes_of(wrong.clone()).unwrap_err().kind(), ErrorKind::Range);
            assert_eq!(vec.lay_out_range(wrong, &Layout::Interleaved).unwrap_err().kind(), ErrorKind::Range);
        }
        assert_eq!(vec.blocks().map(|block| block.elements.len()).sum::<usize>(), 5120);
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_the_reason() {
        let kind = |made: Result<NodeVec<u64>>| made.unwrap_err().kind();
        assert_eq!(kind(NodeVec::new(1, Layout::On(NodeId(1000)))), ErrorKind::Layout);
        assert_eq!(kind(NodeVecBuilder::new(Layout::Blocked).align(3).build(1)), ErrorKind::Memory);
        assert_eq!(kind(NodeVec::new(usize::MAX / 4, Layout::Blocked)), ErrorKind::Memory);
        assert_eq!(kind(NodeVec::new(usize::MAX / 64, Layout::Blocked)), ErrorKind::Memory);
        // A mapping like any other to a kernel that overcommits.
        let error = NodeVec::<u64>::new(1 << 43, Layout::Interleaved).unwrap_err();
        assert!(error.to_string().contains("more than nodes"), "{error}");
    }
}
