//! Arbitrary bytes through the perf ring: counted, never a panic, and a good record still gets through.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_sys::perf::{Record, SampleFormat, SampleType, ring_in_memory};

const LOST: [u8; 24] = [2, 0, 0, 0, 0, 0, 24, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];

fuzz_target!(|input: (u32, Vec<u8>)| {
    let (sample_type, bytes) = input;
    let sample_type = SampleType(u64::from(sample_type));
    let (mut writer, mut ring) = ring_in_memory(256, SampleFormat { sample_type, ..SampleFormat::default() });
    for chunk in bytes.chunks(200) {
        writer.write(chunk);
        ring.read(|_| {});
    }
    assert!(writer.write(&LOST));
    let mut seen = 0;
    ring.read(|record| seen += u32::from(matches!(record, Record::Lost { records: 5, .. })));
    assert_eq!(seen, 1);
});
