//! Values that threads which work for a pool have to themselves.

use crate::pool::NodePool;
use crate::pool_state::PoolState;
use crate::sync::{Mutex, lock};
use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use std::fmt;
use std::sync::Arc;

/// A value for each thread that works for a pool: a buffer, a random generator, a part of a sum. A thread
/// makes its value when it first asks for it, so that the value's memory is the thread's own.
///
/// A task that waits inside of [`PerWorker::with`] may run others on top of itself. One that asks there gets
/// another value. So there are as many values as uses at a time, a few more than there are workers. Threads
/// that do not work for the pool may ask as well.
///
/// ```
/// use nodewise_runtime::{NodePool, PerWorker};
///
/// let pool = NodePool::new()?;
/// let odd = PerWorker::new(&pool, Vec::new);
/// pool.parallel_for(0..1000, |i| {
///     if i % 2 == 1 {
///         odd.with(|own| own.push(i));
///     }
/// });
/// assert_eq!(odd.into_iter().map(|own| own.len()).sum::<usize>(), 500);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
pub struct PerWorker<T, F = fn() -> T> {
    shared: Arc<PoolState>,
    make: F,
    /// One for each index, and the last for threads that have none.
    slots: Box<[CachePadded<Slot<T>>]>,
}

struct Slot<T> {
    /// The value, unless it is in use or was never asked for.
    value: AtomicCell<Option<Box<T>>>,
    /// The values of uses that began while it was.
    others: Mutex<Vec<Box<T>>>,
}

impl<T: Send, F: Fn() -> T> PerWorker<T, F> {
    /// Values for the threads that work for this pool, each made by `make`.
    #[must_use]
    pub fn new(pool: &NodePool, make: F) -> Self {
        let slot =
            |_| CachePadded::new(Slot { value: AtomicCell::new(None), others: Mutex::new(Vec::new()) });
        let slots = (0..=pool.worker_indices()).map(slot).collect();
        Self { shared: pool.state().clone(), make, slots }
    }

    /// Calls `body` with a value that no other thread, nor another use on this one, has meanwhile.
    ///
    /// # Panics
    ///
    /// If `body` does, or `make`. The value stays.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let slot = &self.slots[self.shared.index_here().unwrap_or(self.slots.len() - 1)];
        let kept = slot.value.take().or_else(|| lock(&slot.others).pop());
        let mut in_use = InUse { slot, value: Some(kept.unwrap_or_else(|| Box::new((self.make)()))) };
        body(in_use.value.as_mut().expect("it is put back when this is dropped"))
    }
}

/// A value until it is put back.
struct InUse<'a, T> {
    slot: &'a Slot<T>,
    value: Option<Box<T>>,
}

impl<T> Drop for InUse<'_, T> {
    fn drop(&mut self) {
        if let Some(other) = self.slot.value.swap(self.value.take()) {
            lock(&self.slot.others).push(other);
        }
    }
}

impl<T, F> IntoIterator for PerWorker<T, F> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    /// The values that there are, in any order.
    fn into_iter(self) -> Self::IntoIter {
        let of_slot = |slot: &CachePadded<Slot<T>>| {
            let others = std::mem::take(&mut *lock(&slot.others));
            slot.value.take().into_iter().chain(others).map(|value| *value).collect::<Vec<T>>()
        };
        self.slots.iter().flat_map(of_slot).collect::<Vec<T>>().into_iter()
    }
}

impl<T, F> fmt::Debug for PerWorker<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerWorker").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
