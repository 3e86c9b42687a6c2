//! An open perf event.

use super::{Attr, ReadFormat};
use crate::error::{Error, Result, check};
use std::ffi::CStr;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The target that an event measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// A thread (0: the caller), on whichever CPU it runs.
    Task(i32),
    /// Everything on a CPU; needs `CAP_PERFMON` or `perf_event_paranoid` at most 0.
    Cpu(u32),
    /// A thread while it runs on a CPU.
    TaskOnCpu {
        /// The thread, 0: the caller.
        tid: i32,
        /// The CPU.
        cpu: u32,
    },
}

/// An event, closed when dropped.
#[derive(Debug)]
pub struct Event {
    file: std::fs::File,
    read_format: ReadFormat,
}

/// A counter's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// Events counted.
    pub value: u64,
    /// How long the event was enabled.
    pub time_enabled_ns: u64,
    /// How long it had a counter of the PMU.
    pub time_running_ns: u64,
    /// Samples lost for want of room in the ring, with [`ReadFormat::LOST`].
    pub lost: u64,
}

impl Count {
    /// The value, extrapolated to the time the event was enabled; `None` if it never had a counter.
    #[must_use]
    pub fn scaled(&self) -> Option<u64> {
        let scaled = u128::from(self.value) * u128::from(self.time_enabled_ns)
            / u128::from(self.time_running_ns).max(1);
        (self.time_running_ns != 0).then(|| u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

// From include/uapi/linux/perf_event.h: _IO('$', n), and with arguments _IOW and _IOR of a pointer or u64.
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_RESET: libc::c_ulong = 0x2403;
const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;
const IOC_ID: libc::c_ulong = 0x8008_2407;

const FLAG_FD_CLOEXEC: libc::c_ulong = 8;

impl Event {
    /// `int perf_event_open(struct perf_event_attr *attr, pid_t pid, int cpu, int group_fd, unsigned long
    /// flags)`
    ///
    /// Opens an event, close-on-exec; with `leader`, into that event's group.
    ///
    /// # Errors
    /// `EACCES`, `EPERM` `perf_event_paranoid`, a missing capability, or a container's seccomp filter;
    /// `ENOENT` the PMU has no such event; `ENODEV`, `EOPNOTSUPP` the PMU lacks something asked for,
    /// precise sampling for one; `EINVAL`; `E2BIG` a field that this kernel does not know; `EMFILE`;
    /// `ESRCH` thread gone; `EBUSY` a pinned event has no counter.
    ///
    /// # References
    /// [`perf_event_open(2)`](https://man7.org/linux/man-pages/man2/perf_event_open.2.html)
    pub fn open(attr: &Attr, target: Target, leader: Option<&Self>) -> Result<Self> {
        if attr.read_format.contains(ReadFormat::GROUP) {
            return Err(Error::new("perf_event_open", libc::EINVAL));
        }
        let (tid, cpu) = match target {
            Target::Task(tid) => (tid, -1),
            Target::Cpu(cpu) => (-1, cpu as i32),
            Target::TaskOnCpu { tid, cpu } => (tid, cpu as i32),
        };
        let leader = leader.map_or(-1, |event| event.file.as_raw_fd());
        let mut attr_copy = *attr;
        // SAFETY: the kernel reads as many bytes as `attr.size` says, which only Attr::new sets, to the
        // struct's size; on E2BIG it writes its own size there, so it gets a copy of ours.
        let returned = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw mut attr_copy, tid, cpu, leader, FLAG_FD_CLOEXEC)
        };
        let fd = check("perf_event_open", returned)?;
        // SAFETY: the kernel just made this descriptor for us, nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        Ok(Self { file: fd.into(), read_format: attr.read_format })
    }

    /// Starts counting.
    ///
    /// # Errors
    /// None known.
    pub fn enable(&self) -> Result<()> {
        self.ioctl(IOC_ENABLE, 0)
    }

    /// Stops counting.
    ///
    /// # Errors
    /// None known.
    pub fn disable(&self) -> Result<()> {
        self.ioctl(IOC_DISABLE, 0)
    }

    /// Sets the count, but not the times, to 0.
    ///
    /// # Errors
    /// None known.
    pub fn reset(&self) -> Result<()> {
        self.ioctl(IOC_RESET, 0)
    }

    /// Changes the sample period (or frequency).
    ///
    /// # Errors
    /// `EINVAL` not a sampling event, or a frequency above `perf_event_max_sample_rate`.
    pub fn set_period(&self, period: u64) -> Result<()> {
        self.ioctl(IOC_PERIOD, (&raw const period) as libc::c_ulong)
    }

    /// Sends this event's records to another event's ring, which must be on the same CPU or of the same task.
    ///
    /// # Errors
    /// `EINVAL` it is not.
    pub fn set_output(&self, ring_of: &Self) -> Result<()> {
        self.ioctl(IOC_SET_OUTPUT, ring_of.file.as_raw_fd() as libc::c_ulong)
    }

    /// Sets a filter: for tracepoints a condition on fields, `"address < 4096"`; for some PMUs address
    /// ranges.
    ///
    /// # Errors
    /// `EINVAL` malformed, or this event takes no filters.
    pub fn set_filter(&self, filter: &CStr) -> Result<()> {
        self.ioctl(IOC_SET_FILTER, filter.as_ptr() as libc::c_ulong)
    }

    /// The event's number, as samples carry it.
    ///
    /// # Errors
    /// None known.
    pub fn id(&self) -> Result<u64> {
        let mut id = 0_u64;
        self.ioctl(IOC_ID, (&raw mut id) as libc::c_ulong)?;
        Ok(id)
    }

    /// The count so far.
    ///
    /// # Errors
    /// `EINVAL` the event is in an error state (pinned, and without a counter).
    pub fn read(&self) -> Result<Count> {
        let mut bytes = [0_u8; 5 * 8];
        let failed = |error: std::io::Error| Error::new("read", error.raw_os_error().unwrap_or(libc::EIO));
        let length = (&self.file).read(&mut bytes).map_err(failed)?;
        let mut words = bytes[..length].chunks_exact(8).filter_map(|word| word.try_into().ok());
        let mut next = |present: bool| {
            let word = if present { words.next() } else { Some([0; 8]) };
            word.map(u64::from_ne_bytes).ok_or(Error::new("read", libc::EINVAL))
        };
        let value = next(true)?;
        let time_enabled_ns = next(self.read_format.contains(ReadFormat::TOTAL_TIME_ENABLED))?;
        let time_running_ns = next(self.read_format.contains(ReadFormat::TOTAL_TIME_RUNNING))?;
        next(self.read_format.contains(ReadFormat::ID))?;
        let lost = next(self.read_format.contains(ReadFormat::LOST))?;
        Ok(Count { value, time_enabled_ns, time_running_ns, lost })
    }

    fn ioctl(&self, request: libc::c_ulong, argument: libc::c_ulong) -> Result<()> {
        // SAFETY: private; each caller above passes a number, a terminated string or the address of a live
        // u64, as its request takes.
        let returned = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, argument) };
        check("ioctl", returned.into()).map(|_| ())
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{AttrFlags, SoftwareEvent};
    use crate::{ErrorKind, Mapping, MappingOptions, page_bytes};
    use std::sync::atomic::Ordering;

