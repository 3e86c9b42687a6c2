//! Which threads version 27 of the `AutoNUMA` patch exchanges (linux-mm, 4 October 2012, patch 10 of 33,
//! `kernel/sched/numa.c`), for one process whose threads have a CPU each.
//!
//! A CPU looks now and then whether its thread would have more of its faults at home on the CPU of a thread
//! of another node, and has more of them there than that thread has. If so the two change places; of several,
//! those for whom both differences are largest in sum. The process's own statistics, by which the
//! patch compares threads of different processes, have no part in that. CPUs that run nothing are left to the
//! scheduler, as the patch does.

/// Weights are parts of this (`AUTONUMA_BALANCE_SCALE`).
const SCALE: u64 = 1000;

/// The kernel's record of threads (`task_autonuma`).
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// Each thread's faulted pages, by the node they were on then; halved at its first fault after a scan
    /// began.
    faults: Vec<Vec<u64>>,
    /// The last scan that each faulted after.
    pass: Vec<u64>,
}

impl Exchange {
    pub(crate) fn new(threads: usize, nodes: usize) -> Self {
        Self { faults: vec![vec![0; nodes]; threads], pass: vec![0; threads] }
    }

    /// A thread faulted on a page that is on a node now (`numa_hinting_fault_cpu_follow_memory`).
    pub(crate) fn note(&mut self, thread: usize, home: usize, pass: u64) {
        if self.pass[thread] != pass {
            self.pass[thread] = pass;
            self.faults[thread].iter_mut().for_each(|faults| *faults /= 2);
        }
        self.faults[thread][home] += 1;
    }

    /// The thread that one changes places with, of those that run; `threads` are CPUs and nodes of all
    /// (`__sched_autonuma_balance`).
    pub(crate) fn partner(
        &self,
        thread: usize,
        threads: &[(usize, usize)],
        running: &[usize],
    ) -> Option<usize> {
        let here = threads[thread].1;
        let mut best = (0, None);
        for &other in running.iter().filter(|&&other| threads[other].1 != here) {
            let there = threads[other].1;
            let (own, own_here) = (self.weight(thread, there)?, self.weight(thread, here)?);
            let Some(its) = self.weight(other, there) else { continue };
            if own > its && own > own_here && own - its + own - own_here > best.0 {
                best = (own - its + own - own_here, Some(other));
            }
        }
        best.1
    }

    /// The part of a thread's faults that were on a node; none without faults.
    fn weight(&self, thread: usize, node: usize) -> Option<u64> {
        let total: u64 = self.faults[thread].iter().sum();
        (self.faults[thread][node] * SCALE).checked_div(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: [(usize, usize); 3] = [(0, 0), (1, 1), (2, 2)];

    fn noted(faults: &[(usize, usize, u64)]) -> Exchange {
        let mut exchange = Exchange::new(3, 3);
        for &(thread, home, count) in faults {
            (0..count).for_each(|_| exchange.note(thread, home, 1));
        }
        exchange
    }

    #[test]
    fn threads_that_have_each_others_memory_change_places() {
        let exchange = noted(&[(0, 1, 10), (1, 0, 10)]);
        assert_eq!(exchange.partner(0, &THREADS, &[0, 1, 2]), Some(1));
        assert_eq!(exchange.partner(1, &THREADS, &[0, 1, 2]), Some(0));
        // One that waits is not on its CPU.
        assert_eq!(exchange.partner(0, &THREADS, &[0, 2]), None);
        let there = [(1, 1), (0, 0), (2, 2)];
        assert_eq!(exchange.partner(0, &there, &[0, 1, 2]), None);
    }

    #[test]
    fn of_several_the_one_that_gains_most_and_none_that_would_lose() {
        let exchange = noted(&[(0, 1, 6), (0, 2, 4), (1, 1, 5), (1, 0, 5), (2, 0, 9)]);
        // 60 - 50 + 60 against 40 - 0 + 40 per cent.
        assert_eq!(exchange.partner(0, &THREADS, &[0, 1, 2]), Some(2));
        let exchange = noted(&[(0, 1, 6), (0, 2, 4), (1, 1, 10), (2, 2, 9)]);
        assert_eq!(exchange.partner(0, &THREADS, &[0, 1, 2]), None);
        // Nobody knows where a thread without faults belongs, nor whether it would lose.
        assert_eq!(noted(&[(0, 1, 6)]).partner(0, &THREADS, &[0, 1, 2]), None);
        assert_eq!(noted(&[(1, 0, 6)]).partner(0, &THREADS, &[0, 1, 2]), None);
    }

    #[test]
    fn faults_are_halved_with_the_first_after_a_scan_began() {
        let mut exchange = noted(&[(0, 1, 8)]);
        exchange.note(0, 0, 2);
        exchange.note(0, 0, 2);
        assert_eq!(exchange.faults[0], [2, 4, 0]);
    }
}
