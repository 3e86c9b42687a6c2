//! Arbitrary registers and packets through the decoders of all vendors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_linux::sampler::hardware::{data_source, ibs, spe};

fuzz_target!(|bytes: &[u8]| {
    if let Some(word) = bytes.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let _ = (data_source::access(word), data_source::source(word));
    }
    let of_milan = bytes.len() % 2 == 0;
    let _ = ibs::Registers { erratum_1293: of_milan, lacks_cache_state: of_milan }.decode(bytes);
    let mut accesses = 0;
    spe::decode(bytes, bytes.len() as u64, spe::Sources::Arm, |_| accesses += 1);
    assert!(accesses * 12 <= bytes.len());
});
