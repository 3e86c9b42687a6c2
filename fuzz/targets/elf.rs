//! Arbitrary bytes as a program that is to be copied into a guest: never a panic, and no name is larger than
//! the file.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/rig/src/elf.rs"]
mod reader;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (header, mut bytes) = input;
    if header && bytes.len() >= 64 {
        // A file of this machine, with headers of the right size.
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[18..20].copy_from_slice(&[62, 0]);
        bytes[54..56].copy_from_slice(&[56, 0]);
    }
    let path = std::env::temp_dir().join(format!("nodewise-fuzz-elf-{}", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    if let Ok(Some(elf)) = reader::Elf::read(&path) {
        let names = elf.needed.iter().chain(&elf.rpath).chain(&elf.runpath);
        assert!(
            names
                .chain(elf.interpreter.as_ref().map(|path| path.as_os_str().to_owned()).as_ref())
                .all(|name| name.len() <= bytes.len())
        );
    }
});
