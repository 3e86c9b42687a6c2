//! Loops over ranges and slices: divided among the nodes first, then inside each.

use crate::job::Scope;
use crate::pool::NodePool;
use crate::sync::{Mutex, lock};
use crate::worker::Worker;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

/// How a range is divided.
#[derive(Clone, Copy)]
struct Grain {
    /// Nothing smaller is divided: a part that takes so long is all that a worker may be through sooner than
    /// others.
    least: usize,
    /// Nothing larger is done without a look whether others have nothing to do.
    most: usize,
    /// How often it is still to be halved while there are idle workers: into some parts a worker at first,
    /// and again where a part was taken by an idle worker.
    divisions: usize,
    /// The least that the loop's caller wants in a part.
    wanted: usize,
}

impl Grain {
    fn new(size: usize, workers: usize, wanted: usize) -> Self {
        let share = size / workers;
        Self { least: (share / 32).max(1), most: (share / 16).max(wanted), divisions: workers, wanted }
    }

    fn halved(self) -> Self {
        Self { divisions: self.divisions / 2, ..self }
    }

    fn taken(self, by: &Worker) -> Self {
        Self { divisions: self.divisions.max(by.shared.workers), ..self }
    }

    fn divides(self, size: usize, worker: &Worker) -> bool {
        let dry = || worker.has_nothing_to_take();
        let large = size > self.least && size / 2 >= self.wanted;
        large && (dry() || self.divisions > 0 && worker.shared.sleep.some_idle())
    }

    fn part_of(self, size: usize) -> usize {
        if size < self.most.saturating_add(self.wanted) { size } else { self.most }
    }
}

/// Work that can be cut in two.
pub(crate) trait Divide: Sized + Send {
    fn size(&self) -> usize;
    /// The first `at` elements and the rest.
    fn divide(self, at: usize) -> (Self, Self);
}

impl Divide for Range<usize> {
    fn size(&self) -> usize {
        self.len()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let middle = self.start + at;
        (self.start..middle, middle..self.end)
    }
}

/// A slice, and the index of its first element.
impl<T: Send> Divide for (usize, &mut [T]) {
    fn size(&self) -> usize {
        self.1.len()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let (first, rest) = self.1.split_at_mut(at);
        ((self.0, first), (self.0 + at, rest))
    }
}

/// The same part of two.
impl<A: Divide, B: Divide> Divide for (A, B) {
    fn size(&self) -> usize {
        self.0.size()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let ((first, rest), (other_first, other_rest)) = (self.0.divide(at), self.1.divide(at));
        ((first, other_first), (rest, other_rest))
    }
}

/// The work on a part, given the result of the part before it, and the way to combine the results of
/// neighbours.
struct Plan<L, C> {
    grain: usize,
    leaf: L,
    combine: C,
}

impl<L, C> Plan<L, C> {
    /// Does it from its beginning on, and leaves the second half of what remains to others, again whenever
    /// they find nothing here. 'Lazy binary splitting': Tzannes, Caragea, Barua, Vishkin, 2010.
    fn divide<W: Divide, R: Send>(&self, worker: &Worker, mut rest: W, grain: Grain) -> R
    where
        L: Fn(Option<R>, W) -> R + Sync,
        C: Fn(R, R) -> R + Sync,
    {
        let mut before = None;
        loop {
            let size = rest.size();
            if grain.divides(size, worker) {
                let (first, second) = rest.divide(size / 2);
                let halved = grain.halved();
                let (first, second) = worker.join(
                    |worker| self.divide(worker, first, halved),
                    |worker, taken| {
                        self.divide(worker, second, if taken { halved.taken(worker) } else { halved })
                    },
                );
                let both = (self.combine)(first, second);
                return match before {
                    Some(before) => (self.combine)(before, both),
                    None => both,
                };
            }
            let (part, left) = rest.divide(grain.part_of(size));
            let done = (self.leaf)(before, part);
            if left.size() == 0 {
                return done;
            }
            (before, rest) = (Some(done), left);
        }
    }

