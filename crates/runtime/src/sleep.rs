//! Idle workers sleep, and wake when there is work or when what they wait for has happened. No wake-up is lost.
//!
//! A worker without work first searches for a while, then sleeps. Who has made work wakes a sleeper only if nobody is searching; a
//! searcher that finds work and was the last one wakes the next if there is more. So one task wakes one worker, and a burst of
//! them as many as are needed, one after the other.
//!
//! Making work is far more frequent than falling asleep. So the sleeper pays for the barrier between 'I sleep' and 'is there work' on
//! one side and 'here is work' and 'does anybody sleep' on the other: membarrier(2), or a fence on both sides where the kernel has
//! none.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Futex, Mutex, lock};
use crossbeam_utils::CachePadded;

/// Searching workers are counted in the low half of [`Sleep::idle`], sleeping ones in the high half.
const SEARCHING: u64 = 1;
const SLEEPING: u64 = 1 << 32;

#[derive(Debug)]
pub(crate) struct Sleep {
    /// Written when a worker begins or ends being idle only, so that makers of work have it in their caches.
    idle: CachePadded<AtomicU64>,
    /// The sleeping workers of each node; the last to fall asleep, whose caches are the warmest, is the first to be woken.
    sleepers: Box<[CachePadded<Mutex<Vec<usize>>>]>,
    workers: Box<[CachePadded<Bed>]>,
    one_sided: bool,
}

#[derive(Debug)]
struct Bed {
    node: usize,
    /// [`AWAKE`] or [`ASLEEP`].
    state: Futex,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

impl Sleep {
    /// For workers 0 to n-1, each with its node.
    pub(crate) fn new(nodes: usize, node_of_worker: impl Iterator<Item = usize>) -> Self {
        Self {
            idle: CachePadded::new(AtomicU64::new(0)),
            sleepers: (0..nodes).map(|_| CachePadded::default()).collect(),
            workers: node_of_worker
                .map(|node| CachePadded::new(Bed { node, state: Futex::default() }))
                .collect(),
            one_sided: barrier::register(),
        }
    }

