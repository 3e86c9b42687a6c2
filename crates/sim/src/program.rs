//! A simulated program: threads of a real algorithm that say which memory they touch.

use crate::Error;
use nodewise_hardware::Touch;
use std::mem::size_of;

/// A program with a fixed number of threads, run by the simulator in pieces.
///
/// The algorithm is really computed, on ordinary Rust values; every touch of simulated memory is also
/// recorded in a [`Trace`], which the simulator replays in simulated time. A piece is computed when the
/// simulator asks for it, so work that is handed out dynamically (a queue, a shared counter) goes to the
/// threads that are ahead in simulated time.
pub trait Program: Send {
    /// How many threads it has.
    fn threads(&self) -> usize;

    /// Its memory. Fixed from the start; which node a page is on is decided when it is first touched.
    fn areas(&self) -> &[Area];

    /// On which node each thread runs. Told once, before the first piece.
    fn placed(&mut self, _nodes: &[usize]) {}

    /// How many additions, tasks or elements it works on, where costs are asked for each of them.
    fn items(&self) -> Option<u64> {
        None
    }

    /// Barriers of an iteration of a program that goes over its data in the same way again and again; else 0.
    /// In an interval of the real program a policy sees many iterations, and here it sees whole ones.
    fn iteration(&self) -> u64 {
        0
    }

    /// Computes the next piece of a thread, a few hundred to a few thousand operations, and records it in
    /// `trace`, which is empty. The thread is asked again when it has executed the piece, and has got
    /// past the barrier if it said it waits at one.
    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress;

    /// Whether the result is right; called once all threads have finished.
    fn check(&self) -> Result<(), Error>;
}

/// Where a thread stands at the end of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do.
    Running,
    /// It waits, after this piece, until every thread that has not finished waits too.
    Barrier,
    /// It waits, after this piece, until another thread has ended so many pieces.
    After {
        /// The other thread.
        thread: usize,
        /// Its pieces, counted from its first.
        pieces: usize,
    },
    /// This was its last piece.
    Finished,
}

/// A named piece of the address space, aligned to 2 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// The name of its contents.
    pub name: String,
    /// Its first address.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its users, as the programmer would tell the system.
    pub role: Role,
}

/// The users of an area: the pragmas the ACE paper wished for (section 5), heeded only by policies that are
/// told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// Nothing is said.
    #[default]
    Unknown,
    /// One thread's own: a stack, a private table.
    Private(usize),
    /// Written once, then read by all.
    ReadShared,
    /// Written by all.
    WriteShared,
}

/// Lays out a program's areas.
#[derive(Debug, Default)]
pub struct Space {
    areas: Vec<Area>,
}

impl Space {
    const ALIGNMENT: u64 = 2 << 20;

    /// An empty address space.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Address space without values, for memory whose contents steer nothing. Returns its first address.
    pub fn area(&mut self, name: impl Into<String>, bytes: u64, role: Role) -> u64 {
        // The gap keeps neighbouring areas out of each other's huge pages; address 0 stays invalid.
        let base = self
            .areas
            .last()
            .map_or(1 << 32, |last| (last.base + last.bytes).next_multiple_of(Self::ALIGNMENT))
            + Self::ALIGNMENT;
        self.areas.push(Area { name: name.into(), base, bytes, role });
        base
    }

    /// An array whose values are really kept.
    pub fn array<T: Copy>(&mut self, name: impl Into<String>, values: Vec<T>, role: Role) -> Array<T> {
        let base = self.area(name, (values.len() * size_of::<T>()) as u64, role);
        Array { base, values }
    }

    /// The layout is complete.
    #[must_use]
    pub fn into_areas(self) -> Vec<Area> {
        self.areas
    }
}

/// A simulated array: values, and the addresses they would have.
#[derive(Clone, Debug)]
pub struct Array<T> {
    base: u64,
    values: Vec<T>,
}

impl<T: Copy> Array<T> {
    /// Reads an element.
    #[inline]
    pub fn read(&self, index: usize, trace: &mut Trace) -> T {
        trace.read(self.address(index));
        self.values[index]
    }

    /// Reads an element at an address that depends on the value read last: the read cannot start before that
    /// one is done.
    #[inline]
    pub fn chase(&self, index: usize, trace: &mut Trace) -> T {
        trace.chase(self.address(index));
        self.values[index]
    }

    /// Writes an element.
    #[inline]
    pub fn write(&mut self, index: usize, value: T, trace: &mut Trace) {
        trace.write(self.address(index));
        self.values[index] = value;
    }

    /// Where an element is.
    #[inline]
    #[must_use]
    pub fn address(&self, index: usize) -> u64 {
        self.base + (index * size_of::<T>()) as u64
    }

    /// The values, without touching simulated memory: for inputs and checks.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The values, without touching simulated memory: for inputs.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

/// The operations of a thread in one piece, in program order.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    words: Vec<u64>,
    instructions: u64,
}

