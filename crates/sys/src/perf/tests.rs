//! The reader against a writer that plays the kernel; `scripts/asan` runs these under `AddressSanitizer`.

use super::record::kind;
use super::*;
use crate::{Advice, Mapping, MappingOptions, page_bytes};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const FORMAT: SampleFormat = SampleFormat {
    sample_type: SampleType(SampleType::TIME.0 | SampleType::RAW.0),
    read_format: ReadFormat(0),
    branch_type: BranchType(0),
    regs_user: 0,
    regs_intr: 0,
    sample_id_all: false,
};

/// A record of the kernel's layout: type (32 bits), misc (16), size (16), body.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend(0_u16.to_ne_bytes());
    bytes.extend(u16::try_from(body.len() + 8).unwrap().to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// A sample as FORMAT has it, whose raw part is `fill` bytes of the sequence number.
fn sample(sequence: u64, fill: usize) -> Vec<u8> {
    let mut body = sequence.to_ne_bytes().to_vec();
    body.extend(u32::try_from(fill).unwrap().to_ne_bytes());
    body.extend(std::iter::repeat_n(sequence as u8, fill));
    record(kind::SAMPLE, &body)
}

fn lost(records: u64) -> Vec<u8> {
    record(kind::LOST, &[1_u64.to_ne_bytes(), records.to_ne_bytes()].concat())
}

/// The sequence number of a sample that arrived whole; panics on one that did not.
fn sequence_of(record: &Record<'_>) -> Option<u64> {
    let Record::Sample(sample) = record else { return None };
    let sequence = sample.time_ns.unwrap();
    assert!(sample.raw.unwrap().iter().all(|&byte| byte == sequence as u8), "sample {sequence} is torn");
    Some(sequence)
}

/// The kernel's way with a full ring: drop records, count them, and say so in front of the next that fits.
struct ModelKernel {
    writer: RingWriter,
    next: u64,
    unreported: u64,
    lost: u64,
    written: Vec<u64>,
}

impl ModelKernel {
    fn new(writer: RingWriter) -> Self {
        Self { writer, next: 0, unreported: 0, lost: 0, written: Vec::new() }
    }

    fn emit(&mut self, fill: usize) {
        let mut bytes = if self.unreported > 0 { lost(self.unreported) } else { Vec::new() };
        bytes.extend(sample(self.next, fill));
        if self.writer.write(&bytes) {
            self.written.push(self.next);
            self.unreported = 0;
        } else {
            self.unreported += 1;
            self.lost += 1;
        }
        self.next += 1;
    }
}

proptest! {
    #[test]
    fn every_record_arrives_once_in_order_or_is_counted_lost(
        ring_bytes_log2 in 7_u32..13,
        start in 0_u64..1 << 40,
        steps in proptest::collection::vec((0_usize..120, any::<bool>()), 1..300),
    ) {
        let (writer, mut ring) = ring_in_memory(1 << ring_bytes_log2, FORMAT);
        let mut kernel = ModelKernel::new(writer);
        kernel.writer.start_at(start, &mut ring);
        let mut seen = Vec::new();
        for (fill, read) in steps {
            // Sizes of all remainders, so that headers wrap too.
            kernel.emit(fill);
            if read {
                ring.read(|record| seen.extend(sequence_of(&record)));
            }
        }
        ring.read(|record| seen.extend(sequence_of(&record)));
        prop_assert_eq!(&seen, &kernel.written);
        prop_assert_eq!(ring.losses().lost, kernel.lost - kernel.unreported);
        prop_assert_eq!(ring.losses().malformed, 0);
        prop_assert_eq!(seen.len() as u64 + ring.losses().lost + kernel.unreported, kernel.next);
    }

    #[test]
    fn arbitrary_bytes_are_counted_and_never_stop_the_reader(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..40),
    ) {
        let (mut writer, mut ring) = ring_in_memory(256, FORMAT);
        for chunk in chunks {
            writer.write(&chunk);
            ring.read(|_| {});
            // All was given back, so a good record gets through after the worst.
            prop_assert!(writer.write(&sample(7, 3)));
            let mut seen = Vec::new();
            ring.read(|record| seen.extend(sequence_of(&record)));
            prop_assert_eq!(seen, [7]);
        }
    }

    #[test]
    fn a_head_out_of_bounds_is_malformed_and_no_more(head in any::<u64>()) {
        let (mut writer, mut ring) = ring_in_memory(128, FORMAT);
        writer.publish(head);
        ring.read(|_| {});
        prop_assert_eq!(ring.losses().malformed, u64::from(head != 0));
        prop_assert_eq!(ring.read(|_| {}), 0);
    }

    #[test]
    fn a_sample_of_any_format_is_taken_apart_without_panic(
        sample_type in 0_u64..1 << 25,
        read_format in 0_u64..32,
        registers in any::<u64>(),
        branches in prop_oneof![Just(0), Just(1_u64 << 17), Just(1 << 19), Just(1 << 17 | 1 << 19)],
        body in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()], 0..400),
    ) {
        let format = SampleFormat {
            sample_type: SampleType(sample_type),
            read_format: ReadFormat(read_format),
            branch_type: BranchType(branches),
            regs_user: registers,
            regs_intr: !registers,
            sample_id_all: true,
        };
        let bytes = record(kind::SAMPLE, &body);
        let whole = Record::parse(&bytes, &format);
        for length in 0..bytes.len() {
            prop_assert_eq!(Record::parse(&bytes[..length], &format), Err(Malformed));
        }
        // A record that parses also parses with more behind it, as newer kernels append.
        if whole.is_ok() {
            let longer = record(kind::SAMPLE, &[body, vec![0; 8]].concat());
            prop_assert!(Record::parse(&longer, &format).is_ok());
        }
    }

    #[test]
    fn aux_data_arrives_in_one_stream(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..60)) {
        let (mut writer, mut ring) = ring_in_memory(128, FORMAT);
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        for chunk in chunks {
            if writer.write_aux(&chunk) {
                expected.extend(chunk);
            } else {
                ring.read_aux(&mut got);
                prop_assert_eq!(&got, &expected);
            }
        }
        ring.read_aux(&mut got);
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn a_concurrent_writer_loses_nothing_uncounted() {
    let (writer, mut ring) = ring_in_memory(1024, FORMAT);
    let mut kernel = ModelKernel::new(writer);
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for i in 0..200_000_usize {
                kernel.emit(i * 7 % 97);
            }
            done.send(kernel).unwrap();
        });
        let mut seen = Vec::new();
        let kernel = loop {
            ring.read(|record| seen.extend(sequence_of(&record)));
            if let Ok(kernel) = finished.try_recv() {
                break kernel;
            }
            std::thread::yield_now();
        };
        ring.read(|record| seen.extend(sequence_of(&record)));
        assert_eq!(seen, kernel.written);
        assert_eq!(ring.losses().lost + kernel.unreported + seen.len() as u64, kernel.next);
        assert_eq!(ring.losses().malformed, 0);
    });
}

