//! The measurement: a list of jobs, one after the other.

use crate::cache::{self, Between};
use crate::chase::Chase;
use crate::core::{self, nanoseconds_per_hop};
use crate::error::{Error, ErrorKind};
use crate::figure::{Figure, megabytes_per_s};
use crate::machine::Machine;
use crate::memory::{Memory, check_free};
use crate::results::{
    AllCpus, Bandwidth, IdleLatency, LoadedLatency, NodeFacts, PageLatency, Peak, Results, Transfer,
};
use crate::slice::{LINE_BYTES, Slice};
use crate::stream::{NON_TEMPORAL_STORES, Stream, Traffic, pause};
use crate::team::{on_cpu, on_cpus};
use nodewise_sys::{Policy, PolicyMode};
use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Idle latency from node to node.
    Latency,
    /// Idle latency by size of pages, misses of the TLB included.
    Pages,
    /// Bandwidth from node to node.
    Bandwidth,
    /// Bandwidth of all CPUs, each with the memory nearest to it.
    Peak,
    /// Bandwidth of all CPUs on one node's memory, and on interleaved memory.
    Interleaved,
    /// Latency while others read.
    Loaded,
    /// Latency from cache to cache.
    Cache,
}

impl Part {
    /// All parts, in the order in which they are measured.
    pub const ALL: [Self; 7] = [
        Self::Latency,
        Self::Pages,
        Self::Peak,
        Self::Bandwidth,
        Self::Interleaved,
        Self::Loaded,
        Self::Cache,
    ];

    /// Its name for users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Pages => "pages",
            Self::Bandwidth => "bandwidth",
            Self::Peak => "peak",
            Self::Interleaved => "interleaved",
            Self::Loaded => "loaded",
            Self::Cache => "cache",
        }
    }

    /// Whether Intel's Memory Latency Checker has the part, too.
    #[must_use]
    pub fn is_in_mlc(self) -> bool {
        !matches!(self, Self::Pages | Self::Interleaved)
    }
}

/// How to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The parts to measure.
    pub parts: Vec<Part>,
    /// Fewer and shorter passes.
    pub quick: bool,
    /// Memory of each node, in MiB; `None` for a multiple of the last-level caches.
    pub mebibytes: Option<u64>,
    /// Whether to measure a core and its caches, too.
    pub core: bool,
}

impl Default for Options {
    /// Everything but the core.
    fn default() -> Self {
        Self { parts: Part::ALL.to_vec(), quick: false, mebibytes: None, core: false }
    }
}

/// How much work a figure gets.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Passes of streams.
    passes: usize,
    /// Time of a pass of streams.
    stream: Duration,
    /// Passes of a chase alone. They are many and short, as a scheduler's interruptions are few and long.
    chases: usize,
    /// Loads of such a pass.
    hops: usize,
    /// Memory of a node, as a multiple of its last-level caches.
    caches: u64,
}

const THOROUGH: Effort =
    Effort { passes: 5, stream: Duration::from_millis(40), chases: 25, hops: 10_000, caches: 6 };
const QUICK: Effort =
    Effort { passes: 3, stream: Duration::from_millis(8), chases: 9, hops: 5_000, caches: 3 };

/// The pauses of MLC's curve.
const PAUSES: [u32; 19] =
    [0, 2, 8, 15, 50, 100, 200, 300, 400, 500, 700, 1000, 1300, 1700, 2500, 3500, 5000, 9000, 20_000];
const QUICK_PAUSES: [u32; 6] = [0, 50, 200, 500, 1700, 9000];

