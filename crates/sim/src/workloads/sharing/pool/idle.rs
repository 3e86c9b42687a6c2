//! Workers that have nothing to do: they look for work, sleep, and are woken (`worker.rs`, `sleep` and
//! `tally.rs` of the runtime).

use super::{CALL_INSTRUCTIONS, Event, Frame, Job, LOOK_INSTRUCTIONS, PAUSE, Pool, Trace, WAKE_INSTRUCTIONS};

/// `PAUSES`, `QUIET_PAUSES`, `PAUSES_INSIDE` and `BATCH` of the runtime.
const PAUSES: u32 = 7;
const QUIET_PAUSES: u32 = 3;
const PAUSES_INSIDE: u32 = 2;
const BATCH: usize = 16;

/// How far a look through all queues has come: so many nodes on, the node's own queues or one of its workers,
/// from the first on.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    step: usize,
    item: usize,
    first: usize,
}

impl Pool {
    fn quiet_pauses(&self) -> u32 {
        if self.used_nodes() > 1 { QUIET_PAUSES } else { 0 }
    }

    /// `run_until`, `next` and `search`: one round, after which the event's frame is still there unless it
    /// has happened. The first round has no pause.
    pub(super) fn until(&mut self, thread: usize, event: Event, trace: &mut Trace) {
        if self.workers[thread].asleep {
            // A futex, of which nothing is seen but that the word in its bed changes.
            trace.compute(CALL_INSTRUCTIONS);
            trace.read(self.workers[thread].bed);
            self.push(thread, Frame::Until(event));
            return;
        }
        if std::mem::take(&mut self.workers[thread].woken) {
            trace.compute(WAKE_INSTRUCTIONS);
            self.push(thread, Frame::Until(event));
            return;
        }
        let (looks, searching) = (self.workers[thread].looks, self.workers[thread].searching);
        if looks > self.quiet_pauses() && !searching {
            self.push(thread, Frame::Until(event));
            self.push(thread, Frame::BeginningSearch);
            return;
        }
        if looks > PAUSES {
            self.push(thread, Frame::LyingDown(event));
            return;
        }
        if self.happened(thread, event, trace) {
            self.found(thread);
            return;
        }
        self.push(thread, Frame::Until(event));
        if let Some(job) = self.workers[thread].deque.pop(trace) {
            self.push(thread, Frame::Running(job));
            self.found(thread);
            return;
        }
        self.push(thread, Frame::Looking(Cursor::default()));
        if !self.workers[thread].parcel.1.is_empty() {
            self.push(thread, Frame::Returning);
        }
        if self.workers[thread].done > 0 {
            self.push(thread, Frame::Counting);
        }
    }

    /// It need not look any more; what is on top of its frames comes after that is told.
    fn found(&mut self, thread: usize) {
        self.workers[thread].looks = 0;
        if self.workers[thread].searching {
            self.push(thread, Frame::EndingSearch);
        }
    }

    fn happened(&mut self, thread: usize, event: Event, trace: &mut Trace) -> bool {
        match event {
            Event::Stop => self.over,
            Event::Half { depth } => {
                trace.read(self.stack(thread, depth) + 64);
                let told = self.workers[thread].told[depth];
                if told && self.workers[thread].done > 0 {
                    self.push(thread, Frame::Counting);
                }
                told
            }
            Event::AllDone => {
                self.read_tally(trace);
                // Its own it need not count.
                self.over = self.tasks_left == self.workers[thread].done;
                self.over
            }
        }
    }

    fn read_tally(&self, trace: &mut Trace) {
        let nodes = self.nodes.iter().filter(|node| !node.workers.is_empty());
        nodes.clone().for_each(|node| trace.read(node.done));
        nodes.for_each(|node| trace.read(node.submitted));
        trace.read(self.submitted_alone);
    }

    /// Goes on looking into queues until one has something. Other nodes' are looked into only after some
    /// rounds.
    pub(super) fn look(&mut self, thread: usize, mut cursor: Cursor, trace: &mut Trace) {
        let (own, used) = (self.workers[thread].node, self.used_nodes());
        let steps = if self.workers[thread].looks > PAUSES_INSIDE { used } else { 1 };
        while cursor.step < steps {
            // The nearest by number.
            let node = (own + cursor.step) % used;
            let peers = self.nodes[node].workers.len();
            if cursor.item == 0 {
                cursor.item = 1;
                cursor.first = random_below(&mut self.workers[thread].random, peers as u64) as usize;
                trace.compute(LOOK_INSTRUCTIONS);
                let bound = cursor.step == 0 && self.nodes[node].bound.look(trace);
                if bound || self.nodes[node].injector.look(trace) {
                    self.push(thread, Frame::Looking(cursor));
                    self.push(thread, Frame::Taking { node, bound });
                    return;
                }
            }
            while cursor.item <= peers {
                let victim = self.nodes[node].workers[(cursor.first + cursor.item - 1) % peers];
                cursor.item += 1;
                if victim == thread {
                    continue;
                }
                trace.compute(LOOK_INSTRUCTIONS);
                if self.workers[victim].deque.look(trace) {
                    self.push(thread, Frame::Looking(cursor));
                    self.push(thread, Frame::Locking { victim });
                    return;
                }
            }
            (cursor.step, cursor.item) = (cursor.step + 1, 0);
        }
        let looks = &mut self.workers[thread].looks;
        if *looks > 0 {
            trace.compute(PAUSE << (*looks - 1));
        }
        *looks += 1;
    }

    /// From a node's queue.
    pub(super) fn take(&mut self, thread: usize, node: usize, bound: bool, trace: &mut Trace) {
        let node = &mut self.nodes[node];
        let queue = if bound { &mut node.bound } else { &mut node.injector };
        if let Some(job) = queue.take(trace) {
            self.stop_looking(thread, job);
        }
    }

