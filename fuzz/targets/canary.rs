//! Must be found: a bug behind three bytes, which luck alone does not find in the time given. `scripts/fuzz`
//! runs it first.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if bytes.first() == Some(&b'n') && bytes.get(1) == Some(&b'u') && bytes.get(2) == Some(&b'm') {
        panic!("found, as it should be");
    }
});
