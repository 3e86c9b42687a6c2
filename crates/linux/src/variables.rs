//! Names for static memory: a program's global variables, from the symbols of its own files.
//!
//! Fortran's and C's programs for numbers keep their arrays there. Initialized ones are mapped from the
//! program's file, and the others are anonymous memory behind it (`.bss`), which `/proc/PID/maps` does not
//! name.

use crate::NamedMapping;
use crate::symbols::{is_on_a_disk, place_of, readable};
use nodewise_engine::Pid;
use object::Endianness;
use object::elf::{FileHeader64, PF_W, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STT_OBJECT};
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _, Sym as _};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Smaller variables share their pages with others.
const LEAST_BYTES: u64 = 4096;
/// Variables of a file that are named, the largest ones.
const MOST_VARIABLES: usize = 1 << 12;
/// Parts of static memory, of all processes together.
const MOST_PARTS: usize = 1 << 16;

/// A part of a process's static memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// The process.
    pub pid: Pid,
    /// Its addresses.
    pub range: Range<u64>,
    /// The variable's name; none for those that have none or are small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The file.
    pub module: PathBuf,
}

/// The static memory of processes with these mappings: by process in the order of addresses, without overlap.
pub fn static_memory<M: AsRef<[NamedMapping]>>(
    processes: impl IntoIterator<Item = (Pid, M)>,
) -> Vec<Variable> {
    let mut files = Files::default();
    let parts = processes.into_iter().flat_map(|(pid, mappings)| files.of(pid, mappings.as_ref()));
    parts.take(MOST_PARTS).collect()
}

/// The files that were read so far.
#[derive(Default)]
struct Files(HashMap<PathBuf, Option<File>>);

impl Files {
    /// The static memory of a process with these mappings, in order, without overlap.
    fn of(&mut self, pid: Pid, mappings: &[NamedMapping]) -> Vec<Variable> {
        let mut variables = Vec::new();
        // Other memory has names, too: `[heap]`, and `//anon` by perf.
        let is_file = |mapping: &&NamedMapping| {
            let name = mapping.name.as_bytes();
            mapping.offset == 0 && name.starts_with(b"/") && !name.starts_with(b"//")
        };
        for mapping in mappings.iter().filter(is_file) {
            let module = Path::new(&mapping.name);
            let path = place_of(pid, module);
            let file = self.0.entry(path).or_insert_with_key(|path| {
                // A file may be anything.
                catch_unwind(AssertUnwindSafe(|| File::open(path))).ok().flatten()
            });
            let Some(file) = file else { continue };
            let moved_by = mapping.range.start.wrapping_sub(file.begins);
            let at = |address: u64| address.wrapping_add(moved_by);
            variables.extend(file.parts.iter().map(|(range, name)| Variable {
                pid,
                range: at(range.start)..at(range.end),
                name: name.clone(),
                module: module.to_owned(),
            }));
        }
        variables.sort_by_key(|variable| variable.range.start);
        // A file that is mapped twice has its first bytes twice, and its variables once.
        let mut end = 0;
        variables.retain(|variable| {
            let is_next = variable.range.start >= end && !variable.range.is_empty();
            end = if is_next { variable.range.end } else { end };
            is_next
        });
        variables
    }
}

struct File {
    /// The address of its first byte, as it was linked.
    begins: u64,
    /// All of its static memory in the order of addresses, with the names of variables.
    parts: Vec<(Range<u64>, Option<String>)>,
}

