//! The machine: cores that touch memory, in simulated time.

use crate::{Counters, Preset};

/// Where the data of an access came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The core's first-level cache.
    L1,
    /// The core's second-level cache.
    L2,
    /// The LLC of the core's node.
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

/// What an access was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where its data came from.
    pub source: Source,
    /// Time from its issue to its data, waiting included.
    pub latency_ps: u64,
}

/// A machine at work.
#[derive(Clone, Debug)]
pub struct Hardware {
    node_of: Vec<usize>,
    hops: Vec<Vec<usize>>,
    clocks: Vec<u64>,
    instruction_ps: f64,
    idle_ps: u64,
    counters: Counters,
}

impl Hardware {
    /// The machine of a preset, caches empty, all clocks at 0.
    #[must_use]
    pub fn new(preset: &Preset) -> Hardware {
        let nodes = preset.nodes.len();
        Hardware {
            node_of: preset.nodes_of_cores(),
            hops: (0..nodes).map(|from| (0..nodes).map(|to| preset.hops(from, to)).collect()).collect(),
            clocks: vec![0; preset.cores()],
            instruction_ps: preset.cycle_ps() * preset.core.cycles_per_instruction,
            idle_ps: (preset.controller.idle_latency_ns * 1000.0) as u64,
            counters: Counters::new(nodes, preset.cores(), preset.links.len()),
        }
    }

    /// A core's time in picoseconds.
    #[inline]
    #[must_use]
    pub fn clock(&self, core: usize) -> u64 {
        self.clocks[core]
    }

    /// Moves a core's time forward; a time in its past changes nothing.
    #[inline]
    pub fn set_clock(&mut self, core: usize, ps: u64) {
        self.clocks[core] = self.clocks[core].max(ps);
    }

    /// Executes instructions that touch no memory.
    #[inline]
    pub fn execute(&mut self, core: usize, instructions: u64) {
        self.counters.instructions[core] += instructions;
        self.clocks[core] += (instructions as f64 * self.instruction_ps) as u64;
    }

    /// Reads memory: one instruction. `address` is virtual; `home` is the node that holds its page.
    #[inline]
    pub fn read(&mut self, core: usize, address: u64, home: usize) -> Access {
        self.access(core, address, home)
    }

    /// Reads memory once the data of the core's last read is there.
    #[inline]
    pub fn chase(&mut self, core: usize, address: u64, home: usize) -> Access {
        self.access(core, address, home)
    }

    /// Writes memory: one instruction.
    #[inline]
    pub fn write(&mut self, core: usize, address: u64, home: usize) -> Access {
        self.access(core, address, home)
    }

    fn access(&mut self, core: usize, _address: u64, home: usize) -> Access {
        let node = self.node_of[core];
        self.execute(core, 1);
        self.clocks[core] += self.idle_ps;
        self.counters.dram[node * self.counters.nodes + home] += 1;
        self.counters.dram_latency_ps[node * self.counters.nodes + home] += self.idle_ps;
        let hops = self.hops[node][home] as u8;
        let source = if hops == 0 { Source::LocalDram } else { Source::RemoteDram { hops } };
        Access { source, latency_ps: self.idle_ps }
    }

    /// Waits until all outstanding accesses of a core are done.
    pub fn drain(&mut self, core: usize) {
        let _ = core;
    }

    /// Copies bytes from one node's memory to another's, through controllers and links, from `at_ps` on. Returns when it is
    /// done. No core's clock moves: whoever copies is charged by the caller.
    pub fn copy_page(&mut self, at_ps: u64, from: usize, to: usize, bytes: u64) -> u64 {
        let _ = (from, to);
        at_ps + bytes / 4096 * self.idle_ps
    }

    /// Drops the lines of a range from all caches: its page has moved or gone.
    pub fn forget(&mut self, address: u64, bytes: u64) {
        let _ = (address, bytes);
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
