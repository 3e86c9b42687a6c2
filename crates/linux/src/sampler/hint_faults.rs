//! Sampling without a PMU: the kernel's NUMA balancing takes pages' mappings away, and the page-fault event tells who comes back
//! for them.
//!
//! A page gives one sample for each of the kernel's scans, however often it is used: samples say who, not how much. The
//! kernel also migrates on these faults by its own rules; the machine counts that apart, and asks where pages are before
//! it believes anything.

use super::Sampler;
use super::page_fault_event::{PageFaultEvents, Source};
use crate::settings::Settings;
use crate::{Error, ErrorKind};
use nodewise_engine::{Pid, Sample, SamplingRate};
use nodewise_sys::perf::Losses;
use nodewise_topology::Topology;
use std::fs;
use std::path::{Path, PathBuf};

/// How fast the kernel is asked to scan while pages are being placed. The kernel itself never marks more than 2560 MB/s, lets a
/// thread run 32 times as long as it scanned, and slows down towards the maximum while most faults are local
/// (`kernel/sched/fair.c`, Linux 6.1 to 6.12, `task_scan_min`, `update_task_scan_period`).
///
/// `scan_delay_ms` stays as it is: since Linux 6.7 the kernel remembers for four to eight times that long which threads faulted in a
/// mapping, and scans it for no others (`vma_is_accessed`), so that a short delay makes it stop scanning.
const ACCURATE: &[(&str, &str)] = &[("scan_period_min_ms", "100"), ("scan_period_max_ms", "1000")];

/// And while there is little to do: a quarter of the kernel's own default rate, which leaves well-placed programs alone and the kernel
/// fewer chances to move what was just spread. A thread that changes its node is still scanned anew at once.
const CHEAP: &[(&str, &str)] = &[("scan_period_min_ms", "4000"), ("scan_period_max_ms", "60000")];

/// Samples page accesses through NUMA hint faults.
pub struct HintFaults {
    events: Option<PageFaultEvents>,
    settings: Settings,
    /// `/proc/sys/kernel/numa_balancing`
    balancing: PathBuf,
    /// `/sys/kernel/debug/sched/numa_balancing`, where we can write there.
    knobs: Option<PathBuf>,
    losses: Losses,
}

impl HintFaults {
    /// Switches balancing on if it is off, opens the events and starts sampling at the accurate rate.
    pub fn open(topology: &Topology, settings: Settings) -> Result<Self, Error> {
        let balancing = PathBuf::from("/proc/sys/kernel/numa_balancing");
        let knobs = PathBuf::from("/sys/kernel/debug/sched/numa_balancing");
        let mut sampler = Self { events: None, settings, balancing, knobs: None, losses: Losses::default() };
        sampler.switch_on()?;
        sampler.knobs = knobs.join("scan_period_min_ms").exists().then_some(knobs);
        sampler.events = Some(match PageFaultEvents::open(topology, Source::best()) {
            // The tracepoint needs more rights than the software event.
            Err(e) if e.kind() == ErrorKind::NotPermitted => {
                PageFaultEvents::open(topology, Source::Software)?
            }
            other => other?,
        });
        sampler.set_rate(SamplingRate::Accurate)?;
        Ok(sampler)
    }

    /// Bit 0 is balancing between nodes; bit 1, tiering, does not mark pages of ordinary memory
    /// (`include/linux/sched/sysctl.h`).
    fn switch_on(&mut self) -> Result<(), Error> {
        let mode = match fs::read_to_string(&self.balancing) {
            Ok(text) => {
                text.trim().parse::<u32>().map_err(|_| Error::malformed(&self.balancing, 1, "a number"))?
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let message =
                    "this kernel has no NUMA balancing (CONFIG_NUMA_BALANCING), so there are no hint faults";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            Err(e) => return Err(Error::file(&self.balancing, "read", e)),
        };
        if mode & 1 == 1 {
            return Ok(());
        }
        if !self.settings.is_owner() {
            let message = "NUMA balancing is off and another Nodewise owns the kernel's settings";
            return Err(Error::new(ErrorKind::NotPermitted, message));
        }
        self.settings.set(&self.balancing, &(mode | 1).to_string()).map_err(|e| {
            let message = "NUMA balancing is off and cannot be switched on; run as root, or: sysctl kernel.numa_balancing=1";
            Error::with_source(e.kind(), message, e)
        })
    }

    fn knob(&self, name: &str) -> Option<PathBuf> {
        self.knobs.as_deref().map(|directory: &Path| directory.join(name))
    }
}

impl Sampler for HintFaults {
    fn name(&self) -> &'static str {
        "hint-faults"
    }

    fn description(&self) -> String {
        let event = match self.events.as_ref().map(PageFaultEvents::source) {
            Some(Source::Tracepoint { .. }) => "exceptions:page_fault_user, tells reads from writes",
            _ => "page-faults, does not tell reads from writes",
        };
        let scan = match (&self.knobs, self.settings.is_owner()) {
            (Some(_), true) => "scan rate tuned",
            (Some(_), false) => "scan rate left to another Nodewise",
            (None, _) => "scan rate the kernel's own (debugfs is not accessible)",
        };
        format!("{event}; {scan}")
    }

    fn is_proportional(&self) -> bool {
        false
    }

    fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<Sample>) {
        if let Some(events) = &mut self.events {
            events.drain(keep, into);
        }
    }

    fn losses(&self) -> Losses {
        self.events.as_ref().map_or(self.losses, PageFaultEvents::losses)
    }

    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error> {
        let values = match rate {
            SamplingRate::Accurate => ACCURATE,
            SamplingRate::Cheap => CHEAP,
        };
        for (name, value) in values {
            if let Some(path) = self.knob(name) {
                self.settings.set(&path, value)?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.losses = self.losses();
        self.events = None;
        self.settings.restore()
    }
}
