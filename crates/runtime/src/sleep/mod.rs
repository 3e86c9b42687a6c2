//! Idle workers sleep, and wake when there is work or when what they wait for has happened. No wake-up is
//! lost.
//!
//! A worker without work first searches for a while, then sleeps. A maker of work wakes a sleeper only if
//! nobody is searching. A searcher that finds work and was the last one wakes the next if there is more. So
//! one task wakes one worker, and a burst of them as many as are needed, one after the other.
//!
//! Making work is far more frequent than falling asleep. So the sleeper pays for the barrier between 'I
//! sleep' and 'is there work' on one side and 'here is work' and 'does anybody sleep' on the other:
//! membarrier(2), or a fence on both sides where the kernel has none. Membarrier interrupts the other CPUs
//! that the process runs on, which takes some 20 us in a virtual machine. So a caller that hands its place
//! back leaves the barrier, where it can, to a worker that is searching: that one sleeps next, mostly, and
//! pays for it anyway. Should it find work first, it pays all the same, and looks for who made work and saw
//! nobody asleep. `docs/internals/sleep.md` defines each state, and argues why no wake-up is lost.

mod barrier;
#[cfg(all(test, loom))]
mod loom_tests;
mod wake_placement;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Futex, Mutex, lock};
use crossbeam_utils::CachePadded;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use wake_placement::WakePlacement;

/// Searching workers are counted in the low half of [`Sleep::idle`], below [`OWED`], sleeping ones in the
/// high half.
const SEARCHING: u64 = 1;
/// The first searcher that stops owes a barrier.
const OWED: u64 = 1 << 31;
const SLEEPING: u64 = 1 << 32;

#[derive(Debug)]
pub(crate) struct Sleep {
    /// Written when a worker begins or ends being idle only, so that makers of work have it in their caches.
    idle: CachePadded<AtomicU64>,
    sleepers: Box<[CachePadded<Mutex<Sleepers>>]>,
    workers: Box<[CachePadded<Sleeper>]>,
    wake_placement: WakePlacement,
    /// Not loom's, whose models have one or the other.
    one_sided: AtomicBool,
}

/// The sleepers of a node.
#[derive(Debug, Default)]
struct Sleepers {
    /// Workers that may be woken for work; the last to fall asleep, whose caches are the warmest, first.
    ready: Vec<usize>,
    /// Workers whose place callers have taken. Such a worker wakes only for what it waits for.
    stood_in_for: Vec<usize>,
}

#[derive(Debug)]
struct Sleeper {
    /// None for callers, whom nobody wakes for work.
    node: Option<usize>,
    /// [`AWAKE`], [`ASLEEP`] or [`APART`].
    state: Futex,
}

/// The next step of the maker of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on with other work, on the CPU where it is.
    Works,
    /// Nobody knows: it may wait, and leave its CPU to the worker. Or it is not who wakes the worker, and is
    /// where that would be sent.
    Unknown,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// Asleep until what it waits for has happened, whatever work there is. It is on no list.
const APART: u32 = 2;

/// For what another CPU has stored to be seen: some microseconds, at most.
const LONG_ENOUGH: Duration = Duration::from_millis(10);

impl Sleep {
    /// For workers 0 to n-1, each with its node, then so many callers, and then so many substitutes for each
    /// node.
    pub(crate) fn new(
        nodes: usize,
        node_of_worker: impl Iterator<Item = usize>,
        callers: usize,
        substitutes: usize,
    ) -> Self {
        let mut nodes_of_sleepers: Vec<Option<usize>> = node_of_worker.map(Some).collect();
        let wake_placement = WakePlacement::new(nodes_of_sleepers.len());
        nodes_of_sleepers.extend((0..callers).map(|_| None));
        nodes_of_sleepers.extend((0..nodes * substitutes).map(|index| Some(index / substitutes)));
        let sleeper = |node| CachePadded::new(Sleeper { node, state: Futex::default() });
        Self {
            idle: CachePadded::new(AtomicU64::new(0)),
            sleepers: (0..nodes).map(|_| CachePadded::default()).collect(),
            wake_placement,
            workers: nodes_of_sleepers.into_iter().map(sleeper).collect(),
            one_sided: AtomicBool::new(barrier::register()),
        }
    }

    /// The cheap side of the barrier.
    #[inline]
    fn light_barrier(&self) {
        if self.one_sided.load(Ordering::Relaxed) {
            barrier::light();
        } else {
            barrier::full();
        }
    }

    /// The dear side.
    fn heavy_barrier(&self) {
        if self.one_sided.load(Ordering::Relaxed) {
            if barrier::pass() {
                return;
            }
            // A filter that was installed since refuses it. From here on both sides fence; of who has made
            // work without one meanwhile, it is seen long before this is over.
            self.one_sided.store(false, Ordering::Relaxed);
            std::thread::sleep(LONG_ENOUGH);
        }
        barrier::full();
    }

    /// A worker found nothing to do and starts to search.
    pub(crate) fn start_search(&self) {
        self.idle.fetch_add(SEARCHING, Ordering::SeqCst);
    }

