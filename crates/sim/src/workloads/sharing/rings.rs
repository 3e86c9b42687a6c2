//! Parallel foreach over queues that many threads put tasks into and take them from.

use super::{APART, FIRST_NODES, PAUSE, elements::Elements};
use crate::{Area, Error, Program, Progress, Role, Space, Trace, workloads::Parameters};
use nodewise_hardware::MOST_NODES;

/// Places of a queue.
const CELLS: usize = 1024;

/// Instructions of putting a task into a queue, or of taking one, beside those that touch what is shared.
const QUEUE_INSTRUCTIONS: u64 = 30;

/// Looks at its own cell in vain after which a worker looks at other nodes' queues.
const LOOKS: u32 = 4;

#[derive(Clone, Copy)]
enum Task {
    /// Puts tasks for these elements into the queue of its node.
    Share(usize, usize),
    Element(usize),
}

/// A bounded queue of many producers and consumers without a lock, about as good as one queue can be: `tail`
/// and `head` give out tickets by an atomic addition, and who has one fills or empties that cell, when the
/// cell itself says that it may (as in folly's `MPMCQueue`). So nobody tries in vain, and those who wait look
/// at different cells.
struct Ring {
    tail: u64,
    head: u64,
    cells: u64,
    /// All that were ever put.
    tasks: Vec<Task>,
    tickets: usize,
}

impl Ring {
    fn new(space: &mut Space, node: usize) -> Self {
        let area = space.area(format!("queue {node}"), (2 + CELLS as u64) * APART, Role::WriteShared);
        Self { tail: area, head: area + APART, cells: area + 2 * APART, tasks: Vec::new(), tickets: 0 }
    }

    fn cell(&self, number: usize) -> u64 {
        self.cells + (number % CELLS) as u64 * APART
    }

    fn touch(&self, trace: &mut Trace) {
        trace.write(self.tail);
        trace.write(self.head);
        (0..CELLS).for_each(|cell| trace.write(self.cell(cell)));
    }
}

#[derive(Clone, Copy)]
enum State {
    /// Makes what lies on its node.
    Making,
    /// Puts tasks of these elements into a queue, then counts itself as done; the submitter waits instead.
    Submitting { next: usize, end: usize },
    /// Has moved `tail` on; the task is there when the cell is written.
    Filling { next: usize, end: usize },
    /// Takes a ticket of its queue, or looks at the cell of the one it has.
    Looking,
    /// Looks whether anything is in the queue so many nodes on.
    LookingAcross { step: usize },
    /// Has seen the head of a queue, and there is a task.
    Seen { ring: usize, ticket: usize },
    /// May take this task.
    Taking { ring: usize, ticket: usize },
    /// Has done a task and counts it.
    Counting,
    /// Waits for all to be done: the submitter, at the end.
    Waiting,
}

struct Thread {
    state: State,
    group: usize,
    /// Its place in its own queue.
    ticket: Option<usize>,
    /// Looks in vain since the last task.
    vain: u32,
    /// Elements that it will put into the queue when it has taken something out of it.
    later: Option<(usize, usize)>,
}

impl Thread {
    /// Its next step when it has done something, or found nothing.
    fn next(&mut self) -> State {
        match self.later.take() {
            Some((next, end)) => State::Submitting { next, end },
            None => State::Looking,
        }
    }
}

/// The first thread submits, the others do what they find.
pub struct Rings {
    areas: Vec<Area>,
    elements: Elements,
    per_node: bool,
    /// One for all, or one for each node.
    queues: Vec<Ring>,
    /// How many tasks are left; with a count for each node, how many there are.
    count: u64,
    /// Each node's done tasks.
    done: Vec<u64>,
    threads: Vec<Thread>,
    /// Workers of each node.
    workers: Vec<usize>,
    tasks_left: usize,
    over: bool,
}

impl Rings {
    /// Submitting counts a task, doing it counts it back, both in the same word.
    pub fn shared(parameters: Parameters) -> Self {
        Self::new(parameters, false)
    }

