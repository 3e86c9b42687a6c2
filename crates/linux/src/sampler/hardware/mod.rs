//! Sampling by the CPU's own PMU: Intel PEBS, AMD IBS, Arm SPE.
//!
//! [`Pmu::detect`] finds out which there is and what to open; [`HardwareSampler`] opens it on every CPU, or where that is not
//! permitted (or takes more file descriptors than there may be) on every thread of the managed processes. Decoding is apart from
//! opening, since it is all that can be tested on a machine without such a PMU.

pub mod data_source;
mod detect;
mod format;
pub mod ibs;
mod pebs;
pub mod spe;
mod stream;

use super::files::{make_room, ring_pages};
pub use detect::Pmu;

use super::Sampler;
use crate::{Error, ErrorKind};
use data_source::Decoded;
use nodewise_engine::{PageSize, Pid, Sample, SamplingRate, Tid, VirtAddr};
use nodewise_sys::perf::{Losses, Target};
use nodewise_topology::{CpuId, NodeIndex, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use stream::{Place, Stream};

/// Whom the events are opened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Cpus,
    Threads,
}

/// Samples memory accesses by the CPU's PMU.
pub struct HardwareSampler {
    pmu: Pmu,
    scope: Scope,
    /// By CPU, or by thread.
    streams: BTreeMap<u32, Stream>,
    /// So many streams fit into the limit on open files.
    streams_max: usize,
    node_of_cpu: Vec<Option<NodeIndex>>,
    rate: SamplingRate,
    /// Of streams that are closed.
    losses: Losses,
}

impl HardwareSampler {
    /// Finds the PMU and starts sampling; tries the CPUs first, then whether a thread would be permitted. The soft limit on
    /// open files is raised to the hard one, and stays so.
    ///
    /// # Errors
    /// `Unsupported` there is no such PMU; `NotPermitted`, naming what is missing.
    pub fn open(topology: &Topology) -> Result<Self, Error> {
        let pmu = Pmu::detect(Path::new("/"))?;
        let cpus: Vec<CpuId> = topology.online_cpus().iter().collect();
        let last = cpus.iter().map(|cpu| cpu.0).max().unwrap_or(0);
        let node_of_cpu = (0..=last).map(|cpu| topology.node_of_cpu(CpuId(cpu))).collect();
        let streams_max = make_room(pmu.files_each())?;
        let mut sampler = Self {
            pmu,
            scope: Scope::Threads,
            streams: BTreeMap::new(),
            streams_max,
            node_of_cpu,
            rate: SamplingRate::Accurate,
            losses: Losses::default(),
        };
        if !sampler.open_cpus(&cpus)? {
            // Permitted at all? The caller's own thread is as good as any; it is closed again at once.
            sampler.stream(Target::Task(0), 1)?;
        }
        Ok(sampler)
    }

    /// Opens the events on every CPU; false where threads must do.
    fn open_cpus(&mut self, cpus: &[CpuId]) -> Result<bool, Error> {
        // SPE's records do not say whose they are; the AUX records of a thread's own event do.
        if matches!(self.pmu, Pmu::Spe(_)) {
            return Ok(false);
        }
        if self.streams_max < cpus.len() {
            return Ok(false);
        }
        for cpu in cpus {
            match self.stream(Target::Cpu(cpu.0), cpus.len()) {
                Ok(stream) => self.streams.insert(cpu.0, stream),
                Err(e) if e.kind() == ErrorKind::NotPermitted => {
                    self.streams.clear();
                    return Ok(false);
                }
                Err(e) => return Err(e),
            };
        }
        self.scope = Scope::Cpus;
        Ok(true)
    }

    fn stream(&self, target: Target, streams: usize) -> Result<Stream, Error> {
        Stream::open(&self.pmu, target, ring_pages(streams), self.pmu.period(self.rate))
    }

    fn close_stream(&mut self, key: u32) {
        if let Some(stream) = self.streams.remove(&key) {
            self.losses += stream.losses();
        }
    }
}

impl Sampler for HardwareSampler {
    fn name(&self) -> &'static str {
        "hardware"
    }

    fn description(&self) -> String {
        let whom = match self.scope {
            Scope::Cpus => "on every CPU",
            Scope::Threads => "on every thread",
        };
        format!("{} {whom}, one sample in {} events", self.pmu.name(), self.pmu.period(self.rate))
    }

    fn is_proportional(&self) -> bool {
        true
    }

    /// Opens the events on threads that are new, where they are not open on every CPU.
    fn follow(&mut self, pids: &mut dyn Iterator<Item = Pid>) {
        if self.scope == Scope::Cpus {
            return;
        }
        let threads: BTreeSet<u32> = pids.flat_map(threads_of).collect();
        let ended: Vec<u32> = self.streams.keys().copied().filter(|tid| !threads.contains(tid)).collect();
        for tid in ended {
            self.close_stream(tid);
        }
        for tid in threads.iter().copied() {
            if self.streams.contains_key(&tid) {
                continue;
            }
            let room = self.streams.len() < self.streams_max;
            match room.then(|| self.stream(Target::Task(tid as i32), threads.len())) {
                Some(Ok(stream)) => drop(self.streams.insert(tid, stream)),
                // Gone meanwhile, another user's, or no descriptor left: counted, as its samples are lost.
                _ => self.losses += Losses { lost: 1, ..Losses::default() },
            }
        }
    }

    fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<Sample>) {
        for stream in self.streams.values_mut() {
            stream.drain(&self.pmu, |place, decoded| {
                into.extend(sample(&self.node_of_cpu, keep, place, decoded));
            });
        }
    }

    fn losses(&self) -> Losses {
        self.streams.values().fold(self.losses, |mut sum, stream| {
            sum += stream.losses();
            sum
        })
    }

    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error> {
        self.rate = rate;
        let period = self.pmu.period(rate);
        self.streams.values().try_for_each(|stream| stream.set_period(period))
    }

    fn close(&mut self) -> Result<(), Error> {
        self.losses = self.losses();
        self.streams.clear();
        Ok(())
    }
}

fn threads_of(pid: Pid) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{}/task", pid.0)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The engine's form of an access, unless it is the kernel's own, or somebody's who is not managed.
fn sample(
    node_of_cpu: &[Option<NodeIndex>],
    keep: &dyn Fn(Pid) -> bool,
    place: Place,
    decoded: Decoded,
) -> Option<Sample> {
    const KERNEL: u64 = 1 << 63;
    if decoded.address & KERNEL != 0 || !keep(place.pid) {
        return None;
    }
    Some(Sample {
        time_ns: place.time_ns,
        address: VirtAddr(decoded.address),
        pid: place.pid,
        tid: Tid(place.tid),
        accessor: node_of_cpu.get(place.cpu as usize).copied().flatten()?,
        home: None,
        access: decoded.access,
        source: decoded.source,
        page_size: PageSize::Base,
        latency_cycles: decoded.latency_cycles,
        weight: place.weight,
    })
}
