//! The pool's queues: which lines their operations touch.

use super::super::APART;
use super::Job;
use crate::Trace;
use std::collections::VecDeque;

/// Bytes of a job.
const JOB: u64 = 16;
/// Jobs that a deque has room for at first, as in the runtime.
const ROOM: u64 = 256;
/// And at most; more are held at the same places.
const MOST_ROOM: u64 = 16_384;
/// Instructions of growing by a line of jobs (estimate).
const COPY_INSTRUCTIONS: u64 = 16;
/// Jobs from outside that a node has room for; more are held at the same places.
const INJECTED: usize = 64;

/// `job/deque.rs` of the runtime: its owner writes `back`, others `taken`, which has the lock and how many
/// were taken.
pub(super) struct Deque {
    jobs: VecDeque<Job>,
    /// How many were taken.
    front: u64,
    room: u64,
    full_at: u64,
    /// A thief is there.
    pub(super) locked: bool,
    back_word: u64,
    pub(super) taken_word: u64,
    /// A buffer of n jobs lies n jobs from here, so that each has its place.
    slots: u64,
}

impl Deque {
    pub(super) const BYTES: u64 = 2 * APART + 2 * MOST_ROOM * JOB;

    pub(super) fn at(base: u64) -> Self {
        Self {
            jobs: VecDeque::new(),
            front: 0,
            room: ROOM,
            full_at: ROOM,
            locked: false,
            back_word: base,
            taken_word: base + APART,
            slots: base + 2 * APART,
        }
    }

    fn back(&self) -> u64 {
        self.front + self.jobs.len() as u64
    }

    fn slot(&self, index: u64) -> u64 {
        self.slots + (self.room + index % self.room) * JOB
    }

    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Anybody's look.
    pub(super) fn look(&self, trace: &mut Trace) -> bool {
        trace.read(self.taken_word);
        trace.read(self.back_word);
        self.has_jobs()
    }

    /// The owner's.
    pub(super) fn push(&mut self, job: Job, trace: &mut Trace) {
        trace.read(self.back_word);
        if self.back() == self.full_at {
            self.make_room(trace);
        }
        trace.write(self.slot(self.back()));
        trace.write(self.back_word);
        self.jobs.push_back(job);
    }

    /// The owner's.
    pub(super) fn pop(&mut self, trace: &mut Trace) -> Option<Job> {
        if !self.look(trace) {
            return None;
        }
        trace.atomic(self.back_word);
        trace.read(self.taken_word);
        let job = self.jobs.pop_back();
        trace.chase(self.slot(self.back()));
        job
    }

    /// The owner makes sure that so many pushes lock nothing.
    pub(super) fn reserve(&mut self, jobs: u64, trace: &mut Trace) {
        if self.back() + jobs > self.full_at {
            self.make_room(trace);
        }
    }

    fn make_room(&mut self, trace: &mut Trace) {
        trace.atomic(self.taken_word);
        if self.jobs.len() as u64 > self.room / 2 && self.room < MOST_ROOM {
            let room = 2 * self.room;
            for index in (self.front..self.back()).step_by((64 / JOB) as usize) {
                trace.compute(COPY_INSTRUCTIONS);
                trace.read(self.slot(index));
                trace.write(self.slots + (room + index % room) * JOB);
            }
            self.room = room;
        }
        self.full_at = (self.front + self.room).max(self.back() + 1);
        trace.atomic(self.taken_word);
    }

    /// A thief that has the lock says that it takes half of the jobs, no more than `most`, and reads them.
    pub(super) fn claim(&mut self, most: usize, trace: &mut Trace) -> Vec<Job> {
        let number = self.jobs.len().div_ceil(2).min(most);
        trace.read(self.back_word);
        if number == 0 {
            return Vec::new();
        }
        trace.atomic(self.taken_word);
        (self.front..self.front + number as u64).for_each(|index| trace.chase(self.slot(index)));
        self.front += number as u64;
        self.jobs.drain(..number).collect()
    }
}

