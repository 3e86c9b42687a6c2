//! A worker: takes the nearest work there is, and sleeps if there is none.

use crate::deque::Deque;
use crate::job::{Blocks, Call, Job, UncountedTasks, as_worker};
use crate::location::refreshes;
use crate::pool_state::{Place, PoolState};
use crate::sleep::Next;
use crate::sync::lock;
use crossbeam_utils::CachePadded;
use nodewise_sys::{AffinityMask, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An event that a worker waits for while it works.
pub(crate) trait Event {
    /// Whether it has happened. Asked often.
    fn over(&mut self) -> bool;

    /// The same, when the worker will sleep if not: from here on `Sleep::happened` must be called when it
    /// happens.
    fn over_before_sleep(&mut self) -> bool {
        self.over()
    }
}

/// In this order: with the queue at the worker's own address, a join keeps one address instead of two, and is
/// shorter by 4 %.
#[repr(C)]
pub(crate) struct Worker {
    deque: Deque<Job>,
    pub(crate) shared: Arc<PoolState>,
    /// Among all workers of the pool.
    pub(crate) index: usize,
    /// Among the pool's nodes.
    pub(crate) node: usize,
    counts: Arc<CachePadded<Counts>>,
    random: Cell<u64>,
    /// Tasks of a scope that were done here, and not yet counted there.
    pub(crate) done: Cell<UncountedTasks>,
    /// For the tasks it spawns.
    pub(crate) blocks: Blocks,
    /// The call that the running job is part of; a caller's own call for callers.
    call: Cell<Call>,
    /// It has just woken a thread that is no worker.
    has_woken: Cell<bool>,
    /// The sleeping worker whose place a caller has taken.
    stands_in_for: Cell<Option<usize>>,
    /// The CPUs that it is confined to, if it is.
    pub(crate) cpus: Option<AffinityMask>,
    /// How often the machine had been read anew when the worker last saw to its CPUs.
    refreshes: Cell<usize>,
}

/// The counts of a worker's work, which only the worker writes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) run: AtomicU64,
    pub(crate) stolen_inside: AtomicU64,
    pub(crate) stolen_across: AtomicU64,
}

