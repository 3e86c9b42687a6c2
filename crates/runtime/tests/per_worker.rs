//! Indices and values that threads which work for a pool have to themselves.

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, NodePool, PerWorker, Topology};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

fn machine(nodes: usize, cpus: usize) -> NodePool {
    let topology = Topology::synthetic(nodes, cpus, 1 << 30);
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
    NodePool::builder().allowance(allowance).confined(false).build().unwrap()
}

fn join_nothing(pool: &NodePool) {
    let ((), ()) = pool.join(|| (), || ());
}

/// The threads that are at an index now, each of which may have several tasks there, one in another.
struct Taken(Vec<AtomicUsize>);

thread_local! {
    static TASKS_HERE: Cell<usize> = const { Cell::new(0) };
}

impl Taken {
    fn of(pool: &NodePool) -> Self {
        Self((0..pool.worker_indices()).map(|_| AtomicUsize::new(0)).collect())
    }

    /// Says that the calling thread is at its index, and that no other is, while `task` runs.
    fn during(&self, pool: &NodePool, task: impl FnOnce()) {
        let index = pool.worker_index().expect("tasks run on threads that work for the pool");
        let tasks_here = TASKS_HERE.replace(TASKS_HERE.get() + 1);
        let before = self.0[index].fetch_add(1, Ordering::SeqCst);
        assert_eq!(before, tasks_here, "another thread is at index {index}");
        task();
        assert_eq!(pool.worker_index(), Some(index));
        self.0[index].fetch_sub(1, Ordering::SeqCst);
        TASKS_HERE.set(tasks_here);
    }
}

#[test]
fn no_two_threads_have_one_index_at_a_time() {
    watchdog::start();
    let inner = machine(1, 2);
    for (nodes, cpus) in [(1, 1), (1, 3), (2, 2)] {
        let pool = machine(nodes, cpus);
        assert!(pool.worker_index().is_none() && pool.worker_indices() >= pool.workers());
        let taken = Taken::of(&pool);
        std::thread::scope(|threads| {
            for _ in 0..5 {
                threads.spawn(|| {
                    for _ in 0..20 {
                        pool.parallel_for(0..100, |_| {
                            taken.during(&pool, || {
                                // Another pool has other indices, and a task that waits for it keeps its own.
                                assert_ne!(pool.worker_index(), inner.worker_index());
                                join_nothing(&inner);
                            });
                        });
                        pool.scope(|scope| {
                            for _ in 0..20 {
                                scope.spawn(|_| taken.during(&pool, || join_nothing(&pool)));
                            }
                        });
                    }
                    assert!(pool.worker_index().is_none());
                });
            }
        });
    }
}

#[test]
fn the_sum_of_what_threads_have_is_the_whole() {
    watchdog::start();
    for (nodes, cpus) in [(1, 1), (1, 3), (2, 2)] {
        let (pool, made) = (machine(nodes, cpus), AtomicUsize::new(0));
        let sums = PerWorker::new(&pool, || {
            made.fetch_add(1, Ordering::Relaxed);
            Cell::new(0)
        });
        let add = |number| sums.with(|sum| sum.set(sum.get() + number));
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    pool.parallel_for(0..10_000, add);
                    // On threads that do not work for the pool, too.
                    add(1);
                });
            }
        });
        // A task on top of one that waits in the middle of a use.
        let nested = |sum: &mut Cell<usize>| {
            pool.parallel_for(0..100, add);
            sum.set(sum.get() + 1);
        };
        pool.parallel_for(0..100, |_| sums.with(nested));
        let panics = |sum: &mut Cell<usize>| {
            sum.set(sum.get() + 1);
            panic!("after it has changed its value");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| sums.with(panics))).is_err());
        let whole = 4 * (9999 * 5000 + 1) + 100 * (1 + 99 * 50) + 1;
        let values = sums.into_iter().map(Cell::into_inner);
        assert_eq!(values.len(), made.load(Ordering::Relaxed));
        assert_eq!(values.sum::<usize>(), whole);
    }
}
