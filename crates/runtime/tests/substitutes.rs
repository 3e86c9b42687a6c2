//! Workers that work while those of their node wait for something else. A program of its own, with one test,
//! which counts the process's threads.

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, NodePool, Topology};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The process's threads that are workers.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("node")).count()
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn they_are_few_and_end_when_they_are_not_needed() {
    watchdog::start();
    let topology = Topology::synthetic(2, 1, 1 << 30);
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
    if nodewise_runtime::Allowance::of_this_thread().unwrap().nodes().len() > 1 {
        return;
    }
    let pool = NodePool::builder().allowance(allowance).confined(false).build().unwrap();
    for _ in 0..3 {
        let [begun, waiting, most] = [(); 3].map(|()| AtomicUsize::new(0));
        let over = AtomicBool::new(false);
        let wait = |number: &AtomicUsize| {
            number.fetch_add(1, Ordering::Relaxed);
            wait_until(|| over.load(Ordering::Acquire));
        };
        std::thread::scope(|threads| {
            threads.spawn(|| pool.parallel_for(0..2, |_| wait(&begun)));
            wait_until(|| begun.load(Ordering::Relaxed) == 2);
            for _ in 0..12 {
                // Each keeps one more waiting, as long as there is one. All are on one node.
                threads.spawn(|| pool.scope(|_| wait(&waiting)));
            }
            wait_until(|| waiting.load(Ordering::Relaxed) == 4);
            for _ in 0..20 {
                most.fetch_max(workers(), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            over.store(true, Ordering::Release);
        });
        assert_eq!((waiting.into_inner(), most.into_inner()), (12, 2 + 4));
        wait_until(|| workers() == 2);
        // Tasks that take long are none that wait, nor is a loop over them.
        let long = |_| std::thread::sleep(std::time::Duration::from_millis(120));
        std::thread::scope(|threads| {
            threads.spawn(|| pool.parallel_for(0..4, long));
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert_eq!(workers(), 2);
        });
    }
    drop(pool);
    wait_until(|| workers() == 0);
}
