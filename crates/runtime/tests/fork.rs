//! What a forked child may do with its parent's pool. A program of its own, in which no other test's thread holds a lock meanwhile.

mod watchdog;

use nodewise_runtime::NodePool;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_child_drops_its_parents_pool_and_makes_its_own() {
    watchdog::start();
    let pool = NodePool::builder().workers(2).build().unwrap();
    // Something that dropping the pool waits for.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let waits = pool.spawn(move || ended.recv());
    // SAFETY: all that the child needs of the C library is its allocator, which glibc keeps whole.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it hangs; the watchdog is its parent's.
        unsafe { libc::alarm(300) };
        let done = catch_unwind(AssertUnwindSafe(|| {
            drop(pool);
            let own = NodePool::builder().workers(2).build().unwrap();
            assert_eq!(own.spawn(|| 3).join(), 3);
        }));
        // SAFETY: ends the child without what test programs do at their end.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` may be written to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    drop(end);
    assert!(waits.join().is_err());
    assert_eq!(pool.spawn(|| 4).join(), 4);
}