#[test]
fn side_band_records_are_told_apart_and_counted() {
    let (mut writer, mut ring) = ring_in_memory(1024, FORMAT);
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    let task: Vec<u8> =
        [10_u32, 1, 11, 2].iter().flat_map(|n| n.to_ne_bytes()).chain(99_u64.to_ne_bytes()).collect();
    let comm: Vec<u8> = [10_u32, 11].iter().flat_map(|n| n.to_ne_bytes()).chain(*b"redis\0\0\0").collect();
    let mmap: Vec<u8> = [10_u32, 11].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let mmap = [mmap, words(&[0x40_0000, 8192, 4096])].concat();
    // Device, inode and generation, or a build id; then protection and flags.
    let more = words(&[1, 2, 3, 4]);
    let name = b"/bin/redis\0\0\0\0\0\0".to_vec();
    let mut mmap2 = record(kind::MMAP2, &[mmap.clone(), more, name.clone()].concat());
    // PERF_RECORD_MISC_MMAP_DATA
    mmap2[4..6].copy_from_slice(&(1_u16 << 13).to_ne_bytes());
    let mmap = [mmap, name].concat();
    for bytes in [
        record(kind::LOST_SAMPLES, &words(&[5])),
        record(kind::THROTTLE, &words(&[1, 2, 3])),
        record(kind::UNTHROTTLE, &words(&[4, 2, 3])),
        record(kind::FORK, &task),
        record(kind::EXIT, &task),
        record(kind::COMM, &comm),
        record(kind::MMAP, &mmap),
        mmap2,
        record(kind::AUX, &words(&[4096, 64, 1])),
        record(77, &[]),
    ] {
        assert!(writer.write(&bytes));
    }
    let change = TaskChange { pid: 10, parent_pid: 1, tid: 11, parent_tid: 2, time_ns: 99 };
    let mapped = |is_data| Record::Mmap {
        pid: 10,
        tid: 11,
        is_data,
        address: 0x40_0000,
        bytes: 8192,
        offset: 4096,
        name: b"/bin/redis",
    };
    let mut expected = vec![
        Record::LostSamples { samples: 5 },
        Record::Throttle { time_ns: 1, id: 2 },
        Record::Unthrottle { time_ns: 4, id: 2 },
        Record::Fork(change),
        Record::Exit(change),
        Record::Comm { pid: 10, tid: 11, exec: false, name: b"redis" },
        mapped(false),
        mapped(true),
        Record::Aux { offset: 4096, bytes: 64, flags: AuxFlags(1), identity: Identity::default() },
        Record::Other { kind: 77 },
    ]
    .into_iter();
    ring.read(|record| assert_eq!(Some(record), expected.next()));
    assert_eq!(expected.next(), None);
    assert_eq!(ring.losses(), Losses { lost: 5, throttled: 1, malformed: 0, aux_gaps: 1 });
}

