//! The pool that the libraries of a process share.

use crate::error::{Error, Result};
use crate::per_process::PerProcess;
use crate::pool::NodePool;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static POOL: PerProcess<Mutex<Weak<NodePool>>> = PerProcess::new();

/// The most workers that it may have; also of children.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

fn pool() -> MutexGuard<'static, Weak<NodePool>> {
    POOL.own().lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodePool {
    /// The process's default pool. All that ask for it share its workers, so that several libraries in one
    /// process do not start a worker each for every CPU. The first to ask starts them, as [`NodePool::new`]
    /// does, and they end with the last owner. So an owner keeps it while it has work now and then.
    ///
    /// A child of fork(2) has none of its parent's, and gets a default pool of its own here.
    ///
    /// ```
    /// use nodewise_runtime::NodePool;
    /// use std::sync::Arc;
    ///
    /// NodePool::limit_shared(4)?;
    /// let (one, other) = (NodePool::shared()?, NodePool::shared()?);
    /// assert!(Arc::ptr_eq(&one, &other) && one.workers() <= 4);
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::ErrorKind::Machine`] and [`crate::ErrorKind::Thread`], as [`NodePool::new`].
    pub fn shared() -> Result<Arc<Self>> {
        let mut shared = pool();
        if let Some(pool) = shared.upgrade() {
            return Ok(pool);
        }
        let pool = Arc::new(Self::builder().workers(MOST.load(Ordering::Relaxed)).build()?);
        *shared = Arc::downgrade(&pool);
        Ok(pool)
    }

    /// Limits the process's default pool to so many workers, for a program to say before its libraries ask
    /// for it. 0 counts as 1. The last limit counts.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InUse`]: somebody has the pool already. It stays as it is.
    pub fn limit_shared(most: usize) -> Result<()> {
        let shared = pool();
        if let Some(pool) = shared.upgrade() {
            return Err(Error::in_use(pool.workers()));
        }
        MOST.store(most.max(1), Ordering::Relaxed);
        Ok(())
    }
}
