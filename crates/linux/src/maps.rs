//! The mappings of a process (`/proc/PID/maps`, proc(5)), read piece by piece and in bounds. Names are bytes:
//! a file's may be any.

use crate::bounds::MAPS_BYTES;
use crate::ending::Until;
use nodewise_engine::{Mapping, MappingKind, PAGE_BYTES, PageNumber, PageRange, Pid};
use nodewise_sys::hints;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt as _;

/// The mappings that have pages to place: not the vDSO, `PROT_NONE` reserves, devices. A line that cannot be
/// understood is left out, too: a mapping we do not know is one we do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// In ascending order.
    pub mappings: Vec<Mapping>,
    /// Shared memory among them, in the same order.
    pub(crate) shared: Vec<SharedMapping>,
    /// Files that are only read there, other than programs and libraries, in the same order.
    pub(crate) files: Vec<SharedMapping>,
    /// Where the process says how it uses its memory.
    pub(crate) hints_at: Option<(u64, u64)>,
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Whether there was more to read than is read.
    pub(crate) is_cut: bool,
}

/// A mapping of memory that other processes may have mapped, too, or of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedMapping {
    /// Where.
    pub range: PageRange,
    /// Device and inode tell which memory.
    pub object: (u64, u64),
    /// The page of it at the beginning of the range.
    pub first: u64,
}

impl Maps {
    /// Reads until the end, `most` mappings, 16 MiB, or that time.
    pub(crate) fn read(from: impl Read, most: usize, until: Until) -> std::io::Result<Self> {
        let mut maps = Self::default();
        let mut from =
            BufReader::with_capacity(1 << 16, InTime { from, until, is_late: false }.take(MAPS_BYTES));
        let (mut line, mut code) = (Vec::new(), BTreeSet::new());
        loop {
            line.clear();
            let read = from.read_until(b'\n', &mut line)?;
            maps.bytes += read as u64;
            if line.pop() != Some(b'\n') {
                maps.is_cut = maps.bytes >= MAPS_BYTES || from.get_ref().get_ref().is_late;
                break;
            }
            if maps.mappings.len() >= most {
                maps.is_cut = true;
                break;
            }
            maps.add(&line, &mut code);
        }
        maps.files.retain(|file| !code.contains(&file.object));
        Ok(maps)
    }

    /// Adds a mapping. `code`: the files of programs and libraries.
    fn add(&mut self, line: &[u8], code: &mut BTreeSet<(u64, u64)>) -> Option<()> {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = text()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let permissions = text()?.as_bytes();
        let first = hex(text()?)? / PAGE_BYTES;
        let (major, minor) = text()?.split_once(':')?;
        let device = hex(major)? << 32 | hex(minor)?;
        let inode: u64 = text()?.parse().ok()?;
        if line.ends_with(hints::LINK.as_bytes()) {
            self.hints_at = self.hints_at.or(Some((start, end)));
        }
        let range = PageRange { start: PageNumber(start / PAGE_BYTES), end: PageNumber(end / PAGE_BYTES) };
        if range.is_empty() || permissions.len() < 4 || permissions.starts_with(b"---") {
            return None;
        }
        let name = fields.next().unwrap_or_default();
        let in_memory = [&b"/memfd:"[..], b"/dev/shm/", b"/SYSV", b"/dev/zero"];
        let in_memory = in_memory.iter().any(|prefix| name.starts_with(prefix));
        let writable = permissions[1] == b'w';
        let kind = if name.starts_with(b"[v") || (name.starts_with(b"/dev/") && !in_memory) {
            return None;
        } else if permissions[3] == b's' && (in_memory || inode != 0) {
            self.shared.push(SharedMapping { range, object: (device, inode), first });
            // A file on a disk belongs to others, too, as far as a program's word goes.
            if in_memory { MappingKind::Shared } else { MappingKind::File }
        } else if inode == 0 || in_memory {
            MappingKind::Anonymous
        } else {
            MappingKind::File
        };
        if inode != 0 && permissions[2] == b'x' {
            code.insert((device, inode));
        } else if inode != 0 && !writable {
            self.files.push(SharedMapping { range, object: (device, inode), first });
        }
        self.mappings.push(Mapping { range, writable, kind });
        Some(())
    }
}

/// The mapping that holds a page. They come in ascending order.
pub(crate) fn mapping_of(mappings: &[Mapping], page: PageNumber) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.range.start <= page);
    mappings[..after].last().filter(|mapping| mapping.range.contains(page))
}

