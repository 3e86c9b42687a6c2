//! The promises of the pool, on this machine's nodes and on invented ones (whose workers are not confined).

mod watchdog;

use nodewise_runtime::{Allowance, ErrorKind, NodePool, current_cpu};
use nodewise_topology::{Allowed, CpuQuota, NodeId, NodeSet, Topology};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

fn machine(nodes: usize, cpus: usize) -> NodePool {
    let topology = Topology::synthetic(nodes, cpus, 1 << 30);
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
    NodePool::builder().allowance(allowance).confined(false).build().unwrap()
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().unwrap_or_default()
}

#[test]
fn workers_run_on_the_cpus_of_their_node_only() {
    watchdog::start();
    let pool = NodePool::new().unwrap();
    let allowance = Allowance::of_this_thread().unwrap();
    for node in allowance.nodes() {
        for _ in 0..50 {
            let task = pool.spawn_on(node.id, current_cpu).unwrap();
            assert!(node.cpus.contains(task.join()));
        }
    }
    assert!(pool.workers() <= allowance.parallelism());
}

#[test]
fn a_quota_and_a_choice_of_nodes_limit_the_workers() {
    watchdog::start();
    let topology = Topology::synthetic(4, 4, 1 << 30);
    let quota = CpuQuota { quota_us: 350_000, period_us: 100_000 };
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), Some(quota));
    let builder = NodePool::builder().allowance(allowance).confined(false);
    let pool = builder.clone().build().unwrap();
    assert_eq!(pool.workers(), 3);
    assert_eq!(pool.nodes().map(|node| node.0).collect::<Vec<_>>(), [0, 1, 2]);
    let pool = builder.clone().nodes(&NodeSet::from_iter([NodeId(2)])).workers(2).build().unwrap();
    assert_eq!((pool.workers(), pool.statistics()[0].node), (2, NodeId(2)));
    assert_eq!(pool.spawn_on(NodeId(0), || ()).unwrap_err().kind(), ErrorKind::NoWorkers);
    let nowhere = builder.nodes(&NodeSet::from_iter([NodeId(9)])).build().unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NoWorkers);
}

