//! Tasks of their own, and what comes of them.

use super::{Job, with_current};
use crate::pool::Shared;
use crate::sync::Futex;
use crate::unwind::drop_caught;
use crate::worker::{Event, Worker};
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// A task that was spawned with [`crate::NodePool::spawn`]. Dropping it lets the task go on by itself.
pub struct Task<T> {
    packet: Arc<dyn Ends<T>>,
}

/// What the task and its joiner share.
struct Packet<F, T> {
    f: UnsafeCell<Option<F>>,
    outcome: Outcome<T>,
}

struct Outcome<T> {
    /// The task's until `state` is [`DONE`], then the joiner's.
    result: UnsafeCell<Option<thread::Result<T>>>,
    state: Futex,
    /// The worker that joins, of whichever pool, once it may sleep. The joiner's until `state` is [`AWAITED`], then the task's.
    joiner: UnsafeCell<Option<(Arc<Shared>, usize)>>,
}

const RUNNING: u32 = 0;
/// A thread sleeps on it.
const WATCHED: u32 = 1;
/// A worker joins, and may sleep.
const AWAITED: u32 = 2;
const DONE: u32 = 3;

trait Ends<T>: Send + Sync {
    fn outcome(&self) -> &Outcome<T>;
}

// SAFETY: f is touched by the one that runs the job only, the result and the joiner by one side at a time.
unsafe impl<F: Send, T: Send> Sync for Packet<F, T> {}

impl<F: Send, T: Send> Ends<T> for Packet<F, T> {
    fn outcome(&self) -> &Outcome<T> {
        &self.outcome
    }
}

impl<F: FnOnce() -> T + Send + 'static, T: Send + 'static> Packet<F, T> {
    fn job(self: &Arc<Self>) -> Job {
        Job::new(Arc::into_raw(self.clone()), Self::run)
    }

    /// # Safety
    /// `data` comes from `Arc::into_raw`, and this is its only use.
    unsafe fn run(data: *const (), worker: &Worker) {
        worker.count_done();
        // SAFETY: as promised.
        let packet = unsafe { Arc::from_raw(data.cast::<Self>()) };
        // SAFETY: jobs run once, and nobody else looks at f.
        let f = unsafe { (*packet.f.get()).take() };
        let f = f.expect("a job runs once");
        let result = catch_unwind(AssertUnwindSafe(f));
        let outcome = &packet.outcome;
        // SAFETY: the joiner does not look before the state says so.
        unsafe { *outcome.result.get() = Some(result) };
        match outcome.state.swap(DONE, Ordering::AcqRel) {
            WATCHED => {
                outcome.state.wake_all();
                worker.has_woken();
            }
            AWAITED => {
                // SAFETY: the task's from that state on.
                let joiner = unsafe { (*outcome.joiner.get()).take() };
                let (shared, index) = joiner.expect("it is there before the state says so");
                shared.sleep.happened(index);
            }
            _ => {}
        }
        // A result that nobody wants may panic when it is dropped: that is the task's end as well.
        drop_caught(packet);
        worker.shared.task_ended(worker.node);
    }
}

impl<T: Send + 'static> Task<T> {
    /// The task, and its job for a queue.
    pub(crate) fn new(f: impl FnOnce() -> T + Send + 'static) -> (Self, Job) {
        let outcome =
            Outcome { result: UnsafeCell::new(None), state: Futex::default(), joiner: UnsafeCell::new(None) };
        let packet = Arc::new(Packet { f: UnsafeCell::new(Some(f)), outcome });
        let job = packet.job();
        (Self { packet }, job)
    }
}

impl<T> Task<T> {
    /// Waits until the task has ended and returns what it returned. A worker, of whichever pool, does other tasks of its own pool meanwhile;
    /// any other thread sleeps.
    ///
    /// # Panics
    ///
    /// With the task's payload, if it panicked.
    #[allow(clippy::must_use_candidate)] // Many tasks return nothing.
    pub fn join(self) -> T {
        self.join_caught().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// As [`Task::join`].
    ///
    /// # Errors
    /// The task's payload, if it panicked.
    pub fn join_caught(self) -> thread::Result<T> {
        let outcome = self.packet.outcome();
        with_current(|current| match current {
            Some(worker) => worker.run_until(&mut Awaited { outcome, worker }),
            None => outcome.sleep(),
        });
        // SAFETY: the task has ended and does not look at it any more; there is one Task, and it is consumed.
        let result = unsafe { (*outcome.result.get()).take() };
        result.expect("a task that has ended left a result")
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.packet.outcome().has_ended()
    }
}

impl<T> Outcome<T> {
    fn has_ended(&self) -> bool {
        self.state.get(Ordering::Acquire) == DONE
    }

    fn sleep(&self) {
        loop {
            match self.state.get(Ordering::Acquire) {
                DONE => return,
                RUNNING => {
                    self.state.compare_exchange(RUNNING, WATCHED, Ordering::AcqRel);
                }
                _ => self.state.wait(WATCHED, None),
            }
        }
    }
}

/// The task's end, for the worker that joins it: there is one Task, and joining consumes it.
struct Awaited<'a, T> {
    outcome: &'a Outcome<T>,
    worker: &'a Worker,
}

impl<T> Event for Awaited<'_, T> {
    fn over(&mut self) -> bool {
        self.outcome.has_ended()
    }

    fn over_before_sleep(&mut self) -> bool {
        let state = &self.outcome.state;
        if state.get(Ordering::Acquire) == RUNNING {
            let joiner = (self.worker.shared.clone(), self.worker.index);
            // SAFETY: the task does not look before the state says so, and no other thread joins.
            unsafe { *self.outcome.joiner.get() = Some(joiner) };
            state.compare_exchange(RUNNING, AWAITED, Ordering::AcqRel);
        }
        self.over()
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
