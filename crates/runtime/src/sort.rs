//! A parallel quicksort: the workers partition what is large together, and sort what is small by themselves,
//! with std's sort.

use crate::pool::NodePool;
use crate::worker::Worker;
use std::cmp::Ordering;

/// A smaller array is one worker's.
const ALONE: usize = 4096;
/// So many parts are made for each worker, for the last to be through soon after the first.
const PARTS: usize = 8;
/// A smaller part is partitioned by one worker: others would come too late.
const PARTITIONED_ALONE: usize = 1 << 15;
/// Places in a block are bytes.
const BLOCK: usize = 128;

impl NodePool {
    /// Sorts, without keeping the order of equal elements, as `[T]::sort_unstable`.
    ///
    /// ```
    /// let pool = nodewise_runtime::NodePool::new()?;
    /// let mut numbers: Vec<u32> = (0..100_000).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
    /// pool.parallel_sort_unstable(&mut numbers);
    /// assert!(numbers.is_sorted());
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If a comparison does; the elements then are all there, in some order.
    pub fn parallel_sort_unstable<T: Ord + Send + Sync>(&self, elements: &mut [T]) {
        self.sort(elements, &Order { compare: T::cmp, less: T::lt });
    }

    /// Sorts as [`NodePool::parallel_sort_unstable`] does, in the order that `compare` gives.
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_sort_unstable`].
    pub fn parallel_sort_unstable_by<T: Send + Sync>(
        &self,
        elements: &mut [T],
        compare: impl Fn(&T, &T) -> Ordering + Sync,
    ) {
        let less = |a: &T, b: &T| compare(a, b) == Ordering::Less;
        self.sort(elements, &Order { compare: &compare, less });
    }

    /// Sorts as [`NodePool::parallel_sort_unstable`] does, by a key that is made anew for each comparison.
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_sort_unstable`].
    pub fn parallel_sort_unstable_by_key<T: Send + Sync, K: Ord>(
        &self,
        elements: &mut [T],
        key: impl Fn(&T) -> K + Sync,
    ) {
        self.parallel_sort_unstable_by(elements, |a, b| key(a).cmp(&key(b)));
    }

    fn sort<T, C, L>(&self, elements: &mut [T], order: &Order<C, L>)
    where
        T: Send + Sync,
        C: Fn(&T, &T) -> Ordering + Sync,
        L: Fn(&T, &T) -> bool + Sync,
    {
        if elements.is_sorted_by(|a, b| !(order.less)(b, a)) {
            return;
        }
        if elements.is_sorted_by(|a, b| (order.less)(b, a)) {
            return elements.reverse();
        }
        let alone = (elements.len() / (self.workers() * PARTS)).max(ALONE);
        if elements.len() <= alone {
            return elements.sort_unstable_by(&order.compare);
        }
        // Twice the halvings that even parts take.
        let halvings = 2 * elements.len().ilog2();
        self.in_worker(|worker| order.sort(worker, elements, self.workers(), Limits { alone, halvings }));
    }
}

/// An order, also as a question with two answers, which compilers know better what to do with.
struct Order<C, L> {
    compare: C,
    less: L,
}

#[derive(Clone, Copy)]
struct Limits {
    alone: usize,
    /// After so many, std's sort takes over, which no order of the elements makes slow.
    halvings: u32,
}

impl<C, L> Order<C, L> {
    /// Sorts with the help of as many workers as there are for these elements.
    fn sort<T>(&self, worker: &Worker, elements: &mut [T], workers: usize, limits: Limits)
    where
        T: Send + Sync,
        C: Fn(&T, &T) -> Ordering + Sync,
        L: Fn(&T, &T) -> bool + Sync,
    {
        if elements.len() <= limits.alone || limits.halvings == 0 {
            return elements.sort_unstable_by(&self.compare);
        }
        self.pivot_to_front(elements);
        let (pivot, rest) = elements.split_first_mut().expect("there are many");
        let middle = partition(worker, rest, &|element| (self.less)(element, pivot), workers);
        // Where few are smaller many may be equal.
        let equal = if middle < rest.len() / 8 {
            partition(worker, &mut rest[middle..], &|element| !(self.less)(pivot, element), workers)
        } else {
            0
        };
        elements.swap(0, middle);
        let (smaller, others) = elements.split_at_mut(middle);
        let larger = &mut others[1 + equal..];
        let limits = Limits { halvings: limits.halvings - 1, ..limits };
        let of_larger = (workers * larger.len() / (smaller.len() + larger.len()).max(1)).max(1);
        let of_smaller = workers.saturating_sub(of_larger).max(1);
        worker.join(
            |worker| self.sort(worker, smaller, of_smaller, limits),
            |worker, _| self.sort(worker, larger, of_larger, limits),
        );
    }

