//! `union perf_mem_data_src`: where the kernel says a load's data came from.
//!
//! Bits as in `include/uapi/linux/perf_event.h` of Linux 6.12: operation 0-4, level (old style, a mask) 5-18,
//! snoop 19-23, lock 24-25, TLB 26-32, level number 33-36, remote 37, snoop extension 38-39, blocked 40-42,
//! hops 43-45. And, of Linux 7.0, region 46-50, which were zero before.

use nodewise_engine::{Access, DataSource};

/// One access, as the PMU's registers or packets tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Which byte.
    pub address: u64,
    /// Read or write.
    pub access: Access,
    /// The server of the access.
    pub source: DataSource,
    /// From issue to completion, in core cycles; 0 when not known.
    pub latency_cycles: u32,
}

mod op {
    pub const LOAD: u64 = 0x02;
    pub const STORE: u64 = 0x04;
}

/// The old level mask: several bits may be set.
mod level {
    pub const HIT: u64 = 0x02;
    pub const MISS: u64 = 0x04;
    pub const CACHES: u64 = 0x08 | 0x10 | 0x20 | 0x40; // L1, line fill buffer, L2, L3
    pub const LOCAL_RAM: u64 = 0x80;
    pub const REMOTE_RAM_1: u64 = 0x100;
    pub const REMOTE_RAM_2: u64 = 0x200;
    pub const REMOTE_CACHES: u64 = 0x400 | 0x800; // one hop, two hops
    pub const IO_OR_UNCACHED: u64 = 0x1000 | 0x2000;
}

/// The level number, since Linux 4.14.
mod number {
    pub const L1: u64 = 0x1;
    pub const L2_MISS_BUFFER: u64 = 0x5;
    pub const MEMORY_SIDE_CACHE: u64 = 0x6;
    pub const UNCACHED: u64 = 0x8;
    pub const CXL: u64 = 0x9;
    pub const IO: u64 = 0xa;
    pub const ANY_CACHE: u64 = 0xb;
    pub const LINE_FILL_BUFFER: u64 = 0xc;
    pub const RAM: u64 = 0xd;
    pub const PERSISTENT: u64 = 0xe;
}

const SNOOP_HITM: u64 = 0x10;
const SNOOP_FORWARDED: u64 = 0x1;

/// The region of device memory.
const REGION_MMIO: u64 = 7;
/// The first of the regions that the firmware defines: memory of a node, or of a device such as CXL.
const REGION_MEM_0: u64 = 8;

/// Another core of the same node.
const HOPS_SAME_NODE: u64 = 1;

fn bits(word: u64, first: u32, count: u32) -> u64 {
    word >> first & ((1 << count) - 1)
}

/// Read or write.
#[must_use]
pub fn access(data_src: u64) -> Access {
    match bits(data_src, 0, 5) {
        op if op & op::STORE != 0 => Access::Write,
        op if op & op::LOAD != 0 => Access::Read,
        _ => Access::Unknown,
    }
}

/// The server of the access.
#[must_use]
pub fn source(data_src: u64) -> DataSource {
    let mask = bits(data_src, 5, 14);
    let modified = bits(data_src, 19, 5) & SNOOP_HITM != 0;
    let remote = bits(data_src, 37, 1) == 1;
    let hops = bits(data_src, 43, 3);
    // The kernel counts 1 for another core of this node, 2 another node of this package, 3 another package.
    let node_hops = hops.saturating_sub(HOPS_SAME_NODE) as u8;
    // 'Missed here' without who had it in the end.
    let missed = mask & level::MISS != 0 && mask & level::HIT == 0;
    let cache = match (missed, remote && hops != HOPS_SAME_NODE) {
        (true, _) => DataSource::Unknown,
        (false, true) => DataSource::RemoteCache { modified },
        (false, false) => DataSource::LocalCache,
    };
    // Snooped out of a cache, whatever level it missed on the way.
    let snooped = modified || bits(data_src, 38, 2) & SNOOP_FORWARDED != 0;
    let region = bits(data_src, 46, 5);
    if region == REGION_MMIO {
        return DataSource::Uncached;
    }
    // Before the level number: Sandy Bridge to Broadwell say 'L3' of another node's DRAM as well.
    if !missed && mask & level::IO_OR_UNCACHED == 0 && hops_of_mask(mask) != 0 {
        return DataSource::RemoteDram { hops: node_hops.max(hops_of_mask(mask)) };
    }
    match bits(data_src, 33, 4) {
        number::RAM if region >= REGION_MEM_0 => DataSource::Unknown,
        number::RAM if remote && snooped => DataSource::RemoteCache { modified },
        number::L1..=number::L2_MISS_BUFFER | number::ANY_CACHE | number::LINE_FILL_BUFFER => cache,
        number::RAM | number::MEMORY_SIDE_CACHE if remote => DataSource::RemoteDram { hops: node_hops },
        number::RAM | number::MEMORY_SIDE_CACHE => DataSource::LocalDram,
        number::CXL | number::PERSISTENT => DataSource::SlowMemory,
        number::IO | number::UNCACHED => DataSource::Uncached,
        // Not available: an old kernel, or a CPU that the new style is not used for.
        _ => source_of_mask(mask, missed, modified),
    }
}

