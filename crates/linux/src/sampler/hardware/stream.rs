//! The events of one CPU or thread, with their ring.

use super::data_source::Decoded;
use super::detect::Pmu;
use super::pebs::{self, Pebs};
use super::spe;
use crate::{Error, ErrorKind};
use nodewise_engine::Pid;
use nodewise_sys::perf::{Event, Identity, Losses, Record, Ring, Sample, SampleFormat, Target};
use std::fs;

/// Pages of an AUX area.
const AUX_PAGES: usize = 64;

/// Who made an access, where, when, and how many it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pid: Pid,
    pub(super) tid: u32,
    pub(super) cpu: u32,
    pub(super) time_ns: u64,
    pub(super) weight: u32,
}

/// Open events of one CPU or thread.
pub(super) struct Stream {
    /// Sampling events; the ring is the first one's.
    events: Vec<Event>,
    /// Kept open, as closing a leader dissolves its group.
    _leaders: Vec<Event>,
    reader: Reader,
}

/// The reading half, which needs no PMU.
pub(super) struct Reader {
    ring: Ring,
    /// Samples between two, for records that do not say it themselves.
    period: u64,
    aux: AuxData,
    malformed: u64,
}

/// AUX data that was read but not yet described by a record.
#[derive(Default)]
struct AuxData {
    bytes: Vec<u8>,
    /// Where `bytes` begins in the AUX area.
    position: u64,
}

impl Stream {
    pub(super) fn open(pmu: &Pmu, target: Target, pages: usize, period: u64) -> Result<Self, Error> {
        let refused = |error| refused(pmu, target, error);
        let (mut events, mut leaders) = (Vec::<Event>::new(), Vec::new());
        let mut format = SampleFormat::default();
        for (leader, mut attr) in pmu.events() {
            attr.sample_period = period;
            let leader = leader.map(|attr| Event::open(&attr, target, None)).transpose().map_err(refused)?;
            let event = Event::open(&attr, target, leader.as_ref()).map_err(refused)?;
            format = SampleFormat::from(&attr);
            leaders.extend(leader);
            events.push(event);
        }
        let first =
            events.first().ok_or_else(|| Error::new(ErrorKind::Unsupported, "a PMU without events"))?;
        let mut ring = Ring::map(first, format, pages).map_err(|e| ring_refused(pages, e))?;
        if matches!(pmu, Pmu::Spe(_)) {
            ring.map_aux(first, AUX_PAGES).map_err(|e| ring_refused(AUX_PAGES, e))?;
        }
        for event in &events[1..] {
            event.set_output(first).map_err(refused)?;
        }
        for event in leaders.iter().chain(&events) {
            event.enable().map_err(refused)?;
        }
        Ok(Self { events, _leaders: leaders, reader: Reader::new(ring, period) })
    }

    pub(super) fn set_period(&self, period: u64) -> Result<(), Error> {
        self.events.iter().try_for_each(|event| {
            event.set_period(period).map_err(|e| {
                Error::with_source(ErrorKind::Unsupported, format!("cannot sample one in {period}"), e)
            })
        })
    }

    pub(super) fn drain(&mut self, pmu: &Pmu, each: impl FnMut(Place, Decoded)) {
        self.reader.drain(pmu, each);
    }

    pub(super) fn losses(&self) -> Losses {
        self.reader.losses()
    }
}

impl Reader {
    pub(super) fn new(ring: Ring, period: u64) -> Self {
        Self { ring, period, aux: AuxData::default(), malformed: 0 }
    }

    pub(super) fn losses(&self) -> Losses {
        let mut losses = self.ring.losses();
        losses.malformed += self.malformed;
        losses
    }

