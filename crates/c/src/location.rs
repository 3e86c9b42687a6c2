//! Where the calling thread runs, what it may use, and what is near a device.

use crate::arguments::{List, node_set, text};
use crate::result::{Code, guarded};
use std::ffi::c_char;

#[unsafe(no_mangle)]
pub extern "C" fn nodewise_current_node() -> u32 {
    // Nothing in it panics: a load, or a table's element.
    nodewise_runtime::current_node().0
}

#[unsafe(no_mangle)]
pub extern "C" fn nodewise_current_cpu() -> u32 {
    nodewise_runtime::current_cpu().0
}

#[unsafe(no_mangle)]
pub extern "C" fn nodewise_refresh() -> Code {
    guarded(|| Ok(nodewise_runtime::refresh()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_nodes_near(
    device: *const c_char,
    nodes: *mut u32,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `device` is null, or a string that stays as it is until this returns.
        let device = unsafe { text(device, "device") }?;
        // SAFETY: `nodes` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(nodes, capacity, out_count, "nodes") }?;
        let near = nodewise_runtime::nodes_near(device)?;
        list.fill(near.iter().map(|node| node.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_bind_thread(nodes: *const u32, count: usize) -> Code {
    guarded(|| {
        // SAFETY: `nodes` is to `count` values that stay as they are until this returns.
        let nodes = unsafe { node_set(nodes, count, "nodes") }?;
        Ok(nodewise_runtime::bind_thread(&nodes)?)
    })
}
