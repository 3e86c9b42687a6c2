//! Arm's statistical profiling extension: what to open, and its packets.
//!
//! The hardware writes a record of packets for every sampled operation to the AUX area. Packet headers as in
//! the Arm architecture reference manual (DDI 0487, chapter D10) and `tools/perf/util/arm-spe-decoder` of
//! Linux 6.12.

use super::data_source::Decoded;
use super::format::PmuDirectory;
use super::sampled::{Periods, Sampled};
use crate::Error;
use nodewise_engine::{Access, DataSource};
use nodewise_sys::perf::{AttrFlags, SampleType};

/// The event to open for SPE, and the way to read its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spe {
    event: Sampled,
    pub(super) sources: Sources,
}

/// The meaning of a CPU's data source packets, which each maker defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Arm's own cores from Neoverse N1 on.
    Arm,
    /// Ampere's own cores, from `AmpereOne` on.
    AmpereOne,
    /// `HiSilicon`'s HIP12.
    HiSilicon,
    /// Not known here: the event bits must do.
    Undefined,
}

/// The meaning of a data source packet.
enum Code {
    Source(DataSource),
    /// Memory, of this node unless the event bits say another's.
    Memory,
    /// A cache or memory of another socket.
    Remote,
}

impl Sources {
    /// By implementer and part number of `MIDR_EL1`, as `/proc/cpuinfo` has them. The cores are those that
    /// `tools/perf/util/arm-spe.c` (Linux 6.18) lists; of a core that is not there, nothing is known.
    #[must_use]
    pub fn of(implementer: u32, part: u32) -> Self {
        const ARM: u32 = 0x41;
        const HISILICON: u32 = 0x48;
        const AMPERE: u32 = 0xc0;
        match (implementer, part) {
            // Cortex-A720, A720AE, A725, X1C, X3, X925; Neoverse N1, N2, V1, V2 (also NVIDIA's Grace).
            (ARM, 0xd81 | 0xd89 | 0xd87 | 0xd4c | 0xd4e | 0xd85 | 0xd0c | 0xd49 | 0xd40 | 0xd4f) => Self::Arm,
            (AMPERE, 0xac4) => Self::AmpereOne,
            (HISILICON, 0xd06) => Self::HiSilicon,
            _ => Self::Undefined,
        }
    }

    /// Numbers as in `tools/perf/util/arm-spe-decoder/arm-spe-decoder.h`.
    fn code(self, code: u64) -> Option<Code> {
        let cache = Some(Code::Source(DataSource::LocalCache));
        let remote_cache = |modified| Some(Code::Source(DataSource::RemoteCache { modified }));
        match self {
            Self::Arm => match code {
                // L1, L2, a core or cluster of this node, the system cache.
                0x0 | 0x8..=0xc => cache,
                0xd => Some(Code::Remote),
                0xe => Some(Code::Memory),
                _ => None,
            },
            Self::AmpereOne => match code {
                // The system cache, L1, L2. 0 is this chip's caches or a device.
                0x3 | 0x8 | 0x9 => cache,
                0x5 => Some(Code::Remote),
                0x7 => Some(Code::Memory),
                _ => None,
            },
            Self::HiSilicon => match code {
                // A core or cluster of this socket, L3, L2, L1; the odd ones modified, but for L1.
                0..=5 | 16..=18 => cache,
                6 => remote_cache(false),
                7 => remote_cache(true),
                8 => Some(Code::Source(DataSource::LocalDram)),
                9 => Some(Code::Source(DataSource::RemoteDram { hops: 0 })),
                13 => Some(Code::Source(DataSource::Uncached)),
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
        let event = Sampled { what: "operations", leader: None, attr: attr.monotonic(), periods: OPERATIONS };
        Ok(Self { event, sources })
    }

    pub(super) fn events(&self) -> Vec<Sampled> {
        vec![self.event]
    }
}

/// Operations that took longer are sampled: less than any DRAM takes, more than any cache of the core itself.
const MIN_LATENCY_CYCLES: u64 = 32;

/// Operations from one sample to the next, before the latency filter.
const OPERATIONS: Periods = Periods { accurate: 1 << 14, cheap: 1 << 16 };

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

/// Reads a packet and its length; `position` is where it lies in the AUX area, for alignment packets. `None`
/// when it is cut off, or no packet.
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

/// The parts of a record that were gathered so far.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    address: Option<u64>,
    latency_cycles: u16,
    is_memory: bool,
    is_store: bool,
    events: u64,
    source: Option<u64>,
}

/// Takes a stretch of AUX data apart, which begins at `position` of the AUX area and with a record, and hands
/// each memory access to `each`. Returns false when it met something that is no packet, after which there is
/// no telling where the next begins.
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

