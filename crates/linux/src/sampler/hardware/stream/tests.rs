//! Whole records, laid down byte by byte as the kernel does, through the ring to decoded accesses.

use super::super::detect::tests::{amd, arm, intel};
use super::*;
use nodewise_engine::{Access, DataSource};
use nodewise_sys::perf::{RingWriter, ring_in_memory};

const PERF_RECORD_SAMPLE: u32 = 9;
const PERF_RECORD_AUX: u32 = 11;

/// `struct perf_event_header` (type, misc: user mode, size) and the body.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    const PERF_RECORD_MISC_USER: u16 = 2;
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(PERF_RECORD_MISC_USER.to_le_bytes());
    bytes.extend((body.len() as u16 + 8).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn reader(pmu: &Pmu) -> (RingWriter, Reader) {
    let (_, attr) = pmu.events()[0];
    let (writer, ring) = ring_in_memory(4096, SampleFormat::from(&attr));
    (writer, Reader::new(ring, 1000))
}

fn drain(reader: &mut Reader, pmu: &Pmu) -> Vec<(Place, Decoded)> {
    let mut all = Vec::new();
    reader.drain(pmu, |place, decoded| all.push((place, decoded)));
    all
}

#[test]
fn an_intel_load_from_a_remote_node() {
    #[rustfmt::skip]
    let body = [
        0xd2, 0x04, 0x00, 0x00, 0xd3, 0x04, 0x00, 0x00, // TID: process 1234, thread 1235
        0x00, 0xca, 0x9a, 0x3b, 0x00, 0x00, 0x00, 0x00, // TIME: one second
        0x78, 0x56, 0x34, 0x12, 0xab, 0x7f, 0x00, 0x00, // ADDR
        0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CPU: 17, reserved
        0xf1, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // PERIOD: 1009
        0x2c, 0x01, 0x00, 0x00, 0x40, 0x01, 0x00, 0x00, // WEIGHT: 300 cycles, and the instruction's 320 above
        // DATA_SRC: op load (bit 1), level hit (bit 6) and remote RAM one hop (bit 13), snoop miss (bit 22), not locked
        // (bit 24), TLB hit L1 (bits 27 and 29), level number RAM (0xd << 33), remote (bit 37).
        0x42, 0x20, 0x40, 0x29, 0x3a, 0x00, 0x00, 0x00,
    ];
    let pmu = intel();
    let (mut writer, mut reader) = reader(&pmu);
    assert!(writer.write(&record(PERF_RECORD_SAMPLE, &body)));
    let place = Place { pid: Pid(1234), tid: 1235, cpu: 17, time_ns: 1_000_000_000, weight: 1009 };
    let decoded = Decoded {
        address: 0x7fab_1234_5678,
        access: Access::Read,
        source: DataSource::RemoteDram { hops: 1 },
        latency_cycles: 300,
    };
    assert_eq!(drain(&mut reader, &pmu), [(place, decoded)]);
}

/// `TID`, `TIME`, `ADDR`, `CPU`, `PERIOD`, then `RAW` (the length word counts its padding) and `DATA_SRC`.
fn ibs_body(raw: &[u8], data_src: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend([1234_u32, 1235].iter().flat_map(|n| n.to_le_bytes()));
    body.extend([1_000_000_000_u64, 0x7fab_1234_5678].iter().flat_map(|n| n.to_le_bytes()));
    body.extend([17_u32, 0].iter().flat_map(|n| n.to_le_bytes()));
    body.extend(65_536_u64.to_le_bytes());
    body.extend((raw.len() as u32).to_le_bytes());
    body.extend(raw);
    body.extend(data_src.to_le_bytes());
    body
}

#[test]
fn an_amd_load_from_local_dram() {
    // Capabilities, then seven registers: source 3 in IbsOpData2, in IbsOpData3 load, L1 and L2 miss, address valid, 200 cycles.
    let registers: [u64; 7] = [0, 0, 0, 3, 200 << 32 | 1 << 20 | 1 << 17 | 1 << 7 | 1, 0x7fab_1234_5678, 0];
    let mut raw = 0x3ff_u32.to_le_bytes().to_vec();
    raw.extend(registers.iter().flat_map(|register| register.to_le_bytes()));
    let pmu = amd();
    let (mut writer, mut reader) = reader(&pmu);
    // The length word and the raw bytes are a multiple of 8 together: 4 + 60.
    assert!(writer.write(&record(PERF_RECORD_SAMPLE, &ibs_body(&raw, 0))));
    // An op that is no access is no sample.
    raw[4 + 4 * 8] = 0;
    assert!(writer.write(&record(PERF_RECORD_SAMPLE, &ibs_body(&raw, 0))));
    let place = Place { pid: Pid(1234), tid: 1235, cpu: 17, time_ns: 1_000_000_000, weight: 65_536 };
    let decoded = Decoded {
        address: 0x7fab_1234_5678,
        access: Access::Read,
        source: DataSource::LocalDram,
        latency_cycles: 200,
    };
    assert_eq!(drain(&mut reader, &pmu), [(place, decoded)]);
    assert_eq!(reader.losses(), Losses::default());
}

#[test]
fn an_arm_store_in_the_aux_area() {
    // Operation: store; total latency 90; data address; source 0xe, DRAM; events 0x300: last level access and miss; end.
    let packets = [
        &[0x49, 0x01, 0x98, 0x5a, 0x00, 0xb2, 0x78, 0x56, 0x34, 0x12, 0xab, 0x7f, 0x00, 0x00][..],
        &[0x43, 0x0e, 0x52, 0x00, 0x03, 0x01],
    ]
    .concat();
    let aux = |offset: u64, tid: u32, cpu: u32| {
        let mut body = Vec::new();
        body.extend([offset, packets.len() as u64, 0].iter().flat_map(|n| n.to_le_bytes()));
        body.extend([1234, tid].iter().flat_map(|n| n.to_le_bytes()));
        body.extend(1_000_000_000_u64.to_le_bytes());
        body.extend([cpu, 0].iter().flat_map(|n| n.to_le_bytes()));
        record(PERF_RECORD_AUX, &body)
    };
    let pmu = arm();
    let (mut writer, mut reader) = reader(&pmu);
    let length = packets.len() as u64;
    // Two chunks, the thread having moved in between; the second chunk's record comes after the first reading.
    assert!(writer.write_aux(&packets) && writer.write(&aux(0, 1235, 17)) && writer.write_aux(&packets));
    let decoded = Decoded {
        address: 0x7fab_1234_5678,
        access: Access::Write,
        source: DataSource::LocalDram,
        latency_cycles: 90,
    };
    let place = Place { pid: Pid(1234), tid: 1235, cpu: 17, time_ns: 1_000_000_000, weight: 1000 };
    assert_eq!(drain(&mut reader, &pmu), [(place, decoded)]);
    assert!(writer.write(&aux(length, 1235, 3)));
    assert_eq!(drain(&mut reader, &pmu), [(Place { cpu: 3, ..place }, decoded)]);
    assert_eq!(reader.losses(), Losses::default());
    // A record of bytes that never came is counted.
    assert!(writer.write(&aux(1000, 1235, 3)));
    assert_eq!(drain(&mut reader, &pmu), []);
    assert_eq!(reader.losses().malformed, 1);
}
