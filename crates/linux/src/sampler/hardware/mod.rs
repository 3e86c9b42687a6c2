//! Sampling by the CPU's own PMU: Intel PEBS, AMD IBS, Arm SPE.
//!
//! [`Pmu::detect`] finds out which there is and what to open; [`HardwareSampler`] opens it on every CPU, or
//! where that is not permitted (or takes more file descriptors than there may be) on every thread of the
//! managed processes. Decoding is apart from opening, since it is all that can be tested on a machine without
//! such a PMU.

pub mod data_source;
mod detect;
#[cfg(test)]
mod dumps;
mod format;
pub mod ibs;
mod pebs;
pub mod raw;
mod sampled;
pub mod spe;
mod stream;

use super::Sampler;
use super::cpus::Cpus;
use super::files::{RINGS_BYTES, make_room, next_ring_bytes, ring_bytes};
use super::streams::{Refused, Streams};
use crate::kernel::now_ns;
use crate::process::OnePercent;
use crate::sampler::RawSample;
use crate::{Error, ErrorKind, bounds};
use data_source::Decoded;
pub use detect::Pmu;
use nodewise_engine::{Pid, SamplingRate, Tid, VirtAddr};
use nodewise_sys::perf::{Losses, Target};
use nodewise_topology::{CpuSet, Topology};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use stream::{Place, Stream};

/// Bytes of a CPU's ring, at most: what anybody may lock for each CPU by default, beside a page of control.
const CPU_RING_BYTES: usize = 512 << 10;
/// Bytes of a thread's ring, at most: some 500 to 1000 samples. Threads share what may be locked, and there
/// are more of them.
const THREAD_RING_BYTES: usize = 64 << 10;
/// Bytes of a thread's AUX area, at most: some 4000 records of SPE.
const THREAD_AUX_BYTES: usize = 256 << 10;

/// Bytes of what a thread's records are written into, at most.
const fn thread_bytes(pmu: &Pmu) -> usize {
    if matches!(pmu, Pmu::Spe(_)) { THREAD_AUX_BYTES } else { THREAD_RING_BYTES }
}

/// The scope that the events are opened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Cpus,
    Threads,
}

/// Samples memory accesses by the CPU's PMU.
pub struct HardwareSampler {
    pmu: Pmu,
    scope: Scope,
    streams: Streams<Stream>,
    /// So many streams fit into the limit on open files.
    streams_max: usize,
    cpus: Cpus,
    /// CPUs that are not sampled, or threads that were not when they were there.
    left_out: usize,
    /// Whether threads were left out since there were more than there is room for.
    is_full: bool,
    /// The CPUs that the PMU belongs to, where these are not all.
    only_cpus: Option<CpuSet>,
    /// When threads are looked for again.
    follows: OnePercent,
    rate: SamplingRate,
    /// The losses of streams that are closed.
    losses: Losses,
}

impl HardwareSampler {
    /// Finds the PMU and starts sampling; tries the CPUs first, then whether a thread would be permitted. The
    /// soft limit on open files is raised to the hard one, and stays so.
    ///
    /// # Errors
    /// `Unsupported` there is no such PMU; `NotPermitted`, naming what is missing.
    pub fn open(topology: &Topology) -> Result<Self, Error> {
        let root = Path::new("/");
        let pmu = Pmu::detect(root)?;
        let streams_max = make_room(pmu.files_each())?;
        let mut sampler = Self {
            pmu,
            scope: Scope::Threads,
            streams: Streams::none(),
            streams_max,
            only_cpus: detect::only_cpus(root, topology.online_cpus()),
            cpus: Cpus::new(root, topology),
            left_out: 0,
            is_full: false,
            follows: OnePercent::default(),
            rate: SamplingRate::Accurate,
            losses: Losses::default(),
        };
        let cpus_refused = match sampler.open_cpus() {
            Ok(true) => return Ok(sampler),
            Ok(false) => None,
            Err(refused) if refused.is_for_want_of_rights() => Some(refused),
            Err(refused) => return Err(refused.error),
        };
        // Permitted at all? The caller's own thread is as good as any; it is closed again at once.
        match sampler.stream(Target::Task(0), thread_bytes(&sampler.pmu)) {
            Ok(_) => Ok(sampler),
            Err(refused) => Err(what_to_say(cpus_refused, refused).error),
        }
    }