/// `injector.rs` of the runtime, for jobs from outside: one word has the lock, how many there are, and where.
pub(super) struct Injector {
    jobs: VecDeque<Job>,
    taken: usize,
    word: u64,
    slots: u64,
}

impl Injector {
    pub(super) const BYTES: u64 = APART + (INJECTED as u64 * JOB).next_multiple_of(APART);

    pub(super) fn at(base: u64) -> Self {
        Self { jobs: VecDeque::new(), taken: 0, word: base, slots: base + APART }
    }

    fn slot(&self, index: usize) -> u64 {
        self.slots + (index % INJECTED) as u64 * JOB
    }

    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(super) fn look(&self, trace: &mut Trace) -> bool {
        trace.read(self.word);
        self.has_jobs()
    }

    pub(super) fn push(&mut self, job: Job, trace: &mut Trace) {
        trace.atomic(self.word);
        trace.write(self.slot(self.taken + self.jobs.len()));
        trace.atomic(self.word);
        self.jobs.push_back(job);
    }

    pub(super) fn take(&mut self, trace: &mut Trace) -> Option<Job> {
        if !self.look(trace) {
            return None;
        }
        trace.atomic(self.word);
        trace.chase(self.slot(self.taken));
        trace.atomic(self.word);
        self.taken += 1;
        self.jobs.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn half(depth: usize) -> Job {
        Job::Half { start: 0, end: 2, divisions: 0, owner: 0, depth }
    }

    /// Lines that are written, and what is waited for.
    fn touched(operation: impl FnOnce(&mut Trace)) -> (Vec<u64>, Vec<u64>) {
        let mut trace = Trace::default();
        operation(&mut trace);
        let ops: Vec<Op> = trace.ops().collect();
        let written = ops.iter().filter_map(|op| match *op {
            Op::Write { address, .. } | Op::Atomic { address, .. } => Some(address / 64 * 64),
            _ => None,
        });
        let read = ops.iter().filter_map(|op| match *op {
            Op::Read { address, .. } | Op::Chase { address, .. } => Some(address / 64 * 64),
            _ => None,
        });
        (written.collect(), read.collect())
    }

    #[test]
    fn a_push_touches_nothing_that_thieves_write() {
        let mut deque = Deque::at(1 << 20);
        let (written, read) = touched(|trace| deque.push(half(0), trace));
        assert!(!written.contains(&deque.taken_word) && !read.contains(&deque.taken_word));
        assert!(written.contains(&deque.back_word));
    }

    #[test]
    fn a_thief_takes_half_the_oldest_first_and_writes_one_line() {
        let mut deque = Deque::at(1 << 20);
        (0..10).for_each(|depth| deque.push(half(depth), &mut Trace::default()));
        let mut jobs = Vec::new();
        let (written, _) = touched(|trace| jobs = deque.claim(16, trace));
        assert_eq!(jobs, (0..5).map(half).collect::<Vec<_>>());
        assert_eq!(written, [deque.taken_word]);
        assert_eq!(deque.pop(&mut Trace::default()), Some(half(9)));
    }

    #[test]
    fn it_grows_when_it_is_full_and_stays_as_it_is() {
        let mut deque = Deque::at(1 << 20);
        for depth in 0..1000 {
            deque.push(half(depth), &mut Trace::default());
        }
        assert_eq!(deque.room, 1024);
        while deque.has_jobs() {
            deque.claim(16, &mut Trace::default());
        }
        for depth in 0..10_000 {
            deque.push(half(depth), &mut Trace::default());
            assert_eq!(deque.pop(&mut Trace::default()), Some(half(depth)));
            deque.push(half(depth), &mut Trace::default());
            assert_eq!(deque.claim(16, &mut Trace::default()), [half(depth)]);
        }
        assert_eq!(deque.room, 1024);
    }
}
