//! Arbitrary bytes as `perf.data`, behind a head that is right: never a panic, and no home that is no node.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_linux::perf_data::read;
use std::io::Cursor;
use std::path::Path;

fuzz_target!(|input: (bool, &[u8])| {
    let (is_piped, rest) = input;
    let mut bytes = b"PERFILE2".to_vec();
    bytes.extend(if is_piped { 16_u64 } else { 104 }.to_le_bytes());
    bytes.extend(rest);
    let length = bytes.len() as u64;
    if let Ok(recording) = read(Path::new("perf.data"), Cursor::new(bytes), length) {
        let nodes = recording.nodes.len();
        for sample in recording.samples {
            assert!(sample.accessor.get() < nodes && sample.home.is_none_or(|home| home.get() < nodes));
        }
    }
});
