//! Parallel foreach in `nodewise-runtime`'s pool: its deques, queues for each node, tally of done tasks and sleep, step by step.
//!
//! What is left out: the alarms of the tally, which a waiter sets only before it sleeps, and callers that work along, which they do on one
//! node only.

use std::collections::VecDeque;

use super::{APART, MOST_NODES, PAUSE, elements::Elements};
use crate::{Area, Program, Progress, Role, Space, Trace, workloads::Parameters};

/// Jobs that a deque's memory holds; more are held, at the same places.
const SLOTS: u64 = 4096;
/// Bytes of a job.
const JOB: u64 = 16;
/// Blocks of tasks that a worker uses in turn.
const BLOCKS: u64 = 4096;
/// Frames of a worker's stack that jobs of others are in; deeper ones are at the same places.
const DEPTH: u64 = 64;

/// Instructions of making a job, of dividing a range, of looking into a queue, beside those that touch what is shared (estimates).
const JOB_INSTRUCTIONS: u64 = 40;
const LOOK_INSTRUCTIONS: u64 = 6;
/// The system calls: barrier and futex (estimate: a microsecond at two instructions a cycle of 2.1 GHz).
const CALL_INSTRUCTIONS: u64 = 4200;
/// From a wake-up to the first instruction of who was woken (estimate: 5 us).
const WAKE_INSTRUCTIONS: u64 = 21_000;
/// `PAUSES`, `QUIET_PAUSES`, `PAUSES_INSIDE` and `BATCH` of the runtime.
const ROUNDS: u32 = 7;
const QUIET_ROUNDS: u32 = 3;
const ROUNDS_INSIDE: u32 = 2;
const BATCH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// A node's share of the elements: a task, or what the loop's own worker does itself.
    Share { start: usize, end: usize, task: bool },
    /// A spawned task, the line it is in, and whose that is.
    Element { index: usize, line: u64, owner: usize },
    /// The second half of a range, in a frame of the worker that divided it.
    Half { start: usize, end: usize, divisions: usize, owner: usize, depth: usize },
}

#[derive(Clone, Copy)]
enum Frame {
    /// Makes what lies on its node.
    Making,
    /// Works until it has happened, sleeping while there is nothing to do.
    Until(Event),
    Spawning {
        next: usize,
        end: usize,
    },
    Dividing {
        start: usize,
        end: usize,
        divisions: usize,
        taken: bool,
    },
    /// The first half is done: the second is taken back, or waited for.
    Joining {
        job: Job,
    },
    Leaf {
        next: usize,
        end: usize,
    },
    Running(Job),
    /// A task was done.
    Counting,
    /// A half was done for another worker.
    Telling {
        owner: usize,
        depth: usize,
    },
    /// The loop from outside: each node is given its share.
    Sharing {
        node: usize,
    },
    /// Takes a sleeper of this node off the list, then wakes it.
    Waking(usize),
    Woken(usize),
    Stealing(Place),
    /// Is on its way to bed, unless this has happened.
    LyingDown(Event),
}

#[derive(Clone, Copy)]
enum Event {
    Stop,
    AllDone,
    Half { depth: usize },
}

/// Where a job may be.
#[derive(Clone, Copy)]
enum Place {
    Node(usize),
    Deque(usize),
}

struct Worker {
    node: usize,
    frames: Vec<Frame>,
    /// Own jobs, the youngest last.
    deque: VecDeque<Job>,
    /// How many were ever pushed, for where in memory they are.
    pushed: u64,
    /// How many it has made, and those that are free again.
    blocks: u64,
    free: Vec<u64>,
    /// Tasks that it has done and not yet counted on its node.
    done: usize,
    /// Halves that others have done, by depth.
    told: Vec<bool>,
    /// Looks in vain since it last had something to do.
    round: u32,
    /// It is counted as searching.
    searching: bool,
    asleep: bool,
    /// It was woken, and is not yet on its CPU.
    woken: bool,
    random: u64,
    deque_base: u64,
    blocks_base: u64,
    stack_base: u64,
    bed: u64,
    /// Where others send its blocks back to.
    sent_back: u64,
}

