//! Tasks that borrow, and end before the scope does.

use super::blocks::{Block, SentBack};
use super::{Anchored, Call, Job, with_current};
use crate::error::Result;
use crate::pool_state::PoolState;
use crate::sleep::Next;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use crate::tally::{Alarms, Tally, count_done};
use crate::unwind::drop_caught;
use crate::worker::{Event, Worker};
use nodewise_topology::NodeId;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A scope of [`crate::NodePool::scope`], whose tasks may borrow whatever lives longer than the scope.
///
/// Any thread that has a reference may use it, tasks of the scope included.
pub struct Scope<'scope> {
    shared: Arc<PoolState>,
    /// The worker that waits for the tasks.
    owner: usize,
    /// The call that its tasks are part of.
    call: Call,
    tally: Tally,
    cancelled: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Invariant: a scope is for borrows of exactly this life.
    borrows: PhantomData<fn(&'scope ()) -> &'scope ()>,
}

impl<'scope> Scope<'scope> {
    pub(crate) fn run<R>(worker: &Worker, body: impl FnOnce(&Self) -> R) -> R {
        let (tally, alarms) = Tally::new(worker.shared.nodes.len());
        let scope = Self {
            shared: worker.shared.clone(),
            owner: worker.index,
            call: worker.call(),
            tally,
            cancelled: AtomicBool::new(false),
            panic: Mutex::new(None),
            borrows: PhantomData,
        };
        let anchored = Anchored;
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        worker.run_until_returned(&mut AllDone {
            scope: std::ptr::from_ref(&scope).cast(),
            tally: &scope.tally,
            alarms,
            owner: worker,
        });
        std::mem::forget(anchored);
        let of_task = lock(&scope.panic).take();
        match (result, of_task) {
            (Ok(result), None) => result,
            (Ok(_), Some(panic)) => resume_unwind(panic),
            (Err(panic), of_task) => {
                drop_caught(of_task);
                resume_unwind(panic)
            }
        }
    }

    /// Keeps the payload of a task's panic, if it is the first.
    #[cold]
    fn panicked(&self, panic: Box<dyn Any + Send>) {
        let mut first = lock(&self.panic);
        if first.is_none() {
            *first = Some(panic);
        } else {
            drop(first);
            drop_caught(panic);
        }
    }

    /// Spawns a task on the calling worker's node, or on that of the calling thread where it is no worker of
    /// the pool. A worker of that node runs it, or of another if that one has run dry.
    ///
    /// If it panics, [`crate::NodePool::scope`] panics with the first such payload, after all tasks have
    /// ended.
    pub fn spawn(&self, task: impl FnOnce(&Self) + Send + 'scope) {
        self.queue(|worker| self.submitted(worker, |scope, _| task(scope)));
    }

    /// Queues a task's job, which is made in memory of this worker's if there is one.
    #[inline]
    fn queue(&self, job: impl FnOnce(Option<&Worker>) -> Job) {
        with_current(|current| match current {
            Some(worker) if Arc::ptr_eq(&worker.shared, &self.shared) => {
                if worker.index == self.owner {
                    self.tally.submit_alone(1);
                } else {
                    self.tally.submit(worker.node, 1);
                }
                worker.push(job(current));
            }
            _ => {
                let node = self.shared.near();
                self.tally.submit(node, 1);
                self.shared.inject(node, job(None));
            }
        });
    }

    /// Spawns a task that only workers of this node run, when they have no task of their own.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NoWorkers`]: the pool has none on this node; the task is dropped.
    pub fn spawn_on(&self, node: NodeId, task: impl FnOnce(&Self) + Send + 'scope) -> Result<()> {
        self.spawn_bound(self.shared.index_of(node)?, task);
        Ok(())
    }

    /// The same for a node of the pool by its index there.
    pub(crate) fn spawn_bound(&self, node: usize, task: impl FnOnce(&Self) + Send + 'scope) {
        self.queue_bound(node, |worker| self.submitted(worker, |scope, _| task(scope)));
    }

    fn queue_bound(&self, node: usize, job: impl FnOnce(Option<&Worker>) -> Job) {
        if self.shared.has_one_node() {
            // Any worker is one of this node.
            return self.queue(job);
        }
        self.tally.submit(node, 1);
        let job = job(None);
        let works_there = |worker: &Worker| {
            Arc::ptr_eq(&worker.shared, &self.shared) && self.shared.home(worker.node) == node
        };
        let next = with_current(|current| match current {
            Some(worker) if works_there(worker) => Next::Works,
            _ => Next::Unknown,
        });
        self.shared.inject_bound(node, job, next);
    }