/// Without a locked instruction, since there is one writer.
fn add(count: &AtomicU64, number: u64) {
    count.store(count.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

/// How often a worker looks for work in vain before it sleeps, with pauses of 1, 2, 4 ... processor hints in
/// between: a few microseconds in all, about what being woken costs. It does not yield: where other programs
/// want the CPU, a thread that has yielded waits for their time slices, milliseconds, and one that sleeps
/// runs as soon as it is woken.
const PAUSES: u32 = if cfg!(loom) { 1 } else { 7 };

/// How often a caller looks, with the longest of these pauses in between, whether what it waits for has
/// happened, before it sleeps: what others took of its work is done soon, mostly, and to be woken takes
/// longer where other programs want the CPU.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 16 };

/// How often, of those, before it counts as searching, which is told in a word that all nodes share; and
/// before it looks at other nodes' work. Where tasks are short a worker's own node has none for a moment
/// again and again, and new ones are there in less time than a line takes from node to node.
const QUIET_PAUSES: u32 = 3;
const PAUSES_INSIDE: u32 = 2;

/// The most jobs that a worker takes from another, or of those from outside, at once. One at a time, each
/// costs the other the line that its next push needs.
const BATCH: usize = 16;

/// How long one who waits for an isolated call sleeps before it looks for the call's jobs again.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// After so many jobs a worker takes one that may have waited long. Jobs that make new ones keep its own
/// queue, which it would empty first, from ever being empty.
const PATIENCE: u64 = 64;

impl Worker {
    pub(crate) fn new(shared: Arc<PoolState>, index: usize, node: usize, deque: Deque<Job>) -> Self {
        // Anything but 0, and not the same for two.
        let random = Cell::new((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let counts = shared.places[index].counts.clone();
        let caller = shared.callers.contains(&index).then(|| index - shared.callers.start);
        let call = Cell::new(caller.map_or(Call::NONE, Call::of_caller));
        Self {
            shared,
            index,
            node,
            deque,
            counts,
            random,
            done: Cell::default(),
            blocks: Blocks::default(),
            call,
            has_woken: Cell::default(),
            stands_in_for: Cell::default(),
            cpus: None,
            refreshes: Cell::new(refreshes()),
        }
    }

    /// Goes back to its CPUs where the machine was read anew since, and the kernel had to let it run on
    /// others.
    fn return_to_cpus(&self) {
        let refreshes = refreshes();
        if self.refreshes.replace(refreshes) == refreshes {
            return;
        }
        let Some(cpus) = &self.cpus else { return };
        if sched_getaffinity(0).is_ok_and(|now| now.iter().any(|cpu| !cpus.contains(cpu))) {
            // Refused where none of them is back.
            let _ = sched_setaffinity(0, cpus);
        }
    }

    /// The life of a worker.
    pub(crate) fn work(&self) {
        self.shared.begun.fetch_add(1, Ordering::Relaxed);
        as_worker(self, || self.run_until_stopped());
    }

    pub(crate) fn run_until_stopped(&self) {
        self.run_until(&mut Stopping(&self.shared));
    }

    /// The life of a substitute: until one of its node's workers begins a job, or there is nothing to do.
    pub(crate) fn substitute(&self) {
        let begun = self.begun_by_peers();
        as_worker(self, || self.run_until(&mut Relieved { worker: self, begun }));
        self.send_blocks_back();
    }

    /// The jobs that its node's workers have begun.
    fn begun_by_peers(&self) -> u64 {
        let workers = &self.shared.places[self.shared.nodes[self.node].workers.clone()];
        workers.iter().map(|place| place.counts.run.load(Ordering::Relaxed)).sum()
    }

    /// Whether it is a thread from outside that works along while it waits.
    pub(crate) fn is_caller(&self) -> bool {
        self.shared.callers.contains(&self.index)
    }

    /// A job that any worker may run, this one most likely.
    #[inline]
    pub(crate) fn push(&self, job: Job) {
        self.deque.push(job);
        if self.shared.sleep.some_sleep() {
            self.wake_another();
        }
    }

    #[cold]
    fn wake_another(&self) {
        let sleep = &self.shared.sleep;
        // Or more would work than there are CPUs.
        if self.is_caller() && self.stands_in_for.get().is_none() {
            self.stands_in_for.set(sleep.stand_in(self.node));
        }
        sleep.work_made_while_some_sleep(self.node, Next::Works);
    }

    /// The caller's part is over: others do what is left.
    pub(crate) fn leave(&self) {
        while let Some(job) = self.deque.pop() {
            self.shared.inject(self.node, job.part_of_none());
        }
        self.stand_back();
    }

    /// The worker in whose stead a caller works may work again, if there is one.
    fn stand_back(&self) {
        if let Some(worker) = self.stands_in_for.take() {
            self.shared.sleep.stand_back(worker, || self.sees_work());
        }
    }

    /// The job that was pushed last.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Job> {
        self.deque.pop()
    }

    #[inline]
    pub(crate) fn run(&self, job: Job) {
        self.count_run();
        let before = self.call.replace(job.call());
        job.run(self);
        self.call.set(before);
    }

    /// For the jobs that the running one makes and waits for.
    #[inline]
    pub(crate) fn call(&self) -> Call {
        self.call.get()
    }

    /// A thread that slept until the job's end is on its way.
    pub(crate) fn has_woken(&self) {
        self.has_woken.set(true);
    }

    /// Whether others find nothing to do here.
    #[inline]
    pub(crate) fn has_nothing_to_take(&self) -> bool {
        self.deque.is_empty()
    }

    #[inline]
    pub(crate) fn count_run(&self) {
        add(&self.counts.run, 1);
    }

    /// How many jobs it has begun.
    #[cfg(all(test, loom))]
    pub(crate) fn has_run(&self) -> u64 {
        self.counts.run.load(Ordering::Relaxed)
    }

    /// Runs the body as a call whose waits, and those of its jobs, take only jobs of its own.
    pub(crate) fn isolated<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Goes<'a>(&'a Worker, Call, usize);
        impl Drop for Goes<'_> {
            fn drop(&mut self) {
                self.0.call.set(self.1);
                lock(&self.0.shared.isolated_calls).end(self.2);
            }
        }
        let before = self.call.get();
        let number = lock(&self.shared.isolated_calls).begin();
        let _goes = Goes(self, before, number);
        self.call.set(before.isolated(number));
        body()
    }

    /// Works until it has happened, sleeping while there is nothing to do.
    pub(crate) fn run_until(&self, event: &mut impl Event) {
        if self.call().is_isolated() {
            return self.run_isolated_until(event);
        }
        while !event.over() {
            let job = self.overdue().or_else(|| self.deque.pop());
            if let Some(job) = job.or_else(|| self.next(event)) {
                self.run(job);
            }
        }
        self.count_done();
    }

    /// The same for a part of this call that somebody else has begun. Parts of another caller's call are left
    /// to others. Its caller may wait until this call has ended. On top of what this call waits for, such a
    /// part would keep it from ending.
    pub(crate) fn run_until_returned(&self, event: &mut impl Event) {
        if self.call().is_isolated() {
            return self.run_isolated_until(event);
        }
        while !event.over() {
            let job = self.overdue().or_else(|| self.deque.pop());
            let Some(job) = job.or_else(|| self.next(event)) else { continue };
            if let Err(others) = self.run_unless_anothers(job) {
                self.leave_to_others(others);
                return self.run_isolated_until(event);
            }
        }
        self.count_done();
    }

    /// Runs it, unless it is of another caller's call.
    #[inline]
    pub(crate) fn run_unless_anothers(&self, job: Job) -> Result<(), Job> {
        if job.call().is_of_another_caller(self.call()) {
            return Err(job);
        }
        self.run(job);
        Ok(())
    }

    /// Queues a job that this worker has taken for others.
    pub(crate) fn leave_to_others(&self, job: Job) {
        self.shared.inject(self.node, job);
    }

    /// Works on jobs of this call only until it has happened. It looks for them now and then: nobody knows
    /// that it would do others' next, and so nobody wakes it for them.
    #[cold]
    fn run_isolated_until(&self, event: &mut impl Event) {
        let mut has_run = true;
        while !event.over() {
            let own = if has_run { self.pop_of_call() } else { None };
            let job = own.or_else(|| self.find_of_call());
            has_run = job.is_some();
            if let Some(job) = job {
                self.run(job);
                continue;
            }
            self.count_done();
            self.send_blocks_back();
            let soon = (0..LOOKS).any(|_| {
                pause(PAUSES - 1);
                event.over()
            });
            if !soon {
                self.stand_back();
                self.shared.sleep.sleep_apart(self.index, LOOK_EVERY, || event.over_before_sleep());
                if !event.over() {
                    self.expose();
                }
            }
        }
        self.count_done();
    }

    /// The job of this call that was pushed last. Others do not see the jobs above it for a moment.
    fn pop_of_call(&self) -> Option<Job> {
        let mut above = Vec::new();
        let job = std::iter::from_fn(|| self.pop()).find_map(|job| {
            if job.call() == self.call() {
                return Some(job);
            }
            above.push(job);
            None
        });
        above.into_iter().rev().for_each(|job| self.push(job));
        job
    }

    /// A job of this call that others may have, or who is busy has.
    fn find_of_call(&self) -> Option<Job> {
        let of_call = |job: &Job| job.call() == self.call();
        let nodes = &self.shared.nodes;
        let given = self.shared.bound(self.node).take_if(of_call);
        let given = given.or_else(|| nodes.iter().find_map(|node| node.injector.take_if(of_call)));
        given.or_else(|| self.steal_of_call(self.shared.places_in_use()))
    }

    /// Queues the oldest job of each deque for all to see, if it is not of this call. Jobs of this call may
    /// lie behind it, and the owner of the deque may wait for what this call holds.
    fn expose(&self) {
        let shared = &self.shared;
        for (number, node) in shared.nodes.iter().enumerate() {
            let places = node.places.clone().chain(shared.substitutes(number));
            let oldest =
                |place: usize| shared.places[place].stealer.steal_if(|job| job.call() != self.call());
            places.filter_map(oldest).for_each(|job| shared.inject(number, job));
        }
    }

    /// Now and then, what may have waited long.
    #[inline]
    fn overdue(&self) -> Option<Job> {
        let run = self.counts.run.load(Ordering::Relaxed);
        if run % PATIENCE == PATIENCE - 1 { self.take_overdue(run / PATIENCE) } else { None }
    }

    /// Each kind of queue has its turn, as each may be one that is never empty.
    #[cold]
    fn take_overdue(&self, turn: u64) -> Option<Job> {
        if self.is_caller() {
            return None;
        }
        let node = &self.shared.nodes[self.node];
        let mut turns = (0..3).map(|queue| match (turn + queue) % 3 {
            0 => node.injector.take(),
            1 => self.shared.bound(self.node).take(),
            _ => self.shared.places[self.index].stealer.steal_if(|_| true),
        });
        turns.find_map(|job| job)
    }

    /// Its own deque is empty.
    #[cold]
    fn next(&self, event: &mut impl Event) -> Option<Job> {
        self.count_done();
        self.send_blocks_back();
        if self.is_caller() {
            return self.wait(event);
        }
        let job = self.find_inside().or_else(|| self.search(event));
        // Before it runs what was made after the machine was read anew.
        self.return_to_cpus();
        job
    }

    /// A caller waits instead of searching: it takes back jobs of its own call only. Other work might take
    /// locks that it holds.
    fn wait(&self, event: &mut impl Event) -> Option<Job> {
        for _ in 0..LOOKS {
            if event.over() {
                return None;
            }
            let (callers, places) = (&self.shared.callers, self.shared.places_in_use());
            let workers = places[..callers.start].iter().chain(&places[callers.end..]);
            let left = || {
                let of_call = |job: &Job| job.call() == self.call();
                self.shared.nodes.iter().find_map(|node| node.injector.take_if(of_call))
            };
            let job = self.steal_of_call(workers).or_else(left);
            if job.is_some() {
                return job;
            }
            pause(PAUSES - 1);
        }
        let over = || event.over_before_sleep();
        self.shared.sleep.sleep_as_caller(self.index, self.stands_in_for.take(), over, || self.sees_work());
        None
    }

    /// The oldest job of another, where that is part of this one's call.
    fn steal_of_call<'a>(&self, places: impl IntoIterator<Item = &'a Place>) -> Option<Job> {
        let mut put_back = false;
        let job = places.into_iter().find_map(|place| {
            place.stealer.steal_if(|job| {
                let own = job.call() == self.call();
                put_back |= !own;
                own
            })
        });
        if put_back {
            // A worker that looked for work meanwhile found none, and may sleep by now, the queue's owner
            // included.
            self.shared.sleep.work_made(self.node);
        }
        add(&self.counts.stolen_inside, u64::from(job.is_some()));
        job
    }

    fn search(&self, event: &mut impl Event) -> Option<Job> {
        // The thread that was just woken, on this CPU perhaps, comes with more work later than this worker
        // would look for it.
        let mut hasty = self.has_woken.take();
        // On one node there is no line to be kept at home.
        let quiet = if self.shared.nodes.len() > 1 { QUIET_PAUSES } else { 0 };
        for round in 0..quiet {
            if event.over() {
                return None;
            }
            let across = || if round < PAUSES_INSIDE { None } else { self.find_across() };
            let job = self.find_near().or_else(across);
            if job.is_some() {
                return job;
            }
            if hasty {
                break;
            }
            pause(round);
        }
        let sleep = &self.shared.sleep;
        sleep.start_search();
        loop {
            for round in quiet..PAUSES {
                let found = || self.find_near().or_else(|| self.find_across());
                let job = if event.over() { Some(None) } else { found().map(Some) };
                if let Some(job) = job {
                    sleep.end_search(self.node, || self.sees_work());
                    return job;
                }
                if std::mem::take(&mut hasty) {
                    break;
                }
                pause(round);
            }
            sleep.sleep(self.index, || event.over_before_sleep() || self.sees_work());
        }
    }

    /// The nearest job of its node: its own, the node's, its peers'.
    fn find_near(&self) -> Option<Job> {
        self.deque.pop().or_else(|| self.find_inside())
    }

    fn find_inside(&self) -> Option<Job> {
        let node = &self.shared.nodes[self.node];
        let given = self.shared.bound(self.node).take();
        let given = given.or_else(|| node.injector.take_half(BATCH, &self.deque));
        if given.is_some() {
            return given;
        }
        let job = self.steal_from(self.node)?;
        // Its own queue was empty.
        add(&self.counts.stolen_inside, 1 + self.deque.len() as u64);
        Some(job)
    }

    fn find_across(&self) -> Option<Job> {
        let own = &self.shared.nodes[self.node];
        for &other in &own.others {
            let inside = own.of_node.contains(&other);
            let stolen = if inside { &self.counts.stolen_inside } else { &self.counts.stolen_across };
            let job = self.shared.nodes[other].injector.take();
            if job.is_some() {
                add(stolen, u64::from(!inside));
                return job;
            }
            if let Some(job) = self.steal_from(other) {
                add(stolen, 1 + self.deque.len() as u64);
                return Some(job);
            }
        }
        None
    }

    /// The oldest jobs of a worker of that node, which are the largest where work is divided.
    fn steal_from(&self, node: usize) -> Option<Job> {
        let places = self.shared.nodes[node].places.clone();
        let first = self.random_below(places.len());
        let (before, after) = (places.start..places.start + first, places.start + first..places.end);
        after
            .chain(before)
            .chain(self.shared.substitutes(node))
            .filter(|&victim| victim != self.index)
            .find_map(|victim| self.shared.places[victim].stealer.steal_half(BATCH, &self.deque))
    }

    /// Whether there is anything this worker could run.
    fn sees_work(&self) -> bool {
        let shared = &*self.shared;
        !shared.bound(self.node).is_empty()
            || shared.nodes.iter().any(|node| !node.injector.is_empty())
            || shared.places_in_use().iter().any(|place| !place.stealer.is_empty())
    }

    /// Marsaglia's xorshift64, reduced by Lemire's multiplication.
    fn random_below(&self, end: usize) -> usize {
        let mut bits = self.random.get();
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        self.random.set(bits);
        ((u128::from(bits) * end as u128) >> 64) as usize
    }
}

fn pause(round: u32) {
    (0..1 << round).for_each(|_| std::hint::spin_loop());
}

/// The pool ends, and nothing is left to be done.
struct Stopping<'a>(&'a PoolState);

/// A substitute is needed no more: one of its node's workers has begun a job, or there is none.
struct Relieved<'a> {
    worker: &'a Worker,
    /// As the substitute began.
    begun: u64,
}

impl Event for Relieved<'_> {
    fn over(&mut self) -> bool {
        let Worker { shared, node, deque, .. } = self.worker;
        let has_work = || {
            let of_peers = &shared.places[shared.nodes[*node].workers.clone()];
            shared.has_bound(*node)
                || shared.has_given(*node)
                || of_peers.iter().any(|peer| !peer.stealer.is_empty())
        };
        deque.is_empty()
            && (self.worker.begun_by_peers() != self.begun || !has_work())
            && deque.is_surely_empty()
    }
}

impl Event for Stopping<'_> {
    fn over(&mut self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }
}
