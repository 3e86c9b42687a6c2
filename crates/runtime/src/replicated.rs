//! One value, a copy on each node.
//!
//! Each node has the value twice, and all readers of all nodes use the same side of the two. A writer changes
//! the side that nobody reads, on every node; turns all readers over to it with one store; waits until the
//! old side's last reader has left; and changes that too. (The left-right technique of Ramalhete and Correia,
//! with a pair for each node.)
//!
//! A reader counts itself in before it looks which side is read, and the writer looks at the counts after it
//! has turned the side over. Both change the count with one atomic operation each, so one of them comes
//! second and sees the other: either the writer sees the reader and waits, or the reader sees the new side
//! and goes there.

#![allow(unsafe_code)]

use crate::error::Result;
use crate::location::current_node;
use crate::memory::{KeptPolicy, NodeArena, NodeBox, Placement, SharedArena, prefer_from_now};
use crate::nearest::{MemoryNodes, Nearest};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Futex, Mutex, UnsafeCell, lock};
use crate::unwind::{AbortOnDrop, drop_caught};
use crossbeam_utils::CachePadded;
use nodewise_topology::NodeId;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A value that all read and few write: each node has copies of its own.
///
/// [`Replicated::read`] touches nothing but its node's copy, and a word that changes only with the value; it
/// never waits. [`Replicated::update`] changes every copy and waits for readers that began before it. Reads
/// and updates are linearizable: once one thread has seen a value, none sees an older one, on whatever node
/// it runs.
///
/// The value is kept twice on each node with CPUs, or on the nearest that has memory for this process, on
/// pages of its own. A value with memory of its own, such as a vector, has that on the node as well if it
/// takes it from the copy's arena: [`Replicated::new_in`]. Memory from elsewhere, the global allocator's for
/// instance, may lie on any node.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use nodewise_runtime::Replicated;
///
/// let routes = Replicated::new_in(|arena| {
///     let mut routes = Vec::new_in(arena.clone());
///     routes.extend(["a", "b"]);
///     routes
/// })?;
/// assert_eq!(routes.read().len(), 2);
/// routes.update(|routes| routes.push("c"));
/// assert_eq!(routes.read()[2], "c");
/// assert_eq!(routes.placement()?.misplaced, 0);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
pub struct Replicated<T> {
    /// The side that is read: 0 or 1.
    side: CachePadded<AtomicUsize>,
    copies: Box<[NodeBox<Copies<T>>]>,
    nearest: Option<Nearest>,
    writer: Mutex<()>,
}

/// The copies on a node.
struct Copies<T> {
    /// Where they lie; not known in tests.
    node: Option<NodeId>,
    /// For what they have outside of themselves, if they were made in one.
    arena: Option<SharedArena>,
    sides: [Side<T>; 2],
}

struct Side<T> {
    /// Twice the readers, and 1 while the writer waits for the last of them.
    readers: CachePadded<AtomicUsize>,
    /// Rung by the last reader.
    bell: Futex,
    value: CachePadded<UnsafeCell<T>>,
}

const READER: usize = 2;
const WAITED_FOR: usize = 1;

// SAFETY: values are shared as `&T` between threads, and dropped and changed by whichever thread has the
// `Replicated` or writes.
unsafe impl<T: Send + Sync> Sync for Replicated<T> {}
// SAFETY: a `Replicated` owns its values.
unsafe impl<T: Send> Send for Replicated<T> {}

/// The value, as it is until the guard is dropped.
pub struct ReadGuard<'a, T> {
    side: &'a Side<T>,
}

// SAFETY: a guard gives nothing but `&T`, of a value that nobody changes as long as it lives.
unsafe impl<T: Sync> Sync for ReadGuard<'_, T> {}

impl<T: Clone + Send + Sync> Replicated<T> {
    /// Copies `value` to each node. Its clones come from threads that prefer memory there or, where a
    /// container's filter refuses memory policies, are on the node's CPUs. Memory that a clone allocates
    /// may lie elsewhere all the same: see [`Replicated::new_in`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Machine`]: `/sys` or `/proc` cannot be read. [`crate::ErrorKind::Memory`]: no more
    /// memory can be mapped, or the kernel (before 5.14) refuses a call.
    ///
    /// # Panics
    /// With what `T::clone` panicked with.
    pub fn new(value: T) -> Result<Self> {
        Self::on_each_node(|node, nodes| {
            NodeBox::on(node, nodes, || Copies::of(Some(node), None, || value.clone()))
        })
    }