/// A step of the measurement. Nodes are places in [`Machine::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Core,
    /// From every row to a column.
    Latency {
        column: usize,
    },
    Pages {
        huge_page_bytes: Option<u64>,
    },
    Peak {
        traffic: Traffic,
        non_temporal: bool,
    },
    Bandwidth {
        row: usize,
        column: usize,
        traffic: Traffic,
        non_temporal: bool,
        threads: usize,
    },
    AllCpus {
        column: usize,
    },
    Interleaved,
    Loaded {
        pause_cycles: u32,
    },
    Transfer {
        owner: usize,
        reader: usize,
        home: usize,
        modified: bool,
    },
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "a core and its caches",
            Self::Latency { .. } => "idle latency",
            Self::Pages { .. } => "idle latency by size of pages",
            Self::Peak { .. } => "bandwidth of all CPUs",
            Self::Bandwidth { .. } => "bandwidth from node to node",
            Self::AllCpus { .. } => "all CPUs on one node's memory",
            Self::Interleaved => "all CPUs on interleaved memory",
            Self::Loaded { .. } => "latency under load",
            Self::Transfer { .. } => "cache to cache",
        })
    }
}

/// Traffic that may be asked for, with and without stores past the caches.
fn traffics() -> impl Iterator<Item = (Traffic, bool)> {
    let plain = Traffic::ALL.into_iter().map(|traffic| (traffic, false));
    let writing = Traffic::ALL.into_iter().filter(|traffic| traffic.writes() && NON_TEMPORAL_STORES);
    plain.chain(writing.map(|traffic| (traffic, true)))
}

/// MLC's five, of which the last is like STREAM's triad.
fn peaks() -> [(Traffic, bool); 5] {
    [
        (Traffic::Reads, false),
        (Traffic::ThreeToOne, false),
        (Traffic::TwoToOne, false),
        (Traffic::OneToOne, false),
        (Traffic::TwoToOne, NON_TEMPORAL_STORES),
    ]
}

/// One, two, four and so on, and all.
fn thread_counts(all: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(1), |&count| Some(2 * count));
    doubled.take_while(move |&count| count < all).chain([all])
}

/// The steps of some parts.
fn jobs(machine: &Machine, options: &Options) -> Vec<Job> {
    let mut jobs = Vec::new();
    if options.core {
        jobs.push(Job::Core);
    }
    let pairs = || machine.rows().flat_map(|row| machine.columns().map(move |column| (row, column)));
    for part in Part::ALL.into_iter().filter(|part| options.parts.contains(part)) {
        match part {
            Part::Latency => jobs.extend(machine.columns().map(|column| Job::Latency { column })),
            Part::Pages => {
                let huge = machine.huge_page_bytes.map(Some);
                let sizes = std::iter::once(None).chain(huge);
                jobs.extend(sizes.map(|huge_page_bytes| Job::Pages { huge_page_bytes }));
            }
            Part::Peak => {
                jobs.extend(peaks().map(|(traffic, non_temporal)| Job::Peak { traffic, non_temporal }));
            }
            Part::Bandwidth => {
                for (row, column) in pairs() {
                    let job = |traffic, non_temporal, threads| Job::Bandwidth {
                        row,
                        column,
                        traffic,
                        non_temporal,
                        threads,
                    };
                    let all = machine.nodes[row].cpus.len();
                    jobs.extend(thread_counts(all).map(|threads| job(Traffic::Reads, false, threads)));
                    jobs.extend(traffics().skip(1).map(|(traffic, past)| job(traffic, past, all)));
                }
            }
            Part::Interleaved => {
                jobs.extend(machine.columns().map(|column| Job::AllCpus { column }));
                jobs.push(Job::Interleaved);
            }
            Part::Loaded if all_cpus(machine).len() > 1 => {
                let pauses = if options.quick { &QUICK_PAUSES[..] } else { &PAUSES };
                jobs.extend(pauses.iter().map(|&pause_cycles| Job::Loaded { pause_cycles }));
            }
            Part::Loaded => {}
            Part::Cache => jobs.extend(transfers(machine)),
        }
    }
    jobs
}

