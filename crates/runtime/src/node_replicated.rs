//! One value, a copy on each node, kept alike by a log of operations.
//!
//! This is node replication (Calciu, Sen, Balakrishnan, Aguilera, 'Black-box concurrent data structures for
//! NUMA architectures', ASPLOS 2017) in few locks. A writer that finds its node's copy taken leaves its
//! operation with the node. The writer that gets the copy appends all operations left there to the log (flat
//! combining). It then applies to the copy all operations that the log holds beyond it.
//!
//! A reader waits until its node's copy has come as far as the log was when the reader began. It brings the
//! copy there itself if no writer does. So an operation takes effect when it is appended: a reader that
//! begins after somebody saw it sees it, too. With one copy there is no log, and an operation takes effect
//! when it is done.
//!
//! Once the vectors have their size, an update allocates nothing. The log is bounded. A writer that finds it
//! full first applies it to the other nodes' copies, skipping those that are locked. It waits for no lock but
//! its own copy's and the log's, in this order. It has brought its own copy forward by then, so two never
//! wait for each other.

use crate::error::Result;
use crate::location::current_node;
use crate::memory::{NodeArena, NodeBox, Placement, SharedArena};
use crate::nearest::{MemoryNodes, Nearest};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, lock, read, try_write, write, yield_now};
use crate::unwind::AbortOnDrop;
use crossbeam_utils::CachePadded;
use nodewise_topology::NodeId;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;

/// A value that changes by operations which have the same effect on each copy.
pub trait Operate: Clone + Send + Sync {
    /// A change to the value. It is kept in the log until it has been done to each copy and its room is
    /// needed.
    type Operation: Clone + Send;
    /// The result of a change.
    type Response: Send;

    /// Does it: the same to equal values, whatever the thread and the time.
    ///
    /// A panic would leave the copies different, and ends the process; so does one in cloning or dropping an
    /// operation or in dropping a response, where [`NodeReplicated`] does that for several copies or
    /// writers.
    fn operate(&mut self, operation: &Self::Operation) -> Self::Response;
}

/// A value with a copy on each node with CPUs, or the memory nearest to it, changed by operations that go
/// through a log.
///
/// Beside [`crate::Replicated`]: it has one copy a node instead of two, and an update is done once a node
/// instead of twice and by a thread of that node, when it is needed there; updates of several threads of a
/// node are done together. But readers wait for updates of their node's copy. Reads and updates are
/// linearizable.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use nodewise_runtime::{NodeReplicated, Operate, SharedArena};
///
/// #[derive(Clone)]
/// struct Stack(Vec<u64, SharedArena>);
///
/// impl Operate for Stack {
///     type Operation = u64;
///     type Response = usize;
///     fn operate(&mut self, pushed: &u64) -> usize {
///         self.0.push(*pushed);
///         self.0.len()
///     }
/// }
///
/// let stack = NodeReplicated::new_in(|arena| Stack(Vec::new_in(arena.clone())))?;
/// assert_eq!(stack.update(7), 1);
/// assert_eq!(stack.read().0[..], [7]);
/// assert_eq!(stack.placement()?.misplaced, 0);
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
pub struct NodeReplicated<T: Operate> {
    /// How many operations were ever appended.
    tail: CachePadded<AtomicUsize>,
    log: CachePadded<Mutex<Log<T::Operation>>>,
    copies: Box<[NodeBox<NodeCopy<T>>]>,
    nearest: Option<Nearest>,
}

struct Log<O> {
    operations: VecDeque<O>,
    /// How many were taken off its front.
    first: usize,
    capacity: usize,
}

struct NodeCopy<T: Operate> {
    /// For what the value has outside of itself, if it was made in one.
    arena: Option<SharedArena>,
    value: CachePadded<RwLock<Value<T>>>,
    /// As in the value, for who trims the log.
    applied: CachePadded<AtomicUsize>,
    /// The operations that the node's writers have left, each in a place of its own.
    left: CachePadded<Mutex<Vec<Left<T>>>>,
    /// For who has the copy to write, to begin and end empty: kept for its memory.
    combined: Mutex<Combined<T::Operation>>,
    news: Mutex<Vec<T::Operation>>,
}

struct Value<T> {
    value: T,
    /// How many operations were applied.
    applied: usize,
}

