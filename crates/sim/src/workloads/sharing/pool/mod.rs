//! Parallel foreach in `nodewise-runtime`'s pool, step by step: its deques, queues for each node, tally of
//! done tasks and sleep. Each step touches the lines that threads share as the runtime's code does. Steps of
//! different threads do not overlap but in what they wait for.
//!
//! Three things are left out. Callers work along, which they do on one node only. A barrier of the system
//! interrupts the other CPUs. An owner finds a thief at its last job and waits for it.

mod idle;
mod queues;
mod work;

use super::{APART, FIRST_NODES, PAUSE, elements::Elements};
use crate::{Area, Error, Program, Progress, Role, Space, Trace, workloads::Parameters};
use idle::Cursor;
use nodewise_hardware::MOST_NODES;
use queues::{Deque, Injector};

/// Blocks of tasks that a worker keeps, and those of a peer's that it sends back at once, as in the runtime.
const BLOCKS: u64 = 16_384;
const PARCEL: usize = 64;
/// Frames of a worker's stack that jobs of others are in; deeper ones are at the same places.
const DEPTH: u64 = 64;

/// Instructions of an empty task, half of them in spawning it: 158 were counted (docs/journal/2026-11.md).
const SPAWN_INSTRUCTIONS: u64 = 78;
const RUN_INSTRUCTIONS: u64 = 80;
/// Instructions of allocating a block (estimate: what malloc had of an empty task before blocks were kept).
const ALLOCATION_INSTRUCTIONS: u64 = 200;
/// Instructions of dividing a range and taking a half back, and of looking into a queue, beside those that
/// touch what is shared (estimates).
const JOIN_INSTRUCTIONS: u64 = 40;
const LOOK_INSTRUCTIONS: u64 = 6;
/// The system calls: barrier and futex (estimate: a microsecond at two instructions a cycle of 2.1 GHz).
const CALL_INSTRUCTIONS: u64 = 4200;
/// Instructions from a wake-up to the first one of the worker that was woken (estimate: 5 us).
const WAKE_INSTRUCTIONS: u64 = 21_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// A node's share of the elements: a task in this line.
    Share { start: usize, end: usize, line: u64 },
    /// A spawned task, the line it is in, and whose that is.
    Element { index: usize, line: u64, owner: usize },
    /// The second half of a range, in a frame of the worker that divided it.
    Half { start: usize, end: usize, divisions: usize, owner: usize, depth: usize },
}

#[derive(Clone, Copy)]
enum Frame {
    /// Makes what lies on its node.
    Making,
    /// The loop from outside: each node is given its share.
    Sharing {
        node: usize,
    },
    /// Works until it has happened, sleeping while there is nothing to do.
    Until(Event),
    /// A task for each of these elements: it is counted, then queued.
    Spawning {
        next: usize,
        end: usize,
    },
    Queueing {
        index: usize,
    },
    Dividing {
        start: usize,
        end: usize,
        divisions: usize,
    },
    Leaf {
        next: usize,
        end: usize,
    },
    /// The first half is done: the second, which is this job, is taken back, or waited for.
    Joining {
        job: Job,
        again: bool,
    },
    Running(Job),
    /// Blocks of a peer's tasks go back, before others are kept.
    Returning,
    Keeping {
        line: u64,
        owner: usize,
    },
    Working {
        index: usize,
    },
    /// A node's share of a range was done.
    Delivering,
    /// A task was done, to be counted on its node later.
    Noting,
    Counting,
    /// A half was done for another worker.
    Telling {
        owner: usize,
        depth: usize,
    },
    /// Looks into others' queues from here on.
    Looking(Cursor),
    Taking {
        node: usize,
        bound: bool,
    },
    Locking {
        victim: usize,
    },
    Claiming {
        victim: usize,
    },
    Unlocking {
        victim: usize,
    },
    BeginningSearch,
    EndingSearch,
    /// Is on its way to bed, unless this has happened.
    LyingDown(Event),
    Asleep(Event),
    /// Takes a sleeper of this node off the list, or of another, then wakes it.
    Waking {
        node: usize,
        only: bool,
    },
    Rousing(usize),
}

#[derive(Clone, Copy)]
enum Event {
    Stop,
    AllDone,
    Half { depth: usize },
}

