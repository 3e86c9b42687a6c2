//! A program's references behind its CPUs' private caches, as a trace that the simulator replays.
//!
//! They are those of its own code, and those of the kernel to its memory.
//!
//! The guest's user mode is followed from the model's begin on. Whenever user code goes on after a return
//! from the kernel, the CPU's thread is looked up. A thread is its page tables and its thread pointer (`cr3`
//! and `fs_base`). Address spaces that are there when the trace begins are none of the program's, and all
//! later ones are.
//!
//! System calls tell who waited for whom. A thread that a futex woke goes on after its waker, or after a
//! thread that ended. A new one begins after its maker, and a parent goes on after its child's end. Each wait
//! is for something that has already happened.

#[cfg(test)]
mod tests;

use crate::model::{Kind, Outcome};
use crate::settings::Traced;
use nodewise_trace::{Access, LINE_BYTES, MOST_INSTRUCTIONS, MOST_THREADS, PROCESS_LINES, Writer};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

/// User addresses are below this.
pub(crate) const USER: u64 = LINE_BYTES * PROCESS_LINES;
/// Most processes of a trace.
const MOST_PROCESSES: u64 = nodewise_trace::LINES / PROCESS_LINES;
const PAGE_LINES: u64 = 4096 / LINE_BYTES;
/// More than an access or a wait takes, with the blocks that end before it.
const MOST_PART_BYTES: u64 = 64;
/// A page table's address within `cr3`. The rest is which translations to keep.
const TABLE: u64 = 0x000f_ffff_ffff_f000;

/// The registers of a system call, or after one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    pub cr3: u64,
    pub fs_base: u64,
    pub rax: u64,
    pub rdi: u64,
    pub rsi: u64,
}

/// Page tables and thread pointer.
type Key = (u64, u64);

/// A thread of the trace and its accesses at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    thread: usize,
    done: u64,
    /// Its place in the order of all moments.
    number: u64,
}

/// An address space.
#[derive(Debug)]
struct Space {
    /// Its number in the trace; none if it is not the program's.
    process: Option<u64>,
    /// Its process has asked to end or to execute another program.
    leaves: bool,
}

/// The system call that a thread is in, as far as it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Call {
    #[default]
    Other,
    Start,
    Execute,
    /// A child that shares all with its parent has left it.
    ChildLeaves,
    Futex {
        address: u64,
        since: u64,
    },
    Child,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// Its number in the trace; none if it is not the program's.
    number: Option<usize>,
    call: Call,
    /// It is a child that shares memory and thread pointer with its parent, which stands still (vfork).
    is_child: bool,
}

/// The work of a CPU's user mode.
#[derive(Clone, Copy, Debug, Default)]
struct Running {
    key: Key,
    number: Option<usize>,
    process: u64,
    /// The CPU's count of instructions up to which they were given to a thread.
    instructions: u64,
}

/// Writes a trace of what CPUs do.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// The file while it is written.
    writer: Option<Writer<BufWriter<File>>>,
    limit_bytes: u64,
    begun: bool,
    traced: Traced,
    cpus: Vec<Running>,
    spaces: BTreeMap<u64, Space>,
    threads: BTreeMap<Key, Thread>,
    processes: u64,
    /// The pages of each process that were touched.
    pages: HashSet<u64>,
    /// Instructions of each thread of the trace since its last access.
    instructions: Vec<u64>,
    /// Numbers of threads that have ended.
    free: Vec<usize>,
    moments: u64,
    started: Option<Moment>,
    /// The threads that execute another program, which has another address space.
    executing: VecDeque<Option<usize>>,
    /// The last wake of each futex, by page tables and address.
    wakes: BTreeMap<Key, Moment>,
    /// The last end of a thread in each address space.
    ends: BTreeMap<u64, Moment>,
    process_end: Option<Moment>,
}

