//! Names for code: functions, files and lines, from the symbols and the debug information of a program's own
//! file.

use addr2line::Loader;
use nodewise_engine::Pid;
use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A place in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// The file of the code; empty where it is not known.
    pub module: PathBuf,
    /// The byte in that file, or the address where there is no file.
    pub offset: u64,
    /// The function, without its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The source file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl Frame {
    /// Code that belongs to no file.
    #[must_use]
    pub fn nowhere(address: u64) -> Self {
        Self { offset: address, ..Self::default() }
    }
}

/// The files that were read so far.
#[derive(Default)]
pub struct Symbols {
    files: HashMap<PathBuf, Option<File>>,
    /// The root directory of each process that has another than this one.
    roots: HashMap<Pid, Option<PathBuf>>,
    /// Answers to what was asked before.
    frames: HashMap<(PathBuf, u64), Vec<Frame>>,
}

struct File {
    loader: Loader,
    /// Whether it has all of its symbols. One that was stripped has those that others call, and whatever lies
    /// behind one of these is taken for it.
    has_symbols: bool,
    segments: Vec<Segment>,
}

/// Bytes of a file, and where they are in memory.
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

impl Symbols {
    /// The functions at a byte of a file that a process has mapped, which may be in a container.
    pub fn frames_of(&mut self, pid: Pid, path: &Path, offset: u64) -> Vec<Frame> {
        let inside = self.roots.entry(pid).or_insert_with(|| other_root(pid));
        let Some(root) = inside else { return self.frames(path, offset) };
        let there = below(root, path);
        let mut frames = self.frames(&there, offset);
        for frame in &mut frames {
            path.clone_into(&mut frame.module);
        }
        frames
    }

    /// The functions at a byte of a file: those that were inlined there come first.
    pub fn frames(&mut self, path: &Path, offset: u64) -> Vec<Frame> {
        let key = (path.to_owned(), offset);
        if let Some(frames) = self.frames.get(&key) {
            return frames.clone();
        }
        let file = self.files.entry(path.to_owned()).or_insert_with(|| File::open(path));
        // Debug information may be anything.
        let found = file.as_ref().and_then(|file| {
            catch_unwind(AssertUnwindSafe(|| file.frames(path, offset))).unwrap_or_default()
        });
        let frames =
            found.unwrap_or_else(|| vec![Frame { module: path.to_owned(), offset, ..Frame::default() }]);
        self.frames.insert(key, frames.clone());
        frames
    }
}

/// The root directory of a process, if it is not this process's.
fn other_root(pid: Pid) -> Option<PathBuf> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let numbers = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let is_other = numbers(&root).is_some_and(|of_it| Some(of_it) != numbers(Path::new("/")));
    is_other.then_some(root)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether a file has bytes before anybody reads it. A recording may name `/proc/kmsg`, whose reader waits.
pub(crate) fn is_on_a_disk(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0)
}

/// Where this process finds a file that another one names.
pub(crate) fn place_of(pid: Pid, path: &Path) -> PathBuf {
    other_root(pid).map_or_else(|| path.to_owned(), |root| below(&root, path))
}

impl File {
    fn open(path: &Path) -> Option<Self> {
        // Room for the headers of any program.
        const HEADERS: u64 = 64 << 10;
        if !is_on_a_disk(path) {
            return None;
        }
        let mut head = Vec::new();
        std::fs::File::open(path).ok()?.take(HEADERS).read_to_end(&mut head).ok()?;
        let header = FileHeader64::<Endianness>::parse(&*head).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &*head).ok()?.iter();
        let segments = segments.filter(|segment| segment.p_type(endian) == PT_LOAD).map(|segment| Segment {
            offset: segment.p_offset(endian),
            bytes: segment.p_filesz(endian),
            address: segment.p_vaddr(endian),
        });
        let segments = segments.collect();
        let loader = catch_unwind(|| Loader::new(path)).ok()?.ok()?;
        let has_symbols = loader.get_section_range(b".symtab").is_some();
        Some(Self { loader, has_symbols, segments })
    }

    fn frames(&self, path: &Path, offset: u64) -> Option<Vec<Frame>> {
        let holds =
            |segment: &&Segment| offset.checked_sub(segment.offset).is_some_and(|at| at < segment.bytes);
        let segment = self.segments.iter().find(holds)?;
        let address = segment.address + (offset - segment.offset);
        let mut frames = Vec::new();
        let mut found = self.loader.find_frames(address).ok()?;
        while let Ok(Some(frame)) = found.next() {
            let location = frame.location;
            let function =
                frame.function.and_then(|function| function.raw_name().ok().map(|name| readable(&name)));
            frames.push(Frame {
                module: path.to_owned(),
                offset,
                function,
                file: location.as_ref().and_then(|location| location.file.map(str::to_owned)),
                line: location.and_then(|location| location.line),
            });
        }
        if frames.iter().all(|frame| frame.function.is_none()) {
            let symbol = self.loader.find_symbol(address).filter(|_| self.has_symbols)?;
            let function = Some(readable(symbol));
            let place = frames.pop().unwrap_or(Frame { module: path.to_owned(), offset, ..Frame::default() });
            frames = vec![Frame { function, ..place }];
        }
        Some(frames)
    }
}

