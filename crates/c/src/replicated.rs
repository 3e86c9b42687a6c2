//! Values with copies on each node.

use crate::arguments::{List, exclusive, free, handle, optional_out, out, shared};
use crate::array::{NodePages, Placement};
use crate::callback::{Context, given};
use crate::replicated_array::Change;
use crate::result::{Code, Failure, Outcome, Status, guarded};
use nodewise_runtime::{NodeArena, ReadGuard, Replicated, SharedArena};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

pub type CopyValue =
    unsafe extern "C" fn(from: *const c_void, to: *mut c_void, context: *mut c_void) -> c_int;
pub type CopyValueIn = unsafe extern "C" fn(
    from: *const c_void,
    to: *mut c_void,
    arena: *const NodeArena,
    context: *mut c_void,
) -> c_int;
pub type DestroyValue = unsafe extern "C" fn(value: *mut c_void, context: *mut c_void);

/// `nodewise_value_type`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ValueType {
    pub bytes: usize,
    pub copy: Option<CopyValue>,
    pub destroy: Option<DestroyValue>,
    pub context: *mut c_void,
    pub copy_in: Option<CopyValueIn>,
}

/// The alignment of a copy's address: a copy has its cache lines alone.
const ALIGN: usize = 128;

/// One of the copies, in its node's memory.
pub struct Value {
    /// A block of `kind.bytes` from the arena.
    storage: NonNull<u8>,
    arena: SharedArena,
    kind: Kind,
}

// SAFETY: it owns its storage. The header says that a copy may be changed and ended on any thread.
unsafe impl Send for Value {}
// SAFETY: it gives nothing but the address, and the header says that any thread may read there.
unsafe impl Sync for Value {}

#[derive(Clone, Copy)]
pub(crate) struct Kind {
    bytes: usize,
    copy: Option<CopyValue>,
    copy_in: Option<CopyValueIn>,
    destroy: Option<DestroyValue>,
    context: Context,
}

impl Value {
    /// A copy in an arena; a failure is thrown.
    ///
    /// # Safety
    /// `from` is to a value of this kind, that nobody changes meanwhile.
    pub(crate) unsafe fn copy_of(from: *const c_void, kind: Kind, arena: &SharedArena) -> Self {
        let room = arena.allocate(kind.bytes, ALIGN).unwrap_or_else(|error| Failure::from(error).throw());
        // Ends without `destroy` if the copy fails.
        let unmade = Kind { destroy: None, ..kind };
        let mut value = Self { storage: room.cast(), arena: arena.clone(), kind: unmade };
        let to = value.as_mut_ptr();
        let status = match kind {
            // SAFETY: as promised; there is room.
            Kind { copy_in: Some(copy), .. } => unsafe {
                copy(from, to, &raw const **arena, kind.context.get())
            },
            // SAFETY: likewise.
            Kind { copy: Some(copy), .. } => unsafe { copy(from, to, kind.context.get()) },
            _ => {
                // SAFETY: likewise.
                unsafe { std::ptr::copy_nonoverlapping(from, to, kind.bytes) };
                0
            }
        };
        if status != 0 {
            Status(status).throw();
        }
        value.kind = kind;
        value
    }

    /// Takes the place of the value with a copy of another of its kind, in the same arena.
    ///
    /// # Safety
    /// As [`Value::copy_of`].
    unsafe fn assign(&mut self, from: *const c_void) {
        // SAFETY: as promised.
        *self = unsafe { Self::copy_of(from, self.kind, &self.arena) };
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.storage.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.storage.as_ptr().cast()
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        // SAFETY: it is a value of its kind, and borrowed.
        unsafe { Self::copy_of(self.as_ptr(), self.kind, &self.arena) }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(destroy) = self.kind.destroy {
            // SAFETY: the caller's promise; it is a value of its kind, and nobody else has it.
            unsafe { destroy(self.as_mut_ptr(), self.kind.context.get()) };
        }
        // SAFETY: it was taken with this request, and is not used any more.
        unsafe { self.arena.deallocate(self.storage, self.kind.bytes, ALIGN) };
    }
}

/// The caller's value, of which threads of all nodes make copies while the caller waits.
#[derive(Clone, Copy)]
pub(crate) struct Original(*const c_void);

// SAFETY: the header says that copies are made on any thread.
unsafe impl Send for Original {}
// SAFETY: likewise.
unsafe impl Sync for Original {}

impl Original {
    pub(crate) fn checked(value: *const c_void) -> Outcome<Self> {
        if value.is_null() { Err(Failure::invalid("value is NULL")) } else { Ok(Self(value)) }
    }

    /// The pointer; a method, so that closures capture the whole.
    pub(crate) fn get(self) -> *const c_void {
        self.0
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
    /// `replicated` is null or to what outlives the read; the others are null or to room that nobody else
    /// looks at.
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

pub(crate) fn checked_kind(kind: ValueType) -> Outcome<Kind> {
    let ValueType { bytes, copy, destroy, context, copy_in } = kind;
    Ok(Kind {
        bytes: checked_size(bytes, "a value")?,
        copy,
        copy_in,
        destroy,
        context: Context::new(context),
    })
}

/// The size of something that is kept rounded up to whole words.
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
        // SAFETY: `kind` is null, or a value that lives and is only shared until this returns.
        let kind = checked_kind(*unsafe { shared(kind, "type") }?)?;
        // SAFETY: `out_replicated` is null, or room for a value that only this call has.
        let out_replicated = unsafe { out(out_replicated, "out_replicated") }?;
        let original = Original::checked(value)?;
        // SAFETY: the value is of the type whose functions these are.
        let copy = |arena: &SharedArena| unsafe { Value::copy_of(original.get(), kind, arena) };
        out_replicated.write(handle(Replicated::new_in(copy)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_free(replicated: *mut Replicated<Value>) {
    // SAFETY: `replicated` is null, or was made for the caller, who does not use it again.
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
    // SAFETY: `read` is null, or a reading that has begun and that nobody uses again.
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
        // SAFETY: `replicated` is null, or a value that lives and is only shared until this returns.
        let replicated = unsafe { shared(replicated, "replicated") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let change = given(change, "change")?;
        thrown(out_status, || {
            replicated.update(|value| {
                // SAFETY: `change` takes a copy's value and this context.
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
        // SAFETY: `replicated` is null, or a value that lives and is only shared until this returns.
        let replicated = unsafe { shared(replicated, "replicated") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let original = Original::checked(value)?;
        thrown(out_status, || {
            // SAFETY: the value is of the type that the copies have.
            replicated.update(|copy| unsafe { copy.assign(original.get()) });
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_replicated_placement(
    replicated: *const Replicated<Value>,
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