/// Within each node that has two CPUs, and between nodes with the line at home at either.
fn transfers(machine: &Machine) -> Vec<Job> {
    let mut jobs = Vec::new();
    for owner in machine.rows() {
        for reader in machine.rows() {
            if owner == reader {
                let Some(home) = machine.nearest_memory(owner) else { continue };
                if machine.nodes[owner].cpus.len() > 1 {
                    jobs.extend([false, true].map(|modified| Job::Transfer {
                        owner,
                        reader,
                        home,
                        modified,
                    }));
                }
                continue;
            }
            let homes = [owner, reader].into_iter().filter(|&node| machine.nodes[node].memory_bytes > 0);
            jobs.extend(homes.map(|home| Job::Transfer { owner, reader, home, modified: true }));
        }
    }
    jobs
}

/// Every CPU, and the row that it is in.
fn all_cpus(machine: &Machine) -> Vec<(u32, usize)> {
    machine.rows().flat_map(|row| machine.nodes[row].cpus.iter().map(move |&cpu| (cpu, row))).collect()
}

/// Bytes to measure with on each node.
fn buffer_bytes(machine: &Machine, options: &Options, effort: Effort) -> Result<u64, Error> {
    const MIB: u64 = 1 << 20;
    // One node may have as much again.
    let more = u64::from([Part::Interleaved, Part::Pages].iter().any(|part| options.parts.contains(part)));
    if let Some(mebibytes) = options.mebibytes {
        let bytes = mebibytes.saturating_mul(MIB);
        for column in machine.columns() {
            let node = &machine.nodes[column];
            check_free(node.id, bytes.saturating_mul(1 + more), node.free_bytes)?;
        }
        return Ok(bytes);
    }
    let wanted = (machine.last_level_bytes() * effort.caches).clamp(32 * MIB, 4096 * MIB);
    let free = machine.columns().filter_map(|column| machine.nodes[column].free_bytes).min();
    let most = free.map_or(256 * MIB, |free| free / (3 + more));
    let bytes = wanted.min(most) / MIB * MIB;
    if bytes == 0 {
        let poorest = machine.columns().min_by_key(|&column| machine.nodes[column].free_bytes);
        let node = &machine.nodes[poorest.unwrap_or(0)];
        check_free(node.id, MIB * (1 + more), node.free_bytes.or(Some(0)))?;
    }
    Ok(bytes.max(MIB))
}

/// Measures some parts of a machine. Before each step, `progress` is called with the number of steps that are
/// done, the number of all, and words for the next.
pub fn measure(
    machine: &Machine,
    options: &Options,
    mut progress: impl FnMut(usize, usize, &str),
) -> Result<Results, Error> {
    if machine.rows().next().is_none() || machine.columns().next().is_none() {
        let reason = "this process has no node with CPUs, or none with memory, to measure";
        return Err(Error::new(ErrorKind::System, reason));
    }
    let effort = if options.quick { QUICK } else { THOROUGH };
    let bytes = buffer_bytes(machine, options, effort)?;
    progress(0, 1, "memory");
    let mut run = Run::new(machine, options, effort, bytes)?;
    let jobs = jobs(machine, options);
    for (done, job) in jobs.iter().enumerate() {
        progress(done, jobs.len(), &job.to_string());
        run.job(*job)?;
    }
    progress(jobs.len(), jobs.len(), "");
    Ok(run.results)
}

struct Run<'a> {
    machine: &'a Machine,
    effort: Effort,
    /// The memory of each node; `None` if it has none.
    memories: Vec<Option<Memory>>,
    interleaved: Option<Memory>,
    results: Results,
}

