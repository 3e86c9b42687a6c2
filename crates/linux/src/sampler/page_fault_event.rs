//! Page faults of user code as perf events on every CPU: address, thread, CPU and, through the tracepoint,
//! read or write.

use super::cpus::Cpus;
use super::files::{make_room, ring_bytes};
use super::streams::{Refused, Streams, largest_granted, lost, open_counting_losses};
use crate::sampler::RawSample;
use crate::{Error, ErrorKind};
use nodewise_engine::{Access, DataSource, PageNumber, Pid, Tid, VirtAddr};
use nodewise_sys::perf::{
    Attr, AttrFlags, Event, EventType, Losses, Record, Ring, Sample as PerfSample, SampleFormat, SampleType,
    SoftwareEvent,
};
use nodewise_topology::Topology;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How a fault is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Tracepoint `exceptions:page_fault_user`, which carries the processor's error code: its bit 1 is set
    /// for a write (x86, `arch/x86/include/asm/trap_pf.h`).
    Tracepoint { id: u64, address: Range<usize>, error_code: Range<usize> },
    /// Software event `page-faults`: no read or write.
    Software,
    /// The same, with so many callers at most and the word on top of the stack. Faults in the kernel on
    /// behalf of user code count as well. A fault tells the size of the page that was there: 0 where none
    /// was, but not at a hint fault. Mappings of code, execs and forks are told of, too.
    Called { callers: u16 },
}

/// The fields that a tracepoint's format says to hold address and error code, for `scripts/fuzz`.
#[cfg(fuzzing)]
pub fn fields_of_format(format: &str) -> Option<[Range<usize>; 2]> {
    match Source::parse(0, format)? {
        Source::Tracepoint { address, error_code, .. } => Some([address, error_code]),
        Source::Software | Source::Called { .. } => None,
    }
}

impl Source {
    /// The tracepoint where tracefs has it, else the software event.
    pub(super) fn best() -> Self {
        ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .find_map(|tracefs| {
                Self::tracepoint(&Path::new(tracefs).join("events/exceptions/page_fault_user"))
            })
            .unwrap_or(Self::Software)
    }

    fn tracepoint(directory: &Path) -> Option<Self> {
        let id = fs::read_to_string(directory.join("id")).ok()?.trim().parse().ok()?;
        let format = fs::read_to_string(directory.join("format")).ok()?;
        Self::parse(id, &format)
    }

    /// Finds the two fields in a tracepoint's `format` file: lines such as
    /// `field:unsigned long address; offset:8; size:8; signed:0;`.
    fn parse(id: u64, format: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = format.lines().find(|line| {
                let declaration = line.trim().strip_prefix("field:").and_then(|rest| rest.split(';').next());
                declaration.and_then(|d| d.split_ascii_whitespace().last()) == Some(name)
            })?;
            let number = |key: &str| -> Option<usize> {
                line.split(';').find_map(|part| part.trim().strip_prefix(key))?.parse().ok()
            };
            let (offset, size) = (number("offset:")?, number("size:")?);
            Some(offset..offset.checked_add(8)?).filter(|_| size == 8)
        };
        Some(Self::Tracepoint { id, address: field("address")?, error_code: field("error_code")? })
    }

    fn attr(&self) -> Attr {
        let mut attr = match self {
            Self::Tracepoint { id, .. } => {
                let mut attr = Attr::new(EventType::TRACEPOINT, *id);
                attr.sample_type = SampleType::RAW;
                // The tracepoint fires in the kernel, on behalf of user code.
                attr.flags = attr.flags.without(AttrFlags::EXCLUDE_KERNEL);
                attr
            }
            Self::Software => {
                let mut attr = Attr::software(SoftwareEvent::PageFaults);
                attr.sample_type = SampleType::ADDR;
                attr
            }
            Self::Called { callers } => {
                let mut attr = Attr::software(SoftwareEvent::PageFaults);
                attr.sample_type = SampleType::ADDR
                    | SampleType::CALLCHAIN
                    | SampleType::STACK_USER
                    | SampleType::DATA_PAGE_SIZE;
                attr.sample_stack_user = size_of::<u64>() as u32;
                attr.sample_max_stack = *callers;
                // A read(2) into memory touches it as well.
                attr.flags = attr.flags.without(AttrFlags::EXCLUDE_KERNEL)
                    | AttrFlags::EXCLUDE_CALLCHAIN_KERNEL
                    | AttrFlags::MMAP
                    | AttrFlags::COMM
                    | AttrFlags::COMM_EXEC
                    | AttrFlags::TASK
                    | AttrFlags::SAMPLE_ID_ALL;
                attr
            }
        };
        attr.sample_type = attr.sample_type | SampleType::TID | SampleType::TIME | SampleType::CPU;
        attr.sample_period = 1;
        attr.monotonic()
    }

    fn decode(&self, sample: &PerfSample<'_>) -> Option<(u64, Access)> {
        match self {
            Self::Software | Self::Called { .. } => Some((sample.address?, Access::Unknown)),
            Self::Tracepoint { address, error_code, .. } => {
                let raw = sample.raw?;
                let field = |range: &Range<usize>| -> Option<u64> {
                    Some(u64::from_ne_bytes(raw.get(range.clone())?.try_into().ok()?))
                };
                let write = field(error_code)? & 2 != 0;
                Some((field(address)?, if write { Access::Write } else { Access::Read }))
            }
        }
    }
}

