//! The barrier between 'I sleep, is there work?' and 'here is work, does anybody sleep?': a fence on both
//! sides, or one that one side alone pays for.

#[cfg(not(loom))]
pub(super) use real::{full, light, pass, register};

#[cfg(loom)]
pub(super) use modelled::{full, light, pass, register};

#[cfg(loom)]
pub(super) use modelled::QUEUED;

#[cfg(not(loom))]
mod real {
    use nodewise_sys::{Membarrier, membarrier};
    use std::sync::atomic::{Ordering, compiler_fence, fence};

    /// Whether the kernel has [`pass`].
    pub(in super::super) fn register() -> bool {
        membarrier(Membarrier::RegisterPrivateExpedited).is_ok()
    }

    /// The side that pays nothing.
    #[inline]
    pub(in super::super) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The side that pays for both: what any thread of this process has stored is seen by all from here on.
    /// False if the kernel, which has registered it, refuses now.
    pub(in super::super) fn pass() -> bool {
        membarrier(Membarrier::PrivateExpedited).is_ok()
    }

    /// A fence of the calling thread alone.
    pub(in super::super) fn full() {
        fence(Ordering::SeqCst);
    }
}

/// Loom has fences, which act on the thread that passes them, and no membarrier, which acts on others. So
/// here a store that makes work waits in a store buffer that is part of the model, as on x86-64: until its
/// thread passes a full fence or does something else that empties the buffer, or another passes membarrier.
/// Loads stay in order there, which is what loom's own fence on the cheap side is for. 'A better x86 memory
/// model: x86-TSO': Owens, Sarkar, Sewell, 2009.
#[cfg(loom)]
mod modelled {
    use crate::sync::atomic::{AtomicUsize, Ordering, fence};
    use loom::thread::{ThreadId, current};
    use std::sync::OnceLock;

    loom::lazy_static! {
        /// The models' work: equal tasks, made by one thread.
        pub(in super::super) static ref QUEUED: Queued = Queued::default();
    }

    #[derive(Default)]
    pub(in super::super) struct Queued {
        /// The tasks that all see, and from [`BUFFERED`] on those that are in their maker's store buffer.
        tasks: AtomicUsize,
        maker: OnceLock<ThreadId>,
    }

    const BUFFERED: usize = 1 << 16;

    impl Queued {
        pub(in super::super) fn seen(&self) -> usize {
            self.tasks.load(Ordering::Acquire) % BUFFERED
        }

        pub(in super::super) fn take(&self) -> bool {
            let mut there = self.tasks.load(Ordering::Acquire);
            while there % BUFFERED > 0 {
                match self.tasks.compare_exchange(there, there - 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return true,
                    Err(now) => there = now,
                }
            }
            false
        }

        pub(in super::super) fn push(&self) {
            self.tasks.fetch_add(1, Ordering::Release);
        }

        pub(in super::super) fn push_buffered(&self) {
            assert_eq!(*self.maker.get_or_init(|| current().id()), current().id());
            self.tasks.fetch_add(BUFFERED, Ordering::Relaxed);
        }

        pub(in super::super) fn empty_buffer(&self) {
            // Not a load, which might be of an older value.
            let mut now = self.tasks.fetch_add(0, Ordering::AcqRel);
            while now >= BUFFERED {
                let emptied = now % BUFFERED + now / BUFFERED;
                match self.tasks.compare_exchange(now, emptied, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(other) => now = other,
                }
            }
        }
    }

    /// Fences on both sides, unless a model has it otherwise.
    pub(in super::super) fn register() -> bool {
        false
    }

    pub(in super::super) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(in super::super) fn pass() -> bool {
        QUEUED.empty_buffer();
        fence(Ordering::SeqCst);
        true
    }

    pub(in super::super) fn full() {
        if QUEUED.maker.get() == Some(&current().id()) {
            QUEUED.empty_buffer();
        }
        fence(Ordering::SeqCst);
    }
}
