//! The pool: workers on each node, and queues of its own for each.

use crate::allowance::Allowance;
use crate::deque::Deque;
use crate::error::{Error, Result};
use crate::job::{Call, ForeignTask, Job, Scope, Task, current_of, end_with_the_process, with_current};
use crate::location::current_node;
use crate::pool_state::{PoolNode, PoolState};
use crate::sleep::Next;
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::worker::{Counts, Worker};
use nodewise_topology::{NodeId, NodeSet};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Workers that are confined to their node's CPUs and run tasks, their own node's first.
///
/// Each worker has a queue, each node two: one for tasks from outside, one for tasks that must run there. A
/// worker that has nothing takes from its node. Only when that has run dry does it take from another, the
/// nearest first. If there is nothing anywhere it sleeps. A worker that waits for tasks, be they another
/// pool's, runs others of its own pool meanwhile, so that nesting does not deadlock. So no task may wait for
/// a lock that is held until a scope, a join, a loop or another pool has ended. Nor may it wait for anything
/// else that is held so long. While the holder waits for that end, it might run the task, and then neither
/// ends. [`NodePool::isolate`] is for threads that must hold something.
///
/// On one node, a thread that waits in a scope or a loop works along ([`NodePoolBuilder::callers_work`]). It
/// does so in the stead of a worker that sleeps, or beside the workers if none of them begins soon. Elsewhere
/// a node has up to four substitutes, which are further workers. They begin what such a thread has started
/// there if the node's own workers have begun nothing for 50 ms. They end when these go on. So a task may
/// wait for a thread that waits in a scope, a join or a loop itself. None may wait for a thread that waits
/// for the end of a task which [`NodePool::spawn`] has started.
///
/// By default there is one worker for each CPU that the creating thread may run on, or fewer under a quota of
/// CPU time ([`Allowance::parallelism`]). The number stays as it is. If the cpuset shrinks or CPUs are
/// unplugged, the kernel moves the workers, and they share the CPUs that are left. Where none of their node
/// is left, these are outside of it. Workers that were moved out of their node return to it when its CPUs are
/// back and [`crate::refresh`] was called.
///
/// All methods may be called from any thread at any time, the pool's workers included. Dropping the pool
/// waits for everything that was spawned and ends the workers; a worker of another pool does other tasks of
/// its own pool meanwhile. A task of the pool may drop it: the last of its tasks ends the workers then.
///
/// A library that is loaded by dlopen(3) may make a pool in its constructors, and use it once these have
/// returned. If it may be closed again it drops the pool before dlclose(3), or is linked with `-z nodelete`:
/// in its destructors that may wait for ever, since threads cannot begin while these run.
///
/// A child of fork(2) has none of its parent's workers, and is none, should a task have forked it: it does
/// not return from that. It may drop the pool, which waits for nothing there and gives no memory back, and
/// make one of its own; whatever else it does with its parent's may wait for ever.
///
/// ```
/// let pool = nodewise_runtime::NodePool::new()?;
/// let sum = pool.parallel_reduce(0..1000, || 0, |sum, i| sum + i, |a, b| a + b);
/// assert_eq!(sum, 499_500);
///
/// let mut words = vec!["numa", "node", "near"];
/// pool.scope(|scope| {
///     for word in &mut words {
///         scope.spawn(|_| *word = &word[1..]);
///     }
/// });
/// assert_eq!(words, ["uma", "ode", "ear"]);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
pub struct NodePool {
    shared: Arc<PoolState>,
    threads: Vec<JoinHandle<()>>,
    /// The workers that stand for threads that work along.
    callers: Box<[Mutex<Worker>]>,
    substitutes: Mutex<Substitutes>,
    /// The process that has the workers.
    process: u32,
}

/// At most so many threads work along at a time; others that come meanwhile sleep. Each adds a queue that
/// workers look into.
const CALLERS: usize = 4;

/// At most so many further workers a node, or a group of one, work for those that wait for something else.
const SUBSTITUTES: usize = 4;

/// The workers beside a node's own.
#[derive(Default)]
struct Substitutes {
    resting: Vec<Worker>,
    working: Vec<JoinHandle<Option<Worker>>>,
    stack_bytes: usize,
}

/// How a [`NodePool`] is set up.
#[derive(Clone, Debug)]
pub struct NodePoolBuilder {
    allowance: Option<Allowance>,
    nodes: Option<NodeSet>,
    workers: usize,
    stack_bytes: usize,
    confined: bool,
    callers_work: bool,
    by_cache: bool,
}

