//! Tasks, and who waits for them, meanwhile.

use super::*;
use crate::allowance::Allowance;
use crate::deque::Deque;
use crate::worker::Event;
use loom::alloc::Track;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The value that a task returns, panics with, or has with it. Loom says where one was forgotten.
struct Value {
    drops: Arc<AtomicUsize>,
    _memory: Track<()>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// A value, and how often it was dropped.
fn value() -> (Value, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    (Value { drops: drops.clone(), _memory: Track::new(()) }, drops)
}

fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    allowance();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// One node. Read once, and on a thread that loom has given no small stack.
fn allowance() -> &'static Allowance {
    static ALLOWANCE: OnceLock<Allowance> = OnceLock::new();
    ALLOWANCE.get_or_init(|| {
        let all = Allowance::of_this_thread().unwrap();
        all.on_nodes(&[all.nodes()[0].id].into_iter().collect())
    })
}

/// A pool's workers, the last of which is a caller instead if so wished.
fn pool<const N: usize>(with_caller: bool) -> [Worker; N] {
    let workers = N - usize::from(with_caller);
    let deques: [_; N] = std::array::from_fn(|_| Deque::new());
    let callers = usize::from(with_caller);
    let shared = PoolState::new(allowance(), &[workers], &vec![0; workers], callers, &deques);
    let shared = std::sync::Arc::new(shared);
    let mut indices = 0..N;
    deques.map(|deque| Worker::new(shared.clone(), indices.next().unwrap(), 0, deque))
}

/// The worker has run a job.
struct RanOne<'a>(&'a Worker);

impl Event for RanOne<'_> {
    fn over(&mut self) -> bool {
        self.0.has_run() > 0
    }
}

fn run_one(worker: &Worker) {
    worker.run_until(&mut RanOne(worker));
}

/// A worker runs a task, which returns or panics, while somebody has its handle: a peer, if there is one, or
/// a thread. The task's value is dropped once, by its receiver or by the task.
fn while_it_runs<const N: usize>(
    preemptions: usize,
    with_caller: bool,
    somebody: fn(Task<Value>, Option<&Worker>) -> Option<std::thread::Result<Value>>,
) {
    for panics in [false, true] {
        bounded(preemptions, move || {
            let (value, drops) = value();
            let end = move || if panics { resume_unwind(Box::new(value)) } else { value };
            let (task, job) = Task::new(end);
            let mut workers = pool::<N>(with_caller).into_iter();
            let worker = workers.next().unwrap();
            let shared = worker.shared.clone();
            shared.detached.submit_on(0, 1);
            let running = thread::spawn(move || worker.run(job));
            if let Some(result) = somebody(task, workers.next().as_ref()) {
                assert_eq!(result.is_err(), panics);
                let value = result.unwrap_or_else(|panic| *panic.downcast().unwrap());
                assert_eq!(value.drops.load(Ordering::Relaxed), 0);
            } else {
                // As a pool that is dropped.
                shared.detached.wait();
            }
            assert_eq!(drops.load(Ordering::Relaxed), 1);
            running.join().unwrap();
        });
    }
}

#[test]
fn a_thread_sleeps_until_a_task_has_ended() {
    while_it_runs::<1>(5, false, |task, _| Some(task.join_on(None)));
}

#[test]
fn a_thread_that_has_seen_a_tasks_end_has_what_came_of_it() {
    while_it_runs::<1>(5, false, |task, _| {
        while !task.is_finished() {
            thread::yield_now();
        }
        Some(task.join_on(None))
    });
}

#[test]
fn what_comes_of_a_task_that_nobody_joins_is_dropped_before_its_pool() {
    while_it_runs::<1>(5, false, |task, _| {
        drop(task);
        None
    });
}

#[test]
fn a_worker_sleeps_until_its_mates_task_has_ended() {
    while_it_runs::<2>(3, false, |task, peer| Some(task.join_on(peer)));
}

#[test]
fn a_caller_sleeps_until_a_workers_task_has_ended() {
    while_it_runs::<2>(3, true, |task, caller| Some(task.join_on(caller)));
}

#[test]
fn a_worker_sleeps_until_another_pools_task_has_ended() {
    while_it_runs::<1>(3, false, |task, _| {
        let [other] = pool(false);
        Some(task.join_on(Some(&other)))
    });
}

/// A closure that runs in a pool returns its value to a thread or to a worker of another pool, which slept
/// until then.
#[test]
fn a_closure_inside_a_pool_returns_to_who_waits_outside() {
    for by_worker in [false, true] {
        bounded(2, move || {
            let (value, drops) = value();
            let [worker] = pool(false);
            let shared = worker.shared.clone();
            let running = thread::spawn(move || run_one(&worker));
            let other = by_worker.then(|| pool::<1>(false));
            let other = other.as_ref().map(|[other]| other);
            let returned = shared.run_inside(other, |_| value);
            assert_eq!(drops.load(Ordering::Relaxed), 0);
            drop(returned);
            assert_eq!(drops.load(Ordering::Relaxed), 1);
            running.join().unwrap();
        });
    }
}

/// One worker waits for what it has started, and its peer looks for work meanwhile, until the pool ends.
fn with_a_peer(start: fn(&Worker, Value)) {
    bounded(2, move || {
        let (value, drops) = value();
        let [worker, peer] = pool(false);
        let shared = worker.shared.clone();
        let working = thread::spawn(move || peer.run_until_stopped());
        start(&worker, value);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        shared.stop();
        working.join().unwrap();
    });
}

#[test]
fn both_closures_end_before_a_join_returns() {
    with_a_peer(|worker, value| {
        let ((), value) = worker.join(|_| (), |_, _| value);
        assert_eq!(value.drops.load(Ordering::Relaxed), 0);
    });
}

/// It is run or, if it has not begun, dropped; the scope waits for either.
#[test]
fn a_task_that_is_cancelled_ends_before_its_scope() {
    with_a_peer(|worker, value| {
        Scope::run(worker, |scope| {
            scope.spawn(move |_| drop(value));
            scope.cancel();
        });
    });
}
