//! Arm's statistical profiling extension: what to open, and its packets.
//!
//! The hardware writes a record of packets for every sampled operation to the AUX area. Packet headers as in the Arm
//! architecture reference manual (DDI 0487, chapter D10) and `tools/perf/util/arm-spe-decoder` of Linux 6.12.

use super::data_source::Decoded;
use super::format::PmuDirectory;
use crate::Error;
use nodewise_engine::{Access, DataSource, SamplingRate};
use nodewise_sys::perf::{Attr, AttrFlags, SampleType};

/// What to open for SPE, and how to read what it samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spe {
    attr: Attr,
    pub(super) sources: Sources,
}

/// What a CPU means by its data source packets, which each maker defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Arm's own cores from Neoverse N1 on.
    Arm,
    /// Ampere's own cores, from `AmpereOne` on.
    AmpereOne,
    /// Not known here: the event bits must do.
    Undefined,
}

impl Sources {
    /// By implementer and part number of `MIDR_EL1`, as `/proc/cpuinfo` has them.
    #[must_use]
    pub fn of(implementer: u32, part: u32) -> Self {
        const ARM: u32 = 0x41;
        const AMPERE: u32 = 0xc0;
        match (implementer, part) {
            // Neoverse N1, N2, N3, V1, V2 (also NVIDIA's Grace), V3; Cortex-A720 to A725, X3, X4, X925.
            (ARM, 0xd0c | 0xd49 | 0xd8e | 0xd40 | 0xd4f | 0xd84 | 0xd81 | 0xd87 | 0xd4e | 0xd82 | 0xd85) => {
                Self::Arm
            }
            (AMPERE, 0xac3 | 0xac4) => Self::AmpereOne,
            _ => Self::Undefined,
        }
    }

    fn source(self, code: u64) -> Option<DataSource> {
        match self {
            Self::Arm => match code {
                // L1, L2, a core or cluster of this node, the system cache.
                0x0 | 0x8..=0xc => Some(DataSource::LocalCache),
                0xd => Some(DataSource::RemoteCache { modified: false }),
                0xe => Some(DataSource::LocalDram),
                _ => None,
            },
            Self::AmpereOne => match code {
                // This chip's cores, the system cache, L1, L2.
                0x0 | 0x3 | 0x8 | 0x9 => Some(DataSource::LocalCache),
                0x5 => Some(DataSource::RemoteCache { modified: false }),
                0x7 => Some(DataSource::LocalDram),
                _ => None,
            },
            Self::Undefined => None,
        }
    }
}

impl Spe {
    pub(super) fn detect(pmu: &PmuDirectory, sources: Sources) -> Result<Self, Error> {
        let mut attr = pmu.attr();
        for (field, value) in [("ts_enable", 1), ("load_filter", 1), ("store_filter", 1), ("jitter", 1)] {
            pmu.set(&mut attr, field, value)?;
        }
        pmu.set(&mut attr, "min_latency", MIN_LATENCY_CYCLES)?;
        attr.sample_type = SampleType::TID | SampleType::TIME | SampleType::CPU;
        // AUX records then say which thread on which CPU their bytes are from.
        attr.flags |= AttrFlags::SAMPLE_ID_ALL;
        attr.sample_period = period(SamplingRate::Accurate).max(pmu.capability("min_interval").unwrap_or(0));
        Ok(Self { attr: attr.monotonic(), sources })
    }

    pub(super) fn events(&self) -> Vec<(Option<Attr>, Attr)> {
        vec![(None, self.attr)]
    }
}

/// Operations that took longer are sampled: less than any DRAM takes, more than any cache of the core itself.
const MIN_LATENCY_CYCLES: u64 = 32;

/// Operations from one sample to the next, before the latency filter.
pub(super) const fn period(rate: SamplingRate) -> u64 {
    match rate {
        SamplingRate::Accurate => 1 << 14,
        SamplingRate::Cheap | SamplingRate::Paused => 1 << 16,
    }
}

