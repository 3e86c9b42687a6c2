//! Memory for values of any size that lies as a layout says.

use crate::arguments::{List, free, handle, out, shared};
use crate::array::{Flags, LayoutInC, NodePages, Placement, layout};
use crate::result::{Code, Failure, guarded};
use nodewise_runtime::{NodeArena, NodeArenaBuilder};
use std::ffi::c_void;
use std::ptr::NonNull;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_arena_new(
    layout: *const LayoutInC,
    flags: u32,
    out_arena: *mut *mut NodeArena,
) -> Code {
    guarded(|| {
        // SAFETY: `layout` is null, or a layout that stays as it is until this returns.
        let layout = unsafe { self::layout(layout) }?;
        // SAFETY: `out_arena` is null, or room for a value that only this call has.
        let out_arena = unsafe { out(out_arena, "out_arena") }?;
        let flags = Flags::checked(flags)?;
        let mut builder = NodeArenaBuilder::new(layout).fallback(flags.fallback);
        if let Some(huge) = flags.huge {
            builder = builder.huge_pages(huge);
        }
        out_arena.write(handle(builder.build()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_arena_free(arena: *mut NodeArena) {
    // SAFETY: `arena` is null, or was made for the caller, who does not use it again.
    unsafe { free(arena) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_arena_allocate(
    arena: *const NodeArena,
    bytes: usize,
    align: usize,
    out_block: *mut *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: `arena` is null, or a value that lives and is only shared until this returns.
        let arena = unsafe { shared(arena, "arena") }?;
        // SAFETY: `out_block` is null, or room for a value that only this call has.
        let out_block = unsafe { out(out_block, "out_block") }?;
        if !align.is_power_of_two() {
            return Err(Failure::invalid(format!("align is {align}, which is no power of two")));
        }
        out_block.write(arena.allocate(bytes, align)?.as_ptr().cast());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_arena_deallocate(
    arena: *const NodeArena,
    block: *mut c_void,
    bytes: usize,
    align: usize,
) -> Code {
    guarded(|| {
        // SAFETY: `arena` is null, or a value that lives and is only shared until this returns.
        let arena = unsafe { shared(arena, "arena") }?;
        if let Some(block) = NonNull::new(block.cast::<u8>()) {
            // SAFETY: the block is this arena's, of this size and alignment, and is not used again.
            unsafe { arena.deallocate(block, bytes, align) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_arena_reserved_bytes(
    arena: *const NodeArena,
    out_bytes: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `arena` is null, or a value that lives and is only shared until this returns.
        let arena = unsafe { shared(arena, "arena") }?;
        // SAFETY: `out_bytes` is null, or room for a value that only this call has.
        let out_bytes = unsafe { out(out_bytes, "out_bytes") }?;
        out_bytes.write(arena.reserved_bytes());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_arena_placement(
    arena: *const NodeArena,
    out_placement: *mut Placement,
    pages: *mut NodePages,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `arena` is null, or a value that lives and is only shared until this returns.
        let arena = unsafe { shared(arena, "arena") }?;
        // SAFETY: `out_placement` is null, or room for a value that only this call has.
        let out_placement = unsafe { out(out_placement, "out_placement") }?;
        // SAFETY: `pages` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(pages, capacity, out_count, "pages") }?;
        NodePages::list(arena.placement()?, out_placement, list);
        Ok(())
    })
}