enum Left<T: Operate> {
    Nothing,
    Operation(T::Operation),
    /// Being done.
    Taken,
    Response(T::Response),
}

/// The operations that were left with a copy, and their places.
struct Combined<O> {
    operations: Vec<O>,
    places: Vec<usize>,
}

/// The value, as it is until the guard is dropped.
pub struct NodeReplicatedGuard<'a, T> {
    copy: RwLockReadGuard<'a, Value<T>>,
}

/// Operations in the log.
const CAPACITY: usize = 1024;

impl<T: Operate> NodeReplicated<T> {
    /// Copies `value` to each node, to pages of its own. Memory that a clone allocates may lie elsewhere: see
    /// [`NodeReplicated::new_in`].
    ///
    /// # Errors
    /// As [`crate::Replicated::new`].
    ///
    /// # Panics
    /// With what `T::clone` panicked with.
    #[expect(clippy::needless_pass_by_value, reason = "from here on the copies are the value")]
    pub fn new(value: T) -> Result<Self> {
        Self::on_each_node(|node, nodes| NodeBox::on(node, nodes, || NodeCopy::of(None, value.clone())))
    }

    /// Has `make` make each copy with an arena whose memory is on the copy's node, as
    /// [`crate::Replicated::new_in`] does. A value whose collections take their memory from there lies on
    /// its node whole, and stays there as it grows.
    ///
    /// # Errors
    /// As [`crate::Replicated::new`].
    ///
    /// # Panics
    /// With what `make` panicked with.
    pub fn new_in(make: impl Fn(&SharedArena) -> T) -> Result<Self> {
        Self::on_each_node(|node, nodes| {
            let arena = SharedArena::from(NodeArena::of_copy(node, nodes));
            NodeBox::on(node, nodes, || NodeCopy::of(Some(arena.clone()), make(&arena)))
        })
    }

    fn on_each_node(make: impl Fn(NodeId, &MemoryNodes) -> Result<NodeBox<NodeCopy<T>>>) -> Result<Self> {
        let memory = MemoryNodes::of_this_process()?;
        let nodes: Vec<NodeId> = memory.near_cpus.iter().collect();
        let nearest = Nearest::among(&nodes)?;
        let copies = nodes.iter().map(|&node| make(node, &memory));
        Ok(Self::with_copies(copies.collect::<Result<_>>()?, CAPACITY, Some(nearest)))
    }

    /// Asks the kernel where the pages of all copies and of their arenas are now.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Memory`]: a container's filter refuses `move_pages(2)`.
    pub fn placement(&self) -> Result<Placement> {
        let mut sum = Placement::default();
        for copy in &self.copies {
            sum.add(&copy.placement()?);
            if let Some(arena) = &copy.arena {
                sum.add(&arena.placement()?);
            }
        }
        Ok(sum)
    }

    fn with_copies(copies: Box<[NodeBox<NodeCopy<T>>]>, capacity: usize, nearest: Option<Nearest>) -> Self {
        let log = Log { operations: VecDeque::with_capacity(capacity), first: 0, capacity };
        let tail = CachePadded::new(AtomicUsize::new(0));
        Self { tail, log: CachePadded::new(Mutex::new(log)), copies, nearest }
    }

