//! Values for the places of a pool, each touched by the thread that has the place.

use super::with_current;
use crate::pool_state::PoolState;
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;

/// Values by place. A thread touches that of its own place only, with plain loads and stores.
pub(crate) struct OfPlaces<T>(Box<[CachePadded<UnsafeCell<T>>]>);

// SAFETY: a thread that works for the pool has a place to itself. The next that has it sees all that was done
// before: places of callers and of substitutes are handed on under a lock.
unsafe impl<T: Send> Sync for OfPlaces<T> {}

impl<T: Default> OfPlaces<T> {
    pub(crate) fn new(places: usize) -> Self {
        Self((0..places).map(|_| CachePadded::default()).collect())
    }

    /// Replaces the value of the calling thread's place in this pool, which has as many places. Gives the new
    /// value back if the thread does not work for the pool.
    #[inline]
    pub(crate) fn replace(&self, pool: &PoolState, value: T) -> Result<T, T> {
        with_current(|current| match current {
            Some(worker) if std::ptr::eq(&raw const *worker.shared, pool) => {
                let own = self.0[worker.index].get();
                // SAFETY: the place is this thread's, and no code of others runs meanwhile.
                Ok(unsafe { own.replace(value) })
            }
            _ => Err(value),
        })
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.0.into_iter().map(|own| own.into_inner().into_inner())
    }
}
