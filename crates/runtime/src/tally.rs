//! How many tasks are still to be done, without a cache line that all nodes write to.
//!
//! Pikus's `NUMA_task_count`: each node counts what it has done, and what is left is the submitted minus the
//! sum of those. There the waiter looks again and again. Here it may sleep, and who does a task need not look
//! at the other nodes' counts to know whether to wake it: of `r` tasks left on `n` nodes, some node has done
//! at least `r / n` when all are done, rounded up. So the waiter sets each node an alarm that many tasks
//! ahead, sleeps, and when one rings looks how many are left now. With one node that is one wake-up; with `n`
//! each takes at least an `n`-th of what is left away.

use crate::sync::atomic::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;

/// A node's count of done tasks and its alarm are one word, so that counting is all that a task's end does,
/// and the tally may be freed right after: the alarm is set by adding so much that the count will reach this
/// bit when it is to ring.
const BELL: u64 = 1 << 63;

const MORE_DONE: &str = "more tasks were done than were submitted";
const TOO_MANY: &str = "2^63 tasks or more were submitted";

#[derive(Debug)]
pub(crate) struct Tally {
    nodes: Box<[Node]>,
    /// Submitted by the one thread that may do so without a locked instruction.
    submitted_alone: CachePadded<AtomicU64>,
}

#[derive(Debug, Default)]
struct Node {
    /// Apart from the done tasks, which other threads of the node count.
    submitted: CachePadded<AtomicU64>,
    done: CachePadded<AtomicU64>,
}

/// The sums that a waiter has added to each node's word. One for each tally: waiters take turns with it.
#[derive(Debug)]
pub(crate) struct Alarms {
    of_nodes: Box<[u64]>,
    /// How many have rung, of those that are gone: so often [`count_done`] has told somebody to wake the
    /// waiter.
    pub(crate) rung: u32,
}

impl Tally {
    pub(crate) fn new(nodes: usize) -> (Self, Alarms) {
        let tally = Self {
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            submitted_alone: CachePadded::default(),
        };
        (tally, Alarms { of_nodes: vec![0; nodes].into(), rung: 0 })
    }

    pub(crate) fn submit(&self, node: usize, tasks: u64) {
        self.nodes[node].submitted.fetch_add(tasks, Ordering::Relaxed);
    }

