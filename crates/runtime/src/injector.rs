//! A node's queue of tasks that were not made by its workers: any thread pushes at the back, workers take
//! from the front.
//!
//! A lock, and a buffer that grows and stays as it is. A lock-free queue in segments, such as crossbeam's,
//! allocates one for every few dozen tasks: to the C library's malloc a large block, for which it gathers all
//! small ones that are free, those of tasks that have ended.

use crate::deque::Deque;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;

pub(crate) struct Injector<T>(CachePadded<Inner<T>>);

struct Inner<T> {
    /// Written by who has the lock.
    len: AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> Injector<T> {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(Inner { len: AtomicUsize::new(0), items: Mutex::new(VecDeque::new()) }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len.load(Ordering::Acquire) == 0
    }

    pub(crate) fn push(&self, item: T) {
        let mut items = lock(&self.0.items);
        items.push_back(item);
        self.0.len.store(items.len(), Ordering::Release);
    }

    /// The oldest.
    pub(crate) fn take(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut items = lock(&self.0.items);
        let item = items.pop_front();
        self.0.len.store(items.len(), Ordering::Release);
        item
    }

    /// The oldest that is wanted.
    pub(crate) fn take_if(&self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut items = lock(&self.0.items);
        let item = items.iter().position(wanted).and_then(|place| items.remove(place));
        self.0.len.store(items.len(), Ordering::Release);
        item
    }

    /// Half of the items, rounded up, but not more than `most`: returns the oldest, and pushes the others, so
    /// that they are popped in their order.
    pub(crate) fn take_half(&self, most: usize, into: &Deque<T>) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // So that nothing is allocated under the lock.
        into.reserve(most);
        let mut items = lock(&self.0.items);
        let number = items.len().div_ceil(2).min(most);
        let mut taken = items.drain(..number);
        let first = taken.next();
        taken.rev().for_each(|item| into.push(item));
        self.0.len.store(items.len(), Ordering::Release);
        first
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn halves_come_in_their_order() {
        let (injector, own) = (Injector::new(), Deque::new());
        assert_eq!(injector.take_half(4, &own), None);
        (0..11).for_each(|item| injector.push(item));
        let mut had = Vec::new();
        for len in [4, 4, 2, 1] {
            let before = had.len();
            had.extend(injector.take_half(4, &own));
            had.extend(std::iter::from_fn(|| own.pop()));
            assert_eq!(had.len() - before, len);
        }
        assert!(injector.is_empty());
        assert_eq!(had, (0..11).collect::<Vec<_>>());
    }

    #[test]
    fn each_item_is_had_once() {
        const ITEMS: usize = 10_000;
        let injector = Injector::new();
        let (left, sum) = (AtomicUsize::new(2 * ITEMS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for first in [0, ITEMS] {
                let injector = &injector;
                scope.spawn(move || (first..first + ITEMS).for_each(|item| injector.push(item)));
            }
            for batches in [false, true] {
                let (injector, left, sum) = (&injector, &left, &sum);
                scope.spawn(move || {
                    let own = Deque::new();
                    while left.load(Ordering::Relaxed) > 0 {
                        let first = if batches { injector.take_half(8, &own) } else { injector.take() };
                        for item in first.into_iter().chain(std::iter::from_fn(|| own.pop())) {
                            sum.fetch_add(item, Ordering::Relaxed);
                            left.fetch_sub(1, Ordering::Relaxed);
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), ITEMS * (2 * ITEMS - 1));
        assert!(injector.is_empty());
    }
}
