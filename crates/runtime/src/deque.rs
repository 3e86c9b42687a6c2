//! A worker's queue: it pushes and pops at the back, others take from the front.
//!
//! The protocol is Cilk's (Frigo, Leiserson, Randall, 'The implementation of the Cilk-5 multithreaded
//! language', PLDI 1998, section 5). Thieves lock each other out, and say what they take before they look how
//! far the owner has come; the owner locks only where it meets one, or has no room. So a push reads nothing
//! that others write, a pop is one locked instruction, and a batch is taken at the price of one job. In
//! Chase's and Lev's deque each push reads the line that thieves write, each job of a batch is a locked
//! instruction of its own, and a buffer that was outgrown has to be kept until nobody reads it any more.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, UnsafeCell, lock, store_fully, try_lock};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// The owner's end. Jobs that are left when both ends are dropped are forgotten.
pub(crate) struct Deque<T> {
    ends: Arc<Ends<T>>,
    /// As in `ends`, where only the owner changes it.
    slots: Cell<*const [Slot<T>]>,
    /// Where `back` may not go beyond before there is room.
    full_at: Cell<usize>,
}

/// The others' end.
pub(crate) struct Stealer<T>(Arc<Ends<T>>);

struct Ends<T> {
    /// How many were pushed and not popped again, and, in `front`, how many were taken: the queue is what
    /// lies between. Written by the owner only.
    back: CachePadded<AtomicUsize>,
    taken: CachePadded<Taken<T>>,
}

struct Taken<T> {
    /// Written by who has the lock only. Ahead of what is taken for a moment.
    front: AtomicUsize,
    /// Item i is in slot i modulo their number, which is a power of two.
    slots: Mutex<Arc<[Slot<T>]>>,
}

struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: an item is in the hands of one thread at a time.
unsafe impl<T: Send> Sync for Slot<T> {}
// SAFETY: likewise.
unsafe impl<T: Send> Send for Slot<T> {}
// SAFETY: `slots` is what `ends` keeps.
unsafe impl<T: Send> Send for Deque<T> {}

/// How many items there is room for at first: a page of jobs. It grows, and stays as it is.
const ROOM: usize = if cfg!(loom) { 4 } else { 256 };

fn slots<T>(number: usize) -> Arc<[Slot<T>]> {
    (0..number).map(|_| Slot(UnsafeCell::new(MaybeUninit::uninit()))).collect()
}

fn slot<T>(slots: &[Slot<T>], index: usize) -> &Slot<T> {
    &slots[index & (slots.len() - 1)]
}

impl<T> Slot<T> {
    /// # Safety
    /// Nobody else has it meanwhile.
    unsafe fn put(&self, item: T) {
        // SAFETY: as promised.
        self.0.with_mut(|slot| unsafe { slot.write(MaybeUninit::new(item)) });
    }

    /// # Safety
    /// An item was put there and not got before, and nobody else has it meanwhile.
    unsafe fn get(&self) -> T {
        // SAFETY: as promised.
        let item = self.0.with(|slot| unsafe { slot.read() });
        // SAFETY: as promised.
        unsafe { item.assume_init() }
    }
}

impl<T> Deque<T> {
    pub(crate) fn new() -> Self {
        let slots = slots(ROOM);
        let (own, full_at) = (Cell::new(Arc::as_ptr(&slots)), Cell::new(ROOM));
        let taken = Taken { front: AtomicUsize::new(0), slots: Mutex::new(slots) };
        let ends = Ends { back: CachePadded::new(AtomicUsize::new(0)), taken: CachePadded::new(taken) };
        Self { ends: Arc::new(ends), slots: own, full_at }
    }

    pub(crate) fn stealer(&self) -> Stealer<T> {
        Stealer(self.ends.clone())
    }

    fn slot(&self, index: usize) -> &Slot<T> {
        // SAFETY: kept by `ends` until `make_room`, which sets it anew.
        slot(unsafe { &*self.slots.get() }, index)
    }

    #[inline]
    pub(crate) fn push(&self, item: T) {
        let back = self.ends.back.load(Ordering::Relaxed);
        if back == self.full_at.get() {
            self.make_room(back);
        }
        // SAFETY: what was there before was popped, or taken as `make_room` has seen.
        unsafe { self.slot(back).put(item) };
        self.ends.back.store(back + 1, Ordering::Release);
    }

