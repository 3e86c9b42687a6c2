//! The work of workers: shares, tasks, halves of ranges (`job/scope.rs`, `job/join.rs`, `job/blocks.rs` and
//! `parallel.rs` of the runtime).

use super::{
    Event, Frame, JOIN_INSTRUCTIONS, Job, PARCEL, Pool, RUN_INSTRUCTIONS, SPAWN_INSTRUCTIONS, Trace,
};

impl Pool {
    /// `Scope::spawn_on` each node; or `share_among_nodes`, which begins the own share last and itself.
    pub(super) fn share(&mut self, thread: usize, node: usize, trace: &mut Trace) {
        let (own, shares) = (self.workers[thread].node, self.shares());
        if node == self.nodes.len() {
            self.push(thread, Frame::Until(Event::AllDone));
            if !self.tasks {
                self.push(thread, Frame::Delivering);
                self.push(thread, self.dividing(own, shares[own].0, shares[own].1));
            }
            return;
        }
        self.push(thread, Frame::Sharing { node: node + 1 });
        if self.nodes[node].workers.is_empty() || node == own && !self.tasks {
            return;
        }
        trace.atomic(self.nodes[node].submitted);
        self.tasks_left += 1;
        let line = self.workers[thread].allocate(trace);
        trace.compute(SPAWN_INSTRUCTIONS);
        trace.write(line);
        let job = Job::Share { start: shares[node].0, end: shares[node].1, line };
        if self.tasks {
            self.nodes[node].bound.push(job, trace);
            trace.read(self.idle);
            if self.sleeping > 0 {
                self.push(thread, Frame::Waking { node, only: true });
            }
        } else {
            self.nodes[node].injector.push(job, trace);
            self.work_made(thread, node, trace);
        }
    }

    fn shares(&self) -> Vec<(usize, usize)> {
        let workers: Vec<usize> = self.nodes.iter().map(|node| node.workers.len()).collect();
        let share = |node| self.elements.share(&workers, node);
        (0..workers.len()).map(|node| (share(node).start, share(node).end)).collect()
    }

    /// A node's share is divided among its workers.
    fn dividing(&self, node: usize, start: usize, end: usize) -> Frame {
        Frame::Dividing { start, end, divisions: self.nodes[node].workers.len() }
    }

    /// The scope's owner counts without an atomic.
    pub(super) fn spawn(&mut self, thread: usize, next: usize, end: usize, trace: &mut Trace) {
        if next == end {
            return;
        }
        if thread == 0 {
            trace.read(self.submitted_alone);
            trace.write(self.submitted_alone);
        } else {
            trace.atomic(self.node_of(thread).submitted);
        }
        self.tasks_left += 1;
        self.push(thread, Frame::Spawning { next: next + 1, end });
        self.push(thread, Frame::Queueing { index: next });
    }

    pub(super) fn queue(&mut self, thread: usize, index: usize, trace: &mut Trace) {
        let line = self.workers[thread].take_block(trace);
        trace.compute(SPAWN_INSTRUCTIONS);
        trace.write(line);
        self.queue_job(thread, Job::Element { index, line, owner: thread }, trace);
    }

    /// `Worker::push`: a sleeper is woken unless somebody searches.
    fn queue_job(&mut self, thread: usize, job: Job, trace: &mut Trace) {
        self.workers[thread].deque.push(job, trace);
        self.work_made(thread, self.workers[thread].node, trace);
    }

    fn work_made(&mut self, thread: usize, node: usize, trace: &mut Trace) {
        trace.read(self.idle);
        if self.sleeping > 0 && self.searching == 0 {
            self.push(thread, Frame::Waking { node, only: false });
        }
    }