/// Whether the kernel's balancing marks pages there: not those of files, in memory or not, that are only read
/// (`task_numa_work`, `kernel/sched/fair.c`, Linux 6.12).
pub(crate) const fn has_hint_faults(mapping: &Mapping) -> bool {
    mapping.writable || matches!(mapping.kind, MappingKind::Anonymous)
}

/// A mapping with its name: a file's path, `[heap]` and the like, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it is code.
    pub is_code: bool,
    /// The file's byte at the beginning.
    pub offset: u64,
    /// As the kernel writes it: bytes.
    pub name: OsString,
}

impl NamedMapping {
    /// All those of a process, in address order. None if it has ended or may not be looked at, or if there
    /// are more than 16 MiB of text.
    #[must_use]
    pub fn all_of(pid: Pid) -> Option<Vec<Self>> {
        let mut text = Vec::new();
        let file = std::fs::File::open(format!("/proc/{pid}/maps")).ok()?;
        file.take(MAPS_BYTES).read_to_end(&mut text).ok()?;
        let is_whole = !text.is_empty() && (text.len() as u64) < MAPS_BYTES;
        is_whole.then(|| text.split(|&byte| byte == b'\n').filter_map(Self::parse).collect())
    }

    /// A line of `/proc/PID/maps`.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        // Five fields, each with one blank behind it, and then more blanks to the column of the name.
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = text()?.split_once('-')?;
        let range = hex(start)?..hex(end)?;
        let is_code = text()?.as_bytes().get(2) == Some(&b'x');
        let offset = hex(text()?)?;
        let name = fields.nth(2).unwrap_or_default().trim_ascii_start();
        Some(Self { range, is_code, offset, name: OsString::from_vec(name.to_vec()) })
    }
}

/// Ends early when time is up.
struct InTime<R> {
    from: R,
    until: Until,
    is_late: bool,
}

impl<R: Read> Read for InTime<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.is_late = self.until.is_over();
        if self.is_late { Ok(0) } else { self.from.read(into) }
    }
}