    /// The item that was pushed last. None, too, while a thief looks at the last one there is.
    #[inline]
    pub(crate) fn pop(&self) -> Option<T> {
        let back = self.ends.back.load(Ordering::Relaxed);
        if self.ends.taken.front.load(Ordering::Relaxed) >= back {
            return None;
        }
        let last = back - 1;
        store_fully(&self.ends.back, last);
        if self.ends.taken.front.load(Ordering::SeqCst) <= last || self.regain(last) {
            // SAFETY: thieves that come from now on see that it is gone, and none has come as far before.
            return Some(unsafe { self.slot(last).get() });
        }
        None
    }

    /// A thief has come as far: whether it leaves the last item to the owner.
    #[cold]
    fn regain(&self, last: usize) -> bool {
        let thieves = lock(&self.ends.taken.slots);
        let regained = self.ends.taken.front.load(Ordering::Relaxed) <= last;
        if !regained {
            self.ends.back.store(last + 1, Ordering::Release);
        }
        drop(thieves);
        regained
    }

    /// Finds out how far thieves are; where that is not far enough, the queue gets twice the room.
    #[cold]
    fn make_room(&self, back: usize) {
        let mut shared = lock(&self.ends.taken.slots);
        let front = self.ends.taken.front.load(Ordering::Relaxed);
        if back - front > shared.len() / 2 {
            let larger = slots(shared.len() * 2);
            for index in front..back {
                // SAFETY: thieves are locked out, and what lies between the ends is there.
                let item = unsafe { slot(&shared, index).get() };
                // SAFETY: nobody else knows of it yet.
                unsafe { slot(&larger, index).put(item) };
            }
            self.slots.set(Arc::as_ptr(&larger));
            *shared = larger;
        }
        self.full_at.set(front + shared.len());
    }

    /// So many pushes lock nothing from here on.
    pub(crate) fn reserve(&self, items: usize) {
        let back = self.ends.back.load(Ordering::Relaxed);
        if back + items > self.full_at.get() {
            self.make_room(back);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For the owner: whether nothing is in it that a thief only looks at.
    pub(crate) fn is_surely_empty(&self) -> bool {
        let _thieves = lock(&self.ends.taken.slots);
        self.is_empty()
    }
}

impl<T> Stealer<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Half of the items, rounded up, but not more than `most`: returns the oldest, and pushes the others.
    /// None, too, if another thief is there. `most` is no more than half of [`ROOM`].
    pub(crate) fn steal_half(&self, most: usize, into: &Deque<T>) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // Now, since two that steal from each other may not each wait for the other's lock.
        into.reserve(most);
        let slots = try_lock(&self.0.taken.slots)?;
        // SAFETY: they were claimed under the lock, which the owner needs to use their slots anew.
        let mut items = self.0.claim(most).map(|index| unsafe { slot(&slots, index).get() });
        let first = items.next();
        items.for_each(|item| into.push(item));
        first
    }

    /// The oldest item, if it is wanted. None, too, if another thief is there. While one that is not wanted
    /// is looked at, others do not see it: tell them.
    pub(crate) fn steal_if(&self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let slots = try_lock(&self.0.taken.slots)?;
        let index = self.0.claim(1).next()?;
        // SAFETY: as above.
        let item = unsafe { slot(&slots, index).get() };
        if wanted(&item) {
            return Some(item);
        }
        // It is still in its slot.
        std::mem::forget(item);
        self.0.taken.front.store(index, Ordering::Release);
        None
    }
}

impl<T> Ends<T> {
    /// At one moment or another.
    fn len(&self) -> usize {
        let front = self.taken.front.load(Ordering::Acquire);
        self.back.load(Ordering::Acquire).saturating_sub(front)
    }