    /// The value; the copy nearest to the calling thread, after all updates that have returned. Updates of
    /// the node's copy wait until the guard is dropped, so a thread that holds one must neither update
    /// nor read again.
    pub fn read(&self) -> NodeReplicatedGuard<'_, T> {
        self.read_copy(self.nearest_copy())
    }

    /// Does an operation to every copy: to the nearest before it returns, to the others when they are read,
    /// or the log is full. Waits for readers and writers of the nearest copy; when the log is full, for
    /// readers of a copy that holds it up.
    pub fn update(&self, operation: T::Operation) -> T::Response {
        self.update_copy(self.nearest_copy(), operation)
    }

    fn nearest_copy(&self) -> usize {
        self.nearest.as_ref().map_or(0, |nearest| nearest.to(current_node()))
    }

    fn read_copy(&self, place: usize) -> NodeReplicatedGuard<'_, T> {
        let copy = &self.copies[place];
        let tail = self.tail.load(Ordering::Acquire);
        loop {
            let guard = NodeReplicatedGuard { copy: read(&copy.value) };
            if guard.copy.applied >= tail {
                return guard;
            }
            drop(guard);
            self.advance(copy, &mut write(&copy.value), &[]);
        }
    }

    fn update_copy(&self, place: usize, operation: T::Operation) -> T::Response {
        let copy = &self.copies[place];
        // Without a log there is nothing to save by doing others' operations.
        let alone = self.copies.len() == 1;
        let taken = if alone { Some(write(&copy.value)) } else { try_write(&copy.value) };
        if let Some(mut value) = taken {
            self.append(place, &mut value, std::slice::from_ref(&operation));
            let response = value.operate(&operation);
            copy.applied.store(value.applied, Ordering::Release);
            return response;
        }
        let left = copy.leave(operation);
        let mut value = write(&copy.value);
        // Whoever had the copy before may have done it.
        let done = copy.response(left).or_else(|| {
            self.do_what_was_left(place, &mut value);
            copy.response(left)
        });
        done.expect("who has the copy does all that was left")
    }

    fn do_what_was_left(&self, place: usize, value: &mut Value<T>) {
        let abort = AbortOnDrop;
        let copy = &self.copies[place];
        let combined = &mut *lock(&copy.combined);
        copy.take_left(combined);
        let Combined { operations, places } = combined;
        let mut begin = 0;
        while begin < operations.len() {
            let end = begin + self.append(place, value, &operations[begin..]);
            for (operation, &left) in operations[begin..end].iter().zip(&places[begin..end]) {
                let response = value.operate(operation);
                lock(&copy.left)[left] = Left::Response(response);
            }
            copy.applied.store(value.applied, Ordering::Release);
            begin = end;
        }
        operations.clear();
        places.clear();
        std::mem::forget(abort);
    }

    /// Appends operations to the log, one at least and as many as there is room for, and brings the copy to
    /// where they begin; returns how many. To do them is left to the caller.
    fn append(&self, place: usize, value: &mut Value<T>, operations: &[T::Operation]) -> usize {
        if self.copies.len() == 1 {
            return operations.len();
        }
        loop {
            match self.advance(&self.copies[place], value, operations) {
                0 => self.bring_others_forward(place),
                appended => return appended,
            }
        }
    }

    /// Brings a copy to the end of the log, and appends as many operations as there is room for.
    fn advance(&self, copy: &NodeCopy<T>, value: &mut Value<T>, operations: &[T::Operation]) -> usize {
        let abort = AbortOnDrop;
        let mut log = lock(&self.log);
        if log.room() < operations.len() {
            log.trim(&self.copies);
        }
        let mut news = (value.applied < log.end()).then(|| lock(&copy.news));
        if let Some(news) = &mut news {
            news.extend(log.operations.range(value.applied - log.first..).cloned());
        }
        let appended = log.room().min(operations.len());
        log.operations.extend(operations[..appended].iter().cloned());
        self.tail.store(log.end(), Ordering::Release);
        drop(log);
        if let Some(mut news) = news {
            news.drain(..).for_each(|operation| drop(value.operate(&operation)));
            copy.applied.store(value.applied, Ordering::Release);
        }
        std::mem::forget(abort);
        appended
    }

    /// The log is full, and not for want of this copy.
    fn bring_others_forward(&self, place: usize) {
        for (_, copy) in self.copies.iter().enumerate().filter(|(other, _)| *other != place) {
            if let Some(mut value) = try_write(&copy.value) {
                self.advance(copy, &mut value, &[]);
            }
        }
        yield_now();
    }
}

impl<O: Clone> Log<O> {
    fn end(&self) -> usize {
        self.first + self.operations.len()
    }

    fn room(&self) -> usize {
        self.capacity - self.operations.len()
    }

    /// Forgets what all copies have.
    fn trim<T: Operate<Operation = O>>(&mut self, copies: &[NodeBox<NodeCopy<T>>]) {
        let applied = copies.iter().map(|copy| copy.applied.load(Ordering::Acquire)).min();
        let done = applied.map_or(0, |applied| applied - self.first);
        self.operations.drain(..done);
        self.first += done;
    }
}

