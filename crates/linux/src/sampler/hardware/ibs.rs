//! AMD's instruction-based sampling of micro-ops: the registers that the kernel puts into `PERF_SAMPLE_RAW`.
//!
//! Bits as in AMD's PPR for family 19h and `arch/x86/include/asm/amd/ibs.h` (Linux 6.12). The raw data is
//! read rather than the kernel's `data_src`, which kernels before 6.0 do not fill in and which says less.

use super::data_source::{self, Decoded};
use super::format::PmuDirectory;
use super::sampled::{Periods, Sampled};
use crate::Error;
use nodewise_engine::{Access, DataSource};
use nodewise_sys::perf::{AttrFlags, Sample, SampleType};

/// Micro-ops from one sample to the next where the hardware drops those that did not miss L3. Most samples
/// cost nothing there. The hardware counts in steps of 16.
const MISSES: Periods = Periods { accurate: 1 << 16, cheap: 1 << 18 };

/// The same where each sample is an interrupt. Carrefour's 65 528 and 262 112 count cycles, and a CPU does
/// two to four micro-ops a cycle. A sample every 65 536 micro-ops would be some 100 000 interrupts a second
/// on each CPU (an estimate). Not every CPU can count further than 0xffff0.
const ALL: Periods = Periods { accurate: 1 << 18, cheap: 0xf_fff0 };

/// The event to open for IBS, and the way to read its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ibs {
    event: Sampled,
    pub(super) registers: Registers,
}

/// How to read the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Erratum 1293, family 19h models 0 to 0Fh: neither 'no L2 miss' nor the source can be believed of
    /// software prefetches and of misses that took no miss buffer.
    pub erratum_1293: bool,
    /// Family 19h models 0 to 0Fh and 20h to 5Fh do not tell in what state a cache of another had the line.
    pub lacks_cache_state: bool,
}

impl Registers {
    pub(super) const fn of(family: u32, model: u32) -> Self {
        Self {
            erratum_1293: family == 0x19 && model <= 0xf,
            lacks_cache_state: family == 0x19 && matches!(model, 0..=0xf | 0x20..=0x5f),
        }
    }
}

impl Ibs {
    pub(super) fn detect(pmu: &PmuDirectory, family: u32, model: u32) -> Result<Self, Error> {
        let mut attr = pmu.attr();
        // Count micro-ops rather than cycles, so that stalls do not draw samples to one op. The first CPUs
        // with IBS count cycles only.
        let counts_ops = pmu.has_field("cnt_ctl");
        if counts_ops {
            pmu.set(&mut attr, "cnt_ctl", 1)?;
        }
        let misses_only = pmu.has_field("l3missonly");
        if misses_only {
            pmu.set(&mut attr, "l3missonly", 1)?;
        }
        // The hardware cannot tell user from kernel. A kernel that can filter afterwards has swfilt; others
        // refuse to be asked, and take CAP_PERFMON or perf_event_paranoid at most 1 instead.
        attr.flags = attr.flags.without(AttrFlags::EXCLUDE_HV);
        if pmu.has_field("swfilt") {
            pmu.set(&mut attr, "swfilt", 1)?;
        } else {
            attr.flags = attr.flags.without(AttrFlags::EXCLUDE_KERNEL);
        }
        attr.sample_type = SampleType::TID
            | SampleType::TIME
            | SampleType::ADDR
            | SampleType::CPU
            | SampleType::PERIOD
            | SampleType::RAW
            | SampleType::DATA_SRC;
        let event = Sampled {
            what: if counts_ops { "micro-ops" } else { "cycles" },
            leader: None,
            attr: attr.monotonic(),
            periods: if misses_only { MISSES } else { ALL },
        };
        Ok(Self { event, registers: Registers::of(family, model) })
    }

    pub(super) fn events(&self) -> Vec<Sampled> {
        vec![self.event]
    }