    /// For who has the lock: makes items of the front its own.
    fn claim(&self, most: usize) -> Range<usize> {
        let front = self.taken.front.load(Ordering::Relaxed);
        let number = self.back.load(Ordering::Relaxed).saturating_sub(front).div_ceil(2).min(most);
        if number == 0 {
            return front..front;
        }
        store_fully(&self.taken.front, front + number);
        // As far as the owner has not come to meet it.
        let end = self.back.load(Ordering::SeqCst).clamp(front, front + number);
        if end < front + number {
            self.taken.front.store(end, Ordering::Release);
        }
        front..end
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn an_item_that_a_thief_looks_at_is_still_there() {
        let deque = Deque::new();
        let stealer = deque.stealer();
        assert!(deque.is_surely_empty());
        deque.push(1);
        let (looks, looked) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                stealer.steal_if(|_| {
                    looks.store(true, Ordering::Release);
                    while !looked.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    false
                })
            });
            while !looks.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(deque.is_empty(), "for now");
            looked.store(true, Ordering::Release);
            assert!(!deque.is_surely_empty());
        });
        assert_eq!(deque.pop(), Some(1));
    }

    #[test]
    fn it_is_a_deque() {
        let (deque, other) = (Deque::new(), Deque::new());
        let (stealer, mut model) = (deque.stealer(), VecDeque::new());
        let mut next = 0;
        for round in 0..3000_usize {
            for _ in 0..round % 7 * 100 {
                deque.push(next);
                model.push_back(next);
                next += 1;
            }
            for _ in 0..round % 5 * 50 {
                assert_eq!(deque.pop(), model.pop_back());
            }
            let odd = model.front().is_some_and(|item| item % 2 == 1);
            assert_eq!(stealer.steal_if(|item| item % 2 == 1), odd.then(|| model.pop_front()).flatten());
            let stolen = model.len().div_ceil(2).min(round % 20);
            let first = stealer.steal_half(round % 20, &other);
            assert_eq!(first, (stolen > 0).then(|| model.pop_front()).flatten());
            let rest: Vec<_> = std::iter::from_fn(|| other.pop()).collect();
            assert!(rest.into_iter().rev().eq(model.drain(..stolen.saturating_sub(1))));
            assert_eq!(deque.len(), model.len());
        }
    }

    /// Each item reaches one of owner and thieves once.
    #[test]
    fn nothing_is_lost_or_had_twice() {
        const ITEMS: usize = 200_000;
        let deque = Deque::new();
        let over = AtomicBool::new(false);
        let mut had = std::thread::scope(|scope| {
            let thieves: Vec<_> = (0..2)
                .map(|thief| {
                    let (stealer, over) = (deque.stealer(), &over);
                    scope.spawn(move || {
                        let (own, mut had) = (Deque::new(), Vec::new());
                        // The second does not want all that is there.
                        while !over.load(Ordering::Acquire) || thief == 0 && !stealer.is_empty() {
                            let item = match thief {
                                0 => stealer.steal_half(16, &own),
                                _ => stealer.steal_if(|item| item % 3 > 0),
                            };
                            had.extend(item.into_iter().chain(std::iter::from_fn(|| own.pop())));
                        }
                        had
                    })
                })
                .collect();
            let mut had = Vec::new();
            for item in 0..ITEMS {
                deque.push(item);
                if item % 3 > 0 {
                    had.extend(deque.pop());
                }
            }
            had.extend(std::iter::from_fn(|| deque.pop()));
            over.store(true, Ordering::Release);
            for thief in thieves {
                had.extend(thief.join().unwrap());
            }
            had.extend(std::iter::from_fn(|| deque.pop()));
            had
        });
        had.sort_unstable();
        assert!(had.into_iter().eq(0..ITEMS));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// The owner does as it is told, true for a push; a thief steals meanwhile. Each item is had once.
    fn model(steps: &'static [bool], steal: fn(&Stealer<usize>, &Deque<usize>) -> Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let deque = Deque::new();
            let stealer = deque.stealer();
            deque.push(0);
            deque.push(1);
            let thief = thread::spawn(move || {
                let own = Deque::new();
                let first = steal(&stealer, &own);
                let mut had: Vec<usize> = first.into_iter().collect();
                had.extend(std::iter::from_fn(|| own.pop()));
                had
            });
            let (mut next, mut had) = (2, Vec::new());
            for &push in steps {
                if push {
                    deque.push(next);
                    next += 1;
                } else {
                    had.extend(deque.pop());
                }
            }
            had.extend(thief.join().unwrap());
            had.extend(std::iter::from_fn(|| deque.pop()));
            had.sort_unstable();
            assert!(had.into_iter().eq(0..next));
        });
    }

    #[test]
    fn owner_and_thief_meet() {
        model(&[false, false], |stealer, own| stealer.steal_half(2, own));
    }

    #[test]
    fn slots_are_used_anew_after_the_thief() {
        model(&[true, true, true], |stealer, own| stealer.steal_half(2, own));
    }

    #[test]
    fn a_thief_leaves_what_it_does_not_want() {
        model(&[false, false, true], |stealer, _| stealer.steal_if(|item| *item == 9));
    }
}
