//! The device by which a modelled machine shows its guest counters and samples (`docs/modelled-guests.md`).
//!
//! It is memory that the machine and the guest share: the second BAR of a PCI device [`VENDOR`]:[`DEVICE`],
//! QEMU's `ivshmem-plain`. It holds little-endian words of 64 bits. The machine writes all but two kinds of
//! words:
//!
//! | word | content |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | the version, 1 |
//! | 2, 3, 4 | how many nodes N, CPUs C and links L there are |
//! | 5 | a core's cycle in fs |
//! | 6 | bytes of a line |
//! | 7 | how many times slower the machine is, in thousandths |
//! | 8 | time of the counters in ps, 0 before the model begins |
//! | 16 | the guest's: accesses for each sample, 0 for none |
//! | 64 and on | C blocks of [`CPU_WORDS`], one for each CPU |
//! | then | N * N blocks of 4, by accessor node and then by home node |
//! | then | N blocks of 8, one for each node |
//! | then | L blocks of 8, one for each link |
//! | then | C rings of [`RING_WORDS`] |
//!
//! All counters grow from 0 and are whole words, so the difference of two looks is what happened in between.
//! Machine-wide ones are written anew every 100 us, each CPU's own about every 4 us.
//!
//! | block | words |
//! |---|---|
//! | CPU | instructions, ps not idle, then for each [`Source`]: |
//! | source | reads, writes, sum of latencies in ps |
//! | pair | DRAM accesses, sum of latencies in ps, write-backs, |
//! | | those of the accesses that were to user addresses |
//! | node | controller's bytes, ps busy, ps waited for it; then: |
//! | | LLC misses, lines from other nodes' LLCs, 0, 0, 0 |
//! | link | from, to, bytes, ps busy, ps waited for it, 0, 0, 0 |
//!
//! Times are of the guest's clock. A ring begins with eight words, and room for [`RECORDS`] samples of eight
//! words follows. The sample of number n has place n modulo [`RECORDS`].
//!
//! | word of a ring | content |
//! |---|---|
//! | 0 | samples that the machine has written |
//! | 1 | samples that it has lost for want of room |
//! | 4 | the guest's: samples that it has taken |
//!
//! | word of a sample | content |
//! |---|---|
//! | 0, 1 | virtual and physical address |
//! | 2, 3 | time, and latency, in ps |
//! | 4, 5 | [`Source`], and 1 if it wrote |
//! | 6 | accesses that it stands for |
//!
//! The machine samples accesses to user addresses that the LLC of the CPU's node did not serve. As a PMU
//! does, it samples stores that a cache served, too: as many at most as there were such loads.
//!
//! To the guest, the device is a stranger's word, and so are the guest's two kinds of words to the machine.
//! [`Device`] takes no word for granted: no call fails, loops on, or reads outside
//! of the memory, whatever is in it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The PCI vendor of the device.
pub const VENDOR: u16 = 0x1af4;
/// Its PCI number.
pub const DEVICE: u16 = 0x1110;
/// Word 0.
pub const MAGIC: u64 = u64::from_le_bytes(*b"nodewise");
/// Word 1.
pub const VERSION: u64 = 1;
/// Words of a CPU's block.
pub const CPU_WORDS: usize = 32;
/// Samples that a ring has room for.
pub const RECORDS: usize = 1024;
/// Words of a ring.
pub const RING_WORDS: usize = RING_HEAD + RECORDS * RECORD_WORDS;

const TIME: usize = 8;
const PERIOD: usize = 16;
const HEADER: usize = 64;
const PAIR_WORDS: usize = 4;
const NODE_WORDS: usize = 8;
const LINK_WORDS: usize = 8;
const RING_HEAD: usize = 8;
const RECORD_WORDS: usize = 8;
/// Words of a ring's head.
const WRITTEN: usize = 0;
const LOST: usize = 1;
const TAKEN: usize = 4;
/// More than any machine has.
const MOST_NODES: u64 = 64;
const MOST_CPUS: u64 = 1024;
const MOST_LINKS: u64 = 4096;
/// More losses between two looks are no count.
const MOST_LOST: u64 = 1 << 40;
/// Longer than any access takes, in ps.
const MOST_LATENCY_PS: u64 = 1 << 40;
/// More accesses than a sample stands for.
const MOST_WEIGHT: u64 = 1 << 32;