    #[test]
    fn counts_the_page_faults_of_the_caller() {
        let event = Event::open(&Attr::software(SoftwareEvent::PageFaults), Target::Task(0), None).unwrap();
        let mapping = Mapping::new(64 * page_bytes(), MappingOptions::default()).unwrap();
        mapping.advise(0..mapping.bytes(), crate::Advice::NoHugePage).unwrap();
        event.enable().unwrap();
        for word in mapping.as_atomics().iter().step_by(page_bytes() / 8) {
            word.store(1, Ordering::Relaxed);
        }
        event.disable().unwrap();
        let count = event.read().unwrap();
        assert!(count.value >= 64, "{count:?}");
        assert!(count.scaled().unwrap() >= 64);
        event.reset().unwrap();
        assert_eq!(event.read().unwrap().value, 0);
        assert_ne!(event.id().unwrap(), 0);
    }

    #[test]
    fn lost_samples_can_be_counted() {
        let mut attr = Attr::software(SoftwareEvent::TaskClock);
        attr.read_format |= ReadFormat::LOST | ReadFormat::ID;
        let event = Event::open(&attr, Target::Task(0), None).unwrap();
        assert_eq!(event.read().unwrap().lost, 0);
    }

    #[test]
    fn names_the_errors() {
        let no_pmu = Event::open(&Attr::new(0xffff, 0), Target::Task(0), None).unwrap_err();
        assert_eq!(no_pmu.kind(), ErrorKind::NotFound);
        let gone = Event::open(&Attr::software(SoftwareEvent::TaskClock), Target::Task(i32::MAX), None);
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::NoSuchProcess);
        let mut unknown = Attr::software(SoftwareEvent::TaskClock);
        unknown.flags |= AttrFlags(1 << 63);
        assert_eq!(Event::open(&unknown, Target::Task(0), None).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn scales_by_the_time_it_was_counted() {
        let half = Count { value: 10, time_enabled_ns: 100, time_running_ns: 50, lost: 0 };
        assert_eq!(half.scaled(), Some(20));
        assert_eq!(Count { time_running_ns: 0, ..half }.scaled(), None);
        let huge = Count { value: u64::MAX, time_enabled_ns: u64::MAX, time_running_ns: 1, lost: 0 };
        assert_eq!(huge.scaled(), Some(u64::MAX));
    }
}
