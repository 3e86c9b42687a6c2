//! Whole records, laid down byte by byte as the kernel does, through the ring to decoded accesses.

use super::super::detect::tests::{amd, arm, intel};
use super::*;
use crate::sampler::streams::LEAST_BYTES;
use nodewise_engine::{Access, DataSource};
use nodewise_sys::perf::{Attr, RingWriter, SoftwareEvent, ring_in_memory};
use nodewise_sys::{Mapping, MappingOptions};
use std::sync::atomic::Ordering;

const PERF_RECORD_SAMPLE: u32 = 9;
const PERF_RECORD_AUX: u32 = 11;

/// `struct perf_event_header` (type, misc: user mode, size) and the body.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    const PERF_RECORD_MISC_USER: u16 = 2;
    record_of(kind, PERF_RECORD_MISC_USER, body)
}

fn record_of(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend((body.len() as u16 + 8).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn reader(pmu: &Pmu) -> (RingWriter, Reader) {
    let (writer, ring) = ring_in_memory(4096, SampleFormat::from(&pmu.events()[0].attr));
    (writer, Reader { period: 1000, ..Reader::new(ring) })
}

/// When samples are read that have no time.
const NOW_NS: u64 = 5_000_000_000;

fn drain(reader: &mut Reader, pmu: &Pmu) -> Vec<(Place, Decoded)> {
    let mut all = Vec::new();
    reader.drain(pmu, NOW_NS, |place, decoded| all.push((place, decoded)));
    all
}

#[test]
fn an_intel_load_from_a_remote_node() {
    #[rustfmt::skip]
    let body = [
        0xd2, 0x04, 0x00, 0x00, 0xd3, 0x04, 0x00, 0x00, // TID: process 1234, thread 1235
        0x78, 0x56, 0x34, 0x12, 0xab, 0x7f, 0x00, 0x00, // ADDR
        0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CPU: 17, reserved
        0x17, 0x27, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // PERIOD: 10007
        // DATA_SRC: op load (bit 1), level hit (bit 6) and remote RAM one hop (bit 13), snoop miss (bit 22),
        // not locked (bit 24), TLB hit L1 (bits 27 and 29), level number RAM (0xd << 33), remote (bit 37).
        0x42, 0x20, 0x40, 0x29, 0x3a, 0x00, 0x00, 0x00,
    ];
    let pmu = intel();
    let (mut writer, mut reader) = reader(&pmu);
    assert!(writer.write(&record(PERF_RECORD_SAMPLE, &body)));
    let place = Place { pid: Pid(1234), tid: 1235, cpu: 17, time_ns: NOW_NS, weight: 10_007 };
    let decoded = Decoded {
        address: 0x7fab_1234_5678,
        access: Access::Read,
        source: DataSource::RemoteDram { hops: 1 },
        latency_cycles: 0,
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
    // Capabilities, then seven registers: source 3 in IbsOpData2, in IbsOpData3 load, L1 and L2 miss, address
    // valid, 200 cycles.
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
fn samples_of_kernels_and_guests_are_dropped() {
    let registers: [u64; 7] = [0, 0, 0, 3, 1 << 20 | 1 << 17 | 1 << 7 | 1, 0x7fab_1234_5678, 0];
    let mut raw = 0x3ff_u32.to_le_bytes().to_vec();
    raw.extend(registers.iter().flat_map(|register| register.to_le_bytes()));
    let pmu = amd();
    let (mut writer, mut reader) = reader(&pmu);
    // PERF_RECORD_MISC_*: unknown, kernel, user, hypervisor, guest kernel, guest user.
    let kept = [0, 1, 2, 3, 4, 5].map(|misc| {
        assert!(writer.write(&record_of(PERF_RECORD_SAMPLE, misc, &ibs_body(&raw, 0))));
        drain(&mut reader, &pmu).len()
    });
    assert_eq!(kept, [1, 0, 1, 0, 0, 0]);
}

/// Operation: load; total latency 90; data address; source 0xe, DRAM; events 0x300: last level access and
/// miss; end.
const LOAD: [u8; 20] = [
    0x49, 0x00, 0x98, 0x5a, 0x00, 0xb2, 0x78, 0x56, 0x34, 0x12, 0xab, 0x7f, 0x00, 0x00, 0x43, 0x0e, 0x52,
    0x00, 0x03, 0x01,
];

/// `PERF_RECORD_AUX` of a chunk of `LOAD`s, with the identity that `sample_id_all` appends.
fn aux(offset: u64, bytes: u64, flags: u64, cpu: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend([offset, bytes, flags].iter().flat_map(|n| n.to_le_bytes()));
    body.extend([1234_u32, 1235].iter().flat_map(|n| n.to_le_bytes()));
    body.extend(1_000_000_000_u64.to_le_bytes());
    body.extend([cpu, 0].iter().flat_map(|n| n.to_le_bytes()));
    record(PERF_RECORD_AUX, &body)
}

const BYTES: u64 = LOAD.len() as u64;
const DECODED: Decoded = Decoded {
    address: 0x7fab_1234_5678,
    access: Access::Read,
    source: DataSource::LocalDram,
    latency_cycles: 90,
};
const PLACE: Place = Place { pid: Pid(1234), tid: 1235, cpu: 17, time_ns: 1_000_000_000, weight: 1000 };

#[test]
fn an_arm_load_in_the_aux_area() {
    let pmu = arm();
    let (mut writer, mut reader) = reader(&pmu);
    // Two chunks, the thread having moved in between; the second chunk's record comes after the first
    // reading.
    assert!(writer.write_aux(&LOAD) && writer.write(&aux(0, BYTES, 0, 17)) && writer.write_aux(&LOAD));
    assert_eq!(drain(&mut reader, &pmu), [(PLACE, DECODED)]);
    assert!(writer.write(&aux(BYTES, BYTES, 0, 3)));
    assert_eq!(drain(&mut reader, &pmu), [(Place { cpu: 3, ..PLACE }, DECODED)]);
    assert_eq!(reader.losses(), Losses::default());
}

#[test]
fn a_record_read_before_its_bytes_waits_for_them_once() {
    let pmu = arm();
    let (mut writer, mut reader) = reader(&pmu);
    // As the kernel does it: first the record, then aux_head.
    assert!(writer.write(&aux(0, BYTES, 0, 17)));
    assert_eq!(drain(&mut reader, &pmu), []);
    assert!(writer.write_aux(&LOAD));
    assert_eq!(drain(&mut reader, &pmu), [(PLACE, DECODED)]);
    assert_eq!(reader.losses(), Losses::default());
    // A record of bytes that never come is counted, and what comes after it still read.
    assert!(writer.write(&aux(1000, BYTES, 0, 17)));
    assert_eq!(drain(&mut reader, &pmu), []);
    assert_eq!(reader.losses().malformed, 0);
    assert!(writer.write_aux(&LOAD) && writer.write(&aux(BYTES, BYTES, 0, 3)));
    assert_eq!(drain(&mut reader, &pmu), [(Place { cpu: 3, ..PLACE }, DECODED)]);
    assert_eq!(reader.losses().malformed, 1);
}

/// A stream whose event is one that any kernel counts, and whose ring a test writes.
fn stream(pmu: &Pmu) -> (RingWriter, Stream) {
    let mut attr = Attr::software(SoftwareEvent::PageFaults);
    attr.sample_period = 1 << 40;
    let event = Event::open(&attr, Target::Task(0), None).unwrap();
    let periods = Periods { accurate: 1 << 40, cheap: 1 << 42 };
    let (writer, reader) = reader(pmu);
    let events = vec![(event, periods)];
    let mut stream =
        Stream { events, leaders: Vec::new(), rests: true, times: Times::default(), reader, bytes: 0 };
    stream.set_rate(SamplingRate::Accurate).unwrap();
    (writer, stream)
}

/// Whether the stream's event counts the fault that this takes.
fn is_on(stream: &Stream) -> bool {
    let count = || stream.events[0].0.read().unwrap().value;
    let before = count();
    let mapping = Mapping::new(page_bytes(), MappingOptions::default()).unwrap();
    mapping.as_atomics()[0].store(1, Ordering::Relaxed);
    count() > before
}

#[test]
fn an_event_that_a_full_aux_area_switched_off_is_switched_on_again() {
    const PERF_AUX_FLAG_TRUNCATED: u64 = 1;
    let pmu = arm();
    let (mut writer, mut stream) = stream(&pmu);
    assert!(is_on(&stream));
    // As perf_aux_output_end does when there is no room left.
    assert!(writer.write_aux(&LOAD) && writer.write(&aux(0, BYTES, PERF_AUX_FLAG_TRUNCATED, 17)));
    stream.events[0].0.disable().unwrap();
    assert!(!is_on(&stream));
    let mut samples = 0;
    stream.drain(&pmu, NOW_NS, |_, _| samples += 1);
    assert_eq!((samples, stream.losses().aux_gaps), (1, 1));
    assert!(is_on(&stream));
    // There was room again before the event was on: the area is empty.
    assert!(writer.write_aux(&[0; 4096]));
    // Not while sampling rests.
    stream.set_rate(SamplingRate::Paused).unwrap();
    stream.drain(&pmu, NOW_NS, |_, _| {});
    assert!(!is_on(&stream));
}

#[test]
fn events_that_are_paused_do_not_run() {
    let (_, mut stream) = stream(&intel());
    assert!(is_on(&stream));
    stream.set_rate(SamplingRate::Paused).unwrap();
    assert!(!is_on(&stream));
    stream.set_rate(SamplingRate::Cheap).unwrap();
    assert!(is_on(&stream));
}

#[test]
fn events_that_a_cpu_lost_while_it_was_offline_are_noticed() {
    let (_, mut stream) = stream(&intel());
    assert!(stream.ask_times() && stream.ask_times());
    // As perf_event_exit_cpu does, behind its owner's back.
    stream.events[0].0.disable().unwrap();
    stream.ask_times();
    assert!(!stream.ask_times());
    // That it stands still while it rests is as it should be.
    stream.set_rate(SamplingRate::Paused).unwrap();
    assert!(stream.ask_times());
}

#[test]
fn weights_follow_the_period() {
    let pmu = arm();
    let (mut writer, mut stream) = stream(&pmu);
    stream.events[0].1 = Periods { accurate: 1 << 14, cheap: 1 << 16 };
    let mut weights = Vec::new();
    for (at, rate) in [SamplingRate::Accurate, SamplingRate::Cheap].into_iter().enumerate() {
        stream.set_rate(rate).unwrap();
        assert!(writer.write_aux(&LOAD) && writer.write(&aux(at as u64 * BYTES, BYTES, 0, 17)));
        stream.drain(&pmu, NOW_NS, |place, _| weights.push(place.weight));
    }
    assert_eq!(weights, [1 << 14, 1 << 16]);
}

#[test]
fn weights_make_up_for_the_time_without_a_counter() {
    let pmu = arm();
    let (mut writer, mut reader) = reader(&pmu);
    let before = Times { enabled_ns: 100, running_ns: 100 };
    reader.share = Times { enabled_ns: 300, running_ns: 150 }.share_since(before);
    assert!(writer.write_aux(&LOAD) && writer.write(&aux(0, BYTES, 0, 17)));
    assert_eq!(drain(&mut reader, &pmu), [(Place { weight: 4000, ..PLACE }, DECODED)]);
    // Nothing is made up where nothing ran.
    assert!((before.share_since(before) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn rings_are_halved_until_the_kernel_grants_them() {
    const ENOMEM: i32 = 12;
    const EPERM: i32 = 1;
    const EINVAL: i32 = 22;
    let mapped = |granted: usize, errno: i32| {
        let mut tries = 0;
        let mapped = largest_granted(64 * LEAST_BYTES.max(page_bytes()), |pages| {
            tries += 1;
            if pages * page_bytes() <= granted {
                Ok(pages)
            } else {
                Err(nodewise_sys::Error::new("mmap", errno))
            }
        });
        (mapped.map_err(|refused| refused.error.kind()).ok(), tries)
    };
    let least = pages(LEAST_BYTES, page_bytes());
    for errno in [ENOMEM, EPERM] {
        assert_eq!(mapped(usize::MAX, errno), (Some(64 * least), 1));
        assert_eq!(mapped(2 * least * page_bytes(), errno), (Some(2 * least), 6));
        assert_eq!(mapped(0, errno), (None, 7));
    }
    assert_eq!(mapped(0, EINVAL), (None, 1));
}

#[test]
fn a_hypervisor_is_blamed_only_where_there_is_one() {
    const ENOENT: i32 = 2;
    let said = |is_virtual: bool| {
        let pmu = Pmu::Pebs(pebs::Pebs { events: Vec::new(), is_virtual });
        let error = nodewise_sys::Error::new("perf_event_open", ENOENT);
        let refused = refused(&pmu, AttrFlags::default(), Target::Cpu(0), error);
        assert!(refused.is_absent());
        refused.error.to_string()
    };
    assert!(said(true).ends_with("this CPU's PEBS is not passed on by the hypervisor"));
    assert!(said(false).ends_with("the kernel refuses it"));
}

#[test]
fn what_would_permit_it_depends_on_what_is_asked() {
    let flags = AttrFlags::EXCLUDE_KERNEL;
    assert_eq!(paranoid_enough(flags, Target::Cpu(3)), 0);
    assert_eq!(paranoid_enough(flags, Target::Task(0)), 2);
    // IBS cannot leave the kernel out.
    assert_eq!(paranoid_enough(amd().events()[0].attr.flags, Target::Task(0)), 1);
}
