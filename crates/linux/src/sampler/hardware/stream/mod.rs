//! The events of one CPU or thread, with their ring.

use super::data_source::Decoded;
use super::detect::Pmu;
use super::pebs;
use super::sampled::Periods;
use super::spe;
use crate::sampler::files::pages;
use crate::sampler::streams::{Refused, largest_granted};
use crate::{Error, ErrorKind};
use nodewise_engine::{Pid, SamplingRate};
use nodewise_sys::page_bytes;
use nodewise_sys::perf::{
    AttrFlags, CpuMode, Event, Identity, Losses, Record, Ring, Sample, SampleFormat, Target,
};
use std::fs;

/// The ring beside an AUX area, which holds a record for each stretch of that, is so many times smaller.
const AUX_TO_RING: usize = 8;

/// The place of an access: its thread, CPU and time, and how many accesses it stands for.
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
    events: Vec<(Event, Periods)>,
    /// Kept open, as closing a leader dissolves its group.
    leaders: Vec<Event>,
    /// Whether the events are switched off.
    rests: bool,
    /// Times of the first event, as they were last asked for.
    times: Times,
    reader: Reader,
    /// Memory of the rings, at most.
    bytes: usize,
}

/// The reading half, which needs no PMU.
pub(super) struct Reader {
    ring: Ring,
    /// Samples between two, for records that do not say it themselves.
    period: u64,
    /// Share of the time that the events had a counter.
    share: f64,
    aux: AuxData,
    /// Stretches of the AUX area whose bytes had not come when their record was read.
    chunks: Vec<Chunk>,
    malformed: u64,
}

/// AUX data that was read but not yet described by a record.
#[derive(Default)]
struct AuxData {
    bytes: Vec<u8>,
    /// Where `bytes` begins in the AUX area.
    position: u64,
}

/// A stretch of the AUX area that a record describes.
struct Chunk {
    offset: u64,
    bytes: u64,
    identity: Identity,
    /// Whether it was kept for this drain by the one before.
    waited: bool,
}

/// How long an event was enabled, and how long it had a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    enabled_ns: u64,
    running_ns: u64,
}

impl Stream {
    /// All memory of a stream with a ring, or an AUX area where the PMU has one, of so many bytes.
    pub(super) fn whole_bytes(pmu: &Pmu, bytes: usize) -> usize {
        let page = page_bytes();
        let beside = if has_aux(pmu) { pages(bytes / AUX_TO_RING, page) } else { 0 };
        (1 + pages(bytes, page) + beside) * page
    }

    /// Opens the events with a ring, or an AUX area where the PMU has one, of at most so many bytes.
    pub(super) fn open(pmu: &Pmu, target: Target, bytes: usize, rate: SamplingRate) -> Result<Self, Refused> {
        let (mut events, mut leaders) = (Vec::new(), Vec::new());
        let mut format = SampleFormat::default();
        for sampled in pmu.events() {
            let mut attr = sampled.attr;
            let refused = |error| refused(pmu, attr.flags, target, error);
            attr.sample_period = sampled.periods.at(rate);
            let leader = sampled.leader.map(|leader| Event::open(&leader, target, None));
            let leader = leader.transpose().map_err(refused)?;
            events.push((Event::open(&attr, target, leader.as_ref()).map_err(refused)?, sampled.periods));
            format = SampleFormat::from(&attr);
            leaders.extend(leader);
        }
        let Some((first, _)) = events.first() else {
            let error = Error::new(ErrorKind::Unsupported, "a PMU without events");
            return Err(Refused { kind: nodewise_sys::ErrorKind::NotSupported, error });
        };
        let ring_bytes = if has_aux(pmu) { bytes / AUX_TO_RING } else { bytes };
        let mut ring = largest_granted(ring_bytes, |pages| Ring::map(first, format, pages))?;
        if has_aux(pmu) {
            largest_granted(bytes, |pages| ring.map_aux(first, pages))?;
        }
        let (rests, times, reader) = (true, Times::default(), Reader::new(ring));
        let bytes = Self::whole_bytes(pmu, bytes);
        let mut stream = Self { events, leaders, rests, times, reader, bytes };
        let [(first, _), others @ ..] = &stream.events[..] else { unreachable!("there is a first") };
        let failed = |error| refused(pmu, AttrFlags::default(), target, error);
        others.iter().try_for_each(|(event, _)| event.set_output(first)).map_err(failed)?;
        stream.set_rate(rate).map_err(failed)?;
        Ok(stream)
    }

