//! Waiting until all that was submitted is done.

use crate::location::{current_node, machine};
use crate::sync::atomic::Ordering;
use crate::sync::{Futex, Mutex, lock};
use crate::tally::{Alarms, Tally, count_done};
use std::fmt;
use std::time::{Duration, Instant};

/// A count of tasks that were submitted and are not yet done, for a thread to wait until none is left.
/// Pikus's talk calls it `NUMA_task_count`.
///
/// Each node counts in cache lines of its own what it submits and what it has done, so that the end of a task
/// moves no line between nodes. The waiter sleeps (futex), and no task's end looks at other nodes' counts to
/// know whether to wake it; for `r` tasks on `n` nodes it is woken about `n ln r` times, on one node once.
///
/// Any number of threads may submit, do and wait. A task must be submitted before it is done. A waiter that
/// returns because of a [`TaskCounter::done`] sees what that thread wrote before. It may free the counter
/// then, though that call has not returned yet. Nothing allocates after [`TaskCounter::new`].
///
/// ```
/// let tasks = nodewise_runtime::TaskCounter::new();
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         tasks.submit(1);
///         scope.spawn(|| tasks.done(1));
///     }
///     tasks.wait();
/// });
/// assert_eq!(tasks.count(), 0);
/// ```
pub struct TaskCounter {
    tally: Tally,
    waiters: Mutex<Waiters>,
    bell: Futex,
}

/// The caller's place in counters made by [`TaskCounter::new`].
fn here() -> usize {
    current_node().0 as usize & (machine().nodes - 1)
}

struct Waiters {
    alarms: Alarms,
    sleeping: usize,
    /// How often waiters have rung the bell.
    rung: u32,
}

impl TaskCounter {
    /// A counter without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::with_nodes(machine().nodes)
    }

    /// For nodes with numbers below `nodes`, a power of two.
    pub(crate) fn with_nodes(nodes: usize) -> Self {
        let (tally, alarms) = Tally::new(nodes);
        Self { tally, waiters: Mutex::new(Waiters { alarms, sleeping: 0, rung: 0 }), bell: Futex::default() }
    }

    /// Counts tasks that are to be done: fewer than 2^63 in all the counter's life.
    ///
    /// # Panics
    ///
    /// If they are more, without counting these; where they are more on all nodes together only, waiters do.
    pub fn submit(&self, tasks: u64) {
        self.tally.try_submit(here(), tasks).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    /// Counts tasks that are done.
    ///
    /// Where more are done than were submitted, waiters panic.
    pub fn done(&self, tasks: u64) {
        self.done_on(here(), tasks);
    }

    pub(crate) fn submit_on(&self, node: usize, tasks: u64) {
        self.tally.submit(node, tasks);
    }

    /// Says whether an alarm has rung.
    pub(crate) fn done_on(&self, node: usize, tasks: u64) -> bool {
        let rings = count_done(self.tally.done_word(node), tasks);
        if rings {
            self.bell.ring();
        }
        rings
    }

    /// The number of tasks that are left. It is exact while nobody submits or does any. Else it is a number
    /// that there was, or would have been, had some been done a little later. 0 only if it was 0 at one
    /// moment during the call.
    ///
    /// # Panics
    ///
    /// If more were done than submitted.
    #[must_use]
    pub fn count(&self) -> u64 {
        let mut waiters = lock(&self.waiters);
        let left = self.tally.left(&waiters.alarms);
        if left == 0 {
            // A caller that asks until there is none waits, too.
            self.over(&mut waiters);
        }
        left
    }

    /// Sleeps until all is done. Returns at once where nothing is left; where tasks are submitted all the
    /// time, a moment at which all was done may pass unseen.
    ///
    /// # Panics
    ///
    /// If more were done than submitted.
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`TaskCounter::wait`] for at most that long; says whether all was done.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, end: Option<Instant>) -> bool {
        loop {
            // An alarm that is set from here on and rings changes the number.
            let silent = self.bell.get(Ordering::Acquire);
            let mut waiters = lock(&self.waiters);
            if self.over(&mut waiters) {
                return true;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            waiters.sleeping += 1;
            drop(waiters);
            self.bell.wait(silent, left);
            lock(&self.waiters).sleeping -= 1;
        }
    }
}

impl TaskCounter {
    /// Whether all is done; if so, nobody who did a task touches the counter any more.
    fn over(&self, waiters: &mut Waiters) -> bool {
        if !self.tally.over(&mut waiters.alarms) {
            return false;
        }
        // Others sleep because of alarms that were just taken away.
        if waiters.sleeping > 0 {
            waiters.rung = waiters.rung.wrapping_add(1);
            self.bell.ring();
        }
        // The thread that took the last alarm may still have to ring the bell. That is its last access to
        // this counter, so wait for it before returning.
        let due = waiters.alarms.rung.wrapping_add(waiters.rung);
        loop {
            let rung = self.bell.get(Ordering::Acquire);
            if rung == due {
                return true;
            }
            self.bell.wait(rung, None);
        }
    }
}

