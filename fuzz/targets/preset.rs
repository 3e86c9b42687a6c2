//! Arbitrary text as a machine: never a panic, and a machine that is accepted has its nodes' cores.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_hardware::Preset;

fuzz_target!(|input: (u8, u16, &str)| {
    // Text alone would hardly ever be TOML: it also replaces a piece of a machine that is accepted.
    let (machine, at, text) = input;
    let names: Vec<_> = Preset::names().collect();
    let known = Preset::text(names[usize::from(machine) % names.len()]).unwrap();
    let lines: Vec<&str> = known.lines().collect();
    let at = usize::from(at) % lines.len();
    let mended = [&lines[..at], &[text], &lines[at + 1..]].concat().join("\n");
    for text in [text, &mended] {
        match Preset::parse(text, "fuzzed") {
            Ok(preset) => assert_eq!(preset.nodes_of_cores().len(), preset.cores()),
            Err(error) => assert!(error.to_string().contains("fuzzed")),
        }
    }
});
