//! Values with copies on each node.

use crate::arguments::{exclusive, free, handle, optional_out, out, shared};
use crate::callback::{Context, given};
use crate::replicated_array::Change;
use crate::result::{Code, Failure, Outcome, Status, guarded};
use crossbeam_utils::CachePadded;
use nodewise_runtime::{ReadGuard, Replicated};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub type CopyValue =
    unsafe extern "C" fn(from: *const c_void, to: *mut c_void, context: *mut c_void) -> c_int;
pub type DestroyValue = unsafe extern "C" fn(value: *mut c_void, context: *mut c_void);

/// `nodewise_value_type`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ValueType {
    pub bytes: usize,
    pub copy: Option<CopyValue>,
    pub destroy: Option<DestroyValue>,
    pub context: *mut c_void,
}

/// Room for a part of a copy, which has its cache lines alone.
type Lines = CachePadded<MaybeUninit<[u8; LINES_BYTES]>>;

const LINES_BYTES: usize = align_of::<CachePadded<u8>>();

/// One of the copies.
pub struct Value {
    storage: Box<[Lines]>,
    kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) struct Kind {
    bytes: usize,
    copy: Option<CopyValue>,
    destroy: Option<DestroyValue>,
    context: Context,
}

impl Value {
    /// # Safety
    /// `from` is to a value of this kind, that nobody changes meanwhile.
    pub(crate) unsafe fn copy_of(from: *const c_void, kind: Kind) -> Result<Self, Status> {
        let lines = kind.bytes.div_ceil(LINES_BYTES).max(1);
        // Ends without `destroy` if the copy fails.
        let unmade = Kind { destroy: None, ..kind };
        let mut value = Self { storage: vec![Lines::new(MaybeUninit::uninit()); lines].into(), kind: unmade };
        let to = value.as_mut_ptr();
        let status = if let Some(copy) = kind.copy {
            // SAFETY: as promised; there is room.
            unsafe { copy(from, to, kind.context.get()) }
        } else {
            // SAFETY: likewise.
            unsafe { std::ptr::copy_nonoverlapping(from, to, kind.bytes) };
            0
        };
        if status != 0 {
            return Err(Status(status));
        }
        value.kind = kind;
        Ok(value)
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.storage.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.storage.as_mut_ptr().cast()
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        // SAFETY: it is a value of its kind, and borrowed.
        unsafe { Self::copy_of(self.as_ptr(), self.kind) }.unwrap_or_else(|status| status.throw())
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(destroy) = self.kind.destroy {
            // SAFETY: the caller's promise; it is a value of its kind, and nobody else has it.
            unsafe { destroy(self.as_mut_ptr(), self.kind.context.get()) };
        }
    }
}

/// A guard, as bytes that C keeps.
#[repr(C)]
pub struct Reading<G> {
    guard: MaybeUninit<G>,
}

impl<G> Reading<G> {
    /// Begins a read, and tells C where the value is.
    ///
    /// # Safety
    /// `replicated` is null or to what outlives the read; the others are null or to room that nobody else looks at.
    pub(crate) unsafe fn begin<R: 'static>(
        replicated: *const R,
        out_read: *mut Self,
        out_value: *mut *const c_void,
        read: impl FnOnce(&'static R) -> G,
        value: impl FnOnce(&G) -> *const c_void,
    ) -> Outcome {
        // SAFETY: as promised; its life is as good as static.
        let replicated: &'static R = unsafe { shared(replicated, "replicated") }?;
        // SAFETY: as promised.
        let out_read = unsafe { out(out_read, "out_read") }?;
        // SAFETY: as promised.
        let out_value = unsafe { out(out_value, "out_value") }?;
        let guard = read(replicated);
        out_value.write(value(&guard));
        out_read.write(Self { guard: MaybeUninit::new(guard) });
        Ok(())
    }

