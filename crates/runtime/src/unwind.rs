//! What a panic may pass by: these are whole again when one has left them.
//!
//! Panics of tasks are carried to who waits for them. In an arena none can come half way. What a panic in an update of a replicated value
//! leaves is said there, and no reader sees half of it.

use crate::{Error, NodeArena, NodePool, NodeReplicated, Operate, Replicated, Task};
use std::panic::{RefUnwindSafe, UnwindSafe};

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