    /// The talk's: "per-node pools, cross-node work stealing (only when one node is empty)", "two-stage task
    /// submitter", and its `NUMA_task_count`.
    pub fn per_node(parameters: Parameters) -> Self {
        Self::new(parameters, true)
    }

    fn new(parameters: Parameters, per_node: bool) -> Self {
        let mut space = Space::new();
        let elements = Elements::new(&mut space, parameters);
        let (first, groups) = if per_node { (FIRST_NODES, MOST_NODES) } else { (1, 1) };
        let done = |space: &mut Space, group: usize| {
            space.area(format!("done tasks {group}"), APART, Role::WriteShared)
        };
        let mut queues: Vec<_> = (0..first).map(|group| Ring::new(&mut space, group)).collect();
        let count = space.area("task count", APART, Role::WriteShared);
        let mut all_done: Vec<_> = (0..first).map(|group| done(&mut space, group)).collect();
        queues.extend((first..groups).map(|group| Ring::new(&mut space, group)));
        all_done.extend((first..groups).map(|group| done(&mut space, group)));
        let thread = |_| Thread { state: State::Making, group: 0, ticket: None, vain: 0, later: None };
        Self {
            areas: space.into_areas(),
            elements,
            per_node,
            queues,
            count,
            done: all_done,
            threads: (0..parameters.threads).map(thread).collect(),
            workers: Vec::new(),
            tasks_left: 0,
            over: false,
        }
    }

    fn make(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        let group = self.threads[thread].group;
        if thread == 0 {
            self.elements.touch(trace);
            trace.write(self.count);
        }
        if self.threads.iter().position(|other| other.group == group) == Some(thread) {
            self.queues[group].touch(trace);
            trace.write(self.done[group]);
        }
        self.threads[thread].state = match thread {
            0 => State::Submitting { next: 0, end: self.first_stage() },
            _ => State::Looking,
        };
        Progress::Barrier
    }

    /// The number of things that the submitter puts into queues itself: all elements, or a task for each
    /// node.
    fn first_stage(&self) -> usize {
        if self.per_node { self.workers.len() } else { self.elements.len() }
    }

    /// The submitter's, and that of a node's share.
    fn submit(&mut self, thread: usize, next: usize, end: usize, trace: &mut Trace) -> State {
        if next == end {
            if thread == 0 {
                return State::Waiting;
            }
            return State::Counting;
        }
        let ring = self.ring_of(thread, next);
        let put = self.queues[ring].tasks.len();
        if put.saturating_sub(self.queues[ring].tickets) >= CELLS {
            trace.compute(PAUSE);
            trace.read(self.queues[ring].cell(put));
            if thread == 0 {
                return State::Submitting { next, end };
            }
            self.threads[thread].later = Some((next, end));
            return State::Looking;
        }
        if thread == 0 && !self.per_node {
            trace.atomic(self.count);
            self.tasks_left += 1;
        }
        State::Filling { next, end }
    }

    fn fill(&mut self, thread: usize, next: usize, end: usize, trace: &mut Trace) -> State {
        let ring = self.ring_of(thread, next);
        let task = match thread {
            0 if self.per_node => {
                let share = self.elements.share(&self.workers, next);
                self.tasks_left += 1 + share.len();
                // All are counted before the first is there.
                trace.write(self.count);
                Task::Share(share.start, share.end)
            }
            _ => Task::Element(next),
        };
        trace.compute(QUEUE_INSTRUCTIONS);
        let ring = &mut self.queues[ring];
        trace.atomic(ring.tail);
        trace.write(ring.cell(ring.tasks.len()));
        ring.tasks.push(task);
        State::Submitting { next: next + 1, end }
    }

    fn ring_of(&self, thread: usize, next: usize) -> usize {
        match thread {
            0 if self.per_node => next,
            _ => self.threads[thread].group,
        }
    }

    /// How many groups of threads there are.
    fn groups(&self) -> usize {
        if self.per_node { self.workers.len() } else { 1 }
    }