#[test]
fn every_number_once_from_inside_and_outside() {
    watchdog::start();
    for (nodes, cpus) in [(1, 1), (1, 3), (3, 2), (8, 1)] {
        let pool = machine(nodes, cpus);
        for len in [0, 1, 2, 7, 10_000] {
            let counts: Vec<AtomicUsize> = (0..len).map(|_| AtomicUsize::new(0)).collect();
            pool.parallel_for(0..len, |i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            pool.scope(|_| {
                pool.parallel_for(0..len, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2));
            let mut indices = vec![0; len];
            pool.parallel_for_each(&mut indices, |index, element| *element = index);
            assert!(indices.iter().copied().eq(0..len));
        }
    }
}

#[test]
fn results_are_combined_in_order() {
    watchdog::start();
    let pool = machine(3, 2);
    let digits = pool.parallel_reduce(
        0..5000,
        String::new,
        |text, i| text + &i.to_string() + ",",
        |first, second| first + &second,
    );
    assert_eq!(digits, (0..5000).map(|i| i.to_string() + ",").collect::<String>());
}

#[test]
fn parts_are_the_range_in_order() {
    watchdog::start();
    for pool in [machine(1, 1), machine(3, 2)] {
        let joined = |a: Range<usize>, b: Range<usize>| {
            assert_eq!(a.end, b.start);
            a.start..b.end
        };
        assert_eq!(pool.parallel_reduce_parts(7..5000, |part| part, joined), Some(7..5000));
        assert_eq!(pool.parallel_reduce_parts(7..7, |part| part, joined), None);
    }
}

#[test]
fn a_break_ends_the_loop_early() {
    watchdog::start();
    let pool = machine(2, 2);
    let calls = AtomicUsize::new(0);
    let found = pool.try_parallel_for(0..10_000_000, |i| {
        calls.fetch_add(1, Ordering::Relaxed);
        if i % 1000 == 999 { ControlFlow::Break(i) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(found.break_value().unwrap() % 1000, 999);
    assert!(calls.load(Ordering::Relaxed) < 100_000);
    assert_eq!(
        pool.try_parallel_for(0..1000, |_| ControlFlow::<()>::Continue(())),
        ControlFlow::Continue(())
    );
}

#[test]
fn tasks_may_borrow_nest_and_be_waited_for_on_workers() {
    watchdog::start();
    for pool in [machine(1, 1), machine(2, 1)] {
        let pool = &pool;
        let depth = |pool: &NodePool, n| {
            fn fib(pool: &NodePool, n: u64) -> u64 {
                if n < 2 {
                    return n;
                }
                let (mut a, b) = (0, AtomicUsize::new(0));
                pool.scope(|scope| {
                    scope.spawn(|_| a = fib(pool, n - 1));
                    scope.spawn(|_| b.store(fib(pool, n - 2) as usize, Ordering::Relaxed));
                });
                a + b.load(Ordering::Relaxed) as u64
            }
            fib(pool, n)
        };
        assert_eq!(depth(pool, 12), 144);
        assert_eq!(pool.join(|| depth(pool, 5), || depth(pool, 6)), (5, 8));
    }
    let pool = Arc::new(machine(1, 1));
    let inner = pool.clone();
    assert_eq!(pool.spawn(move || inner.spawn(|| 7).join() + 1).join(), 8);
}

#[test]
fn one_pool_inside_another_and_back() {
    watchdog::start();
    let (one, other) = (machine(1, 1), machine(1, 1));
    let sum = one.scope(|_| {
        other.scope(|_| one.scope(|_| other.parallel_reduce(0..10, || 0, |a, b| a + b, |a, b| a + b)))
    });
    assert_eq!(sum, 45);
}

#[test]
fn joins_of_one_pools_tasks_inside_another_and_back() {
    fn there_and_back(one: &Arc<NodePool>, other: &NodePool) -> u8 {
        let one = one.clone();
        other.spawn(move || one.spawn(|| 5).join()).join()
    }
    watchdog::start();
    for callers_work in [true, false] {
        let pool = || Arc::new(NodePool::builder().workers(1).callers_work(callers_work).build().unwrap());
        let (one, other) = (pool(), pool());
        for _ in 0..1000 {
            let pools = (one.clone(), other.clone());
            assert_eq!(one.spawn(move || there_and_back(&pools.0, &pools.1)).join(), 5);
            // By the caller, if callers work: for so long `one`'s worker sleeps in the caller's stead.
            assert_eq!(one.scope(|_| there_and_back(&one, &other)), 5);
        }
    }
}

#[test]
fn a_worker_that_drops_another_pool_works_on_what_that_waits_for() {
    fn make_and_drop(one: &Arc<NodePool>, done: &Arc<AtomicUsize>) {
        let other = NodePool::builder().workers(1).build().unwrap();
        let (one, done) = (one.clone(), done.clone());
        other.spawn(move || {
            let on_one = move || done.fetch_add(1, Ordering::Relaxed);
            one.spawn(on_one).join();
        });
    }
    watchdog::start();
    for callers_work in [true, false] {
        let one = Arc::new(NodePool::builder().workers(1).callers_work(callers_work).build().unwrap());
        let done = Arc::new(AtomicUsize::new(0));
        for round in 0..100 {
            let of_task = (one.clone(), done.clone());
            one.spawn(move || make_and_drop(&of_task.0, &of_task.1)).join();
            assert_eq!(done.load(Ordering::Relaxed), 2 * round + 1);
            one.scope(|_| make_and_drop(&one, &done));
            assert_eq!(done.load(Ordering::Relaxed), 2 * round + 2);
        }
    }
}

/// A payload that panics when it is dropped, with one of its kind. It has no size, so that no memory is lost
/// with those that are forgotten.
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        resume_unwind(Box::new(Self));
    }
}

/// Says that its closure has all but ended.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn payloads_that_panic_when_they_are_dropped_do_no_harm() {
    watchdog::start();
    for callers_work in [true, false] {
        let pool = NodePool::builder().workers(2).callers_work(callers_work).build().unwrap();
        let first_panic = |run: &dyn Fn()| {
            let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(payload.downcast_ref::<u8>(), Some(&1));
        };
        for _ in 0..10 {
            let (begun, first) = (AtomicBool::new(false), AtomicBool::new(false));
            let until = |flag: &AtomicBool| {
                while !flag.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            };
            // On a worker that took it from the scope's owner, and the other way round.
            first_panic(&|| {
                pool.scope(|scope| {
                    scope.spawn(|_| {
                        begun.store(true, Ordering::SeqCst);
                        until(&first);
                        std::thread::sleep(Duration::from_millis(20));
                        resume_unwind(Box::new(Bad));
                    });
                    until(&begun);
                    scope.spawn(|_| {
                        let _end = AtEnd(&first);
                        resume_unwind(Box::new(1_u8));
                    });
                });
            });
            begun.store(false, Ordering::SeqCst);
            first.store(false, Ordering::SeqCst);
            first_panic(&|| {
                pool.scope(|scope| {
                    scope.spawn(|_| {
                        begun.store(true, Ordering::SeqCst);
                        let _end = AtEnd(&first);
                        resume_unwind(Box::new(1_u8));
                    });
                    until(&begun);
                    scope.spawn(|_| {
                        until(&first);
                        std::thread::sleep(Duration::from_millis(20));
                        resume_unwind(Box::new(Bad));
                    });
                });
            });
            // The body's comes before a task's, and the first closure's before the second's.
            first_panic(&|| {
                pool.scope(|scope| {
                    scope.spawn(|_| resume_unwind(Box::new(Bad)));
                    resume_unwind(Box::new(1_u8));
                });
            });
            begun.store(false, Ordering::SeqCst);
            first_panic(&|| {
                let a = || {
                    until(&begun);
                    resume_unwind(Box::new(1_u8))
                };
                let b = || {
                    begun.store(true, Ordering::SeqCst);
                    resume_unwind(Box::new(Bad))
                };
                let ((), ()) = pool.join(a, b);
            });
            // Nobody wants this one, by the time it ends.
            let (dropped, wait) = std::sync::mpsc::channel::<()>();
            drop(pool.spawn(move || {
                let _ = wait.recv();
                resume_unwind(Box::new(Bad))
            }));
            drop(dropped);
            assert_eq!(pool.spawn(|| 7).join(), 7);
        }
    }
}

#[test]
fn panics_reach_the_joiner_when_all_else_has_ended() {
    watchdog::start();
    let pool = machine(2, 2);
    let ended = AtomicUsize::new(0);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        pool.scope(|scope| {
            for i in 0..100 {
                let ended = &ended;
                scope.spawn(move |_| {
                    ended.fetch_add(1, Ordering::Relaxed);
                    assert!(i != 50, "the fiftieth");
                });
            }
        });
    }));
    assert_eq!(message(&*panic.unwrap_err()), "the fiftieth");
    assert_eq!(ended.load(Ordering::Relaxed), 100);
    let panic =
        catch_unwind(AssertUnwindSafe(|| pool.parallel_for(0..1000, |i| assert!(i != 777, "no 777"))));
    assert_eq!(message(&*panic.unwrap_err()), "no 777");
    let panic = pool.spawn(|| -> u8 { panic!("a task's") }).join_caught();
    assert_eq!(message(&*panic.unwrap_err()), "a task's");
    let panic = catch_unwind(AssertUnwindSafe(|| pool.join(|| panic!("the first"), || panic!("the second"))));
    assert_eq!(message(&*panic.unwrap_err()), "the first");
    assert_eq!(pool.parallel_reduce(0..100, || 0, |a, _| a + 1, |a, b| a + b), 100);
}

