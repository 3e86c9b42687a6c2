//! Arrays whose pages lie as a layout says: bytes, and how large an element is.

use crate::arguments::{List, exclusive, free, handle, optional_out, out, shared, slice};
use crate::callback::{Context, FirstStatus, given};
use crate::pool::{Held, NO_NODE};
use crate::result::{Code, Failure, Outcome, guarded};
use nodewise_runtime::{Fallback, Layout, NodePool, NodeVec, NodeVecBuilder};
use nodewise_topology::NodeId;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;

/// `nodewise_layout`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LayoutInC {
    pub kind: c_int,
    pub count: usize,
    pub nodes: *const u32,
    pub weights: *const u32,
}

pub const LAYOUT_ON: c_int = 0;
pub const LAYOUT_INTERLEAVED: c_int = 1;
pub const LAYOUT_WEIGHTED: c_int = 2;
pub const LAYOUT_BLOCKED: c_int = 3;

pub const HUGE_PAGES: u32 = 1;
pub const BASE_PAGES: u32 = 2;
pub const ANYWHERE: u32 = 4;

/// `nodewise_block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Block {
    pub node: u32,
    pub begin: usize,
    pub end: usize,
}

/// `nodewise_node_pages`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NodePages {
    pub node: u32,
    pub pages: usize,
}

/// `nodewise_placement`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Placement {
    pub misplaced: usize,
    pub absent: usize,
    pub unknown: usize,
}

pub type BlockRun =
    unsafe extern "C" fn(block: *const Block, elements: *mut c_void, context: *mut c_void) -> c_int;
pub type BlocksRun = unsafe extern "C" fn(block: *const Block, context: *mut c_void) -> c_int;

/// `nodewise_array`.
pub struct Array {
    bytes: NodeVec<u8>,
    /// Where they are; C reads and writes through this.
    data: *mut c_void,
    element_bytes: usize,
}

/// # Safety
/// `layout` is null or one whose pointers are to `count` numbers.
pub(crate) unsafe fn layout(layout: *const LayoutInC) -> Outcome<Layout> {
    // SAFETY: as promised.
    let LayoutInC { kind, count, nodes, weights } = *unsafe { shared(layout, "layout") }?;
    match kind {
        LAYOUT_ON => {
            // SAFETY: as promised.
            match unsafe { slice(nodes, count, "layout->nodes") }? {
                &[node] => Ok(Layout::On(NodeId(node))),
                _ => Err(Failure::invalid(format!("layout->count is {count}, and memory on a node needs 1"))),
            }
        }
        LAYOUT_INTERLEAVED => Ok(Layout::Interleaved),
        LAYOUT_WEIGHTED => {
            // SAFETY: as promised.
            let nodes = unsafe { slice(nodes, count, "layout->nodes") }?;
            // SAFETY: as promised.
            let weights = unsafe { slice(weights, count, "layout->weights") }?;
            Ok(Layout::Weighted(
                nodes.iter().map(|&node| NodeId(node)).zip(weights.iter().copied()).collect(),
            ))
        }
        LAYOUT_BLOCKED => Ok(Layout::Blocked),
        other => Err(Failure::invalid(format!("layout->kind is {other}, which is none"))),
    }
}

/// The memory that an array's or arena's flags ask for.
pub(crate) struct Flags {
    /// Huge pages, or base pages; nothing if nothing is said.
    pub(crate) huge: Option<bool>,
    pub(crate) fallback: Fallback,
}

impl Flags {
    pub(crate) fn checked(flags: u32) -> Outcome<Self> {
        if flags & !(HUGE_PAGES | BASE_PAGES | ANYWHERE) != 0 {
            return Err(Failure::invalid(format!("flags are {flags:#x}, of which not all are known")));
        }
        let huge = match (flags & HUGE_PAGES != 0, flags & BASE_PAGES != 0) {
            (true, true) => return Err(Failure::invalid("flags ask for huge pages and for base pages")),
            (false, false) => None,
            (huge, _) => Some(huge),
        };
        let fallback = if flags & ANYWHERE != 0 { Fallback::Anywhere } else { Fallback::Error };
        Ok(Self { huge, fallback })
    }
}

/// The alignment of elements: in C a type's size is a multiple of its alignment.
pub(crate) fn align_of_elements(element_bytes: usize) -> usize {
    1 << element_bytes.trailing_zeros()
}