    /// From a worker the range starts there, and other nodes come for it when they have run dry. From outside
    /// each node is given its share at once, in one task that divides it there.
    fn run<W: Divide, R: Send>(&self, pool: &NodePool, whole: W) -> R
    where
        L: Fn(Option<R>, W) -> R + Sync,
        C: Fn(R, R) -> R + Sync,
    {
        let inside = pool.worker_node().is_some();
        pool.in_worker(|worker| {
            let grain = Grain::new(whole.size(), worker.shared.workers, self.grain);
            let nodes = worker.shared.nodes.len();
            if inside || nodes == 1 || whole.size() < 2 || whole.size() / nodes < self.grain {
                return self.divide(worker, whole, grain);
            }
            self.share_among_nodes(worker, whole, grain)
        })
    }

    fn share_among_nodes<W: Divide, R: Send>(&self, worker: &Worker, whole: W, grain: Grain) -> R
    where
        L: Fn(Option<R>, W) -> R + Sync,
        C: Fn(R, R) -> R + Sync,
    {
        let nodes = &worker.shared.nodes;
        let (workers, len) = (worker.shared.workers as u128, whole.size() as u128);
        let (mut rest, mut given) = (whole, 0);
        let mut parts = Vec::with_capacity(nodes.len());
        for node in nodes {
            let end = (len * node.workers.end as u128 / workers) as usize;
            let (part, left) = rest.divide(end - given);
            parts.push(part);
            (rest, given) = (left, end);
        }
        let results: Vec<Mutex<Option<R>>> = nodes.iter().map(|_| Mutex::new(None)).collect();
        Scope::run(worker, |scope| {
            let mut own = None;
            for (node, part) in parts.into_iter().enumerate() {
                let (result, grain) =
                    (&results[node], Grain { divisions: nodes[node].workers.len(), ..grain });
                let task = move |worker: &Worker| {
                    let done = self.divide(worker, part, grain);
                    *lock(result) = Some(done);
                };
                if node == worker.node {
                    own = Some(task);
                } else {
                    scope.spawn_at(node, task);
                }
            }
            own.expect("the worker's node is one of the pool's")(worker);
        });
        let results = results.iter().map(|result| lock(result).take().expect("every node's part was done"));
        results.reduce(&self.combine).expect("a pool has nodes")
    }
}

/// The loops of a pool, in parts of a least size, made by [`NodePool::grain`]. The size counts numbers,
/// elements or, as far as a block has them, elements of a block. It is for bodies so short that smaller parts
/// would cost more than they bring, and for bodies that want neighbours together.
///
/// ```
/// let pool = nodewise_runtime::NodePool::new()?;
/// let smallest = pool.grain(1000).parallel_reduce_parts(0..10_000, |part| part.len(), usize::min);
/// assert!(smallest >= Some(1000));
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Loops<'a> {
    pub(crate) pool: &'a NodePool,
    pub(crate) grain: usize,
}

impl NodePool {
    /// Loops over parts that are no smaller than `least`, unless the whole is smaller; 0 counts as 1.
    #[must_use]
    pub fn grain(&self, least: usize) -> Loops<'_> {
        Loops { pool: self, grain: least.max(1) }
    }

    /// Calls `f` with each number of the range, on all workers. Neighbouring numbers are mostly on the same
    /// worker, in ascending order.
    ///
    /// Called from outside, each node gets a share in proportion to its workers, the lower numbers the lower
    /// nodes; called from a worker, the range starts on its node. In both cases nodes that have run dry
    /// take from others.
    ///
    /// # Panics
    ///
    /// If `f` does, with one of the payloads, when all that was begun has ended; which other numbers were
    /// reached is open.
    pub fn parallel_for(&self, range: Range<usize>, f: impl Fn(usize) + Sync) {
        self.grain(1).parallel_for(range, f);
    }

    /// Calls `f` with the index and a reference to each element, as [`NodePool::parallel_for`] does.
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_for`].
    pub fn parallel_for_each<T: Send>(&self, elements: &mut [T], f: impl Fn(usize, &mut T) + Sync) {
        self.grain(1).parallel_for_each(elements, f);
    }

    /// Folds parts of the range, each from `identity()` on, and combines the results of neighbours, in order:
    /// `combine` has to be associative, but need not be commutative. The division into parts differs from
    /// call to call.
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_for`].
    pub fn parallel_reduce<T: Send>(
        &self,
        range: Range<usize>,
        identity: impl Fn() -> T + Sync,
        fold: impl Fn(T, usize) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> T {
        self.grain(1).parallel_reduce(range, identity, fold, combine)
    }

    /// Calls `part` with the parts that the range is divided into, except empty ones. Combines the results of
    /// neighbours, in order; `None` if the range is empty. It is for loops that have a better way through a
    /// part than number after number.
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_for`].
    pub fn parallel_reduce_parts<T: Send>(
        &self,
        range: Range<usize>,
        part: impl Fn(Range<usize>) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Option<T> {
        self.grain(1).parallel_reduce_parts(range, part, combine)
    }

    /// Does as [`NodePool::parallel_for`] until a call breaks off, and returns the value of one that did. No
    /// part begins after that, and those that have begun end within 64 numbers.
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_for`].
    pub fn try_parallel_for<B: Send>(
        &self,
        range: Range<usize>,
        f: impl Fn(usize) -> ControlFlow<B> + Sync,
    ) -> ControlFlow<B> {
        self.grain(1).try_parallel_for(range, f)
    }
}

