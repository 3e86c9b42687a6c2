//! Threads from outside that use a pool at the same time and wait for each other.

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, NodePool, Topology};
use std::hint::black_box;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The worst there is: workers that run more than there are CPUs, on one node or two.
fn pools() -> [NodePool; 3] {
    [(1, 2), (1, 4), (2, 2)].map(|(nodes, cpus)| {
        let topology = Topology::synthetic(nodes, cpus, 1 << 30);
        let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
        NodePool::builder().allowance(allowance).confined(false).build().unwrap()
    })
}

/// All workers run a loop whose body waits for a thread from outside. That thread serves them by what it does
/// on the same pool. So workers that wait for a part of the one call find parts of the other, which would
/// wait for them.
fn serve_by(serve: impl Fn(&NodePool) + Sync) {
    watchdog::start();
    for pool in &pools() {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            serve_a_loop(pool, false, &serve);
            serve_a_loop(pool, true, &serve);
        }
    }
}

fn serve_a_loop(pool: &NodePool, isolated: bool, serve: &(impl Fn(&NodePool) + Sync)) {
    std::thread::scope(|scope| {
        let (ask, asked) = channel::<Sender<()>>();
        scope.spawn(move || {
            for answer in asked {
                serve(pool);
                let _ = answer.send(());
            }
        });
        let wait_for_it = || {
            pool.parallel_for(0..pool.workers(), |_| {
                let (answer, answered) = channel();
                let _ = ask.send(answer);
                let _ = answered.recv();
            });
        };
        if isolated {
            pool.isolate(wait_for_it);
        } else {
            wait_for_it();
        }
        drop(ask);
    });
}

#[test]
fn loops_that_wait_for_a_user_of_the_pool_end() {
    serve_by(|pool| {
        pool.parallel_for(0..10_000, |i| {
            black_box(i);
        });
    });
}

#[test]
fn loops_that_wait_for_trees_of_tasks_end() {
    fn tree(pool: &NodePool, depth: u32) {
        if depth > 0 {
            pool.join(|| tree(pool, depth - 1), || tree(pool, depth - 1));
        }
    }
    serve_by(|pool| tree(pool, 8));
}

#[test]
fn loops_that_wait_for_scopes_within_scopes_end() {
    serve_by(|pool| {
        pool.scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|_| inner(pool));
            }
        });
    });
}

fn inner(pool: &NodePool) {
    pool.scope(|scope| {
        for i in 0..32 {
            scope.spawn(move |_| {
                black_box(i);
            });
        }
    });
}
