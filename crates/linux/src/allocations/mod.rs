//! The blocks of memory that a program asks for, each with the code that asked. The program loads a library
//! that tells of them (crate `nodewise-preload`), through memory that it shares with this process.
//!
//! A block that was given back and that no sample has hit is forgotten. So what is kept grows with samples
//! and with the blocks that a program has at a time. Sums by the code that asked count all blocks.

mod library;
mod process;
mod ring;

use crate::symbols::{Frame, Symbols};
use crate::unwind::Unwinder;
use crate::{Error, ErrorKind, NamedMapping};
use nodewise_engine::{Pid, Sample, Tid};
use nodewise_preload::{VARIABLE, layout};
use process::{Block, Place, Process};
use ring::{Event, Ring, Told};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Blocks that are kept, of all processes together: some 64 MiB.
const MOST_BLOCKS: usize = 1 << 19;
/// Call chains that are kept, of all processes together.
const MOST_STACKS: usize = 1 << 16;
/// Processes that are kept.
const MOST_PROCESSES: usize = 4096;

/// A block that a program asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocated {
    /// The process.
    pub pid: Pid,
    /// The thread that asked for it.
    pub tid: Tid,
    /// The first byte's address.
    pub address: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The time of the request (`CLOCK_MONOTONIC`, as samples have it).
    pub from_ns: u64,
    /// The time when it was given back; none where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// The number of the call chain; none when there was no room for another.
    pub stack: Option<u32>,
    /// Whether the kernel gave it, in which an allocator may have blocks of its own.
    pub mapped: bool,
}

/// All blocks that one call chain asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The number of the call chain.
    pub stack: u32,
    /// How many there were.
    pub blocks: u64,
    /// Their bytes, one after the other.
    pub bytes: u64,
    /// The most bytes at a time.
    pub most_bytes: u64,
}

/// Everything that was learnt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationReport {
    /// Smaller blocks were left alone.
    pub least_bytes: u64,
    /// The blocks that were there at the end, and others that a sample has hit.
    pub blocks: Vec<Allocated>,
    /// By call chain.
    pub sites: Vec<Site>,
    /// Call chains from the one who called the allocator, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Processes that have loaded the library.
    pub processes: u64,
    /// Events that were lost on the way.
    pub lost: u64,
    /// Blocks for which there was no room.
    pub left_out: u64,
}

/// Watches the blocks of a program that is to be started.
pub struct Allocations {
    ring: Ring,
    library: PathBuf,
    known: Known,
}

impl Allocations {
    /// Watches blocks from `least_bytes` on.
    ///
    /// # Errors
    /// There is no place for the library, or no memory for the ring. Or this process has more rights than its
    /// user, and then no program of the user may open the ring (`ptrace_may_access`, `kernel/ptrace.c`, Linux
    /// 6.12).
    pub fn open(least_bytes: u64) -> Result<Self, Error> {
        let is_for_root_only =
            std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() != rustix::process::geteuid().as_raw());
        if is_for_root_only {
            let message = "a program cannot share memory with a nodewise that has capabilities of its own: \
                           start nodewise by sudo";
            return Err(Error::new(ErrorKind::NotPermitted, message));
        }
        let library = library::path()?;
        Ok(Self { ring: Ring::new(least_bytes)?, library, known: Known::new(least_bytes) })
    }

    /// The variables that a program's environment needs, of which it may have some.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let library = self.library.display().to_string();
        let preload = match std::env::var("LD_PRELOAD") {
            Ok(others) if !others.is_empty() => format!("{library}:{others}"),
            _ => library,
        };
        vec![("LD_PRELOAD", preload), (VARIABLE, self.ring.place())]
    }

    /// Takes in what has happened. To be called often: the ring holds 65 536 events.
    pub fn drain(&mut self) {
        let Self { ring, known, .. } = self;
        ring.take(|told| known.take_in(told));
    }

    /// Keeps the blocks that these samples hit, and forgets others that were given back before `began_ns`.
    /// The samples are those of an interval that began then.
    pub fn hit(&mut self, samples: &[Sample], began_ns: u64) {
        self.drain();
        self.known.hit(samples, began_ns);
    }

    /// Ends the blocks that a process no longer has. It had these mappings at `now_ns`, or some time after.
    pub fn retain(&mut self, pid: Pid, mappings: &[NamedMapping], now_ns: u64) {
        self.known.retain(pid, mappings, now_ns);
    }

    /// Ends the blocks of all other processes.
    pub fn retain_processes(&mut self, is_alive: impl Fn(Pid) -> bool, now_ns: u64) {
        self.known.retain_processes(is_alive, now_ns);
    }

    /// Everything that was learnt, with names for code.
    #[must_use]
    pub fn finish(mut self) -> AllocationReport {
        self.drain();
        let known = &mut self.known;
        self.ring.take_rest(|told| known.take_in(told));
        // No more samples come.
        known.hit(&[], u64::MAX);
        AllocationReport { lost: self.ring.lost(), ..self.known.report() }
    }
}

