//! The callers of a function by the unwind tables of a program's files (`.eh_frame` of the System V ABI for
//! x86-64). So they are found in code without frame pointers, as far as the top of the stack is known.

use addr2line::gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection as _, X86_64,
};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, ObjectSegment as _, ReadCache};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A table is read up to this size. Chromium has one of some 20 MiB.
const MOST_TABLE_BYTES: u64 = 64 << 20;
/// Answers that are kept.
const MOST_RULES: usize = 1 << 16;

/// A place in a program's code with the registers that lead to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The address to return to.
    pub code: u64,
    /// The stack pointer.
    pub stack: u64,
    /// The frame pointer, or whatever a program without them has in its register.
    pub frame: u64,
}

/// How to find a function's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether the stack of the caller is by the frame pointer, and not by the stack pointer.
    by_frame: bool,
    /// Where that begins from there.
    offset: i64,
    /// The place of the caller's frame pointer, from the beginning of its stack; none where it has not
    /// changed.
    frame: Option<i64>,
}

impl Rule {
    /// The caller, or none if that is not in the known part of the memory.
    pub fn caller(&self, at: Registers, load: impl Fn(u64) -> Option<u64>) -> Option<Registers> {
        let base = if self.by_frame { at.frame } else { at.stack };
        let stack = base.wrapping_add_signed(self.offset);
        let frame = match self.frame {
            Some(offset) => load(stack.wrapping_add_signed(offset))?,
            None => at.frame,
        };
        Some(Registers { code: load(stack.wrapping_sub(8))?, stack, frame })
    }
}

/// The files that code comes from, each with a number, and the tables that were read so far.
#[derive(Default)]
pub struct Unwinder {
    files: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u32>,
    /// By the file's number; none where it has no table that can be read.
    tables: HashMap<u32, Option<Table>>,
    /// Answers to what was asked before.
    rules: HashMap<(u32, u64), Option<Rule>>,
}

impl Unwinder {
    /// A file's number.
    pub fn file(&mut self, path: &Path) -> u32 {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        let number = self.files.len() as u32;
        self.files.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        number
    }

    /// The path of a file that has this number.
    pub fn path(&self, file: u32) -> &Path {
        &self.files[file as usize]
    }

    /// The rule at a byte of a file; none if that has no table.
    pub fn rule(&mut self, file: u32, offset: u64) -> Option<Rule> {
        if let Some(rule) = self.rules.get(&(file, offset)) {
            return *rule;
        }
        let path = &self.files[file as usize];
        // A table may be anything.
        let read = || catch_unwind(|| Table::read(path)).unwrap_or_default();
        let table = self.tables.entry(file).or_insert_with(read);
        let rule = table
            .as_ref()
            .and_then(|table| catch_unwind(AssertUnwindSafe(|| table.rule(offset))).unwrap_or_default());
        if self.rules.len() >= MOST_RULES {
            self.rules.clear();
        }
        self.rules.insert((file, offset), rule);
        rule
    }
}

struct Table {
    bytes: Vec<u8>,
    address: u64,
    /// By the first address: the first address behind it, and its entry in the table.
    functions: Vec<(u64, u64, usize)>,
    /// A segment's byte in the file, length, and address.
    segments: Vec<(u64, u64, u64)>,
}

impl Table {
    fn read(path: &Path) -> Option<Self> {
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let cache = ReadCache::new(std::fs::File::open(path).ok()?);
        let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let section = file.section_by_name(".eh_frame").filter(|table| table.size() <= MOST_TABLE_BYTES)?;
        let segments = file.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            (offset, bytes, segment.address())
        });
        let mut table = Self {
            segments: segments.collect(),
            bytes: section.data().ok()?.to_owned(),
            address: section.address(),
            functions: Vec::new(),
        };
        let (frames, bases) = table.frames();
        let (mut functions, mut entries) = (Vec::new(), frames.entries(&bases));
        while let Ok(Some(entry)) = entries.next() {
            let addr2line::gimli::CieOrFde::Fde(entry) = entry else { continue };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else { continue };
            let start = entry.initial_address();
            functions.push((start, start.saturating_add(entry.len()), entry.offset()));
        }
        functions.sort_unstable();
        table.functions = functions;
        Some(table)
    }

    fn frames(&self) -> (EhFrame<EndianSlice<'_, LittleEndian>>, BaseAddresses) {
        let frames = EhFrame::new(&self.bytes, LittleEndian);
        (frames, BaseAddresses::default().set_eh_frame(self.address))
    }

    fn rule(&self, offset: u64) -> Option<Rule> {
        let holds = |(start, bytes, _): &&(u64, u64, u64)| offset.wrapping_sub(*start) < *bytes;
        let (start, _, address) = self.segments.iter().find(holds)?;
        let address = address.wrapping_add(offset - start);
        let next = self.functions.partition_point(|(start, ..)| *start <= address);
        let (_, end, entry) = *self.functions.get(next.checked_sub(1)?)?;
        if address >= end {
            return None;
        }
        let (frames, bases) = self.frames();
        let entry = frames.fde_from_offset(&bases, entry.into(), EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&frames, &bases, &mut context, address).ok()?;
        let at_offset = |register: Register| match row.register(register) {
            RegisterRule::Offset(offset) => Ok(Some(offset)),
            RegisterRule::Undefined | RegisterRule::SameValue => Ok(None),
            _ => Err(()),
        };
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
        let is_known = register == X86_64::RBP || register == X86_64::RSP;
        if !is_known || at_offset(X86_64::RA) != Ok(Some(-8)) {
            return None;
        }
        Some(Rule { by_frame: register == X86_64::RBP, offset, frame: at_offset(X86_64::RBP).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_found_by_either_register() {
        let at = Registers { code: 1, stack: 1000, frame: 2000 };
        let load = |address: u64| (address < 3000).then_some(address);
        let rule = Rule { by_frame: false, offset: 24, frame: Some(-16) };
        assert_eq!(rule.caller(at, load), Some(Registers { code: 1016, stack: 1024, frame: 1008 }));
        let rule = Rule { by_frame: true, offset: 16, frame: None };
        assert_eq!(rule.caller(at, load), Some(Registers { code: 2008, stack: 2016, frame: 2000 }));
        assert_eq!(rule.caller(Registers { frame: 5000, ..at }, load), None);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn this_programs_own_table_is_read() {
        let own = std::env::current_exe().unwrap();
        let table = Table::read(&own).unwrap();
        assert!(table.functions.len() > 100);
        let (mut unwinder, mut found) = (Unwinder::default(), 0);
        for (start, ..) in table.functions.iter().take(100) {
            let (offset, _, address) = table
                .segments
                .iter()
                .find(|(_, bytes, address)| start.wrapping_sub(*address) < *bytes)
                .unwrap();
            // Nothing was pushed yet but the address to return to.
            let file = unwinder.file(&own);
            let rule = unwinder.rule(file, start - address + offset);
            found += usize::from(rule == Some(Rule { by_frame: false, offset: 8, frame: None }));
        }
        assert!(found > 90, "{found}");
        let none = unwinder.file(Path::new("/no/such/file"));
        assert_eq!((unwinder.rule(none, 0), unwinder.path(none)), (None, Path::new("/no/such/file")));
    }
}
