//! Isolated calls, whose waits take no other tasks, on invented nodes (whose workers are not confined).

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, NodePool, NodePoolBuilder, Topology};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn machine(nodes: usize, cpus: usize) -> NodePoolBuilder {
    let topology = Topology::synthetic(nodes, cpus, 1 << 30);
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
    NodePool::builder().allowance(allowance).confined(false)
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

/// A thread waits for a task of its call on another, holds a lock meanwhile, and would find tasks of others
/// which want it. Without isolation it begins one of these, and neither ends.
#[test]
fn who_waits_may_hold_what_others_tasks_want() {
    watchdog::start();
    for (nodes, cpus, callers_work) in [(1, 2, true), (1, 2, false), (2, 1, true)] {
        let pool = &machine(nodes, cpus).callers_work(callers_work).build().unwrap();
        for _ in 0..10 {
            let (lock, begun, asked) =
                (&Arc::new(Mutex::new(0)), &AtomicBool::new(false), &AtomicBool::new(false));
            let raise = |number: &Arc<Mutex<usize>>| {
                let number = number.clone();
                move || *number.lock().unwrap() += 1
            };
            let sum = AtomicUsize::new(0);
            let others = std::thread::scope(|threads| {
                let others = threads.spawn(|| {
                    wait_until(|| begun.load(Ordering::Acquire));
                    let spawned: Vec<_> = (0..10).map(|_| pool.spawn(raise(lock))).collect();
                    asked.store(true, Ordering::Release);
                    spawned
                });
                pool.scope(|_| {
                    let mut held = lock.lock().unwrap();
                    pool.isolate(|| {
                        let home = pool.worker_node().unwrap();
                        pool.scope(|scope| {
                            scope.spawn(|scope| {
                                begun.store(true, Ordering::Release);
                                wait_until(|| asked.load(Ordering::Acquire));
                                // Its waits take none of the others either: one that began would not end.
                                pool.parallel_for(0..100, |i| {
                                    std::thread::sleep(Duration::from_micros(100));
                                    sum.fetch_add(i, Ordering::Relaxed);
                                });
                                // On the node of who waits, which may have no other worker.
                                let bound = |_: &_| {
                                    sum.fetch_add(50, Ordering::Relaxed);
                                };
                                scope.spawn_on(home, bound).unwrap();
                            });
                            wait_until(|| begun.load(Ordering::Acquire));
                        });
                    });
                    *held += 1;
                });
                others.join().unwrap()
            });
            others.into_iter().for_each(nodewise_runtime::Task::join);
            assert_eq!((*lock.lock().unwrap(), sum.into_inner()), (11, 5000));
        }
    }
}

#[test]
fn all_that_a_call_makes_and_waits_for_is_its_own() {
    watchdog::start();
    for (nodes, cpus) in [(1, 1), (1, 2), (2, 1)] {
        for callers_work in [true, false] {
            let pool = Arc::new(machine(nodes, cpus).callers_work(callers_work).build().unwrap());
            let work = || {
                let (inside, node) = (pool.clone(), pool.nodes().next().unwrap());
                let task = move || {
                    inside.isolate(|| inside.parallel_reduce(0..1000, || 0, |a, b| a + b, |a, b| a + b))
                };
                let (spawned, bound) = (pool.spawn(task.clone()), pool.spawn_on(node, task.clone()).unwrap());
                let (a, b) = pool.join(task.clone(), || pool.isolate(|| pool.scope(|_| 1)));
                spawned.join() + bound.join() + a + b
            };
            for _ in 0..50 {
                // From outside, and on top of tasks that others wait for.
                assert_eq!(pool.isolate(work), 3 * 499_500 + 1);
                assert_eq!(pool.join(|| pool.isolate(work), || pool.isolate(work)).0, 3 * 499_500 + 1);
                let left = pool.isolate(|| pool.spawn(|| 5));
                assert_eq!(left.join(), 5);
            }
        }
    }
}

#[test]
fn a_panic_ends_the_isolation() {
    watchdog::start();
    let pool = machine(1, 1).callers_work(false).build().unwrap();
    let (ask, asked) = (AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            wait_until(|| ask.load(Ordering::Acquire));
            *asked.lock().unwrap() = Some(pool.spawn(|| 6));
        });
        pool.scope(|_| {
            let isolated = || pool.isolate(|| resume_unwind(Box::new(7)));
            let panic = catch_unwind(AssertUnwindSafe(isolated)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&7));
            ask.store(true, Ordering::Release);
            wait_until(|| asked.lock().unwrap().is_some());
            // A task of somebody else's, which only this worker can run.
            assert_eq!(asked.lock().unwrap().take().unwrap().join(), 6);
        });
    });
}

/// Tasks each hold a lock while they wait for jobs of their own. A thief takes such tasks together with jobs
/// of another, begins one task, and waits for the lock. The jobs lie in its queue behind further tasks.
#[test]
fn jobs_that_lie_behind_other_tasks_are_found() {
    watchdog::start();
    for (nodes, cpus) in [(1, 2), (1, 4), (2, 1)] {
        let pool = Arc::new(machine(nodes, cpus).callers_work(false).build().unwrap());
        for _ in 0..20 {
            let (lock, done) = (Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
            let (of_root, lock_of_root, done_of_root) = (pool.clone(), lock.clone(), done.clone());
            let root = move || {
                let (pool, lock, done) = (&of_root, &lock_of_root, &done_of_root);
                pool.scope(|scope| {
                    for _ in 0..6 {
                        scope.spawn(|_| {
                            let _held = lock.lock().unwrap();
                            pool.isolate(|| {
                                pool.scope(|scope| {
                                    for _ in 0..10 {
                                        scope.spawn(|_| {
                                            std::thread::sleep(Duration::from_micros(100));
                                            done.fetch_add(1, Ordering::Relaxed);
                                        });
                                    }
                                });
                            });
                        });
                    }
                });
            };
            pool.spawn(root).join();
            assert_eq!(done.load(Ordering::Relaxed), 60);
        }
    }
}