/// Sums of a call chain.
#[derive(Default)]
struct Sum {
    blocks: u64,
    bytes: u64,
    now_bytes: u64,
    most_bytes: u64,
}

/// The state, without the ring.
struct Known {
    least_bytes: u64,
    processes: BTreeMap<Pid, Process>,
    loaded: u64,
    stacks: HashMap<Vec<Place>, u32>,
    sums: Vec<Sum>,
    unwinder: Unwinder,
    /// All together.
    blocks: usize,
    /// Blocks that were given back since there was no room.
    given_back: usize,
    left_out: u64,
}

impl Known {
    fn new(least_bytes: u64) -> Self {
        Self {
            least_bytes,
            processes: BTreeMap::new(),
            loaded: 0,
            stacks: HashMap::new(),
            sums: Vec::new(),
            unwinder: Unwinder::default(),
            blocks: 0,
            given_back: 0,
            left_out: 0,
        }
    }

    fn take_in(&mut self, told: Told) {
        let Told { pid, tid, time_ns, event } = told;
        if !self.processes.contains_key(&pid) && self.processes.len() >= MOST_PROCESSES {
            self.left_out += 1;
            return;
        }
        match event {
            Event::Mappings { place, text } => {
                if place == 0 {
                    self.loaded += 1;
                    // Another program, or another process of the same number.
                    self.end(pid, time_ns);
                }
                self.processes.entry(pid).or_default().add_text(&text);
            }
            Event::Forked { parent } => self.fork(pid, parent, time_ns),
            Event::Block { .. } if !self.has_room() => self.left_out += 1,
            Event::Block { address, bytes, mapped, caller } => {
                let process = self.processes.entry(pid).or_default();
                let chain = process.chain(pid, &caller, &mut self.unwinder, time_ns);
                let stack = self.stack(chain);
                let block = Block { bytes, from_ns: time_ns, tid, stack, is_hit: false, is_copy: false };
                self.count(&block);
                self.change(pid, |process| process.add(mapped, address, block));
            }
            Event::Freed { address } => self.change(pid, |process| process.free(address, time_ns)),
            Event::Unmapped { address, bytes } => {
                self.change(pid, |process| process.unmap(address, bytes, time_ns));
            }
        }
    }

    /// Changes a process's blocks, and counts what was given back.
    fn change(&mut self, pid: Pid, change: impl FnOnce(&mut Process) -> Vec<Block>) {
        let process = self.processes.entry(pid).or_default();
        let before = process.count();
        let gone = change(process);
        self.blocks = self.blocks - before + process.count();
        for block in gone.iter().filter(|block| !block.is_copy) {
            if let Some(sum) = block.stack.and_then(|stack| self.sums.get_mut(stack as usize)) {
                sum.now_bytes = sum.now_bytes.saturating_sub(block.bytes);
            }
        }
        self.given_back += gone.len();
    }