    /// Opens the events on every CPU; false where threads must do.
    fn open_cpus(&mut self) -> Result<bool, Refused> {
        // SPE's records do not say whose they are; the AUX records of a thread's own event do.
        let cpus = self.cpus.online().len();
        if matches!(self.pmu, Pmu::Spe(_)) || self.streams_max < cpus {
            return Ok(false);
        }
        let online = self.cpus.online().iter().map(|cpu| cpu.0);
        self.streams =
            Streams::open_all(online, |cpu| self.stream(Target::Cpu(cpu), ring_bytes(cpus, CPU_RING_BYTES)))?;
        self.scope = Scope::Cpus;
        self.left_out = cpus - self.streams.len();
        Ok(true)
    }

    fn stream(&self, target: Target, bytes: usize) -> Result<Stream, Refused> {
        Stream::open(&self.pmu, target, bytes, self.rate)
    }

    /// A stream of one more of so many threads, if there is room for its rings beside others that have taken
    /// so many bytes.
    fn thread_stream(&self, tid: u32, threads: usize, taken: usize) -> Result<Stream, Refused> {
        let whole = |bytes| Stream::whole_bytes(&self.pmu, bytes);
        let left = RINGS_BYTES.saturating_sub(taken);
        let bytes = next_ring_bytes(left, threads, thread_bytes(&self.pmu), whole);
        self.stream(Target::Task(tid as i32), bytes.ok_or_else(Refused::for_want_of_room)?)
    }
}

/// The refusal that tells the user more. The kernel samples no single threads by some PMUs; rights to the
/// CPUs are missing then.
fn what_to_say(cpus: Option<Refused>, thread: Refused) -> Refused {
    match cpus {
        Some(cpus) if !thread.is_for_want_of_rights() => cpus,
        _ => thread,
    }
}

/// The scope of the sampling, for people.
fn whom(scope: Scope, left_out: usize) -> String {
    let each = match scope {
        Scope::Cpus => "CPU",
        Scope::Threads => "thread",
    };
    if left_out == 0 { format!("on every {each}") } else { format!("on every {each} but {left_out}") }
}