#[test]
fn a_cancelled_scope_drops_what_has_not_begun() {
    watchdog::start();
    let pool = machine(1, 2);
    let (begun, dropped) = (AtomicUsize::new(0), Arc::new(()));
    pool.scope(|scope| {
        for _ in 0..1000 {
            let (token, begun) = (dropped.clone(), &begun);
            scope.spawn(move |scope| {
                assert!(Arc::strong_count(&token) > 1);
                begun.fetch_add(1, Ordering::Relaxed);
                while !scope.is_cancelled() {
                    std::thread::yield_now();
                }
            });
        }
        scope.cancel();
    });
    assert!(begun.load(Ordering::Relaxed) <= 2);
    assert_eq!(Arc::strong_count(&dropped), 1);
}

#[test]
fn bound_tasks_stay_and_a_dry_node_helps_with_the_rest() {
    watchdog::start();
    let pool = machine(2, 1);
    let here = AtomicUsize::new(0);
    pool.scope(|scope| {
        for _ in 0..200 {
            scope
                .spawn_on(NodeId(1), |_| {
                    assert_eq!(pool.worker_node(), Some(NodeId(1)));
                    here.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
        }
    });
    assert_eq!(here.load(Ordering::Relaxed), 200);
    // The first task ends only when the other node has taken the second.
    let taken = AtomicBool::new(false);
    pool.scope(|scope| {
        scope.spawn(|_| taken.store(true, Ordering::Release));
        while !taken.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    let across: u64 = pool.statistics().iter().map(|node| node.stolen_across).sum();
    assert!(across > 0);
}

/// Each of four workers is kept busy, and one of each node has spawned tasks. Then one is let go and does
/// them all.
#[test]
fn a_worker_takes_from_its_node_first_and_across_when_that_has_run_dry() {
    const EACH: usize = 40;
    watchdog::start();
    let pool = machine(2, 2);
    let (here, have_spawned) = ([0; 2].map(AtomicUsize::new), AtomicUsize::new(0));
    let (taken, before) = (Mutex::new(Vec::new()), OnceLock::new());
    pool.scope(|scope| {
        for node in [0, 1, 0, 1] {
            let (pool, here, have_spawned, taken, before) = (&pool, &here, &have_spawned, &taken, &before);
            let spawned = scope.spawn_on(NodeId(node as u32), move |scope| {
                let spawns = here[node].fetch_add(1, Ordering::Relaxed) == 0;
                wait_until(|| here.iter().all(|here| here.load(Ordering::Relaxed) == 2));
                if spawns {
                    (0..EACH).for_each(|_| scope.spawn(move |_| taken.lock().unwrap().push(node)));
                    have_spawned.fetch_add(1, Ordering::Release);
                } else if node == 0 {
                    wait_until(|| have_spawned.load(Ordering::Acquire) == 2);
                    before.set(pool.statistics()).unwrap();
                    return;
                }
                wait_until(|| taken.lock().unwrap().len() == 2 * EACH);
            });
            spawned.unwrap();
        }
    });
    assert_eq!(taken.into_inner().unwrap(), [[0; EACH], [1; EACH]].concat());
    let before = before.into_inner().unwrap();
    let counts = before.iter().zip(pool.statistics()).map(|(before, after)| {
        let [run, inside] = [after.run - before.run, after.stolen_inside - before.stolen_inside];
        [run, inside, after.stolen_across - before.stolen_across]
    });
    let each = EACH as u64;
    assert_eq!(counts.collect::<Vec<_>>(), [[2 * each, each, each], [0; 3]]);
}

#[test]
fn dropping_the_pool_waits_for_what_was_spawned() {
    watchdog::start();
    let done = Arc::new(AtomicUsize::new(0));
    for round in 0..20 {
        let pool = machine(1 + round % 3, 1 + round % 2);
        for _ in 0..50 {
            let done = done.clone();
            drop(pool.spawn(move || done.fetch_add(1, Ordering::Relaxed)));
        }
    }
    assert_eq!(done.load(Ordering::Relaxed), 1000);
    // And when the last handle is a task's own.
    let pool = Arc::new(machine(1, 2));
    let inner = pool.clone();
    let task = pool.spawn(move || {
        while Arc::strong_count(&inner) > 1 {
            std::thread::yield_now();
        }
        drop(inner);
    });
    drop(pool);
    task.join();
}

#[test]
fn callers_work_along_on_one_node_unless_told_not_to() {
    watchdog::start();
    let topology = Topology::synthetic(1, 1, 1 << 30);
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
    let builder = NodePool::builder().allowance(allowance).confined(false);
    let thread = || std::thread::current().id();
    // The node that is invented is the first: is that where this thread is?
    let here = nodewise_runtime::current_node() == NodeId(0);
    let pool = builder.clone().build().unwrap();
    // Once all sleep; until then nobody stands in.
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(1));
        let inside = pool.scope(|scope| {
            scope.spawn(|_| ());
            thread()
        });
        assert!(here || inside != thread());
    }
    let pool = builder.callers_work(false).build().unwrap();
    assert!((0..20).all(|_| pool.scope(|_| thread()) != thread()));
    let two = machine(2, 1);
    assert!((0..20).all(|_| two.scope(|_| thread()) != thread()));
}

/// A caller that works along is not in the way of tasks that others wait for, nor does it hold up those that
/// need a worker.
#[test]
fn callers_leave_what_they_have_not_done_to_workers() {
    watchdog::start();
    for cpus in 1..3 {
        let pool = Arc::new(machine(1, cpus));
        for _ in 0..200 {
            // A task that outlives the call.
            let task = pool.scope(|_| pool.spawn(|| 7));
            // One that only workers may run, waited for by the caller.
            let bound = pool.scope(|scope| {
                scope.spawn(|_| ());
                pool.spawn_on(NodeId(0), || 8).unwrap().join()
            });
            assert_eq!((task.join(), bound), (7, 8));
            std::thread::yield_now();
        }
    }
    // Others' tasks do not run on a caller that waits, which may hold what they want. They take nothing here:
    // a worker of the loop does run them while it waits for the rest of it.
    let pool = Arc::new(machine(1, 3));
    let (caller, in_loop) = (std::thread::current().id(), Arc::new(AtomicBool::new(false)));
    let work = |i| assert!((0..1000).map(std::hint::black_box).sum::<usize>() > i);
    for _ in 0..300 {
        let spawn = |i| {
            let in_loop = in_loop.clone();
            pool.spawn(move || {
                work(i);
                in_loop.load(Ordering::Relaxed) && std::thread::current().id() == caller
            })
        };
        let tasks: Vec<_> = (0..100).map(spawn).collect();
        in_loop.store(true, Ordering::Relaxed);
        pool.parallel_for(0..100, work);
        in_loop.store(false, Ordering::Relaxed);
        for ran_in_loop in tasks {
            assert!(!ran_in_loop.join());
        }
    }
}

#[test]
fn many_callers_at_once() {
    watchdog::start();
    let pool = machine(1, 2);
    let ended = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                for len in 0..200 {
                    let sum = pool.parallel_reduce(0..len, || 0, |sum, i| sum + i, |a, b| a + b);
                    assert_eq!(sum, (0..len).sum());
                    let panic = catch_unwind(AssertUnwindSafe(|| {
                        pool.scope(|scope| {
                            scope.spawn(|_| resume_unwind(Box::new("a task's")));
                            if len % 2 == 1 {
                                resume_unwind(Box::new("the body's"));
                            }
                        });
                    }));
                    let expected = if len % 2 == 0 { "a task's" } else { "the body's" };
                    assert_eq!(message(&*panic.unwrap_err()), expected);
                }
                ended.fetch_add(1, Ordering::Release);
            });
        }
    });
    assert_eq!(ended.load(Ordering::Acquire), 8);
    assert!(pool.worker_node().is_none());
}