struct Node {
    workers: Vec<usize>,
    injected: VecDeque<Job>,
    sleepers: Vec<usize>,
    injector: u64,
    bound: u64,
    submitted: u64,
    done: u64,
    list: u64,
}

/// A pool with a worker for each thread.
pub struct Pool {
    areas: Vec<Area>,
    elements: Elements,
    /// Whether each element is a task of its own.
    tasks: bool,
    workers: Vec<Worker>,
    nodes: Vec<Node>,
    /// The word of searching and sleeping workers.
    idle: u64,
    searching: usize,
    sleeping: usize,
    tasks_left: usize,
    over: bool,
}

impl Pool {
    /// A task for each element: `scope`, a task for each node, and `spawn` there.
    pub fn tasks(parameters: Parameters) -> Pool {
        Pool::new(parameters, true)
    }

    /// `parallel_for` from outside.
    pub fn range(parameters: Parameters) -> Pool {
        Pool::new(parameters, false)
    }

    fn new(parameters: Parameters, tasks: bool) -> Pool {
        let mut space = Space::new();
        let elements = Elements::new(&mut space, parameters);
        let mut word = |name: String, words: u64| space.area(name, words * APART, Role::WriteShared);
        let idle = word("idle workers".into(), 1);
        let mut node = |node: usize| {
            let base = word(format!("node {node}"), 5);
            let at = |number: u64| base + number * APART;
            Node {
                workers: Vec::new(),
                injected: VecDeque::new(),
                sleepers: Vec::new(),
                injector: at(0),
                bound: at(1),
                submitted: at(2),
                done: at(3),
                list: at(4),
            }
        };
        let nodes = (0..MOST_NODES).map(&mut node).collect();
        let worker = |index: usize| {
            let bytes = (3 + DEPTH) * APART + SLOTS * JOB + BLOCKS * 64;
            let base = space.area(format!("worker {index}"), bytes, Role::WriteShared);
            let stack_base = base + 2 * APART + SLOTS * JOB;
            Worker {
                node: 0,
                frames: vec![Frame::Until(Event::Stop), Frame::Making],
                deque: VecDeque::new(),
                pushed: 0,
                blocks: 0,
                free: Vec::new(),
                done: 0,
                told: Vec::new(),
                round: 0,
                searching: false,
                asleep: false,
                woken: false,
                random: (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                deque_base: base + APART,
                blocks_base: stack_base + (DEPTH + 1) * APART,
                sent_back: stack_base + DEPTH * APART,
                stack_base,
                bed: base,
            }
        };
        Pool {
            workers: (0..parameters.threads).map(worker).collect(),
            areas: space.into_areas(),
            elements,
            tasks,
            nodes,
            idle,
            searching: 0,
            sleeping: 0,
            tasks_left: 0,
            over: false,
        }
    }

    /// The node that a frame of this worker counts on.
    fn node_of(&self, worker: usize) -> &Node {
        &self.nodes[self.workers[worker].node]
    }

    fn used_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| !node.workers.is_empty()).count()
    }

    fn stack(&self, worker: usize, depth: usize) -> u64 {
        self.workers[worker].stack_base + depth as u64 % DEPTH * APART
    }

    fn make(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if thread == 0 {
            self.elements.touch(trace);
            trace.write(self.idle);
            self.workers[0].frames.push(Frame::Sharing { node: 0 });
        }
        let worker = &self.workers[thread];
        for page in (worker.bed..worker.blocks_base + BLOCKS * 64).step_by(4096) {
            trace.write(page);
        }
        let node = self.node_of(thread);
        if node.workers.first() == Some(&thread) {
            for word in [node.injector, node.bound, node.submitted, node.done, node.list] {
                trace.write(word);
            }
        }
        Progress::Barrier
    }

    /// Pushes a job and wakes a sleeper unless somebody searches.
    fn push(&mut self, thread: usize, job: Job, trace: &mut Trace) {
        let worker = &mut self.workers[thread];
        trace.compute(JOB_INSTRUCTIONS);
        trace.read(worker.deque_base);
        trace.write(worker.deque_base + APART + worker.pushed % SLOTS * JOB);
        trace.write(worker.deque_base);
        worker.pushed += 1;
        worker.deque.push_back(job);
        let node = worker.node;
        self.work_made(thread, node, trace);
    }

    fn work_made(&mut self, thread: usize, node: usize, trace: &mut Trace) {
        trace.read(self.idle);
        if self.sleeping > 0 && self.searching == 0 {
            self.workers[thread].frames.push(Frame::Waking(node));
        }
    }

    /// Pushes a share of the work of each node, one node a piece; the own one is begun last.
    fn share(&mut self, thread: usize, node: usize, trace: &mut Trace) {
        if node == self.nodes.len() {
            let own = self.workers[thread].node;
            let shares = self.shares();
            let job = Job::Share { start: shares[own].0, end: shares[own].1, task: false };
            let frames = &mut self.workers[thread].frames;
            frames.push(Frame::Until(Event::AllDone));
            frames.push(Frame::Running(job));
            return;
        }
        self.workers[thread].frames.push(Frame::Sharing { node: node + 1 });
        if node == self.workers[thread].node || self.nodes[node].workers.is_empty() {
            return;
        }
        let (start, end) = self.shares()[node];
        trace.atomic(self.nodes[node].submitted);
        trace.write(self.nodes[node].injector);
        self.tasks_left += 1;
        self.nodes[node].injected.push_back(Job::Share { start, end, task: true });
        self.work_made(thread, node, trace);
    }

    fn shares(&self) -> Vec<(usize, usize)> {
        let workers: Vec<usize> = self.nodes.iter().map(|node| node.workers.len()).collect();
        let share = |node| self.elements.share(&workers, node);
        (0..workers.len()).map(|node| (share(node).start, share(node).end)).collect()
    }

    fn spawn(&mut self, thread: usize, next: usize, end: usize, trace: &mut Trace) {
        if next == end {
            return;
        }
        self.workers[thread].frames.push(Frame::Spawning { next: next + 1, end });
        // The scope's owner counts without an atomic.
        if thread > 0 {
            trace.atomic(self.node_of(thread).submitted);
        }
        self.tasks_left += 1;
        let worker = &mut self.workers[thread];
        let line = worker.free.pop().unwrap_or_else(|| {
            worker.blocks += 1;
            worker.blocks_base + worker.blocks % BLOCKS * 64
        });
        trace.write(line);
        self.push(thread, Job::Element { index: next, line, owner: thread }, trace);
    }

    fn run(&mut self, thread: usize, job: Job, trace: &mut Trace) {
        match job {
            Job::Share { start, end, task } => {
                let divisions = self.node_of(thread).workers.len();
                if task {
                    self.workers[thread].frames.push(Frame::Counting);
                }
                self.workers[thread].frames.push(if self.tasks {
                    Frame::Spawning { next: start, end }
                } else {
                    Frame::Dividing { start, end, divisions, taken: false }
                });
            }
            Job::Element { index, line, owner } => {
                trace.chase(line);
                trace.write(line);
                if owner == thread || self.workers[owner].node != self.workers[thread].node {
                    self.workers[thread].free.push(line);
                } else {
                    trace.atomic(self.workers[owner].sent_back);
                }
                self.elements.work(index, trace);
                self.workers[thread].frames.push(Frame::Counting);
            }
            Job::Half { start, end, divisions, owner, depth } => {
                trace.chase(self.stack(owner, depth));
                let frames = &mut self.workers[thread].frames;
                frames.push(Frame::Telling { owner, depth });
                frames.push(Frame::Dividing { start, end, divisions, taken: owner != thread });
            }
        }
    }

    fn divide(
        &mut self,
        thread: usize,
        range: (usize, usize),
        divisions: usize,
        taken: bool,
        trace: &mut Trace,
    ) {
        let (start, end) = range;
        let divisions = if taken { divisions.max(self.workers.len()) } else { divisions };
        if end - start < 2 || divisions == 0 {
            self.workers[thread].frames.push(Frame::Leaf { next: start, end });
            return;
        }
        let (middle, divisions) = (start + (end - start) / 2, divisions / 2);
        let depth = self.workers[thread].frames.len();
        let job = Job::Half { start: middle, end, divisions, owner: thread, depth };
        let told = &mut self.workers[thread].told;
        told.resize(told.len().max(depth + 1), false);
        told[depth] = false;
        let frames = &mut self.workers[thread].frames;
        frames.push(Frame::Joining { job });
        frames.push(Frame::Dividing { start, end: middle, divisions, taken: false });
        trace.write(self.stack(thread, depth));
        self.push(thread, job, trace);
    }

    fn join(&mut self, thread: usize, job: Job, trace: &mut Trace) {
        let Job::Half { start, end, divisions, depth, .. } = job else { return };
        let worker = &mut self.workers[thread];
        pop(worker, trace);
        if worker.deque.back() == Some(&job) {
            worker.deque.pop_back();
            worker.frames.push(Frame::Dividing { start, end, divisions, taken: false });
        } else {
            worker.frames.push(Frame::Until(Event::Half { depth }));
        }
    }

    fn happened(&self, thread: usize, event: Event, trace: &mut Trace) -> bool {
        match event {
            Event::Stop => self.over,
            Event::Half { depth } => {
                trace.read(self.stack(thread, depth));
                self.workers[thread].told[depth]
            }
            Event::AllDone => {
                for node in self.nodes.iter().filter(|node| !node.workers.is_empty()) {
                    trace.read(node.done);
                    trace.read(node.submitted);
                }
                // Its own it need not count.
                self.tasks_left == self.workers[thread].done
            }
        }
    }

    /// One look for work, or one step of falling asleep. The event's frame stays below.
    fn until(&mut self, thread: usize, event: Event, trace: &mut Trace) {
        if self.workers[thread].asleep {
            // A futex, of which nothing is seen but that the word in its bed changes.
            trace.compute(CALL_INSTRUCTIONS);
            trace.read(self.workers[thread].bed);
            self.workers[thread].frames.push(Frame::Until(event));
            return;
        }
        if std::mem::take(&mut self.workers[thread].woken) {
            trace.compute(WAKE_INSTRUCTIONS);
            self.workers[thread].frames.push(Frame::Until(event));
            return;
        }
        if self.happened(thread, event, trace) {
            self.end_search(thread, trace);
            if matches!(event, Event::AllDone) {
                self.over = true;
            }
            return;
        }
        self.workers[thread].frames.push(Frame::Until(event));
        pop(&mut self.workers[thread], trace);
        if let Some(job) = self.workers[thread].deque.pop_back() {
            self.end_search(thread, trace);
            self.workers[thread].frames.push(Frame::Running(job));
            return;
        }
        let done = std::mem::take(&mut self.workers[thread].done);
        if done > 0 {
            trace.atomic(self.node_of(thread).done);
            self.tasks_left -= done;
            if self.tasks_left == 0 {
                self.tell(thread, 0, trace);
            }
            return;
        }
        if let Some(place) = self.look(thread, trace) {
            self.workers[thread].frames.push(Frame::Stealing(place));
            return;
        }
        let round = self.workers[thread].round;
        let quiet = if self.used_nodes() > 1 { QUIET_ROUNDS } else { 0 };
        if round >= quiet && !self.workers[thread].searching {
            trace.atomic(self.idle);
            self.searching += 1;
            self.workers[thread].searching = true;
        } else if round < ROUNDS {
            trace.compute(PAUSE << round);
            self.workers[thread].round += 1;
        } else {
            trace.atomic(self.node_of(thread).list);
            trace.write(self.workers[thread].bed);
            self.workers[thread].frames.push(Frame::LyingDown(event));
        }
    }

    /// Looks into every queue in the order of the runtime, until one has something.
    fn look(&mut self, thread: usize, trace: &mut Trace) -> Option<Place> {
        let own = self.workers[thread].node;
        let used = self.used_nodes();
        trace.read(self.nodes[own].bound);
        // The nearest by number.
        let looked_at = if self.workers[thread].round > ROUNDS_INSIDE { used } else { 1 };
        for node in (0..looked_at).map(|step| (own + step) % used) {
            trace.compute(LOOK_INSTRUCTIONS);
            trace.read(self.nodes[node].injector);
            if !self.nodes[node].injected.is_empty() {
                return Some(Place::Node(node));
            }
            let mates = self.nodes[node].workers.len();
            let first = random_below(&mut self.workers[thread].random, mates as u64) as usize;
            for step in 0..mates {
                let victim = self.nodes[node].workers[(first + step) % mates];
                if victim == thread {
                    continue;
                }
                trace.compute(LOOK_INSTRUCTIONS);
                trace.read(self.workers[victim].deque_base);
                if !self.workers[victim].deque.is_empty() {
                    return Some(Place::Deque(victim));
                }
            }
        }
        None
    }

    fn steal(&mut self, thread: usize, place: Place, trace: &mut Trace) {
        let (word, job) = match place {
            Place::Node(node) => (self.nodes[node].injector, self.nodes[node].injected.pop_front()),
            Place::Deque(victim) => {
                let victim = &mut self.workers[victim];
                (victim.deque_base, victim.deque.pop_front())
            }
        };
        trace.atomic(word);
        let Some(job) = job else { return };
        self.end_search(thread, trace);
        self.workers[thread].frames.push(Frame::Running(job));
        if let Place::Deque(victim) = place {
            self.steal_more(thread, victim, trace);
        }
    }

    /// Up to half of the jobs, each as the first: the line is here meanwhile, unless others want it too.
    fn steal_more(&mut self, thread: usize, victim: usize, trace: &mut Trace) {
        let word = self.workers[victim].deque_base;
        let more = (self.workers[victim].deque.len() / 2).min(BATCH - 1);
        for _ in 0..more {
            let Some(job) = self.workers[victim].deque.pop_front() else { break };
            trace.read(word);
            trace.read(word + APART);
            trace.atomic(word);
            let worker = &mut self.workers[thread];
            trace.write(worker.deque_base + APART + worker.pushed % SLOTS * JOB);
            worker.pushed += 1;
            worker.deque.push_back(job);
        }
        trace.write(self.workers[thread].deque_base);
    }

    fn end_search(&mut self, thread: usize, trace: &mut Trace) {
        self.workers[thread].round = 0;
        if !std::mem::take(&mut self.workers[thread].searching) {
            return;
        }
        trace.atomic(self.idle);
        self.searching -= 1;
        // The last one looks whether there is more.
        let more = self.workers.iter().any(|worker| !worker.deque.is_empty());
        if self.searching == 0 && self.sleeping > 0 && more {
            let node = self.workers[thread].node;
            self.workers[thread].frames.push(Frame::Waking(node));
        }
    }

    fn lie_down(&mut self, thread: usize, event: Event, trace: &mut Trace) {
        trace.atomic(self.idle);
        trace.compute(CALL_INSTRUCTIONS);
        if self.happened(thread, event, trace) || self.look(thread, trace).is_some() {
            // Back again, as `wake` does.
            trace.write(self.node_of(thread).list);
            self.workers[thread].round = QUIET_ROUNDS;
            return;
        }
        let worker = &mut self.workers[thread];
        (worker.searching, worker.asleep) = (false, true);
        let node = worker.node;
        self.nodes[node].sleepers.push(thread);
        self.searching -= 1;
        self.sleeping += 1;
    }

    fn wake(&mut self, thread: usize, node: usize, trace: &mut Trace) {
        let count = self.nodes.len();
        for step in 0..count {
            let node = &mut self.nodes[(node + step) % count];
            if node.workers.is_empty() {
                continue;
            }
            trace.atomic(node.list);
            if let Some(sleeper) = node.sleepers.pop() {
                self.workers[thread].frames.push(Frame::Woken(sleeper));
                return;
            }
        }
    }

    fn woken(&mut self, sleeper: usize, trace: &mut Trace) {
        trace.atomic(self.idle);
        trace.write(self.workers[sleeper].bed);
        trace.compute(CALL_INSTRUCTIONS);
        self.searching += 1;
        self.sleeping -= 1;
        let worker = &mut self.workers[sleeper];
        (worker.asleep, worker.woken) = (false, true);
        (worker.searching, worker.round) = (true, QUIET_ROUNDS);
    }

    /// Wakes the worker that waits for something, if it sleeps.
    fn tell(&mut self, thread: usize, waiter: usize, trace: &mut Trace) {
        trace.read(self.workers[waiter].bed);
        let sleepers = &mut self.nodes[self.workers[waiter].node].sleepers;
        // Whoever takes it off the list wakes it.
        if let Some(place) = sleepers.iter().position(|&sleeper| sleeper == waiter) {
            sleepers.remove(place);
            self.workers[thread].frames.push(Frame::Woken(waiter));
        }
    }

    fn step(&mut self, thread: usize, frame: Frame, trace: &mut Trace) {
        match frame {
            Frame::Until(event) => self.until(thread, event, trace),
            Frame::Spawning { next, end } => self.spawn(thread, next, end, trace),
            Frame::Dividing { start, end, divisions, taken } => {
                self.divide(thread, (start, end), divisions, taken, trace);
            }
            Frame::Joining { job } => self.join(thread, job, trace),
            Frame::Leaf { next, end } if next < end => {
                self.workers[thread].frames.push(Frame::Leaf { next: next + 1, end });
                self.elements.work(next, trace);
            }
            Frame::Making | Frame::Leaf { .. } => {}
            Frame::Running(job) => self.run(thread, job, trace),
            Frame::Counting => {
                self.workers[thread].done += 1;
            }
            Frame::Telling { owner, depth } => {
                trace.write(self.stack(owner, depth));
                self.workers[owner].told[depth] = true;
                self.tell(thread, owner, trace);
            }
            Frame::Sharing { node } => self.share(thread, node, trace),
            Frame::Waking(node) => self.wake(thread, node, trace),
            Frame::Woken(sleeper) => self.woken(sleeper, trace),
            Frame::Stealing(place) => self.steal(thread, place, trace),
            Frame::LyingDown(event) => self.lie_down(thread, event, trace),
        }
    }
}

