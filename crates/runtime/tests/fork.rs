//! A forked child and the objects that its parent has made: what it may do with them. A program of its own,
//! in which no other test's thread holds a lock meanwhile: so one test after the other.

mod watchdog;

use nodewise_runtime::{Hint, Layout, NodePool, NodeVec, forget_hints, hint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn a_child_uses_what_it_may() {
    watchdog::start();
    a_child_drops_its_parents_pool_and_makes_its_own();
    a_child_of_a_task_does_not_do_its_parents_work();
    a_child_says_how_memory_is_used_whatever_its_parent_was_saying();
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

fn a_child_drops_its_parents_pool_and_makes_its_own() {
    let mut pool = Some(NodePool::builder().workers(2).build().unwrap());
    // Something that dropping the pool waits for.
    let (end, ended) = channel::<()>();
    let waits = pool.as_ref().unwrap().spawn(move || ended.recv());
    assert!(in_child(|| {
        drop(pool.take());
        let own = NodePool::builder().workers(2).build().unwrap();
        assert_eq!(own.spawn(|| 3).join(), 3);
    }));
    drop(end);
    assert!(waits.join().is_err());
    assert_eq!(pool.unwrap().spawn(|| 4).join(), 4);
}

fn a_child_of_a_task_does_not_do_its_parents_work() {
    let (parent, in_a_child) = (std::process::id(), AtomicBool::new(false));
    for callers_work in [false, true] {
        let pool = NodePool::builder().workers(1).callers_work(callers_work).build().unwrap();
        let ended_well = pool.scope(|scope| {
            // The tasks that lie in the queue when the task forks, and when the child waits for its own pool.
            for _ in 0..100 {
                scope.spawn(|_| in_a_child.store(std::process::id() != parent, Ordering::Relaxed));
            }
            in_child(|| {
                let own = NodePool::builder().workers(1).build().unwrap();
                let slow = || std::thread::sleep(Duration::from_millis(20));
                own.spawn(slow).join();
                own.scope(|_| slow());
                assert!(!in_a_child.load(Ordering::Relaxed));
            })
        });
        assert!(ended_well, "{callers_work}");
    }
}

fn a_child_says_how_memory_is_used_whatever_its_parent_was_saying() {
    let shared = NodeVec::<u64>::new(1 << 16, Layout::Interleaved).unwrap();
    let mut freed = Some(NodeVec::<u64>::new(1, Layout::Interleaved).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                hint(&shared[..], Hint::WriteShared).unwrap();
            }
        });
        let ended_well = (0..10).all(|_| {
            std::thread::sleep(Duration::from_millis(1));
            in_child(|| {
                drop(freed.take());
                hint(&shared[..], Hint::ReadShared).unwrap();
                forget_hints(&shared[..]);
            })
        });
        over.store(true, Ordering::Relaxed);
        assert!(ended_well);
    });
}
