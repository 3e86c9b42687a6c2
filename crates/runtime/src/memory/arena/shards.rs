//! Each CPU's own free memory.

use super::blocks::Shard;
use crate::location::{current_cpu, machine};
use crossbeam_utils::{Backoff, CachePadded};
use nodewise_sys::{CpuSlot, rseq_adds, rseq_take};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A shard for each CPU, and some for threads that find their CPU's taken, by one that was preempted. Which
/// one a thread takes is a matter of speed only.
pub(super) struct Shards {
    /// Taken by restartable sequences only; none where there are no such.
    of_cpus: Guarded,
    /// Taken by atomic operations only.
    spares: Guarded,
}

struct Guarded {
    locks: Box<[CpuSlot]>,
    /// One for each lock.
    shards: Box<[CachePadded<UnsafeCell<Shard>>]>,
}

/// A shard that nobody else has meanwhile.
pub(super) struct Taken<'a> {
    lock: &'a CpuSlot,
    shard: &'a mut Shard,
}

/// CPUs that share a shard for those who find their CPU's taken.
const CPUS_A_SPARE: usize = 4;

impl Shards {
    pub(super) fn new() -> Self {
        let cpus = machine().cpus;
        // ThreadSanitizer does not see what a sequence does.
        if rseq_adds() && !cfg!(nodewise_tsan) {
            Self { of_cpus: Guarded::new(cpus), spares: Guarded::new(cpus.div_ceil(CPUS_A_SPARE)) }
        } else {
            Self { of_cpus: Guarded::new(0), spares: Guarded::new(cpus) }
        }
    }

    /// One for all CPUs.
    pub(super) fn one() -> Self {
        Self { of_cpus: Guarded::new(0), spares: Guarded::new(1) }
    }

    /// The CPU's own, if nobody has it.
    #[inline]
    pub(super) fn own(&self) -> Option<Taken<'_>> {
        let cpu = rseq_take(&self.of_cpus.locks)?;
        // SAFETY: just taken.
        Some(unsafe { self.of_cpus.taken(cpu) })
    }

    /// The CPU's own or another; waits for one.
    pub(super) fn any(&self) -> Taken<'_> {
        self.own().unwrap_or_else(|| {
            let locks = &self.spares.locks;
            let mut at = current_cpu().0 as usize % locks.len();
            let backoff = Backoff::new();
            while !locks[at].take() {
                at = (at + 1) % locks.len();
                backoff.snooze();
            }
            // SAFETY: just taken.
            unsafe { self.spares.taken(at) }
        })
    }
}

impl Guarded {
    fn new(shards: usize) -> Self {
        Self {
            locks: (0..shards).map(|_| CpuSlot::default()).collect(),
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
        }
    }

    /// # Safety
    /// The caller has taken this lock.
    #[inline]
    unsafe fn taken(&self, at: usize) -> Taken<'_> {
        // SAFETY: there is such a lock, by contract.
        let lock = unsafe { self.locks.get_unchecked(at) };
        // SAFETY: there is a shard for each lock.
        let shard = unsafe { self.shards.get_unchecked(at) };
        // SAFETY: whoever has taken the lock has the shard until it lets go of it.
        Taken { lock, shard: unsafe { &mut *shard.get() } }
    }
}

impl Deref for Taken<'_> {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        self.shard
    }
}

impl DerefMut for Taken<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard {
        self.shard
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.let_go();
    }
}
