//! Values that threads which work for a pool have to themselves.

use crate::job::OfPlaces;
use crate::pool::NodePool;
use crate::pool_state::PoolState;
use crate::sync::{Mutex, lock};
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
    /// The value of each place, unless it is in use or was never asked for.
    own: OfPlaces<Option<Box<T>>>,
    /// The values of uses that began while the place's was in use, and last those of threads without a place.
    others: Box<[Mutex<Vec<Box<T>>>]>,
}

impl<T: Send, F: Fn() -> T> PerWorker<T, F> {
    /// Values for the threads that work for this pool, each made by `make`.
    #[must_use]
    pub fn new(pool: &NodePool, make: F) -> Self {
        let places = pool.worker_indices();
        let others = (0..=places).map(|_| Mutex::default()).collect();
        Self { shared: pool.state().clone(), make, own: OfPlaces::new(places), others }
    }

    /// Calls `body` with a value that no other thread, nor another use on this one, has meanwhile.
    ///
    /// # Panics
    ///
    /// If `body` does, or `make`. The value stays.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let own = self.own.replace(&self.shared, None).ok().flatten();
        let mut in_use = InUse { of: self, value: own.or_else(|| self.another()) };
        body(in_use.value.as_mut().expect("it is put back when this is dropped"))
    }

    #[cold]
    fn another(&self) -> Option<Box<T>> {
        let kept = lock(self.others_here()).pop();
        kept.or_else(|| Some(Box::new((self.make)())))
    }
}

impl<T, F> PerWorker<T, F> {
    fn others_here(&self) -> &Mutex<Vec<Box<T>>> {
        &self.others[self.shared.index_here().unwrap_or(self.others.len() - 1)]
    }
}

/// A value until it is put back.
struct InUse<'a, T, F> {
    of: &'a PerWorker<T, F>,
    value: Option<Box<T>>,
}

impl<T, F> Drop for InUse<'_, T, F> {
    #[inline]
    fn drop(&mut self) {
        let (Ok(other) | Err(other)) = self.of.own.replace(&self.of.shared, self.value.take());
        if let Some(other) = other {
            lock(self.of.others_here()).push(other);
        }
    }
}

impl<T, F> IntoIterator for PerWorker<T, F> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    /// The values that there are, in any order.
    fn into_iter(self) -> Self::IntoIter {
        let others = self.others.into_iter().flat_map(|others| std::mem::take(&mut *lock(&others)));
        let values = self.own.into_values().flatten().chain(others);
        values.map(|value| *value).collect::<Vec<T>>().into_iter()
    }
}

impl<T, F> fmt::Debug for PerWorker<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerWorker").field("places", &self.shared.places.len()).finish_non_exhaustive()
    }
}