    /// From now on samples more or less often, or not at all. Samples that were not read yet get the weight
    /// of the new rate where their records carry no period.
    pub(super) fn set_rate(&mut self, rate: SamplingRate) -> nodewise_sys::Result<()> {
        let rests = rate == SamplingRate::Paused;
        if rests {
            self.all().try_for_each(Event::disable)?;
        } else {
            for (event, periods) in &self.events {
                event.set_period(periods.at(rate))?;
            }
            self.reader.period = self.events.first().map_or(1, |(_, periods)| periods.at(rate));
            if self.rests {
                self.all().try_for_each(Event::enable)?;
            }
        }
        self.rests = rests;
        Ok(())
    }

    /// Leaders come before what they lead.
    fn all(&self) -> impl Iterator<Item = &Event> {
        self.leaders.iter().chain(self.events.iter().map(|(event, _)| event))
    }

    /// Asks what share of the time the events had a counter, so that weights make up for the rest; they share
    /// their fate. The kernel then also empties the CPU's buffer of PEBS records into the ring.
    ///
    /// Returns whether a CPU's events still run. The kernel takes them from a CPU that goes offline, and does
    /// not give them back when it is online again, after a suspension for one.
    pub(super) fn ask_times(&mut self) -> bool {
        let Some(Ok(count)) = self.events.first().map(|(event, _)| event.read()) else { return true };
        let now = Times { enabled_ns: count.time_enabled_ns, running_ns: count.time_running_ns };
        self.reader.share = now.share_since(self.times);
        let stands_still = now == self.times && !self.rests;
        self.times = now;
        !stands_still
    }

    pub(super) fn drain(&mut self, pmu: &Pmu, now_ns: u64, each: impl FnMut(Place, Decoded)) {
        let took_aux = self.reader.drain(pmu, now_ns, each);
        self.go_on(took_aux);
    }

    /// Takes records and AUX bytes as they are.
    pub(super) fn drain_raw(&mut self, mut record: impl FnMut(&[u8]), aux: &mut Vec<u8>) {
        self.reader.ring.read_raw(&mut record);
        let took_aux = self.reader.ring.read_aux(aux) > 0;
        self.go_on(took_aux);
    }

    fn go_on(&self, took_aux: bool) {
        if took_aux && !self.rests {
            // The kernel switches an event off for good when its AUX area is full (`perf_aux_output_end`). An
            // event that is on stays on, and one whose thread has ended stays off.
            let _ = self.all().try_for_each(Event::enable);
        }
    }

    pub(super) fn losses(&self) -> Losses {
        self.reader.losses()
    }

    /// Memory of its rings, at most.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Whether the PMU writes its records into an AUX area.
const fn has_aux(pmu: &Pmu) -> bool {
    matches!(pmu, Pmu::Spe(_))
}

impl Times {
    /// 1 where the events were not enabled or had no counter at all: no samples then, whose weight would
    /// matter.
    fn share_since(self, before: Self) -> f64 {
        let enabled_ns = self.enabled_ns.saturating_sub(before.enabled_ns);
        let running_ns = self.running_ns.saturating_sub(before.running_ns);
        if running_ns == 0 { 1.0 } else { (running_ns as f64 / enabled_ns as f64).min(1.0) }
    }
}

impl Reader {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, period: 1, share: 1.0, aux: AuxData::default(), chunks: Vec::new(), malformed: 0 }
    }

    pub(super) fn losses(&self) -> Losses {
        let mut losses = self.ring.losses();
        losses.malformed += self.malformed;
        losses
    }

    /// Hands over all accesses of user code. Samples without a time get `now_ns`. Returns whether it took
    /// bytes out of the AUX area.
    pub(super) fn drain(&mut self, pmu: &Pmu, now_ns: u64, mut each: impl FnMut(Place, Decoded)) -> bool {
        let (chunks, share) = (&mut self.chunks, self.share);
        self.ring.read(|record| match record {
            Record::Sample(sample) => {
                // Not every PMU can leave out the kernel and guests, whose addresses mean other memory.
                if !matches!(sample.cpu_mode, CpuMode::User | CpuMode::Unknown) {
                    return;
                }
                let decoded = match pmu {
                    Pmu::Pebs(_) => pebs::decode(&sample),
                    Pmu::Ibs(ibs) => ibs.decode(&sample),
                    Pmu::Spe(_) => None,
                };
                if let (Some(place), Some(decoded)) = (place_of(&sample, share, now_ns), decoded) {
                    each(place, decoded);
                }
            }
            Record::Aux { offset, bytes, identity, .. } => {
                chunks.push(Chunk { offset, bytes, identity, waited: false });
            }
            _ => {}
        });
        match pmu {
            Pmu::Spe(spe) => self.drain_aux(spe.sources, each),
            _ => false,
        }
    }

    /// Takes the AUX bytes that records have described apart. The kernel publishes a record before its bytes
    /// (`perf_aux_output_end`), so that a chunk which is not all there is kept for the next time, once.
    fn drain_aux(&mut self, sources: spe::Sources, mut each: impl FnMut(Place, Decoded)) -> bool {
        let took = self.ring.read_aux(&mut self.aux.bytes) > 0;
        for chunk in std::mem::take(&mut self.chunks) {
            if !chunk.waited && !self.aux.reaches(&chunk) {
                self.chunks.push(Chunk { waited: true, ..chunk });
                continue;
            }
            let Some(bytes) = self.aux.take(&chunk) else {
                self.malformed += 1;
                continue;
            };
            let weight = weight(self.period, self.share);
            let Some(place) = place_of_chunk(chunk.identity, weight) else { continue };
            if !spe::decode(&bytes, chunk.offset, sources, |decoded| each(place, decoded)) {
                self.malformed += 1;
            }
        }
        took
    }
}