#[test]
fn records_of_all_kinds_tell_their_event_and_time() {
    let bit = |set: u32, bit: u32| set >> bit & 1 == 1;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    for set in 0..1 << 7 {
        let parts = [
            SampleType::IDENTIFIER,
            SampleType::TID,
            SampleType::TIME,
            SampleType::ADDR,
            SampleType::ID,
            SampleType::STREAM_ID,
            SampleType::CPU,
        ];
        let has = |part: SampleType| parts.iter().zip(0..).any(|(one, at)| *one == part && bit(set, at));
        let chosen = parts.into_iter().filter(|&part| has(part));
        let format = SampleFormat {
            sample_type: chosen.fold(SampleType::default(), |all, part| all | part),
            sample_id_all: true,
            ..SampleFormat::default()
        };
        let number = |part| match part {
            SampleType::TIME => 55,
            SampleType::ID | SampleType::IDENTIFIER => 77,
            _ => 0,
        };
        let of = |order: &[SampleType]| {
            words(&order.iter().filter(|&&part| has(part)).map(|&part| number(part)).collect::<Vec<_>>())
        };
        let (id, tid, time) = (SampleType::ID, SampleType::TID, SampleType::TIME);
        let (stream, cpu, identifier) = (SampleType::STREAM_ID, SampleType::CPU, SampleType::IDENTIFIER);
        let sample = record(kind::SAMPLE, &of(&[identifier, tid, time, SampleType::ADDR, id, stream, cpu]));
        let other = [words(&[1, 2, 3, 4]), of(&[tid, time, id, stream, cpu, identifier])].concat();
        let other = record(kind::FORK, &other);
        let expected =
            Stamp { id: (has(id) || has(identifier)).then_some(77), time_ns: has(time).then_some(55) };
        for record in [&sample, &other] {
            assert_eq!(Stamp::of(record, &format), Ok(expected), "{format:?}");
        }
        let silent = SampleFormat { sample_id_all: false, ..format };
        assert_eq!(Stamp::of(&other, &silent), Ok(Stamp::default()));
        if expected.id.is_some() {
            assert_eq!(Stamp::of(&sample[..8], &format), Err(Malformed));
            assert_eq!(Stamp::of(&other[..8], &format), Err(Malformed));
        }
    }
}

