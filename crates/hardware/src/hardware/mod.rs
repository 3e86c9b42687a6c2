//! The machine: CPUs that touch memory, in simulated time.

mod coherence;
mod core;
mod miss;
mod siblings;

use self::core::{Core, Cpu, NEVER, NO_LINE};
use crate::{
    Counters, MOST_CORES_A_NODE, MOST_LLCS, MOST_NODES, Preset,
    cache::{Entry, Tags, WRITABLE},
    directory::Directory,
    fabric::{Fabric, ps},
    llc::{CoreSet, Llc, ManyCores},
};
use siblings::Runs;
use std::collections::HashMap;

/// Where the data of an access came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The core's first-level cache.
    L1,
    /// The core's second-level cache.
    L2,
    /// An LLC of the core's node.
    Llc,
    /// Another node's LLC, which held it modified.
    RemoteLlc,
    /// Memory of the core's node.
    LocalDram,
    /// Memory of another node.
    RemoteDram {
        /// Links between the two.
        hops: u8,
    },
}

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where its data came from.
    pub source: Source,
    /// Time from its issue to its data, waiting included.
    pub latency_ps: u64,
}

/// How a CPU touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// [`Hardware::read`].
    Read,
    /// [`Hardware::chase`].
    Chase,
    /// [`Hardware::write`].
    Write,
    /// [`Hardware::atomic`].
    Atomic,
}

impl Touch {
    /// Whether memory is written.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Atomic)
    }
}

/// A machine at work.
///
/// A CPU is a thread of a core. CPUs of one core follow each other: with two threads a core, CPUs 2 and 3 are
/// those of core 1. An operating system numbers them otherwise.
///
/// Call it for the CPUs in the order of their clocks, and ask [`waits`](Hardware::waits) before an access
/// that may be ahead of others. The machine serves requests in the order in which it is told of them. A CPU
/// may run ahead with what its own caches serve. Requests told out of order keep controllers and links as
/// busy as in order. But a request that is told early waits too little, and the others wait too much.
///
/// The model covers the following:
/// - A CPU issues an instruction every so many cycles and does not wait for data. There are two exceptions.
///   With all its misses outstanding it waits for the first, and a chase waits for the data with its address.
///   A prefetcher that follows streams is more outstanding misses; one that fetches neighbouring lines is
///   modelled, for what it takes from others.
/// - An LLC is inclusive and knows which of its cores may hold a line. A write takes the line away from all
///   other caches. A line that another LLC has modified is read from there and written back to its home. A
///   line that others hold unmodified comes from memory.
/// - The LLCs of a node, if it has several, are as far from each other as from its memory while that is idle.
/// - A modified line that leaves an LLC is written back: through links and controller, and nobody waits for
///   it.
/// - A message without data asks for a line, or confirms that one was written. It takes as much of a link's
///   bandwidth as the preset says. It never waits, and invalidations and their answers take nothing.
/// - A CPU waits for an atomic read-modify-write, before which it has waited for all that it did before, as
///   x86's locked instructions do. A CPU that wants a line on which such an instruction works gets it when
///   that is done, one CPU after the other.
/// - The two threads of a core share its caches, its issue slots and its outstanding misses.
///
/// - A line waits for the controller of its memory, and for its bank there if the preset has banks. The two
///   waits pass side by side.
///
/// The model lacks the bandwidth of caches, TLBs (the operating system's page sizes do not change a latency
/// here), rows that stay open.
#[derive(Clone, Debug)]
pub struct Hardware {
    cpus: Vec<Cpu>,
    cores: Vec<Core>,
    /// A CPU's number without so many bits is its core's.
    thread_bits: u32,
    /// The LLCs, node by node, of a machine whose LLCs have few cores each. On others there are none here.
    llcs_of_few: Vec<Llc<u32>>,
    /// The LLCs of a machine with more cores than that on one.
    llcs_of_many: Vec<Llc<ManyCores>>,
    node_of_llc: Vec<usize>,
    directory: Directory,
    fabric: Fabric,
    counters: Counters,
    timing: Timing,
    line_shift: u32,
    has_llc: bool,
    outstanding_misses: usize,
    /// Lines that atomics work on: when the last of them is done. Looked up only, so that its order is
    /// nobody's affair.
    atomics: HashMap<u64, u64>,
    uncached: Option<Words>,
    /// The first core of each LLC.
    first_core: Vec<usize>,
}

