//! Atomics, mutexes and futexes: the real ones, or those of loom, which tries every order that the memory
//! model allows.

#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;

use atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::TryLockError;
use std::time::Duration;

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// As loom has it.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, reads: impl FnOnce(*const T) -> R) -> R {
        reads(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, writes: impl FnOnce(*mut T) -> R) -> R {
        writes(self.0.get())
    }
}

/// The same [`Arc`] where it is loom's, which cannot be turned into one of a trait.
#[cfg(not(loom))]
#[inline]
pub(crate) fn arc<T: ?Sized>(alone: std::sync::Arc<T>) -> Arc<T> {
    alone
}

#[cfg(loom)]
pub(crate) fn arc<T: ?Sized>(alone: std::sync::Arc<T>) -> Arc<T> {
    Arc::from_std(alone)
}

/// Stores, and lets no later `SeqCst` load come before it. One locked instruction on x86-64, where a fence
/// takes several times as long.
#[cfg(not(loom))]
#[inline]
pub(crate) fn store_fully(word: &AtomicUsize, number: usize) {
    word.swap(number, Ordering::SeqCst);
}

/// Loom takes `SeqCst` at its word for fences only.
#[cfg(loom)]
pub(crate) fn store_fully(word: &AtomicUsize, number: usize) {
    word.store(number, Ordering::Release);
    atomic::fence(Ordering::SeqCst);
}

/// Locks. The data that these mutexes guard is never left half changed, so that a panic of another holder
/// does not matter.
#[cfg(not(nodewise_tsan))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Under `scripts/tsan`: waiting for a lock is code of the standard library's, which is not instrumented
/// there; trying is inlined, and is.
#[cfg(nodewise_tsan)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    until(|| if_free(mutex.try_lock()))
}

#[cfg(nodewise_tsan)]
fn until<G>(attempt: impl Fn() -> Option<G>) -> G {
    loop {
        match attempt() {
            Some(guard) => return guard,
            None => std::thread::yield_now(),
        }
    }
}

fn if_free<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks if nobody has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if_free(mutex.try_lock())
}

/// Locks to read, like [`lock`].
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    #[cfg(nodewise_tsan)]
    return until(|| if_free(lock.try_read()));
    #[cfg(not(nodewise_tsan))]
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks to write, like [`lock`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    #[cfg(nodewise_tsan)]
    return until(|| if_free(lock.try_write()));
    #[cfg(not(nodewise_tsan))]
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks to write if nobody has it.
pub(crate) fn try_write<T>(lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
    if_free(lock.try_write())
}

/// A number to sleep on until it changes.
#[derive(Debug, Default)]
pub(crate) struct Futex {
    number: AtomicU32,
    #[cfg(loom)]
    sleepers: (Mutex<()>, loom::sync::Condvar),
}

impl Futex {
    pub(crate) fn get(&self, order: Ordering) -> u32 {
        self.number.load(order)
    }

    pub(crate) fn set(&self, number: u32, order: Ordering) {
        self.number.store(number, order);
    }

    pub(crate) fn swap(&self, number: u32, order: Ordering) -> u32 {
        self.number.swap(number, order)
    }

    pub(crate) fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> bool {
        self.number.compare_exchange(from, to, order, Ordering::Acquire).is_ok()
    }

    /// Changes the number and wakes everybody.
    pub(crate) fn ring(&self) {
        self.number.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    /// Sleeps while the number is `expected`; may return for no reason, and does after the timeout.
    #[cfg(not(loom))]
    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        // All its errors mean: look again.
        let _ = nodewise_sys::futex_wait(&self.number, expected, timeout);
    }

    #[cfg(not(loom))]
    pub(crate) fn wake_all(&self) {
        let _ = nodewise_sys::futex_wake(&self.number, u32::MAX);
    }

    #[cfg(loom)]
    pub(crate) fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let guard = lock(&self.sleepers.0);
        if self.number.load(Ordering::SeqCst) == expected {
            drop(self.sleepers.1.wait(guard));
        }
    }

    #[cfg(loom)]
    pub(crate) fn wake_all(&self) {
        drop(lock(&self.sleepers.0));
        self.sleepers.1.notify_all();
    }
}