/// A look at the own deque from its young end.
fn pop(worker: &mut Worker, trace: &mut Trace) {
    trace.read(worker.deque_base);
    if !worker.deque.is_empty() {
        trace.write(worker.deque_base);
        // The fence between taking back `back` and looking at `front`.
        trace.compute(JOB_INSTRUCTIONS);
        trace.read(worker.deque_base + APART + (worker.pushed.wrapping_sub(1)) % SLOTS * JOB);
    }
}

/// Marsaglia's xorshift64, reduced by Lemire's multiplication, as in the runtime.
fn random_below(state: &mut u64, end: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    ((u128::from(*state) * u128::from(end)) >> 64) as u64
}

impl Program for Pool {
    fn threads(&self) -> usize {
        self.workers.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn placed(&mut self, nodes: &[usize]) {
        for (thread, &node) in nodes.iter().enumerate() {
            self.workers[thread].node = node;
            self.nodes[node].workers.push(thread);
        }
    }

    fn items(&self) -> Option<u64> {
        Some(self.elements.len() as u64)
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let Some(frame) = self.workers[thread].frames.pop() else { return Progress::Finished };
        if matches!(frame, Frame::Making) {
            return self.make(thread, trace);
        }
        if self.over && self.workers[thread].frames.is_empty() {
            return Progress::Finished;
        }
        self.step(thread, frame, trace);
        Progress::Running
    }

    fn check(&self) -> Result<(), String> {
        self.elements.check()
    }
}
