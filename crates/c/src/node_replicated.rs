//! Values with one copy on each node, kept alike by a log of operations.

use crate::arguments::{List, free, handle, out, shared};
use crate::array::{NodePages, Placement};
use crate::callback::{Context, given};
use crate::replicated::{Original, Reading, Value, ValueType, checked_kind, checked_size};
use crate::result::{Code, Failure, guarded};
use nodewise_runtime::{NodeReplicated, NodeReplicatedGuard, Operate, SharedArena};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::mem::MaybeUninit;

pub type OperateOn = unsafe extern "C" fn(
    value: *mut c_void,
    operation: *const c_void,
    out_response: *mut c_void,
    context: *mut c_void,
);

/// `nodewise_operations`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Operations {
    pub operation_bytes: usize,
    pub response_bytes: usize,
    pub operate: Option<OperateOn>,
    pub context: *mut c_void,
}

/// One of the copies, and the operations that can be done to it.
#[derive(Clone)]
pub struct Operated {
    value: Value,
    operate: OperateOn,
    operation_bytes: usize,
    response_bytes: usize,
    context: Context,
}

/// An operation or a response. Aligned as C aligns what may be anything; the first 64 bytes take no memory of
/// their own.
#[derive(Clone)]
pub struct Bytes(SmallVec<[MaybeUninit<u128>; 4]>);

impl Bytes {
    /// Nothing yet.
    fn room_for(bytes: usize) -> Self {
        let words = bytes.div_ceil(size_of::<u128>());
        Self(SmallVec::from_elem(MaybeUninit::uninit(), words))
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

impl Operate for Operated {
    type Operation = Bytes;
    type Response = Bytes;

    fn operate(&mut self, operation: &Bytes) -> Bytes {
        let mut response = Bytes::room_for(self.response_bytes);
        let value = self.value.as_mut_ptr();
        // SAFETY: the caller's promise to `nodewise_node_replicated_new`.
        unsafe {
            (self.operate)(value, operation.0.as_ptr().cast(), response.as_mut_ptr(), self.context.get());
        }
        response
    }
}

/// `nodewise_node_read`.
pub type NodeRead = Reading<NodeReplicatedGuard<'static, Operated>>;

const _: () = assert!(size_of::<NodeRead>() == 2 * size_of::<*const c_void>());

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_node_replicated_new(
    kind: *const ValueType,
    operations: *const Operations,
    value: *const c_void,
    out_replicated: *mut *mut NodeReplicated<Operated>,
) -> Code {
    guarded(|| {
        // SAFETY: `kind` is null, or a value that lives and is only shared until this returns.
        let kind = checked_kind(*unsafe { shared(kind, "type") }?)?;
        // SAFETY: `operations` is null, or a value that lives and is only shared until this returns.
        let operations = *unsafe { shared(operations, "operations") }?;
        // SAFETY: `out_replicated` is null, or room for a value that only this call has.
        let out_replicated = unsafe { out(out_replicated, "out_replicated") }?;
        let operate = given(operations.operate, "operations->operate")?;
        let operation_bytes = checked_size(operations.operation_bytes, "an operation")?;
        let response_bytes = checked_size(operations.response_bytes, "a response")?;
        let original = Original::checked(value)?;
        let context = Context::new(operations.context);
        let copy = |arena: &SharedArena| {
            // SAFETY: the value is of the type whose functions these are.
            let value = unsafe { Value::copy_of(original.get(), kind, arena) };
            Operated { value, operate, operation_bytes, response_bytes, context }
        };
        out_replicated.write(handle(NodeReplicated::new_in(copy)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_node_replicated_placement(
    replicated: *const NodeReplicated<Operated>,
    out_placement: *mut Placement,
    pages: *mut NodePages,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `replicated` is null, or a value that lives and is only shared until this returns.
        let replicated = unsafe { shared(replicated, "replicated") }?;
        // SAFETY: `out_placement` is null, or room for a value that only this call has.
        let out_placement = unsafe { out(out_placement, "out_placement") }?;
        // SAFETY: `pages` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(pages, capacity, out_count, "pages") }?;
        NodePages::list(replicated.placement()?, out_placement, list);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_node_replicated_free(replicated: *mut NodeReplicated<Operated>) {
    // SAFETY: `replicated` is null, or was made for the caller, who does not use it again.
    unsafe { free(replicated) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_node_replicated_read(
    replicated: *const NodeReplicated<Operated>,
    out_read: *mut NodeRead,
    out_value: *mut *const c_void,
) -> Code {
    let value = |guard: &NodeReplicatedGuard<'_, Operated>| guard.value.as_ptr();
    // SAFETY: the caller's promise, which has the replicated value outlive the read.
    guarded(|| unsafe { Reading::begin(replicated, out_read, out_value, NodeReplicated::read, value) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_node_read_end(read: *mut NodeRead) -> Code {
    // SAFETY: `read` is null, or a reading that has begun and that nobody uses again.
    guarded(|| unsafe { Reading::end(read) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_node_replicated_update(
    replicated: *const NodeReplicated<Operated>,
    operation: *const c_void,
    out_response: *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: `replicated` is null, or a value that lives and is only shared until this returns.
        let replicated = unsafe { shared(replicated, "replicated") }?;
        let Operated { operation_bytes, response_bytes, .. } = *replicated.read();
        if operation.is_null() && operation_bytes > 0 {
            return Err(Failure::invalid("operation is NULL"));
        }
        if out_response.is_null() && response_bytes > 0 {
            return Err(Failure::invalid("out_response is NULL"));
        }
        let mut kept = Bytes::room_for(operation_bytes);
        if operation_bytes > 0 {
            // SAFETY: the caller's promise; there is room.
            unsafe { operation.copy_to_nonoverlapping(kept.as_mut_ptr(), operation_bytes) };
        }
        let mut response = replicated.update(kept);
        if response_bytes > 0 {
            // SAFETY: likewise.
            unsafe { response.as_mut_ptr().copy_to_nonoverlapping(out_response, response_bytes) };
        }
        Ok(())
    })
}
