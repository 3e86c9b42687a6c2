//! Keeps a woken worker off the CPU of the thread that woke it, if that thread goes on to run.
//!
//! The kernel has a thread that wakes run on an idle CPU if there is one. In a virtual machine, a CPU that
//! has been idle for a while may count as taken (`available_idle_cpu`, `vcpu_is_preempted`, Linux 6.12). The
//! reason is that the host runs something else there. The kernel then has the worker run on the CPU of the
//! thread that wakes it. One waits for the other, and the idle CPU stays idle. A worker that finds itself
//! there says so. For some time each worker is then confined to other CPUs when it is woken, until it runs.

#[cfg(loom)]
pub(super) use modelled::WakePlacement;
#[cfg(not(loom))]
pub(super) use real::WakePlacement;

#[cfg(not(loom))]
mod real {
    use crate::location::current_cpu;
    use crossbeam_utils::CachePadded;
    use nodewise_sys::{AffinityMask, gettid, sched_getaffinity, sched_setaffinity};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    /// So many are confined before it is tried again how the kernel does without: that takes a few
    /// microseconds each, and a loop that has one CPU instead of two its whole length.
    const CONFINED: u32 = 100;

    /// No CPU's number.
    const NOWHERE: u32 = u32::MAX;

    #[derive(Debug)]
    pub(in super::super) struct WakePlacement {
        of_worker: Box<[CachePadded<Whereabouts>]>,
        /// How many workers are still to be confined.
        left: AtomicU32,
    }

    #[derive(Debug)]
    struct Whereabouts {
        /// The thread, and where it may run, as when it slept first.
        thread: OnceLock<(i32, AffinityMask)>,
        /// Where it fell asleep.
        cpu: AtomicU32,
        /// The CPU of who woke it, if that one works on.
        waker: AtomicU32,
        confined: AtomicBool,
    }

    impl WakePlacement {
        pub(in super::super) fn new(workers: usize) -> Self {
            let whereabouts = |_| {
                CachePadded::new(Whereabouts {
                    thread: OnceLock::new(),
                    cpu: AtomicU32::new(NOWHERE),
                    waker: AtomicU32::new(NOWHERE),
                    confined: AtomicBool::new(false),
                })
            };
            Self { of_worker: (0..workers).map(whereabouts).collect(), left: AtomicU32::new(0) }
        }

        /// The calling worker is about to sleep.
        pub(in super::super) fn sleeps(&self, worker: usize) {
            // Substitutes, whose threads come and go, are woken as the kernel likes.
            let Some(whereabouts) = self.of_worker.get(worker) else { return };
            whereabouts.thread.get_or_init(|| (gettid(), sched_getaffinity(0).unwrap_or_default()));
            whereabouts.cpu.store(current_cpu().0, Ordering::Relaxed);
            whereabouts.waker.store(NOWHERE, Ordering::Relaxed);
        }

        /// The calling thread is about to wake a worker, and works on.
        pub(in super::super) fn wakes(&self, worker: usize) {
            let Some(whereabouts) = self.of_worker.get(worker) else { return };
            let here = current_cpu().0;
            whereabouts.waker.store(here, Ordering::Relaxed);
            let left = self.left.load(Ordering::Relaxed);
            if left > 0 {
                self.left.store(left - 1, Ordering::Relaxed);
                self.confine(worker, here);
            }
        }

        /// To where no worker sleeps, if it would have to leave its CPU and there is such a place.
        fn confine(&self, worker: usize, away_from: u32) {
            let whereabouts = &self.of_worker[worker];
            let Some((thread, own)) = whereabouts.thread.get() else { return };
            // Where somebody else has a say, a control group, the end of a CPU or an administrator, nothing
            // is changed: what they want would be lost when it is changed back.
            if !own.contains(away_from) || sched_getaffinity(*thread).is_ok_and(|now| now != *own) {
                return;
            }
            let mut cpus = AffinityMask::new();
            if whereabouts.cpu.load(Ordering::Relaxed) == away_from {
                let taken = |cpu| {
                    self.of_worker.iter().any(|whereabouts| whereabouts.cpu.load(Ordering::Relaxed) == cpu)
                };
                cpus = own.iter().filter(|&cpu| !taken(cpu)).collect();
            }
            if cpus.is_empty() {
                cpus = own.iter().filter(|&cpu| cpu != away_from).collect();
            }
            // Refused where there is no other.
            whereabouts.confined.store(sched_setaffinity(*thread, &cpus).is_ok(), Ordering::Release);
        }

        /// The calling worker is awake.
        pub(in super::super) fn is_awake(&self, worker: usize) {
            let Some(whereabouts) = self.of_worker.get(worker) else { return };
            if whereabouts.waker.load(Ordering::Relaxed) == current_cpu().0 {
                self.left.store(CONFINED, Ordering::Relaxed);
            }
            if let Some((_, own)) =
                whereabouts.thread.get().filter(|_| whereabouts.confined.swap(false, Ordering::Acquire))
            {
                // Refused where none of them is left to it.
                let _ = sched_setaffinity(0, own);
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn who_was_woken_onto_its_wakers_cpu_is_woken_onto_another_the_next_time_only() {
            let all = sched_getaffinity(0).unwrap();
            if all.len() < 2 {
                return;
            }
            let one: AffinityMask = all.iter().take(1).collect();
            // Is it, and wakes it, at the same time.
            let wake = |placement: &WakePlacement| {
                placement.sleeps(0);
                placement.wakes(0);
                let meanwhile = sched_getaffinity(0).unwrap();
                placement.is_awake(0);
                (placement.of_worker[0].waker.load(Ordering::Relaxed), meanwhile)
            };
            sched_setaffinity(0, &one).unwrap();
            let pinned = WakePlacement::new(1);
            assert_eq!(wake(&pinned).1, one);
            assert_eq!(pinned.left.load(Ordering::Relaxed), CONFINED);
            sched_setaffinity(0, &all).unwrap();
            let placement = WakePlacement::new(1);
            placement.left.store(CONFINED, Ordering::Relaxed);
            let (waker, meanwhile) = wake(&placement);
            assert!(
                !meanwhile.contains(waker) && meanwhile.len() == all.len() - 1,
                "{meanwhile:?} of {all:?}"
            );
            assert_eq!(sched_getaffinity(0).unwrap(), all);
            // Somebody else has moved it.
            sched_setaffinity(0, &one).unwrap();
            assert_eq!(wake(&placement).1, one);
            assert_eq!(sched_getaffinity(0).unwrap(), one);
        }
    }
}

/// Loom has no CPUs.
#[cfg(loom)]
mod modelled {
    #[derive(Debug)]
    pub(in super::super) struct WakePlacement;

    impl WakePlacement {
        pub(in super::super) fn new(_: usize) -> Self {
            Self
        }

        pub(in super::super) fn sleeps(&self, _: usize) {}

        pub(in super::super) fn wakes(&self, _: usize) {}

        pub(in super::super) fn is_awake(&self, _: usize) {}
    }
}