impl Tracer {
    /// A tracer of so many CPUs into a file that is there, which takes up to so many bytes.
    pub fn new(path: &Path, limit_bytes: u64, cpus: usize) -> io::Result<Self> {
        let file = File::options().write(true).truncate(true).open(path)?;
        Ok(Self {
            writer: Some(Writer::new(BufWriter::with_capacity(1 << 20, file), MOST_THREADS)?),
            limit_bytes,
            begun: false,
            traced: Traced::default(),
            cpus: vec![Running::default(); cpus],
            spaces: BTreeMap::new(),
            threads: BTreeMap::new(),
            processes: 0,
            pages: HashSet::new(),
            instructions: Vec::new(),
            free: Vec::new(),
            moments: 0,
            started: None,
            executing: VecDeque::new(),
            wakes: BTreeMap::new(),
            ends: BTreeMap::new(),
            process_end: None,
        })
    }

    /// The program begins: address spaces that come from now on are its own.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// Ends the trace, and tells of it.
    pub fn finish(&mut self) -> Traced {
        if let Some(writer) = self.writer.take() {
            let accesses = writer.accesses();
            let finished = writer.finish();
            self.traced.accesses = accesses;
            self.keep(finished);
        }
        self.traced.threads = self.instructions.len();
        self.traced.processes = self.processes;
        self.traced.clone()
    }

