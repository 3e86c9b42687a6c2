//! Saying how memory is used.

use crate::arguments::{optional_out, out, slice};
use crate::result::{Code, Failure, Outcome, guarded};
use nodewise_runtime::{Hint, HonouredBy};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

pub const PRIVATE: c_int = 0;
pub const READ_SHARED: c_int = 1;
pub const WRITE_SHARED: c_int = 2;

pub const BY_MANAGER: c_int = 0;
pub const BY_LIBRARY: c_int = 1;

/// Memory that others may use meanwhile: nothing is said of what is in it.
type Untouched = UnsafeCell<MaybeUninit<u8>>;

/// # Safety
/// `memory` is to so many bytes of this process, which stay mapped as long as the slice lives; it may be null
/// where there are none.
unsafe fn bytes_of<'a>(memory: *const c_void, bytes: usize) -> Outcome<&'a [Untouched]> {
    // SAFETY: as promised; others may change what is in these cells.
    unsafe { slice(memory.cast(), bytes, "memory") }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_hint(
    memory: *const c_void,
    bytes: usize,
    hint: c_int,
    out_honoured_by: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `memory` is to `bytes` bytes of memory that the caller has.
        let memory = unsafe { bytes_of(memory, bytes) }?;
        // SAFETY: `out_honoured_by` is null, or room for a value that only this call has.
        let out_honoured_by = unsafe { optional_out(out_honoured_by) };
        let hint = match hint {
            PRIVATE => Hint::Private,
            READ_SHARED => Hint::ReadShared,
            WRITE_SHARED => Hint::WriteShared,
            other => return Err(Failure::invalid(format!("hint is {other}, which is none"))),
        };
        let honoured_by = match nodewise_runtime::hint(memory, hint)? {
            HonouredBy::Manager => BY_MANAGER,
            // All that is no manager is of this process.
            _ => BY_LIBRARY,
        };
        if let Some(out_honoured_by) = out_honoured_by {
            out_honoured_by.write(honoured_by);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_forget_hints(memory: *const c_void, bytes: usize) -> Code {
    guarded(|| {
        // SAFETY: `memory` is to `bytes` bytes of memory that the caller has.
        nodewise_runtime::forget_hints(unsafe { bytes_of(memory, bytes) }?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_is_managed(out_managed: *mut bool) -> Code {
    guarded(|| {
        // SAFETY: `out_managed` is null, or room for a value that only this call has.
        let out_managed = unsafe { out(out_managed, "out_managed") }?;
        out_managed.write(nodewise_runtime::is_managed());
        Ok(())
    })
}