fn hops_of_mask(mask: u64) -> u8 {
    match mask {
        _ if mask & level::REMOTE_RAM_2 != 0 => 2,
        _ if mask & level::REMOTE_RAM_1 != 0 => 1,
        _ => 0,
    }
}

fn source_of_mask(mask: u64, missed: bool, modified: bool) -> DataSource {
    match mask {
        _ if mask & level::IO_OR_UNCACHED != 0 => DataSource::Uncached,
        _ if missed => DataSource::Unknown,
        _ if mask & level::LOCAL_RAM != 0 => DataSource::LocalDram,
        // Before the remote caches: AMD's 'this CCX or a near one' sets both.
        _ if mask & level::CACHES != 0 => DataSource::LocalCache,
        _ if mask & level::REMOTE_CACHES != 0 => DataSource::RemoteCache { modified },
        _ => DataSource::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // The kernel's names and shifts, written out: PERF_MEM_S(a, s) is PERF_MEM_a_s << PERF_MEM_a_SHIFT.
    const OP_LOAD: u64 = 0x02;
    const OP_STORE: u64 = 0x04;
    const LVL_HIT: u64 = 0x02 << 5;
    const LVL_MISS: u64 = 0x04 << 5;
    const SNOOP_NA: u64 = 0x01 << 19;
    const SNOOP_NONE: u64 = 0x02 << 19;
    const SNOOP_HIT: u64 = 0x04 << 19;
    const SNOOP_MISS: u64 = 0x08 << 19;
    const SNOOP_HITM: u64 = 0x10 << 19;
    const REMOTE: u64 = 1 << 37;
    const SNOOPX_FWD: u64 = 1 << 38;

    const fn lvl(mask: u64) -> u64 {
        mask << 5
    }

    const fn num(level: u64) -> u64 {
        level << 33
    }

    const fn hops(count: u64) -> u64 {
        count << 43
    }

    const fn region(number: u64) -> u64 {
        number << 46
    }

    #[test]
    fn as_intel_writes_it() {
        // pebs_data_source in arch/x86/events/intel/ds.c, by the hardware's source number, as
        // intel_pmu_pebs_data_source_skl and _nhm leave it.
        let hit = OP_LOAD | LVL_HIT;
        for (data_src, expected) in [
            // 0x00 'unknown L3 miss'
            (OP_LOAD | LVL_MISS | lvl(0x40) | num(3) | SNOOP_NA, DataSource::Unknown),
            (hit | lvl(0x08) | num(1) | SNOOP_NONE, DataSource::LocalCache),
            (hit | lvl(0x10) | num(0xc) | SNOOP_NONE, DataSource::LocalCache),
            (hit | lvl(0x20) | num(2) | SNOOP_NONE, DataSource::LocalCache),
            (hit | lvl(0x40) | num(3) | SNOOP_NONE, DataSource::LocalCache),
            // 0x06: another core of this node had it modified
            (hit | lvl(0x40) | num(3) | SNOOP_HITM, DataSource::LocalCache),
            // 0x08: persistent memory, or L4
            (hit | num(0xe) | SNOOP_HIT, DataSource::SlowMemory),
            // 0x0a, 0x0b: DRAM of this node, of another
            (hit | lvl(0x80) | num(0xd) | SNOOP_HIT, DataSource::LocalDram),
            (hit | lvl(0x100) | num(0xd) | REMOTE | SNOOP_HIT, DataSource::RemoteDram { hops: 1 }),
            (hit | num(0xd) | REMOTE | SNOOP_MISS, DataSource::RemoteDram { hops: 0 }),
            // 0x0c, 0x0d on Skylake: a remote cache, clean (forwarded) and modified
            (hit | num(0xb) | REMOTE | SNOOPX_FWD, DataSource::RemoteCache { modified: false }),
            (hit | num(0xb) | REMOTE | SNOOP_HITM, DataSource::RemoteCache { modified: true }),
            (hit | lvl(0x400) | num(3) | REMOTE | SNOOP_HITM, DataSource::RemoteCache { modified: true }),
            (hit | lvl(0x1000) | num(0xf) | SNOOP_NONE, DataSource::Uncached),
            (hit | lvl(0x2000) | num(0xf) | SNOOP_NONE, DataSource::Uncached),
        ] {
            assert_eq!(source(data_src), expected, "{data_src:#x}");
            assert_eq!(access(data_src), Access::Read);
        }
        for (data_src, expected) in [
            // 0x0b of Sandy Bridge to Broadwell: REM_RAM1 | REM | LEVEL(L3), shared
            (hit | lvl(0x100) | num(3) | REMOTE | SNOOP_HIT, DataSource::RemoteDram { hops: 1 }),
            // 0x0c, 0x0d of Sierra Forest: LEVEL(RAM) | REM, forwarded and modified, out of a cache
            (hit | num(0xd) | REMOTE | SNOOPX_FWD, DataSource::RemoteCache { modified: false }),
            (hit | num(0xd) | REMOTE | SNOOP_HITM, DataSource::RemoteCache { modified: true }),
            // Diamond Rapids: LEVEL(RAM) of a device, and of memory regions
            (hit | num(0xd) | region(7), DataSource::Uncached),
            (hit | lvl(0x80) | num(0xd) | region(6), DataSource::LocalDram),
            (hit | lvl(0x80) | num(0xd) | region(8), DataSource::Unknown),
            (hit | num(0xd) | REMOTE | region(15), DataSource::Unknown),
        ] {
            assert_eq!(source(data_src), expected, "{data_src:#x}");
        }
        // A store that missed L1: nobody knows where the line came from.
        let store = OP_STORE | lvl(0x08) | SNOOP_NA;
        assert_eq!((source(store | LVL_MISS), access(store)), (DataSource::Unknown, Access::Write));
        assert_eq!(source(store | LVL_HIT), DataSource::LocalCache);
    }

    #[test]
    fn as_kernels_before_the_level_number_write_it() {
        let hit = OP_LOAD | LVL_HIT;
        for (data_src, expected) in [
            (hit | lvl(0x80) | SNOOP_HIT, DataSource::LocalDram),
            (hit | lvl(0x100) | SNOOP_HIT, DataSource::RemoteDram { hops: 1 }),
            (hit | lvl(0x200) | SNOOP_MISS, DataSource::RemoteDram { hops: 2 }),
            (hit | lvl(0x400) | SNOOP_HITM, DataSource::RemoteCache { modified: true }),
            (hit | lvl(0x800) | SNOOP_HIT, DataSource::RemoteCache { modified: false }),
        ] {
            assert_eq!(source(data_src), expected, "{data_src:#x}");
        }
    }

    #[test]
    fn as_amd_and_arm_write_it() {
        // g_data_src and g_zen4_data_src in arch/x86/events/amd/ibs.c: near caches carry REMOTE with HOPS_0.
        let hit = OP_LOAD | LVL_HIT;
        for (data_src, expected) in [
            (hit | lvl(0x40) | lvl(0x400) | num(0xb) | hops(1), DataSource::LocalCache),
            (hit | lvl(0x400) | num(0xb) | REMOTE | hops(1), DataSource::LocalCache),
            (hit | lvl(0x800) | num(0xb) | REMOTE | hops(2), DataSource::RemoteCache { modified: false }),
            (hit | lvl(0x100) | num(0xd) | REMOTE | hops(2), DataSource::RemoteDram { hops: 1 }),
            (hit | num(0xd) | REMOTE | hops(3), DataSource::RemoteDram { hops: 2 }),
            (hit | num(9), DataSource::SlowMemory),
            (hit | lvl(0x1000) | num(0xa), DataSource::Uncached),
        ] {
            assert_eq!(source(data_src), expected, "{data_src:#x}");
        }
    }

    #[test]
    fn nothing_available_is_unknown() {
        // PERF_MEM_NA: every part says 'not available'.
        let na = 0x01 | lvl(1) | SNOOP_NA | (0x01 << 24) | (0x01 << 26) | num(0xf);
        assert_eq!((access(na), source(na)), (Access::Unknown, DataSource::Unknown));
        assert_eq!((access(0), source(0)), (Access::Unknown, DataSource::Unknown));
    }

    proptest! {
        #[test]
        fn whatever_is_not_marked_remote_is_never_called_remote(data_src in any::<u64>()) {
            let remote_levels = lvl(0xf00);
            let local = data_src & !REMOTE & !remote_levels;
            let remote = matches!(source(local), DataSource::RemoteDram { .. } | DataSource::RemoteCache { .. });
            prop_assert!(!remote);
        }
    }
}
