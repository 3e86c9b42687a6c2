//! Intel's precise event-based sampling: loads above a latency, and stores.
//!
//! The kernel names the events per model (`mem-loads`, `mem-stores`, and from Sapphire Rapids on
//! `mem-loads-aux`, without whose leading a group the first is refused; `arch/x86/events/intel/core.c`), so
//! there is no table of models here.

use super::data_source::{self, Decoded};
use super::format::PmuDirectory;
use super::sampled::{Periods, Sampled};
use crate::Error;
use nodewise_sys::perf::{Attr, AttrFlags, Sample, SampleType};

/// Loads that took longer are sampled: more than any cache of the core itself takes, less than any DRAM.
pub(super) const LATENCY_MIN_CYCLES: u64 = 64;

/// Loads above the latency from one sample to the next. All periods are primes, so as not to fall in step
/// with loops.
const LOADS: Periods = Periods { accurate: 10_007, cheap: 100_003 };
/// Stores from one sample to the next. The event counts every store, up to a thousand million a second.
const STORES: Periods = Periods { accurate: 100_003, cheap: 1_000_003 };

/// The events to open for PEBS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pebs {
    pub(super) events: Vec<Sampled>,
    pub(super) is_virtual: bool,
}

/// The parts of a sample with which the kernel lets the CPU fill a buffer before it interrupts
/// (`intel_pmu_large_pebs_flags` in `arch/x86/events/intel/core.c`). A clock id rules that out, and so does
/// any time before Skylake, and the weight in older kernels.
const SAMPLE_TYPE: SampleType = SampleType(
    SampleType::TID.0
        | SampleType::ADDR.0
        | SampleType::CPU.0
        | SampleType::PERIOD.0
        | SampleType::DATA_SRC.0,
);

impl Pebs {
    /// From the CPU's PMU; `None` when it has no load latency event, as virtual machines' PMUs do not.
    pub(super) fn detect(pmu: &PmuDirectory, is_virtual: bool) -> Result<Option<Self>, Error> {
        if pmu.capability("max_precise").is_some_and(|precise| precise < 2) {
            return Ok(None);
        }
        let Some(mut loads) = pmu.event("mem-loads")? else { return Ok(None) };
        pmu.set(&mut loads, "ldlat", LATENCY_MIN_CYCLES)?;
        let host_only = |mut attr: Attr| {
            attr.flags |= AttrFlags::EXCLUDE_GUEST;
            attr
        };
        let precise = |attr: Attr| {
            let mut attr = host_only(attr);
            attr.flags |= AttrFlags::PRECISE_2;
            attr.sample_type = SAMPLE_TYPE;
            attr
        };
        let leader = pmu.event("mem-loads-aux")?.map(host_only);
        let loads = Sampled { what: "slow loads", leader, attr: precise(loads), periods: LOADS };
        let stores = pmu.event("mem-stores")?.map(|stores| Sampled {
            what: "stores",
            leader: None,
            attr: precise(stores),
            periods: STORES,
        });
        Ok(Some(Self { events: std::iter::once(loads).chain(stores).collect(), is_virtual }))
    }

    pub(super) fn events(&self) -> Vec<Sampled> {
        self.events.clone()
    }

    /// The meaning of a refusal of these events, beyond the kernel's error.
    pub(super) fn refusal(&self, kind: nodewise_sys::ErrorKind) -> Option<&'static str> {
        use nodewise_sys::ErrorKind::{NotFound, NotSupported};
        (self.is_virtual && matches!(kind, NotSupported | NotFound))
            .then_some("this CPU's PEBS is not passed on by the hypervisor")
    }
}

/// One sample; the kernel has done the decoding.
pub(super) fn decode(sample: &Sample<'_>) -> Option<Decoded> {
    let data_src = sample.data_source?;
    Some(Decoded {
        address: sample.address?,
        access: data_source::access(data_src),
        source: data_source::source(data_src),
        latency_cycles: 0,
    })
}
