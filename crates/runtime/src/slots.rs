//! The parts of a counter, and adding to the caller's own.

#[cfg(not(loom))]
pub(crate) use real::{CpuSlot, adds_alone, current_slot, try_add};

#[cfg(loom)]
pub(crate) use modelled::{CpuSlot, adds_alone, current_slot, try_add};

#[cfg(not(loom))]
mod real {
    pub(crate) use nodewise_sys::{CpuSlot, rseq_add as try_add, rseq_adds as adds_alone, sched_getcpu};

    /// Where a thread adds that has no sequence to add alone with.
    pub(crate) fn current_slot() -> usize {
        sched_getcpu().map_or(usize::MAX, |cpu| cpu as usize)
    }
}

/// Under loom there are no CPUs, and every addition is atomic.
#[cfg(loom)]
mod modelled {
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug, Default)]
    pub(crate) struct CpuSlot(AtomicU64);

    impl CpuSlot {
        pub(crate) fn get(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        pub(crate) fn add(&self, number: u64) {
            self.0.fetch_add(number, Ordering::Release);
        }
    }

    pub(crate) fn adds_alone() -> bool {
        false
    }

    pub(crate) fn try_add(_slots: &[CpuSlot], _number: u64) -> bool {
        false
    }

    pub(crate) fn current_slot() -> usize {
        0
    }
}