impl Default for NodePoolBuilder {
    /// As [`NodePool::builder`].
    fn default() -> Self {
        NodePool::builder()
    }
}

/// The work that one node's workers have done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatistics {
    /// The node.
    pub node: NodeId,
    /// Its workers.
    pub workers: usize,
    /// Pieces of work they have begun: spawned tasks, and parts that ranges were divided into.
    pub run: u64,
    /// Pieces that they took from another worker of the node.
    pub stolen_inside: u64,
    /// Pieces that they took from another node.
    pub stolen_across: u64,
}

impl NodePool {
    /// A pool on all nodes that the calling thread may run on.
    ///
    /// # Errors
    /// As [`NodePoolBuilder::build`].
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A builder, to set a pool up otherwise.
    #[must_use]
    pub fn builder() -> NodePoolBuilder {
        NodePoolBuilder {
            allowance: None,
            nodes: None,
            workers: usize::MAX,
            stack_bytes: 2 << 20,
            confined: true,
            callers_work: true,
            by_cache: false,
        }
    }

    /// The nodes that the pool has workers on, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.shared.machine_nodes().map(|node| node.id)
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.shared.workers
    }

    /// The node of the calling worker, or of the worker whose place the calling thread has taken. `None` on
    /// threads that are not workers of this pool.
    #[must_use]
    pub fn worker_node(&self) -> Option<NodeId> {
        with_current(|current| {
            let worker = current.filter(|worker| Arc::ptr_eq(&worker.shared, &self.shared))?;
            Some(self.shared.nodes[worker.node].id)
        })
    }

    /// The calling thread's index among those that work for this pool now, workers and threads that work
    /// along. It is below [`NodePool::worker_indices`], and no two threads have the same at a time. `None` on
    /// threads that do not work for it. A thread's index stays until its task ends. A task that waits may run
    /// others on top of itself, which have the same: [`crate::PerWorker`] heeds that.
    #[must_use]
    pub fn worker_index(&self) -> Option<usize> {
        self.shared.index_here()
    }

    /// A pointer that tells pools apart that are there at one time, as a [`crate::Seat`] has it.
    #[doc(hidden)]
    #[must_use]
    pub fn identity(&self) -> *const c_void {
        self.shared.identity()
    }

    /// The number of indices, for arrays with a place for each: more than there are workers.
    #[must_use]
    pub fn worker_indices(&self) -> usize {
        self.shared.places.len()
    }

    /// Starts a task, on the node that the calling thread is on if the pool has workers there.
    pub fn spawn<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let (handle, job) = Task::new(task);
        self.queue(job);
        handle
    }

    fn queue(&self, job: Job) {
        with_current(|current| match current {
            Some(worker) if Arc::ptr_eq(&worker.shared, &self.shared) => {
                self.shared.detached.submit_on(worker.node, 1);
                let job = job.part_of(worker.call().of_detached());
                if worker.is_caller() {
                    // It does only what it waits for, or it might wait for locks that it holds itself.
                    self.shared.inject(worker.node, job);
                } else {
                    worker.push(job);
                }
            }
            _ => {
                // The task may drop the pool, and the workers end, before this returns.
                let shared = self.shared.clone();
                let node = shared.near();
                shared.detached.submit_on(node, 1);
                shared.inject(node, job);
            }
        });
    }

    /// Starts a task that only workers of this node run.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NoWorkers`]: the pool has none on this node; the task is dropped.
    pub fn spawn_on<T: Send + 'static>(
        &self,
        node: NodeId,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Task<T>> {
        let node = self.shared.index_of(node)?;
        let (handle, job) = Task::new(task);
        self.queue_on(node, job);
        Ok(handle)
    }

    fn queue_on(&self, node: usize, job: Job) {
        if self.shared.has_one_node() {
            // Any worker is one of this node.
            return self.queue(job);
        }
        let call = with_current(|current| {
            let worker = current.filter(|worker| Arc::ptr_eq(&worker.shared, &self.shared));
            worker.map_or(Call::NONE, |worker| worker.call().of_detached())
        });
        self.shared.detached.submit_on(node, 1);
        self.shared.inject_bound(node, job.part_of(call), Next::Unknown);
    }

    /// As [`NodePool::spawn`], or [`NodePool::spawn_on`] with a node.
    #[doc(hidden)]
    pub fn spawn_foreign<T: ForeignTask>(&self, node: Option<NodeId>, task: T) -> Result<()> {
        match node.map(|node| self.shared.index_of(node)).transpose()? {
            Some(node) => self.queue_on(node, Job::of_foreign(task)),
            None => self.queue(Job::of_foreign(task)),
        }
        Ok(())
    }

    /// Runs `body` on a worker (the calling thread, if it is one or works along), and returns when it and all
    /// tasks that it and they spawned have ended. Tasks may borrow what lives longer than this call.
    ///
    /// # Panics
    ///
    /// With the payload of `body` if that panicked, else of the first task that did.
    pub fn scope<'scope, R: Send>(&self, body: impl FnOnce(&Scope<'scope>) -> R + Send) -> R {
        self.in_worker(|worker| Scope::run(worker, body))
    }

    /// Runs `body` as [`NodePool::scope`] does, and isolated. The call consists of `body` and of all tasks
    /// that it and they spawn. A worker that waits in the call runs no other tasks meanwhile. So `body` may
    /// hold what other tasks want, a lock for instance, while it waits for its own.
    ///
    /// ```
    /// use std::sync::Mutex;
    ///
    /// let pool = nodewise_runtime::NodePool::new()?;
    /// let table = Mutex::new(vec![1.0; 1000]);
    /// let grow = || {
    ///     let mut held = table.lock().unwrap();
    ///     let numbers = &mut held[..];
    ///     // Without isolation a worker that waits here may begin the other task, which wants the lock.
    ///     pool.isolate(|| pool.parallel_for_each(numbers, |_, number| *number *= 2.0));
    /// };
    /// pool.join(grow, grow);
    /// assert_eq!(table.into_inner().unwrap(), [4.0; 1000]);
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// Tasks that another pool's start in this one meanwhile are others'. No task of the call may wait for
    /// them. The call may have tasks that are bound to another node, as [`Scope::spawn_on`] and loops over a
    /// [`crate::NodeVec`] make them. They need a worker there which does not wait for what `body` holds.
    ///
    /// # Panics
    ///
    /// With the payload of `body` if that panicked.
    pub fn isolate<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        self.in_worker(|worker| worker.isolated(body))
    }

    /// Runs both closures, the second on another worker if one is idle.
    ///
    /// # Panics
    ///
    /// If one of them does, with the first's payload if both do.
    pub fn join<RA: Send, RB: Send>(
        &self,
        a: impl FnOnce() -> RA + Send,
        b: impl FnOnce() -> RB + Send,
    ) -> (RA, RB) {
        self.in_worker(|worker| worker.join(|_| a(), |_, _| b()))
    }

    /// As [`NodePool::join`] on a thread that works for this pool. Other threads get the closures back.
    /// Before they join, the C library holds the pool for them.
    #[doc(hidden)]
    #[inline]
    pub fn join_inside<RA: Send, RB: Send, A: FnOnce() -> RA + Send, B: FnOnce() -> RB + Send>(
        &self,
        a: A,
        b: B,
    ) -> std::result::Result<(RA, RB), (A, B)> {
        match current_of(&self.shared) {
            Some(worker) => Ok(worker.join(|_| a(), |_, _| b())),
            None => Err((a, b)),
        }
    }

    /// The work of each node's workers since the pool was made, by ascending node. Numbers of running workers
    /// may lag behind.
    #[must_use]
    pub fn statistics(&self) -> Vec<NodeStatistics> {
        let of_node = |node: &PoolNode| {
            let groups = &self.shared.nodes[node.of_node.clone()];
            let of_group = |group: &PoolNode| [group.places.clone(), group.substitutes.clone()];
            let places =
                || groups.iter().flat_map(of_group).flatten().map(|place| &self.shared.places[place]);
            let sum = |count: fn(&Counts) -> &std::sync::atomic::AtomicU64| {
                places().map(|place| count(&place.counts).load(Ordering::Relaxed)).sum()
            };
            NodeStatistics {
                node: node.id,
                workers: groups.iter().map(|group| group.workers.len()).sum(),
                run: sum(|counts| &counts.run),
                stolen_inside: sum(|counts| &counts.stolen_inside),
                stolen_across: sum(|counts| &counts.stolen_across),
            }
        };
        self.shared.machine_nodes().map(of_node).collect()
    }

    pub(crate) fn state(&self) -> &Arc<PoolState> {
        &self.shared
    }

    /// A worker for the calling thread, which is none, to work along with, if it may.
    pub(crate) fn as_caller(&self) -> Option<MutexGuard<'_, Worker>> {
        // Where all are busy there is no CPU for one more.
        if !self.may_work_along() || !self.shared.sleep.some_idle() {
            return None;
        }
        self.any_caller()
    }

    /// Whether the calling thread, which is no worker, may work along where that does good.
    pub(crate) fn may_work_along(&self) -> bool {
        !self.callers.is_empty() && self.shared.nodes.first().is_some_and(|node| node.id == current_node())
    }

    pub(crate) fn any_caller(&self) -> Option<MutexGuard<'_, Worker>> {
        self.callers.iter().find_map(try_lock)
    }

    /// Has one more worker of a node work, until one of its own does again or there is nothing to do. If
    /// there are enough, or the kernel gives no thread, all stays as it is.
    pub(crate) fn substitute(&self, node: usize) {
        let mut substitutes = lock(&self.substitutes);
        let Substitutes { resting, working, stack_bytes } = &mut *substitutes;
        while let Some(ended) = working.iter().position(JoinHandle::is_finished) {
            resting.extend(working.swap_remove(ended).join().ok().flatten());
        }
        let Some(place) = resting.iter().position(|worker| worker.node == node) else { return };
        let (worker, id) = (resting.swap_remove(place), self.shared.nodes[node].id);
        self.shared.substitutes.fetch_add(1, Ordering::SeqCst);
        let name = thread_name(id, &worker);
        // It is given back where there is no thread.
        let given = Arc::new(Mutex::new(Some(worker)));
        let taken = Arc::clone(&given);
        let started = start(name, id, *stack_bytes, move || {
            let worker = lock(&taken).take()?;
            // By the thread itself: of one that has ended already glibc confines the caller instead. Refused
            // where all of them are taken from it: then it runs where its node's workers run.
            if let Some(cpus) = &worker.cpus {
                let _ = nodewise_sys::sched_setaffinity(0, cpus);
            }
            worker.substitute();
            worker.shared.substitutes.fetch_sub(1, Ordering::SeqCst);
            Some(worker)
        });
        let Ok(thread) = started else {
            self.shared.substitutes.fetch_sub(1, Ordering::SeqCst);
            resting.extend(lock(&given).take());
            return;
        };
        working.push(thread);
    }
}