impl<T: Operate> NodeCopy<T> {
    fn of(arena: Option<SharedArena>, value: T) -> Self {
        Self {
            arena,
            value: CachePadded::new(RwLock::new(Value { value, applied: 0 })),
            applied: CachePadded::new(AtomicUsize::new(0)),
            left: CachePadded::new(Mutex::new(Vec::new())),
            combined: Mutex::new(Combined { operations: Vec::new(), places: Vec::new() }),
            news: Mutex::new(Vec::new()),
        }
    }

    /// Leaves an operation for who has the copy; returns where.
    fn leave(&self, operation: T::Operation) -> usize {
        let mut left = lock(&self.left);
        let free = left.iter().position(|left| matches!(left, Left::Nothing)).unwrap_or_else(|| {
            left.push(Left::Nothing);
            left.len() - 1
        });
        left[free] = Left::Operation(operation);
        free
    }

    fn take_left(&self, combined: &mut Combined<T::Operation>) {
        for (place, left) in lock(&self.left).iter_mut().enumerate() {
            match std::mem::replace(left, Left::Taken) {
                Left::Operation(operation) => {
                    combined.operations.push(operation);
                    combined.places.push(place);
                }
                other => *left = other,
            }
        }
    }

    /// The result of the operation that was left there, if it was done.
    fn response(&self, place: usize) -> Option<T::Response> {
        let left = &mut lock(&self.left)[place];
        match std::mem::replace(left, Left::Nothing) {
            Left::Response(response) => Some(response),
            other => {
                *left = other;
                None
            }
        }
    }
}

impl<T: Operate> Value<T> {
    fn operate(&mut self, operation: &T::Operation) -> T::Response {
        let abort = AbortOnDrop;
        let response = self.value.operate(operation);
        std::mem::forget(abort);
        self.applied += 1;
        response
    }
}

impl<T> Deref for NodeReplicatedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.copy.value
    }
}

impl<T: fmt::Debug> fmt::Debug for NodeReplicatedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Operate> fmt::Debug for NodeReplicated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeReplicated").field("copies", &self.copies.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[derive(Clone, Debug, Default)]
struct Sum([usize; 2]);

#[cfg(test)]
impl Operate for Sum {
    type Operation = usize;
    type Response = usize;

    fn operate(&mut self, added: &usize) -> usize {
        self.0 = self.0.map(|half| half + added);
        self.0[0]
    }
}

