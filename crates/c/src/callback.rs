//! Functions of the caller's, what they are called with, and what they return.

use crate::result::{Failure, Outcome, Status};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

pub type Run = unsafe extern "C" fn(context: *mut c_void) -> c_int;
pub type DropContext = unsafe extern "C" fn(context: *mut c_void);

/// The caller's data, for callbacks on other threads.
#[derive(Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: the header says on which threads callbacks run; what they do with their context there is the
// caller's.
unsafe impl Send for Context {}
// SAFETY: likewise.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    /// The pointer; a method, so that closures capture the whole.
    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

/// A function that must not be NULL.
pub(crate) fn given<F>(function: Option<F>, name: &str) -> Outcome<F> {
    function.ok_or_else(|| Failure::invalid(format!("{name} is NULL")))
}

/// A task's context, which ends with it, whether it ran or not.
pub(crate) struct Owned {
    context: Context,
    drop: Option<DropContext>,
}

impl Owned {
    /// # Safety
    /// `drop` may be called with `context` once, on any thread.
    pub(crate) unsafe fn new(context: *mut c_void, drop: Option<DropContext>) -> Self {
        Self { context: Context::new(context), drop }
    }

    pub(crate) fn get(&self) -> *mut c_void {
        self.context.get()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: as promised to `new`.
            unsafe { drop(self.context.get()) };
        }
    }
}

/// The first number but 0 that any of several callbacks returned.
#[derive(Debug, Default)]
pub(crate) struct FirstStatus(AtomicI32);

impl FirstStatus {
    pub(crate) fn note(&self, status: c_int) {
        if status != 0 {
            let _ = self.0.compare_exchange(0, status, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// After all callbacks have ended.
    pub(crate) fn tell(self, out_status: Option<&mut MaybeUninit<c_int>>) -> Outcome {
        let status = self.0.into_inner();
        if let Some(out_status) = out_status {
            out_status.write(status);
        }
        Status(status).checked()
    }
}