/// Access times of a machine without caches, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Words {
    local_fetch: u64,
    local_store: u64,
    global_fetch: u64,
    global_store: u64,
}

/// Times in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// The time of 1024 instructions.
    kilo_instruction: u64,
    instruction: u64,
    l1: u64,
    l2: u64,
    llc: u64,
    /// The time of asking a core whose caches have the line that its node's LLC is asked for.
    snoop: u64,
    /// The time of an atomic on a line that the core may write.
    atomic: u64,
    /// How many times longer an instruction takes while both threads of a core execute some.
    both_busy: f64,
}

impl Hardware {
    /// The machine of a preset, caches empty, all clocks at 0.
    ///
    /// # Panics
    /// If a preset made by hand has more than [`MOST_NODES`] nodes, [`MOST_CORES_A_NODE`] cores on one, or
    /// [`MOST_LLCS`] LLCs; one that was read never has.
    #[must_use]
    pub fn new(preset: &Preset) -> Self {
        assert!(preset.nodes.len() <= MOST_NODES, "{} nodes", preset.nodes.len());
        for node in &preset.nodes {
            assert!(node.cores <= MOST_CORES_A_NODE, "{} cores on a node", node.cores);
        }
        let lines = |cache: crate::Cache| cache.kib * 1024 / preset.line_bytes;
        let tags = |cache: Option<crate::Cache>| {
            cache.map_or_else(Tags::default, |cache| Tags::new(lines(cache), cache.ways))
        };
        let cycles = |cycles: u64| (cycles as f64 * preset.cycle_ps()).round() as u64;
        let latency = |cache: Option<crate::Cache>| cache.map_or(0, |cache| cycles(cache.latency_cycles));
        let instruction_ps = preset.cycle_ps() * preset.core.cycles_per_instruction;
        let nodes = preset.nodes.len();
        let llcs_of_cores = preset.llcs_of_cores();
        let (mut first_core, mut node_of_llc) = (Vec::new(), Vec::new());
        for (core, (&llc, node)) in llcs_of_cores.iter().zip(preset.nodes_of_cores()).enumerate() {
            if llc == first_core.len() {
                first_core.push(core);
                node_of_llc.push(node);
            }
        }
        assert!(first_core.len() <= MOST_LLCS, "{} LLCs", first_core.len());
        let (mut llcs_of_few, mut llcs_of_many) = (Vec::new(), Vec::new());
        if let Some(llc) = preset.llc {
            if preset.cores_of_an_llc() <= u32::MOST {
                llcs_of_few = vec![Llc::new(lines(llc), llc.ways); first_core.len()];
            } else {
                llcs_of_many = vec![Llc::new(lines(llc), llc.ways); first_core.len()];
            }
        }
        let threads = preset.core.threads;
        let cpu = |cpu: usize| Cpu {
            clock: 0,
            ready: 0,
            last_line: NO_LINE,
            node: node_of_llc[llcs_of_cores[cpu / threads]],
            llc: llcs_of_cores[cpu / threads],
            window: vec![(0, NO_LINE); preset.core.outstanding_misses + preset.core.adjacent_line_prefetches],
            free: 0,
            asks_ps: NEVER,
            runs: Runs::default(),
        };
        let core = Core { l1: tags(preset.l1), l2: tags(preset.l2), losses: 0 };
        let line_shift = preset.line_bytes.trailing_zeros();
        Self {
            cpus: (0..preset.cpus()).map(cpu).collect(),
            cores: vec![core; preset.cores()],
            thread_bits: threads.trailing_zeros(),
            directory: Directory::new(line_shift, first_core.len()),
            llcs_of_few,
            llcs_of_many,
            node_of_llc,
            fabric: Fabric::new(preset),
            counters: Counters::new(nodes, preset.cpus(), preset.links.len()),
            timing: Timing {
                kilo_instruction: (instruction_ps * 1024.0).round() as u64,
                instruction: (instruction_ps.round() as u64).max(1),
                l1: latency(preset.l1),
                l2: latency(preset.l2),
                llc: latency(preset.llc),
                snoop: cycles(preset.core.snoop_cycles),
                atomic: cycles(preset.core.atomic_cycles),
                both_busy: threads as f64 / preset.core.smt_speedup,
            },
            line_shift,
            has_llc: preset.llc.is_some(),
            outstanding_misses: preset.core.outstanding_misses,
            atomics: HashMap::new(),
            uncached: preset.uncached.map(|times| Words {
                local_fetch: ps(times.local_fetch_ns),
                local_store: ps(times.local_store_ns),
                global_fetch: ps(times.global_fetch_ns),
                global_store: ps(times.global_store_ns),
            }),
            first_core,
        }
    }

