//! Arbitrary bytes as a trace: never a panic, and accesses that are read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_trace::{Access, Error, Part, Reader, Writer};

fn read(bytes: &[u8]) -> Result<(usize, Vec<(usize, Access)>), Error> {
    let mut reader = Reader::new(bytes)?;
    let threads = reader.threads();
    let (mut lines, mut accesses) = (vec![0; threads], Vec::new());
    while let Some(part) = reader.next_part()? {
        let Part::Accesses(block) = part else { continue };
        let thread = block.thread();
        block.decode(&mut lines[thread], |access| accesses.push((thread, access)))?;
    }
    Ok((threads, accesses))
}

fuzz_target!(|bytes: &[u8]| {
    // Bytes alone would hardly ever begin as a trace does.
    for bytes in [bytes, &[b"NWTRACE2", bytes].concat()] {
        let Ok((threads, mut accesses)) = read(bytes) else { continue };
        let mut writer = Writer::new(Vec::new(), threads).unwrap();
        accesses.iter().for_each(|&(thread, access)| writer.access(thread, access).unwrap());
        let (_, mut again) = read(&writer.finish().unwrap()).unwrap();
        // Only each thread's own order counts.
        accesses.sort_by_key(|access| access.0);
        again.sort_by_key(|access| access.0);
        assert_eq!(again, accesses);
    }
});