/// The bytes that so many elements take.
pub(crate) fn checked_bytes(len: usize, element_bytes: usize) -> Outcome<usize> {
    len.checked_mul(element_bytes).ok_or_else(|| {
        let message = format!("{len} elements of {element_bytes} bytes are more than there are addresses");
        Failure::new(Code::Memory, message)
    })
}

impl NodePages {
    /// Tells C of a placement.
    pub(crate) fn list(
        placement: nodewise_runtime::Placement,
        out_placement: &mut MaybeUninit<Placement>,
        list: List<'_, Self>,
    ) {
        out_placement.write(Placement::of(&placement));
        list.fill(placement.pages.into_iter().map(|(node, pages)| Self { node: node.0, pages }));
    }
}

impl Placement {
    fn of(placement: &nodewise_runtime::Placement) -> Self {
        Self { misplaced: placement.misplaced, absent: placement.absent, unknown: placement.unknown }
    }

    /// Tells C, if it wants to know.
    fn tell(placement: &nodewise_runtime::Placement, out_placement: Option<&mut MaybeUninit<Self>>) {
        if let Some(out_placement) = out_placement {
            out_placement.write(Self::of(placement));
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_new(
    layout: *const LayoutInC,
    len: usize,
    element_bytes: usize,
    flags: u32,
    pool: *const NodePool,
    out_array: *mut *mut Array,
) -> Code {
    guarded(|| {
        // SAFETY: `layout` is null, or a layout that stays as it is until this returns.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: `out_array` is null, or room for a value that only this call has.
        let pool = unsafe { pool.as_ref() };
        // SAFETY: `out_array` is null, or room for a value that only this call has.
        let out_array = unsafe { out(out_array, "out_array") }?;
        if element_bytes == 0 {
            return Err(Failure::invalid("element_bytes is 0"));
        }
        let flags = Flags::checked(flags)?;
        let mut builder =
            NodeVecBuilder::new(layout).align(align_of_elements(element_bytes)).fallback(flags.fallback);
        if flags.huge == Some(true) {
            builder = builder.huge_pages();
        }
        if let Some(pool) = pool {
            builder = builder.pool(pool);
        }
        let mut bytes = builder.build::<u8>(checked_bytes(len, element_bytes)?)?;
        let data = bytes.as_mut_ptr().cast();
        out_array.write(handle(Array { bytes, data, element_bytes }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_free(array: *mut Array) {
    // SAFETY: `array` is null, or was made for the caller, who does not use it again.
    unsafe { free(array) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_data(array: *const Array, out_data: *mut *mut c_void) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `out_data` is null, or room for a value that only this call has.
        let out_data = unsafe { out(out_data, "out_data") }?;
        out_data.write(array.data);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_placement(
    array: *const Array,
    begin: usize,
    end: usize,
    out_placement: *mut Placement,
    pages: *mut NodePages,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `out_placement` is null, or room for a value that only this call has.
        let out_placement = unsafe { out(out_placement, "out_placement") }?;
        // SAFETY: `pages` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(pages, capacity, out_count, "pages") }?;
        let placement = array.bytes.placement_of(array.bytes_of(begin, end)?)?;
        NodePages::list(placement, out_placement, list);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_page_nodes(
    array: *const Array,
    begin: usize,
    end: usize,
    nodes: *mut u32,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `nodes` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(nodes, capacity, out_count, "nodes") }?;
        let homes = array.bytes.nodes_of(array.bytes_of(begin, end)?)?;
        list.fill(homes.into_iter().map(|home| home.map_or(NO_NODE, |node| node.0)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_lay_out(
    array: *mut Array,
    layout: *const LayoutInC,
    out_placement: *mut Placement,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that nobody else uses until this returns.
        let array = unsafe { exclusive(array, "array") }?;
        // SAFETY: `layout` is null, or a layout that stays as it is until this returns.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: `out_placement` is null, or room for a value that only this call has.
        let out_placement = unsafe { optional_out(out_placement) };
        Placement::tell(&array.bytes.lay_out(layout)?, out_placement);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_lay_out_range(
    array: *mut Array,
    begin: usize,
    end: usize,
    layout: *const LayoutInC,
    out_placement: *mut Placement,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that nobody else uses until this returns.
        let array = unsafe { exclusive(array, "array") }?;
        // SAFETY: `layout` is null, or a layout that stays as it is until this returns.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: `out_placement` is null, or room for a value that only this call has.
        let out_placement = unsafe { optional_out(out_placement) };
        let bytes = array.bytes_of(begin, end)?;
        Placement::tell(&array.bytes.lay_out_range(bytes, &layout)?, out_placement);
        Ok(())
    })
}

/// Blocks are not divided into smaller pieces.
const PIECE_BYTES: usize = 64 << 10;

impl Array {
    /// The bytes of elements.
    fn bytes_of(&self, begin: usize, end: usize) -> Outcome<Range<usize>> {
        let len = self.bytes.len() / self.element_bytes;
        if begin > end || end > len {
            let message = format!("elements {begin}..{end} are not within an array of {len}");
            return Err(Failure::new(Code::Range, message));
        }
        Ok(begin * self.element_bytes..end * self.element_bytes)
    }

    /// Blocks of elements; one that lies across two blocks of bytes belongs to the first.
    fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        let first_from = |byte: usize| byte.div_ceil(self.element_bytes);
        let blocks = self.bytes.blocks().map(move |block| Block {
            node: block.node.0,
            begin: first_from(block.elements.start),
            end: first_from(block.elements.end),
        });
        blocks.filter(|block| block.begin < block.end)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_blocks(
    array: *const Array,
    blocks: *mut Block,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `blocks` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(blocks, capacity, out_count, "blocks") }?;
        list.fill(array.blocks());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_array_for_each_block(
    array: *const Array,
    pool: *const NodePool,
    body: Option<BlockRun>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (body, context) = (given(body, "body")?, Context::new(context));
        let (data, element_bytes) = (Context::new(array.data), array.element_bytes);
        let blocks = array.blocks().map(|block| nodewise_runtime::Block {
            node: NodeId(block.node),
            elements: block.begin..block.end,
        });
        let status = FirstStatus::default();
        // As `NodeVec::for_each_block` divides them; it cannot itself, since it knows bytes only.
        pool.grain(PIECE_BYTES / element_bytes).for_each_block(blocks, |piece| {
            if status.failed() {
                return;
            }
            let piece = Block { node: piece.node.0, begin: piece.elements.start, end: piece.elements.end };
            let elements = data.get().wrapping_byte_add(piece.begin * element_bytes);
            // SAFETY: the caller's promise; pieces do not overlap.
            status.note(unsafe { body(&raw const piece, elements, context.get()) });
        });
        status.tell(out_status)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_for_each_block(
    pool: *const NodePool,
    blocks: *const Block,
    count: usize,
    grain: usize,
    body: Option<BlocksRun>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        // SAFETY: `blocks` is to `count` values that stay as they are until this returns.
        let blocks = unsafe { slice(blocks, count, "blocks") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (body, context) = (given(body, "body")?, Context::new(context));
        if let Some(Block { begin, end, .. }) = blocks.iter().find(|block| block.begin > block.end) {
            return Err(Failure::invalid(format!("a block begins at {begin} and ends at {end}")));
        }
        let blocks = blocks.iter().map(|block| nodewise_runtime::Block {
            node: NodeId(block.node),
            elements: block.begin..block.end,
        });
        let status = FirstStatus::default();
        pool.grain(grain).for_each_block(blocks, |piece| {
            if !status.failed() {
                let piece =
                    Block { node: piece.node.0, begin: piece.elements.start, end: piece.elements.end };
                // SAFETY: `body` may be called with its context from any thread.
                status.note(unsafe { body(&raw const piece, context.get()) });
            }
        });
        status.tell(out_status)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_elements_cover_the_array_each_once() {
        for element_bytes in [1, 24, 5000] {
            let mut bytes = NodeVec::<u8>::new(10_000 * element_bytes, Layout::Interleaved).unwrap();
            let data = bytes.as_mut_ptr().cast();
            let array = Array { bytes, data, element_bytes };
            let end = array.blocks().fold(0, |next, block| {
                assert_eq!(block.begin, next);
                assert!(block.begin < block.end);
                block.end
            });
            assert_eq!(end, 10_000);
        }
    }
}
