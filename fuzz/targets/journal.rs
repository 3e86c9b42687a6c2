//! Arbitrary text as the journal of settings: never a panic, and what is believed names settings of ours with
//! numbers as their values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_linux::settings::{Changed, Place};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

const KNOWN: &str = r#"{
  "pid": 4194304,
  "start_time": 1,
  "originals": { "/proc/sys/kernel/numa_balancing": "1" },
  "written": { "/proc/sys/kernel/numa_balancing": ["0", "1"] }
}"#;

fuzz_target!(|input: (u8, u8, &str)| {
    let (from, to, text) = input;
    let directory = std::env::temp_dir().join(format!("nodewise-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let setting = PathBuf::from("/proc/sys/kernel/numa_balancing");
    let journal = directory.join("settings.json");
    let place = Place::new(&journal, &directory, [setting.clone()]);
    // Text alone would hardly ever be a journal: it also replaces a piece of one.
    let (from, to) = (usize::from(from.min(to)), usize::from(from.max(to)));
    let mended = [&KNOWN[..from.min(KNOWN.len())], text, &KNOWN[to.min(KNOWN.len())..]].concat();
    for text in [text, &mended] {
        std::fs::write(&journal, text).unwrap();
        if let Ok(Changed::LeftBy { originals, .. }) = Changed::look(&place) {
            assert!(originals.keys().all(|name| *name == setting));
            assert!(originals.values().all(|value| value.bytes().all(|byte| byte.is_ascii_digit())));
        }
    }
});
