//! Arbitrary words as a section of hints: never a panic, and what is read makes sense.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_sys::hints::{ENTRIES_MAX, MAGIC, VERSION, WORDS, entries};

fuzz_target!(|input: (bool, Vec<u64>)| {
    let (header, mut words) = input;
    words.resize(WORDS, 0);
    if header {
        words[..3].copy_from_slice(&[MAGIC, VERSION, 0]);
    }
    if let Some(entries) = entries(&words) {
        assert!(entries.len() <= ENTRIES_MAX);
        assert!(entries.iter().all(|entry| entry.start < entry.end));
    }
});
