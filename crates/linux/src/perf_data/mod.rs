//! Recordings of `perf record` and `perf mem record`: the file `perf.data`.
//!
//! An access is a sample of an event of a PMU that has an address and its `data_src`: `perf mem record` and
//! `perf c2c record` choose such events. A sample of `page-faults` is a first touch. The kernel's records of
//! mappings, forks and execs name memory and code.
//!
//! The crate `linux-perf-data` (0.13) would read the file, too. It believes the sizes that a file claims when
//! it makes room for them, and brings a decoder of Zstandard in C. Its samples are without weight and
//! `data_src`.

mod file;
mod machine;
mod names;

use crate::first_touch::{CALLERS, FirstTouchReport, Known, MOST_STACKS, Module};
use crate::sampler::RawSample;
use crate::sampler::hardware::data_source;
use crate::{Error, ErrorKind, NamedMapping, Variable, static_memory};
use file::{Event, Head, Parts, feature};
use machine::Machine;
use names::{Mappings, Name, Names};
use nodewise_engine::{
    Access, DataSource, HUGE_PAGE_PAGES, PAGE_BYTES, PageRange, PageSize, Pid, Sample, Tid, VirtAddr,
};
use nodewise_sys::perf::{self, CallChain, CpuMode, EventType, Record, SampleType, SoftwareEvent, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Seek};
use std::path::Path;
use std::rc::Rc;

pub use file::is_perf_data;

/// Accesses that are kept: some 400 MiB.
const MOST_SAMPLES: usize = 1 << 23;
/// Page faults that are kept: some 300 MiB.
const MOST_FAULTS: usize = 1 << 22;
/// The same with mappings, forks and execs.
const MOST_EVENTS: usize = MOST_FAULTS + (1 << 20);

/// Everything that a recording tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The command line of `perf`; empty where it is not told.
    pub command: Vec<String>,
    /// The numbers of the nodes, ascending. All else counts them from 0, in this order.
    pub nodes: Vec<u32>,
    /// Accesses of user code, in the order of time.
    pub samples: Vec<Sample>,
    /// The names of mappings, as they were at the end.
    pub names: Vec<(Pid, PageRange, String)>,
    /// The static memory of sampled processes, where mappings of data were recorded, too.
    pub variables: Vec<Variable>,
    /// The programs that the sampled processes ran at the end, by the kernel's short names for them.
    pub programs: BTreeMap<Pid, String>,
    /// The first touches of memory; none where page faults were not recorded.
    pub first_touch: FirstTouchReport,
    /// Samples that `perf` has lost, by its own count.
    pub lost: u64,
    /// Accesses for which there was no room.
    pub left_out: u64,
    /// Accesses from CPUs that are of no node.
    pub from_nowhere: u64,
}

/// Reads a recording.
///
/// # Errors
/// It cannot be read, is cut off or damaged, is of another architecture, or has no accesses to memory with
/// the CPU of each.
pub fn read(path: &Path, from: impl Read + Seek, length: u64) -> Result<Recording, Error> {
    let mut reading = Reading::new(path);
    let head =
        file::read(path, from, length, &mut |head, event, record| reading.take_in(head, event, record))?;
    reading.finish(&head)
}

/// Something that happened to a process.
#[derive(Clone, Debug, PartialEq)]
enum Happened {
    Mapped {
        pid: Pid,
        is_data: bool,
        start: u64,
        end: u64,
        offset: u64,
        name: Option<Name>,
    },
    Executed {
        pid: Pid,
    },
    /// The main thread has another name, as after an exec.
    Named {
        pid: Pid,
        name: Option<Name>,
    },
    Forked {
        parent: Pid,
        child: Pid,
    },
    Faulted(Fault),
}

#[derive(Clone, Debug, PartialEq)]
struct Fault {
    sample: RawSample,
    /// The number of the call chain; none when there was no room for another.
    chain: Option<u32>,
    /// Whether no page was there; none where that is not told.
    is_first: Option<bool>,
}