struct Worker {
    node: usize,
    frames: Vec<Frame>,
    deque: Deque,
    /// How many blocks it has allocated, those that are free again, those that peers have sent back, and
    /// those to be sent back to one.
    blocks: u64,
    free: List,
    sent_back: List,
    parcel: (usize, Vec<u64>),
    /// Tasks that it has done and not yet counted on its node.
    done: usize,
    /// Halves that others have done, by depth.
    told: Vec<bool>,
    /// Looks in vain since it last had something to do.
    looks: u32,
    /// It is counted as searching.
    searching: bool,
    asleep: bool,
    /// It was woken, and is not yet on its CPU.
    woken: bool,
    random: u64,
    bed: u64,
    blocks_base: u64,
    stack_base: u64,
    sent_back_word: u64,
    end: u64,
}

/// Addresses of free blocks, eight to a line.
struct List {
    blocks: Vec<u64>,
    base: u64,
}

struct Node {
    workers: Vec<usize>,
    injector: Injector,
    bound: Injector,
    sleepers: Vec<usize>,
    /// Tasks to be done here until the waiter is woken.
    alarm: Option<usize>,
    submitted: u64,
    done: u64,
    list: u64,
    base: u64,
    end: u64,
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
    /// The lines that tasks look at in the scope, that its owner counts submitted tasks in, and that shares
    /// put their results into.
    scope: u64,
    submitted_alone: u64,
    results: u64,
    searching: usize,
    sleeping: usize,
    /// Tasks that were submitted and not counted as done.
    tasks_left: usize,
    over: bool,
}

impl Pool {
    /// A task for each element: a scope, in it a task on each node (`spawn_on`) that spawns those of its
    /// share.
    pub fn tasks(parameters: Parameters) -> Self {
        Self::new(parameters, true)
    }

    /// `parallel_for` from outside.
    pub fn range(parameters: Parameters) -> Self {
        Self::new(parameters, false)
    }

    fn new(parameters: Parameters, tasks: bool) -> Self {
        let mut space = Space::new();
        let elements = Elements::new(&mut space, parameters);
        let base = space.area("scope", 4 * APART, Role::WriteShared);
        let mut nodes: Vec<_> = (0..FIRST_NODES).map(|node| Node::new(&mut space, node)).collect();
        let workers = (0..parameters.threads).map(|worker| Worker::new(&mut space, worker)).collect();
        nodes.extend((FIRST_NODES..MOST_NODES).map(|node| Node::new(&mut space, node)));
        Self {
            areas: space.into_areas(),
            elements,
            tasks,
            workers,
            nodes,
            idle: base,
            scope: base + APART,
            submitted_alone: base + 2 * APART,
            results: base + 3 * APART,
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

    /// The number of nodes with workers.
    fn used_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| !node.workers.is_empty()).count()
    }

    /// A frame's closure; its result and whether it is there are in the next line.
    fn stack(&self, worker: usize, depth: usize) -> u64 {
        self.workers[worker].stack_base + depth as u64 % DEPTH * APART
    }

    fn push(&mut self, worker: usize, frame: Frame) {
        self.workers[worker].frames.push(frame);
    }

    fn make(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if thread == 0 {
            self.elements.touch(trace);
            trace.write(self.idle);
            self.push(0, Frame::Sharing { node: 0 });
        }
        let pages = |from: u64, to: u64, trace: &mut Trace| {
            (from..to).step_by(4096).for_each(|page| trace.write(page));
        };
        let worker = &self.workers[thread];
        pages(worker.bed, worker.end, trace);
        let node = self.node_of(thread);
        if node.workers.first() == Some(&thread) {
            pages(node.base, node.end, trace);
        }
        Progress::Barrier
    }