impl<'a> Run<'a> {
    fn new(machine: &'a Machine, options: &Options, effort: Effort, bytes: u64) -> Result<Self, Error> {
        let huge = machine.huge_page_bytes.filter(|&huge| bytes >= huge);
        let first_cpu = all_cpus(machine)[0].0;
        let mut memories: Vec<Option<Memory>> = machine.nodes.iter().map(|_| None).collect();
        for column in machine.columns() {
            let place = format!("of node {}", machine.nodes[column].id);
            let bind = bind(machine, PolicyMode::Bind, [column]);
            let cpu = machine.nodes[column].cpus.first().copied().unwrap_or(first_cpu);
            memories[column] =
                Some(on_cpu(cpu, || Memory::new(bytes as usize, bind.as_ref(), huge, &place))??);
        }
        let interleaved = if options.parts.contains(&Part::Interleaved) {
            let spread = bind(machine, PolicyMode::Interleave, machine.columns());
            // Huge pages would be spread in pieces of 2 MiB, and programs see base pages more often.
            Some(on_cpu(first_cpu, || Memory::new(bytes as usize, spread.as_ref(), None, "interleaved"))??)
        } else {
            None
        };
        let results = Results {
            version: env!("CARGO_PKG_VERSION"),
            nodes: machine.nodes.iter().map(facts).collect(),
            caches: machine.caches.clone(),
            buffer_bytes: bytes,
            page_bytes: memories.iter().flatten().map(|memory| memory.page_bytes).min().unwrap_or(0),
            governor: machine.governor.clone(),
            notes: notes(machine, options, bytes),
            ..Results::default()
        };
        Ok(Self { machine, effort, memories, interleaved, results })
    }

    fn job(&mut self, job: Job) -> Result<(), Error> {
        match job {
            Job::Core => self.core(),
            Job::Latency { column } => self.latency(column),
            Job::Pages { huge_page_bytes } => self.pages(huge_page_bytes),
            Job::Peak { traffic, non_temporal } => self.peak(traffic, non_temporal),
            Job::Bandwidth { row, column, traffic, non_temporal, threads } => {
                self.bandwidth(row, column, traffic, non_temporal, threads)
            }
            Job::AllCpus { column } => self.all_cpus(Some(column)),
            Job::Interleaved => self.all_cpus(None),
            Job::Loaded { pause_cycles } => self.loaded(pause_cycles),
            Job::Transfer { owner, reader, home, modified } => self.transfer(owner, reader, home, modified),
        }
    }

    fn id(&self, node: usize) -> u32 {
        self.machine.nodes[node].id
    }

    fn first_cpu(&self, row: usize) -> u32 {
        self.machine.nodes[row].cpus[0]
    }

    fn memory(&mut self, column: usize) -> &mut Memory {
        self.memories[column].as_mut().expect("columns have memory")
    }

    fn core(&mut self) -> Result<(), Error> {
        let row = self.machine.rows().next().expect("there is a CPU");
        let column = self.machine.nearest_memory(row).expect("there is memory");
        let (machine, cpu, passes) = (self.machine, self.first_cpu(row), self.effort.passes);
        self.results.core = Some(core::measure(machine, cpu, self.memory(column), passes)?);
        Ok(())
    }

    fn latency(&mut self, column: usize) -> Result<(), Error> {
        let Effort { chases, hops, .. } = self.effort;
        let rows: Vec<(u32, u32)> =
            self.machine.rows().map(|row| (self.id(row), self.first_cpu(row))).collect();
        let (machine, memory_node) = (self.machine, self.id(column));
        let near = machine.nodes[column].cpus.first().copied().unwrap_or(rows[0].1);
        let memory = self.memory(column);
        let window = memory.window_bytes();
        let slice = memory.slice();
        let mut chase = on_cpu(near, || Chase::new(slice, window))?;
        let mut measured = Vec::new();
        for (cpu_node, cpu) in rows {
            // Every pass goes on where the last one ended, at lines that no cache has seen for long.
            let latency_ns = on_cpu(cpu, || {
                let hops = hops.min(chase.lines());
                // The first pages of a walk are not in the TLB.
                black_box(chase.walk(hops / 4));
                Figure::of((0..chases).map(|_| nanoseconds_per_hop(&mut chase, hops)).collect())
            })?;
            measured.push(IdleLatency { cpu_node, memory_node, latency_ns });
        }
        self.results.idle_latency.extend(measured);
        self.results.idle_latency.sort_by_key(|row| row.cpu_node);
        Ok(())
    }