    /// Spawns a task that stays at the address where `make` makes it. It is dropped there, once `call` has
    /// run it or the scope was cancelled. Tasks of up to 48 bytes need no memory of their own. It is for
    /// objects of other languages, which may know their address. Without a node it is as [`Scope::spawn`].
    ///
    /// # Errors
    /// As [`Scope::spawn_on`]; `make` is not called then.
    ///
    /// # Safety
    /// `make` makes one.
    #[doc(hidden)]
    pub unsafe fn spawn_in_place<T: Send + 'scope>(
        &self,
        node: Option<NodeId>,
        make: impl FnOnce(&mut MaybeUninit<T>),
        call: impl Fn(&mut T, &Self) + Send + 'scope,
    ) -> Result<()> {
        let node = node.map(|node| self.shared.index_of(node)).transpose()?;
        let job = |worker: Option<&Worker>| self.made_in_place(worker, make, call);
        match node {
            Some(node) => self.queue_bound(node, job),
            None => self.queue(job),
        }
        Ok(())
    }

    fn made_in_place<T: Send + 'scope, C: Fn(&mut T, &Self) + Send + 'scope>(
        &self,
        worker: Option<&Worker>,
        make: impl FnOnce(&mut MaybeUninit<T>),
        call: C,
    ) -> Job {
        let owner = worker.map_or(NOBODY, |worker| worker.index);
        let memory: *mut InPlace<'scope, T, C> = room(worker);
        let scope = std::ptr::from_ref(self);
        let task = InPlace { scope, owner, call, task: MaybeUninit::uninit() };
        // SAFETY: it has room.
        unsafe { std::ptr::write(memory, task) };
        // SAFETY: nobody else knows of it yet.
        make(unsafe { &mut (*memory).task });
        Job::new(memory.cast_const(), InPlace::<'scope, T, C>::run).part_of(self.call)
    }

    /// Spawns a task on a node of the pool by its index there; others may take it.
    pub(crate) fn spawn_at(&self, node: usize, task: impl FnOnce(&Worker) + Send + 'scope) {
        self.tally.submit(node, 1);
        self.shared.inject(node, self.submitted(None, |_, worker| task(worker)));
    }

    /// Has the tasks that have not begun dropped instead of run. Running tasks may ask
    /// [`Scope::is_cancelled`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the scope was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The job of a task that was counted as submitted.
    #[inline]
    fn submitted<F>(&self, worker: Option<&Worker>, task: F) -> Job
    where
        F: FnOnce(&Self, &Worker) + Send + 'scope,
    {
        let owner = worker.map_or(NOBODY, |worker| worker.index);
        let spawned = Spawned { scope: std::ptr::from_ref(self), owner, task };
        let data: *mut Spawned<'scope, F> = room(worker);
        // SAFETY: it has room.
        unsafe { std::ptr::write(data, spawned) };
        Job::new(data.cast_const(), Spawned::<'scope, F>::run).part_of(self.call)
    }
}

/// Memory for a task: a block, this worker's if there is one, or a box if a block has no room.
#[inline]
fn room<T>(worker: Option<&Worker>) -> *mut T {
    if Block::has_room_for::<T>() {
        worker.map_or_else(Block::new, Worker::take_block).into_raw()
    } else {
        Box::into_raw(Box::<T>::new_uninit()).cast()
    }
}

/// A task that stays in its memory while it runs.
struct InPlace<'scope, T, C> {
    scope: *const Scope<'scope>,
    owner: usize,
    call: C,
    task: MaybeUninit<T>,
}

impl<'scope, T: Send + 'scope, C: Fn(&mut T, &Scope<'scope>)> InPlace<'scope, T, C> {
    /// # Safety
    /// As [`Spawned::run`], of [`Scope::made_in_place`], whose promise was kept.
    unsafe fn run(data: *const (), worker: &Worker) {
        let this = data.cast::<Self>().cast_mut();
        // SAFETY: as promised.
        let Self { scope, owner, call, task } = unsafe { &mut *this };
        let (scope, owner, call) = (*scope, *owner, DropInPlace(call));
        worker.count_done_but_of(scope.cast());
        {
            // SAFETY: as promised.
            let scope = unsafe { &*scope };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: as promised, it was made.
                let task = DropInPlace(unsafe { task.assume_init_mut() });
                if !scope.is_cancelled() {
                    (call.0)(task.0, scope);
                }
            }));
            if let Err(panic) = ended {
                scope.panicked(panic);
            }
        }
        drop(call);
        if Block::has_room_for::<Self>() {
            // SAFETY: it is a block.
            worker.give_block(unsafe { Block::from_raw(this) }, owner);
        } else {
            // SAFETY: it is a box.
            drop(unsafe { Box::from_raw(this.cast::<MaybeUninit<Self>>()) });
        }
        worker.note_done(scope.cast());
    }
}

/// Ends a value where it is, also if a panic comes.
struct DropInPlace<'a, T>(&'a mut T);