/// A symbol as its source has it. C's names are their own, and some of them are types' for C++: `a` is a
/// signed char.
pub(crate) fn readable(symbol: &str) -> String {
    let is_mangled = ["_Z", "_R"].iter().any(|begin| symbol.starts_with(begin));
    if is_mangled { short(&addr2line::demangle_auto(symbol.into(), None)) } else { short(symbol) }
}

/// A function's name without its parameters, template arguments and Rust's hash.
fn short(name: &str) -> String {
    let name = match name.rsplit_once("::h") {
        Some((before, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            before
        }
        _ => name,
    };
    let (mut depth, mut out) = (0_u32, String::new());
    for character in name.chars() {
        match character {
            // An operator's name, or a Rust type in front of its method.
            '<' if out.is_empty() || out.ends_with("operator") || out.ends_with("operator<") => {
                out.push(character);
            }
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            '(' if depth == 0 && !out.is_empty() && !out.ends_with("operator") => break,
            _ if depth == 0 => out.push(character),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_elsewhere_has_its_files_there() {
        assert_eq!(other_root(Pid(std::process::id())), None);
        assert_eq!(other_root(Pid(u32::MAX)), None);
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        std::fs::copy("/bin/busybox", root.path().join("busybox")).unwrap();
        let mut command = std::process::Command::new("chroot");
        let mut child = command.arg(root.path()).args(["/busybox", "sleep", "100"]).spawn().unwrap();
        let expected = PathBuf::from(format!("/proc/{}/root", child.id()));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let found = || other_root(Pid(child.id())).is_some_and(|found| found == expected);
        while !found() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let frames = Symbols::default().frames_of(Pid(child.id()), Path::new("/busybox"), 0x1000);
        let is_seen = found() && File::open(&expected.join("busybox")).is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_seen, "{frames:?}");
        assert_eq!(frames[0].module, Path::new("/busybox"), "as the process names it");
    }

    #[test]
    fn nobody_waits_for_a_file_that_is_none() {
        for path in ["/proc/kmsg", "/dev/zero", "/", "/none"] {
            let frames = Symbols::default().frames(Path::new(path), 0x1000);
            assert_eq!((frames.len(), &frames[0].function), (1, &None), "{path}");
        }
    }

    #[test]
    fn names_of_c_are_their_own() {
        for (symbol, expected) in [
            ("a", "a"),
            ("v", "v"),
            ("fill", "fill"),
            ("cg_data_", "cg_data_"),
            ("_ZN4grid4fillEv", "grid::fill"),
            ("_ZN4core5slice4sort17h0123456789abcdefE", "core::slice::sort"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        ] {
            assert_eq!(readable(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn names_are_short() {
        for (long, expected) in [
            ("main", "main"),
            ("core::slice::sort::h0123456789abcdef", "core::slice::sort"),
            ("std::vector<int, std::allocator<int> >::resize(unsigned long)", "std::vector::resize"),
            ("fill(double*, long)", "fill"),
            ("operator<<(std::ostream&, int)", "operator<<"),
            ("(anonymous namespace)::run()", "(anonymous namespace)::run"),
        ] {
            assert_eq!(short(long), expected, "{long}");
        }
    }
}