#[test]
fn every_part_of_a_sample_is_found_behind_every_other() {
    // All parts that are kept or skipped, each with a number of its own.
    let format = SampleFormat {
        sample_type: SampleType((1 << 24) - 1).without(SampleType::AUX),
        read_format: ReadFormat(0x1f),
        branch_type: BranchType::HW_INDEX | BranchType::COUNTERS,
        regs_user: 0b101,
        regs_intr: 0b1,
        sample_id_all: false,
    };
    let mut body = Vec::new();
    let mut put = |words: &[u64]| words.iter().for_each(|word| body.extend(word.to_ne_bytes()));
    let two = |low: u32, high: u32| {
        u64::from_ne_bytes([low.to_ne_bytes(), high.to_ne_bytes()].concat().try_into().unwrap())
    };
    put(&[100]); // IDENTIFIER
    put(&[101, two(102, 103), 104, 105, 106, 107, two(108, 0), 109]); // IP TID TIME ADDR ID STREAM_ID CPU PERIOD
    put(&[2, 0, 0, 1, 2, 3, 4, 5, 6]); // READ: group of two, both times, then value, id, lost each
    // PERF_CONTEXT_KERNEL and PERF_CONTEXT_USER say whose addresses follow.
    put(&[5, -128_i64 as u64, 1, -512_i64 as u64, 2, 3]); // CALLCHAIN
    put(&[two(4, 0xaabb_ccdd)]); // RAW: 4 bytes of length, 4 of data
    put(&[1, 0, 7, 8, 9, 10]); // BRANCH_STACK: one, hw_idx, from, to, flags, counters
    put(&[2, 1, 2]); // REGS_USER: abi, two registers
    put(&[8, 0, 8]); // STACK_USER: size, bytes, dynamic size
    put(&[(7 << 48) | (6 << 32) | 5]); // WEIGHT
    put(&[111, 112, 0, 113, 114, 115, 116]); // DATA_SRC TRANSACTION REGS_INTR(none) PHYS_ADDR CGROUP and two page sizes
    let bytes = record(kind::SAMPLE, &body);
    let Ok(Record::Sample(sample)) = Record::parse(&bytes, &format) else { panic!("malformed") };
    assert_eq!(sample.raw, Some(&0xaabb_ccdd_u32.to_ne_bytes()[..]));
    assert_eq!(sample.weights(), Some((5, 6, 7)));
    let kept = Sample {
        cpu_mode: CpuMode::Unknown,
        id: Some(106),
        ip: Some(101),
        pid: Some(102),
        tid: Some(103),
        time_ns: Some(104),
        address: Some(105),
        stream_id: Some(107),
        cpu: Some(108),
        period: Some(109),
        data_source: Some(111),
        physical_address: Some(113),
        cgroup: Some(114),
        data_page_bytes: Some(115),
        call_chain: sample.call_chain,
        raw: sample.raw,
        user_stack: Some(&[0; 8]),
        weight: sample.weight,
    };
    assert_eq!(sample, kept);
    assert_eq!(sample.call_chain.unwrap().user().collect::<Vec<_>>(), [2, 3]);
    assert_eq!(sample.call_chain.unwrap().kernel().collect::<Vec<_>>(), [1]);
    assert_eq!(Record::parse(&bytes[..bytes.len() - 1], &format), Err(Malformed));
}

#[test]
fn the_header_says_whose_code_was_sampled() {
    use CpuMode::{GuestKernel, GuestUser, Hypervisor, Kernel, Unknown, User};
    for (misc, expected) in [Unknown, Kernel, User, Hypervisor, GuestKernel, GuestUser].iter().enumerate() {
        let mut bytes = sample(7, 3);
        // PERF_RECORD_MISC_EXACT_IP, which precise events set as well.
        bytes[4..6].copy_from_slice(&(misc as u16 | 1 << 14).to_ne_bytes());
        let Ok(Record::Sample(sample)) = Record::parse(&bytes, &FORMAT) else { panic!("malformed") };
        assert_eq!(sample.cpu_mode, *expected);
    }
}

#[test]
fn switches_say_who_came_and_who_left() {
    let format = SampleFormat {
        sample_type: SampleType::TID | SampleType::TIME,
        sample_id_all: true,
        ..SampleFormat::default()
    };
    // PERF_RECORD_SWITCH, and PERF_RECORD_SWITCH_CPU_WIDE with the other thread's numbers in front.
    for (kind, other) in [(14_u32, &[][..]), (15, &[20_u32, 21][..])] {
        for (misc, is_out) in [(0_u16, false), (1 << 13, true)] {
            let mut body: Vec<u8> = other.iter().chain(&[10, 11]).flat_map(|n| n.to_ne_bytes()).collect();
            body.extend(12_u64.to_ne_bytes());
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(misc.to_ne_bytes());
            bytes.extend((8 + body.len() as u16).to_ne_bytes());
            bytes.extend(body);
            let identity = Identity { pid: Some(10), tid: Some(11), time_ns: Some(12), cpu: None };
            assert_eq!(Record::parse(&bytes, &format), Ok(Record::Switch { is_out, identity }));
            assert_eq!(Record::parse(&bytes[..bytes.len() - 1], &format), Err(Malformed));
        }
    }
}