impl<T> Drop for DropInPlace<'_, T> {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more: it is borrowed for the last time.
        unsafe { std::ptr::drop_in_place(&raw mut *self.0) };
    }
}

/// A task in its own memory: a block, if that has room for it, else a box.
struct Spawned<'scope, F> {
    scope: *const Scope<'scope>,
    /// The worker whose block it is, or [`NOBODY`].
    owner: usize,
    task: F,
}

const NOBODY: usize = usize::MAX;

impl<'scope, F: FnOnce(&Scope<'scope>, &Worker) + Send + 'scope> Spawned<'scope, F> {
    /// # Safety
    /// `data` comes from [`Scope::submitted`], with this type, and this is its only use. The scope, whose
    /// function outlives 'scope's end, waits for it until it is counted as done.
    unsafe fn run(data: *const (), worker: &Worker) {
        let this = data.cast::<Self>().cast_mut();
        let Self { scope, owner, task } = if Block::has_room_for::<Self>() {
            // SAFETY: as promised.
            unsafe { this.read() }
        } else {
            // SAFETY: as promised.
            *unsafe { Box::from_raw(this) }
        };
        if Block::has_room_for::<Self>() {
            // SAFETY: it is a block, and has been read.
            worker.give_block(unsafe { Block::from_raw(this) }, owner);
        }
        worker.count_done_but_of(scope.cast());
        {
            // SAFETY: as promised.
            let scope = unsafe { &*scope };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                if scope.is_cancelled() {
                    drop(task);
                } else {
                    task(scope, worker);
                }
            }));
            if let Err(panic) = ended {
                scope.panicked(panic);
            }
        }
        worker.note_done(scope.cast());
    }
}

/// Tasks of a scope that a worker has done and not yet counted there. They are counted all together, before
/// it does anything but tasks of this scope: as long as it does one of these the scope has to wait for it
/// anyway.
#[derive(Clone, Copy)]
pub(crate) struct UncountedTasks {
    scope: *const Scope<'static>,
    tasks: u64,
}

// SAFETY: a scope may be used from any thread: all that is in it may.
unsafe impl Send for UncountedTasks {}

impl Default for UncountedTasks {
    fn default() -> Self {
        Self { scope: std::ptr::null(), tasks: 0 }
    }
}

impl Worker {
    #[inline]
    fn take_block(&self) -> Block {
        self.blocks.take(|| self.sent_back(self.index))
    }

    /// A block of the worker `owner`, if of any.
    #[inline]
    fn give_block(&self, block: Block, owner: usize) {
        if owner == self.index {
            self.blocks.give(block);
        } else {
            self.give_stolen_block(block, owner);
        }
    }

    #[cold]
    fn give_stolen_block(&self, block: Block, owner: usize) {
        if self.shared.nodes[self.node].places.contains(&owner) {
            self.blocks.give_to(owner, block, |peer| self.sent_back(peer));
        } else {
            self.blocks.give(block);
        }
    }

    /// Peers get their blocks back.
    pub(crate) fn send_blocks_back(&self) {
        self.blocks.send_back(|peer| self.sent_back(peer));
    }

    fn sent_back(&self, index: usize) -> &SentBack {
        &self.shared.places[index].sent_back
    }

    /// Counts what was done of other scopes.
    #[inline]
    fn count_done_but_of(&self, scope: *const Scope<'static>) {
        if !std::ptr::eq(self.done.get().scope, scope) {
            self.count_done();
        }
    }

    /// One more task of the scope was done.
    #[inline]
    fn note_done(&self, scope: *const Scope<'static>) {
        self.count_done_but_of(scope);
        self.done.set(UncountedTasks { scope, tasks: self.done.get().tasks + 1 });
    }

    /// Counts what was done. The scope may be gone afterwards.
    #[inline]
    pub(crate) fn count_done(&self) {
        let UncountedTasks { scope, tasks } = self.done.take();
        if tasks > 0 {
            // SAFETY: the scope waits for these tasks, which are counted below.
            let scope = unsafe { &*scope };
            let (word, owner) = (scope.tally.done_word(self.node), scope.owner);
            if count_done(word, tasks) {
                self.shared.sleep.happened(owner);
            }
        }
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// All tasks of a scope are done, those included that its owner has not counted.
struct AllDone<'a> {
    scope: *const Scope<'static>,
    tally: &'a Tally,
    alarms: Alarms,
    owner: &'a Worker,
}

impl Event for AllDone<'_> {
    #[inline]
    fn over(&mut self) -> bool {
        let done = self.owner.done.get();
        let own = if std::ptr::eq(done.scope, self.scope) { done.tasks } else { 0 };
        let over = self.tally.left(&self.alarms) == own;
        if over && own > 0 {
            self.owner.done.take();
        }
        over
    }

    fn over_before_sleep(&mut self) -> bool {
        self.tally.over(&mut self.alarms)
    }
}
