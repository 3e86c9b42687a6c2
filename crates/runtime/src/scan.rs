//! Running sums, of whatever can be summed.

use crate::pool::NodePool;
use crate::sync::{Mutex, lock};
use crate::worker::Worker;

/// An array of fewer elements is one worker's.
const ALONE: usize = 4096;

impl NodePool {
    /// Replaces each element with the sum of the elements up to it, itself included. `sum` has to be
    /// associative, but need not be commutative.
    ///
    /// ```
    /// let pool = nodewise_runtime::NodePool::new()?;
    /// let mut numbers = [1, 2, 3, 4];
    /// pool.parallel_inclusive_scan(&mut numbers, |a, b| a + b);
    /// assert_eq!(numbers, [1, 3, 6, 10]);
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If `sum` does; which elements are sums then is open.
    pub fn parallel_inclusive_scan<T: Clone + Send + Sync>(
        &self,
        elements: &mut [T],
        sum: impl Fn(&T, &T) -> T + Sync,
    ) {
        self.scan(elements, None, &sum, |before, elements| {
            let (mut all, rest) = match (before, elements) {
                (Some(before), elements) => (before, elements),
                (None, [first, rest @ ..]) => (first.clone(), rest),
                (None, []) => return None,
            };
            for element in rest {
                all = sum(&all, element);
                element.clone_from(&all);
            }
            Some(all)
        });
    }

    /// Replaces each element with the sum of `first` and the elements before it, and returns the sum of all.
    ///
    /// ```
    /// let pool = nodewise_runtime::NodePool::new()?;
    /// let mut counts = [3, 1, 2];
    /// assert_eq!(pool.parallel_exclusive_scan(&mut counts, 0, |a, b| a + b), 6);
    /// assert_eq!(counts, [0, 3, 4]);
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`NodePool::parallel_inclusive_scan`].
    pub fn parallel_exclusive_scan<T: Clone + Send + Sync>(
        &self,
        elements: &mut [T],
        first: T,
        sum: impl Fn(&T, &T) -> T + Sync,
    ) -> T {
        let of_all = self.scan(elements, Some(first), &sum, |before, elements| {
            let mut all = before?;
            for element in elements {
                let next = sum(&all, element);
                *element = std::mem::replace(&mut all, next);
            }
            Some(all)
        });
        of_all.expect("there is a first")
    }

    /// Has `scan` go through each part with the sum of all before it. `scan` returns the sum with the part,
    /// and this returns that of the last. The first part needs nothing but `first`, so that it is gone
    /// through while others sum up theirs. With one part more than there are workers, nobody waits.
    fn scan<T: Clone + Send + Sync>(
        &self,
        elements: &mut [T],
        first: Option<T>,
        sum: &(impl Fn(&T, &T) -> T + Sync),
        scan: impl Fn(Option<T>, &mut [T]) -> Option<T> + Sync,
    ) -> Option<T> {
        let workers = self.workers();
        if workers == 1 || elements.len() < ALONE {
            return scan(first, elements);
        }
        self.in_worker(|worker| {
            let parts = elements.chunks_mut(elements.len().div_ceil(workers + 1));
            let part = |elements| Part { elements, sum: None, is_scanned: false };
            let mut parts: Vec<Part<'_, T>> = parts.map(part).collect();
            // The last part's sum is nobody's.
            let last = parts.len() - 1;
            Scan { sum, scan: &scan }.begin(worker, &mut parts[..last], first);
            let left = parts.iter().position(|part| !part.is_scanned).unwrap_or(last);
            let mut before = parts[left - 1].sum.take();
            for part in &mut parts[left..] {
                let with_part = match (&before, &part.sum) {
                    (Some(before), Some(of_part)) => Some(sum(before, of_part)),
                    _ => None,
                };
                part.sum = std::mem::replace(&mut before, with_part);
            }
            self.parallel_for_each(&mut parts[left..], |_, part| {
                part.sum = scan(part.sum.take(), part.elements);
            });
            parts.pop()?.sum
        })
    }
}

struct Scan<'a, S, G> {
    sum: &'a S,
    scan: &'a G,
}

impl<S, G> Scan<'_, S, G> {
    /// Goes through the parts from the first on, with the sum of all before them. Workers that come for later
    /// parts meanwhile sum these up. If none comes in time, this is all that one thread would do.
    fn begin<T: Clone + Send + Sync>(&self, worker: &Worker, parts: &mut [Part<'_, T>], before: Option<T>)
    where
        S: Fn(&T, &T) -> T + Sync,
        G: Fn(Option<T>, &mut [T]) -> Option<T> + Sync,
    {
        if let [part] = parts {
            part.sum = (self.scan)(before, part.elements);
            part.is_scanned = true;
            return;
        }
        let (first, rest) = parts.split_at_mut(parts.len().div_ceil(2));
        let before_rest = Mutex::new(None);
        worker.join(
            |worker| {
                self.begin(worker, first, before);
                let last = first.last().filter(|part| part.is_scanned);
                *lock(&before_rest) = last.and_then(|part| part.sum.clone());
            },
            |worker, _| {
                let before = lock(&before_rest).take();
                match before {
                    Some(before) => self.begin(worker, rest, Some(before)),
                    None => self.sum_up(worker, rest),
                }
            },
        );
    }

    fn sum_up<T: Clone + Send + Sync>(&self, worker: &Worker, parts: &mut [Part<'_, T>])
    where
        S: Fn(&T, &T) -> T + Sync,
        G: Sync,
    {
        if let [part] = parts {
            part.sum = part.sum_up(self.sum);
            return;
        }
        let (first, rest) = parts.split_at_mut(parts.len() / 2);
        worker.join(|worker| self.sum_up(worker, first), |worker, _| self.sum_up(worker, rest));
    }
}

struct Part<'a, T> {
    elements: &'a mut [T],
    /// The sum of its elements, then of all before it, and in the end of both. A part that was gone through
    /// in its turn has the sum of both at once.
    sum: Option<T>,
    is_scanned: bool,
}

impl<T: Clone> Part<'_, T> {
    fn sum_up(&self, sum: &impl Fn(&T, &T) -> T) -> Option<T> {
        let (first, rest) = self.elements.split_first()?;
        Some(rest.iter().fold(first.clone(), |all, element| sum(&all, element)))
    }
}
