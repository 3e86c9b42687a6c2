//! Each CPU's own free memory.

use super::blocks::Shard;
use crate::location::{current_cpu, machine};
use crossbeam_utils::{Backoff, CachePadded};
use nodewise_sys::{CpuSlot, rseq_adds, rseq_take};
use std::cell::UnsafeCell;

/// A shard for each CPU, and some for threads that find their CPU's taken, by one that was preempted. Which one a thread takes is a matter of speed
/// only.
pub(super) struct Shards {
    /// One for each shard. The first are taken by restartable sequences only, the others by atomic operations only.
    locks: Box<[CpuSlot]>,
    by_sequence: usize,
    guarded: Box<[CachePadded<UnsafeCell<Shard>>]>,
}

/// CPUs that share a shard for those who find their CPU's taken.
const CPUS_A_SPARE: usize = 4;

/// Lets go of a shard, after a panic too.
struct LetGo<'a>(&'a CpuSlot);

impl Drop for LetGo<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Shards {
    pub(super) fn new() -> Self {
        let cpus = machine().cpus;
        // ThreadSanitizer does not see what a sequence does.
        let by_sequence = if rseq_adds() && !cfg!(nodewise_tsan) { cpus } else { 0 };
        let spares = if by_sequence == 0 { cpus } else { cpus.div_ceil(CPUS_A_SPARE) };
        let locks: Box<[_]> = (0..by_sequence + spares).map(|_| CpuSlot::default()).collect();
        let guarded = locks.iter().map(|_| CachePadded::default()).collect();
        Self { locks, by_sequence, guarded }
    }

    /// Does something with a shard that nobody else has meanwhile.
    #[inline]
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut Shard) -> R) -> R {
        let (own, spares) = self.locks.split_at(self.by_sequence);
        let at = rseq_take(own).unwrap_or_else(|| own.len() + spare(spares));
        let _let_go = LetGo(&self.locks[at]);
        // SAFETY: whoever has taken the lock has the shard until it lets go of it.
        body(unsafe { &mut *self.guarded[at].get() })
    }
}

/// Takes one of the locks.
#[cold]
fn spare(locks: &[CpuSlot]) -> usize {
    let mut at = current_cpu().0 as usize % locks.len();
    let backoff = Backoff::new();
    while !locks[at].take() {
        at = (at + 1) % locks.len();
        backoff.snooze();
    }
    at
}