    /// Keeps the first error, after which nothing is written.
    fn keep<T>(&mut self, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                self.traced.error.get_or_insert_with(|| error.to_string());
                self.writer = None;
            })
            .ok()
    }

    /// The moment of a thread now.
    fn moment(&mut self, thread: Option<usize>) -> Option<Moment> {
        self.moments += 1;
        let (thread, number) = (thread?, self.moments);
        let done = self.writer.as_mut()?.done(thread);
        self.keep(done).map(|done| Moment { thread, done, number })
    }

    /// A thread's next access comes after a moment.
    fn wait(&mut self, thread: Option<usize>, moment: Option<Moment>) {
        let (Some(thread), Some(Moment { thread: other, done, .. })) = (thread, moment) else { return };
        if thread == other || done == 0 {
            return;
        }
        if let Some(result) = self.room().map(|writer| writer.wait(thread, other, done)) {
            self.keep(result);
        }
    }

    /// The writer, if the file has room for one more access or wait. If not, the trace ends here.
    fn room(&mut self) -> Option<&mut Writer<BufWriter<File>>> {
        if self.writer.as_ref()?.most_bytes() + MOST_PART_BYTES > self.limit_bytes {
            self.traced.reached_limit = true;
            self.finish();
        }
        self.writer.as_mut()
    }

    /// User code goes on after a return from the kernel. `instructions` is the CPU's count of those in user
    /// mode.
    pub fn enter(&mut self, cpu: usize, instructions: u64, registers: Registers) {
        let space = registers.cr3 & TABLE;
        let key = (space, registers.fs_base);
        self.settle(cpu, instructions);
        let failed = (registers.rax as i64) < 0;
        let thread = self.threads.get(&key).copied();
        if self.spaces.get(&space).is_some_and(|space| space.leaves) {
            if failed && thread.is_some_and(|thread| thread.call == Call::Execute) {
                self.executing.pop_back();
                if let Some(space) = self.spaces.get_mut(&space) {
                    space.leaves = false;
                }
            } else {
                self.forget(space);
            }
        }
        let (processes, begun) = (&mut self.processes, self.begun);
        let process = self.spaces.entry(space).or_insert_with(|| {
            let process = begun.then_some(*processes);
            *processes += u64::from(begun);
            Space { process, leaves: false }
        });
        let process = process.process;
        if process.is_some_and(|process| process >= MOST_PROCESSES) {
            self.keep::<()>(Err(io::Error::other("more than 131072 processes")));
        }
        let mut thread = match self.threads.get(&key).copied() {
            Some(thread) => self.returned(space, thread, registers),
            None => self.new_thread(process.is_some(), registers),
        };
        thread.call = Call::Other;
        self.threads.insert(key, thread);
        let number = thread.number.filter(|_| process.is_some());
        self.cpus[cpu] = Running { key, number, process: process.unwrap_or(0), instructions };
    }

    /// The kernel is about to reach user memory for the thread that it runs. The CPU may have run another's
    /// code last.
    pub fn serve(&mut self, cpu: usize, instructions: u64, registers: Registers) {
        self.settle(cpu, instructions);
        let space = registers.cr3 & TABLE;
        let number = self.threads.get(&(space, registers.fs_base)).and_then(|thread| thread.number);
        let process = self.spaces.get(&space).and_then(|space| space.process);
        let running = &mut self.cpus[cpu];
        (running.number, running.process) = (number.filter(|_| process.is_some()), process.unwrap_or(0));
    }

    /// A thread that is known goes on, perhaps after a system call.
    fn returned(&mut self, space: u64, mut thread: Thread, registers: Registers) -> Thread {
        let failed = (registers.rax as i64) < 0;
        match thread.call {
            Call::Start => thread.is_child = registers.rax == 0,
            Call::ChildLeaves if failed => {
                self.executing.pop_back();
            }
            Call::ChildLeaves => thread.is_child = false,
            Call::Futex { address, since } if registers.rax == 0 => {
                let later = |moment: &&Moment| moment.number > since;
                let woken = self.wakes.get(&(space, address)).filter(later);
                let woken = woken.or_else(|| self.ends.get(&space).filter(later)).copied();
                self.wait(thread.number, woken);
            }
            // The last end may be another child's. It has happened by now all the same.
            Call::Child if !failed && registers.rax != 0 => self.wait(thread.number, self.process_end),
            _ => {}
        }
        thread
    }

    fn new_thread(&mut self, is_programs: bool, registers: Registers) -> Thread {
        // A program that has just been executed has no thread pointer yet.
        let executes = if registers.fs_base == 0 { self.executing.pop_front() } else { None };
        let mut thread = Thread { number: executes.flatten(), ..Thread::default() };
        if let Some(number) = thread.number {
            self.threads.retain(|_, thread| thread.number != Some(number));
        } else if is_programs {
            thread.number = self.free.pop().or_else(|| self.add_number());
            self.wait(thread.number, self.started);
        }
        thread
    }

    fn add_number(&mut self) -> Option<usize> {
        let number = self.instructions.len();
        if number == MOST_THREADS {
            return self.keep(Err(io::Error::other("more than 65536 threads at a time")));
        }
        self.instructions.push(0);
        Some(number)
    }

    /// An address space is no more.
    fn forget(&mut self, space: u64) {
        self.forget_threads(space);
        self.spaces.remove(&space);
        self.ends.remove(&space);
        self.wakes.retain(|&(of, _), _| of != space);
    }

    fn forget_threads(&mut self, space: u64) {
        let gone: Vec<Key> =
            self.threads.range((space, 0)..=(space, u64::MAX)).map(|(&key, _)| key).collect();
        for key in gone {
            self.forget_thread(key);
        }
    }

    /// A thread is no more, unless it goes on in another address space.
    fn forget_thread(&mut self, key: Key) {
        let number = self.threads.remove(&key).and_then(|thread| thread.number);
        let goes_on =
            self.executing.contains(&number) || self.threads.values().any(|thread| thread.number == number);
        self.free.extend(number.filter(|_| !goes_on));
    }

    /// User code is about to make a system call.
    pub fn call(&mut self, cpu: usize, instructions: u64, registers: Registers) {
        self.settle(cpu, instructions);
        let key @ (space, _) = self.cpus[cpu].key;
        let Some(mut thread) = self.threads.get(&key).copied() else { return };
        let mut key = key;
        thread.call = match registers.rax {
            calls::CLONE | calls::FORK | calls::VFORK | calls::CLONE3 => {
                self.started = self.moment(thread.number);
                Call::Start
            }
            calls::EXECVE | calls::EXECVEAT => {
                self.executing.push_back(thread.number.filter(|_| !thread.is_child));
                if thread.is_child {
                    Call::ChildLeaves
                } else {
                    self.leave(space);
                    Call::Execute
                }
            }
            calls::EXIT | calls::EXIT_GROUP if thread.is_child => Call::ChildLeaves,
            calls::EXIT | calls::EXIT_GROUP => {
                let ended = self.moment(thread.number);
                if let Some(ended) = ended {
                    self.ends.insert(space, ended);
                }
                if registers.rax == calls::EXIT {
                    self.forget_thread(key);
                } else {
                    self.process_end = ended.or(self.process_end);
                    self.leave(space);
                    self.forget_threads(space);
                }
                return;
            }
            calls::ARCH_PRCTL if registers.rdi == calls::ARCH_SET_FS => {
                self.threads.remove(&key);
                key.1 = registers.rsi;
                self.cpus[cpu].key = key;
                Call::Other
            }
            calls::WAIT4 | calls::WAITID => Call::Child,
            calls::FUTEX => match registers.rsi & calls::FUTEX_OPERATION {
                0 | 6 | 9 | 11 | 13 => Call::Futex { address: registers.rdi, since: self.moments },
                1 | 3 | 4 | 5 | 7 | 10 | 12 => {
                    if let Some(moment) = self.moment(thread.number) {
                        self.wakes.insert((space, registers.rdi), moment);
                    }
                    Call::Other
                }
                _ => Call::Other,
            },
            _ => Call::Other,
        };
        self.threads.insert(key, thread);
    }

    /// A process is about to leave its address space.
    fn leave(&mut self, space: u64) {
        if let Some(space) = self.spaces.get_mut(&space) {
            space.leaves = true;
        }
    }

    /// Gives a CPU's instructions to the thread that runs on it.
    fn settle(&mut self, cpu: usize, instructions: u64) {
        let running = &mut self.cpus[cpu];
        let more = instructions.wrapping_sub(running.instructions);
        running.instructions = instructions;
        if let Some(number) = running.number {
            self.instructions[number] += more;
        }
    }

    /// The thread that runs on a CPU touches memory below [`USER`], or the kernel for it.
    ///
    /// A page's first touch is recorded although the caches serve it: the kernel has just cleared the page on
    /// the same CPU.
    pub fn access(&mut self, cpu: usize, instructions: u64, address: u64, kind: Kind, outcome: Outcome) {
        let Running { number: Some(number), process, .. } = self.cpus[cpu] else { return };
        if self.writer.is_none() {
            return;
        }
        let line = process * PROCESS_LINES + address / LINE_BYTES;
        if !(self.pages.insert(line / PAGE_LINES) || outcome.is_beyond) {
            return;
        }
        self.settle(cpu, instructions);
        // The access is an instruction itself.
        let before = std::mem::take(&mut self.instructions[number]).saturating_sub(1);
        let access = Access {
            instructions: before.min(MOST_INSTRUCTIONS),
            line,
            kind: match kind {
                Kind::Read if outcome.waited => nodewise_trace::Kind::Chase,
                Kind::Read => nodewise_trace::Kind::Read,
                Kind::Write => nodewise_trace::Kind::Write,
                Kind::Atomic => nodewise_trace::Kind::Atomic,
            },
        };
        if let Some(result) = self.room().map(|writer| writer.access(number, access)) {
            self.keep(result);
        }
    }
}

/// Numbers of the guest's system calls, which are x86-64's.
mod calls {
    pub const CLONE: u64 = 56;
    pub const FORK: u64 = 57;
    pub const VFORK: u64 = 58;
    pub const EXECVE: u64 = 59;
    pub const EXIT: u64 = 60;
    pub const WAIT4: u64 = 61;
    pub const ARCH_PRCTL: u64 = 158;
    pub const ARCH_SET_FS: u64 = 0x1002;
    pub const FUTEX: u64 = 202;
    /// Without the flags for private futexes and for the clock.
    pub const FUTEX_OPERATION: u64 = 127;
    pub const EXIT_GROUP: u64 = 231;
    pub const WAITID: u64 = 247;
    pub const EXECVEAT: u64 = 322;
    pub const CLONE3: u64 = 435;
}