    fn step(&mut self, thread: usize, frame: Frame, trace: &mut Trace) {
        match frame {
            Frame::Making => {}
            Frame::Sharing { node } => self.share(thread, node, trace),
            Frame::Until(event) => self.until(thread, event, trace),
            Frame::Spawning { next, end } => self.spawn(thread, next, end, trace),
            Frame::Queueing { index } => self.queue(thread, index, trace),
            Frame::Dividing { start, end, divisions } => {
                self.divide(thread, (start, end), divisions, trace);
            }
            Frame::Leaf { next, end } => {
                if next + 1 < end {
                    self.push(thread, Frame::Leaf { next: next + 1, end });
                }
                self.elements.work(next, trace);
            }
            Frame::Joining { job, again } => self.join(thread, job, again, trace),
            Frame::Running(job) => self.run(thread, job, trace),
            Frame::Returning => {
                let (owner, blocks) = &mut self.workers[thread].parcel;
                let (owner, blocks) = (*owner, std::mem::take(blocks));
                let owner = &mut self.workers[owner];
                trace.atomic(owner.sent_back_word);
                for line in blocks {
                    owner.sent_back.push(line, trace);
                }
                trace.write(owner.sent_back_word);
            }
            Frame::Keeping { line, owner } => {
                let parcel = &mut self.workers[thread].parcel;
                parcel.0 = owner;
                parcel.1.push(line);
            }
            Frame::Working { index } => {
                trace.read(self.scope);
                self.elements.work(index, trace);
            }
            Frame::Delivering => trace.atomic(self.results),
            Frame::Noting => self.workers[thread].done += 1,
            Frame::Counting => self.count(thread, trace),
            Frame::Telling { owner, depth } => {
                trace.write(self.stack(owner, depth) + 64);
                self.workers[owner].told[depth] = true;
                self.tell(thread, owner, trace);
            }
            Frame::Looking(cursor) => self.look(thread, cursor, trace),
            Frame::Taking { node, bound } => self.take(thread, node, bound, trace),
            Frame::Locking { victim } => self.lock(thread, victim, trace),
            Frame::Claiming { victim } => self.claim(thread, victim, trace),
            Frame::Unlocking { victim } => {
                trace.atomic(self.workers[victim].deque.taken_word);
                self.workers[victim].deque.locked = false;
            }
            Frame::BeginningSearch => self.begin_search(thread, trace),
            Frame::EndingSearch => self.end_search(thread, trace),
            Frame::LyingDown(event) => self.lie_down(thread, event, trace),
            Frame::Asleep(event) => self.fall_asleep(thread, event, trace),
            Frame::Waking { node, only } => self.wake(thread, node, only, trace),
            Frame::Rousing(sleeper) => self.rouse(sleeper, trace),
        }
    }
}

impl Worker {
    fn new(space: &mut Space, index: usize) -> Self {
        let bytes = APART + Deque::BYTES + (DEPTH + 1) * APART + BLOCKS * (64 + 2 * 8);
        let bed = space.area(format!("worker {index}"), bytes, Role::WriteShared);
        let stack_base = bed + APART + Deque::BYTES;
        let sent_back_word = stack_base + DEPTH * APART;
        let blocks_base = sent_back_word + APART;
        let list = |number: u64| List { blocks: Vec::new(), base: blocks_base + BLOCKS * (64 + number * 8) };
        Self {
            node: 0,
            frames: vec![Frame::Until(Event::Stop), Frame::Making],
            deque: Deque::at(bed + APART),
            blocks: 0,
            free: list(0),
            sent_back: list(1),
            parcel: (index, Vec::new()),
            done: 0,
            told: Vec::new(),
            looks: 0,
            searching: false,
            asleep: false,
            woken: false,
            random: (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            bed,
            blocks_base,
            stack_base,
            sent_back_word,
            end: bed + bytes,
        }
    }

    fn take_block(&mut self, trace: &mut Trace) -> u64 {
        if self.free.blocks.is_empty() {
            trace.atomic(self.sent_back_word);
            std::mem::swap(&mut self.free, &mut self.sent_back);
            trace.write(self.sent_back_word);
        }
        self.free.pop(trace).unwrap_or_else(|| self.allocate(trace))
    }

    fn allocate(&mut self, trace: &mut Trace) -> u64 {
        trace.compute(ALLOCATION_INSTRUCTIONS);
        self.blocks += 1;
        self.blocks_base + self.blocks % BLOCKS * 64
    }
}

impl List {
    fn push(&mut self, block: u64, trace: &mut Trace) {
        if (self.blocks.len() as u64) < BLOCKS {
            trace.write(self.base + self.blocks.len() as u64 * 8);
            self.blocks.push(block);
        }
    }

    fn pop(&mut self, trace: &mut Trace) -> Option<u64> {
        let block = self.blocks.pop()?;
        trace.read(self.base + self.blocks.len() as u64 * 8);
        Some(block)
    }
}

impl Node {
    fn new(space: &mut Space, index: usize) -> Self {
        let bytes = 2 * Injector::BYTES + 3 * APART;
        let base = space.area(format!("node {index}"), bytes, Role::WriteShared);
        let words = base + 2 * Injector::BYTES;
        Self {
            workers: Vec::new(),
            injector: Injector::at(base),
            bound: Injector::at(base + Injector::BYTES),
            sleepers: Vec::new(),
            alarm: None,
            submitted: words,
            done: words + APART,
            list: words + 2 * APART,
            base,
            end: base + bytes,
        }
    }
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

    fn check(&self) -> Result<(), Error> {
        self.elements.check()
    }
}
