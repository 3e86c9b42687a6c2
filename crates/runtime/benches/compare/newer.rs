//! Contests of indices and values of workers, grains, loops that break off, and isolation. Others are about
//! blocks of two arrays, pools by cache, and loops that wait for a thread. `contestant.cpp` has the same in
//! C++.

use super::{Contest, plain, use_up};
use crossbeam_utils::CachePadded;
use nodewise_runtime::{Layout, NodePool, NodeVec, PerWorker};
use rayon::prelude::*;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::mpsc::channel;

const SIZE: usize = 1_000_000;
const OUTER: usize = 100;
const INNER: usize = 1000;
const ELEMENTS: u64 = (OUTER * INNER) as u64;
/// The first number that ends the loop that breaks off, and the loop's size.
const SOUGHT: usize = 10_000;
const SEARCHED: usize = 10_000_000;
const PASSES: usize = 10;
/// The work of a thread for each loop body that waits for it.
const SERVICE: usize = 1000;

pub fn contests<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool, workers: usize) -> Vec<Contest<'a>> {
    let mut contests: Vec<_> = workers_values(pool, rayon).into();
    contests.extend(kinds_of_loops(pool, rayon));
    contests.extend(placed(pool, rayon));
    contests.extend(isolated_and_waiting(pool, rayon, workers));
    contests
}

fn workers_values<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> [Contest<'a>; 2] {
    const CALLS: u64 = 200_000;
    let index = Contest {
        name: "worker index",
        operation: "call",
        contenders: vec![
            plain("nodewise worker_index", CALLS, move || {
                pool.scope(|_| (0..CALLS).for_each(|_| use_up(pool.worker_index())));
            }),
            plain("rayon current_thread_index", CALLS, move || {
                rayon.install(|| (0..CALLS).for_each(|_| use_up(rayon::current_thread_index())));
            }),
        ],
    };
    let values = Contest {
        name: "per-worker sum, 1e6",
        operation: "element",
        contenders: vec![
            plain("nodewise PerWorker", SIZE as u64, move || {
                let sums = PerWorker::new(pool, || 0);
                pool.parallel_for(0..SIZE, |i| sums.with(|sum| *sum += i));
                use_up(sums.into_iter().sum::<usize>());
            }),
            plain("rayon index, locks", SIZE as u64, move || {
                let sums = (0..rayon.current_num_threads()).map(|_| CachePadded::new(Mutex::new(0)));
                let sums: Vec<_> = sums.collect();
                rayon.install(|| {
                    (0..SIZE).into_par_iter().for_each(|i| {
                        let own = &sums[rayon::current_thread_index().unwrap_or(0)];
                        *own.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += i;
                    });
                });
                use_up(sums.iter().map(|sum| sum.lock().map_or(0, |sum| *sum)).sum::<usize>());
            }),
        ],
    };
    [index, values]
}

fn kinds_of_loops<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> [Contest<'a>; 2] {
    const GRAIN: usize = 1000;
    let grain = Contest {
        name: "grain of 1000, 1e6",
        operation: "element",
        contenders: vec![
            plain("nodewise grain", SIZE as u64, move || pool.grain(GRAIN).parallel_for(0..SIZE, use_up)),
            plain("rayon with_min_len", SIZE as u64, move || {
                rayon.install(|| (0..SIZE).into_par_iter().with_min_len(GRAIN).for_each(use_up));
            }),
        ],
    };
    let broken = |i| {
        use_up(i);
        if i == SOUGHT { ControlFlow::Break(i) } else { ControlFlow::Continue(()) }
    };
    let breaks = Contest {
        name: "loop that breaks off",
        operation: "loop",
        contenders: vec![
            plain("nodewise try_parallel_for", 1, move || {
                use_up(pool.try_parallel_for(0..SEARCHED, broken));
            }),
            plain("rayon try_for_each", 1, move || {
                use_up(rayon.install(|| (0..SEARCHED).into_par_iter().try_for_each(broken)));
            }),
        ],
    };
    [grain, breaks]
}

/// A pass over both arrays.
fn add(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * 0.5 + from);
}

fn placed<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> [Contest<'a>; 2] {
    let vector = || {
        let mut vector = NodeVec::<f64>::new(SIZE, Layout::Blocked).expect("there is memory");
        vector.fill(0.5);
        vector
    };
    let contest = |name, passes: usize| {
        let (mut to, mut from) = (vector(), vector());
        let (mut rayons, of_rayon) = (vec![0.5; SIZE], vec![0.5; SIZE]);
        let operations = (SIZE * passes) as u64;
        Contest {
            name,
            operation: "element",
            contenders: vec![
                plain("nodewise blocks", operations, move || {
                    for _ in 0..passes {
                        to.for_each_block_with(&mut from, pool, |_, to, from| add(to, from));
                    }
                }),
                plain("rayon zip", operations, move || {
                    for _ in 0..passes {
                        let each = |(to, from): (&mut f64, &f64)| *to = *to * 0.5 + from;
                        rayon.install(|| rayons.par_iter_mut().zip(&of_rayon).for_each(each));
                    }
                }),
            ],
        }
    };
    [contest("zipped blocks, 1e6", 1), contest("passes over blocks", PASSES)]
}

fn isolated_and_waiting<'a>(
    pool: &'a NodePool,
    rayon: &'a rayon::ThreadPool,
    workers: usize,
) -> [Contest<'a>; 3] {
    let by_cache = NodePool::builder().workers(workers).by_cache(true).build().expect("there is a node");
    let nested_for_rayon = move || {
        rayon.install(|| {
            (0..OUTER).into_par_iter().for_each(|_| (0..INNER).into_par_iter().for_each(use_up));
        });
    };
    let isolated = Contest {
        name: "isolated loops",
        operation: "element",
        contenders: vec![
            plain("nodewise isolate", ELEMENTS, move || {
                pool.parallel_for(0..OUTER, |_| pool.isolate(|| pool.parallel_for(0..INNER, use_up)));
            }),
            // It has nothing of the kind.
            plain("rayon par_iter", ELEMENTS, nested_for_rayon),
        ],
    };
    let of_cache = Contest {
        name: "loops, by cache",
        operation: "element",
        contenders: vec![
            plain("nodewise by_cache", ELEMENTS, move || {
                by_cache.parallel_for(0..OUTER, |_| by_cache.parallel_for(0..INNER, use_up));
            }),
            plain("rayon par_iter", ELEMENTS, nested_for_rayon),
        ],
    };
    let waiting = Contest {
        name: "loop waits for a user",
        operation: "loop",
        contenders: vec![
            plain("nodewise parallel_for", 1, move || {
                wait_for_user(&|| pool.parallel_for(0..SERVICE, use_up), &|wait| {
                    pool.parallel_for(0..workers, |_| wait());
                });
            }),
            // rayon's would wait for ever.
            plain("std threads", 1, move || {
                wait_for_user(&|| (0..SERVICE).for_each(use_up), &|wait| {
                    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(wait))));
                });
            }),
        ],
    };
    [isolated, of_cache, waiting]
}

/// Calls `all` with a function that waits until a thread has served it.
fn wait_for_user(serve: &(dyn Fn() + Sync), all: &dyn Fn(&(dyn Fn() + Sync))) {
    std::thread::scope(|scope| {
        let (ask, asked) = channel::<std::sync::mpsc::Sender<()>>();
        scope.spawn(move || {
            for answer in asked {
                serve();
                let _ = answer.send(());
            }
        });
        let wait = || {
            let (answer, answered) = channel();
            let _ = ask.send(answer);
            let _ = answered.recv();
        };
        all(&wait);
        drop(ask);
    });
}