/// Bytes of a ring: some 29 000 faults, so that a program that allocates between two readings does not
/// overrun it.
const RING_BYTES: usize = 2 << 20;

/// Migrating a page takes less: a huge one up to 0.3 s in an emulated guest, and some ms elsewhere.
pub(crate) const MIGRATION_NS: u64 = 500_000_000;

/// How many looks at the CPUs come to one at their events.
const ASK_EVERY: u32 = 60;

/// Something from a ring.
pub(crate) enum Seen<'a> {
    /// A page fault, and all that the kernel said of it.
    Fault(RawSample, &'a PerfSample<'a>),
    /// Another record, of whatever process, and its time by `CLOCK_MONOTONIC` if the kernel said it.
    Other(&'a Record<'a>, Option<u64>),
}

/// The event on every CPU, with its ring.
pub(crate) struct PageFaultEvents {
    source: Source,
    streams: Streams<Stream>,
    streams_max: usize,
    cpus: Cpus,
    /// Looks at the CPUs so far.
    looks: u32,
    uses: Uses,
    /// The losses of CPUs that went offline.
    losses: Losses,
}

/// The event on a CPU, with its ring.
struct Stream {
    event: Event,
    ring: Ring,
    /// For how long it was enabled when it was last asked for that.
    enabled_ns: u64,
}

impl Stream {
    fn open(source: &Source, cpu: u32, cpus: usize) -> Result<Self, Refused> {
        let attr = source.attr();
        let event = open_counting_losses(&attr, cpu).map_err(|e| refused(source, e))?;
        let map = |pages| Ring::map(&event, SampleFormat::from(&attr), pages);
        let ring = largest_granted(ring_bytes(cpus, RING_BYTES), map)?;
        event.enable().map_err(|e| refused(source, e))?;
        Ok(Self { event, ring, enabled_ns: 0 })
    }

    /// Whether it still counts. The kernel takes it from a CPU that goes offline, and does not give it back.
    fn is_of_use(&mut self) -> bool {
        let Ok(count) = self.event.read() else { return true };
        let before = std::mem::replace(&mut self.enabled_ns, count.time_enabled_ns);
        before != count.time_enabled_ns
    }
}

impl PageFaultEvents {
    /// Opens the event on every online CPU, and starts it.
    pub(crate) fn open(topology: &Topology, source: Source) -> Result<Self, Error> {
        let cpus = Cpus::new(Path::new("/"), topology);
        let (count, streams_max) = (cpus.online().len(), make_room(1)?);
        if streams_max < count {
            let message = format!("{count} CPUs take as many open files; raise the hard limit (ulimit -Hn)");
            return Err(Error::new(ErrorKind::NotPermitted, message));
        }
        let online = cpus.online().iter().map(|cpu| cpu.0);
        let streams = Streams::open_all(online, |cpu| Stream::open(&source, cpu, count));
        let streams = streams.map_err(|refused| refused.error)?;
        Ok(Self {
            source,
            streams,
            streams_max,
            cpus,
            looks: 0,
            uses: Uses::default(),
            losses: Losses::default(),
        })
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Opens the event on CPUs that are new, or online again.
    pub(crate) fn follow(&mut self) {
        let Self { source, streams, streams_max, cpus, looks, losses, .. } = self;
        *looks = looks.wrapping_add(1);
        // Asking an event interrupts its CPU. One that went and came back between two looks can wait.
        let asks = cpus.update() || *looks % ASK_EVERY == 0;
        streams.close_unless(|stream| {
            if !asks {
                return true;
            }
            let is_of_use = stream.is_of_use();
            if !is_of_use {
                *losses += stream.ring.losses();
            }
            is_of_use
        });
        let present: BTreeSet<u32> = cpus.online().iter().map(|cpu| cpu.0).collect();
        let changes = streams.follow(&present, *streams_max, |cpu| Stream::open(source, cpu, present.len()));
        for stream in &changes.closed {
            *losses += stream.ring.losses();
        }
    }

    pub(super) fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<RawSample>) {
        let mut uses = std::mem::take(&mut self.uses);
        self.read(keep, |seen| {
            if let Seen::Fault(sample, _) = seen {
                uses.take_in(sample, into);
            }
        });
        uses.end_drain();
        self.uses = uses;
    }