    fn look(&mut self, thread: usize, trace: &mut Trace) -> State {
        let groups = self.groups();
        let state = &mut self.threads[thread];
        let ring = &mut self.queues[state.group];
        let Some(ticket) = state.ticket else {
            trace.compute(QUEUE_INSTRUCTIONS);
            trace.atomic(ring.head);
            state.ticket = Some(ring.tickets);
            ring.tickets += 1;
            return State::Looking;
        };
        trace.chase(ring.cell(ticket));
        if ticket < ring.tasks.len() {
            (state.ticket, state.vain) = (None, 0);
            return State::Taking { ring: state.group, ticket };
        }
        trace.compute(PAUSE);
        state.vain += 1;
        match state.next() {
            State::Looking if groups > 1 && state.vain % LOOKS == 0 => State::LookingAcross { step: 1 },
            next => next,
        }
    }

    fn look_across(&mut self, thread: usize, step: usize, trace: &mut Trace) -> State {
        let groups = self.groups();
        let index = (self.threads[thread].group + step) % groups;
        let ring = &self.queues[index];
        trace.compute(QUEUE_INSTRUCTIONS);
        trace.chase(ring.head);
        trace.chase(ring.cell(ring.tickets));
        if ring.tickets < ring.tasks.len() {
            return State::Seen { ring: index, ticket: ring.tickets };
        }
        if step + 1 < groups { State::LookingAcross { step: step + 1 } } else { State::Looking }
    }

    /// Not by an addition, since the ticket is wanted only if there is a task for it.
    fn exchange(&mut self, index: usize, ticket: usize, trace: &mut Trace) -> State {
        let ring = &mut self.queues[index];
        trace.atomic(ring.head);
        if ring.tickets != ticket {
            return State::Looking;
        }
        ring.tickets += 1;
        State::Taking { ring: index, ticket }
    }

    fn run(&mut self, ring: usize, ticket: usize, trace: &mut Trace) -> State {
        let ring = &self.queues[ring];
        trace.write(ring.cell(ticket));
        match ring.tasks[ticket] {
            Task::Element(index) => {
                self.elements.work(index, trace);
                State::Counting
            }
            Task::Share(next, end) => State::Submitting { next, end },
        }
    }

    fn wait(&mut self, trace: &mut Trace) -> State {
        trace.read(self.count);
        if self.per_node {
            self.done[..self.workers.len()].iter().for_each(|&done| trace.read(done));
        }
        trace.compute(PAUSE);
        self.over = self.tasks_left == 0;
        State::Waiting
    }
}

impl Program for Rings {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn placed(&mut self, nodes: &[usize]) {
        self.workers = vec![0; nodes.iter().max().map_or(1, |most| most + 1)];
        for (thread, &node) in nodes.iter().enumerate() {
            self.threads[thread].group = if self.per_node { node } else { 0 };
            self.workers[node] += usize::from(thread > 0);
        }
    }

    fn items(&self) -> Option<u64> {
        Some(self.elements.len() as u64)
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if self.over {
            return Progress::Finished;
        }
        if let [_] = self.threads[..] {
            // Nobody to submit to.
            (0..self.elements.len()).for_each(|index| self.elements.work(index, trace));
            return Progress::Finished;
        }
        self.threads[thread].state = match self.threads[thread].state {
            State::Making => return self.make(thread, trace),
            State::Submitting { next, end } => self.submit(thread, next, end, trace),
            State::Filling { next, end } => self.fill(thread, next, end, trace),
            State::Looking => self.look(thread, trace),
            State::LookingAcross { step } => self.look_across(thread, step, trace),
            State::Seen { ring, ticket } => self.exchange(ring, ticket, trace),
            State::Taking { ring, ticket } => self.run(ring, ticket, trace),
            State::Counting => {
                trace.atomic(if self.per_node { self.done[self.threads[thread].group] } else { self.count });
                self.tasks_left -= 1;
                self.threads[thread].next()
            }
            State::Waiting => self.wait(trace),
        };
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        self.elements.check()
    }
}