    /// Memory of its own, and a walk all over it.
    fn pages(&mut self, huge_page_bytes: Option<u64>) -> Result<(), Error> {
        let Effort { chases, hops, .. } = self.effort;
        let row = self.machine.rows().next().expect("there is a CPU");
        let column = self.machine.nearest_memory(row).expect("there is memory");
        let bind = bind(self.machine, PolicyMode::Bind, [column]);
        let bytes = self.results.buffer_bytes as usize;
        let measured = on_cpu(self.first_cpu(row), || {
            let mut memory = Memory::new(bytes, bind.as_ref(), huge_page_bytes, "for its pages")?;
            let page_bytes = memory.page_bytes;
            let mut chase = Chase::new(memory.slice(), usize::MAX);
            let hops = hops.min(chase.lines());
            black_box(chase.walk(hops / 4));
            let latency_ns = Figure::of((0..chases).map(|_| nanoseconds_per_hop(&mut chase, hops)).collect());
            Ok(PageLatency { page_bytes, latency_ns })
        })??;
        // Huge pages that were not to be had are no figure of huge pages.
        if self.results.page_latency.iter().all(|row| row.page_bytes != measured.page_bytes) {
            self.results.page_latency.push(measured);
        }
        Ok(())
    }

    fn bandwidth(
        &mut self,
        row: usize,
        column: usize,
        traffic: Traffic,
        non_temporal: bool,
        threads: usize,
    ) -> Result<(), Error> {
        let (cpu_node, memory_node) = (self.id(row), self.id(column));
        let cpus: Vec<u32> = self.machine.nodes[row].cpus[..threads].to_vec();
        let effort = self.effort;
        let shares = self.memory(column).slice().shares(threads);
        let work = cpus.into_iter().zip(shares).collect();
        let bandwidth_mb_per_s = stream(work, traffic, non_temporal, effort)?;
        self.results.bandwidth.push(Bandwidth {
            cpu_node,
            memory_node,
            traffic,
            non_temporal,
            threads,
            bandwidth_mb_per_s,
        });
        Ok(())
    }

    fn peak(&mut self, traffic: Traffic, non_temporal: bool) -> Result<(), Error> {
        let machine = self.machine;
        let work = nearest(machine, &mut self.memories, &all_cpus(machine));
        let threads = work.len();
        let bandwidth_mb_per_s = stream(work, traffic, non_temporal, self.effort)?;
        self.results.peak.push(Peak { traffic, non_temporal, threads, bandwidth_mb_per_s });
        Ok(())
    }

    /// All CPUs on the memory of a node, or on interleaved memory.
    fn all_cpus(&mut self, column: Option<usize>) -> Result<(), Error> {
        let cpus = all_cpus(self.machine);
        let (threads, memory_node, effort) = (cpus.len(), column.map(|column| self.id(column)), self.effort);
        let memory = match column {
            Some(column) => self.memory(column),
            None => self.interleaved.as_mut().expect("it was asked for"),
        };
        let shares = memory.slice().shares(threads);
        let work = cpus.into_iter().map(|(cpu, _)| cpu).zip(shares).collect();
        let bandwidth_mb_per_s = stream(work, Traffic::Reads, false, effort)?;
        self.results.all_cpus.push(AllCpus { memory_node, threads, bandwidth_mb_per_s });
        Ok(())
    }

    fn loaded(&mut self, pause_cycles: u32) -> Result<(), Error> {
        let machine = self.machine;
        let row = machine.rows().next().expect("there is a CPU");
        let chaser = self.first_cpu(row);
        let home = machine.nearest_memory(row).expect("there is memory");
        // A half for the chase, and the other for the readers.
        let window = self.memory(home).window_bytes();
        let mut slices: Vec<Option<Slice<'_>>> =
            self.memories.iter_mut().map(|memory| memory.as_mut().map(Memory::slice)).collect();
        let whole = slices[home].take().expect("columns have memory");
        let half = whole.lines() / 2;
        let (front, back) = whole.split(half);
        slices[home] = Some(back);
        let readers: Vec<(u32, usize)> =
            all_cpus(machine).into_iter().filter(|&(cpu, _)| cpu != chaser).collect();
        let streams = shares_of(machine, slices, &readers);
        let chase = on_cpu(chaser, || Chase::new(front, window))?;
        let (latency_ns, bandwidth_mb_per_s) = under_load(chaser, chase, streams, pause_cycles, self.effort)?;
        self.results.loaded_latency.push(LoadedLatency { pause_cycles, latency_ns, bandwidth_mb_per_s });
        Ok(())
    }

