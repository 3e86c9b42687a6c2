//! Running sums, of whatever can be summed.

use crate::pool::NodePool;

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

    /// Has `scan` go through each part with the sum of all before it, to return the sum with the part, and
    /// returns that of the last. The first part needs nothing but `first`, so that it is gone through
    /// while others sum up theirs; with one part more than there are workers, nobody waits.
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
        self.in_worker(|_| {
            let parts = elements.chunks_mut(elements.len().div_ceil(workers + 1));
            let mut parts: Vec<Part<'_, T>> = parts.map(|elements| Part { elements, sum: None }).collect();
            // The last part's sum is nobody's.
            let last = parts.len() - 1;
            self.parallel_for_each(&mut parts[..last], |index, part| {
                part.sum = if index == 0 { scan(first.clone(), part.elements) } else { part.sum_up(sum) };
            });
            let mut before = None;
            for part in &mut parts {
                let with_part = match (&before, &part.sum) {
                    (Some(before), Some(of_part)) => Some(sum(before, of_part)),
                    _ => part.sum.take(),
                };
                part.sum = std::mem::replace(&mut before, with_part);
            }
            self.parallel_for_each(&mut parts[1..], |_, part| {
                part.sum = scan(part.sum.take(), part.elements);
            });
            parts.pop()?.sum
        })
    }
}

struct Part<'a, T> {
    elements: &'a mut [T],
    /// The sum of its elements, then of all before it, and in the end of both.
    sum: Option<T>,
}

impl<T: Clone> Part<'_, T> {
    fn sum_up(&self, sum: &impl Fn(&T, &T) -> T) -> Option<T> {
        let (first, rest) = self.elements.split_first()?;
        Some(rest.iter().fold(first.clone(), |all, element| sum(&all, element)))
    }
}