    pub(super) fn decode(&self, sample: &Sample<'_>) -> Option<Decoded> {
        match sample.raw.and_then(|raw| self.registers.decode(raw)) {
            Some(Op::Access(decoded)) => Some(decoded),
            Some(Op::NoAccess) => None,
            None => {
                let data_src = sample.data_source?;
                let (access, source) = (data_source::access(data_src), data_source::source(data_src));
                Some(Decoded { address: sample.address?, access, source, latency_cycles: 0 })
            }
        }
    }
}

/// The kind of a sampled micro-op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A load or store with a known address.
    Access(Decoded),
    /// Something else: most micro-ops are.
    NoAccess,
}

/// `IBS_CAPS_ZEN4`: the source has five bits and other meanings.
pub(super) const CAPS_ZEN4: u32 = 1 << 11;

// Registers after the 32-bit capabilities, 64 bits each: IbsOpCtl, IbsOpRip, IbsOpData, then these.
const OP_DATA_2: usize = 3;
const OP_DATA_3: usize = 4;
const DC_LINEAR_ADDRESS: usize = 5;

impl Registers {
    /// Takes a sample's raw bytes apart; `None` when they are too short to be IBS op registers.
    #[must_use]
    pub fn decode(self, raw: &[u8]) -> Option<Op> {
        let (caps, registers) = raw.split_first_chunk::<4>()?;
        let caps = u32::from_le_bytes(*caps);
        let register = |i: usize| Some(u64::from_le_bytes(registers.get(i * 8..i * 8 + 8)?.try_into().ok()?));
        let (data_2, data_3, address) =
            (register(OP_DATA_2)?, register(OP_DATA_3)?, register(DC_LINEAR_ADDRESS)?);
        let is = |bit: u32| data_3 >> bit & 1 == 1;
        let (load, store, address_valid) = (is(0), is(1), is(17));
        if !address_valid || !(load || store) {
            return Some(Op::NoAccess);
        }
        // The source register and the latency are valid for loads only.
        let (missed_l1, reads_only) = (is(7), load && !store);
        Some(Op::Access(Decoded {
            address,
            access: if store { Access::Write } else { Access::Read },
            source: self.source(data_3, (load).then_some(data_2), caps),
            latency_cycles: if missed_l1 && reads_only { (data_3 >> 32 & 0xffff) as u32 } else { 0 },
        }))
    }