    pub(super) fn run(&mut self, thread: usize, job: Job, trace: &mut Trace) {
        if matches!(job, Job::Half { .. }) && self.workers[thread].done > 0 {
            self.push(thread, Frame::Running(job));
            self.push(thread, Frame::Counting);
            return;
        }
        let node = self.workers[thread].node;
        match job {
            Job::Share { start, end, line } => {
                trace.chase(line);
                self.push(thread, Frame::Noting);
                if self.tasks {
                    self.push(thread, Frame::Spawning { next: start, end });
                } else {
                    self.push(thread, Frame::Delivering);
                    self.push(thread, self.dividing(node, start, end));
                }
            }
            Job::Element { index, line, owner } => {
                trace.compute(RUN_INSTRUCTIONS);
                trace.chase(line);
                self.push(thread, Frame::Noting);
                self.push(thread, Frame::Working { index });
                if owner != thread && self.workers[owner].node == node {
                    self.push(thread, Frame::Keeping { line, owner });
                    let (of, parcel) = &self.workers[thread].parcel;
                    if parcel.len() == PARCEL || *of != owner && !parcel.is_empty() {
                        self.push(thread, Frame::Returning);
                    }
                } else {
                    self.workers[thread].free.push(line, trace);
                }
            }
            Job::Half { start, end, divisions, owner, depth } => {
                let stack = self.stack(owner, depth);
                trace.chase(stack);
                trace.write(stack);
                trace.read(stack + 64);
                // Where it was taken by an idle worker it is divided anew.
                let least = if owner == thread { 0 } else { self.workers.len() };
                self.push(thread, Frame::Telling { owner, depth });
                self.push(thread, Frame::Dividing { start, end, divisions: divisions.max(least) });
            }
        }
    }

    /// `Plan::divide`: leaves the second half to others while they find nothing here, else does a part.
    pub(super) fn divide(
        &mut self,
        thread: usize,
        (start, end): (usize, usize),
        divisions: usize,
        trace: &mut Trace,
    ) {
        let size = end - start;
        let share = self.elements.len() / self.workers.len();
        let (least, most) = ((share / 32).max(1), (share / 16).max(1));
        if size == 0 {
            return;
        }
        let divides = size > least && {
            let dry = !self.workers[thread].deque.look(trace);
            dry || divisions > 0 && {
                trace.read(self.idle);
                self.searching + self.sleeping > 0
            }
        };
        if !divides {
            let part = start + size.min(most);
            if part < end {
                self.push(thread, Frame::Dividing { start: part, end, divisions });
            }
            self.push(thread, Frame::Leaf { next: start, end: part });
            return;
        }
        let (middle, divisions) = (start + size / 2, divisions / 2);
        let depth = self.workers[thread].frames.len();
        let job = Job::Half { start: middle, end, divisions, owner: thread, depth };
        let told = &mut self.workers[thread].told;
        told.resize(told.len().max(depth + 1), false);
        told[depth] = false;
        self.push(thread, Frame::Joining { job, again: false });
        self.push(thread, Frame::Dividing { start, end: middle, divisions });
        trace.compute(JOIN_INSTRUCTIONS);
        trace.write(self.stack(thread, depth));
        trace.write(self.stack(thread, depth) + 64);
        self.queue_job(thread, job, trace);
    }

    /// `Worker::take_back_or_wait`.
    pub(super) fn join(&mut self, thread: usize, job: Job, again: bool, trace: &mut Trace) {
        let Job::Half { start, end, divisions, depth, .. } = job else { return };
        if again {
            if self.workers[thread].done > 0 {
                self.push(thread, Frame::Joining { job, again });
                self.push(thread, Frame::Counting);
                return;
            }
            trace.read(self.stack(thread, depth) + 64);
            if self.workers[thread].told[depth] {
                return;
            }
        }
        trace.compute(JOIN_INSTRUCTIONS);
        match self.workers[thread].deque.pop(trace) {
            Some(own) if own == job => self.push(thread, Frame::Dividing { start, end, divisions }),
            Some(other) => {
                self.push(thread, Frame::Joining { job, again: true });
                self.push(thread, Frame::Running(other));
            }
            None => self.push(thread, Frame::Until(Event::Half { depth })),
        }
    }

    /// Counts what it has done; the waiter is woken if an alarm rings.
    pub(super) fn count(&mut self, thread: usize, trace: &mut Trace) {
        let done = std::mem::take(&mut self.workers[thread].done);
        trace.atomic(self.node_of(thread).done);
        self.tasks_left -= done;
        let alarm = &mut self.nodes[self.workers[thread].node].alarm;
        match *alarm {
            Some(left) if left <= done => {
                *alarm = None;
                self.tell(thread, 0, trace);
            }
            Some(left) => *alarm = Some(left - done),
            None => {}
        }
    }
}