impl Drop for NodePool {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        // No lock: a thread that is not there in a forked child may have held it.
        let substitutes = self.substitutes.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let substitutes = std::mem::take(substitutes);
        if std::process::id() != self.process {
            // The threads are not there, and what one of them had in hand may be half changed for ever.
            std::mem::forget((threads, substitutes, std::mem::take(&mut self.callers), self.shared.clone()));
            return;
        }
        if self.worker_node().is_some() {
            // A task holds the pool: it cannot wait for its own end.
            self.shared.abandon();
            return;
        }
        let detached = &self.shared.detached;
        with_current(|current| match current {
            // A task that is waited for may wait for tasks of its pool.
            Some(worker) => worker.work_during(|| detached.wait()),
            None => detached.wait(),
        });
        self.shared.stop();
        for thread in threads {
            // Workers catch what tasks throw.
            let _ = thread.join();
        }
        for thread in substitutes.working {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for NodePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePool").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

impl NodePoolBuilder {
    /// Limits the pool to so many workers, shared among the nodes in proportion to their CPUs. 0 counts as 1.
    #[must_use]
    pub fn workers(mut self, most: usize) -> Self {
        self.workers = most.max(1);
        self
    }

    /// Limits the pool to these nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: &NodeSet) -> Self {
        self.nodes = Some(nodes.clone());
        self
    }

    /// Sets the size of each worker's stack, which is 2 MiB by default. Waiting tasks run others on top of
    /// themselves. Callers who work along do so on their own stacks.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// Sets the pool up for this allowance, instead of that of the calling thread.
    #[must_use]
    pub fn allowance(mut self, allowance: Allowance) -> Self {
        self.allowance = Some(allowance);
        self
    }

    /// Whether workers are confined to their node's CPUs, which is the default. If not, nodes are mere
    /// groups: for tests of machines that this one is not.
    #[must_use]
    pub fn confined(mut self, confined: bool) -> Self {
        self.confined = confined;
        self
    }

    /// Whether threads that wait in [`NodePool::scope`], [`NodePool::join`] and loops work along meanwhile,
    /// which is the default. A waiting caller takes the place of one sleeping worker. It runs only its own
    /// tasks and the tasks that those have spawned. If the pool could have workers on several nodes, callers
    /// never work, since the kernel may move them from one to another.
    #[must_use]
    pub fn callers_work(mut self, work: bool) -> Self {
        self.callers_work = work;
        self
    }

    /// Whether a node's workers belong to its last-level caches (L3), each confined to the CPUs of one. A
    /// worker then takes work from the others of its cache first, then from those of its node. By default it
    /// may run on all of its node's CPUs. All else goes by node as before. Threads that wait work along only
    /// where the pool has one cache.
    #[must_use]
    pub fn by_cache(mut self, by_cache: bool) -> Self {
        self.by_cache = by_cache;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Machine`]: `/sys` or `/proc` cannot be read. [`crate::ErrorKind::NoWorkers`]: none
    /// of the nodes asked for has a CPU that may be used. [`crate::ErrorKind::Thread`]: the kernel refused a
    /// thread, or to confine it.
    pub fn build(self) -> Result<NodePool> {
        end_with_the_process();
        let allowance = self.allowance.map_or_else(Allowance::of_this_thread, Ok)?;
        let one_node = allowance.nodes().len() == 1;
        let allowance = self.nodes.as_ref().map_or(allowance.clone(), |nodes| allowance.on_nodes(nodes));
        let allowance = if self.by_cache { allowance.by_cache() } else { allowance };
        // Nodes that get no worker are none of the pool's.
        let workers = allowance.workers(self.workers);
        let allowance = allowance.with_workers(&workers);
        let workers: Vec<usize> = workers.into_iter().filter(|&workers| workers > 0).collect();
        if workers.is_empty() {
            return Err(Error::nowhere());
        }
        let node_of: Vec<usize> =
            workers.iter().enumerate().flat_map(|(node, &workers)| vec![node; workers]).collect();
        let one_node = one_node && workers.len() == 1;
        let callers = if one_node && self.callers_work { node_of.len().min(CALLERS) } else { 0 };
        let places = node_of.len() + callers + workers.len() * SUBSTITUTES;
        let deques: Vec<Deque<Job>> = (0..places).map(|_| Deque::new()).collect();
        let shared = Arc::new(PoolState::new(&allowance, &workers, &node_of, callers, &deques));
        let worker = |index: usize, node: usize, deque: Deque<Job>| {
            let mut worker = Worker::new(shared.clone(), index, node, deque);
            let cpus = allowance.nodes()[node].cpus.iter().map(|cpu| cpu.0);
            worker.cpus = (self.confined && !shared.callers.contains(&index)).then(|| cpus.collect());
            worker
        };
        let node_of_place = node_of.iter().copied().chain(vec![0; callers]);
        let node_of_place =
            node_of_place.chain((0..workers.len() * SUBSTITUTES).map(|index| index / SUBSTITUTES));
        let all = deques.into_iter().zip(node_of_place).enumerate();
        let mut all = all.map(|(index, (deque, node))| worker(index, node, deque));
        let own: Vec<Worker> = all.by_ref().take(node_of.len()).collect();
        let callers = all.by_ref().take(callers).map(Mutex::new).collect();
        let resting = all.collect();
        let substitutes = Substitutes { resting, working: Vec::new(), stack_bytes: self.stack_bytes };
        // From here on dropping the pool ends those workers that were started.
        let mut pool = NodePool {
            shared,
            threads: Vec::with_capacity(node_of.len()),
            callers,
            substitutes: Mutex::new(substitutes),
            process: std::process::id(),
        };
        for (index, worker) in own.into_iter().enumerate() {
            let node = &allowance.nodes()[worker.node];
            let cpus = worker.cpus.clone();
            let name = thread_name(node.id, &worker);
            let thread = start(name, node.id, self.stack_bytes, move || worker.work())?;
            pool.threads.push(thread);
            if let Some(cpus) = cpus {
                confine(&pool.threads[index], node.id, &cpus)?;
            }
        }
        Ok(pool)
    }
}

/// Starts a worker's thread, and does not wait for it: whoever makes a pool while a library is loaded holds
/// the loader's lock, which threads take when they begin.
fn start<T: Send + 'static>(
    name: String,
    node: NodeId,
    stack_bytes: usize,
    life: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name).stack_size(stack_bytes);
    thread.spawn(life).map_err(|error| Error::thread(format!("cannot start a worker on node {node}"), error))
}

/// The kernel keeps 15 characters of it.
fn thread_name(node: NodeId, worker: &Worker) -> String {
    format!("node{node}-{}", worker.index)
}

/// Confines a worker's thread, which has not ended.
fn confine<T>(thread: &JoinHandle<T>, node: NodeId, cpus: &nodewise_sys::AffinityMask) -> Result<()> {
    nodewise_sys::pthread_setaffinity(thread, cpus)
        .map_err(|error| Error::thread(format!("cannot confine a worker to the CPUs of node {node}"), error))
}