    fn transfer(&mut self, owner: usize, reader: usize, home: usize, modified: bool) -> Result<(), Error> {
        let machine = self.machine;
        let owner_cpu = self.first_cpu(owner);
        let reader_cpu = machine.nodes[reader].cpus[usize::from(owner == reader)];
        let (lines, passes) = (transfer_lines(machine), 4 * self.effort.passes);
        let memory = self.memory(home);
        let window = memory.window_bytes();
        let chase = Chase::new(memory.slice().split(lines).0, window);
        let between = Between { owner_cpu, reader_cpu, modified };
        if let Some(latency_ns) = cache::measure(chase, between, passes)? {
            self.results.cache_to_cache.push(Transfer {
                owner_cpu,
                owner_node: self.id(owner),
                reader_cpu,
                reader_node: self.id(reader),
                home_node: self.id(home),
                modified,
                latency_ns,
            });
        }
        Ok(())
    }
}

/// A policy over some columns. A kernel without NUMA, or a container's filter, has no policies, and one node
/// needs none.
fn bind(machine: &Machine, mode: PolicyMode, columns: impl IntoIterator<Item = usize>) -> Option<Policy> {
    let nodes = columns.into_iter().map(|column| machine.nodes[column].id).collect();
    (machine.columns().count() > 1).then(|| Policy::new(mode, nodes))
}

fn facts(place: &crate::machine::Place) -> NodeFacts {
    NodeFacts {
        id: place.id,
        cpus: place.cpus.len(),
        memory_bytes: place.memory_bytes,
        distances: place.distances.clone(),
    }
}

/// Limits of the figures that will come.
fn notes(machine: &Machine, options: &Options, bytes: u64) -> Vec<String> {
    let mut notes = machine.notes.clone();
    let last_level = machine.last_level_bytes();
    if last_level == 0 {
        notes.push("the kernel does not tell the size of caches, which may answer a part".to_owned());
    } else if bytes < 2 * last_level {
        let (buffer, caches) = (bytes >> 20, last_level >> 20);
        notes.push(format!("a node's caches of {caches} MiB answer a part of its {buffer} MiB"));
    }
    let wanted = |part| options.parts.contains(&part);
    let cpus = all_cpus(machine).len();
    if wanted(Part::Loaded) && cpus == 1 {
        notes.push("one CPU: there is nobody to load the memory while it is measured".to_owned());
    }
    if wanted(Part::Cache) && cpus == 1 {
        notes.push("one CPU: no line goes from cache to cache".to_owned());
    }
    notes
}

/// Lines that fit into half of the second-level cache, or of the first if there is no more.
fn transfer_lines(machine: &Machine) -> usize {
    let cache = machine.caches.get(1).or(machine.caches.first());
    let bytes = cache.map_or(64 << 10, |cache| cache.size_bytes / 2);
    bytes.clamp(8 << 10, 128 << 10) as usize / LINE_BYTES
}

/// For each CPU, its share of the memory nearest to it.
fn nearest<'m>(
    machine: &Machine,
    memories: &'m mut [Option<Memory>],
    cpus: &[(u32, usize)],
) -> Vec<(u32, Slice<'m>)> {
    let slices = memories.iter_mut().map(|memory| memory.as_mut().map(Memory::slice)).collect();
    shares_of(machine, slices, cpus)
}

