//! One CPU of the guest as the model sees it: its time, the lines it used lately, the loads it waits for.

use crate::flow::{Access, Block, LOADS, Origin, REGISTERS};
use nodewise_sys::device::{Accesses, SOURCES};
use std::ptr;

/// Lines that a filter knows. Fewer than a first-level cache has.
const LINES: usize = 256;
/// Bits of a line's number in the filter: those of a 48-bit address.
const LINE_BITS: u32 = 42;
const LINE_MASK: u64 = (1 << LINE_BITS) - 1;
const WRITABLE: u64 = 1 << LINE_BITS;
const EPOCH_SHIFT: u32 = LINE_BITS + 1;

/// The lines that a CPU has just used, by virtual address: these need no look into the modelled caches.
///
/// It forgets all lines whenever another CPU takes one away, which `losses` counts.
pub(crate) struct Filter {
    lines: [u64; LINES],
}

impl Filter {
    fn new() -> Self {
        Self { lines: [u64::MAX; LINES] }
    }

    #[inline]
    fn key(line: u64, losses: u32) -> u64 {
        line & LINE_MASK | u64::from(losses) << EPOCH_SHIFT
    }

    /// Whether a line may be read without a look.
    #[inline]
    pub fn reads(&self, line: u64, losses: u32) -> bool {
        self.lines[line as usize % LINES] & !WRITABLE == Self::key(line, losses)
    }

    /// Whether a line may be written without a look.
    #[inline]
    pub fn writes(&self, line: u64, losses: u32) -> bool {
        self.lines[line as usize % LINES] == Self::key(line, losses) | WRITABLE
    }

    /// A line that the CPU's first-level cache has from now on.
    pub fn insert(&mut self, line: u64, losses: u32, writable: bool) {
        let writable = if writable { WRITABLE } else { 0 };
        self.lines[line as usize % LINES] = Self::key(line, losses) | writable;
    }
}

/// The loads whose data is on its way, and the registers that hang on them.
pub(crate) struct Flow {
    /// The block that runs, if any load is on its way.
    block: *const Block,
    registers_ps: [u64; REGISTERS],
    loads_ps: [u64; LOADS],
    /// When the last of them is there.
    last_ps: u64,
}

impl Flow {
    fn new() -> Self {
        Self { block: ptr::null(), registers_ps: [0; REGISTERS], loads_ps: [0; LOADS], last_ps: 0 }
    }

    /// Whether any load is on its way.
    #[inline]
    pub fn waits(&self) -> bool {
        !self.block.is_null()
    }

    /// When a value of this origin is there.
    pub fn ready_ps(&self, origin: Origin) -> u64 {
        let mut ps = 0;
        let (mut registers, mut loads) = (origin.registers, origin.loads);
        while registers != 0 {
            ps = ps.max(self.registers_ps[registers.trailing_zeros() as usize]);
            registers &= registers - 1;
        }
        while loads != 0 {
            ps = ps.max(self.loads_ps[loads.trailing_zeros() as usize]);
            loads &= loads - 1;
        }
        ps
    }

    /// A load of `block` gets its data at this time.
    pub fn load(&mut self, block: *const Block, access: &Access, ps: u64) {
        let Some(load) = access.load else { return };
        if self.block != block {
            // A block that began when nothing was on its way.
            self.block = block;
            self.registers_ps = [0; REGISTERS];
            self.loads_ps = [0; LOADS];
        }
        self.loads_ps[usize::from(load)] = ps;
        self.last_ps = self.last_ps.max(ps);
    }

    /// The CPU goes on to another block at this time.
    pub fn enter(&mut self, left: Option<&Block>, entered: *const Block, now_ps: u64) {
        let Some(left) = left.filter(|_| self.last_ps > now_ps) else {
            self.forget();
            return;
        };
        self.registers_ps = left.exits.map(|origin| self.ready_ps(origin));
        self.loads_ps = [0; LOADS];
        self.block = entered;
        self.last_ps = self.registers_ps.iter().copied().max().unwrap_or(0);
        if self.last_ps <= now_ps {
            self.forget();
        }
    }

    /// The block that runs.
    pub fn block(&self) -> *const Block {
        self.block
    }

    /// Nothing is waited for any more.
    pub fn forget(&mut self) {
        self.block = ptr::null();
        self.last_ps = 0;
    }
}

/// A CPU's state. Only its own thread uses it.
pub(crate) struct Cpu {
    pub filter: Filter,
    pub flow: Flow,
    /// The time up to the last look, without the instructions since.
    pub ps: u64,
    /// The time of the last meeting with the other CPUs.
    pub met_ps: u64,
    /// Instructions up to the last look.
    pub instructions: u64,
    /// Time in which it ran, and since when it does.
    pub ran_ps: u64,
    pub runs_since_ps: u64,
    /// Accesses beyond its first-level cache, by source.
    pub accesses: [Accesses; SOURCES],
    /// Lines that came to read, and of which no store has been looked at: at most [`Cpu::MOST_READ`].
    read: u32,
    /// The sampling of accesses that its node's caches did not serve.
    sampling: Sampling,
    /// The same of stores that they served: apart, so that the others are sampled evenly.
    store_sampling: Sampling,
}

