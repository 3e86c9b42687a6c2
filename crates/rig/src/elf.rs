//! The loader and the libraries that an ELF file of this machine names, see elf(5). Nothing of the file
//! is run: who made it may have named any program as its loader.

use object::elf::{self, DynamicTag, FileHeader64, ProgramHeader64};
use object::read::ReadCache;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, ReadRef as _};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A dynamic program or library.
#[derive(Debug, Default)]
pub(crate) struct Elf {
    /// The loader that a program names; none for a library.
    pub interpreter: Option<PathBuf>,
    /// Names of libraries.
    pub needed: Vec<OsString>,
    /// Directories to look in, separated by colons: `DT_RPATH`.
    pub rpath: Option<OsString>,
    /// The same, `DT_RUNPATH`.
    pub runpath: Option<OsString>,
}

/// A dynamic section is no longer: that of a large program has some 100 entries of 16 bytes.
const DYNAMIC_BYTES: u64 = 1 << 16;
/// Nor is the name of a loader.
const NAME_BYTES: u64 = 4096;

impl Elf {
    /// Reads it; none if the file is static, of another machine, or malformed, and so needs nothing that
    /// could be found.
    pub fn read(path: &Path) -> std::io::Result<Option<Self>> {
        let file = File::open(path)?;
        Ok(if file.metadata()?.is_file() { parse(&ReadCache::new(file)) } else { None })
    }
}

fn parse<R: object::read::ReadCacheOps>(file: &ReadCache<R>) -> Option<Elf> {
    const LE: LittleEndian = LittleEndian;
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    // With more segments than fit into this field, their number stands elsewhere.
    if header.e_machine(LE) != elf::EM_X86_64 || header.e_phnum.get(LE) == elf::PN_XNUM {
        return None;
    }
    let segments = header.program_headers(LE, file).ok()?;
    let segment = |of_type| segments.iter().find(|segment| segment.p_type(LE) == of_type);
    let small = |segment: &&ProgramHeader64<_>, most| segment.p_filesz(LE) <= most;
    let mut elf = Elf::default();
    if let Some(interpreter) = segment(elf::PT_INTERP).filter(|segment| small(segment, NAME_BYTES)) {
        let name = interpreter.interpreter(LE, file).ok()??;
        elf.interpreter = Some(PathBuf::from(OsString::from_vec(name.to_vec())));
    }
    let dynamic = segment(elf::PT_DYNAMIC).filter(|segment| small(segment, DYNAMIC_BYTES))?;
    let entries = dynamic.dynamic(LE, file).ok()??;
    let entries = || entries.iter().take_while(|entry| entry.tag(LE) != elf::DT_NULL);
    let value = |tag: DynamicTag| entries().find(|entry| entry.tag(LE) == tag).map(|entry| entry.val(LE));
    let Some(strings) = value(elf::DT_STRTAB) else { return Some(elf) };
    let holds = |segment: &&ProgramHeader64<_>| {
        let inside = strings.checked_sub(segment.p_vaddr(LE));
        segment.p_type(LE) == elf::PT_LOAD && inside.is_some_and(|inside| inside < segment.p_filesz(LE))
    };
    let loaded = segments.iter().find(holds)?;
    let strings = loaded.p_offset(LE).checked_add(strings - loaded.p_vaddr(LE))?;
    let length = file.len().ok()?;
    let string = |at: u64| {
        let at = strings.checked_add(at)?;
        let bytes = file.read_bytes_at_until(at..length, 0).ok()?;
        Some(OsString::from_vec(bytes.to_vec()))
    };
    let needed = entries().filter(|entry| entry.tag(LE) == elf::DT_NEEDED);
    elf.needed = needed.filter_map(|entry| string(entry.val(LE))).collect();
    elf.rpath = value(elf::DT_RPATH).and_then(string);
    elf.runpath = value(elf::DT_RUNPATH).and_then(string);
    Some(elf)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    /// A dynamic program that names this loader and needs this library, found by this `DT_RUNPATH`.
    pub(crate) fn program(loader: &str, needed: &str, runpath: &str) -> Vec<u8> {
        let strings = format!("\0{needed}\0{runpath}\0{loader}\0");
        let (headers, dynamic) = (64 + 3 * 56_u64, 4 * 16_u64);
        let at = headers + dynamic;
        let name = 1 + needed.len() as u64 + 1 + runpath.len() as u64 + 1;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        let mut numbers = |numbers: &[(u64, usize)]| {
            for (number, bytes) in numbers {
                file.extend(&number.to_le_bytes()[..*bytes]);
            }
        };
        // ET_DYN, EM_X86_64, three program headers.
        numbers(&[
            (3, 2),
            (62, 2),
            (1, 4),
            (0, 8),
            (64, 8),
            (0, 8),
            (0, 4),
            (64, 2),
            (56, 2),
            (3, 2),
            (0, 6),
        ]);
        for (kind, offset, bytes) in [
            (1, 0, at + strings.len() as u64),
            (2, headers, dynamic),
            (3, at + name, loader.len() as u64 + 1),
        ] {
            let sizes = [(offset, 8), (offset, 8), (offset, 8), (bytes, 8), (bytes, 8), (8, 8)];
            numbers(&[(kind, 4), (4, 4)]);
            numbers(&sizes);
        }
        let runpath = 1 + needed.len() as u64 + 1;
        for (tag, value) in [(5, at), (1, 1), (29, runpath), (0, 0)] {
            numbers(&[(tag, 8), (value, 8)]);
        }
        file.extend(strings.into_bytes());
        file
    }

    #[test]
    fn tells_loader_libraries_and_where_they_are() {
        let file = program("/lib/loader", "libx.so.1", "$ORIGIN/lib");
        let elf = parse(&ReadCache::new(Cursor::new(file))).unwrap();
        assert_eq!(elf.interpreter.as_deref(), Some(Path::new("/lib/loader")));
        assert_eq!(
            (&elf.needed[..], elf.runpath.unwrap()),
            (&["libx.so.1".into()][..], "$ORIGIN/lib".into())
        );
        let this = Elf::read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(this.needed.contains(&"libc.so.6".into()), "{this:?}");
    }

    proptest! {
        #[test]
        fn no_file_panics(changes in proptest::collection::vec((0_usize..400, any::<u8>()), 0..40)) {
            let mut file = program("/lib/loader", "libx.so.1", "$ORIGIN/lib");
            for (at, byte) in changes {
                let length = file.len();
                file[at % length] = byte;
            }
            let _ = parse(&ReadCache::new(Cursor::new(file)));
        }
    }
}