impl Sampler for HardwareSampler {
    fn name(&self) -> &'static str {
        "hardware"
    }

    fn description(&self) -> String {
        let whom = whom(self.scope, self.left_out);
        let only = self.only_cpus.as_ref().map_or(String::new(), |cpus| format!(" while on CPUs {cpus}"));
        format!("{} {whom}{only}, {}", self.pmu.name(), self.pmu.frequency(self.rate))
    }

    fn is_proportional(&self) -> bool {
        true
    }

    /// Opens the events on CPUs or threads that are new. There may be many threads, and looking for them
    /// takes 1 % of the time.
    fn follow(&mut self, pids: &mut dyn Iterator<Item = Pid>) {
        if self.scope == Scope::Threads && !self.follows.is_due() {
            return;
        }
        let begin = Instant::now();
        self.cpus.update();
        let present: BTreeSet<u32> = match self.scope {
            Scope::Cpus => self.cpus.online().iter().map(|cpu| cpu.0).collect(),
            Scope::Threads => pids.flat_map(threads_of).take(bounds::THREADS).collect(),
        };
        let mut streams = std::mem::replace(&mut self.streams, Streams::none());
        streams.close_unless(|stream| {
            // A thread's events stand still while it sleeps.
            let is_of_use = stream.ask_times() || self.scope == Scope::Threads;
            if !is_of_use {
                self.losses += stream.losses();
            }
            is_of_use
        });
        let (mut taken, mut is_full) = (streams.iter().map(Stream::bytes).sum(), false);
        let changes = streams.follow(&present, self.streams_max, |key| match self.scope {
            Scope::Cpus => self.stream(Target::Cpu(key), ring_bytes(present.len(), CPU_RING_BYTES)),
            Scope::Threads => {
                let opened = self.thread_stream(key, present.len(), taken);
                taken += opened.as_ref().map_or(0, Stream::bytes);
                is_full |= opened.as_ref().is_err_and(Refused::is_for_want_of_memory);
                opened
            }
        });
        self.is_full |= is_full || (self.scope == Scope::Threads && streams.len() >= self.streams_max);
        for stream in &changes.closed {
            self.losses += stream.losses();
        }
        // Nobody knows how many samples a thread would have given: it counts as one, once.
        self.losses += Losses { lost: changes.refused as u64, ..Losses::default() };
        self.left_out = match self.scope {
            Scope::Cpus => present.len() - streams.len(),
            Scope::Threads => self.left_out + changes.refused,
        };
        self.streams = streams;
        self.follows.took(begin.elapsed());
    }

    /// SPE stops where its AUX area is full, and goes on when it is drained.
    fn drain_at_least_every(&self) -> Duration {
        if matches!(self.pmu, Pmu::Spe(_)) { Duration::from_millis(100) } else { Duration::MAX }
    }

    fn is_full(&self) -> bool {
        self.is_full
    }

    fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<RawSample>) {
        let now_ns = now_ns();
        for stream in self.streams.iter_mut() {
            stream.drain(&self.pmu, now_ns, |place, decoded| {
                into.extend(sample(&self.cpus, keep, place, decoded));
            });
        }
    }

    fn losses(&self) -> Losses {
        self.streams.iter().fold(self.losses, |mut sum, stream| {
            sum += stream.losses();
            sum
        })
    }

    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error> {
        self.rate = rate;
        self.streams.iter_mut().try_for_each(|stream| stream.set_rate(rate)).map_err(|e| {
            let message = format!("cannot have {} take {}", self.pmu.name(), self.pmu.frequency(rate));
            Error::with_source(ErrorKind::Unsupported, message, e)
        })
    }

    fn close(&mut self) -> Result<(), Error> {
        self.losses = self.losses();
        self.streams = Streams::none();
        Ok(())
    }
}

fn threads_of(pid: Pid) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{}/task", pid.0)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The engine's form of an access, unless it is the kernel's own, or somebody's who is not managed.
fn sample(cpus: &Cpus, keep: &dyn Fn(Pid) -> bool, place: Place, decoded: Decoded) -> Option<RawSample> {
    const KERNEL: u64 = 1 << 63;
    if decoded.address & KERNEL != 0 || !keep(place.pid) {
        return None;
    }
    Some(RawSample {
        time_ns: place.time_ns,
        address: VirtAddr(decoded.address),
        pid: place.pid,
        tid: Tid(place.tid),
        accessor: cpus.node_of(place.cpu)?,
        access: decoded.access,
        source: decoded.source,
        latency_cycles: decoded.latency_cycles,
        weight: place.weight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::ErrorKind as Errno;

    #[test]
    fn says_whom_it_leaves_out() {
        assert_eq!(whom(Scope::Cpus, 0), "on every CPU");
        assert_eq!(whom(Scope::Cpus, 8), "on every CPU but 8");
        assert_eq!(whom(Scope::Threads, 12), "on every thread but 12");
    }

    #[test]
    fn missing_rights_to_cpus_are_named_where_threads_cannot_be_sampled_anyway() {
        let refused = |kind, why: &str| Refused { kind, error: Error::new(ErrorKind::Unsupported, why) };
        let denied = || refused(Errno::NotPermitted, "CPU");
        let say = |cpus, thread| what_to_say(cpus, thread).error.to_string();
        assert_eq!(say(Some(denied()), refused(Errno::Invalid, "thread")), "CPU");
        assert_eq!(say(Some(denied()), refused(Errno::NotPermitted, "thread")), "thread");
        assert_eq!(say(None, refused(Errno::Invalid, "thread")), "thread");
    }
}