    /// Has `make` make each copy, twice a node, with an arena whose memory is on that node. A value whose
    /// collections take their memory from there lies on its node whole, and stays there as it grows.
    ///
    /// `make` has to make equal values. It is called by threads as [`Replicated::new`] has them, by one at a
    /// time.
    ///
    /// # Errors
    /// As [`Replicated::new`].
    ///
    /// # Panics
    /// With what `make` panicked with.
    pub fn new_in(make: impl Fn(&SharedArena) -> T + Sync) -> Result<Self> {
        Self::on_each_node(|node, nodes| {
            let arena = SharedArena::from(NodeArena::of_copy(node, nodes));
            NodeBox::on(node, nodes, || Copies::of(Some(node), Some(arena.clone()), || make(&arena)))
        })
    }

    fn on_each_node(
        make: impl Fn(NodeId, &MemoryNodes) -> Result<NodeBox<Copies<T>>> + Sync,
    ) -> Result<Self> {
        let memory = MemoryNodes::of_this_process()?;
        let nodes: Vec<NodeId> = memory.near_cpus.iter().collect();
        let nearest = Nearest::among(&nodes)?;
        // The end of one copy and the beginning of another may come to lie in one huge page, if both are
        // written at the same time.
        let turns = Mutex::new(());
        let copy_to = |node| {
            let _turn = lock(&turns);
            make(node, &memory)
        };
        let copies = std::thread::scope(|scope| {
            let start = |&node| std::thread::Builder::new().spawn_scoped(scope, move || copy_to(node));
            let threads: Vec<_> = nodes.iter().map(start).collect();
            let copies = threads.into_iter().zip(&nodes).map(|(thread, &node)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The kernel gives no thread.
                Err(_) => copy_to(node),
            });
            copies.collect::<Result<Box<[_]>>>()
        })?;
        Ok(Self::with_copies(copies, Some(nearest)))
    }

    fn with_copies(copies: Box<[NodeBox<Copies<T>>]>, nearest: Option<Nearest>) -> Self {
        Self { side: CachePadded::new(AtomicUsize::new(0)), copies, nearest, writer: Mutex::new(()) }
    }

    /// The value; the copy nearest to the calling thread. Never waits; an [`update`](Self::update) waits
    /// until the guard is dropped, so a thread that holds one must not update.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let place = self.nearest.as_ref().map_or(0, |nearest| nearest.to(current_node()));
        self.read_copy(place)
    }

    #[inline]
    fn read_copy(&self, place: usize) -> ReadGuard<'_, T> {
        let copies = &self.copies[place];
        let mut at = self.side.load(Ordering::Relaxed);
        loop {
            let side = &copies.sides[at];
            side.readers.fetch_add(READER, Ordering::AcqRel);
            let now = self.side.load(Ordering::Acquire);
            if now == at {
                return ReadGuard { side };
            }
            // Turned over just now.
            side.leave();
            at = now;
        }
    }

    /// Changes every copy. `change` is called for each, twice a node, and must do the same to each: it gets
    /// no say from outside that may differ from call to call. Returns what it returned first. Updates are
    /// made one after the other: `change` must not update the same value, or it waits for itself, and the
    /// thread must hold no guard of [`read`](Self::read).
    ///
    /// # Panics
    /// With what `change`, or dropping what it returned, panicked with. The value is then as if nothing had
    /// been changed if it panicked the first time or on the first side, and as if all had been if later.
    pub fn update<R>(&self, mut change: impl FnMut(&mut T) -> R) -> R {
        let _alone = lock(&self.writer);
        let old = self.side.load(Ordering::Relaxed);
        let new = 1 - old;
        // Nobody reads the other side: the last update waited until its readers had left, and none has come
        // since who saw it to be in use.
        let first = self.change_side(new, old, &mut change);
        self.side.store(new, Ordering::Release);
        for copies in &self.copies {
            copies.sides[old].wait_for_readers();
        }
        self.change_side(old, new, &mut change);
        first
    }

    /// Replaces the value with another, by `T::clone_from`. One that keeps a copy's arena, as a vector's
    /// does, keeps it on its node.
    pub fn set(&self, value: &T) {
        self.update(|copy| copy.clone_from(value));
    }

    /// Changes one side of all copies. If that panics, makes the side like the other again.
    fn change_side<R>(&self, side: usize, other: usize, change: &mut impl FnMut(&mut T) -> R) -> R {
        let mut first = None;
        // On one node all memory is as near. Where the kernel has come to refuse, what is allocated now may
        // lie elsewhere.
        let kept = if self.copies.len() > 1 { KeptPolicy::new().ok() } else { None };
        for copies in &self.copies {
            if let Some((_, node)) = kept.as_ref().zip(copies.node) {
                let _ = prefer_from_now(node);
            }
            let changed = copies.sides[side].value.with_mut(|value| {
                catch_unwind(AssertUnwindSafe(|| {
                    // SAFETY: nobody reads this side, and we hold the writers' lock.
                    let returned = change(unsafe { &mut *value });
                    // The others are dropped here, which may panic.
                    first.get_or_insert(returned);
                }))
            });
            if let Err(panic) = changed {
                self.copy_side(other, side);
                drop_caught(first);
                resume_unwind(panic);
            }
        }
        first.expect("there is a node with memory")
    }

    fn copy_side(&self, from: usize, to: usize) {
        // Half copied it would be a value there never was.
        let abort = AbortOnDrop;
        for copies in &self.copies {
            let [from, to] = [&copies.sides[from].value, &copies.sides[to].value];
            from.with(|from| {
                // SAFETY: readers share it with us, and nobody else writes: we hold the writers' lock.
                let from = unsafe { &*from };
                // SAFETY: nobody reads this side, and we hold the writers' lock.
                to.with_mut(|to| unsafe { &mut *to }.clone_from(from));
            });
        }
        std::mem::forget(abort);
    }
}