/// The server of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Source {
    /// The CPU's second cache.
    L2 = 0,
    /// The LLC of its node.
    Llc = 1,
    /// Another node's LLC, which had modified the line.
    RemoteLlc = 2,
    /// Memory of its node.
    LocalDram = 3,
    /// Memory of another node.
    RemoteDram = 4,
}

/// How many sources there are.
pub const SOURCES: usize = 5;

impl Source {
    fn of(word: u64) -> Option<Self> {
        [Self::L2, Self::Llc, Self::RemoteLlc, Self::LocalDram, Self::RemoteDram].get(word as usize).copied()
    }
}

/// The size of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Nodes.
    pub nodes: usize,
    /// CPUs, numbered as the guest's kernel does.
    pub cpus: usize,
    /// The nodes that each link leads from and to.
    pub links: Vec<(usize, usize)>,
    /// A core's cycle, in fs.
    pub cycle_fs: u64,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// How many times slower than its preset the machine is, in thousandths.
    pub slow_thousandths: u64,
}

/// Counts of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Instructions.
    pub instructions: u64,
    /// Time in which it did not idle, in ps.
    pub ran_ps: u64,
    /// Accesses by [`Source`].
    pub accesses: [Accesses; SOURCES],
}

/// Counts of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Accesses that only read.
    pub reads: u64,
    /// All others.
    pub writes: u64,
    /// The sum of their latencies, in ps.
    pub latency_ps: u64,
}

/// Counts of the accesses from one node to another's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Lines that memory delivered.
    pub dram: u64,
    /// The sum of their latencies, in ps.
    pub latency_ps: u64,
    /// Lines that were written back.
    pub written_back: u64,
    /// The lines of `dram` that accesses to user addresses brought, with what was prefetched beside them.
    pub user_dram: u64,
}

/// Work of a controller or a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes that it moved.
    pub bytes: u64,
    /// Time in which it was busy, in ps.
    pub busy_ps: u64,
    /// Time that lines waited for it, in ps.
    pub wait_ps: u64,
}

/// Counts of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Work of its controller.
    pub controller: Load,
    /// Misses of its LLC.
    pub llc_misses: u64,
    /// Lines that other nodes' LLCs delivered.
    pub remote_llc: u64,
}

/// All counts at a time, or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Counts of each CPU.
    pub cpus: Vec<Cpu>,
    /// Counts of each pair of nodes, by accessor and then by home.
    pub pairs: Vec<Pair>,
    /// Counts of each node.
    pub nodes: Vec<Node>,
    /// Work of each link.
    pub links: Vec<Load>,
}

impl Counts {
    /// The counts since an earlier look; none if a count has shrunk.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        fn each<T>(now: &[T], then: &[T], less: impl Fn(&T, &T) -> Option<T>) -> Option<Vec<T>> {
            (now.len() == then.len()).then_some(())?;
            now.iter().zip(then).map(|(now, then)| less(now, then)).collect()
        }
        let load = |now: &Load, then: &Load| {
            Some(Load {
                bytes: now.bytes.checked_sub(then.bytes)?,
                busy_ps: now.busy_ps.checked_sub(then.busy_ps)?,
                wait_ps: now.wait_ps.checked_sub(then.wait_ps)?,
            })
        };
        let cpu = |now: &Cpu, then: &Cpu| {
            let mut accesses = [Accesses::default(); SOURCES];
            for ((to, now), then) in accesses.iter_mut().zip(&now.accesses).zip(&then.accesses) {
                *to = Accesses {
                    reads: now.reads.checked_sub(then.reads)?,
                    writes: now.writes.checked_sub(then.writes)?,
                    latency_ps: now.latency_ps.checked_sub(then.latency_ps)?,
                };
            }
            let instructions = now.instructions.checked_sub(then.instructions)?;
            Some(Cpu { instructions, ran_ps: now.ran_ps.checked_sub(then.ran_ps)?, accesses })
        };
        let pair = |now: &Pair, then: &Pair| {
            Some(Pair {
                dram: now.dram.checked_sub(then.dram)?,
                latency_ps: now.latency_ps.checked_sub(then.latency_ps)?,
                written_back: now.written_back.checked_sub(then.written_back)?,
                user_dram: now.user_dram.checked_sub(then.user_dram)?,
            })
        };
        let node = |now: &Node, then: &Node| {
            Some(Node {
                controller: load(&now.controller, &then.controller)?,
                llc_misses: now.llc_misses.checked_sub(then.llc_misses)?,
                remote_llc: now.remote_llc.checked_sub(then.remote_llc)?,
            })
        };
        Some(Self {
            cpus: each(&self.cpus, &earlier.cpus, cpu)?,
            pairs: each(&self.pairs, &earlier.pairs, pair)?,
            nodes: each(&self.nodes, &earlier.nodes, node)?,
            links: each(&self.links, &earlier.links, load)?,
        })
    }
}

