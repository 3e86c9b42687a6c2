//! Tasks of their own, and what comes of them.

use super::remote_latch::RemoteLatch;
use super::{Job, with_current};
use crate::sync::{Arc, UnsafeCell, arc};
use crate::unwind::drop_caught;
use crate::worker::Worker;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// A task that was spawned with [`crate::NodePool::spawn`]. Dropping it lets the task go on by itself.
pub struct Task<T> {
    packet: Arc<dyn Ends<T>>,
}

/// The data that the task and its joiner share.
struct Packet<F, T> {
    f: UnsafeCell<Option<F>>,
    outcome: Outcome<T>,
}

struct Outcome<T> {
    /// The task's until it has ended, then the joiner's.
    result: UnsafeCell<Option<thread::Result<T>>>,
    ended: RemoteLatch,
}

trait Ends<T>: Send + Sync {
    fn outcome(&self) -> &Outcome<T>;
}

// SAFETY: f is touched by the one that runs the job only, the result by one side at a time.
unsafe impl<F: Send, T: Send> Sync for Packet<F, T> {}

impl<F: Send, T: Send> Ends<T> for Packet<F, T> {
    fn outcome(&self) -> &Outcome<T> {
        &self.outcome
    }
}

impl<F: FnOnce() -> T + Send + 'static, T: Send + 'static> Packet<F, T> {
    /// # Safety
    /// `data` comes from `Arc::into_raw`, and this is its only use.
    unsafe fn run(data: *const (), worker: &Worker) {
        worker.count_done();
        // SAFETY: as promised.
        let packet = unsafe { Arc::from_raw(data.cast::<Self>()) };
        // SAFETY: jobs run once, and nobody else looks at f.
        let f = packet.f.with_mut(|f| unsafe { &mut *f }.take());
        let f = f.expect("a job runs once");
        let result = catch_unwind(AssertUnwindSafe(f));
        let outcome = &packet.outcome;
        // SAFETY: the joiner does not look before the task has ended.
        outcome.result.with_mut(|ours| unsafe { *ours = Some(result) });
        outcome.ended.set_by(worker);
        // A result that nobody wants may panic when it is dropped: that is the task's end as well.
        drop_caught(packet);
        worker.shared.task_ended(worker.node);
    }
}

impl<T: Send + 'static> Task<T> {
    /// The task, and its job for a queue.
    pub(crate) fn new<F: FnOnce() -> T + Send + 'static>(f: F) -> (Self, Job) {
        let outcome = Outcome { result: UnsafeCell::new(None), ended: RemoteLatch::default() };
        let packet = std::sync::Arc::new(Packet { f: UnsafeCell::new(Some(f)), outcome });
        let packet: Arc<dyn Ends<T>> = arc(packet);
        let data = Arc::into_raw(packet.clone()).cast::<Packet<F, T>>();
        (Self { packet }, Job::new(data, Packet::<F, T>::run))
    }
}

impl<T> Task<T> {
    /// Waits until the task has ended and returns what it returned. A worker, of whichever pool, does other
    /// tasks of its own pool meanwhile; any other thread sleeps.
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
        with_current(|current| self.join_on(current))
    }

    /// On this worker, or on a thread that is none.
    pub(super) fn join_on(self, worker: Option<&Worker>) -> thread::Result<T> {
        let outcome = self.packet.outcome();
        outcome.ended.wait(worker);
        // SAFETY: the task has ended and does not look at it any more; there is one Task, and it is consumed.
        let result = outcome.result.with_mut(|result| unsafe { &mut *result }.take());
        result.expect("a task that has ended left a result")
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.packet.outcome().ended.is_set()
    }
}

/// A task whose memory is another language's. A value of this type is a share of it: the pool has one from
/// `into_raw` to `from_raw`.
///
/// # Safety
/// Addresses from `into_raw` are aligned to 16 bytes.
#[doc(hidden)]
pub unsafe trait ForeignTask: Send + 'static {
    fn into_raw(self) -> *const u128;
    /// # Safety
    /// The address comes from `into_raw`, and this is its only use.
    unsafe fn from_raw(data: *const u128) -> Self;
    /// Does the task. No panic leaves.
    fn run(&self);
    fn ended(&self) -> &Ended;
}

/// The end of a [`ForeignTask`].
#[derive(Default)]
#[doc(hidden)]
pub struct Ended(RemoteLatch);

impl Ended {
    /// Waits as [`Task::join`] does. There is one waiter at a time.
    pub fn wait(&self) {
        with_current(|current| self.0.wait(current));
    }

    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }
}

/// The steps are those of [`Packet::run`].
///
/// # Safety
/// As [`ForeignTask::from_raw`].
unsafe fn run_foreign<T: ForeignTask>(data: *const (), worker: &Worker) {
    worker.count_done();
    // SAFETY: as promised.
    let task = unsafe { T::from_raw(data.cast()) };
    task.run();
    task.ended().0.set_by(worker);
    drop(task);
    worker.shared.task_ended(worker.node);
}

impl Job {
    pub(crate) fn of_foreign<T: ForeignTask>(task: T) -> Self {
        Self::new(task.into_raw(), run_foreign::<T>)
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