/// A recording that is being read.
struct Reading<'a> {
    path: &'a Path,
    machine: Option<Rc<Machine>>,
    recording: Recording,
    happened: Vec<(u64, Happened)>,
    names: Names,
    chains: HashMap<Vec<u64>, u32>,
}

impl<'a> Reading<'a> {
    fn new(path: &'a Path) -> Self {
        Self {
            path,
            machine: None,
            recording: Recording::default(),
            happened: Vec::new(),
            names: Names::default(),
            chains: HashMap::new(),
        }
    }

    fn fails(&self, what: &str) -> Error {
        Error::new(ErrorKind::File, format!("{}: {what}", self.path.display()))
    }

    fn take_in(&mut self, head: &Head, event: &Event, bytes: &[u8]) -> Result<(), Error> {
        let is_damaged = |_| self.fails("damaged: a record is too short for what it claims to hold");
        let time_ns = Stamp::of(bytes, &event.format).unwrap_or_default().time_ns.unwrap_or(0);
        match Record::parse(bytes, &event.format).map_err(is_damaged)? {
            Record::Sample(sample) if is_of_faults(event) => self.fault(head, &sample, time_ns)?,
            Record::Sample(sample) if is_of_accesses(event) => self.access(head, &sample, time_ns)?,
            Record::Mmap { pid, is_data, address, bytes, offset, name, .. } if pid > 0 => {
                let (pid, end) = (Pid(pid as u32), address.saturating_add(bytes));
                let name = self.names.number(name);
                self.happened(time_ns, Happened::Mapped { pid, is_data, start: address, end, offset, name });
            }
            Record::Comm { pid, tid, exec, name } if pid > 0 => {
                let (is_of_process, pid) = (pid == tid, Pid(pid as u32));
                if exec {
                    self.happened(time_ns, Happened::Executed { pid });
                }
                if is_of_process {
                    let name = self.names.number(name);
                    self.happened(time_ns, Happened::Named { pid, name });
                }
            }
            Record::Fork(task) if task.pid != task.parent_pid => {
                let (parent, child) = (Pid(task.parent_pid as u32), Pid(task.pid as u32));
                self.happened(time_ns, Happened::Forked { parent, child });
            }
            Record::Lost { records: lost, .. } | Record::LostSamples { samples: lost } => {
                self.recording.lost = self.recording.lost.saturating_add(lost);
            }
            _ => {}
        }
        Ok(())
    }

    fn happened(&mut self, time_ns: u64, happened: Happened) {
        let is_fault = matches!(happened, Happened::Faulted(_));
        if self.happened.len() < if is_fault { MOST_FAULTS } else { MOST_EVENTS } {
            self.happened.push((time_ns, happened));
        } else if is_fault {
            self.recording.first_touch.left_out += 1;
        }
    }

    /// The machine, as soon as it is asked for.
    fn machine(&mut self, head: &Head) -> Result<Rc<Machine>, Error> {
        if self.machine.is_none() {
            self.machine = Machine::of(head).map(Rc::new);
        }
        let lacks = || self.fails("it does not tell the nodes of its machine (NUMA_TOPOLOGY)");
        self.machine.clone().ok_or_else(lacks)
    }

