//! Records of real machines that others printed, byte by byte: evidence that does not come from this project.

use super::data_source::Decoded;
use super::ibs::{CAPS_ZEN4, Op, Registers};
use super::spe::{self, Sources};
use nodewise_engine::{Access, DataSource};

fn decoded(bytes: &[u8], sources: Sources) -> Vec<Decoded> {
    let mut all = Vec::new();
    assert!(spe::decode(bytes, 0, sources, |access| all.push(access)), "a packet that is none");
    all
}

fn load(address: u64, source: DataSource, latency_cycles: u32) -> Decoded {
    Decoded { address, access: Access::Read, source, latency_cycles }
}

/// Two records of a host kernel: `src/quipper/arm_spe_decoder_test.cc` of `google/perf_data_converter`, with
/// what it expects.
#[test]
fn spe_records_with_context_and_padding() {
    #[rustfmt::skip]
    let bytes = [
        0xb0, 0xd0, 0xc2, 0xa1, 0xed, 0x66, 0xba, 0xff, 0xc0, // PC 0xffba66eda1c2d0 el2 ns=1
        0x00, 0x00, 0x00, 0x00, 0x00,                         // PAD
        0x65, 0x80, 0x5f, 0x00, 0x00,                         // CONTEXT 0x5f80 el2
        0x49, 0x00,                                           // LD GP-REG
        0x52, 0x16, 0x00,                                     // EV RETIRED L1D-ACCESS TLB-ACCESS
        0x99, 0x04, 0x00,                                     // LAT 4 ISSUE
        0x98, 0x0c, 0x00,                                     // LAT 12 TOT
        0xb2, 0x28, 0x6b, 0x09, 0x03, 0x37, 0x0e, 0xff, 0x00, // VA 0xff0e3703096b28
        0x9a, 0x01, 0x00,                                     // LAT 1 XLAT
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // PAD
        0x43, 0x00,                                           // DATA-SOURCE 0
        0x00, 0x00,                                           // PAD
        0x71, 0x2e, 0x65, 0x2f, 0x6a, 0x0a, 0x00, 0x00, 0x00, // TS 44731163950
        0xb0, 0xe0, 0xb0, 0xef, 0xed, 0x66, 0xba, 0xff, 0xc0, // PC 0xffba66edefb0e0 el2 ns=1
        0x00, 0x00, 0x00, 0x00, 0x00,                         // PAD
        0x65, 0x0e, 0x00, 0x00, 0x00,                         // CONTEXT 0xe el2
        0x4a, 0x01,                                           // B COND
        0x52, 0x42, 0x00,                                     // EV RETIRED NOT-TAKEN
        0x99, 0x10, 0x00,                                     // LAT 16 ISSUE
        0x98, 0x11, 0x00,                                     // LAT 17 TOT
        0xb1, 0xe4, 0xb0, 0xef, 0xed, 0x66, 0xba, 0xff, 0xc0, // TGT 0xffba66edefb0e4 el2 ns=1
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,       // PAD
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,       // PAD
        0x71, 0x8d, 0x65, 0x2f, 0x6a, 0x0a, 0x00, 0x00, 0x00, // TS 44731164045
    ];
    let expected = [load(0xffff_0e37_0309_6b28, DataSource::LocalCache, 12)];
    assert_eq!(decoded(&bytes, Sources::Arm), expected);
    // The source packet says nothing of an unknown core, but the events say that L1 had it.
    assert_eq!(decoded(&bytes, Sources::Undefined), expected);
}

/// A record of 46 bytes: message of Linux commit ffd3d18c20b8 (K. Phillips, 2018).
#[test]
fn a_spe_record_with_a_physical_address() {
    #[rustfmt::skip]
    let bytes = [
        0x49, 0x00,                                           // LD
        0xb2, 0xc0, 0x3b, 0x29, 0x0f, 0x00, 0x00, 0xff, 0xff, // VA 0xffff00000f293bc0
        0xb3, 0xc0, 0xeb, 0x24, 0xfb, 0x00, 0x00, 0x00, 0x80, // PA 0xfb24ebc0 ns=1
        0x9a, 0x00, 0x00,                                     // LAT 0 XLAT
        0x42, 0x16,                                           // EV RETIRED L1D-ACCESS TLB-ACCESS
        0xb0, 0x00, 0xc4, 0x15, 0x08, 0x00, 0x00, 0xff, 0xff, // PC 0xff00000815c400 el3 ns=1
        0x98, 0x00, 0x00,                                     // LAT 0 TOT
        0x71, 0x36, 0x6c, 0x21, 0x2c, 0x09, 0x00, 0x00, 0x00, // TS 39395093558
    ];
    assert_eq!(bytes.len(), 0x2e);
    let expected = [load(0xffff_0000_0f29_3bc0, DataSource::LocalCache, 0)];
    assert_eq!(decoded(&bytes, Sources::Undefined), expected);
}

