//! Arbitrary bytes as `/proc/PID/maps`, `numa_maps` and `stat`: never a panic, no empty mapping, no more of
//! them than asked for, and only mappings are bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_linux::parsers::{bound, mappings, start_time};

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (most, maps, policies) = input;
    let mappings = mappings(maps, most.into());
    assert!(mappings.len() <= most.into());
    assert!(mappings.iter().all(|mapping| mapping.range.start < mapping.range.end));
    let bound = bound(policies, &mappings);
    assert!(bound.iter().all(|range| mappings.iter().any(|mapping| mapping.range == *range)));
    start_time(&String::from_utf8_lossy(policies));
});