    /// As `perf_ibs_get_mem_lvl` in `arch/x86/events/amd/ibs.c`, which has the order of the checks from the
    /// manual.
    fn source(self, data_3: u64, data_2: Option<u64>, caps: u32) -> DataSource {
        let is = |bit: u32| data_3 >> bit & 1 == 1;
        let (uncached, missed_l1, missed_l2) = (is(14), is(7), is(20));
        let (no_miss_buffer, prefetch) = (is(16), is(21));
        if uncached {
            return DataSource::Uncached;
        }
        let doubtful = self.erratum_1293 && (prefetch || no_miss_buffer);
        if !missed_l1 || !(missed_l2 || doubtful) {
            return DataSource::LocalCache;
        }
        // As `perf_ibs_get_op_data2` does: of these the kernel takes the source register for zero.
        let Some(data_2) = data_2.filter(|_| !doubtful) else { return DataSource::Unknown };
        let remote_node = data_2 >> 4 & 1 == 1;
        // Bit 5: 0 modified, 1 owned (shared and dirty).
        let modified = !self.lacks_cache_state && data_2 >> 5 & 1 == 0;
        let dram = if remote_node { DataSource::RemoteDram { hops: 0 } } else { DataSource::LocalDram };
        let low = data_2 & 7;
        if caps & CAPS_ZEN4 != 0 {
            match (data_2 >> 6 & 3) << 3 | low {
                // L3 of this CCX, a cache of a near CCX.
                1 | 2 => DataSource::LocalCache,
                3 => dram,
                5 => DataSource::RemoteCache { modified },
                // Persistent, extended (CXL), another agent's memory.
                6 | 8 | 12 => DataSource::SlowMemory,
                7 => DataSource::Uncached,
                _ => DataSource::Unknown,
            }
        } else {
            match low {
                2 => DataSource::LocalCache,
                3 => dram,
                4 => DataSource::RemoteCache { modified },
                7 => DataSource::Uncached,
                _ => DataSource::Unknown,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOAD: u64 = 1;
    const STORE: u64 = 1 << 1;
    const L1_MISS: u64 = 1 << 7;
    const ADDRESS_VALID: u64 = 1 << 17;
    const L2_MISS: u64 = 1 << 20;

    /// `struct perf_ibs_data` after its size: capabilities, then the registers `IbsOpCtl`, `IbsOpRip`,
    /// `IbsOpData`, `IbsOpData2`, `IbsOpData3`, `IbsDcLinAd`, `IbsDcPhysAd`.
    fn raw(caps: u32, data_2: u64, data_3: u64, address: u64) -> Vec<u8> {
        let registers = [0x0006_0000_0000_1000, 0x40_1000, 0, data_2, data_3, address, 0x1_0000_1000];
        let mut bytes = caps.to_le_bytes().to_vec();
        bytes.extend(registers.iter().flat_map(|register: &u64| register.to_le_bytes()));
        bytes
    }

    fn loaded_from(caps: u32, data_2: u64) -> DataSource {
        let data_3 = LOAD | L1_MISS | L2_MISS | ADDRESS_VALID;
        match Registers::default().decode(&raw(caps, data_2, data_3, 0x7000)) {
            Some(Op::Access(decoded)) => decoded.source,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sources_before_zen_4() {
        let caps = 0x3ff;
        assert_eq!(loaded_from(caps, 2), DataSource::LocalCache);
        assert_eq!(loaded_from(caps, 3), DataSource::LocalDram);
        assert_eq!(loaded_from(caps, 3 | 1 << 4), DataSource::RemoteDram { hops: 0 });
        assert_eq!(loaded_from(caps, 4 | 1 << 4), DataSource::RemoteCache { modified: true });
        assert_eq!(loaded_from(caps, 4 | 1 << 4 | 1 << 5), DataSource::RemoteCache { modified: false });
        assert_eq!(loaded_from(caps, 7), DataSource::Uncached);
        // The two upper bits are reserved there.
        assert_eq!(loaded_from(caps, 3 | 3 << 6), DataSource::LocalDram);
        assert_eq!(loaded_from(caps, 0), DataSource::Unknown);
    }

    #[test]
    fn sources_since_zen_4() {
        let caps = 0x3ff | CAPS_ZEN4;
        assert_eq!(loaded_from(caps, 1), DataSource::LocalCache);
        assert_eq!(loaded_from(caps, 2), DataSource::LocalCache);
        assert_eq!(loaded_from(caps, 3), DataSource::LocalDram);
        assert_eq!(loaded_from(caps, 3 | 1 << 4), DataSource::RemoteDram { hops: 0 });
        assert_eq!(loaded_from(caps, 5 | 1 << 5), DataSource::RemoteCache { modified: false });
        assert_eq!(loaded_from(caps, 6), DataSource::SlowMemory);
        assert_eq!(loaded_from(caps, 1 << 6), DataSource::SlowMemory); // 8: CXL
        assert_eq!(loaded_from(caps, 4 | 1 << 6), DataSource::SlowMemory); // 12: a peer agent's
        assert_eq!(loaded_from(caps, 3 | 1 << 6), DataSource::Unknown); // 11: reserved
    }

    #[test]
    fn a_remote_load_byte_by_byte() {
        #[rustfmt::skip]
        let raw = [
            0xff, 0x0b, 0x00, 0x00,                         // capabilities, bit 11 (Zen 4) set
            0x00, 0x10, 0x0e, 0x00, 0x00, 0x00, 0x00, 0x00, // IbsOpCtl
            0x34, 0x12, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, // IbsOpRip
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // IbsOpData
            0x13, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // IbsOpData2: source 3, remote node
            0x81, 0x00, 0x16, 0x00, 0x2c, 0x01, 0x00, 0x00, // IbsOpData3: load, L1 and L2 miss, both addresses, 300 cycles
            0x78, 0x56, 0x34, 0x12, 0xab, 0x7f, 0x00, 0x00, // IbsDcLinAd
            0x78, 0x56, 0x34, 0x02, 0x00, 0x00, 0x00, 0x00, // IbsDcPhysAd
        ];
        assert_eq!(
            Registers::default().decode(&raw),
            Some(Op::Access(Decoded {
                address: 0x7fab_1234_5678,
                access: Access::Read,
                source: DataSource::RemoteDram { hops: 0 },
                latency_cycles: 300,
            }))
        );
        for length in 0..4 + 6 * 8 {
            assert_eq!(Registers::default().decode(&raw[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_store_that_misses_is_from_nobody_knows_where() {
        // OpData2 says DRAM, but is valid for loads only.
        let raw = raw(0x3ff, 3, STORE | L1_MISS | L2_MISS | ADDRESS_VALID | 300 << 32, 0x7000);
        let expected = Decoded {
            address: 0x7000,
            access: Access::Write,
            source: DataSource::Unknown,
            latency_cycles: 0,
        };
        assert_eq!(Registers::default().decode(&raw), Some(Op::Access(expected)));
    }

    #[test]
    fn ops_without_an_address_are_no_accesses() {
        for data_3 in [0, LOAD, STORE, ADDRESS_VALID] {
            assert_eq!(Registers::default().decode(&raw(0, 3, data_3, 0x7000)), Some(Op::NoAccess));
        }
    }

    #[test]
    fn the_erratum_hides_where_prefetches_and_merged_misses_came_from() {
        let milan = Registers::of(0x19, 0x1);
        let genoa = Registers::of(0x19, 0x11);
        let source = |registers: Registers, doubtful: u64| {
            let data_3 = LOAD | L1_MISS | L2_MISS | ADDRESS_VALID | doubtful;
            match registers.decode(&raw(0x3ff, 3, data_3, 0x7000)) {
                Some(Op::Access(decoded)) => decoded.source,
                other => panic!("{other:?}"),
            }
        };
        for doubtful in [1 << 16, 1 << 21] {
            assert_eq!(source(milan, doubtful), DataSource::Unknown);
            assert_eq!(source(genoa, doubtful), DataSource::LocalDram);
        }
        assert_eq!(source(milan, 0), DataSource::LocalDram);
        // Nor is 'no L2 miss' believed.
        let prefetch = LOAD | L1_MISS | ADDRESS_VALID | 1 << 21;
        let Some(Op::Access(decoded)) = milan.decode(&raw(0x3ff, 3, prefetch, 0x7000)) else { panic!() };
        assert_eq!(decoded.source, DataSource::Unknown);
    }

    #[test]
    fn some_models_do_not_tell_the_state_of_a_line() {
        let modified = |model: u32| {
            let data_3 = LOAD | L1_MISS | L2_MISS | ADDRESS_VALID;
            match Registers::of(0x19, model).decode(&raw(0x3ff, 4 | 1 << 4, data_3, 0x7000)) {
                Some(Op::Access(Decoded { source: DataSource::RemoteCache { modified }, .. })) => modified,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([0x1, 0x11, 0x21, 0x61].map(modified), [false, true, false, true]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(raw in proptest::collection::vec(any::<u8>(), 0..80), model in 0_u32..0x20) {
            let decoded = Registers::of(0x19, model).decode(&raw);
            prop_assert_eq!(decoded.is_none(), raw.len() < 4 + 6 * 8);
        }
    }
}
