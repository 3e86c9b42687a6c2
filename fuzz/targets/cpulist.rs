//! Lists of CPUs: what parses prints to what parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_topology::CpuSet;

fuzz_target!(|text: &str| {
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().ok(), Some(set));
    }
});