    /// The median of a sample.
    fn pivot_to_front<T>(&self, elements: &mut [T])
    where
        C: Fn(&T, &T) -> Ordering,
    {
        const SAMPLE: usize = 63;
        let step = elements.len() / SAMPLE;
        for place in 0..SAMPLE {
            elements.swap(place, place * step + step / 2);
        }
        elements[..SAMPLE].sort_unstable_by(&self.compare);
        elements.swap(0, SAMPLE / 2);
    }
}

/// Has those elements first that are `left`, and returns how many they are: each of the workers does a part,
/// and then what is on the wrong side of two neighbouring parts changes places.
fn partition<T: Send>(
    worker: &Worker,
    elements: &mut [T],
    left: &(impl Fn(&T) -> bool + Sync),
    workers: usize,
) -> usize {
    if workers < 2 || elements.len() < PARTITIONED_ALONE {
        return partition_alone(elements, left);
    }
    let half = elements.len() / 2;
    let (first, second) = elements.split_at_mut(half);
    let (of_first, of_second) = worker.join(
        |worker| partition(worker, first, left, workers.div_ceil(2)),
        |worker, _| partition(worker, second, left, workers / 2),
    );
    let (_, wrong) = first.split_at_mut(of_first);
    let change = wrong.len().min(of_second);
    wrong[..change].swap_with_slice(&mut second[of_second - change..of_second]);
    of_first + of_second
}

/// As Edelkamp and Weiss do ('Block Quicksort', 2016). Which elements of a block are on the wrong side is
/// noted first, without a branch for each; then they change places with those of a block from the other end.
fn partition_alone<T>(elements: &mut [T], left: &impl Fn(&T) -> bool) -> usize {
    let (mut begin, mut end) = (0, elements.len());
    let (mut from_begin, mut from_end) = (Wrong::new(), Wrong::new());
    while end - begin > 2 * BLOCK {
        if from_begin.is_empty() {
            from_begin.note(elements[begin..begin + BLOCK].iter(), |element| !left(element));
        }
        if from_end.is_empty() {
            from_end.note(elements[end - BLOCK..end].iter().rev(), left);
        }
        let change = from_begin.left().min(from_end.left());
        for (first, last) in from_begin.take(change).iter().zip(from_end.take(change)) {
            elements.swap(begin + usize::from(*first), end - 1 - usize::from(*last));
        }
        if from_begin.is_empty() {
            begin += BLOCK;
        }
        if from_end.is_empty() {
            end -= BLOCK;
        }
    }
    let mut middle = begin;
    for place in begin..end {
        let is_left = left(&elements[place]);
        elements.swap(middle, place);
        middle += usize::from(is_left);
    }
    middle
}

/// Which elements of a block are on the wrong side, by their places from the block's outer end.
struct Wrong {
    places: [u8; BLOCK],
    next: usize,
    end: usize,
}

impl Wrong {
    fn new() -> Self {
        Self { places: [0; BLOCK], next: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.next == self.end
    }

    fn left(&self) -> usize {
        self.end - self.next
    }

    fn note<'a, T: 'a>(&mut self, block: impl Iterator<Item = &'a T>, wrong: impl Fn(&T) -> bool) {
        (self.next, self.end) = (0, 0);
        for (place, element) in block.enumerate() {
            self.places[self.end % BLOCK] = place as u8;
            self.end += usize::from(wrong(element));
        }
    }

    fn take(&mut self, number: usize) -> &[u8] {
        self.next += number;
        &self.places[self.next - number..self.next]
    }
}