impl File {
    fn open(path: &Path) -> Option<Self> {
        const PAGE: u64 = 4096;
        if !is_on_a_disk(path) {
            return None;
        }
        let cache = ReadCache::new(std::fs::File::open(path).ok()?);
        let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &cache).ok()?.iter();
        let loaded: Vec<_> = segments.filter(|segment| segment.p_type(endian) == PT_LOAD).collect();
        let first = loaded.iter().find(|segment| segment.p_offset(endian) < PAGE)?;
        let begins = first.p_vaddr(endian) / PAGE * PAGE;
        let sections = header.sections(endian, &cache).ok()?;
        let mut symbols = sections.symbols(endian, &cache, SHT_SYMTAB).ok()?;
        if symbols.is_empty() {
            symbols = sections.symbols(endian, &cache, SHT_DYNSYM).ok()?;
        }
        let is_variable = |symbol: &&object::elf::Sym64<Endianness>| {
            symbol.st_type() == STT_OBJECT
                && symbol.st_shndx(endian) != SHN_UNDEF
                && symbol.st_size(endian) >= LEAST_BYTES
        };
        let mut found: Vec<(u64, u64, String)> = symbols
            .iter()
            .filter(is_variable)
            .filter_map(|symbol| {
                let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings()).ok()?);
                Some((symbol.st_value(endian), symbol.st_size(endian), readable(&name)))
            })
            .collect();
        found.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
        found.truncate(MOST_VARIABLES);
        found.sort();
        let written = loaded.iter().filter(|segment| segment.p_flags(endian).0 & PF_W.0 != 0);
        let written = written.filter_map(|segment| {
            let start = segment.p_vaddr(endian);
            Some(start..start.checked_add(segment.p_memsz(endian))?)
        });
        Some(Self { begins, parts: written.flat_map(|segment| parts(segment, &found)).collect() })
    }
}

/// A segment's variables, and what is between them.
fn parts(segment: Range<u64>, variables: &[(u64, u64, String)]) -> Vec<(Range<u64>, Option<String>)> {
    let (mut parts, mut at) = (Vec::new(), segment.start);
    for (start, bytes, name) in variables {
        let Some(end) = start.checked_add(*bytes) else { continue };
        // Two names for the same variable, or one within another.
        if *start < at || end > segment.end {
            continue;
        }
        parts.push((at..*start, None));
        parts.push((*start..end, Some(name.clone())));
        at = end;
    }
    parts.push((at..segment.end, None));
    parts.retain(|(range, _)| !range.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    static FILLED: [u64; 4096] = [7; 4096];
    static ZEROED: [std::sync::atomic::AtomicU64; 8192] =
        [const { std::sync::atomic::AtomicU64::new(0) }; 8192];
    static WRITTEN: [std::sync::atomic::AtomicU64; 2048] =
        [const { std::sync::atomic::AtomicU64::new(9) }; 2048];

    #[test]
    fn variables_have_their_names_where_they_are() {
        let me = Pid(std::process::id());
        let variables = static_memory([(me, NamedMapping::all_of(me).unwrap())]);
        assert!(variables.is_sorted_by_key(|variable| variable.range.start));
        let at = |address: usize| {
            let holds = |variable: &&Variable| variable.range.contains(&(address as u64));
            variables.iter().find(holds).unwrap_or_else(|| panic!("{address:#x}: {variables:?}"))
        };
        for (begins, bytes, name) in [
            (ZEROED.as_ptr() as usize, 8192 * 8, "nodewise_linux::variables::tests::ZEROED"),
            (WRITTEN.as_ptr() as usize, 2048 * 8, "nodewise_linux::variables::tests::WRITTEN"),
        ] {
            let variable = at(begins);
            assert_eq!(variable.name.as_deref(), Some(name));
            assert_eq!(variable.range, begins as u64..(begins + bytes) as u64);
            assert_eq!(at(begins + bytes - 1), variable);
            assert_eq!(variable.module, std::env::current_exe().unwrap());
        }
        // Nobody writes it, so that it is no memory that could be placed.
        let constant = FILLED.as_ptr() as u64;
        assert!(variables.iter().all(|variable| !variable.range.contains(&constant)));
    }

    #[test]
    fn a_file_that_is_none_has_no_variables() {
        let me = Pid(std::process::id());
        for name in ["/none", "/", "/proc/kmsg", "/proc/self/maps", "/etc/passwd", "[heap]", "//anon"] {
            let mapping =
                NamedMapping { range: 0x1000..0x2000, is_code: false, offset: 0, name: name.into() };
            assert_eq!(static_memory([(me, [mapping])]), [], "{name}");
        }
    }

    #[test]
    fn what_is_between_variables_has_no_name() {
        let variables = [(100, 50, "a".to_owned()), (100, 40, "alias".to_owned()), (180, 50, "b".to_owned())];
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let expected = [(90..100, None), (100..150, a), (150..180, None), (180..230, b), (230..240, None)];
        assert_eq!(parts(90..240, &variables), expected);
        assert_eq!(parts(300..310, &variables), [(300..310, None)]);
        assert_eq!(parts(0..0, &variables), []);
    }
}