    fn access(&mut self, head: &Head, sample: &perf::Sample<'_>, time_ns: u64) -> Result<(), Error> {
        // As of the live sampler: addresses of the kernel's and of guests' code mean other memory.
        if !matches!(sample.cpu_mode, CpuMode::User | CpuMode::Unknown) {
            return Ok(());
        }
        let (Some(data_src), Some(address), Some((pid, tid))) =
            (sample.data_source, address_of(sample), process_of(sample))
        else {
            return Ok(());
        };
        let Some(cpu) = sample.cpu else {
            return Err(self.fails(
                "its samples do not tell the CPU, so that nobody knows from which node memory was used; \
                 record with --sample-cpu, or with -a",
            ));
        };
        let machine = self.machine(head)?;
        let Some(accessor) = machine.node_of_cpu(cpu) else {
            self.recording.from_nowhere += 1;
            return Ok(());
        };
        let source = data_source::source(data_src);
        let by_address =
            sample.physical_address.filter(|&at| at != 0).and_then(|at| machine.node_of_physical(at));
        let is_huge = sample.data_page_bytes.is_some_and(|bytes| bytes >= HUGE_PAGE_PAGES * PAGE_BYTES);
        let sample = Sample {
            time_ns,
            address: VirtAddr(address),
            pid,
            tid,
            accessor,
            home: by_address.or_else(|| machine.node_of_source(accessor, source)),
            access: data_source::access(data_src),
            source,
            page_size: if is_huge { PageSize::Huge } else { PageSize::Base },
            latency_cycles: sample.weights().map_or(0, |(latency, ..)| latency),
            weight: sample.period.unwrap_or(1).clamp(1, u64::from(u32::MAX)) as u32,
        };
        if self.recording.samples.len() < MOST_SAMPLES {
            self.recording.samples.push(sample);
        } else {
            self.recording.left_out += 1;
        }
        Ok(())
    }

    fn fault(&mut self, head: &Head, sample: &perf::Sample<'_>, time_ns: u64) -> Result<(), Error> {
        let (Some(address), Some((pid, tid)), Some(cpu)) =
            (address_of(sample), process_of(sample), sample.cpu)
        else {
            return Ok(());
        };
        let Some(accessor) = self.machine(head)?.node_of_cpu(cpu) else { return Ok(()) };
        let is_first = sample.data_page_bytes.map(|bytes| bytes == 0);
        let chain = sample.call_chain.iter().flat_map(CallChain::user).take(usize::from(CALLERS)).collect();
        let next = self.chains.len();
        let chain = match self.chains.get(&chain) {
            Some(&chain) => Some(chain),
            None if next < MOST_STACKS => {
                self.chains.insert(chain, next as u32);
                Some(next as u32)
            }
            None => None,
        };
        let sample = RawSample {
            time_ns,
            address: VirtAddr(address),
            pid,
            tid,
            accessor,
            access: Access::Unknown,
            source: DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        };
        self.happened(time_ns, Happened::Faulted(Fault { sample, chain, is_first }));
        Ok(())
    }

    fn finish(mut self, head: &Head) -> Result<Recording, Error> {
        const HOW: &str = "record with 'perf mem record --phys-data --sample-cpu'";
        if !head.events.iter().any(is_of_accesses) {
            return Err(self.fails(&if head.has_aux {
                format!(
                    "its samples are AUX data, as Arm SPE writes it, which is not read yet; elsewhere {HOW}"
                )
            } else {
                format!("none of its events samples accesses to memory; {HOW}")
            }));
        }
        let machine = self.machine(head)?;
        let Self { mut recording, mut happened, names, chains, .. } = self;
        recording.nodes.clone_from(&machine.nodes);
        recording.command = head.feature(feature::CMDLINE).and_then(command).unwrap_or_default();
        // Records come CPU by CPU, and are in order only there.
        recording.samples.sort_by_key(|sample| sample.time_ns);
        happened.sort_by_key(|(time_ns, _)| *time_ns);
        let texts = names.texts();
        let mut story = Story { texts: &texts, ..Story::default() };
        let mut in_order = vec![Vec::new(); chains.len()];
        for (chain, number) in chains {
            in_order[number as usize] = chain;
        }
        for (_, happened) in happened {
            story.goes_on(&happened, &in_order);
        }
        let sampled: BTreeSet<Pid> = recording.samples.iter().map(|sample| sample.pid).collect();
        let named = story.mappings.named().filter(|(pid, ..)| sampled.contains(pid));
        recording.names = named.map(|(pid, range, name)| (pid, range, texts[name.index()].clone())).collect();
        let first_bytes = |pid| {
            let named = |(range, name): (_, Name)| {
                let name = texts[name.index()].clone().into();
                NamedMapping { range, is_code: false, offset: 0, name }
            };
            (pid, story.mappings.first_bytes(pid).map(named).collect::<Vec<_>>())
        };
        recording.variables = static_memory(sampled.iter().copied().map(first_bytes));
        let programs = story.programs.into_iter().filter(|(pid, _)| sampled.contains(pid));
        recording.programs = programs.map(|(pid, name)| (pid, texts[name.index()].clone())).collect();
        let left_out = recording.first_touch.left_out;
        recording.first_touch = story.known.report();
        recording.first_touch.left_out += left_out;
        Ok(recording)
    }
}

