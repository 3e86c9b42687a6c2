//! Intel's precise event-based sampling: loads above a latency, and stores.
//!
//! The kernel names the events per model (`mem-loads`, `mem-stores`, and from Sapphire Rapids on `mem-loads-aux`, without
//! whose leading a group the first is refused; `arch/x86/events/intel/core.c`), so there is no table of models here.

use super::data_source::{self, Decoded};
use super::format::PmuDirectory;
use crate::{Error, ErrorKind};
use nodewise_engine::SamplingRate;
use nodewise_sys::perf::{Attr, AttrFlags, Sample, SampleType};

/// Loads that took longer are sampled: more than any cache of the core itself takes, less than any DRAM.
pub(super) const LATENCY_MIN_CYCLES: u64 = 64;

/// What to open for PEBS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pebs {
    /// Loads, with the leader of their group where they need one, then stores.
    events: Vec<(Option<Attr>, Attr)>,
}

pub(super) const SAMPLE_TYPE: SampleType = SampleType(
    SampleType::TID.0
        | SampleType::TIME.0
        | SampleType::ADDR.0
        | SampleType::CPU.0
        | SampleType::PERIOD.0
        | SampleType::WEIGHT.0
        | SampleType::DATA_SRC.0,
);

impl Pebs {
    /// From the CPU's PMU; `None` when it has no load latency event, as virtual machines' PMUs do not.
    pub(super) fn detect(pmu: &PmuDirectory) -> Result<Option<Self>, Error> {
        if pmu.capability("max_precise").is_some_and(|precise| precise < 2) {
            return Ok(None);
        }
        let Some(mut loads) = pmu.event("mem-loads")? else { return Ok(None) };
        pmu.set(&mut loads, "ldlat", LATENCY_MIN_CYCLES)?;
        let precise = |mut attr: Attr| {
            attr.flags |= AttrFlags::PRECISE_2;
            attr.sample_type = SAMPLE_TYPE;
            attr.sample_period = period(SamplingRate::Accurate);
            attr.monotonic()
        };
        let loads = (pmu.event("mem-loads-aux")?, precise(loads));
        let stores = pmu.event("mem-stores")?.map(|stores| (None, precise(stores)));
        Ok(Some(Self { events: std::iter::once(loads).chain(stores).collect() }))
    }

    pub(super) fn events(&self) -> Vec<(Option<Attr>, Attr)> {
        self.events.clone()
    }

    /// What a refusal of these events means beyond the kernel's error.
    pub(super) fn refusal(error: nodewise_sys::Error) -> Option<(ErrorKind, &'static str)> {
        matches!(error.kind(), nodewise_sys::ErrorKind::NotSupported | nodewise_sys::ErrorKind::NotFound)
            .then_some((ErrorKind::Unsupported, "this CPU's PEBS is not passed on by the hypervisor"))
    }
}

/// Loads above the latency, or stores, from one sample to the next. Primes, so as not to fall in step with loops.
pub(super) const fn period(rate: SamplingRate) -> u64 {
    match rate {
        SamplingRate::Accurate => 1009,
        SamplingRate::Cheap | SamplingRate::Paused => 10_007,
    }
}

/// One sample; the kernel has done the decoding.
pub(super) fn decode(sample: &Sample<'_>) -> Option<Decoded> {
    let data_src = sample.data_source?;
    Some(Decoded {
        address: sample.address?,
        access: data_source::access(data_src),
        source: data_source::source(data_src),
        // Where a kernel packs more into the word, the load's latency is the low half.
        latency_cycles: sample.weight.unwrap_or(0) as u32,
    })
}