impl Default for TaskCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TaskCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple("TaskCounter");
        match self.tally.try_left(&lock(&self.waiters).alarms) {
            Ok(count) => tuple.field(&count),
            Err(wrong) => tuple.field(&wrong),
        };
        tuple.finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_to_wait_for() {
        let tasks = TaskCounter::new();
        tasks.wait();
        tasks.submit(2);
        assert!(!tasks.wait_timeout(Duration::ZERO));
        assert!(!tasks.wait_timeout(Duration::from_millis(1)));
        assert_eq!(tasks.count(), 2);
        tasks.done(2);
        tasks.wait();
    }

    #[test]
    #[should_panic = "more tasks were done than were submitted"]
    fn too_many_done_is_a_bug_that_the_waiter_tells() {
        let tasks = TaskCounter::new();
        tasks.done(1);
        tasks.wait();
    }

    #[test]
    fn everybody_is_told_of_too_many_done() {
        let tasks = TaskCounter::new();
        tasks.done(1);
        for _ in 0..2 {
            let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tasks.wait()));
            let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tasks.count()));
            assert!(waited.is_err() && counted.is_err());
        }
        tasks.submit(1);
        tasks.wait();
    }

    #[test]
    fn more_than_it_can_count_is_refused_and_not_counted() {
        let tasks = TaskCounter::new();
        tasks.submit((1 << 63) - 1);
        assert!(!tasks.wait_timeout(Duration::ZERO));
        for more in [1, 1 << 63, u64::MAX] {
            let submitted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tasks.submit(more)));
            assert!(submitted.is_err());
        }
        assert_eq!(tasks.count(), (1 << 63) - 1);
        tasks.done((1 << 63) - 1);
        tasks.wait();
    }

    #[test]
    fn too_many_on_all_nodes_together_are_told_to_waiters() {
        let tasks = TaskCounter::with_nodes(4);
        (0..4).for_each(|node| tasks.submit_on(node, 1 << 62));
        for _ in 0..2 {
            let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tasks.wait()));
            assert_eq!(
                waited.unwrap_err().downcast_ref::<String>().unwrap(),
                "2^63 tasks or more were submitted"
            );
        }
    }

    #[test]
    fn what_is_wrong_can_be_printed() {
        let tasks = TaskCounter::new();
        tasks.submit(3);
        assert_eq!(format!("{tasks:?}"), "TaskCounter(3)");
        tasks.done(u64::MAX);
        assert_eq!(format!("{tasks:?}"), r#"TaskCounter("more tasks were done than were submitted")"#);
    }

    #[test]
    fn waits_again_and_again() {
        let tasks = TaskCounter::with_nodes(4);
        for round in 0..200 {
            std::thread::scope(|scope| {
                tasks.submit_on(round % 4, 8);
                for node in 0..4 {
                    let tasks = &tasks;
                    scope.spawn(move || {
                        tasks.done_on(node, 1);
                        tasks.done_on((node + round) % 4, 1);
                    });
                }
                scope.spawn(|| tasks.wait());
                tasks.wait();
                assert_eq!(tasks.count(), 0);
            });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn waiters_return_after_the_last_task(
            nodes in proptest::collection::vec(0..4_usize, 1..6),
            tasks in 1..200_u64,
        ) {
            let counter = TaskCounter::with_nodes(4);
            let done = std::sync::atomic::AtomicU64::new(0);
            let all = tasks * nodes.len() as u64;
            counter.submit_on(0, all);
            std::thread::scope(|scope| {
                for &node in &nodes {
                    let (counter, done) = (&counter, &done);
                    scope.spawn(move || for _ in 0..tasks {
                        done.fetch_add(1, Ordering::Relaxed);
                        counter.done_on(node, 1);
                    });
                }
                for _ in 0..2 {
                    scope.spawn(|| {
                        counter.wait();
                        assert_eq!(done.load(Ordering::Relaxed), all);
                    });
                }
            });
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn does(tasks: &Arc<TaskCounter>, node: usize, times: usize) -> thread::JoinHandle<()> {
        let tasks = tasks.clone();
        thread::spawn(move || {
            (0..times).for_each(|_| {
                tasks.done_on(node, 1);
            })
        })
    }

    /// All orders in which no more than that many threads are cut off while they could go on.
    fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    /// Else who has done the last task might ring the bell of a counter that was freed.
    #[test]
    fn when_all_is_done_the_bell_has_been_rung() {
        bounded(2, || {
            let tasks = Arc::new(TaskCounter::with_nodes(2));
            tasks.submit_on(0, 2);
            let workers = [does(&tasks, 0, 1), does(&tasks, 1, 1)];
            tasks.wait();
            let rung = tasks.bell.get(Ordering::Relaxed);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(tasks.bell.get(Ordering::Relaxed), rung);
        });
    }

    /// A lost wake-up is a deadlock, which loom reports.
    #[test]
    fn the_waiter_is_woken_by_the_last_task_of_any_node() {
        bounded(2, || {
            let tasks = Arc::new(TaskCounter::with_nodes(2));
            tasks.submit_on(0, 2);
            let workers = [does(&tasks, 0, 1), does(&tasks, 1, 1)];
            tasks.wait();
            assert_eq!(tasks.count(), 0);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }

    #[test]
    fn both_waiters_are_woken() {
        bounded(3, || {
            let tasks = Arc::new(TaskCounter::with_nodes(1));
            tasks.submit_on(0, 1);
            let worker = does(&tasks, 0, 1);
            let other = {
                let tasks = tasks.clone();
                thread::spawn(move || tasks.wait())
            };
            tasks.wait();
            other.join().unwrap();
            worker.join().unwrap();
        });
    }

    #[test]
    fn tasks_that_submit_tasks_are_waited_for() {
        bounded(3, || {
            let tasks = Arc::new(TaskCounter::with_nodes(2));
            let seen = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            tasks.submit_on(0, 1);
            let worker = {
                let (tasks, seen) = (tasks.clone(), seen.clone());
                thread::spawn(move || {
                    tasks.submit_on(1, 1);
                    tasks.done_on(0, 1);
                    seen.store(1, Ordering::Relaxed);
                    tasks.done_on(1, 1);
                })
            };
            tasks.wait();
            assert_eq!(seen.load(Ordering::Relaxed), 1);
            worker.join().unwrap();
        });
    }
}