    /// # Safety
    /// `read` is null or to one that has begun and not ended, which nobody else looks at.
    pub(crate) unsafe fn end(read: *mut Self) -> Outcome {
        // SAFETY: as promised.
        let read = unsafe { exclusive(read, "read") }?;
        // SAFETY: as promised.
        unsafe { read.guard.assume_init_drop() };
        Ok(())
    }
}

/// `nodewise_read`.
pub type Read = Reading<ReadGuard<'static, Value>>;

const _: () = assert!(size_of::<Read>() == size_of::<*const c_void>());

pub(crate) fn checked_kind(ValueType { bytes, copy, destroy, context }: ValueType) -> Outcome<Kind> {
    Ok(Kind { bytes: checked_size(bytes, "a value")?, copy, destroy, context: Context::new(context) })
}

/// Of something that is kept rounded up to whole lines or words.
pub(crate) fn checked_size(bytes: usize, what: &str) -> Outcome<usize> {
    if bytes > isize::MAX as usize / 2 {
        return Err(Failure::invalid(format!("{what} cannot have {bytes} bytes")));
    }
    Ok(bytes)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_new(
    kind: *const ValueType,
    value: *const c_void,
    out_replicated: *mut *mut Replicated<Value>,
) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let kind = checked_kind(*unsafe { shared(kind, "type") }?)?;
        // SAFETY: the caller's promise.
        let out_replicated = unsafe { out(out_replicated, "out_replicated") }?;
        if value.is_null() {
            return Err(Failure::invalid("value is NULL"));
        }
        // SAFETY: the caller's promise.
        let value = unsafe { Value::copy_of(value, kind) }.map_err(Status::failure)?;
        out_replicated.write(handle(Replicated::new(value)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_free(replicated: *mut Replicated<Value>) {
    // SAFETY: the caller's promise.
    unsafe { free(replicated) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_read(
    replicated: *const Replicated<Value>,
    out_read: *mut Read,
    out_value: *mut *const c_void,
) -> Code {
    let value = |guard: &ReadGuard<'_, Value>| guard.as_ptr();
    // SAFETY: the caller's promise, which has the replicated value outlive the read.
    guarded(|| unsafe { Reading::begin(replicated, out_read, out_value, Replicated::read, value) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_read_end(read: *mut Read) -> Code {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { Reading::end(read) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_update(
    replicated: *const Replicated<Value>,
    change: Option<Change>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let replicated = unsafe { shared(replicated, "replicated") }?;
        // SAFETY: the caller's promise.
        let out_status = unsafe { optional_out(out_status) };
        let change = given(change, "change")?;
        thrown(out_status, || {
            replicated.update(|value| {
                // SAFETY: the caller's promise.
                let status = unsafe { change(value.as_mut_ptr(), context) };
                if status != 0 {
                    Status(status).throw();
                }
            });
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_set(
    replicated: *const Replicated<Value>,
    value: *const c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let replicated = unsafe { shared(replicated, "replicated") }?;
        // SAFETY: the caller's promise.
        let out_status = unsafe { optional_out(out_status) };
        if value.is_null() {
            return Err(Failure::invalid("value is NULL"));
        }
        let kind = replicated.read().kind;
        thrown(out_status, || {
            // SAFETY: the caller's promise.
            let value = unsafe { Value::copy_of(value, kind) }.unwrap_or_else(|status| status.throw());
            replicated.set(&value);
        })
    })
}

/// Tells of the status that a callback threw, if one did.
fn thrown(out_status: Option<&mut MaybeUninit<c_int>>, body: impl FnOnce()) -> Outcome {
    let ended = catch_unwind(AssertUnwindSafe(body));
    let status = match ended {
        Ok(()) => Status(0),
        Err(payload) => match payload.downcast::<Status>() {
            Ok(status) => *status,
            Err(other) => resume_unwind(other),
        },
    };
    if let Some(out_status) = out_status {
        out_status.write(status.0);
    }
    status.checked()
}