/// One operation of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads memory, after executing some instructions.
    Read {
        /// Where.
        address: u64,
        /// Instructions before it.
        instructions: u64,
    },
    /// Writes memory, after executing some instructions.
    Write {
        /// Where.
        address: u64,
        /// Instructions before it.
        instructions: u64,
    },
    /// Reads memory at an address that depends on the read before it.
    Chase {
        /// Where.
        address: u64,
        /// Instructions before it.
        instructions: u64,
    },
    /// Reads and writes memory in one atomic instruction, and waits for it.
    Atomic {
        /// Where.
        address: u64,
        /// Instructions before it.
        instructions: u64,
    },
    /// Executes instructions without touching shared memory.
    Compute {
        /// How many.
        instructions: u64,
    },
}

// A word: address or count in the low 47 bits, kind in three, instructions before it in the upper 14.
const KIND_SHIFT: u32 = 47;
const INSTRUCTIONS_SHIFT: u32 = 50;
const LOW: u64 = (1 << KIND_SHIFT) - 1;
const READ: u64 = 0;
const WRITE: u64 = 1;
const CHASE: u64 = 2;
const COMPUTE: u64 = 3;
const ATOMIC: u64 = 4;

impl Trace {
    /// Records a read.
    #[inline]
    pub fn read(&mut self, address: u64) {
        self.push(READ, address);
    }

    /// Records a read that has to wait for the read before it.
    #[inline]
    pub fn chase(&mut self, address: u64) {
        self.push(CHASE, address);
    }

    /// Records a write.
    #[inline]
    pub fn write(&mut self, address: u64) {
        self.push(WRITE, address);
    }

    /// Records an atomic read-modify-write. To be executed in the order of simulated time it has to be the
    /// first of its piece.
    #[inline]
    pub fn atomic(&mut self, address: u64) {
        self.push(ATOMIC, address);
    }

    /// Records instructions that touch no memory (or only what is always in the first-level cache).
    #[inline]
    pub fn compute(&mut self, instructions: u64) {
        self.instructions += instructions;
    }

    #[inline]
    fn push(&mut self, kind: u64, address: u64) {
        debug_assert!(address <= LOW, "an address has 47 bits");
        if self.instructions >> (64 - INSTRUCTIONS_SHIFT) != 0 {
            self.flush();
        }
        self.words.push(self.instructions << INSTRUCTIONS_SHIFT | kind << KIND_SHIFT | address);
        self.instructions = 0;
    }

    fn flush(&mut self) {
        if self.instructions > 0 {
            self.words.push(COMPUTE << KIND_SHIFT | self.instructions.min(LOW));
            self.instructions = 0;
        }
    }

    /// How many operations were recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len() + usize::from(self.instructions > 0)
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.words.clear();
        self.instructions = 0;
    }

    /// The encoded operations; [`Op::decode`] takes one apart.
    pub fn words(&mut self) -> &[u64] {
        self.flush();
        &self.words
    }

    /// The operations.
    pub fn ops(&mut self) -> impl Iterator<Item = Op> + '_ {
        self.words().iter().map(|&word| Op::decode(word))
    }
}

impl Op {
    /// Takes a word of a [`Trace`] apart.
    #[inline]
    #[must_use]
    pub fn decode(word: u64) -> Self {
        let (address, instructions) = (word & LOW, word >> INSTRUCTIONS_SHIFT);
        match word >> KIND_SHIFT & 7 {
            READ => Self::Read { address, instructions },
            WRITE => Self::Write { address, instructions },
            CHASE => Self::Chase { address, instructions },
            ATOMIC => Self::Atomic { address, instructions },
            _ => Self::Compute { instructions: address },
        }
    }

    /// How it touches memory, if it does, where, and the instructions before.
    #[inline]
    #[must_use]
    pub fn parts(self) -> (Option<Touch>, u64, u64) {
        match self {
            Self::Read { address, instructions } => (Some(Touch::Read), address, instructions),
            Self::Chase { address, instructions } => (Some(Touch::Chase), address, instructions),
            Self::Write { address, instructions } => (Some(Touch::Write), address, instructions),
            Self::Atomic { address, instructions } => (Some(Touch::Atomic), address, instructions),
            Self::Compute { instructions } => (None, 0, instructions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_gives_back_what_was_recorded() {
        let mut space = Space::new();
        let mut array = space.array("numbers", vec![1u32, 2, 3], Role::Unknown);
        let mut trace = Trace::default();
        trace.compute(7);
        assert_eq!(array.read(1, &mut trace), 2);
        trace.compute(1 << 20);
        array.write(2, 9, &mut trace);
        array.chase(0, &mut trace);
        trace.atomic(array.address(1));
        trace.compute(3);
        let ops: Vec<Op> = trace.ops().collect();
        assert_eq!(
            ops,
            [
                Op::Read { address: array.address(1), instructions: 7 },
                Op::Compute { instructions: 1 << 20 },
                Op::Write { address: array.address(2), instructions: 0 },
                Op::Chase { address: array.address(0), instructions: 0 },
                Op::Atomic { address: array.address(1), instructions: 0 },
                Op::Compute { instructions: 3 },
            ]
        );
        assert_eq!(array.values(), [1, 2, 9]);
    }

    #[test]
    fn areas_do_not_share_huge_pages() {
        let mut space = Space::new();
        let first = space.area("first", 5 << 20, Role::Private(0));
        let second = space.area("second", 1, Role::ReadShared);
        assert!(first % (2 << 20) == 0 && second % (2 << 20) == 0);
        assert!(second >= first + (6 << 20));
        assert_eq!(space.into_areas().len(), 2);
    }
}