    /// As [`Tally::submit`], where there may be too many for a count that has an alarm: then nothing is
    /// counted. To be asked for each number of tasks that a user chooses.
    pub(crate) fn try_submit(&self, node: usize, tasks: u64) -> Result<(), &'static str> {
        let count = &self.nodes[node].submitted;
        let before = count.fetch_add(tasks, Ordering::Relaxed);
        if before.checked_add(tasks).is_none_or(|after| after >= BELL) {
            count.fetch_sub(tasks, Ordering::Relaxed);
            return Err(TOO_MANY);
        }
        Ok(())
    }

    /// As [`Tally::submit`], for one and the same thread.
    pub(crate) fn submit_alone(&self, tasks: u64) {
        let before = self.submitted_alone.load(Ordering::Relaxed);
        self.submitted_alone.store(before + tasks, Ordering::Relaxed);
    }

    /// Where a node counts what it has done; [`count_done`] does.
    pub(crate) fn done_word(&self, node: usize) -> &AtomicU64 {
        &self.nodes[node].done
    }

    /// How many are left; exact if nothing changes meanwhile, and 0 only if it was 0 at one moment.
    #[inline]
    pub(crate) fn left(&self, alarms: &Alarms) -> u64 {
        // Asked before each task. No loops, then, where there is one node.
        if let ([node], [alarm]) = (&*self.nodes, &*alarms.of_nodes) {
            let done = node.done.load(Ordering::Acquire).wrapping_sub(*alarm);
            let submitted = node.submitted.load(Ordering::Acquire);
            return (submitted + self.submitted_alone.load(Ordering::Acquire))
                .checked_sub(done)
                .expect(MORE_DONE);
        }
        self.try_left(alarms).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// The same, or what is wrong.
    pub(crate) fn try_left(&self, alarms: &Alarms) -> Result<u64, &'static str> {
        let done = self.nodes.iter().zip(&alarms.of_nodes).fold(0_u64, |done, (node, alarm)| {
            done.wrapping_add(node.done.load(Ordering::Acquire).wrapping_sub(*alarm))
        });
        self.left_of(done)
    }

    /// The done ones must have been counted before: a task is submitted before it is done, so that this is
    /// never less than what was left when the counting ended.
    fn left_of(&self, done: u64) -> Result<u64, &'static str> {
        let mut by_nodes = self.nodes.iter().map(|node| node.submitted.load(Ordering::Acquire));
        let submitted = by_nodes.try_fold(self.submitted_alone.load(Ordering::Acquire), u64::checked_add);
        let submitted = submitted.filter(|&submitted| submitted < BELL).ok_or(TOO_MANY)?;
        submitted.checked_sub(done).ok_or(MORE_DONE)
    }

    /// Sets the alarms for what is left now: true if there is nothing left and so no alarm set, else one
    /// rings from now on before all is done. The alarms before are gone.
    pub(crate) fn over(&self, alarms: &mut Alarms) -> bool {
        loop {
            let mut done = 0_u64;
            for (node, alarm) in self.nodes.iter().zip(&mut alarms.of_nodes) {
                let word = node.done.fetch_sub(*alarm, Ordering::AcqRel);
                alarms.rung = alarms.rung.wrapping_add(u32::from(word >= BELL));
                // For now the count that the new alarm starts from.
                *alarm = word.wrapping_sub(*alarm);
                done = done.wrapping_add(*alarm);
            }
            let left = self.left_of(done).unwrap_or_else(|wrong| {
                // No alarm is set now, and who asks next is told the same.
                alarms.of_nodes.fill(0);
                panic!("{wrong}");
            });
            if left == 0 {
                alarms.of_nodes.fill(0);
                return true;
            }
            let share = left.div_ceil(self.nodes.len() as u64);
            let mut late = false;
            for (node, alarm) in self.nodes.iter().zip(&mut alarms.of_nodes) {
                *alarm = BELL - share - *alarm;
                if node.done.fetch_add(*alarm, Ordering::AcqRel) + *alarm >= BELL {
                    // So much was done in between that nobody will ring any more.
                    node.done.fetch_sub(*alarm, Ordering::AcqRel);
                    *alarm = 0;
                    late = true;
                }
            }
            if !late {
                return false;
            }
        }
    }
}

/// Counts tasks as done. True: an alarm rings, and the waiter is to be woken.
#[inline]
pub(crate) fn count_done(word: &AtomicU64, tasks: u64) -> bool {
    let before = word.fetch_add(tasks, Ordering::AcqRel);
    before < BELL && before + tasks >= BELL
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn on_one_node_only_the_last_task_rings() {
        let (tally, mut alarms) = Tally::new(1);
        tally.submit(0, 1000);
        assert!(!tally.over(&mut alarms));
        let rings = (0..1000).filter(|_| count_done(tally.done_word(0), 1)).count();
        assert_eq!(rings, 1);
        assert!(tally.over(&mut alarms));
    }

    proptest! {
        #[test]
        fn the_waiter_is_woken_seldom_and_in_time(
            nodes in 1..9_usize,
            tasks in proptest::collection::vec(0..8_usize, 1..2000),
        ) {
            let (tally, mut alarms) = Tally::new(nodes);
            tally.submit(tasks[0] % nodes, tasks.len() as u64);
            prop_assert!(!tally.over(&mut alarms));
            let (mut wakes, mut over) = (0, false);
            for (done, node) in tasks.iter().enumerate() {
                prop_assert!(!over);
                prop_assert_eq!(tally.left(&alarms), (tasks.len() - done) as u64);
                if count_done(tally.done_word(node % nodes), 1) {
                    wakes += 1;
                    over = tally.over(&mut alarms);
                }
            }
            prop_assert!(over);
            // Each leaves at most (n - 1) / n of what was left, until at most n are.
            let most = nodes as f64 * ((tasks.len() as f64).ln() + 2.0);
            prop_assert!(f64::from(wakes) <= most, "{} of {}", wakes, most);
        }
    }
}