    /// The same machine for CPUs that get so far ahead of the slowest, where that is more than 8 µs. A
    /// request that comes late is served in the time that was idle.
    #[must_use]
    pub fn with_run_ahead(mut self, run_ahead_ps: u64) -> Self {
        self.fabric.allow(run_ahead_ps);
        self
    }

    /// A CPU's time in picoseconds.
    #[inline]
    #[must_use]
    pub fn clock(&self, cpu: usize) -> u64 {
        self.cpus[cpu].clock
    }

    /// Moves a CPU's time forward; a time in its past changes nothing.
    #[inline]
    pub fn set_clock(&mut self, cpu: usize, ps: u64) {
        let clock = &mut self.cpus[cpu].clock;
        *clock = ps.max(*clock);
    }

    /// Executes instructions that touch no memory.
    #[inline]
    pub fn execute(&mut self, cpu: usize, instructions: u64) {
        self.counters.instructions[cpu] += instructions;
        // In whole thousands and the rest, so that no count overflows.
        let (whole, rest) = (instructions >> 10, instructions & 1023);
        self.pass(cpu, whole * self.timing.kilo_instruction + (rest * self.timing.kilo_instruction >> 10));
    }

    /// Lets the time of instructions pass that take so long if the core has nothing else to execute.
    #[inline]
    fn pass(&mut self, cpu: usize, ps: u64) {
        if self.thread_bits == 0 {
            self.cpus[cpu].clock += ps;
        } else {
            self.execute_beside(cpu, ps);
        }
    }

    #[inline]
    fn core(&mut self, cpu: usize) -> &mut Core {
        &mut self.cores[cpu >> self.thread_bits]
    }

    /// Says that a CPU is to touch memory, and how many times at most, before another's turn. Only the
    /// simulator's speed depends on it.
    #[inline]
    pub fn expect(&self, cpu: usize, touches: usize) {
        let l1 = &self.cores[cpu >> self.thread_bits].l1;
        if touches >= l1.lines() / 8 {
            l1.load_all_ahead();
        }
    }

    /// Touches memory in one of four ways.
    #[inline]
    pub fn touch(&mut self, cpu: usize, touch: Touch, address: u64, home: usize) -> Access {
        match touch {
            Touch::Read => self.read(cpu, address, home),
            Touch::Chase => self.chase(cpu, address, home),
            Touch::Write => self.write(cpu, address, home),
            Touch::Atomic => self.atomic(cpu, address, home),
        }
    }

    /// Reads memory: one instruction. `address` is virtual, below 2^44; `home` is the node whose memory holds
    /// its page. A cached line remembers its home: [`forget`](Self::forget) a page that moves.
    #[inline]
    pub fn read(&mut self, cpu: usize, address: u64, home: usize) -> Access {
        let line = address >> self.line_shift;
        self.issue(cpu);
        if self.core(cpu).l1.touch(line).is_some() {
            return self.hit(cpu, line);
        }
        self.read_beyond_l1(cpu, line, home)
    }