#[test]
fn sleeping_workers_wake_for_each_task_from_outside() {
    watchdog::start();
    let pool = machine(2, 2);
    for i in 0..50 {
        if i % 10 == 0 {
            // Long enough for all to be asleep.
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(pool.spawn(move || i).join(), i);
    }
}

/// Spawns itself anew by `spawn` until it is told to stop.
fn again(pool: &Arc<NodePool>, stop: &Arc<AtomicBool>, spawn: fn(&NodePool, Box<dyn FnOnce() + Send>)) {
    if !stop.load(Ordering::Relaxed) {
        let (again_pool, again_stop) = (pool.clone(), stop.clone());
        spawn(pool, Box::new(move || again(&again_pool, &again_stop, spawn)));
    }
}

#[test]
fn tasks_that_spawn_themselves_anew_keep_nobody_waiting() {
    watchdog::start();
    let anywhere = |pool: &NodePool, task: Box<dyn FnOnce() + Send>| drop(pool.spawn(task));
    let bound = |pool: &NodePool, task: Box<dyn FnOnce() + Send>| {
        let node = pool.worker_node().unwrap_or(NodeId(0));
        drop(pool.spawn_on(node, task).unwrap());
    };
    for (nodes, cpus) in [(1, 1), (1, 2), (2, 1)] {
        for spawn in [anywhere, bound] {
            let pool = Arc::new(machine(nodes, cpus));
            let stop = Arc::new(AtomicBool::new(false));
            // With work of the same kind in one batch, of which a worker takes several.
            let tasks: Vec<_> = (0..4)
                .flat_map(|_| {
                    pool.nodes().map(|_| again(&pool, &stop, spawn)).for_each(drop);
                    (0..3).map(|number| pool.spawn(move || number)).collect::<Vec<_>>()
                })
                .collect();
            assert_eq!(tasks.into_iter().map(nodewise_runtime::Task::join).sum::<i32>(), 12);
            assert_eq!(pool.spawn(|| 1).join(), 1);
            for node in pool.nodes() {
                assert_eq!(pool.spawn_on(node, || 2).unwrap().join(), 2);
            }
            let mut filled = [0; 1000];
            pool.parallel_for_each(&mut filled, |index, element| *element = index);
            assert_eq!(filled.iter().sum::<usize>(), 499_500);
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// All workers wait for a thread that itself waits in loops, joins and scopes of their pool. On one node it
/// works along. On several, and where it may not, substitutes of each node do what it has started there.
#[test]
fn loops_may_wait_for_threads_that_use_the_pool() {
    watchdog::start();
    let of = |nodes, cpus, callers_work| {
        let topology = Topology::synthetic(nodes, cpus, 1 << 30);
        let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
        let pool = NodePool::builder().allowance(allowance).confined(false).callers_work(callers_work);
        pool.build().unwrap()
    };
    for (nodes, cpus, callers_work, rounds) in [
        (1, 1, true, 20),
        (1, 2, true, 20),
        (1, 3, true, 20),
        (1, 2, false, 4),
        (2, 1, true, 6),
        (3, 2, true, 4),
    ] {
        let (pool, workers) = (&of(nodes, cpus, callers_work), nodes * cpus);
        for round in 0..rounds {
            let (begun, sums) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let other = || {
                // Once all workers wait.
                wait_until(|| begun.load(Ordering::SeqCst) == workers);
                let sum = pool.parallel_reduce(0..1000, || 0, |sum, i| sum + i, |a, b| a + b);
                let (a, b) = pool.join(|| 1, || 2);
                let tasks = AtomicUsize::new(0);
                let count = &|| {
                    tasks.fetch_add(1, Ordering::Relaxed);
                };
                pool.scope(|scope| {
                    for _ in 0..10 {
                        scope.spawn(|_| count());
                    }
                    for node in pool.nodes() {
                        let bound = scope.spawn_on(node, move |_| {
                            // On one node these are tasks like any.
                            assert!(nodes == 1 || pool.worker_node() == Some(node));
                            count();
                        });
                        bound.unwrap();
                    }
                });
                sums.store(sum + a + b + tasks.load(Ordering::Relaxed), Ordering::SeqCst);
            };
            let waits = || {
                begun.fetch_add(1, Ordering::SeqCst);
                wait_until(|| sums.load(Ordering::SeqCst) > 0);
            };
            std::thread::scope(|threads| {
                threads.spawn(other);
                if round % 2 == 0 {
                    pool.scope(|scope| {
                        for node in pool.nodes() {
                            for _ in 0..cpus {
                                scope.spawn_on(node, |_| waits()).unwrap();
                            }
                        }
                    });
                } else {
                    pool.parallel_for(0..workers, |_| waits());
                }
            });
            assert_eq!(sums.into_inner(), 499_500 + 3 + 10 + nodes);
        }
    }
}