/// A packet, as far as its contents matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packet {
    Padding,
    /// Ends a record.
    End,
    /// Ends a record, too.
    Timestamp,
    DataAddress(u64),
    TotalLatency(u16),
    Operation {
        is_memory: bool,
        is_store: bool,
    },
    Events(u64),
    Source(u64),
    /// Context, other addresses and counters.
    Ignored,
}

/// Reads a packet and its length; `position` is where it lies in the AUX area, for alignment packets. `None` when it is
/// cut off, or no packet.
fn packet(bytes: &[u8], position: u64) -> Option<(Packet, usize)> {
    let &first = bytes.first()?;
    match first {
        0x00 => return Some((Packet::Padding, 1)),
        0x01 => return Some((Packet::End, 1)),
        _ => {}
    }
    // Two header bytes: 0b001000xx, then one as in the short format, whose index the first extends.
    let is_extended = first & 0xfc == 0x20;
    let (header, header_bytes) = if is_extended { (*bytes.get(1)?, 2) } else { (first, 1) };
    if is_extended && header == 0 {
        let alignment = 2_u64 << (first & 0xf);
        let length = (alignment - position % alignment) as usize;
        return (length <= bytes.len()).then_some((Packet::Padding, length));
    }
    let index = header & 7 | if is_extended { (first & 3) << 3 } else { 0 };
    let payload_bytes = 1_usize << (header >> 4 & 3);
    let end = header_bytes + payload_bytes;
    let mut payload = [0; 8];
    payload[..payload_bytes].copy_from_slice(bytes.get(header_bytes..end)?);
    let payload = u64::from_le_bytes(payload);
    let packet = match header {
        0x71 if !is_extended => Packet::Timestamp,
        _ if header & 0xf8 == 0xb0 && index == 2 => Packet::DataAddress(payload),
        _ if header & 0xf8 == 0x98 && index == 0 => Packet::TotalLatency(payload as u16),
        _ if header & 0xf8 == 0xb0 || header & 0xf8 == 0x98 => Packet::Ignored,
        _ if is_extended => return None,
        _ if header & 0xcf == 0x42 => Packet::Events(payload),
        _ if header & 0xcf == 0x43 => Packet::Source(payload),
        _ if header & 0xfc == 0x48 => {
            Packet::Operation { is_memory: header & 3 == 1, is_store: payload & 1 == 1 }
        }
        _ if header & 0xfc == 0x64 => Packet::Ignored,
        _ => return None,
    };
    Some((packet, end))
}

/// What was gathered of a record so far.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    address: Option<u64>,
    latency_cycles: u16,
    is_memory: bool,
    is_store: bool,
    events: u64,
    source: Option<u64>,
}

/// Takes a stretch of AUX data apart, which begins at `position` of the AUX area and with a record, and hands each memory access to
/// `each`. Returns false when it met something that is no packet, after which there is no telling where the next begins.
pub fn decode(bytes: &[u8], position: u64, sources: Sources, mut each: impl FnMut(Decoded)) -> bool {
    let mut record = Record::default();
    let mut at = 0;
    while at < bytes.len() {
        let Some((packet, length)) = packet(&bytes[at..], position.wrapping_add(at as u64)) else {
            return false;
        };
        match packet {
            Packet::DataAddress(address) => record.address = Some(address),
            Packet::TotalLatency(cycles) => record.latency_cycles = cycles,
            Packet::Operation { is_memory, is_store } => {
                (record.is_memory, record.is_store) = (is_memory, is_store);
            }
            Packet::Events(events) => record.events = events,
            Packet::Source(code) => record.source = Some(code),
            Packet::Padding | Packet::Ignored => {}
            Packet::End | Packet::Timestamp => {
                if let Some(decoded) = std::mem::take(&mut record).decode(sources) {
                    each(decoded);
                }
            }
        }
        at += length;
    }
    true
}