    fn count(&mut self, block: &Block) {
        if let Some(sum) = block.stack.and_then(|stack| self.sums.get_mut(stack as usize)) {
            sum.blocks += 1;
            sum.bytes = sum.bytes.saturating_add(block.bytes);
            sum.now_bytes = sum.now_bytes.saturating_add(block.bytes);
            sum.most_bytes = sum.most_bytes.max(sum.now_bytes);
        }
    }

    fn stack(&mut self, chain: Vec<Place>) -> Option<u32> {
        let count = self.stacks.len();
        match self.stacks.get(&chain) {
            Some(&stack) => Some(stack),
            None if count < MOST_STACKS => {
                self.stacks.insert(chain, count as u32);
                self.sums.push(Sum::default());
                Some(count as u32)
            }
            None => None,
        }
    }

    /// A child has the memory of its parent.
    fn fork(&mut self, pid: Pid, parent: Pid, time_ns: u64) {
        self.end(pid, time_ns);
        let child = self.processes.get(&parent).map(|parent| parent.forked(time_ns)).unwrap_or_default();
        if self.blocks + child.count() > MOST_BLOCKS {
            self.left_out += child.count() as u64;
            return;
        }
        self.change(pid, |process| {
            process.take_over(child);
            Vec::new()
        });
    }

    fn end(&mut self, pid: Pid, time_ns: u64) {
        if self.processes.contains_key(&pid) {
            self.change(pid, |process| process.end(time_ns));
        }
    }

    fn hit(&mut self, samples: &[Sample], began_ns: u64) {
        let mut by_process: BTreeMap<Pid, Vec<(u64, u64)>> = BTreeMap::new();
        for sample in samples {
            by_process.entry(sample.pid).or_default().push((sample.address.0, sample.time_ns));
        }
        for samples in by_process.values_mut() {
            samples.sort_unstable();
        }
        self.blocks = 0;
        for (pid, process) in &mut self.processes {
            if let Some(samples) = by_process.get(pid) {
                process.hit(samples);
            }
            process.forget(began_ns);
            self.blocks += process.count();
        }
    }

    /// Whether there is room for a block. If there is little, blocks that were given back are forgotten,
    /// though their samples may still come.
    fn has_room(&mut self) -> bool {
        if self.blocks >= MOST_BLOCKS && self.given_back > MOST_BLOCKS / 16 {
            self.given_back = 0;
            self.processes.values_mut().for_each(|process| process.forget(u64::MAX));
            self.blocks = self.processes.values().map(Process::count).sum();
        }
        self.blocks < MOST_BLOCKS
    }

    fn retain(&mut self, pid: Pid, mappings: &[NamedMapping], now_ns: u64) {
        if self.processes.contains_key(&pid) {
            self.change(pid, |process| process.retain(mappings, now_ns));
        }
    }

    fn retain_processes(&mut self, is_alive: impl Fn(Pid) -> bool, now_ns: u64) {
        let gone: Vec<Pid> = self.processes.keys().copied().filter(|&pid| !is_alive(pid)).collect();
        for pid in gone {
            self.end(pid, now_ns);
        }
    }

    fn report(self) -> AllocationReport {
        let mut symbols = Symbols::default();
        let mut stacks = vec![Vec::new(); self.stacks.len()];
        for (chain, stack) in &self.stacks {
            let frames = chain.iter().flat_map(|&(file, code)| match file {
                Some(file) => symbols.frames(self.unwinder.path(file), code),
                None => vec![Frame::nowhere(code)],
            });
            stacks[*stack as usize] = frames.collect();
        }
        let sites = self.sums.iter().zip(0..).map(|(sum, stack)| Site {
            stack,
            blocks: sum.blocks,
            bytes: sum.bytes,
            most_bytes: sum.most_bytes,
        });
        let blocks = self.processes.iter().flat_map(|(&pid, process)| process.report(pid));
        AllocationReport {
            least_bytes: self.least_bytes,
            blocks: blocks.collect(),
            sites: sites.collect(),
            stacks,
            processes: self.loaded,
            lost: 0,
            left_out: self.left_out,
        }
    }
}

#[cfg(test)]
mod tests;
