//! The loop that runs a program's threads, whichever is most behind in simulated time.

use crate::turns::Turns;
use crate::{Error, ErrorKind, Op, Program, Progress, Trace};
use nodewise_hardware::{Hardware, Touch};

/// Simulated time after which a run is given up: times are 64-bit picoseconds.
const MOST_PS: u64 = u64::MAX / 4;

/// A machine that threads of a program run on.
pub(crate) trait Processors {
    /// The hardware.
    fn hardware(&mut self) -> &mut Hardware;

    /// The CPU on which a thread runs now.
    fn cpu(&self, thread: usize) -> usize;

    /// A thread's time.
    fn clock(&self, thread: usize) -> u64;

    /// Performs an access of a thread on its CPU.
    fn access(&mut self, thread: usize, cpu: usize, touch: Touch, address: u64);

    /// Lets threads go on together from a barrier that the last of them has reached.
    fn everyone_is_there(&mut self, threads: &[usize]);

    /// Lets a thread go on that has waited until this time, which may be past.
    fn goes_on(&mut self, thread: usize, at_ps: u64);

    /// When something is due for a thread.
    fn due_ps(&self, _thread: usize) -> u64 {
        u64::MAX
    }

    /// Does what is due. `thread` is the one that is most behind of those that run.
    fn tick(&mut self, _thread: usize, _running: &[usize]) {}

    /// Why the program cannot go on, if it cannot.
    fn failure(&self) -> Option<&Error> {
        None
    }
}

/// A thread of the program.
struct Thread {
    trace: Trace,
    /// Operations of the piece that were performed.
    done: usize,
    /// The instructions before the next operation were executed.
    computed: bool,
    after: Progress,
    /// Pieces that it was given, and those that it has ended.
    pieces: usize,
    ended: usize,
}

/// A thread that waits until another has ended so many pieces.
struct Waiting {
    thread: usize,
    other: usize,
    pieces: usize,
}

/// Runs a program to its end. A thread may run ahead of the one that is most behind by `slack_ps`, with what
/// its core's own caches serve. `progress` is told now and then how many operations have been simulated.
///
/// Fails if the program cannot go on or finds its result wrong.
pub(crate) fn run<P: Processors>(
    program: &mut dyn Program,
    machine: &mut P,
    slack_ps: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut threads: Vec<Thread> = (0..program.threads())
        .map(|_| Thread {
            trace: Trace::default(),
            done: 0,
            computed: false,
            after: Progress::Running,
            pieces: 0,
            ended: 0,
        })
        .collect();
    let mut turns = Turns::default();
    (0..threads.len()).for_each(|thread| turns.begin(thread, 0));
    let mut at_barrier: Vec<usize> = Vec::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    let (mut operations, mut told) = (0u64, 0);
    let mut behind_ps = 0;
    loop {
        let Some((index, clock_ps, other_ps)) = turns.next(|thread| machine.clock(thread)) else {
            if at_barrier.is_empty() && !waiting.is_empty() {
                return Err(Error::new(ErrorKind::Endless, "the program's threads wait for each other"));
            }
            if at_barrier.is_empty() {
                break;
            }
            machine.everyone_is_there(&at_barrier);
            for thread in at_barrier.drain(..) {
                turns.begin(thread, machine.clock(thread));
            }
            // A thread that finished may have been ahead of those who waited.
            behind_ps = 0;
            continue;
        };
        debug_assert!(clock_ps >= behind_ps, "time runs back in thread {index}");
        behind_ps = clock_ps;
        if behind_ps > MOST_PS {
            return Err(Error::new(ErrorKind::Endless, "the program is not through after 53 simulated days"));
        }
        let due_ps = machine.due_ps(index);
        if behind_ps >= due_ps {
            machine.tick(index, &turns.running());
            continue;
        }
        let thread = &mut threads[index];
        if thread.done == thread.trace.len() {
            thread.trace.clear();
            thread.done = 0;
            thread.ended = thread.pieces;
            let ended = thread.ended;
            match std::mem::replace(&mut thread.after, Progress::Running) {
                Progress::Running => {
                    thread.after = program.advance(index, &mut thread.trace);
                    thread.pieces += 1;
                }
                Progress::After { thread: other, pieces } => {
                    if threads.get(other).is_none_or(|other| other.ended < pieces) {
                        turns.end();
                        waiting.push(Waiting { thread: index, other, pieces });
                    }
                }
                after => {
                    let cpu = machine.cpu(index);
                    machine.hardware().drain(cpu);
                    turns.end();
                    if after == Progress::Barrier {
                        at_barrier.push(index);
                    }
                }
            }
            waiting.retain(|wait| {
                let goes_on = wait.other == index && wait.pieces <= ended;
                if goes_on {
                    machine.goes_on(wait.thread, machine.clock(index));
                    turns.begin(wait.thread, machine.clock(wait.thread));
                }
                !goes_on
            });
            continue;
        }
        let limit_ps = other_ps.saturating_add(slack_ps).min(due_ps);
        operations += thread.go_on(machine, index, other_ps.min(due_ps), limit_ps);
        if operations >= told + (1 << 20) {
            told = operations;
            progress(operations);
        }
        if let Some(failure) = machine.failure() {
            return Err(failure.clone());
        }
    }
    progress(operations);
    program.check()
}

impl Thread {
    /// Performs operations of the piece, until one asks the machine beyond the core's own caches after
    /// `by_ps`, or the clock has reached `limit_ps`. Returns how many.
    fn go_on<P: Processors>(&mut self, machine: &mut P, index: usize, by_ps: u64, limit_ps: u64) -> u64 {
        let cpu = machine.cpu(index);
        let words = self.trace.words();
        let before = self.done;
        machine.hardware().expect(cpu, words.len() - before);
        for &word in &words[before..] {
            let (touch, address, instructions) = Op::decode(word).parts();
            if instructions > 0 && !self.computed {
                machine.hardware().execute(cpu, instructions);
            }
            if let Some(touch) = touch {
                self.computed = machine.hardware().waits(cpu, touch, address, by_ps);
                if self.computed {
                    break;
                }
                machine.access(index, cpu, touch, address);
            }
            self.done += 1;
            if machine.hardware().clock(cpu) >= limit_ps {
                break;
            }
        }
        (self.done - before) as u64
    }
}