    /// The cheap side of the barrier.
    #[inline]
    fn light_barrier(&self) {
        if self.one_sided {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The dear side.
    fn heavy_barrier(&self) {
        if self.one_sided {
            barrier::pass();
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// A worker found nothing to do and starts to search.
    pub(crate) fn start_search(&self) {
        self.idle.fetch_add(SEARCHING, Ordering::SeqCst);
    }

    /// It found something, or need not search any more.
    pub(crate) fn end_search(&self, node: usize, more_work: impl FnOnce() -> bool) {
        let before = self.idle.fetch_sub(SEARCHING, Ordering::SeqCst);
        if before >= SLEEPING && searching(before) == 1 {
            fence(Ordering::SeqCst);
            if more_work() {
                self.wake_one(node);
            }
        }
    }

    /// Work was made that any worker may do; the nearest sleeper to `node` is woken, unless somebody is searching.
    #[inline]
    pub(crate) fn work_made(&self, node: usize) {
        self.light_barrier();
        if self.idle.load(Ordering::Relaxed) >= SLEEPING {
            self.work_made_while_some_sleep(node);
        }
    }

    #[cold]
    fn work_made_while_some_sleep(&self, node: usize) {
        // For the last searcher, which looks for more work after it has stopped searching.
        fence(Ordering::SeqCst);
        if searching(self.idle.load(Ordering::SeqCst)) == 0 {
            self.wake_one(node);
        }
    }

    /// Work was made that only workers of `node` may do.
    pub(crate) fn work_made_for(&self, node: usize) {
        self.light_barrier();
        if self.idle.load(Ordering::Relaxed) >= SLEEPING {
            self.wake_one_of(node);
        }
    }

    /// What the worker may be waiting for has happened.
    #[inline]
    pub(crate) fn happened(&self, worker: usize) {
        self.light_barrier();
        if self.workers[worker].state.get(Ordering::Relaxed) == ASLEEP {
            self.wake(worker);
        }
    }

    /// Wakes all, since the pool ends.
    pub(crate) fn wake_everybody(&self) {
        fence(Ordering::SeqCst);
        (0..self.workers.len()).for_each(|worker| self.wake(worker));
    }

    /// A searching worker sleeps until it is woken, and searches again; not at all if there is a `reason` to stay awake, which is asked
    /// when those who might wake it know already that it sleeps.
    pub(crate) fn sleep(&self, worker: usize, reason: impl FnOnce() -> bool) {
        let bed = &self.workers[worker];
        {
            let mut sleepers = lock(&self.sleepers[bed.node]);
            sleepers.push(worker);
            bed.state.set(ASLEEP, Ordering::Relaxed);
            self.idle.fetch_add(SLEEPING - SEARCHING, Ordering::SeqCst);
        }
        self.heavy_barrier();
        if reason() {
            self.wake(worker);
        }
        while bed.state.get(Ordering::Acquire) == ASLEEP {
            bed.state.wait(ASLEEP, None);
        }
    }

    fn wake_one(&self, node: usize) {
        // Nearest by number is good enough: neighbours on most machines are.
        let nodes = self.sleepers.len();
        for step in 0..nodes {
            if self.wake_one_of((node + step) % nodes) {
                return;
            }
        }
    }

    fn wake_one_of(&self, node: usize) -> bool {
        let Some(worker) = lock(&self.sleepers[node]).pop() else { return false };
        self.woken(worker);
        true
    }

    fn wake(&self, worker: usize) {
        let mut sleepers = lock(&self.sleepers[self.workers[worker].node]);
        let Some(place) = sleepers.iter().position(|&sleeper| sleeper == worker) else { return };
        sleepers.swap_remove(place);
        drop(sleepers);
        self.woken(worker);
    }

    /// Whoever took the worker off the list wakes it. It counts as searching from here on, so that nobody wakes another for the same work.
    fn woken(&self, worker: usize) {
        // SLEEPING - SEARCHING back again.
        self.idle.fetch_sub(SLEEPING - SEARCHING, Ordering::SeqCst);
        let bed = &self.workers[worker];
        bed.state.set(AWAKE, Ordering::Release);
        bed.state.wake_all();
    }
}

fn searching(idle: u64) -> u64 {
    idle % SLEEPING
}

#[cfg(not(loom))]
mod barrier {
    use nodewise_sys::{Membarrier, membarrier};

    pub(super) fn register() -> bool {
        membarrier(Membarrier::RegisterPrivateExpedited).is_ok()
    }

    pub(super) fn pass() {
        // Once registered it does not fail.
        membarrier(Membarrier::PrivateExpedited).expect("membarrier was registered for this process");
    }
}

/// Loom knows fences on both sides only.
#[cfg(loom)]
mod barrier {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn pass() {
        unreachable!("only after it was registered");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// A queue that holds a number of equal tasks.
    struct Pool {
        sleep: Sleep,
        queue: AtomicUsize,
        over: AtomicUsize,
    }

    impl Pool {
        fn new(workers: usize) -> Arc<Self> {
            let sleep = Sleep::new(1, (0..workers).map(|_| 0));
            Arc::new(Self { sleep, queue: AtomicUsize::new(0), over: AtomicUsize::new(0) })
        }

        fn take(&self) -> bool {
            let mut there = self.queue.load(Ordering::Acquire);
            while there > 0 {
                match self.queue.compare_exchange(there, there - 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return true,
                    Err(now) => there = now,
                }
            }
            false
        }

        fn has_work(&self) -> bool {
            self.queue.load(Ordering::Acquire) > 0
        }

        /// As a worker does: search once, sleep, search again, until a task was done.
        fn do_one(&self, worker: usize) {
            if self.take() {
                return;
            }
            self.sleep.start_search();
            loop {
                if self.take() {
                    self.sleep.end_search(0, || self.has_work());
                    return;
                }
                self.sleep.sleep(worker, || self.has_work());
            }
        }

        fn submit(&self) {
            self.queue.fetch_add(1, Ordering::Release);
            self.sleep.work_made(0);
        }
    }

    fn bounded(check: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(1);
        model.check(check);
    }

    #[test]
    fn a_task_that_meets_a_worker_falling_asleep_is_done() {
        loom::model(|| {
            let pool = Pool::new(1);
            let worker = {
                let pool = pool.clone();
                thread::spawn(move || pool.do_one(0))
            };
            pool.submit();
            worker.join().unwrap();
            assert!(!pool.has_work());
        });
    }

    #[test]
    fn two_tasks_wake_two_workers() {
        bounded(|| {
            let pool = Pool::new(2);
            let workers = [0, 1].map(|worker| {
                let pool = pool.clone();
                thread::spawn(move || pool.do_one(worker))
            });
            pool.submit();
            pool.submit();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }

    #[test]
    fn what_a_sleeper_waits_for_wakes_it() {
        loom::model(|| {
            let pool = Pool::new(1);
            let worker = {
                let pool = pool.clone();
                thread::spawn(move || {
                    pool.sleep.start_search();
                    while pool.over.load(Ordering::Acquire) == 0 {
                        pool.sleep.sleep(0, || pool.over.load(Ordering::Acquire) == 1);
                    }
                })
            };
            pool.over.store(1, Ordering::Release);
            pool.sleep.happened(0);
            worker.join().unwrap();
        });
    }
}