    /// It found something, or need not search any more.
    pub(crate) fn end_search(&self, node: usize, more_work: impl FnOnce() -> bool) {
        let before = self.idle.fetch_sub(SEARCHING, Ordering::SeqCst);
        if before & OWED != 0 {
            // Before the barrier, or what is left to searchers meanwhile would be taken back unpaid. Whoever
            // else searches by now may have looked before the barrier, so it does not matter
            // here.
            self.idle.fetch_and(!OWED, Ordering::SeqCst);
            self.heavy_barrier();
            if more_work() {
                self.wake_one(node, Next::Unknown);
            }
        } else if before >= SLEEPING && searching(before) == 1 {
            barrier::full();
            if more_work() {
                self.wake_one(node, Next::Unknown);
            }
        }
    }

    /// Work was made that any worker may do; the nearest sleeper to `node` is woken, unless somebody is
    /// searching.
    #[inline]
    pub(crate) fn work_made(&self, node: usize) {
        if self.some_sleep() {
            self.work_made_while_some_sleep(node, Next::Unknown);
        }
    }

    /// Work was made: whether there may be somebody to wake for it.
    #[inline]
    pub(crate) fn some_sleep(&self) -> bool {
        self.light_barrier();
        self.idle.load(Ordering::Relaxed) >= SLEEPING
    }