/// A sampled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The virtual address.
    pub virtual_address: u64,
    /// The guest-physical address.
    pub physical_address: u64,
    /// When, in ps of the guest's clock.
    pub time_ps: u64,
    /// The time from issue to data, in ps.
    pub latency_ps: u64,
    /// The server.
    pub source: Source,
    /// Whether it wrote.
    pub writes: bool,
    /// How many accesses it stands for; 1 at least.
    pub weight: u64,
}

/// The samples of a ring that came to nothing since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Samples that found no room.
    pub lost: u64,
    /// Words that made no sense.
    pub malformed: u64,
}

/// The device, as the machine or the guest has it.
#[derive(Debug)]
pub struct Device<M> {
    memory: M,
    shape: Shape,
    /// For the guest, samples taken of each ring and the losses that were seen: the device's own word for
    /// these is not asked.
    taken: Vec<u64>,
    lost: Vec<u64>,
}

/// The bytes that a device takes: a power of two, as a BAR has.
#[must_use]
pub fn bytes(shape: &Shape) -> usize {
    (ring_at(shape, shape.cpus) * 8).next_power_of_two()
}

fn pair_at(shape: &Shape, pair: usize) -> usize {
    HEADER + shape.cpus * CPU_WORDS + pair * PAIR_WORDS
}

fn node_at(shape: &Shape, node: usize) -> usize {
    pair_at(shape, shape.nodes * shape.nodes) + node * NODE_WORDS
}

fn link_at(shape: &Shape, link: usize) -> usize {
    node_at(shape, shape.nodes) + link * LINK_WORDS
}

fn ring_at(shape: &Shape, cpu: usize) -> usize {
    link_at(shape, shape.links.len()) + cpu * RING_WORDS
}

impl<M: AsRef<[AtomicU64]>> Device<M> {
    fn new(memory: M, shape: Shape) -> Option<Self> {
        let fits = ring_at(&shape, shape.cpus) <= memory.as_ref().len();
        let none = vec![0; shape.cpus];
        fits.then(|| Self { memory, taken: none.clone(), lost: none, shape })
    }

    /// The machine's end: writes the header. None if the memory is smaller than [`bytes`] says.
    #[must_use]
    pub fn create(memory: M, shape: Shape) -> Option<Self> {
        let device = Self::new(memory, shape)?;
        let shape = &device.shape;
        let head = [shape.nodes as u64, shape.cpus as u64, shape.links.len() as u64, shape.cycle_fs];
        device.put(1, &[VERSION]);
        device.put(2, &head);
        device.put(6, &[shape.line_bytes, shape.slow_thousandths]);
        for (index, &(from, to)) in shape.links.iter().enumerate() {
            device.put(link_at(shape, index), &[from as u64, to as u64]);
        }
        device.word(0).store(MAGIC, Ordering::Release);
        Some(device)
    }

    /// The guest's end: reads the header, and leaves out samples from before. None if this is no such device.
    #[must_use]
    pub fn open(memory: M) -> Option<Self> {
        let words = memory.as_ref();
        if words.len() < HEADER || words[0].load(Ordering::Acquire) != MAGIC {
            return None;
        }
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let count = |at: usize, least: u64, most: u64| {
            let count = word(at);
            (least..=most).contains(&count).then_some(count as usize)
        };
        let mut shape = Shape {
            nodes: count(2, 1, MOST_NODES)?,
            cpus: count(3, 1, MOST_CPUS)?,
            links: vec![(0, 0); count(4, 0, MOST_LINKS)?],
            cycle_fs: count(5, 1, u64::from(u32::MAX))? as u64,
            line_bytes: count(6, 1, 1 << 16)? as u64,
            slow_thousandths: count(7, 1, 1 << 40)? as u64,
        };
        if word(1) != VERSION || ring_at(&shape, shape.cpus) > words.len() {
            return None;
        }
        for index in 0..shape.links.len() {
            let [from, to] = [0, 1].map(|end| word(link_at(&shape, index) + end));
            if from.max(to) >= shape.nodes as u64 {
                return None;
            }
            shape.links[index] = (from as usize, to as usize);
        }
        let mut device = Self::new(memory, shape)?;
        for cpu in 0..device.shape.cpus {
            let ring = ring_at(&device.shape, cpu);
            device.taken[cpu] = device.get(ring + WRITTEN);
            device.lost[cpu] = device.get(ring + LOST);
            device.put(ring + TAKEN, &[device.taken[cpu]]);
        }
        Some(device)
    }

