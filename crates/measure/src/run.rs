//! The measurement: the steps of a plan, one after the other.

use crate::cache::{self, Between};
use crate::chase::Chase;
use crate::core::{self, nanoseconds_per_hop};
use crate::error::{Error, ErrorKind};
use crate::figure::{Figure, megabytes_per_s};
use crate::machine::Machine;
use crate::memory::Memory;
use crate::plan::{
    Effort, Job, Options, Part, QUICK, THOROUGH, all_cpus, are_cached, buffer_bytes, jobs, notes, part_bytes,
};
use crate::results::{
    AllCpus, Bandwidth, IdleLatency, LoadedLatency, NodeFacts, PageLatency, Peak, Results, Transfer,
};
use crate::slice::{LINE_BYTES, Slice};
use crate::stream::{Stream, Traffic, pause};
use crate::team::{on_cpu, on_cpus};
use nodewise_sys::{Policy, PolicyMode};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

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
    run.results.note_unrest();
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
        let cached = are_cached(self.machine, part_bytes(self.machine, self.results.buffer_bytes));
        self.results.all_cpus.push(AllCpus { memory_node, threads, cached, bandwidth_mb_per_s });
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
    use crate::plan::traffics;

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
        // Each row has a part of 4 MiB.
        let is_cached = 2 * machine.last_level_bytes() > (4 << 20) / rows as u64;
        assert!(results.all_cpus.iter().all(|row| row.cached == is_cached), "on {rows} nodes");
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
