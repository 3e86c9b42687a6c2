//! Each CPU's own free memory.

use super::blocks::Shard;
use crate::location::{current_cpu, machine};
use crossbeam_utils::{Backoff, CachePadded};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shard for each CPU. Which one a thread takes is a matter of speed only: where its CPU's is taken, by a thread that was preempted, it takes
/// the next.
pub(super) struct Shards(Box<[CachePadded<Taken>]>);

#[derive(Default)]
struct Taken {
    taken: AtomicBool,
    shard: UnsafeCell<Shard>,
}

/// Lets go of a shard, after a panic too.
struct LetGo<'a>(&'a AtomicBool);

impl Drop for LetGo<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Shards {
    pub(super) fn new() -> Self {
        Self((0..machine().cpus).map(|_| CachePadded::default()).collect())
    }

    /// Does something with a shard that nobody else has meanwhile.
    #[inline]
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut Shard) -> R) -> R {
        let mut at = current_cpu().0 as usize;
        if at >= self.0.len() {
            at = 0;
        }
        let backoff = Backoff::new();
        // Taking is one atomic operation, and letting go a plain store: half a mutex.
        while self.0[at].taken.swap(true, Ordering::Acquire) {
            at = (at + 1) % self.0.len();
            backoff.snooze();
        }
        let _taken = LetGo(&self.0[at].taken);
        // SAFETY: whoever has set `taken` has the shard until it lets go of it.
        body(unsafe { &mut *self.0[at].shard.get() })
    }
}