    /// Hands over each fault of processes to `keep`, and everything else that was told, CPU by CPU.
    pub(crate) fn read(&mut self, keep: &dyn Fn(Pid) -> bool, mut each: impl FnMut(Seen<'_>)) {
        let Self { source, streams, cpus, .. } = self;
        for stream in streams.iter_mut() {
            stream.ring.read_stamped(|record, stamp| {
                let Record::Sample(sample) = record else {
                    return each(Seen::Other(&record, stamp.time_ns));
                };
                let Some(pid) = sample.pid.and_then(|pid| u32::try_from(pid).ok()).map(Pid) else { return };
                if !keep(pid) {
                    return;
                }
                let node = sample.cpu.and_then(|cpu| cpus.node_of(cpu));
                let (Some(accessor), Some((address, access))) = (node, source.decode(&sample)) else {
                    return;
                };
                let fault = RawSample {
                    time_ns: sample.time_ns.unwrap_or(0),
                    address: VirtAddr(address),
                    pid,
                    tid: Tid(sample.tid.unwrap_or(0) as u32),
                    accessor,
                    access,
                    source: DataSource::Unknown,
                    latency_cycles: 0,
                    weight: 1,
                };
                each(Seen::Fault(fault, &sample));
            });
        }
    }

    /// Records that were lost, the last ones as well. Asking for them interrupts each CPU.
    pub(crate) fn lost(&self) -> u64 {
        let lost = |stream: &Stream| lost(&stream.event, &stream.ring);
        self.losses.lost + self.streams.iter().map(lost).sum::<u64>()
    }

    pub(super) fn losses(&self) -> Losses {
        self.streams.iter().fold(self.losses, |mut sum, stream| {
            sum += stream.ring.losses();
            sum
        })
    }
}

/// The pages that each thread used by its latest faults.
///
/// A page that the kernel migrates at a hint fault may not be written afterwards (`remove_migration_pte`,
/// `mm/migrate.c`, Linux 6.12). So a thread that loads a word, computes, and stores it has two faults for one
/// use of the page. The second tells that it writes. A thread that waits for the page meanwhile faults again
/// when it is there. Counted twice, such faults would look like the runs of a falsely shared huge page.
#[derive(Default)]
struct Uses {
    by_thread: HashMap<(Pid, Tid), Vec<Use>>,
    /// The latest fault's time.
    latest_ns: u64,
}

struct Use {
    page: PageNumber,
    time_ns: u64,
    writes: bool,
    /// Its sample's index, until the drain ends.
    sample: Option<usize>,
}

impl Uses {
    /// A thread may touch other pages between two faults for one use.
    const RECENT: usize = 4;

    /// Appends a fault, unless it is for the same use as one before. That one's sample learns of its store.
    /// If the sample is gone already, the store is one more.
    fn take_in(&mut self, fault: RawSample, into: &mut Vec<RawSample>) {
        self.latest_ns = self.latest_ns.max(fault.time_ns);
        let uses = self.by_thread.entry((fault.pid, fault.tid)).or_default();
        let (page, time_ns, writes) = (fault.address.page(), fault.time_ns, fault.access == Access::Write);
        let is_same = |other: &&mut Use| other.page == page && lasts(other.time_ns, time_ns);
        let Some(same) = uses.iter_mut().find(is_same) else {
            if uses.len() == Self::RECENT {
                uses.remove(0);
            }
            uses.push(Use { page, time_ns, writes, sample: Some(into.len()) });
            into.push(fault);
            return;
        };
        if writes && !same.writes {
            same.writes = true;
            match same.sample {
                Some(sample) => into[sample].access = Access::Write,
                None => into.push(fault),
            }
        }
    }