    pub(super) fn drain(&mut self, pmu: &Pmu, mut each: impl FnMut(Place, Decoded)) {
        let mut chunks = Vec::new();
        self.ring.read(|record| match record {
            Record::Sample(sample) => {
                let decoded = match pmu {
                    Pmu::Pebs(_) => pebs::decode(&sample),
                    Pmu::Ibs(ibs) => ibs.decode(&sample),
                    Pmu::Spe(_) => None,
                };
                if let (Some(place), Some(decoded)) = (place_of(&sample), decoded) {
                    each(place, decoded);
                }
            }
            Record::Aux { offset, bytes, identity, .. } => chunks.push((offset, bytes, identity)),
            _ => {}
        });
        if let Pmu::Spe(spe) = pmu {
            self.drain_aux(&chunks, spe.sources, each);
        }
    }

    /// Takes the AUX bytes that records have described apart. The kernel publishes bytes before it writes their record, so the
    /// bytes of all records read above are there, and perhaps more, which wait for the next time.
    fn drain_aux(
        &mut self,
        chunks: &[(u64, u64, Identity)],
        sources: spe::Sources,
        mut each: impl FnMut(Place, Decoded),
    ) {
        self.ring.read_aux(&mut self.aux.bytes);
        for &(offset, length, identity) in chunks {
            let Some(bytes) = self.aux.take(offset, length) else {
                self.malformed += 1;
                continue;
            };
            let Some(place) = place_of_chunk(identity, self.period) else { continue };
            if !spe::decode(&bytes, offset, sources, |decoded| each(place, decoded)) {
                self.malformed += 1;
            }
        }
    }
}

impl AuxData {
    /// The `length` bytes at `offset`, and forgets them and all before.
    fn take(&mut self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let begin = usize::try_from(offset.checked_sub(self.position)?).ok()?;
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        let taken = self.bytes.get(begin..end)?.to_vec();
        self.bytes.drain(..end);
        self.position = offset + length;
        Some(taken)
    }
}

fn place_of(sample: &Sample<'_>) -> Option<Place> {
    Some(Place {
        pid: Pid(u32::try_from(sample.pid?).ok()?),
        tid: u32::try_from(sample.tid?).ok()?,
        cpu: sample.cpu?,
        time_ns: sample.time_ns?,
        weight: u32::try_from(sample.period.unwrap_or(1)).unwrap_or(u32::MAX).max(1),
    })
}

/// All samples of a chunk get the time at its end: SPE's own time stamps count another clock.
fn place_of_chunk(identity: Identity, period: u64) -> Option<Place> {
    Some(Place {
        pid: Pid(u32::try_from(identity.pid?).ok()?),
        tid: u32::try_from(identity.tid?).ok()?,
        cpu: identity.cpu?,
        time_ns: identity.time_ns?,
        weight: u32::try_from(period).unwrap_or(u32::MAX).max(1),
    })
}

fn ring_refused(pages: usize, error: nodewise_sys::Error) -> Error {
    let message = format!(
        "cannot map a ring of {pages} pages; raise kernel.perf_event_mlock_kb or run with CAP_IPC_LOCK"
    );
    Error::with_source(ErrorKind::NotPermitted, message, error)
}

fn refused(pmu: &Pmu, target: Target, error: nodewise_sys::Error) -> Error {
    let name = pmu.name();
    if error.kind() == nodewise_sys::ErrorKind::NotPermitted {
        let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
        let enough = if matches!(target, Target::Cpu(_)) { 0 } else { 2 };
        let message = format!(
            "cannot open {name}; run as root, or grant CAP_PERFMON, or set kernel.perf_event_paranoid to {enough} or less (it is {})",
            paranoid.trim()
        );
        return Error::with_source(ErrorKind::NotPermitted, message, error);
    }
    let (kind, why) = match pmu {
        Pmu::Pebs(_) => Pebs::refusal(error),
        _ => None,
    }
    .unwrap_or((ErrorKind::Unsupported, "the kernel refuses it"));
    Error::with_source(kind, format!("no hardware sampler: cannot open {name}: {why}"), error)
}

#[cfg(test)]
mod tests;