/// Which accesses are sampled: one of so many on average. The distance varies, lest a program's loop have
/// always the same access sampled.
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    period: u64,
    left: u64,
    random: u64,
}

impl Sampling {
    /// Whether this access is sampled where one of `period` is to be.
    #[inline]
    pub fn hits(&mut self, period: u64) -> bool {
        if period != self.period {
            self.period = period;
            self.next();
        }
        if period == 0 {
            return false;
        }
        self.left = self.left.saturating_sub(1);
        let hits = self.left == 0;
        if hits {
            self.next();
        }
        hits
    }

    /// From half the period to half as much again.
    fn next(&mut self) {
        // Knuth's generator (MMIX).
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let half = self.period / 2;
        self.left = (self.period - half).saturating_add((self.random >> 33) % (2 * half.min(1 << 30) + 1));
    }
}

impl Cpu {
    /// More lines than that are no longer in its caches.
    const MOST_READ: u32 = 1 << 14;

    /// Whether this access of user code is sampled where one of `period` is to be. The caches of its node did
    /// not serve it, or it stores to a line that they have from such a load.
    pub fn samples(&mut self, is_near: bool, writes: bool, period: u64) -> bool {
        match (is_near, writes) {
            (false, _) => {
                self.read = (self.read + u32::from(!writes)).min(Self::MOST_READ);
                self.sampling.hits(period)
            }
            (true, true) if self.read > 0 => {
                self.read -= 1;
                self.store_sampling.hits(period)
            }
            (true, _) => false,
        }
    }

    pub fn new() -> Self {
        Self {
            filter: Filter::new(),
            flow: Flow::new(),
            ps: 0,
            met_ps: 0,
            instructions: 0,
            ran_ps: 0,
            runs_since_ps: 0,
            accesses: [Accesses::default(); SOURCES],
            read: 0,
            sampling: Sampling::default(),
            store_sampling: Sampling::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_knows_what_was_used_until_a_line_is_lost() {
        let mut filter = Filter::new();
        assert!(!filter.reads(7, 0) && !filter.writes(7, 0));
        filter.insert(7, 0, false);
        assert!(filter.reads(7, 0) && !filter.writes(7, 0) && !filter.reads(7 + LINES as u64, 0));
        filter.insert(7, 0, true);
        assert!(filter.reads(7, 0) && filter.writes(7, 0));
        assert!(!filter.reads(7, 1) && !filter.writes(7, 1));
    }

    #[test]
    fn one_access_of_so_many_is_sampled_and_none_for_zero() {
        let mut sampling = Sampling::default();
        for period in [1, 2, 100, 4096] {
            let hits = (0..200 * period).filter(|_| sampling.hits(period)).count();
            assert!((180..=220).contains(&hits), "{period}: {hits}");
        }
        assert!((0..1000).all(|_| !sampling.hits(0)));
        assert!((0..1000).all(|_| !sampling.hits(u64::MAX)));
        assert!((0..50).any(|_| sampling.hits(20)), "a period of before is forgotten");
    }

    #[test]
    fn stores_to_loaded_lines_are_sampled_as_often_as_loads() {
        let mut cpu = Cpu::new();
        let (near, far, load, store) = (true, false, false, true);
        let mut samples = |is_near, writes| cpu.samples(is_near, writes, 1);
        assert!(samples(far, store) && !samples(near, store) && !samples(near, load));
        assert!(samples(far, load) && samples(far, load) && !samples(near, load));
        assert!(samples(near, store) && samples(near, store) && !samples(near, store));
    }

    /// A block in which rbx gets its value from its first load by rax, and one that changes nothing.
    fn blocks() -> (Block, Block) {
        (Block::of([&[0x48, 0x8b, 0x18][..]].into_iter()), Block::of([&[0x90][..]].into_iter()))
    }

    #[test]
    fn a_value_is_waited_for_through_blocks() {
        let (load, idle) = blocks();
        let mut flow = Flow::new();
        flow.load(&raw const load, &load.accesses[0], 500);
        assert!(flow.waits());
        assert_eq!(flow.ready_ps(Origin { registers: 0, loads: 1 }), 500);
        flow.enter(Some(&load), &raw const idle, 100);
        flow.enter(Some(&idle), &raw const idle, 200);
        let (rax, rbx) = (Origin { registers: 1, loads: 0 }, Origin { registers: 8, loads: 0 });
        assert_eq!((flow.ready_ps(rax), flow.ready_ps(rbx)), (0, 500));
        flow.enter(Some(&idle), &raw const idle, 500);
        assert!(!flow.waits());
    }

    #[test]
    fn a_value_that_is_overwritten_is_waited_for_by_nobody() {
        let (load, _) = blocks();
        let clear = Block::of([&[0x31, 0xdb][..]].into_iter()); // xor ebx, ebx
        let mut flow = Flow::new();
        flow.load(&raw const load, &load.accesses[0], 500);
        flow.enter(Some(&load), &raw const clear, 100);
        flow.enter(Some(&clear), &raw const load, 100);
        assert!(!flow.waits());
    }
}