#[cfg(test)]
fn on_nodes(nodes: usize, capacity: usize) -> NodeReplicated<Sum> {
    let copies = (0..nodes).map(|_| NodeBox::new(|| NodeCopy::of(None, Sum::default())).unwrap()).collect();
    NodeReplicated::with_copies(copies, capacity, None)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::history;

    #[test]
    fn what_was_done_is_read_from_every_copy() {
        let sum = NodeReplicated::new(Sum::default()).unwrap();
        assert_eq!((sum.update(2), sum.update(3)), (2, 5));
        assert_eq!(sum.read().0, [5; 2]);
        let sum = on_nodes(3, 4);
        for i in 1..=100 {
            assert_eq!(sum.update_copy(i % 2, 1), i);
        }
        assert!((0..3).all(|place| sum.read_copy(place).0 == [100; 2]));
        assert!(lock(&sum.log).operations.len() <= 4);
    }

    #[test]
    fn a_panic_in_copying_leaves_the_threads_memory_policy() {
        #[derive(Debug)]
        struct Uncopied;
        impl Clone for Uncopied {
            fn clone(&self) -> Self {
                panic!("on order")
            }
        }
        impl Operate for Uncopied {
            type Operation = ();
            type Response = ();
            fn operate(&mut self, (): &()) {}
        }
        let before = nodewise_sys::get_mempolicy().unwrap();
        assert!(std::panic::catch_unwind(|| NodeReplicated::new(Uncopied)).is_err());
        assert_eq!(nodewise_sys::get_mempolicy().unwrap(), before);
    }

    /// An operation whose copies may panic.
    struct Fragile {
        in_clone: bool,
        in_drop: bool,
    }

    impl Clone for Fragile {
        fn clone(&self) -> Self {
            assert!(!self.in_clone, "on order");
            Self { ..*self }
        }
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            assert!(!self.in_drop, "on order");
        }
    }

    #[derive(Clone, Debug)]
    struct Kept;

    impl Operate for Kept {
        type Operation = Fragile;
        type Response = ();
        fn operate(&mut self, _: &Fragile) {}
    }

    /// Runs itself again, once for each, in a process that is to be aborted.
    #[test]
    fn copies_that_a_panic_would_leave_different_nobody_sees() {
        const WHICH: &str = "NODEWISE_TEST_FRAGILE";
        if let Ok(which) = std::env::var(WHICH) {
            let fragile = |in_clone, in_drop| std::mem::ManuallyDrop::new(Fragile { in_clone, in_drop });
            let copies = (0..2).map(|_| NodeBox::new(|| NodeCopy::of(None, Kept)).unwrap()).collect();
            let kept = NodeReplicated::with_copies(copies, 4, None);
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let operation = fragile(which == "clone", which == "drop");
                kept.advance(
                    &kept.copies[0],
                    &mut write(&kept.copies[0].value),
                    std::slice::from_ref(&*operation),
                );
                kept.read_copy(1);
            }));
            println!("survived: {}", caught.is_err());
            return;
        }
        let name = "node_replicated::tests::copies_that_a_panic_would_leave_different_nobody_sees";
        for (which, ends) in [("clone", true), ("drop", true), ("neither", false)] {
            let again = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(WHICH, which)
                .output()
                .unwrap();
            let survived = String::from_utf8_lossy(&again.stdout).contains("survived");
            assert_eq!((survived, again.status.success()), (!ends, !ends), "{which}: {again:?}");
        }
    }

    impl Operate for history::Counted {
        type Operation = u64;
        type Response = u64;

        fn operate(&mut self, &name: &u64) -> u64 {
            *self = (self.0 + 1, name);
            self.0
        }
    }

    #[test]
    fn histories_are_linearizable() {
        for nodes in [1, 2, 3] {
            let copies = (0..nodes).map(|_| NodeBox::new(|| NodeCopy::of(None, (0, 0))).unwrap()).collect();
            let counted = NodeReplicated::with_copies(copies, 16, None);
            let place = |thread| thread % nodes;
            let update = |thread, name| counted.update_copy(place(thread), name);
            history::check(4, 8000, update, |thread| *counted.read_copy(place(thread)));
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

    #[test]
    fn what_one_node_has_seen_no_other_sees_undone() {
        bounded(2, || {
            let sum = Arc::new(on_nodes(2, 4));
            let writer = {
                let sum = sum.clone();
                thread::spawn(move || {
                    let place = sum.update_copy(0, 1);
                    assert!(sum.read_copy(0).0[0] >= place, "one's own write");
                })
            };
            let seen = sum.read_copy(1).0[0];
            assert!(sum.read_copy(0).0[0] >= seen);
            writer.join().unwrap();
            assert_eq!(sum.read_copy(1).0, [1; 2]);
        });
    }

    #[test]
    fn writers_of_one_node_do_each_others_operations_once() {
        writers_of_one_node(1);
    }

    #[test]
    fn writers_of_one_of_two_nodes_do_each_others_operations_once() {
        writers_of_one_node(2);
    }

    fn writers_of_one_node(nodes: usize) {
        bounded(2, move || {
            let sum = Arc::new(on_nodes(nodes, 4));
            let other = {
                let sum = sum.clone();
                thread::spawn(move || sum.update_copy(0, 1))
            };
            let mine = sum.update_copy(0, 1);
            let theirs = other.join().unwrap();
            assert_eq!((mine + theirs, mine.abs_diff(theirs)), (3, 1), "{mine}, {theirs}");
            assert_eq!(sum.read_copy(0).0, [2; 2]);
        });
    }

    #[test]
    fn a_full_log_is_emptied_by_those_who_need_room() {
        bounded(2, || {
            let sum = Arc::new(on_nodes(2, 1));
            let other = {
                let sum = sum.clone();
                thread::spawn(move || sum.update_copy(1, 1))
            };
            let places = [sum.update_copy(0, 1), sum.update_copy(0, 1)];
            let theirs = other.join().unwrap();
            assert!(places[0] < places[1] && theirs <= 3 && !places.contains(&theirs), "{places:?} {theirs}");
            assert_eq!((sum.read_copy(0).0, sum.read_copy(1).0), ([3; 2], [3; 2]));
        });
    }
}
