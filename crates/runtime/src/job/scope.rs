//! Tasks that borrow, and end before the scope does.

use super::{Anchored, Job, with_current};
use crate::error::Result;
use crate::pool::Shared;
use crate::sync::{Mutex, lock};
use crate::tally::{Alarms, Tally, count_done};
use crate::worker::{Event, Worker};
use nodewise_topology::NodeId;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What [`crate::NodePool::scope`] gives to its closure, to spawn tasks that may borrow whatever lives longer than the scope.
///
/// Any thread that has a reference may use it, tasks of the scope included.
pub struct Scope<'scope> {
    shared: Arc<Shared>,
    /// The worker that waits for the tasks.
    owner: usize,
    tally: Tally,
    cancelled: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Invariant: a scope is for borrows of exactly this life.
    borrows: PhantomData<fn(&'scope ()) -> &'scope ()>,
}

/// A scope's address, for its tasks, which it outlives.
struct Outlives<'scope>(*const Scope<'scope>);

// SAFETY: a scope may be used from any thread: all that is in it may.
unsafe impl Send for Outlives<'_> {}

impl<'scope> Outlives<'scope> {
    /// The address; a method, so that closures capture the whole.
    fn get(&self) -> *const Scope<'scope> {
        self.0
    }
}

impl<'scope> Scope<'scope> {
    pub(crate) fn run<R>(worker: &Worker, body: impl FnOnce(&Self) -> R) -> R {
        let (tally, alarms) = Tally::new(worker.shared.nodes.len());
        let scope = Self {
            shared: worker.shared.clone(),
            owner: worker.index,
            tally,
            cancelled: AtomicBool::new(false),
            panic: Mutex::new(None),
            borrows: PhantomData,
        };
        let anchored = Anchored;
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        worker.run_until(&mut AllDone { tally: &scope.tally, alarms });
        std::mem::forget(anchored);
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        if let Some(panic) = lock(&scope.panic).take() {
            resume_unwind(panic);
        }
        result
    }

    /// Spawns a task on the calling worker's node, or on the node that the calling thread is on where it is not one of the pool's. A
    /// worker of that node runs it, or of another if that one has run dry.
    ///
    /// If it panics, [`crate::NodePool::scope`] panics with the first such payload, after all tasks have ended.
    pub fn spawn(&self, task: impl FnOnce(&Self) + Send + 'scope) {
        with_current(|current| match current {
            Some(worker) if Arc::ptr_eq(&worker.shared, &self.shared) => {
                if worker.index == self.owner {
                    self.tally.submit_alone(1);
                } else {
                    self.tally.submit(worker.node, 1);
                }
                worker.push(self.submitted(|scope, _| task(scope)));
            }
            _ => {
                let node = self.shared.near();
                self.tally.submit(node, 1);
                self.shared.inject(node, self.submitted(|scope, _| task(scope)));
            }
        });
    }

    /// Spawns a task that only workers of this node run, when they have none of their own.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NoWorkers`]: the pool has none on this node; the task is dropped.
    pub fn spawn_on(&self, node: NodeId, task: impl FnOnce(&Self) + Send + 'scope) -> Result<()> {
        let node = self.shared.index_of(node)?;
        self.tally.submit(node, 1);
        self.shared.inject_bound(node, self.submitted(|scope, _| task(scope)));
        Ok(())
    }

    /// Spawns a task on a node of the pool by its index there; others may take it.
    pub(crate) fn spawn_at(&self, node: usize, task: impl FnOnce(&Worker) + Send + 'scope) {
        self.tally.submit(node, 1);
        self.shared.inject(node, self.submitted(|_, worker| task(worker)));
    }

    /// Has the tasks that have not begun be dropped instead of run. Those that run may ask [`Scope::is_cancelled`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the scope was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The job of a task that was counted as submitted.
    fn submitted(&self, task: impl FnOnce(&Self, &Worker) + Send + 'scope) -> Job {
        let scope = Outlives(self);
        let job = move |worker: &Worker| {
            // SAFETY: the scope waits for this task, until it is counted as done below.
            let scope = unsafe { &*scope.get() };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                if !scope.is_cancelled() {
                    task(scope, worker);
                }
            }));
            if let Err(panic) = ended {
                lock(&scope.panic).get_or_insert(panic);
            }
            let (word, owner) = (scope.tally.done_word(worker.node), scope.owner);
            if count_done(word, 1) {
                worker.shared.sleep.happened(owner);
            }
        };
        // SAFETY: the scope, whose function outlives 'scope's end, waits for the job. It catches what the task throws.
        unsafe { Job::boxed(job) }
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// All tasks of a scope are done.
struct AllDone<'a> {
    tally: &'a Tally,
    alarms: Alarms,
}

impl Event for AllDone<'_> {
    fn over(&mut self) -> bool {
        self.tally.left(&self.alarms) == 0
    }

    fn over_before_sleep(&mut self) -> bool {
        self.tally.over(&mut self.alarms)
    }
}
