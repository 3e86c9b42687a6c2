//! Loops over ranges, part by part: a call for each number would cost more than most bodies.

use crate::arguments::{optional_out, shared};
use crate::callback::{Context, FirstStatus, given};
use crate::pool::Held;
use crate::result::{Code, Failure, guarded};
use nodewise_runtime::NodePool;
use smallvec::{SmallVec, smallvec};
use std::ffi::{c_int, c_void};

pub type RangeRun = unsafe extern "C" fn(begin: usize, end: usize, context: *mut c_void) -> c_int;
pub type PartRun =
    unsafe extern "C" fn(begin: usize, end: usize, out_value: *mut c_void, context: *mut c_void) -> c_int;
pub type Combine = unsafe extern "C" fn(left: *mut c_void, right: *mut c_void, context: *mut c_void) -> c_int;
pub type DropValue = unsafe extern "C" fn(value: *mut c_void, context: *mut c_void);

/// `nodewise_reduction`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Reduction {
    pub value_bytes: usize,
    pub part: Option<PartRun>,
    pub combine: Option<Combine>,
    pub drop: Option<DropValue>,
    pub grain: usize,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_parallel_for(
    pool: *const NodePool,
    begin: usize,
    end: usize,
    body: Option<RangeRun>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    // SAFETY: that function asks the same of its caller.
    unsafe { nodewise_pool_parallel_for_grain(pool, begin, end, 1, body, context, out_status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_parallel_for_grain(
    pool: *const NodePool,
    begin: usize,
    end: usize,
    grain: usize,
    body: Option<RangeRun>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (body, context) = (given(body, "body")?, Context::new(context));
        let status = FirstStatus::default();
        let part = |part: std::ops::Range<usize>| {
            if !status.failed() {
                // SAFETY: `body` may be called with its context from any thread.
                status.note(unsafe { body(part.start, part.end, context.get()) });
            }
        };
        pool.grain(grain).parallel_reduce_parts(begin..end, part, |(), ()| ());
        status.tell(out_status)
    })
}

/// A part's value: bytes that the caller's `drop` ends.
struct Value {
    /// Aligned as C aligns what may be anything. The bytes of most sums take no memory of their own.
    bytes: SmallVec<[u128; 2]>,
    drop: Option<DropValue>,
    context: Context,
}

impl Value {
    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            let context = self.context.get();
            // SAFETY: the caller's promise; the value was made by a part, and nobody else has it.
            unsafe { drop(self.as_mut_ptr(), context) };
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_parallel_reduce(
    pool: *const NodePool,
    begin: usize,
    end: usize,
    reduction: *const Reduction,
    context: *mut c_void,
    out_value: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        // SAFETY: `reduction` is null, or a value that lives and is only shared until this returns.
        let Reduction { value_bytes, part, combine, drop, grain } =
            *unsafe { shared(reduction, "reduction") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (part, combine) = (given(part, "reduction->part")?, given(combine, "reduction->combine")?);
        if out_value.is_null() {
            return Err(Failure::invalid("out_value is NULL"));
        }
        let context = Context::new(context);
        let status = FirstStatus::default();
        let part = |range: std::ops::Range<usize>| {
            if status.failed() {
                return None;
            }
            let words = value_bytes.div_ceil(size_of::<u128>()).max(1);
            let mut value = Value { bytes: smallvec![0; words], drop: None, context };
            // SAFETY: `part` takes any range, room for a value, and this context.
            let returned = unsafe { part(range.start, range.end, value.as_mut_ptr(), context.get()) };
            status.note(returned);
            (returned == 0).then(|| {
                value.drop = drop;
                value
            })
        };
        let combine = |left: Option<Value>, right: Option<Value>| {
            let (mut left, mut right) = (left?, right?);
            // SAFETY: `combine` takes two values that `part` has made.
            let returned = unsafe { combine(left.as_mut_ptr(), right.as_mut_ptr(), context.get()) };
            status.note(returned);
            (returned == 0).then_some(left)
        };
        let value = pool.grain(grain).parallel_reduce_parts(begin..end, part, combine).flatten();
        if let (false, Some(mut value)) = (status.failed(), value) {
            // SAFETY: the caller's promise: there is room for so many bytes, and so many are in the value.
            unsafe { std::ptr::copy_nonoverlapping(value.as_mut_ptr(), out_value, value_bytes) };
            // It is the caller's now.
            value.drop = None;
        }
        status.tell(out_status)
    })
}
