//! Arrays of which every node has a copy.

use crate::arguments::{List, exclusive, free, handle, optional_out, out, shared, slice};
use crate::array::{align_of_elements, checked_bytes};
use crate::callback::{FirstStatus, given};
use crate::result::{Code, guarded};
use nodewise_runtime::ReplicatedVec;
use nodewise_topology::NodeId;
use std::ffi::{c_int, c_void};

pub type Change = unsafe extern "C" fn(value: *mut c_void, context: *mut c_void) -> c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_array_new(
    elements: *const c_void,
    len: usize,
    element_bytes: usize,
    out_array: *mut *mut ReplicatedVec<u8>,
) -> Code {
    guarded(|| {
        let bytes = checked_bytes(len, element_bytes)?;
        // SAFETY: `out_array` is null, or room for a value that only this call has.
        let elements = unsafe { slice(elements.cast::<u8>(), bytes, "elements") }?;
        // SAFETY: `out_array` is null, or room for a value that only this call has.
        let out_array = unsafe { out(out_array, "out_array") }?;
        out_array.write(handle(ReplicatedVec::aligned(elements, align_of_elements(element_bytes))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_array_free(array: *mut ReplicatedVec<u8>) {
    // SAFETY: `array` is null, or was made for the caller, who does not use it again.
    unsafe { free(array) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_array_local(
    array: *const ReplicatedVec<u8>,
    out_data: *mut *const c_void,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `out_data` is null, or room for a value that only this call has.
        let out_data = unsafe { out(out_data, "out_data") }?;
        out_data.write(array.local().as_ptr().cast());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_array_near(
    array: *const ReplicatedVec<u8>,
    node: u32,
    out_data: *mut *const c_void,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `out_data` is null, or room for a value that only this call has.
        let out_data = unsafe { out(out_data, "out_data") }?;
        out_data.write(array.near(NodeId(node)).as_ptr().cast());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_array_nodes(
    array: *const ReplicatedVec<u8>,
    nodes: *mut u32,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that lives and is only shared until this returns.
        let array = unsafe { shared(array, "array") }?;
        // SAFETY: `nodes` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(nodes, capacity, out_count, "nodes") }?;
        list.fill(array.nodes().map(|node| node.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_array_update(
    array: *mut ReplicatedVec<u8>,
    change: Option<Change>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `array` is null, or a value that nobody else uses until this returns.
        let array = unsafe { exclusive(array, "array") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let change = given(change, "change")?;
        let status = FirstStatus::default();
        array.update(|elements| {
            // SAFETY: `change` takes a copy's value and this context.
            status.note(unsafe { change(elements.as_mut_ptr().cast(), context) });
        });
        status.tell(out_status)
    })
}