    /// Reads memory once the data of the CPU's last read is there: its address was in that.
    #[inline]
    pub fn chase(&mut self, cpu: usize, address: u64, home: usize) -> Access {
        self.begin(cpu, Touch::Chase);
        self.read(cpu, address, home)
    }

    /// Writes memory: one instruction.
    #[inline]
    pub fn write(&mut self, cpu: usize, address: u64, home: usize) -> Access {
        let line = address >> self.line_shift;
        let latency_ps = self.timing.l1;
        self.issue(cpu);
        if let Some(entry) = self.core(cpu).l1.touch(line) {
            if entry.has(WRITABLE) {
                return Access { source: Source::L1, latency_ps };
            }
        }
        self.write_beyond_l1(cpu, line, home)
    }

    /// Reads and writes memory in one atomic instruction, and waits for it.
    pub fn atomic(&mut self, cpu: usize, address: u64, home: usize) -> Access {
        self.begin(cpu, Touch::Atomic);
        let line = address >> self.line_shift;
        if let Some(uncached) = self.uncached {
            self.issue(cpu);
            let (local, global) =
                (uncached.local_fetch + uncached.local_store, uncached.global_fetch + uncached.global_store);
            return self.word(cpu, home, local, global);
        }
        // From here on the line is known as one that is waited for.
        let free_ps = *self.atomics.entry(line).or_default();
        if self.thread_bits > 0 && self.core(cpu).l1.find(line).is_some_and(|entry| entry.has(WRITABLE)) {
            // The core's other thread may work on it still.
            self.set_clock(cpu, free_ps);
        }
        let mut access = self.write(cpu, address, home);
        access.latency_ps = access.latency_ps.max(self.timing.atomic);
        let state = &mut self.cpus[cpu];
        state.clock += access.latency_ps;
        state.ready = state.clock;
        self.atomics.insert(line, state.clock);
        access
    }

    /// Waits until a CPU knows what an access waits for: a chase its address, an atomic the end of all before
    /// it. The access does the same. A caller does it before, if the access then costs time of its own.
    #[inline]
    pub fn begin(&mut self, cpu: usize, touch: Touch) {
        match touch {
            Touch::Read | Touch::Write => {}
            Touch::Chase => self.set_clock(cpu, self.read_done(cpu)),
            Touch::Atomic => self.drain(cpu),
        }
    }

    /// When the data of a CPU's last read is there.
    #[inline]
    fn read_done(&self, cpu: usize) -> u64 {
        let state = &self.cpus[cpu];
        let done_ps = state.read_done();
        if self.thread_bits == 0 || state.last_line == NO_LINE {
            return done_ps;
        }
        // The core's other thread may have asked for it.
        done_ps.max(self.cpus[cpu ^ 1].arrival(state.last_line))
    }

    /// Waits until all outstanding accesses of a CPU are done.
    pub fn drain(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        state.clock = state.clock.max(state.all_done());
    }

    /// Whether a CPU's next access would ask the machine beyond the core's own caches after `by_ps`. If so,
    /// the CPU is ahead, or waits for a free place among its outstanding misses or for data. Its clock then
    /// moves to the time at which it asks, nothing else happens, and it may ask again when the others have
    /// come there. An access is never put off at a time that is not after `by_ps`.
    #[inline]
    pub fn waits(&mut self, cpu: usize, touch: Touch, address: u64, by_ps: u64) -> bool {
        let state = &self.cpus[cpu];
        let place_ps = if self.thread_bits == 0 { state.free } else { self.place_beside(cpu) };
        // The CPU issues the instruction, and then waits for the place.
        let free_ps = place_ps.saturating_sub(self.timing.instruction);
        let asks_ps = state.clock.max(match touch {
            Touch::Read | Touch::Write => free_ps,
            Touch::Chase => free_ps.max(self.read_done(cpu)),
            Touch::Atomic => state.all_done(),
        });
        asks_ps > by_ps && self.waits_until(cpu, touch, address, asks_ps)
    }