    /// Whether a worker has nothing to do right now.
    pub(crate) fn some_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed) & !OWED > 0
    }

    /// Whether a worker looks for work, or was woken and has not had a CPU yet.
    pub(crate) fn some_search(&self) -> bool {
        searching(self.idle.load(Ordering::Relaxed)) > 0
    }

    #[cold]
    pub(crate) fn work_made_while_some_sleep(&self, node: usize, next: Next) {
        // For the last searcher, which looks for more work after it has stopped searching.
        barrier::full();
        if searching(self.idle.load(Ordering::SeqCst)) == 0 {
            self.wake_one(node, next);
        }
    }

    /// Work was made that only workers of these nodes may do.
    pub(crate) fn work_made_for(&self, mut nodes: Range<usize>, next: Next) {
        self.light_barrier();
        if self.idle.load(Ordering::Relaxed) >= SLEEPING {
            nodes.any(|node| self.wake_one_of(node, next));
        }
    }

    /// Tells that an event has happened which the worker may be waiting for.
    #[inline]
    pub(crate) fn happened(&self, worker: usize) {
        self.light_barrier();
        if self.workers[worker].state.get(Ordering::Relaxed) != AWAKE {
            self.wake(worker);
        }
    }

    /// Wakes all, since the pool ends.
    pub(crate) fn wake_everybody(&self) {
        barrier::full();
        (0..self.workers.len()).for_each(|worker| self.wake(worker));
    }

    /// Has a sleeping worker of the node sleep on, whatever work is made, while the caller works in its
    /// stead.
    pub(crate) fn stand_in(&self, node: usize) -> Option<usize> {
        let mut sleepers = lock(&self.sleepers[node]);
        let worker = sleepers.ready.pop()?;
        sleepers.stood_in_for.push(worker);
        self.idle.fetch_sub(SLEEPING, Ordering::SeqCst);
        Some(worker)
    }

    /// Makes the worker wakeable again whose place a caller took. If there is `work`, a worker is woken at
    /// once, or by one that is searching.
    pub(crate) fn stand_back(&self, worker: usize, work: impl FnOnce() -> bool) {
        if !self.may_be_woken(worker, OWED) {
            self.wake_for(worker, work);
        }
    }

    /// Wakes a worker whose place a caller has taken, as there is work that the caller does not do. Says
    /// whether there is such a worker.
    pub(crate) fn relieve(&self, node: usize) -> bool {
        let worker = lock(&self.sleepers[node]).stood_in_for.last().copied();
        worker.inspect(|&worker| self.wake(worker)).is_some()
    }

    /// Marks `worker` as wakeable. Returns true if a searching worker will do the barrier, and the look for
    /// work after it, for us. `mark` is what asks it to.
    fn may_be_woken(&self, worker: usize, mark: u64) -> bool {
        let Some(node) = self.workers[worker].node else { return false };
        let mut sleepers = lock(&self.sleepers[node]);
        if !take(&mut sleepers.stood_in_for, worker) {
            return false;
        }
        sleepers.ready.push(worker);
        let left = |idle| if searching(idle) > 0 { mark } else { 0 };
        let counted = |idle| Some((idle + SLEEPING) | left(idle));
        let before = self.idle.fetch_update(Ordering::SeqCst, Ordering::Relaxed, counted);
        before.is_ok_and(|before| left(before) != 0)
    }

    /// Loses no wake-up: after the barrier, either a producer sees that this worker sleeps, or we see the
    /// producer's task.
    fn wake_for(&self, worker: usize, work: impl FnOnce() -> bool) {
        self.heavy_barrier();
        if work() {
            self.wake(worker);
        }
    }

    /// A caller sleeps until what it waits for has happened, unless it has, which is asked when those who
    /// tell it know already that it sleeps. It stands back meanwhile.
    pub(crate) fn sleep_as_caller(
        &self,
        caller: usize,
        stood_in_for: Option<usize>,
        over: impl FnOnce() -> bool,
        work: impl FnOnce() -> bool,
    ) {
        let state = &self.workers[caller].state;
        state.set(ASLEEP, Ordering::Relaxed);
        match stood_in_for {
            Some(worker) => {
                self.may_be_woken(worker, 0);
                self.wake_for(worker, work);
            }
            None => self.heavy_barrier(),
        }
        if over() {
            state.set(AWAKE, Ordering::Relaxed);
        }
        while state.get(Ordering::Acquire) == ASLEEP {
            state.wait(ASLEEP, None);
        }
    }

    /// A worker that does no other work meanwhile sleeps until what it waits for has happened, or for so
    /// long. It asks first whether that has happened, when those who tell it know already that it sleeps.
    pub(crate) fn sleep_apart(&self, worker: usize, most: Duration, over: impl FnOnce() -> bool) {
        let state = &self.workers[worker].state;
        state.set(APART, Ordering::Relaxed);
        self.heavy_barrier();
        if !over() && state.get(Ordering::Acquire) == APART {
            state.wait(APART, Some(most));
        }
        // And no store, which loom would let come before the other's exchange.
        state.swap(AWAKE, Ordering::AcqRel);
    }

    /// A searching worker sleeps until it is woken, and searches again; not at all if there is a `reason` to
    /// stay awake, which is asked when those who might wake it know already that it sleeps.
    pub(crate) fn sleep(&self, worker: usize, reason: impl FnOnce() -> bool) {
        let sleeper = &self.workers[worker];
        let node = sleeper.node.expect("only workers are woken for work");
        self.wake_placement.sleeps(worker);
        let before = {
            let mut sleepers = lock(&self.sleepers[node]);
            sleepers.ready.push(worker);
            sleeper.state.set(ASLEEP, Ordering::Relaxed);
            self.idle.fetch_add(SLEEPING - SEARCHING, Ordering::SeqCst)
        };
        if before & OWED != 0 {
            // Paid below.
            self.idle.fetch_and(!OWED, Ordering::SeqCst);
        }
        self.wake_for(worker, reason);
        while sleeper.state.get(Ordering::Acquire) == ASLEEP {
            sleeper.state.wait(ASLEEP, None);
        }
        self.wake_placement.is_awake(worker);
    }

    fn wake_one(&self, node: usize, next: Next) {
        // Nearest by number is good enough: neighbours on most machines are.
        let nodes = self.sleepers.len();
        for step in 0..nodes {
            if self.wake_one_of((node + step) % nodes, next) {
                return;
            }
        }
    }

    fn wake_one_of(&self, node: usize, next: Next) -> bool {
        let Some(worker) = lock(&self.sleepers[node]).ready.pop() else { return false };
        if next == Next::Works {
            self.wake_placement.wakes(worker);
        }
        // SLEEPING - SEARCHING back again.
        self.woken(worker, SLEEPING - SEARCHING);
        true
    }

    fn wake(&self, worker: usize) {
        let sleeper = &self.workers[worker];
        // Only from there: by now it may sleep on a list, from which it has to be taken.
        if sleeper.state.compare_exchange(APART, AWAKE, Ordering::Release) {
            sleeper.state.wake_all();
            return;
        }
        let Some(node) = sleeper.node else {
            sleeper.rouse();
            return;
        };
        let mut sleepers = lock(&self.sleepers[node]);
        let counted = if take(&mut sleepers.ready, worker) {
            SLEEPING - SEARCHING
        } else if take(&mut sleepers.stood_in_for, worker) {
            SEARCHING.wrapping_neg()
        } else {
            return;
        };
        drop(sleepers);
        self.woken(worker, counted);
    }

    /// Whoever took the worker off the list wakes it. It counts as searching from here on, so that nobody
    /// wakes another for the same work.
    fn woken(&self, worker: usize, counted: u64) {
        self.idle.fetch_sub(counted, Ordering::SeqCst);
        self.workers[worker].rouse();
    }
}

/// Takes it off the list, if it is there.
fn take(list: &mut Vec<usize>, worker: usize) -> bool {
    let place = list.iter().position(|&other| other == worker);
    place.map(|place| list.swap_remove(place)).is_some()
}

impl Sleeper {
    fn rouse(&self) {
        self.state.set(AWAKE, Ordering::Release);
        self.state.wake_all();
    }
}

fn searching(idle: u64) -> u64 {
    idle % OWED
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_leaves_to_a_searcher_wakes_who_it_stood_in_for() {
        let sleep = Sleep::new(1, [0, 0].into_iter(), 1, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep.start_search();
                sleep.sleep(0, || false);
                sleep.end_search(0, || false);
            });
            let asleep = std::iter::repeat_with(|| sleep.stand_in(0)).find_map(|worker| {
                std::thread::yield_now();
                worker
            });
            assert_eq!(asleep, Some(0));
            sleep.start_search();
            sleep.stand_back(0, || panic!("that is the searcher's to ask"));
            sleep.end_search(0, || true);
        });
        assert!(!sleep.some_idle());
        assert_eq!(sleep.idle.load(Ordering::Relaxed), 0);
    }
}
