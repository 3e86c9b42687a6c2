//! Two closures at once, and a closure on a worker.

use super::remote_latch::RemoteLatch;
use super::{Anchored, Job, Signal, StackJob, as_worker, current_of, with_current};
use crate::pool::NodePool;
use crate::pool_state::PoolState;
use crate::sync::MutexGuard;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::unwind::drop_caught;
use crate::worker::{Event, Worker};
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The signal to a worker of the same pool.
struct Latch {
    set: AtomicBool,
    waiter: usize,
}

impl Signal for Latch {
    unsafe fn set(this: *const Self, worker: &Worker) {
        // SAFETY: valid until the store, which is the last access.
        let waiter = unsafe { (*this).waiter };
        // SAFETY: likewise.
        unsafe { (*this).set.store(true, Ordering::Release) };
        worker.shared.sleep.happened(waiter);
    }
}

impl Event for &Latch {
    fn over(&mut self) -> bool {
        self.set.load(Ordering::Acquire)
    }
}

/// The signal to anybody else.
impl Signal for Arc<RemoteLatch> {
    unsafe fn set(this: *const Self, worker: &Worker) {
        // SAFETY: valid now; from here on this is our own share of it.
        let latch = unsafe { (*this).clone() };
        latch.set_by(worker);
    }
}

impl Worker {
    /// Runs both, `b` on another worker if one comes for it; `b` is told whether that was so. If one panics,
    /// so does this, after the other has ended, or was taken back unrun.
    #[inline]
    pub(crate) fn join<RA, RB: Send>(
        &self,
        a: impl FnOnce(&Self) -> RA,
        b: impl FnOnce(&Self, bool) -> RB + Send,
    ) -> (RA, RB) {
        let here = self.index;
        let latch = Latch { set: AtomicBool::new(false), waiter: here };
        let mut stack = StackJob::new(latch, move |worker: &Self| b(worker, worker.index != here));
        // SAFETY: taken back or waited for below, whatever `a` does; nothing between can unwind out of this
        // function.
        let job = unsafe { stack.job() }.part_of(self.call());
        let mine = job.data;
        self.push(job);
        let anchored = Anchored;
        let a = catch_unwind(AssertUnwindSafe(|| a(self)));
        let taken_back = match self.pop() {
            Some(job) if std::ptr::eq(job.data, mine) => true,
            other => self.take_back_or_wait(mine, &stack.signal, other),
        };
        std::mem::forget(anchored);
        let a = a.unwrap_or_else(|panic| {
            // The second of two payloads is dropped.
            drop_caught(stack.result.get_mut().take());
            resume_unwind(panic)
        });
        let b = if taken_back {
            self.count_run();
            stack.take()(self)
        } else {
            stack.into_result().unwrap_or_else(|panic| resume_unwind(panic))
        };
        (a, b)
    }
}

impl Worker {
    /// Works until the job was taken back from this worker's queue (true) or was run elsewhere (false).
    #[cold]
    fn take_back_or_wait(&self, job: *const (), mut latch: &Latch, mut popped: Option<Job>) -> bool {
        loop {
            match popped {
                Some(mine) if std::ptr::eq(mine.data, job) => return true,
                // The first of the two left work behind.
                Some(other) => {
                    if let Err(others) = self.run_unless_anothers(other) {
                        self.leave_to_others(others);
                    }
                    self.count_done();
                }
                // Whoever took the job took all that was queued before it. Or a thief has a look at it, and
                // leaves it here.
                None => {
                    self.run_until_returned(&mut latch);
                    return false;
                }
            }
            if latch.over() {
                return false;
            }
            popped = self.pop();
        }
    }
}

impl Worker {
    /// Works until `sleep` returns, which a thread of its own calls.
    pub(crate) fn work_during(&self, sleep: impl Fn() + Sync) {
        let returned = RemoteLatch::default();
        std::thread::scope(|scope| {
            let tell = || {
                sleep();
                returned.set();
            };
            match std::thread::Builder::new().spawn_scoped(scope, tell) {
                Ok(_) => returned.wait(Some(self)),
                // The kernel gives no thread.
                Err(_) => sleep(),
            }
        });
    }
}

impl NodePool {
    /// Runs `op` on a worker of this pool: here if this thread is one or may work along, else on one near to
    /// it, while this thread waits.
    #[inline]
    pub(crate) fn in_worker<R: Send>(&self, op: impl FnOnce(&Worker) -> R + Send) -> R {
        match current_of(self.state()) {
            Some(worker) => op(worker),
            None => self.in_worker_from_outside(op),
        }
    }

    /// Not inlined into every join, most of which are made by workers.
    #[inline(never)]
    fn in_worker_from_outside<R: Send>(&self, op: impl FnOnce(&Worker) -> R + Send) -> R {
        with_current(|other| match other {
            None => match self.as_caller() {
                Some(caller) => work_along(caller, op),
                None if self.may_work_along() => self.offer(op),
                None => self.run_watched(op),
            },
            // A worker that waits for another pool must not keep its own waiting.
            other => self.state().run_inside(other, op),
        })
    }
}

/// How long a thread from outside waits for a worker to begin what it offers. Workers that have nothing to do
/// begin sooner.
const PATIENCE: Duration = Duration::from_millis(5);