/// The start of a guest's: H. Xu, "[PATCH v2 00/12] target/arm: Add vSPE support to KVM guest" (qemu-devel, 8
/// Sep 2020).
#[test]
fn spe_records_of_a_guest() {
    #[rustfmt::skip]
    let bytes = [
        0xb0, 0xf4, 0xd3, 0x29, 0x10, 0x00, 0x80, 0xff, 0xa0, // PC 0xff80001029d3f4 el1 ns=1
        0x99, 0x0b, 0x00,                                     // LAT 11 ISSUE
        0x98, 0x0d, 0x00,                                     // LAT 13 TOT
        0x52, 0x16, 0x00,                                     // EV RETIRED L1D-ACCESS TLB-ACCESS
        0x49, 0x00,                                           // LD
        0xb2, 0xd0, 0x40, 0xd8, 0x70, 0x00, 0x00, 0xff, 0x00, // VA 0xff000070d840d0
        0x9a, 0x01, 0x00,                                     // LAT 1 XLAT
        0x00, 0x00, 0x00,                                     // PAD
        0x71, 0xa5, 0x1f, 0xb3, 0x20, 0x14, 0x00, 0x00, 0x00, // TS 86447955877
        0xb0, 0x7c, 0xf9, 0x29, 0x10, 0x00, 0x80, 0xff, 0xa0, // PC 0xff80001029f97c el1 ns=1
        0x99, 0x02, 0x00,                                     // LAT 2 ISSUE
        0x98, 0x03, 0x00,                                     // LAT 3 TOT
        0x52, 0x02, 0x00,                                     // EV RETIRED
        0x48, 0x00,                                           // INSN-OTHER
        0x00, 0x00, 0x00,                                     // PAD
        0x71, 0xef, 0x1f, 0xb3, 0x20, 0x14, 0x00, 0x00, 0x00, // TS 86447955951
    ];
    let expected = [load(0xffff_0000_70d8_40d0, DataSource::LocalCache, 13)];
    assert_eq!(decoded(&bytes, Sources::Undefined), expected);
}

/// `struct perf_ibs_data` after its size.
fn ibs(caps: u32, registers: [u64; 7]) -> Vec<u8> {
    let mut bytes = caps.to_le_bytes().to_vec();
    bytes.extend(registers.iter().flat_map(|register| register.to_le_bytes()));
    bytes
}

/// A kernel's store: `tools/perf/Documentation/perf-amd-ibs.txt` of Linux 6.3. The capabilities, which it
/// does not print, are made up.
#[test]
fn an_ibs_store() {
    let bytes = ibs(
        0x3ff,
        [
            0x0000_02c3_0006_186a, // ibs_op_ctl
            0xffff_ffff_8204_aea7, // IbsOpRip
            0x0000_0100_0255_0001, // ibs_op_data
            0x0000_0000_0000_0013, // ibs_op_data2: RmtNode 1 DataSrc 3=DRAM
            0x0000_0000_3196_0092, // ibs_op_data3: StOp 1 DcMiss 1 DcLinAddrValid 1 L2Miss 1
            0xff11_0008_a539_8920, // IbsDCLinAd
            0x0000_0008_a539_8920, // IbsDCPhysAd
        ],
    );
    let expected = Decoded {
        address: 0xff11_0008_a539_8920,
        access: Access::Write,
        // A store's source register does not hold.
        source: DataSource::Unknown,
        latency_cycles: 0,
    };
    assert_eq!(Registers::of(0x19, 0x11).decode(&bytes), Some(Op::Access(expected)));
}

/// A load on Zen 4 with `l3missonly`: R. Bangoria, "perf script ibs: Support new IBS bits in raw trace dump"
/// (linux-kernel, 23 May 2022). The capabilities and the addresses, which it does not print, are made up.
#[test]
fn an_ibs_load_on_zen_4() {
    let bytes = ibs(
        0x3ff | CAPS_ZEN4,
        [
            0x0000_0045_0007_0008, // ibs_op_ctl
            0x0000_0000_0040_1000,
            0x0000_0000_0071_0002, // ibs_op_data
            0x0000_0000_0000_0002, // ibs_op_data2: RmtNode 0 DataSrc 2=A peer cache in a near CCX
            0x0000_0068_1d17_00a1, // ibs_op_data3: LdOp 1 DcMiss 1 DcLinAddrValid 1 L2Miss 1 DcMissLat 104
            0x0000_7fab_1234_5678,
            0x0000_0001_0000_0678,
        ],
    );
    let expected = load(0x7fab_1234_5678, DataSource::LocalCache, 104);
    assert_eq!(Registers::of(0x19, 0x11).decode(&bytes), Some(Op::Access(expected)));
}