/// Where a process has bound memory itself, or has bound all of it, by `/proc/PID/numa_maps` (`mpol_to_str`,
/// `mm/mempolicy.c`): all but what is local anyway, or is to be balanced. A line has the address at which a
/// mapping begins and its policy.
pub(crate) fn bound(
    policies: impl Read,
    mappings: &[Mapping],
    until: Until,
) -> std::io::Result<Vec<PageRange>> {
    let mut bound = Vec::new();
    let in_time = InTime { from: policies, until, is_late: false };
    let mut from = BufReader::with_capacity(1 << 16, in_time.take(MAPS_BYTES));
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let mut words = line.split(u8::is_ascii_whitespace).map(std::str::from_utf8);
        if let (Some(Ok(start)), Some(Ok(policy))) = (words.next(), words.next()) {
            // Before Linux 6.11 a flag without a name.
            let balanced = policy.contains("balancing") || policy.contains("=:");
            let start = u64::from_str_radix(start, 16).ok().map(|start| PageNumber(start / PAGE_BYTES));
            let at = start.and_then(|start| mappings.binary_search_by_key(&start, |m| m.range.start).ok());
            if let Some(at) = at.filter(|_| !balanced && !["default", "local"].contains(&policy)) {
                bound.push(mappings[at].range);
            }
        }
        line.clear();
    }
    let rest = from.into_inner();
    if rest.limit() == 0 {
        return Err(ErrorKind::FileTooLarge.into());
    }
    if rest.into_inner().is_late {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;
    use std::time::{Duration, Instant};

    fn soon() -> Until {
        (Instant::now() + Duration::from_secs(60)).into()
    }

    /// Has managing end once it was read from, and then gives mappings without end.
    struct Endless(Ending, usize);

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.set();
            self.1 += 1;
            assert!(self.1 < 10, "nobody reads on");
            let line = b"00001000-00002000 rw-p 00000000 00:00 0\n";
            into[..line.len()].copy_from_slice(line);
            Ok(line.len())
        }
    }

    #[test]
    fn nothing_is_read_once_managing_is_to_end() {
        let until = |ending: &Ending| Until { ending: ending.clone(), ..soon() };
        let ending = Ending::default();
        let maps = Maps::read(Endless(ending.clone(), 0), usize::MAX, until(&ending)).unwrap();
        assert!(maps.is_cut && maps.mappings.len() == 1);
        let ending = Ending::default();
        let error = bound(Endless(ending.clone(), 0), &maps.mappings, until(&ending)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    /// Gives a mapping at once, and each further one only when this time is over.
    struct Slow {
        until: Instant,
        given: usize,
    }

    impl Slow {
        fn until(until: Instant) -> Self {
            Self { until, given: 0 }
        }
    }

    impl Read for Slow {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if self.given > 0 {
                std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
            }
            self.given += 1;
            let line = b"00001000-00002000 rw-p 00000000 00:00 0\n";
            into[..line.len()].copy_from_slice(line);
            Ok(line.len())
        }
    }

    #[test]
    fn what_takes_too_long_to_read_is_cut() {
        let until = Instant::now() + Duration::from_secs(2);
        let maps = Maps::read(Slow::until(until), usize::MAX, until.into()).unwrap();
        assert!(maps.is_cut && maps.mappings.len() == 2, "{} mappings", maps.mappings.len());
        let until = Instant::now() + Duration::from_millis(100);
        let error = bound(Slow::until(until), &maps.mappings, until.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn what_has_a_policy_of_its_own_is_bound() {
        let mapping =
            |at| Mapping { range: PageRange::new(at, at + 1), writable: true, kind: MappingKind::Anonymous };
        let mappings: Vec<Mapping> = (1..9).map(mapping).collect();
        let policies = b"\
00001000 default anon=1 dirty=1 N0=1 kernelpagesize_kB=4
00002000 bind:2 anon=1
00003000 bind=balancing:2 anon=1
00004000 bind=:2 anon=1
00005000 interleave:0-3 file=/tmp/caf\xe9
00006000 prefer:1
00007000 local
0000a000 bind:2
garbage
00008000 bind=static|balancing:0";
        let pages: Vec<u64> =
            bound(&policies[..], &mappings, soon()).unwrap().iter().map(|range| range.start.0).collect();
        assert_eq!(pages, [2, 5, 6]);
    }

    #[test]
    fn maps_lines_become_mappings() {
        let maps = b"\
55d0c0000000-55d0c0002000 r-xp 00000000 fe:00 1234                       /usr/bin/a name with spaces
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
7f0000200000-7f0000300000 ---p 00000000 00:00 0
7f1000000000-7f1000001000 rw-s 00003000 00:01 1025                       /memfd:x (deleted)
7f1000001000-7f1000002000 r--s 00004000 fe:00 77                         /srv/data
7f2000000000-7f2000001000 rw-s 00000000 00:06 77                         /dev/nvidia0
7f2000002000-7f2000003000 r--p 00000000 00:06 77                         /tmp/caf\xe9
7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]
7fff00021000-7fff00023000 r-xp 00000000 00:00 0                          [vdso]
nonsense
\xff\xff-7 rw-p
7fff00021000-zzz rw-p 00000000 00:00 0
";
        let maps = Maps::read(&maps[..], usize::MAX, soon()).unwrap();
        let found: Vec<_> = maps.mappings.iter().map(|m| (m.range.pages(), m.writable, m.kind)).collect();
        assert_eq!(
            found,
            [
                (2, false, MappingKind::File),
                (33, true, MappingKind::Anonymous),
                (512, true, MappingKind::Anonymous),
                (1, true, MappingKind::Shared),
                (1, false, MappingKind::File),
                (1, false, MappingKind::File),
                (33, true, MappingKind::Anonymous)
            ]
        );
        let shared =
            |page, object, first| SharedMapping { range: PageRange::new(page, page + 1), object, first };
        let expected = [shared(0x7_f100_0000, (1, 1025), 3), shared(0x7_f100_0001, (0xfe << 32, 77), 4)];
        assert_eq!(maps.shared, expected);
        assert_eq!(maps.files, [expected[1], shared(0x7_f200_0002, (6, 77), 0)]);
        assert!(!maps.is_cut);
    }

    #[test]
    fn as_much_is_read_as_there_is_room_for() {
        let line =
            |i: u64| format!("{:x}-{:x} rw-p 0 00:00 0 {}\n", i << 12, (i + 1) << 12, "long".repeat(2000));
        let long: String = (1..=3000).map(line).collect();
        let maps = Maps::read(long.as_bytes(), usize::MAX, soon()).unwrap();
        assert!(maps.is_cut && maps.bytes == MAPS_BYTES, "{}", maps.bytes);
        let whole = MAPS_BYTES as usize / line(100).len();
        assert!(maps.mappings.len().abs_diff(whole) < 3, "{}", maps.mappings.len());
        let few = Maps::read(long.as_bytes(), 10, soon()).unwrap();
        assert!(few.is_cut && few.mappings.len() == 10);
        assert!(!Maps::read(line(1).as_bytes(), 1, soon()).unwrap().is_cut);
    }
}
