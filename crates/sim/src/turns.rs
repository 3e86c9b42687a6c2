//! Whose turn it is: threads in the order of the times at which they go on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Threads that run, the one that is most behind first (of several the first).
///
/// A thread's clock may move at any time, and only forward. The order learns of it when the thread's turn
/// comes.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    heap: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Turns {
    /// A thread runs from now on.
    pub fn begin(&mut self, thread: usize, clock_ps: u64) {
        self.heap.push(Reverse((clock_ps, thread)));
    }

    /// The thread whose turn it is runs no more.
    pub fn end(&mut self) {
        self.heap.pop();
    }

    /// The thread whose turn it is, its clock, and a time up to which no other goes on: at least its clock.
    #[inline]
    pub fn next(&mut self, clock: impl Fn(usize) -> u64) -> Option<(usize, u64, u64)> {
        let (thread, now_ps) = loop {
            let mut first = self.heap.peek_mut()?;
            let Reverse((known_ps, thread)) = *first;
            let now_ps = clock(thread);
            if now_ps == known_ps {
                break (thread, now_ps);
            }
            *first = Reverse((now_ps, thread));
            // It may not be the first any more.
            drop::<PeekMut<'_, _>>(first);
        };
        let others = self.heap.as_slice()[1..].iter().take(2);
        let other_ps = others.map(|other| other.0.0).min().unwrap_or(u64::MAX);
        Some((thread, now_ps, other_ps))
    }

    /// The threads that run, by number.
    pub fn running(&self) -> Vec<usize> {
        let mut running: Vec<usize> = self.heap.iter().map(|entry| entry.0.1).collect();
        running.sort_unstable();
        running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_most_behind_is_next_though_clocks_move_meanwhile() {
        let mut clocks = [5, 3, 3, 9];
        let mut turns = Turns::default();
        (0..4).for_each(|thread| turns.begin(thread, clocks[thread]));
        assert_eq!(turns.next(|thread| clocks[thread]), Some((1, 3, 3)));
        clocks[1] = 20;
        clocks[2] = 6;
        assert_eq!(turns.next(|thread| clocks[thread]), Some((0, 5, 6)));
        turns.end();
        assert_eq!(turns.next(|thread| clocks[thread]), Some((2, 6, 9)));
        assert_eq!(turns.running(), [1, 2, 3]);
        (0..3).for_each(|_| turns.end());
        assert_eq!(turns.next(|thread| clocks[thread]), None);
    }
}