    /// The size of the machine.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.as_ref()[at]
    }

    #[inline]
    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    #[inline]
    fn put(&self, at: usize, values: &[u64]) {
        let words = &self.memory.as_ref()[at..at + values.len()];
        words.iter().zip(values).for_each(|(word, &value)| word.store(value, Ordering::Relaxed));
    }

    /// When the machine-wide counters were last written, in ps of the guest's clock; 0 before the model has
    /// begun.
    #[must_use]
    pub fn time_ps(&self) -> u64 {
        self.get(TIME)
    }

    /// One of so many accesses is sampled; 0 for none.
    #[inline]
    #[must_use]
    pub fn period(&self) -> u64 {
        self.get(PERIOD)
    }

    /// The guest wants one of so many accesses from now on; 0 for none.
    pub fn set_period(&self, period: u64) {
        self.put(PERIOD, &[period]);
    }

    /// The machine writes a CPU's counts.
    pub fn put_cpu(&self, cpu: usize, counts: &Cpu) {
        let at = HEADER + cpu * CPU_WORDS;
        self.put(at, &[counts.instructions, counts.ran_ps]);
        for (index, of) in counts.accesses.iter().enumerate() {
            self.put(at + 2 + 3 * index, &[of.reads, of.writes, of.latency_ps]);
        }
    }

    /// The machine writes all counts but the CPUs', as of a time.
    pub fn put_counts(&self, counts: &Counts, time_ps: u64) {
        let shape = &self.shape;
        let load = |load: &Load| [load.bytes, load.busy_ps, load.wait_ps];
        for (index, of) in counts.pairs.iter().enumerate() {
            self.put(pair_at(shape, index), &[of.dram, of.latency_ps, of.written_back, of.user_dram]);
        }
        for (index, of) in counts.nodes.iter().enumerate() {
            self.put(node_at(shape, index), &load(&of.controller));
            self.put(node_at(shape, index) + 3, &[of.llc_misses, of.remote_llc]);
        }
        for (index, of) in counts.links.iter().enumerate() {
            self.put(link_at(shape, index) + 2, &load(of));
        }
        self.put(TIME, &[time_ps]);
    }

    /// All counts, as the device says.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shape = &self.shape;
        let load =
            |at: usize| Load { bytes: self.get(at), busy_ps: self.get(at + 1), wait_ps: self.get(at + 2) };
        let accesses = |at: usize| Accesses {
            reads: self.get(at),
            writes: self.get(at + 1),
            latency_ps: self.get(at + 2),
        };
        let cpu = |at: usize| Cpu {
            instructions: self.get(at),
            ran_ps: self.get(at + 1),
            accesses: std::array::from_fn(|source| accesses(at + 2 + 3 * source)),
        };
        let pair = |at: usize| Pair {
            dram: self.get(at),
            latency_ps: self.get(at + 1),
            written_back: self.get(at + 2),
            user_dram: self.get(at + 3),
        };
        let node = |at: usize| Node {
            controller: load(at),
            llc_misses: self.get(at + 3),
            remote_llc: self.get(at + 4),
        };
        Counts {
            cpus: (0..shape.cpus).map(|index| cpu(HEADER + index * CPU_WORDS)).collect(),
            pairs: (0..shape.nodes * shape.nodes).map(|index| pair(pair_at(shape, index))).collect(),
            nodes: (0..shape.nodes).map(|index| node(node_at(shape, index))).collect(),
            links: (0..shape.links.len()).map(|index| load(link_at(shape, index) + 2)).collect(),
        }
    }

    /// The machine writes a sample of a CPU. Only one thread at a time may do so for a CPU.
    pub fn sample(&self, cpu: usize, record: &Record) {
        let ring = ring_at(&self.shape, cpu);
        let (written, taken) = (self.get(ring + WRITTEN), self.word(ring + TAKEN).load(Ordering::Acquire));
        // The guest's word for what it has taken may be anything: then there is no room.
        if written.wrapping_sub(taken) >= RECORDS as u64 {
            self.put(ring + LOST, &[self.get(ring + LOST).wrapping_add(1)]);
            return;
        }
        let at = ring + RING_HEAD + (written % RECORDS as u64) as usize * RECORD_WORDS;
        let Record { virtual_address, physical_address, time_ps, latency_ps, source, writes, weight } =
            *record;
        let words = [
            virtual_address,
            physical_address,
            time_ps,
            latency_ps,
            source as u64,
            u64::from(writes),
            weight,
        ];
        self.put(at, &words);
        self.word(ring + WRITTEN).store(written.wrapping_add(1), Ordering::Release);
    }

    /// The guest takes the samples of a CPU, [`RECORDS`] at most.
    pub fn take(&mut self, cpu: usize, mut each: impl FnMut(Record)) -> Missed {
        let ring = ring_at(&self.shape, cpu);
        let (written, lost) = (self.word(ring + WRITTEN).load(Ordering::Acquire), self.get(ring + LOST));
        let mut missed = Missed::default();
        match lost.wrapping_sub(std::mem::replace(&mut self.lost[cpu], lost)) {
            lost @ 0..=MOST_LOST => missed.lost = lost,
            _ => missed.malformed += 1,
        }
        let first = std::mem::replace(&mut self.taken[cpu], written);
        match written.wrapping_sub(first) {
            new if new <= RECORDS as u64 => {
                for number in 0..new {
                    let place = (first.wrapping_add(number) % RECORDS as u64) as usize;
                    match self.record(ring + RING_HEAD + place * RECORD_WORDS) {
                        Some(record) => each(record),
                        None => missed.malformed += 1,
                    }
                }
            }
            _ => missed.malformed += 1,
        }
        self.word(ring + TAKEN).store(written, Ordering::Release);
        missed
    }

    /// The sample at a place; none if it can be no sample.
    fn record(&self, at: usize) -> Option<Record> {
        /// Virtual addresses of programs, and physical ones, have at most so many bits.
        const ADDRESS_BITS: u32 = 56;
        let up_to = |at: usize, most: u64| {
            let word = self.get(at);
            (word <= most).then_some(word)
        };
        let address = (1 << ADDRESS_BITS) - 1;
        Some(Record {
            virtual_address: up_to(at, address)?,
            physical_address: up_to(at + 1, address)?,
            time_ps: self.get(at + 2),
            latency_ps: up_to(at + 3, MOST_LATENCY_PS)?,
            source: Source::of(self.get(at + 4))?,
            writes: up_to(at + 5, 1)? == 1,
            weight: up_to(at + 6, MOST_WEIGHT).filter(|&weight| weight > 0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(words: usize) -> Vec<AtomicU64> {
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    fn shape() -> Shape {
        Shape {
            nodes: 2,
            cpus: 3,
            links: vec![(0, 1), (1, 0)],
            cycle_fs: 500_000,
            line_bytes: 64,
            slow_thousandths: 1000,
        }
    }

    fn record(number: u64) -> Record {
        Record {
            virtual_address: 0x7000 + number,
            physical_address: 0x1000 + number,
            time_ps: number,
            latency_ps: 130_000,
            source: Source::RemoteDram,
            writes: number % 2 == 1,
            weight: 100,
        }
    }

    /// The two ends of one device.
    fn ends(memory: &[AtomicU64]) -> (Device<&[AtomicU64]>, Device<&[AtomicU64]>) {
        let machine = Device::create(memory, shape()).unwrap();
        (machine, Device::open(memory).unwrap())
    }

    #[test]
    fn the_guest_reads_what_the_machine_writes() {
        let memory = memory(bytes(&shape()) / 8);
        let (machine, mut guest) = ends(&memory);
        assert_eq!(*guest.shape(), shape());
        guest.set_period(7);
        assert_eq!(machine.period(), 7);
        let cpu = |number| Cpu {
            instructions: number,
            ran_ps: 2 * number,
            accesses: std::array::from_fn(|source| Accesses {
                reads: number + source as u64,
                writes: 3,
                latency_ps: 4,
            }),
        };
        let load = |number| Load { bytes: number, busy_ps: number + 1, wait_ps: number + 2 };
        let counts = Counts {
            cpus: (0..3).map(cpu).collect(),
            pairs: (0..4)
                .map(|n| Pair { dram: n, latency_ps: n + 1, written_back: n + 2, user_dram: n + 3 })
                .collect(),
            nodes: (0..2)
                .map(|n| Node { controller: load(n), llc_misses: n + 5, remote_llc: n + 6 })
                .collect(),
            links: (10..12).map(load).collect(),
        };
        let before = guest.counts();
        counts.cpus.iter().enumerate().for_each(|(index, cpu)| machine.put_cpu(index, cpu));
        machine.put_counts(&counts, 99);
        assert_eq!((guest.counts(), guest.time_ps()), (counts.clone(), 99));
        assert_eq!(guest.counts().since(&before), Some(counts.clone()));
        assert_eq!(before.since(&counts), None, "counts that shrink are none");
        (0..5).for_each(|number| machine.sample(1, &record(number)));
        let mut taken = Vec::new();
        assert_eq!(guest.take(1, |record| taken.push(record)), Missed::default());
        assert_eq!(taken, (0..5).map(record).collect::<Vec<_>>());
        assert_eq!(guest.take(1, |_| panic!("all are taken")), Missed::default());
    }

    #[test]
    fn samples_without_room_are_counted_and_rings_go_on() {
        let memory = memory(bytes(&shape()) / 8);
        let (machine, mut guest) = ends(&memory);
        for round in 0..3 {
            (0..RECORDS as u64 + 10).for_each(|number| machine.sample(2, &record(number)));
            let mut taken = 0;
            assert_eq!(guest.take(2, |_| taken += 1), Missed { lost: 10, malformed: 0 }, "{round}");
            assert_eq!(taken, RECORDS);
        }
    }

    #[test]
    fn memory_that_is_no_device_is_refused() {
        let words = memory(bytes(&shape()) / 8);
        assert!(Device::open(&words[..]).is_none(), "zeros");
        let too_small = &words[..ring_at(&shape(), 3) - 1];
        assert!(Device::create(too_small, shape()).is_none());
        Device::create(&words[..], shape()).unwrap();
        assert!(Device::open(too_small).is_none());
        for (at, value) in [(1, 2), (2, 0), (2, 65), (3, 1 << 40), (4, u64::MAX), (5, 0), (7, 0)] {
            let before = words[at].swap(value, Ordering::Relaxed);
            assert!(Device::open(&words[..]).is_none(), "word {at} is {value}");
            words[at].store(before, Ordering::Relaxed);
        }
        assert!(Device::open(&words[..]).is_some());
    }

    proptest! {
        /// Scribbles on the device make neither end fail, and the guest takes no more than a ring has.
        #[test]
        fn scribbles_harm_neither_end(
            scribbles in prop::collection::vec((0usize..30_000, any::<u64>(), 0u8..4), 1..200),
        ) {
            let words = memory(bytes(&shape()) / 8);
            let (machine, mut guest) = ends(&words);
            let rings = ring_at(&shape(), 0);
            for (number, (place, value, kind)) in scribbles.into_iter().enumerate() {
                let at = match kind {
                    0 => place % words.len(),
                    // Heads of rings, which random places seldom hit.
                    1 => rings + place % 3 * RING_WORDS + place % RING_HEAD,
                    2 => place % rings,
                    _ => rings + place % 3 * RING_WORDS + RING_HEAD + place % 64,
                };
                words[at].store(if value % 2 == 0 { value } else { value % 4096 }, Ordering::Relaxed);
                machine.sample(place % 3, &record(number as u64));
                let mut taken = 0;
                guest.take(place % 3, |record| {
                    taken += 1;
                    assert!(record.weight > 0 && record.virtual_address < 1 << 56);
                });
                prop_assert!(taken <= RECORDS);
                let _ = guest.counts().since(&guest.counts());
                if let Some(other) = Device::open(&words[..]) {
                    prop_assert!(other.shape().cpus <= 1024);
                }
            }
        }
    }
}
