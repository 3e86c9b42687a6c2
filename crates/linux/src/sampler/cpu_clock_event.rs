//! CPU time by the software event `cpu-clock` on every CPU: which process ran there, and in which code of the
//! kernel. It needs no PMU.

use super::cpus::Cpus;
use super::files::{make_room, ring_bytes};
use super::streams::{Refused, Streams, largest_granted, lost, open_counting_losses};
use crate::{Error, ErrorKind};
use nodewise_engine::Pid;
use nodewise_sys::perf::{
    Attr, AttrFlags, CallChain, CpuMode, Event, Record, Ring, SampleFormat, SampleType, SoftwareEvent,
};
use nodewise_topology::{NodeIndex, Topology};
use std::path::Path;

/// Time between samples of a CPU. It is no multiple of the time between the kernel's own ticks.
const EVERY_NS: u64 = 3_900_007;
/// Frames of the kernel in a call chain. The deepest that matter have some 30.
const FRAMES: u16 = 64;
/// Bytes of a ring, which holds some 400 samples.
const RING_BYTES: usize = 256 << 10;

/// Something from a ring.
pub(crate) enum Time {
    /// A process ran on this node. In the kernel there is a call chain, the innermost frame first.
    Ran { pid: Pid, node: NodeIndex, in_kernel: Option<Vec<u64>> },
    /// A process has begun another.
    Forked { parent: Pid, child: Pid },
}

/// The event on every CPU that was online, with its ring.
pub(crate) struct CpuClockEvents {
    streams: Streams<Stream>,
    cpus: Cpus,
}

struct Stream {
    event: Event,
    ring: Ring,
}

impl Stream {
    fn open(cpu: u32, cpus: usize) -> Result<Self, Refused> {
        let mut attr = Attr::software(SoftwareEvent::CpuClock);
        attr.sample_type = SampleType::TID | SampleType::TIME | SampleType::CPU | SampleType::CALLCHAIN;
        attr.sample_period = EVERY_NS;
        attr.sample_max_stack = FRAMES;
        attr.flags = attr.flags.without(AttrFlags::EXCLUDE_KERNEL)
            | AttrFlags::EXCLUDE_CALLCHAIN_USER
            | AttrFlags::TASK
            | AttrFlags::SAMPLE_ID_ALL;
        let attr = attr.monotonic();
        let event = open_counting_losses(&attr, cpu).map_err(refused)?;
        let map = |pages| Ring::map(&event, SampleFormat::from(&attr), pages);
        let ring = largest_granted(ring_bytes(cpus, RING_BYTES), map)?;
        event.enable().map_err(refused)?;
        Ok(Self { event, ring })
    }
}

impl CpuClockEvents {
    pub(crate) fn open(topology: &Topology) -> Result<Self, Error> {
        let cpus = Cpus::new(Path::new("/"), topology);
        let count = cpus.online().len();
        if make_room(1)? < count {
            let message = format!("{count} CPUs take as many open files; raise the hard limit (ulimit -Hn)");
            return Err(Error::new(ErrorKind::NotPermitted, message));
        }
        let online = cpus.online().iter().map(|cpu| cpu.0);
        let streams = Streams::open_all(online, |cpu| Stream::open(cpu, count));
        Ok(Self { streams: streams.map_err(|refused| refused.error)?, cpus })
    }

    /// Samples that the rings had no room for, of whatever process.
    pub(crate) fn lost(&self) -> u64 {
        self.streams.iter().map(|stream| lost(&stream.event, &stream.ring)).sum()
    }

    /// Hands over all that has happened since, CPU by CPU, with its time by `CLOCK_MONOTONIC`.
    pub(crate) fn read(&mut self, mut each: impl FnMut(u64, Time)) {
        let Self { streams, cpus } = self;
        for stream in streams.iter_mut() {
            stream.ring.read_stamped(|record, stamp| match record {
                Record::Fork(task) if task.pid != task.parent_pid => {
                    let (parent, child) = (Pid(task.parent_pid as u32), Pid(task.pid as u32));
                    each(stamp.time_ns.unwrap_or(0), Time::Forked { parent, child });
                }
                Record::Sample(sample) => {
                    let pid = sample.pid.and_then(|pid| u32::try_from(pid).ok()).map(Pid);
                    let node = sample.cpu.and_then(|cpu| cpus.node_of(cpu));
                    let (Some(pid), Some(node)) = (pid, node) else { return };
                    let chain = sample.call_chain.filter(|_| sample.cpu_mode == CpuMode::Kernel);
                    let in_kernel = chain.map(|chain| CallChain::kernel(&chain).collect());
                    each(sample.time_ns.unwrap_or(0), Time::Ran { pid, node, in_kernel });
                }
                _ => {}
            });
        }
    }
}

fn refused(error: nodewise_sys::Error) -> Refused {
    let (kind, hint) = match error.kind() {
        nodewise_sys::ErrorKind::NotPermitted => {
            (ErrorKind::NotPermitted, "; run as root, or grant CAP_PERFMON")
        }
        nodewise_sys::ErrorKind::TooManyFiles => {
            (ErrorKind::NotPermitted, "; raise the limit on open files (ulimit -n)")
        }
        _ => (ErrorKind::Unsupported, ""),
    };
    let message = format!("cannot watch the kernel's time by the software event cpu-clock{hint}");
    Refused { kind: error.kind(), error: Error::with_source(kind, message, error) }
}