    /// The look that this comes from is over.
    fn stop_looking(&mut self, thread: usize, job: Job) {
        self.workers[thread].frames.pop();
        self.push(thread, Frame::Running(job));
        self.found(thread);
    }

    /// `Stealer::steal_half`: whoever meets another thief goes on.
    pub(super) fn lock(&mut self, thread: usize, victim: usize, trace: &mut Trace) {
        self.workers[thread].deque.reserve(BATCH as u64, trace);
        trace.atomic(self.workers[victim].deque.taken_word);
        if !std::mem::replace(&mut self.workers[victim].deque.locked, true) {
            self.push(thread, Frame::Claiming { victim });
        }
    }

    pub(super) fn claim(&mut self, thread: usize, victim: usize, trace: &mut Trace) {
        let jobs = self.workers[victim].deque.claim(BATCH, trace);
        if let [first, others @ ..] = &jobs[..] {
            let deque = &mut self.workers[thread].deque;
            for &job in others {
                deque.push(job, trace);
            }
            self.stop_looking(thread, *first);
        }
        self.push(thread, Frame::Unlocking { victim });
    }

    pub(super) fn begin_search(&mut self, thread: usize, trace: &mut Trace) {
        trace.atomic(self.idle);
        self.searching += 1;
        self.workers[thread].searching = true;
    }

    /// The last one looks whether there is more.
    pub(super) fn end_search(&mut self, thread: usize, trace: &mut Trace) {
        trace.atomic(self.idle);
        self.searching -= 1;
        self.workers[thread].searching = false;
        if self.searching == 0 && self.sleeping > 0 && self.sees_work(thread, trace) {
            let node = self.workers[thread].node;
            self.push(thread, Frame::Waking { node, only: false });
        }
    }

    fn sees_work(&self, thread: usize, trace: &mut Trace) -> bool {
        let mut nodes = self.nodes.iter().filter(|node| !node.workers.is_empty());
        self.node_of(thread).bound.look(trace)
            || nodes.any(|node| node.injector.look(trace))
            || self.workers.iter().any(|worker| worker.deque.look(trace))
    }

    pub(super) fn lie_down(&mut self, thread: usize, event: Event, trace: &mut Trace) {
        // The lock, its bed, and the word of idle workers, before the lock is given back.
        let node = self.workers[thread].node;
        trace.atomic(self.nodes[node].list);
        trace.write(self.workers[thread].bed);
        trace.atomic(self.idle);
        trace.atomic(self.nodes[node].list);
        trace.compute(CALL_INSTRUCTIONS);
        self.nodes[node].sleepers.push(thread);
        self.searching -= 1;
        self.sleeping += 1;
        let worker = &mut self.workers[thread];
        (worker.searching, worker.asleep) = (false, true);
        self.push(thread, Frame::Asleep(event));
    }

    /// Looks once more, now that those who might wake it know.
    pub(super) fn fall_asleep(&mut self, thread: usize, event: Event, trace: &mut Trace) {
        self.push(thread, Frame::Until(event));
        let over = match event {
            Event::AllDone => self.set_alarms(trace),
            event => self.happened(thread, event, trace),
        };
        if (over || self.sees_work(thread, trace)) && self.workers[thread].asleep {
            self.tell(thread, thread, trace);
        }
    }

    /// `Tally::over`: some node does its part of what is left before all is done.
    fn set_alarms(&mut self, trace: &mut Trace) -> bool {
        self.read_tally(trace);
        let share = self.tasks_left.div_ceil(self.used_nodes());
        for node in self.nodes.iter_mut().filter(|node| !node.workers.is_empty()) {
            trace.atomic(node.done);
            trace.atomic(node.done);
            node.alarm = (share > 0).then_some(share);
        }
        share == 0
    }

    pub(super) fn wake(&mut self, thread: usize, node: usize, only: bool, trace: &mut Trace) {
        let count = self.nodes.len();
        for step in 0..if only { 1 } else { count } {
            let node = &mut self.nodes[(node + step) % count];
            if node.workers.is_empty() {
                continue;
            }
            trace.atomic(node.list);
            trace.atomic(node.list);
            if let Some(sleeper) = node.sleepers.pop() {
                self.push(thread, Frame::Rousing(sleeper));
                return;
            }
        }
    }

    pub(super) fn rouse(&mut self, sleeper: usize, trace: &mut Trace) {
        trace.atomic(self.idle);
        trace.write(self.workers[sleeper].bed);
        trace.compute(CALL_INSTRUCTIONS);
        self.searching += 1;
        self.sleeping -= 1;
        let looks = self.quiet_pauses() + 1;
        let worker = &mut self.workers[sleeper];
        (worker.asleep, worker.woken) = (false, true);
        (worker.searching, worker.looks) = (true, looks);
    }

    /// Wakes the worker that waits for something, if it sleeps.
    pub(super) fn tell(&mut self, thread: usize, waiter: usize, trace: &mut Trace) {
        trace.read(self.workers[waiter].bed);
        let list = self.nodes[self.workers[waiter].node].list;
        let sleepers = &mut self.nodes[self.workers[waiter].node].sleepers;
        // Whoever takes it off the list wakes it.
        if let Some(place) = sleepers.iter().position(|&sleeper| sleeper == waiter) {
            sleepers.remove(place);
            trace.atomic(list);
            trace.atomic(list);
            self.push(thread, Frame::Rousing(waiter));
        }
    }
}

/// Marsaglia's xorshift64, reduced by Lemire's multiplication, as in the runtime.
fn random_below(state: &mut u64, end: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    ((u128::from(*state) * u128::from(end)) >> 64) as u64
}