    /// Claims no more than `arm_spe__synth_data_source` in `tools/perf/util/arm-spe.c` does.
    fn source(self, sources: Sources) -> DataSource {
        const L1_ACCESS: u32 = 2;
        const L1_REFILL: u32 = 3;
        const LAST_LEVEL_ACCESS: u32 = 8;
        const LAST_LEVEL_MISS: u32 = 9;
        const REMOTE: u32 = 10;
        // No maker defines what the packets or events of a store say of the line's source.
        if self.is_store {
            return DataSource::Unknown;
        }
        let is = |event: u32| self.events >> event & 1 == 1;
        let remote = if is(LAST_LEVEL_MISS) {
            DataSource::RemoteDram { hops: 0 }
        } else {
            DataSource::RemoteCache { modified: false }
        };
        match self.source.and_then(|code| sources.code(code)) {
            Some(Code::Source(source)) => source,
            Some(Code::Memory) if is(REMOTE) => DataSource::RemoteDram { hops: 0 },
            Some(Code::Memory) => DataSource::LocalDram,
            Some(Code::Remote) => remote,
            None if is(REMOTE) => remote,
            // A core need not have the remote event, so that without it a miss may be from anywhere.
            None if is(LAST_LEVEL_MISS) => DataSource::Unknown,
            None if is(LAST_LEVEL_ACCESS) => DataSource::LocalCache,
            None if is(L1_ACCESS) && !is(L1_REFILL) => DataSource::LocalCache,
            None => DataSource::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A load on a Neoverse, as the hardware writes it: program counter, context, operation, latencies,
    /// virtual and physical address, source, events, timestamp.
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
        decoded_of(0x00, events, code, sources).source
    }

    /// The same with the operation's payload byte: bit 0 is a store.
    fn decoded_of(operation: u8, events: u16, code: Option<u8>, sources: Sources) -> Decoded {
        let mut bytes = vec![0x49, operation, 0x52];
        bytes.extend(events.to_le_bytes());
        bytes.extend([0xb2, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        bytes.extend(code.map(|code| [0x43, code]).iter().flatten());
        bytes.push(0x01);
        let (decoded, whole) = all(&bytes, sources);
        assert!(whole);
        assert_eq!(decoded[0].address, 0x1000);
        decoded[0]
    }

    #[test]
    fn a_remote_load_byte_by_byte() {
        assert_eq!(all(&LOAD, Sources::Arm), (vec![remote_load()], true));
        assert_eq!(all(&LOAD, Sources::Undefined), (vec![remote_load()], true));
        let twice = [LOAD, LOAD].concat();
        assert_eq!(all(&twice, Sources::Arm).0, [remote_load(); 2]);
    }

    const MISSED: u16 = 1 << 3 | 1 << 8 | 1 << 9;
    const REMOTE: u16 = 1 << 10;

    #[test]
    fn sources_by_maker() {
        let remote_cache = |modified| DataSource::RemoteCache { modified };
        let remote_dram = DataSource::RemoteDram { hops: 0 };
        let cases: [(Sources, &[u8], DataSource); 12] = [
            (Sources::Arm, &[0x0, 0x8, 0x9, 0xa, 0xb, 0xc], DataSource::LocalCache),
            (Sources::Arm, &[0xd], remote_dram),
            (Sources::Arm, &[0xe], DataSource::LocalDram),
            (Sources::AmpereOne, &[3, 8, 9], DataSource::LocalCache),
            (Sources::AmpereOne, &[5], remote_dram),
            (Sources::AmpereOne, &[7], DataSource::LocalDram),
            (Sources::HiSilicon, &[0, 1, 2, 3, 4, 5, 16, 17, 18], DataSource::LocalCache),
            (Sources::HiSilicon, &[6], remote_cache(false)),
            (Sources::HiSilicon, &[7], remote_cache(true)),
            (Sources::HiSilicon, &[8], DataSource::LocalDram),
            (Sources::HiSilicon, &[9], remote_dram),
            (Sources::HiSilicon, &[13], DataSource::Uncached),
        ];
        for (sources, codes, expected) in cases {
            for &code in codes {
                assert_eq!(source_of(MISSED, Some(code), sources), expected, "{sources:?} {code:#x}");
            }
        }
        // Arm's 'remote' is no memory unless the last level was missed; its 'memory' is another node's if the
        // event says so.
        assert_eq!(source_of(1 << 3, Some(0xd), Sources::Arm), remote_cache(false));
        assert_eq!(source_of(MISSED | REMOTE, Some(0xe), Sources::Arm), remote_dram);
    }

    #[test]
    fn a_miss_of_an_unknown_core_is_from_nobody_knows_where() {
        assert_eq!(source_of(MISSED, None, Sources::Arm), DataSource::Unknown);
        assert_eq!(source_of(MISSED, Some(0xd), Sources::Undefined), DataSource::Unknown);
        assert_eq!(source_of(MISSED, Some(0x1), Sources::Arm), DataSource::Unknown);
        assert_eq!(source_of(MISSED | REMOTE, None, Sources::Arm), DataSource::RemoteDram { hops: 0 });
        let remote_cache = DataSource::RemoteCache { modified: false };
        assert_eq!(source_of(1 << 8 | REMOTE, None, Sources::Arm), remote_cache);
        assert_eq!(source_of(1 << 3 | 1 << 8, None, Sources::Arm), DataSource::LocalCache);
        assert_eq!(source_of(1 << 2, None, Sources::Arm), DataSource::LocalCache);
        assert_eq!(source_of(1 << 2 | 1 << 3, None, Sources::Arm), DataSource::Unknown);
        assert_eq!(source_of(0, None, Sources::Arm), DataSource::Unknown);
    }

    #[test]
    fn a_store_has_no_source() {
        for (sources, code) in [(Sources::Arm, 0xe), (Sources::AmpereOne, 7), (Sources::HiSilicon, 8)] {
            let store = decoded_of(0x01, MISSED, Some(code), sources);
            assert_eq!((store.access, store.source), (Access::Write, DataSource::Unknown));
        }
    }

    #[test]
    fn cores_are_told_by_their_number() {
        for part in [0xd81, 0xd89, 0xd87, 0xd4c, 0xd4e, 0xd85, 0xd0c, 0xd49, 0xd40, 0xd4f] {
            assert_eq!(Sources::of(0x41, part), Sources::Arm, "{part:#x}");
        }
        assert_eq!(Sources::of(0xc0, 0xac4), Sources::AmpereOne);
        assert_eq!(Sources::of(0xc0, 0xac3), Sources::Undefined);
        assert_eq!(Sources::of(0x48, 0xd06), Sources::HiSilicon);
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