impl Loops<'_> {
    /// As [`NodePool::parallel_for`].
    pub fn parallel_for(&self, range: Range<usize>, f: impl Fn(usize) + Sync) {
        let leaf = |_, part: Range<usize>| part.for_each(&f);
        self.run(range, leaf, |(), ()| ());
    }

    /// As [`NodePool::parallel_for_each`].
    pub fn parallel_for_each<T: Send>(&self, elements: &mut [T], f: impl Fn(usize, &mut T) + Sync) {
        let leaf = |_, (first, part): (usize, &mut [T])| {
            part.iter_mut().enumerate().for_each(|(index, element)| f(first + index, element));
        };
        self.run((0, elements), leaf, |(), ()| ());
    }

    /// As [`NodePool::parallel_reduce`].
    pub fn parallel_reduce<T: Send>(
        &self,
        range: Range<usize>,
        identity: impl Fn() -> T + Sync,
        fold: impl Fn(T, usize) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> T {
        let leaf = |before: Option<T>, part: Range<usize>| part.fold(before.unwrap_or_else(&identity), &fold);
        self.run(range, leaf, combine)
    }

    /// As [`NodePool::parallel_reduce_parts`].
    pub fn parallel_reduce_parts<T: Send>(
        &self,
        range: Range<usize>,
        part: impl Fn(Range<usize>) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Option<T> {
        let combine = |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(combine(a, b)),
            (a, b) => a.or(b),
        };
        let leaf = |before: Option<Option<T>>, range: Range<usize>| {
            combine(before.flatten(), (!range.is_empty()).then(|| part(range)))
        };
        self.run(range, leaf, combine)
    }

    /// As [`NodePool::try_parallel_for`].
    pub fn try_parallel_for<B: Send>(
        &self,
        range: Range<usize>,
        f: impl Fn(usize) -> ControlFlow<B> + Sync,
    ) -> ControlFlow<B> {
        const LOOK: usize = 64;
        let stop = AtomicBool::new(false);
        let leaf = |before: Option<ControlFlow<B>>, part: Range<usize>| {
            if before.as_ref().is_some_and(ControlFlow::is_break) {
                return before.unwrap_or(ControlFlow::Continue(()));
            }
            for from in part.clone().step_by(LOOK) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let broken = (from..part.end.min(from.saturating_add(LOOK))).try_for_each(&f);
                if broken.is_break() {
                    stop.store(true, Ordering::Relaxed);
                    return broken;
                }
            }
            ControlFlow::Continue(())
        };
        let combine = |a: ControlFlow<B>, b: ControlFlow<B>| if a.is_break() { a } else { b };
        self.run(range, leaf, combine)
    }

    fn run<W: Divide, R: Send>(
        self,
        whole: W,
        leaf: impl Fn(Option<R>, W) -> R + Sync,
        combine: impl Fn(R, R) -> R + Sync,
    ) -> R {
        Plan { grain: self.grain, leaf, combine }.run(self.pool, whole)
    }
}
