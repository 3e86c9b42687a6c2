//! The end of something, told to who is not of the pool that it ends in.

use crate::pool_state::PoolState;
use crate::sync::{Futex, UnsafeCell};
use crate::worker::{Event, Worker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Set once. One may wait for it: a thread, which sleeps, or a worker of whichever pool, which goes on
/// working for that.
#[derive(Default)]
pub(super) struct RemoteLatch {
    state: Futex,
    /// The waiter, where that is a worker, once it may sleep. The waiter's until `state` is [`AWAITED`],
    /// then that of who sets it.
    worker: UnsafeCell<Option<(Arc<PoolState>, usize)>>,
}

const UNSET: u32 = 0;
/// Somebody waits, and may sleep.
const AWAITED: u32 = 1;
const SET: u32 = 2;

// SAFETY: the worker is touched by one side at a time.
unsafe impl Sync for RemoteLatch {}

impl RemoteLatch {
    pub(super) fn is_set(&self) -> bool {
        self.state.get(Ordering::Acquire) == SET
    }

    /// Sets it. A thread that finds it set sees all that was done before. True: a thread that slept is on its
    /// way.
    pub(super) fn set(&self) -> bool {
        if self.state.swap(SET, Ordering::AcqRel) != AWAITED {
            return false;
        }
        // SAFETY: ours from that state on.
        let worker = self.worker.with_mut(|worker| unsafe { &mut *worker }.take());
        if let Some((shared, index)) = &worker {
            shared.sleep.happened(*index);
        } else {
            self.state.wake_all();
        }
        worker.is_none()
    }

    /// Sets it, on a worker.
    pub(super) fn set_by(&self, here: &Worker) {
        if self.set() {
            here.has_woken();
        }
    }

    /// Waits until it is set, on this worker, or on a thread that is none.
    pub(super) fn wait(&self, worker: Option<&Worker>) {
        if let Some(worker) = worker {
            worker.run_until(&mut Awaited { latch: self, worker });
        } else {
            while !self.is_set() {
                self.await_by(None);
                self.state.wait(AWAITED, None);
            }
        }
    }

    /// Waits so long on a thread that is no worker; says whether it is set.
    pub(super) fn wait_for(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        while !self.is_set() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.await_by(None);
            self.state.wait(AWAITED, Some(left));
        }
        true
    }

    /// Whoever sets it from here on wakes the waiter.
    fn await_by(&self, worker: Option<&Worker>) {
        if self.state.get(Ordering::Acquire) == UNSET {
            let worker = worker.map(|worker| (worker.shared.clone(), worker.index));
            // SAFETY: who sets it does not look before the state says so, and nobody else waits.
            self.worker.with_mut(|waiter| unsafe { *waiter = worker });
            self.state.compare_exchange(UNSET, AWAITED, Ordering::AcqRel);
        }
    }
}

struct Awaited<'a> {
    latch: &'a RemoteLatch,
    worker: &'a Worker,
}

impl Event for Awaited<'_> {
    fn over(&mut self) -> bool {
        self.latch.is_set()
    }

    fn over_before_sleep(&mut self) -> bool {
        self.latch.await_by(Some(self.worker));
        self.over()
    }
}
