//! Recorded histories of a value that counts its updates, and whether they are linearizable.

use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Instant;

/// How many updates the value has had, and which was the last.
pub(crate) type Counted = (u64, u64);

/// An operation of a thread: when it began and ended, the update if it was one, and the value that it left or
/// found.
#[derive(Clone, Copy, Debug)]
struct Operation {
    began: Instant,
    ended: Instant,
    update: Option<u64>,
    value: Counted,
}

/// Has `threads` threads do `each` operations side by side, every fourth an update: which is told the thread
/// and the update's name, and returns how many there have been with it. A read is told the thread and returns
/// the value. Panics if that is not linearizable.
///
/// Times are clocks' and not numbers from a common counter, by which threads would wait for each other's
/// stores.
pub(crate) fn check(
    threads: u64,
    each: u64,
    update: impl Fn(usize, u64) -> u64 + Sync,
    read: impl Fn(usize) -> Counted + Sync,
) {
    let together = Barrier::new(threads as usize);
    let record = |thread: u64| {
        together.wait();
        let operate = |number| {
            if number % 5 == 0 {
                // On a busy machine each thread's part would be over before another's begins.
                std::thread::yield_now();
            }
            let name = thread * each + number;
            let began = Instant::now();
            let (update, value) = if number % 4 == 0 {
                (Some(name), (update(thread as usize, name), name))
            } else {
                (None, read(thread as usize))
            };
            Operation { began, ended: Instant::now(), update, value }
        };
        (1..=each).map(operate).collect::<Vec<_>>()
    };
    let history = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || record(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fault(history), None);
}

/// The fault of a history; none if it is linearizable.
///
/// Values name their place in the order of updates. So there is one order that an atomic value could have
/// had, reads after the update that they saw, and what is left to ask is whether time agrees: whoever began
/// after another's end comes later in it.
fn fault(mut history: Vec<Operation>) -> Option<String> {
    let updates = history.iter().filter(|operation| operation.update.is_some());
    let mut names: HashMap<u64, u64> = updates.clone().map(|update| update.value).collect();
    let count = updates.count() as u64;
    if !(1..=count).all(|place| names.contains_key(&place)) {
        return Some(format!("{count} updates have {} places", names.len()));
    }
    names.insert(0, 0);
    let torn = history.iter().find(|operation| names.get(&operation.value.0) != Some(&operation.value.1));
    if let Some(torn) = torn {
        return Some(format!("there never was this value: {torn:?}"));
    }
    let mut ended = history.clone();
    ended.sort_unstable_by_key(|operation| operation.ended);
    history.sort_unstable_by_key(|operation| operation.began);
    let mut ended = ended.into_iter().peekable();
    let mut latest: Option<Operation> = None;
    for operation in history {
        while let Some(before) = ended.next_if(|before| before.ended < operation.began) {
            latest = latest.filter(|latest| latest.value.0 >= before.value.0).or(Some(before));
        }
        let earliest = operation.value.0 - u64::from(operation.update.is_some());
        if let Some(before) = latest.filter(|before| before.value.0 > earliest) {
            return Some(format!("{before:?} had ended before {operation:?} began"));
        }
    }
    None
}

mod tests {
    use super::*;
    use std::time::Duration;

    /// Whether a history of `(began, ended, update, place, name)` is linearizable.
    fn is_linearizable(operations: &[(u64, u64, bool, u64, u64)]) -> bool {
        let start = Instant::now();
        let at = |ns| start + Duration::from_nanos(ns);
        let operation = |&(began, ended, updates, place, name): &_| Operation {
            began: at(began),
            ended: at(ended),
            update: Some(name).filter(|_| updates),
            value: (place, name),
        };
        fault(operations.iter().map(operation).collect()).is_none()
    }

    #[test]
    fn histories_that_no_atomic_value_has_are_told_from_others() {
        // Side by side, all may come in any order.
        assert!(is_linearizable(&[
            (1, 9, true, 2, 7),
            (2, 9, true, 1, 8),
            (3, 9, false, 0, 0),
            (3, 9, false, 2, 7)
        ]));
        assert!(is_linearizable(&[
            (1, 2, true, 1, 7),
            (3, 4, false, 1, 7),
            (5, 6, true, 2, 8),
            (7, 8, false, 2, 8)
        ]));
        // A read after an update's end, of the value before it.
        assert!(!is_linearizable(&[(1, 2, true, 1, 7), (3, 4, false, 0, 0)]));
        // The read's value is that of an update that begins later.
        assert!(!is_linearizable(&[(1, 2, false, 1, 7), (3, 4, true, 1, 7)]));
        // Two reads during an update, the second of which finds less.
        assert!(!is_linearizable(&[(1, 9, true, 1, 7), (2, 3, false, 1, 7), (4, 5, false, 0, 0)]));
        // Updates against time; a place given twice; a value of halves of two; of an update that nobody made.
        assert!(!is_linearizable(&[(1, 2, true, 2, 7), (3, 4, true, 1, 8)]));
        assert!(!is_linearizable(&[(1, 2, true, 1, 7), (1, 2, true, 1, 8)]));
        assert!(!is_linearizable(&[(1, 9, true, 1, 7), (1, 9, true, 2, 8), (1, 9, false, 1, 8)]));
        assert!(!is_linearizable(&[(1, 2, false, 1, 7)]));
    }
}
