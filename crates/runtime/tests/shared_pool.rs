//! The process's default pool. A program of its own, with one test, as there is one such pool.

mod watchdog;

use nodewise_runtime::{ErrorKind, NodePool};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Forks, and has the child do something: whether that ended well.
fn in_child(body: impl FnOnce()) -> bool {
    // SAFETY: all that the child needs of the C library is its allocator, which glibc keeps whole.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it hangs; the watchdog is its parent's.
        unsafe { libc::alarm(20) };
        let done = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the child without what test programs do at their end.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` may be written to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

#[test]
fn all_share_one_pool_within_its_limit_and_a_child_has_its_own() {
    watchdog::start();
    let all = NodePool::new().unwrap().workers();
    for most in [0, 1, 2] {
        NodePool::limit_shared(most).unwrap();
        let asked =
            || std::thread::scope(|scope| scope.spawn(|| NodePool::shared().unwrap()).join().unwrap());
        let (one, other) = (asked(), asked());
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(one.workers(), most.clamp(1, all));
        // Threads have their names a little later.
        wait_until(|| workers() >= one.workers());
        assert_eq!(workers(), one.workers());
        assert_eq!(NodePool::limit_shared(5).unwrap_err().kind(), ErrorKind::InUse);
        assert!(in_child(|| {
            let own = NodePool::shared().unwrap();
            assert!(!Arc::ptr_eq(&own, &one) && own.workers() == one.workers());
            assert_eq!(own.spawn(|| 3).join(), 3);
        }));
        drop(one);
        assert_eq!(other.spawn(|| 4).join(), 4);
        drop(other);
        wait_until(|| workers() == 0);
    }
    // Whatever its parent was doing with it.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(NodePool::shared().unwrap().spawn(|| 5).join(), 5);
            }
        });
        let ended_well = (0..20).all(|_| in_child(|| drop(NodePool::shared().unwrap().spawn(|| ()))));
        over.store(true, Ordering::Relaxed);
        assert!(ended_well);
    });
}
