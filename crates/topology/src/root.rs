//! The one way files are read: below a root that is `/` or a captured tree.

use crate::error::{Error, ErrorKind, ParseError};
use crate::set::{Id, IdSet, MAX_ID};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// A directory that stands for `/`, for links as well: none leads out of a captured tree. Paths below it are
/// written without the leading slash.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

/// No file read here is larger on any machine (/proc/cpuinfo of 8192 CPUs has some 12 MB); a tree that holds
/// a larger one is not what it says it is.
const LARGEST_FILE_BYTES: u64 = 64 << 20;

impl Root {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }

    /// Opens what is there, by the kernel's rules for `/` (`RESOLVE_IN_ROOT`, openat2(2)).
    fn open(&self, below: &str, flags: OFlags) -> std::io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        // The machine's own needs no rules, and some containers forbid openat2.
        if self.0 == Path::new("/") {
            return Ok(rustix::fs::open(self.path(below), flags, Mode::empty())?.into());
        }
        let root = rustix::fs::openat(CWD, &self.0, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let rules = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(root, below, flags, Mode::empty(), rules)?.into())
    }

    pub(crate) fn exists(&self, below: &str) -> bool {
        self.open(below, OFlags::PATH).is_ok()
    }

    pub(crate) fn is_dir(&self, below: &str) -> bool {
        self.open(below, OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    /// The text of a file; `None` where there is no such file, which sysfs files of other kernels, other
    /// machines and devices that just went away have in common. A file without a byte is none: the kernel
    /// ends what it says in a newline, and captures hold such files where reading failed.
    pub(crate) fn text(&self, below: &str) -> Result<Option<Text>, Error> {
        let path = self.path(below);
        let mut bytes = Vec::new();
        let read = self.open(below, OFlags::PATH).and_then(|found| {
            // A capture may hold anything; opening a pipe would wait for ever.
            if !found.metadata()?.is_file() {
                return Err(std::io::Error::other("not a regular file"));
            }
            // The very file that was looked at: another may have got its name meanwhile.
            let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
            file.take(LARGEST_FILE_BYTES).read_to_end(&mut bytes)
        });
        match read {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(Text { path, text: String::from_utf8_lossy(&bytes).into_owned() })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::io(&path, error)),
        }
    }

    /// As [`Root::text`] for a file that every machine has.
    pub(crate) fn required(&self, below: &str) -> Result<Text, Error> {
        self.text(below)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, &self.path(below), "is not there, but every machine has it")
        })
    }

    /// A whole file through a parser; `None` where there is no such file.
    pub(crate) fn parsed<T>(
        &self,
        below: &str,
        parse: impl Fn(&str) -> Result<T, ParseError>,
    ) -> Result<Option<T>, Error> {
        self.text(below)?.map(|text| text.parse(parse)).transpose()
    }

    /// A whole file as a number; `None` where there is no such file.
    pub(crate) fn number(&self, below: &str) -> Result<Option<u64>, Error> {
        self.text(below)?.as_ref().map(Text::number).transpose()
    }

    /// A set in the kernel's list format; `None` where there is no such file.
    pub(crate) fn set<I: Id>(&self, below: &str) -> Result<Option<IdSet<I>>, Error> {
        self.parsed(below, str::parse)
    }

    /// A set from its list, or where an old kernel has only the mask, from that.
    pub(crate) fn list_or_mask<I: Id>(&self, list: &str, mask: &str) -> Result<Option<IdSet<I>>, Error> {
        match self.set(list)? {
            Some(set) => Ok(Some(set)),
            None => self.parsed(mask, IdSet::from_mask),
        }
    }

    /// Where a link below the root leads, as a path below the root; `None` if nowhere.
    pub(crate) fn resolve(&self, below: &str) -> Option<PathBuf> {
        let root = self.0.canonicalize().ok()?;
        let found = self.open(below, OFlags::PATH).ok()?;
        let place = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()?;
        place.strip_prefix(root).ok().map(Path::to_owned)
    }

    /// The names in a directory, sorted; none where there is no such directory.
    pub(crate) fn names(&self, below: &str) -> Result<Vec<String>, Error> {
        let path = self.path(below);
        let entries = match self.open(below, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => {
                rustix::fs::Dir::new(directory).map_err(|error| Error::io(&path, error.into()))?
            }
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(&path, error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(&path, error.into()))?;
            // Names that are not UTF-8, or of more than a line, are not the kernel's.
            let name = entry.file_name().to_str().ok().filter(|name| !name.contains('\n'));
            names.extend(name.filter(|name| ![".", ".."].contains(name)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// The numbers N of the entries `prefixN` of a directory, ascending; without those no kernel gives.
    pub(crate) fn numbered(&self, below: &str, prefix: &str) -> Result<Vec<u32>, Error> {
        let names = self.names(below)?;
        let numbers = names.iter().filter_map(|name| number_after(name, prefix));
        let mut numbers: Vec<u32> = numbers.filter(|&number| number <= MAX_ID).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The number in a name like `node12`. A name with a sign or a leading zero is another thing's.
pub(crate) fn number_after(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

fn is_absent(error: &std::io::Error) -> bool {
    // ENOENT and ENOTDIR; ENODEV and ENXIO are what sysfs answers for a device that goes away during the
    // read.
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        || matches!(error.raw_os_error(), Some(6 | 19))
}

/// The text of a file, and where it came from for error messages.
#[derive(Debug)]
pub(crate) struct Text {
    path: PathBuf,
    text: String,
}

impl Text {
    /// The text without whitespace around it. Linux of 2010 ended some lists in a NUL (hwloc's captures have
    /// them).
    pub(crate) fn trimmed(&self) -> &str {
        self.text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
    }

    /// The lines, numbered from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The whole text through a parser.
    pub(crate) fn parse<T>(&self, parse: impl Fn(&str) -> Result<T, ParseError>) -> Result<T, Error> {
        // Files with one value have it in their first line that is not empty.
        let line = self.lines().find(|(_, line)| !line.trim().is_empty()).map_or(1, |(number, _)| number);
        parse(self.trimmed()).map_err(|error| self.error(line, error))
    }

    /// The whole text as a number.
    pub(crate) fn number(&self) -> Result<u64, Error> {
        self.parse(|text| text.parse().map_err(|_| ParseError::new("a number", text)))
    }

    pub(crate) fn error(&self, line: usize, what: impl std::fmt::Display) -> Error {
        Error::malformed(&self.path, line, what)
    }
}