impl Record {
    fn decode(self, sources: Sources) -> Option<Decoded> {
        // The top byte is the pointer's tag; bit 55 tells kernel from user addresses.
        const TAG: u64 = 0xff << 56;
        let address = self.address.filter(|_| self.is_memory)?;
        let is_kernel = address >> 55 & 1 == 1;
        Some(Decoded {
            address: if is_kernel { address | TAG } else { address & !TAG },
            access: if self.is_store { Access::Write } else { Access::Read },
            source: self.source(sources),
            latency_cycles: self.latency_cycles.into(),
        })
    }

    fn source(self, sources: Sources) -> DataSource {
        const L1_REFILL: u32 = 3;
        const LAST_LEVEL_ACCESS: u32 = 8;
        const LAST_LEVEL_MISS: u32 = 9;
        const REMOTE: u32 = 10;
        let is = |event: u32| self.events >> event & 1 == 1;
        match self.source.and_then(|code| sources.source(code)) {
            Some(DataSource::LocalDram) if is(REMOTE) => DataSource::RemoteDram { hops: 0 },
            Some(source) => source,
            None if is(REMOTE) && is(LAST_LEVEL_MISS) => DataSource::RemoteDram { hops: 0 },
            None if is(REMOTE) => DataSource::RemoteCache { modified: false },
            None if is(LAST_LEVEL_MISS) => DataSource::LocalDram,
            None if is(LAST_LEVEL_ACCESS) || !is(L1_REFILL) => DataSource::LocalCache,
            None => DataSource::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A load on a Neoverse, as the hardware writes it: program counter, context, operation, latencies, virtual and physical
    /// address, source, events, timestamp.
    #[rustfmt::skip]
    const LOAD: [u8; 63] = [
        0xb0, 0x34, 0x12, 0x40, 0x00, 0x00, 0x00, 0x00, 0x80, // address 0: program counter, EL0, non-secure
        0x65, 0x10, 0x27, 0x00, 0x00,                         // context 1: 32 bits
        0x49, 0x00,                                           // operation: load
        0x52, 0x1e, 0x06,                                     // events: retired, L1 access and refill, TLB access, LLC access and miss, remote
        0x98, 0x2c, 0x01,                                     // counter 0: total latency 300
        0x99, 0x05, 0x00,                                     // counter 1: issue latency
        0xb2, 0x78, 0x56, 0x34, 0x12, 0xab, 0x7f, 0x00, 0x5a, // address 2: data, virtual, tag 0x5a
        0x9a, 0x01, 0x00,                                     // counter 2: translation latency
        0x43, 0x0e,                                           // source: DRAM
        0xb3, 0x78, 0x56, 0x34, 0x02, 0x00, 0x00, 0x00, 0x80, // address 3: data, physical
        0x71, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // timestamp
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00,                   // padding to the record size
    ];

    fn all(bytes: &[u8], sources: Sources) -> (Vec<Decoded>, bool) {
        let mut decoded = Vec::new();
        let whole = decode(bytes, 0, sources, |access| decoded.push(access));
        (decoded, whole)
    }

    fn remote_load() -> Decoded {
        Decoded {
            address: 0x7fab_1234_5678,
            access: Access::Read,
            source: DataSource::RemoteDram { hops: 0 },
            latency_cycles: 300,
        }
    }

    /// A record of only operation, address, events and, if any, source.
    fn source_of(events: u16, code: Option<u8>, sources: Sources) -> DataSource {
        let mut bytes = vec![0x49, 0x01, 0x52];
        bytes.extend(events.to_le_bytes());
        bytes.extend([0xb2, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        bytes.extend(code.map(|code| [0x43, code]).iter().flatten());
        bytes.push(0x01);
        let (decoded, whole) = all(&bytes, sources);
        assert!(whole);
        assert_eq!((decoded[0].access, decoded[0].address), (Access::Write, 0x1000));
        decoded[0].source
    }

    #[test]
    fn a_remote_load_byte_by_byte() {
        assert_eq!(all(&LOAD, Sources::Arm), (vec![remote_load()], true));
        assert_eq!(all(&LOAD, Sources::Undefined), (vec![remote_load()], true));
        let twice = [LOAD, LOAD].concat();
        assert_eq!(all(&twice, Sources::Arm).0, [remote_load(); 2]);
    }

    #[test]
    fn sources_by_maker_and_by_events() {
        let missed = 1 << 3 | 1 << 8 | 1 << 9;
        let remote = 1 << 10;
        for (code, expected) in [
            (0x0, DataSource::LocalCache),
            (0x8, DataSource::LocalCache),
            (0xb, DataSource::LocalCache),
            (0xc, DataSource::LocalCache),
            (0xd, DataSource::RemoteCache { modified: false }),
            (0xe, DataSource::LocalDram),
        ] {
            assert_eq!(source_of(missed, Some(code), Sources::Arm), expected, "{code:#x}");
        }
        assert_eq!(source_of(missed, Some(7), Sources::AmpereOne), DataSource::LocalDram);
        assert_eq!(
            source_of(missed, Some(5), Sources::AmpereOne),
            DataSource::RemoteCache { modified: false }
        );
        assert_eq!(source_of(missed | remote, None, Sources::Arm), DataSource::RemoteDram { hops: 0 });
        assert_eq!(source_of(missed, Some(0xd), Sources::Undefined), DataSource::LocalDram);
        assert_eq!(source_of(1 << 3 | 1 << 8, None, Sources::Arm), DataSource::LocalCache);
        assert_eq!(source_of(0, None, Sources::Arm), DataSource::LocalCache);
        assert_eq!(source_of(1 << 3, None, Sources::Arm), DataSource::Unknown);
    }

    #[test]
    fn cores_are_told_by_their_number() {
        assert_eq!(Sources::of(0x41, 0xd0c), Sources::Arm);
        assert_eq!(Sources::of(0x41, 0xd4f), Sources::Arm);
        assert_eq!(Sources::of(0xc0, 0xac3), Sources::AmpereOne);
        assert_eq!(Sources::of(0x48, 0xd01), Sources::Undefined);
    }

    #[test]
    fn branches_and_kernel_addresses() {
        // A branch has an address 1 (its target) and no data address.
        let branch = [0x4a, 0x01, 0xb1, 0, 0, 0, 0, 0, 0, 0, 0, 0x01];
        assert_eq!(all(&branch, Sources::Arm), (vec![], true));
        let kernel = [0x49, 0x00, 0xb2, 0, 0x10, 0, 0, 0, 0, 0xff, 0x00, 0x01];
        assert_eq!(all(&kernel, Sources::Arm).0[0].address, 0xffff_0000_0000_1000);
    }

    #[test]
    fn extended_headers_and_alignment() {
        // 0x20 0xb2 is the same as 0xb2; 0x21 0xb2 is address 10, which is none of ours.
        let address = [0, 0x20, 0, 0, 0, 0, 0, 0];
        let extended = [&[0x49, 0x00, 0x20, 0xb2], &address[..], &[0x01]].concat();
        assert_eq!(all(&extended, Sources::Arm).0[0].address, 0x2000);
        let other = [&[0x49, 0x00, 0x21, 0xb2], &address[..], &[0x01]].concat();
        assert_eq!(all(&other, Sources::Arm), (vec![], true));
        // 0x23 0x00 pads to the next multiple of 16 bytes of the area.
        assert_eq!(packet(&[0x23, 0x00, 0xee, 0xee], 12), Some((Packet::Padding, 4)));
        assert_eq!(packet(&[0x23, 0x00, 0xee], 12), None);
    }

    #[test]
    fn what_is_no_packet_ends_the_stretch() {
        let broken = [&LOAD[..], &[0xff], &LOAD[..]].concat();
        assert_eq!(all(&broken, Sources::Arm), (vec![remote_load()], false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..300), position in any::<u64>()) {
            let mut decoded = 0;
            decode(&bytes, position, Sources::Arm, |_| decoded += 1);
            // A record takes three packets: operation, address, end.
            prop_assert!(decoded * 12 <= bytes.len());
        }

        #[test]
        fn a_cut_off_record_is_never_a_sample(cut in 0_usize..57) {
            let (decoded, _) = all(&LOAD[..cut], Sources::Arm);
            prop_assert!(decoded.is_empty());
        }
    }
}
