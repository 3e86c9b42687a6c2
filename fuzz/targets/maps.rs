//! Arbitrary bytes as `/proc/PID/maps`, `numa_maps` and `stat`: never a panic, no empty mapping, no more of
//! them than asked for, and only mappings are bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_linux::parsers::{Maps, bound, start_time};
use std::time::{Duration, Instant};

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (most, maps, policies) = input;
    let until = Instant::now() + Duration::from_secs(60);
    let maps = Maps::read(maps, most.into(), until).unwrap();
    assert!(maps.mappings.len() <= most.into());
    assert!(maps.mappings.iter().all(|mapping| mapping.range.start < mapping.range.end));
    let bound = bound(policies, &maps.mappings).unwrap();
    assert!(bound.iter().all(|range| maps.mappings.iter().any(|mapping| mapping.range == *range)));
    start_time(&String::from_utf8_lossy(policies));
});