/// Everything that happened so far, in the order of time.
#[derive(Default)]
struct Story<'a> {
    texts: &'a [String],
    mappings: Mappings,
    programs: BTreeMap<Pid, Name>,
    known: Known,
}

impl Story<'_> {
    fn goes_on(&mut self, happened: &Happened, chains: &[Vec<u64>]) {
        match *happened {
            Happened::Mapped { pid, is_data, start, end, offset, name } => {
                self.mappings.map(pid, start..end, offset, name);
                if let Some(name) = name.filter(|_| !is_data) {
                    let path = self.texts[name.index()].clone().into();
                    self.known.add_module(pid, Module { range: start..end, offset, path });
                }
            }
            Happened::Executed { pid } => {
                self.mappings.forget(pid);
                self.known.forget(pid);
            }
            Happened::Named { pid, name } => {
                if let Some(name) = name {
                    self.programs.insert(pid, name);
                }
            }
            Happened::Forked { parent, child } => {
                if let Some(&name) = self.programs.get(&parent) {
                    self.programs.insert(child, name);
                }
                self.mappings.fork(parent, child);
                self.known.fork(parent, child);
            }
            Happened::Faulted(Fault { ref sample, chain, is_first }) => {
                // A later fault may be that of a page that was given back, or a hint fault of the kernel's
                // balancing. Only the size of the page that was there tells.
                let is_first = is_first.unwrap_or(!self.known.has(sample.pid, sample.address.page()));
                if is_first {
                    self.known.followed.insert(sample.pid);
                    let chain = chain.map(|chain| chains[chain as usize].clone());
                    self.known.fault(sample, chain.unwrap_or_default());
                }
            }
        }
    }
}

/// Whether samples of an event are accesses to memory.
fn is_of_accesses(event: &Event) -> bool {
    let is_a_pmus = ![EventType::SOFTWARE, EventType::TRACEPOINT].contains(&event.attr.kind);
    is_a_pmus && event.format.sample_type.contains(SampleType::ADDR | SampleType::DATA_SRC)
}

/// Whether samples of an event are page faults.
fn is_of_faults(event: &Event) -> bool {
    const ALL: [SoftwareEvent; 3] =
        [SoftwareEvent::PageFaults, SoftwareEvent::PageFaultsMinor, SoftwareEvent::PageFaultsMajor];
    let is_one = ALL.iter().any(|&one| one as u64 == event.attr.config);
    event.attr.kind == EventType::SOFTWARE && is_one && event.format.sample_type.contains(SampleType::ADDR)
}

/// The address of memory of user code.
fn address_of(sample: &perf::Sample<'_>) -> Option<u64> {
    /// From here on addresses are the kernel's, on all 64-bit architectures.
    const KERNEL: u64 = 1 << 63;
    sample.address.filter(|&address| address != 0 && address < KERNEL)
}

fn process_of(sample: &perf::Sample<'_>) -> Option<(Pid, Tid)> {
    let (pid, tid) = (u32::try_from(sample.pid?).ok()?, u32::try_from(sample.tid?).ok()?);
    Some((Pid(pid), Tid(tid)))
}

/// `write_cmdline` of `tools/perf/util/header.c`: how many words, and each.
fn command(bytes: &[u8]) -> Option<Vec<String>> {
    /// Words that anybody reads.
    const MOST: u32 = 1 << 10;
    let mut parts = Parts(bytes);
    (0..parts.u32()?.min(MOST)).map(|_| parts.text()).collect()
}