#[test]
fn aux_records_say_whose_they_are() {
    let format = SampleFormat {
        sample_type: SampleType::TID | SampleType::TIME | SampleType::CPU | SampleType::IDENTIFIER,
        sample_id_all: true,
        ..SampleFormat::default()
    };
    let mut body: Vec<u8> = [4096_u64, 64, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    body.extend([10_u32, 11].iter().flat_map(|n| n.to_ne_bytes()));
    body.extend(99_u64.to_ne_bytes());
    body.extend([3_u32, 0].iter().flat_map(|n| n.to_ne_bytes()));
    body.extend(7_u64.to_ne_bytes());
    let bytes = record(kind::AUX, &body);
    let identity = Identity { pid: Some(10), tid: Some(11), time_ns: Some(99), cpu: Some(3) };
    let expected = Record::Aux { offset: 4096, bytes: 64, flags: AuxFlags(0), identity };
    assert_eq!(Record::parse(&bytes, &format), Ok(expected));
}

#[test]
fn the_kernel_writes_what_this_reader_reads() {
    let mut attr = Attr::software(SoftwareEvent::PageFaults).monotonic();
    attr.sample_period = 1;
    attr.sample_type = SampleType::TID | SampleType::TIME | SampleType::ADDR | SampleType::CPU;
    let event = Event::open(&attr, Target::Task(0), None).unwrap();
    let mut ring = Ring::map(&event, SampleFormat::from(&attr), 64).unwrap();
    let mapping = Mapping::new(3000 * page_bytes(), MappingOptions::default()).unwrap();
    mapping.advise(0..mapping.bytes(), Advice::NoHugePage).unwrap();

    let before = crate::clock_ns(crate::Clock::Monotonic).unwrap();
    event.enable().unwrap();
    let mut faults = Vec::new();
    let mut read = |ring: &mut Ring| {
        ring.read(|record| {
            let Record::Sample(sample) = record else { return };
            assert_eq!(sample.tid, Some(crate::gettid()));
            assert_eq!(sample.pid, Some(std::process::id() as i32));
            assert!(sample.time_ns.unwrap() >= before);
            let address = sample.address.unwrap();
            if (mapping.address()..mapping.address() + mapping.bytes() as u64).contains(&address) {
                faults.push(address);
            }
        });
    };
    for page in 0..mapping.pages() {
        // A byte offset of its own in each page: addresses are exact.
        mapping.as_atomics()[page * page_bytes() / 8 + page % 512].store(1, Ordering::Relaxed);
        if page % 100 == 0 {
            read(&mut ring);
        }
    }
    event.disable().unwrap();
    read(&mut ring);
    let expected: Vec<u64> =
        (0..mapping.pages()).map(|page| mapping.page_address(page) + (page % 512 * 8) as u64).collect();
    assert_eq!(faults, expected);
    assert_eq!(ring.losses(), Losses::default());
}

#[test]
fn a_ring_that_nobody_reads_says_what_it_lost() {
    let mut attr = Attr::software(SoftwareEvent::PageFaults);
    attr.sample_period = 1;
    attr.sample_type = SampleType::ADDR;
    attr.read_format |= ReadFormat::LOST;
    let event = Event::open(&attr, Target::Task(0), None).unwrap();
    let mut ring = Ring::map(&event, SampleFormat::from(&attr), 1).unwrap();
    let mapping = Mapping::new(2000 * page_bytes(), MappingOptions::default()).unwrap();
    mapping.advise(0..mapping.bytes(), Advice::NoHugePage).unwrap();
    let touch = |pages: std::ops::Range<usize>| {
        for page in pages {
            mapping.as_atomics()[page * page_bytes() / 8].store(1, Ordering::Relaxed);
        }
    };
    event.enable().unwrap();
    touch(0..1999);
    let mut samples = 0;
    // Reading may fault too, under a sanitizer much: until the ring is really empty.
    while ring.read(|record| samples += u64::from(matches!(record, Record::Sample(_)))) > 0 {}
    // The kernel reports what it dropped with the first record that fits again.
    touch(1999..2000);
    event.disable().unwrap();
    ring.read(|record| samples += u64::from(matches!(record, Record::Sample(_))));
    let count = event.read().unwrap();
    assert!(ring.losses().lost > 1000, "{ring:?}");
    assert_eq!(samples + ring.losses().lost, count.value);
    assert_eq!(count.lost, ring.losses().lost);
}
