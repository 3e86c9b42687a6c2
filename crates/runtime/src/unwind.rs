//! Panics: what they may pass by, and where they must go no further.

use crate::{Error, NodeArena, NodePool, NodeReplicated, Operate, Replicated, Task};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};

/// Drops what may panic then: payloads of panics are the user's values, as results are. The payload of a
/// panic in the drop is forgotten, since that might panic in turn.
pub(crate) fn drop_caught<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(payload);
    }
}

/// Ends the process if it is dropped: a panic would leave half done what nobody may see half done.
pub(crate) struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

// These are whole again when a panic has left them. Panics of tasks are carried to who waits for them; in an
// arena none can come half way; what a panic in an update of a replicated value leaves is said there, and no
// reader sees half of it.

impl UnwindSafe for NodePool {}
impl RefUnwindSafe for NodePool {}

// A task has its value for nobody but who joins it, and that ends it.
impl<T> UnwindSafe for Task<T> {}
impl<T> RefUnwindSafe for Task<T> {}

impl UnwindSafe for NodeArena {}
impl RefUnwindSafe for NodeArena {}

impl<T: UnwindSafe> UnwindSafe for Replicated<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Replicated<T> {}

impl<T: Operate + UnwindSafe> UnwindSafe for NodeReplicated<T> {}
impl<T: Operate + RefUnwindSafe> RefUnwindSafe for NodeReplicated<T> {}

// Nobody changes it any more.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}