    /// The samples go their way. Threads without a use that may last are forgotten.
    fn end_drain(&mut self) {
        let latest_ns = self.latest_ns;
        self.by_thread.retain(|_, uses| {
            for one in &mut *uses {
                one.sample = None;
            }
            uses.iter().any(|one| lasts(one.time_ns, latest_ns))
        });
    }
}

/// Whether faults at these times may be for one use.
const fn lasts(one_ns: u64, other_ns: u64) -> bool {
    one_ns.abs_diff(other_ns) <= MIGRATION_NS
}

fn refused(source: &Source, error: nodewise_sys::Error) -> Refused {
    let what = match source {
        Source::Tracepoint { .. } => "tracepoint exceptions:page_fault_user",
        Source::Software | Source::Called { .. } => "software event page-faults",
    };
    let (kind, hint) = match error.kind() {
        nodewise_sys::ErrorKind::NotPermitted => {
            let file = PathBuf::from("/proc/sys/kernel/perf_event_paranoid");
            let paranoid = fs::read_to_string(file).unwrap_or_default();
            let hint = format!(
                "; run as root, or grant CAP_PERFMON, or set kernel.perf_event_paranoid to 0 or less (it is {})",
                paranoid.trim()
            );
            (ErrorKind::NotPermitted, hint)
        }
        nodewise_sys::ErrorKind::TooManyFiles => {
            (ErrorKind::NotPermitted, "; raise the limit on open files (ulimit -n)".to_owned())
        }
        _ if matches!(source, Source::Called { .. }) => {
            (ErrorKind::Unsupported, "; first touches take Linux 5.11".to_owned())
        }
        _ => (ErrorKind::Unsupported, String::new()),
    };
    let message = format!("cannot watch page faults by the {what}{hint}");
    Refused { kind: error.kind(), error: Error::with_source(kind, message, error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_topology::NodeIndex;

    /// As Linux 6.1 and 6.12 print it on x86.
    const FORMAT: &str = "name: page_fault_user
ID: 117
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long address;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long ip;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long error_code;\toffset:24;\tsize:8;\tsigned:0;

print fmt: \"address=%ps ip=%ps error_code=0x%lx\"
";

    #[test]
    fn the_tracepoint_says_read_or_write() {
        let source = Source::parse(117, FORMAT).unwrap();
        assert_eq!(source, Source::Tracepoint { id: 117, address: 8..16, error_code: 24..32 });
        let mut raw = [0u8; 36];
        raw[8..16].copy_from_slice(&0x7f12_3456_7890_u64.to_ne_bytes());
        for (error_code, access) in [(4_u64, Access::Read), (6, Access::Write), (0x14, Access::Read)] {
            raw[24..32].copy_from_slice(&error_code.to_ne_bytes());
            let sample = PerfSample { raw: Some(&raw), ..PerfSample::default() };
            assert_eq!(source.decode(&sample), Some((0x7f12_3456_7890, access)));
        }
        let short = PerfSample { raw: Some(&raw[..20]), ..PerfSample::default() };
        assert_eq!(source.decode(&short), None);
    }

    #[test]
    fn a_load_and_its_store_are_one_use_of_a_page() {
        let fault = |tid, address, time_us: u64, access| RawSample {
            time_ns: 1000 * time_us,
            address: VirtAddr(address),
            pid: Pid(1),
            tid: Tid(tid),
            accessor: NodeIndex(0),
            access,
            source: DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        };
        let (read, write) = (Access::Read, Access::Write);
        let mut uses = Uses::default();
        let mut drain = |told: &[RawSample]| -> Vec<(u32, u64, Access)> {
            let mut samples = Vec::new();
            for &fault in told {
                uses.take_in(fault, &mut samples);
            }
            uses.end_drain();
            samples.iter().map(|s| (s.tid.0, s.address.page().0, s.access)).collect()
        };
        let first = drain(&[
            fault(1, 0x1010, 0, read),
            fault(1, 0x2000, 50, read),
            fault(1, 0x1018, 100, write), // the first one's store
            fault(2, 0x2000, 150, write), // another thread
            fault(3, 0x3000, 200, read),
            fault(1, 0x1010, 500_001, read), // another pass
        ]);
        assert_eq!(first, [(1, 1, write), (1, 2, read), (2, 2, write), (3, 3, read), (1, 1, read)]);
        // A page that was read a moment before is read by the same use, and stored by it as well.
        let again = drain(&[
            fault(3, 0x3008, 1000, read),
            fault(3, 0x3000, 1100, write),
            fault(3, 0x3000, 1200, write),
            fault(3, 0x3000, 900_000, read),
        ]);
        assert_eq!(again, [(3, 3, write), (3, 3, read)]);
    }

    #[test]
    fn a_format_without_the_fields_is_no_tracepoint() {
        assert_eq!(Source::parse(1, "field:int error_code; offset:8; size:4;"), None);
        assert_eq!(Source::parse(1, ""), None);
        let beyond = format!(
            "field:u64 address; offset:{0}; size:8;\nfield:u64 error_code; offset:{0}; size:8;",
            u64::MAX
        );
        assert_eq!(Source::parse(1, &beyond), None);
    }
}