impl AuxData {
    /// Whether all bytes up to the chunk's end have come.
    fn reaches(&self, chunk: &Chunk) -> bool {
        self.position.saturating_add(self.bytes.len() as u64) >= chunk.offset.saturating_add(chunk.bytes)
    }

    /// The bytes of the chunk, and forgets them and all before.
    fn take(&mut self, chunk: &Chunk) -> Option<Vec<u8>> {
        let begin = usize::try_from(chunk.offset.checked_sub(self.position)?).ok()?;
        let end = begin.checked_add(usize::try_from(chunk.bytes).ok()?)?;
        let taken = self.bytes.get(begin..end)?.to_vec();
        self.bytes.drain(..end);
        self.position = chunk.offset + chunk.bytes;
        Some(taken)
    }
}

/// Accesses that a sample stands for: a period, and those of the time in which there was no counter.
fn weight(period: u64, share: f64) -> u32 {
    (period as f64 / share).round().clamp(1.0, f64::from(u32::MAX)) as u32
}

fn place_of(sample: &Sample<'_>, share: f64, now_ns: u64) -> Option<Place> {
    Some(Place {
        pid: Pid(u32::try_from(sample.pid?).ok()?),
        tid: u32::try_from(sample.tid?).ok()?,
        cpu: sample.cpu?,
        time_ns: sample.time_ns.unwrap_or(now_ns),
        weight: weight(sample.period.unwrap_or(1), share),
    })
}

/// All samples of a chunk get the time at its end: SPE's own time stamps count another clock.
fn place_of_chunk(identity: Identity, weight: u32) -> Option<Place> {
    Some(Place {
        pid: Pid(u32::try_from(identity.pid?).ok()?),
        tid: u32::try_from(identity.tid?).ok()?,
        cpu: identity.cpu?,
        time_ns: identity.time_ns?,
        weight,
    })
}

fn refused(pmu: &Pmu, flags: AttrFlags, target: Target, error: nodewise_sys::Error) -> Refused {
    let name = pmu.name();
    let (kind, message) = match error.kind() {
        nodewise_sys::ErrorKind::NotPermitted => {
            let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            let enough = paranoid_enough(flags, target);
            let message = format!(
                "cannot open {name}; run as root, or grant CAP_PERFMON, or set kernel.perf_event_paranoid to \
                 {enough} or less (it is {})",
                paranoid.trim()
            );
            (ErrorKind::NotPermitted, message)
        }
        nodewise_sys::ErrorKind::NoSuchProcess => (ErrorKind::NoSuchProcess, format!("cannot open {name}")),
        kind => {
            let why = match pmu {
                Pmu::Pebs(pebs) => pebs.refusal(kind),
                _ => None,
            };
            let why = why.unwrap_or("the kernel refuses it");
            (ErrorKind::Unsupported, format!("no hardware sampler: cannot open {name}: {why}"))
        }
    };
    Refused { kind: error.kind(), error: Error::with_source(kind, message, error) }
}

/// The greatest `perf_event_paranoid` with which anybody may open such an event (`perf_allow_cpu`,
/// `perf_allow_kernel`).
fn paranoid_enough(flags: AttrFlags, target: Target) -> i32 {
    match target {
        Target::Cpu(_) => 0,
        _ if flags.contains(AttrFlags::EXCLUDE_KERNEL) => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