    fn waits_until(&mut self, cpu: usize, touch: Touch, address: u64, asks_ps: u64) -> bool {
        let line = address >> self.line_shift;
        let serves = |entry: Option<&mut Entry>| match touch {
            Touch::Read | Touch::Chase => entry.is_some(),
            Touch::Write | Touch::Atomic => entry.is_some_and(|entry| entry.has(WRITABLE)),
        };
        let cached = self.uncached.is_none();
        let core = self.core(cpu);
        if cached && (serves(core.l1.find(line)) || serves(core.l2.find(line))) {
            return false;
        }
        let state = &mut self.cpus[cpu];
        state.clock = asks_ps;
        state.asks_ps = asks_ps;
        true
    }

    /// Copies bytes from one node's memory to another's, through controllers and links, from `at_ps` on, with
    /// a core's outstanding misses at a time. Returns when it is done. No CPU's clock moves: whoever
    /// copies is charged by the caller.
    pub fn copy_page(&mut self, at_ps: u64, from: usize, to: usize, bytes: u64) -> u64 {
        let mut left = bytes.div_ceil(1 << self.line_shift);
        let at_once = self.outstanding_misses as u64;
        let (mut next_ps, mut done_ps) = (at_ps, at_ps);
        // They follow each other; in which banks they begin is left to chance.
        let mut first = at_ps;
        if let Some(uncached) = self.uncached {
            return at_ps + left * (uncached.global_fetch + uncached.local_store);
        }
        while left > 0 {
            let lines = left.min(at_once);
            // Whoever copies may be far ahead of all others, who will still ask for the time in between.
            let range = first..first + lines;
            next_ps = self.fabric.fetch(0, next_ps, to, from, range.clone(), &mut self.counters);
            done_ps = self.fabric.store(0, next_ps, to, to, range, &mut self.counters);
            first += lines;
            left -= lines;
        }
        self.counters.copied_bytes += bytes.next_multiple_of(1 << self.line_shift);
        done_ps
    }

    /// Drops the lines of a range from all caches: its page has moved, or gone. Modifications go along with
    /// the copy.
    pub fn forget(&mut self, address: u64, bytes: u64) {
        if !self.has_llc || bytes == 0 {
            return;
        }
        for line in address >> self.line_shift..=(address + bytes - 1) >> self.line_shift {
            self.take_from_all(line);
        }
    }

    /// Asserts that every byte through a controller is of a line that was fetched or written back, or of a
    /// copy. A copy reads each byte once and writes it once. This is not asserted for a machine without
    /// caches, whose local references and copies pass no controller. Nothing is busy for longer than it can
    /// be.
    ///
    /// # Panics
    /// If any of this does not hold.
    pub fn assert_sound(&self) {
        let counters = &self.counters;
        let bytes: u64 = counters.controllers.iter().map(|load| load.bytes).sum();
        let lines: u64 = counters.dram.iter().chain(&counters.writebacks).sum();
        if self.uncached.is_none() {
            assert_eq!(
                bytes,
                (lines << self.line_shift) + 2 * counters.copied_bytes,
                "bytes of the controllers"
            );
        }
        self.fabric.assert_sound(counters);
    }

    /// How many times another core's access took a line from the caches of a CPU's core, or the right to
    /// write one. A caller's knowledge of a core's lines holds while this stays the same. Lines that leave
    /// for want of room do not count. The count wraps around.
    #[inline]
    #[must_use]
    pub fn losses(&self, cpu: usize) -> u32 {
        self.cores[cpu >> self.thread_bits].losses
    }

    /// The counts since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts and times an instruction.
    #[inline]
    fn issue(&mut self, cpu: usize) {
        self.counters.instructions[cpu] += 1;
        self.pass(cpu, self.timing.instruction);
    }

    #[inline]
    fn hit(&mut self, cpu: usize, line: u64) -> Access {
        let state = &mut self.cpus[cpu];
        state.last_line = line;
        state.ready = state.clock + self.timing.l1;
        Access { source: Source::L1, latency_ps: self.timing.l1 }
    }
}

#[cfg(test)]
mod tests;