/// A job that a worker runs or the thread that has made it, whoever takes it first.
struct Offer {
    is_taken: AtomicBool,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: the job is touched by who has taken it.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

impl Offer {
    fn new(job: Job) -> Arc<Self> {
        Arc::new(Self { is_taken: AtomicBool::new(false), job: UnsafeCell::new(Some(job)) })
    }

    fn take(&self) -> Option<Job> {
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        // SAFETY: nobody else has taken it, or will.
        unsafe { &mut *self.job.get() }.take()
    }

    /// # Safety
    /// `data` comes from [`Arc::into_raw`], and this is its only use.
    unsafe fn run(data: *const (), worker: &Worker) {
        // SAFETY: as promised.
        let offer = unsafe { Arc::from_raw(data.cast::<Self>()) };
        match offer.take() {
            Some(job) => job.run(worker),
            // It was counted by the thread that has run it.
            None => worker.shared.task_ended(worker.node),
        }
    }
}

impl NodePool {
    /// Has a worker run `op`, or this thread if none begins soon: all may be waiting for what the thread is
    /// about to do.
    #[cold]
    fn offer<R: Send>(&self, op: impl FnOnce(&Worker) -> R + Send) -> R {
        let latch = Arc::new(RemoteLatch::default());
        let stack = StackJob::new(latch.clone(), op);
        // SAFETY: waited for below, and nothing between can unwind out of this function.
        let offer = Offer::new(unsafe { stack.job() });
        let shared = self.state();
        let node = shared.near();
        let anchored = Anchored;
        let job = Job::new(Arc::into_raw(offer.clone()), Offer::run);
        shared.inject(node, job.part_of(shared.call_from_outside()));
        while !latch.wait_for(PATIENCE) && !offer.is_taken.load(Ordering::Acquire) {
            if shared.sleep.relieve(node) {
                continue;
            }
            let Some(caller) = self.any_caller() else { continue };
            // The detached tasks count the offer that stays in the queue then.
            shared.detached.submit_on(node, 1);
            match offer.take() {
                Some(job) => work_along(caller, |worker| job.run(worker)),
                None => shared.task_ended(node),
            }
        }
        latch.wait(None);
        std::mem::forget(anchored);
        stack.into_result().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// How long a node's workers may begin nothing that they were given before a substitute does.
const STANDSTILL: Duration = Duration::from_millis(50);

impl NodePool {
    /// Has a worker run `op`. If the workers of a node begin nothing for long, they may all wait for
    /// something that the calling thread is about to do. Substitutes then work for them.
    #[cold]
    fn run_watched<R: Send>(&self, op: impl FnOnce(&Worker) -> R + Send) -> R {
        let (shared, has_begun) = (self.state(), AtomicBool::new(false));
        let op = |worker: &Worker| {
            has_begun.store(true, Ordering::Relaxed);
            op(worker)
        };
        shared.run_inside_and(op, |latch, near| {
            let begun = || (0..shared.nodes.len()).map(|node| shared.begun_on(node)).collect::<Vec<_>>();
            let mut before = begun();
            while !latch.wait_for(STANDSTILL) {
                let now = begun();
                // Workers that have not had a CPU yet do not wait for anything else.
                let all_begun = shared.begun.load(Ordering::Relaxed) == shared.workers;
                let (some_idle, some_search) = (shared.sleep.some_idle(), shared.sleep.some_search());
                for node in (0..now.len()).filter(|_| all_begun) {
                    // It may also lie in the queue of one that waits.
                    let is_here = node == near && !has_begun.load(Ordering::Relaxed);
                    let waits = !some_search && shared.has_bound(node)
                        || !some_idle && (is_here || shared.has_given(node));
                    if waits && now[node] == before[node] {
                        self.substitute(node);
                    }
                }
                before = now;
            }
        })
    }
}

/// Runs `op` on this thread, which leaves when that has ended.
fn work_along<R>(caller: MutexGuard<'_, Worker>, op: impl FnOnce(&Worker) -> R) -> R {
    struct Leaves<'a>(MutexGuard<'a, Worker>);
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            self.0.leave();
        }
    }
    let caller = Leaves(caller);
    as_worker(&caller.0, || op(&caller.0))
}

impl PoolState {
    #[cold]
    pub(super) fn run_inside<R: Send>(
        &self,
        from: Option<&Worker>,
        op: impl FnOnce(&Worker) -> R + Send,
    ) -> R {
        self.run_inside_and(op, |latch, _| latch.wait(from))
    }

    /// `wait` waits for the latch, and is told the node that is to run `op`.
    fn run_inside_and<R: Send>(
        &self,
        op: impl FnOnce(&Worker) -> R + Send,
        wait: impl FnOnce(&RemoteLatch, usize),
    ) -> R {
        let latch = Arc::new(RemoteLatch::default());
        let stack = StackJob::new(latch.clone(), op);
        // SAFETY: waited for below, and nothing between can unwind out of this function.
        let job: Job = unsafe { stack.job() };
        let (anchored, near) = (Anchored, self.near());
        self.inject(near, job.part_of(self.call_from_outside()));
        wait(&latch, near);
        std::mem::forget(anchored);
        stack.into_result().unwrap_or_else(|panic| resume_unwind(panic))
    }
}