fn shares_of<'m>(
    machine: &Machine,
    slices: Vec<Option<Slice<'m>>>,
    cpus: &[(u32, usize)],
) -> Vec<(u32, Slice<'m>)> {
    let mut work = Vec::new();
    for (column, slice) in slices.into_iter().enumerate() {
        let near: Vec<u32> = cpus
            .iter()
            .filter(|&&(_, row)| machine.nearest_memory(row) == Some(column))
            .map(|&(cpu, _)| cpu)
            .collect();
        if let (Some(slice), false) = (slice, near.is_empty()) {
            let shares = slice.shares(near.len());
            work.extend(near.into_iter().zip(shares));
        }
    }
    work
}

/// Lines that a stream handles between two looks at the clock.
const LINES_A_LOOK: usize = 4096;

/// All at once: each CPU with its memory.
fn stream(
    work: Vec<(u32, Slice<'_>)>,
    traffic: Traffic,
    non_temporal: bool,
    effort: Effort,
) -> Result<Figure, Error> {
    let mut streams: Vec<(u32, Stream<'_>)> =
        work.into_iter().map(|(cpu, slice)| (cpu, Stream::new(slice, traffic, non_temporal))).collect();
    let mut passes = Vec::new();
    for _ in 0..effort.passes {
        let pieces = streams.iter_mut().map(|(cpu, stream)| (*cpu, stream));
        let speeds = on_cpus(pieces, |stream| {
            let (start, mut bytes) = (Instant::now(), 0);
            loop {
                bytes += stream.run(LINES_A_LOOK);
                let taken = start.elapsed();
                if taken >= effort.stream {
                    return megabytes_per_s(bytes, taken.as_nanos() as u64);
                }
            }
        })?;
        passes.push(speeds.iter().sum());
    }
    Ok(Figure::of(passes))
}

/// Latency of a chase while streams read, and the bandwidth of these.
fn under_load<'m>(
    chaser: u32,
    mut chase: Chase<'m>,
    readers: Vec<(u32, Slice<'m>)>,
    pause_cycles: u32,
    effort: Effort,
) -> Result<(Figure, Figure), Error> {
    enum Role<'r, 's> {
        Chaser(&'r mut Chase<'s>),
        Reader(&'r mut Stream<'s>),
    }
    let mut streams: Vec<(u32, Stream<'_>)> =
        readers.into_iter().map(|(cpu, slice)| (cpu, Stream::new(slice, Traffic::Reads, false))).collect();
    let (readers, mut latencies, mut speeds) = (streams.len(), Vec::new(), Vec::new());
    let hops = (4 * effort.hops).min(chase.lines());
    for _ in 0..effort.passes {
        let (over, reading) = (AtomicBool::new(false), AtomicUsize::new(0));
        let roles = std::iter::once((chaser, Role::Chaser(&mut chase)))
            .chain(streams.iter_mut().map(|(cpu, stream)| (*cpu, Role::Reader(stream))));
        let figures = on_cpus(roles, |role| match role {
            Role::Chaser(chase) => {
                while reading.load(Ordering::Relaxed) < readers {
                    thread::yield_now();
                }
                black_box(chase.walk(hops / 4));
                let latency = nanoseconds_per_hop(chase, hops);
                over.store(true, Ordering::Relaxed);
                latency
            }
            Role::Reader(stream) => {
                let (start, mut bytes) = (Instant::now(), stream.run(1));
                reading.fetch_add(1, Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {
                    if pause_cycles == 0 {
                        bytes += stream.run(64);
                        continue;
                    }
                    bytes += stream.run(1);
                    pause(pause_cycles);
                }
                megabytes_per_s(bytes, start.elapsed().as_nanos() as u64)
            }
        })?;
        latencies.push(figures[0]);
        speeds.push(figures[1..].iter().sum());
    }
    Ok((Figure::of(latencies), Figure::of(speeds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_topology::{Allowed, Topology};

    fn machine(nodes: usize, cpus: usize) -> Machine {
        let topology = Topology::synthetic(nodes, cpus, 1 << 30);
        Machine::new(&topology, &Allowed::everything(&topology))
    }

    fn only(parts: &[Part]) -> Options {
        Options { parts: parts.to_vec(), quick: true, ..Options::default() }
    }

    #[test]
    fn threads_double_up_to_all() {
        let counts = |all| thread_counts(all).collect::<Vec<_>>();
        assert_eq!((counts(1), counts(4), counts(6)), (vec![1], vec![1, 2, 4], vec![1, 2, 4, 6]));
    }

    #[test]
    fn every_pair_of_nodes_is_measured_once() {
        let machine = machine(3, 4);
        let jobs = |part| jobs(&machine, &only(&[part]));
        assert_eq!(jobs(Part::Latency).len(), 3);
        let past = if NON_TEMPORAL_STORES { 5 } else { 0 };
        assert_eq!(jobs(Part::Bandwidth).len(), 9 * (3 + 5 + past));
        assert_eq!(jobs(Part::Interleaved).len(), 4);
        assert_eq!(jobs(Part::Peak).len(), 5);
        assert_eq!(jobs(Part::Cache).len(), 3 * 2 + 6 * 2);
        assert_eq!(jobs(Part::Loaded).len(), QUICK_PAUSES.len());
    }

    #[test]
    fn one_cpu_has_nobody_beside_it() {
        let options = only(&[Part::Loaded, Part::Cache]);
        assert_eq!(jobs(&machine(1, 1), &options), []);
        assert_eq!(notes(&machine(1, 1), &options, 1 << 30).len(), 3);
    }

    #[test]
    fn the_memory_is_a_multiple_of_the_caches_that_fits() {
        let mut machine = machine(2, 1);
        let bytes = |machine: &Machine, mebibytes| {
            buffer_bytes(machine, &Options { mebibytes, ..only(&[Part::Latency]) }, QUICK)
        };
        assert_eq!(bytes(&machine, None).unwrap(), 32 << 20);
        let cache =
            crate::machine::CacheFacts { level: 3, size_bytes: 16 << 20, ways: None, node_bytes: 32 << 20 };
        machine.caches.push(cache);
        assert_eq!(bytes(&machine, None).unwrap(), 96 << 20);
        machine.nodes[1].free_bytes = Some(60 << 20);
        assert_eq!(bytes(&machine, None).unwrap(), 20 << 20);
        assert_eq!(bytes(&machine, Some(8)).unwrap(), 8 << 20);
        assert_eq!(bytes(&machine, Some(48)).unwrap_err().kind(), ErrorKind::Memory);
        machine.nodes[1].free_bytes = Some(1 << 20);
        assert!(bytes(&machine, None).unwrap_err().to_string().starts_with("node 1 has 1 MiB free"));
    }

    #[test]
    fn this_machine_has_every_figure_that_was_asked_for() {
        let machine = Machine::live().unwrap();
        let options = Options { mebibytes: Some(4), core: true, quick: true, ..Options::default() };
        let mut steps = Vec::new();
        let results = measure(&machine, &options, |done, all, _| steps.push((done, all))).unwrap();
        assert!(steps.len() > 10 && steps.last().is_some_and(|(done, all)| done == all));
        let (rows, columns) = (machine.rows().count(), machine.columns().count());
        assert_eq!(results.idle_latency.len(), rows * columns);
        assert_eq!(results.all_cpus.len(), columns + 1);
        assert_eq!(results.peak.len(), 5);
        let pages: Vec<u64> = results.page_latency.iter().map(|row| row.page_bytes).collect();
        assert!((1..=2).contains(&pages.len()) && pages[0] == nodewise_sys::page_bytes() as u64, "{pages:?}");
        let (row, column) = (results.bandwidth[0].cpu_node, results.bandwidth[0].memory_node);
        for (traffic, past) in traffics() {
            let figure = results.megabytes_per_s(row, column, traffic, past).unwrap();
            assert!(figure.lowest > 0.0 && figure.lowest <= figure.median && figure.median <= figure.highest);
        }
        assert!(results.idle_latency.iter().all(|row| row.latency_ns.lowest > 0.0));
        let core = results.core.unwrap();
        assert!(core.additions_per_ns.lowest > 0.0 && core.cache_latency_ns.len() == machine.caches.len());
    }
}