impl<T> Replicated<T> {
    /// Asks the kernel where the pages of all copies and of their arenas are now.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Memory`]: a container's filter refuses `move_pages(2)`.
    pub fn placement(&self) -> Result<Placement> {
        let mut sum = Placement::default();
        for copies in &self.copies {
            sum.add(&copies.placement()?);
            if let Some(arena) = &copies.arena {
                sum.add(&arena.placement()?);
            }
        }
        Ok(sum)
    }
}

impl<T> Copies<T> {
    fn of(node: Option<NodeId>, arena: Option<SharedArena>, make: impl Fn() -> T) -> Self {
        Self { node, arena, sides: [Side::new(make()), Side::new(make())] }
    }
}

impl<T> Side<T> {
    fn new(value: T) -> Self {
        Self {
            readers: CachePadded::new(AtomicUsize::new(0)),
            bell: Futex::default(),
            value: CachePadded::new(UnsafeCell::new(value)),
        }
    }

    #[inline]
    fn leave(&self) {
        if self.readers.fetch_sub(READER, Ordering::AcqRel) == READER + WAITED_FOR {
            self.bell.ring();
        }
    }

    /// Waits until everybody has left who counted himself in before this call, or found the side in use.
    fn wait_for_readers(&self) {
        loop {
            let rung = self.bell.get(Ordering::Acquire);
            if self.readers.fetch_or(WAITED_FOR, Ordering::AcqRel) < READER {
                break;
            }
            self.bell.wait(rung, None);
        }
        self.readers.fetch_and(!WAITED_FOR, Ordering::AcqRel);
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as long as this guard is counted among the side's readers the writer leaves the value
        // alone.
        self.side.value.with(|value| unsafe { &*value })
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.side.leave();
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> fmt::Debug for Replicated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicated").field("copies", &self.copies.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::history;

    fn on_nodes<T: Clone + Send + Sync>(nodes: usize, value: &T) -> Replicated<T> {
        let copies = (0..nodes).map(|_| NodeBox::new(|| Copies::of(None, None, || value.clone())));
        Replicated::with_copies(copies.collect::<Result<_>>().unwrap(), None)
    }

    #[test]
    fn what_was_written_is_read_from_every_copy() {
        let names = Replicated::new(vec!["a".to_owned()]).unwrap();
        assert_eq!(
            names.update(|names| {
                names.push("b".to_owned());
                names.len()
            }),
            2
        );
        assert_eq!(*names.read(), ["a", "b"]);
        names.set(&vec![]);
        assert!(names.read().is_empty());
        let copied = on_nodes(3, &1);
        copied.update(|value| *value += 1);
        assert!((0..3).all(|place| *copied.read_copy(place) == 2));
    }

    #[test]
    fn a_panic_leaves_all_copies_alike() {
        let copied = on_nodes(3, &vec![1]);
        for calls in 0..6 {
            let before = copied.read_copy(0).len();
            let mut left = calls;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                copied.update(|value| {
                    value.push(7);
                    assert!(left > 0, "on order");
                    left -= 1;
                });
            }));
            assert!(panicked.is_err());
            let expected = before + usize::from(calls >= 3);
            for place in [0, 1, 2] {
                assert_eq!(copied.read_copy(place).len(), expected, "{calls} calls, copy {place}");
            }
            copied.update(|value| value.truncate(expected));
            assert_eq!(copied.read_copy(2).len(), expected);
        }
    }

    #[test]
    fn a_result_that_panics_when_it_is_dropped_leaves_all_copies_alike() {
        struct Returned {
            panics: bool,
        }
        impl Drop for Returned {
            fn drop(&mut self) {
                assert!(!self.panics, "on order");
            }
        }
        let copied = on_nodes(3, &vec![1]);
        for bad in 1..6 {
            let before = copied.read_copy(0).len();
            let mut calls = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                copied.update(|value| {
                    value.push(7);
                    calls += 1;
                    Returned { panics: calls == bad + 1 }
                });
            }));
            assert!(panicked.is_err());
            let expected = before + usize::from(bad >= 3);
            // The copies of either side.
            for _ in 0..2 {
                assert!((0..3).all(|place| copied.read_copy(place).len() == expected), "call {bad}");
                copied.update(|_| ());
            }
        }
    }

    #[test]
    fn histories_are_linearizable() {
        for nodes in [1, 2, 3] {
            let copied = on_nodes(nodes, &(0, 0));
            let update = |_, name| {
                copied.update(|value| {
                    *value = (value.0 + 1, name);
                    value.0
                })
            };
            history::check(4, 20_000, update, |thread| *copied.read_copy(thread % nodes));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    fn on_nodes(nodes: usize) -> Arc<Replicated<usize>> {
        let copies = (0..nodes).map(|_| NodeBox::new(|| Copies::of(None, None, || 0)));
        Arc::new(Replicated::with_copies(copies.collect::<Result<_>>().unwrap(), None))
    }

    /// Loom finds a value that is read while it is changed by itself.
    #[test]
    fn a_value_is_never_changed_while_it_is_read() {
        bounded(3, || {
            let copied = on_nodes(1);
            let reader = {
                let copied = copied.clone();
                thread::spawn(move || {
                    let first = *copied.read_copy(0);
                    let second = *copied.read_copy(0);
                    assert!(first <= second && second <= 2, "{first}, then {second}");
                })
            };
            copied.update(|value| *value += 1);
            copied.update(|value| *value += 1);
            reader.join().unwrap();
            assert_eq!(*copied.read_copy(0), 2);
        });
    }

    #[test]
    fn what_one_node_has_seen_no_other_sees_undone() {
        bounded(3, || {
            let copied = on_nodes(2);
            let seen = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let reader = {
                let (copied, seen) = (copied.clone(), seen.clone());
                thread::spawn(move || {
                    let value = *copied.read_copy(1);
                    seen.fetch_max(value, Ordering::AcqRel);
                })
            };
            let writer = {
                let copied = copied.clone();
                thread::spawn(move || {
                    copied.update(|value| *value += 1);
                    assert_eq!(*copied.read_copy(0), 1, "one's own write");
                })
            };
            let least = seen.load(Ordering::Acquire);
            let value = *copied.read_copy(0);
            assert!(value >= least, "{value} after {least}");
            reader.join().unwrap();
            writer.join().unwrap();
        });
    }
}
