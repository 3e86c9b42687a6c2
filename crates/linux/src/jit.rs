//! Names for code that a program made at run time, if the program has written them to `/tmp/perf-PID.map`.
//! JVMs (`jcmd PID Compiler.perfmap`), Node.js (`--perf-basic-prof`) and .NET (`DOTNET_PerfMapEnabled=1`) do.
//!
//! A line has an address and a size in hexadecimal digits, and a name
//! (`tools/perf/Documentation/jit-interface.txt`).

use crate::symbols::Frame;
use nodewise_engine::Pid;
use rustix::fs::{Mode, OFlags, open};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// Programs write what they like.
const MOST_BYTES: u64 = 64 << 20;

/// Names by process.
#[derive(Default)]
pub(crate) struct JitNames(HashMap<Pid, Option<Map>>);

/// A file's names.
#[derive(Debug)]
struct Map {
    path: PathBuf,
    /// Address, size and name, by address. The last of those with one address holds.
    names: Vec<(u64, u64, String)>,
}

impl JitNames {
    /// The function at an address. Without a name it is code that belongs to no file.
    pub(crate) fn frame(&mut self, pid: Pid, address: u64) -> Frame {
        let map = self.0.entry(pid).or_insert_with(|| places(pid).iter().find_map(|path| Map::read(path)));
        map.as_ref().and_then(|map| map.frame(address)).unwrap_or_else(|| Frame::nowhere(address))
    }
}

/// The file as the process sees it, by its own number, and as it is seen from here.
fn places(pid: Pid) -> Vec<PathBuf> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_ascii_whitespace().next_back()?.parse::<u32>().ok());
    let inside = own.map(|own| format!("/proc/{pid}/root/tmp/perf-{own}.map"));
    inside.into_iter().chain([format!("/tmp/perf-{pid}.map")]).map(PathBuf::from).collect()
}

impl Map {
    fn read(path: &Path) -> Option<Self> {
        // Whatever else is there may never answer, or lead to another's file.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let lines = BufReader::new(file.take(MOST_BYTES)).split(b'\n').map_while(Result::ok);
        let mut names: Vec<_> = lines.filter_map(|line| parse(&String::from_utf8_lossy(&line))).collect();
        names.sort_by_key(|&(address, ..)| address);
        Some(Self { path: path.to_owned(), names })
    }

    fn frame(&self, address: u64) -> Option<Frame> {
        let after = self.names.partition_point(|&(begin, ..)| begin <= address);
        let (begin, bytes, name) = self.names[..after].last()?;
        (address - begin < *bytes).then(|| Frame {
            module: self.path.clone(),
            offset: address,
            function: Some(name.clone()),
            ..Frame::default()
        })
    }
}

fn parse(line: &str) -> Option<(u64, u64, String)> {
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let mut words = line.splitn(3, ' ');
    let (address, bytes) = (number(words.next()?)?, number(words.next()?)?);
    let name = words.next()?.trim();
    (!name.is_empty()).then(|| (address, bytes, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_the_name_that_its_program_wrote_down() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf-7.map");
        let text = "7f00 40 Sum.add(int, int)\nno line\n0x8000 0x10 Sum.old\n\n8000 20 Sum::new\n8100 10 \n9000 zz x\n";
        std::fs::write(&path, text).unwrap();
        let map = Map::read(&path).unwrap();
        let name = |address| map.frame(address).and_then(|frame| frame.function);
        for (address, expected) in [
            (0x7eff, None),
            (0x7f00, Some("Sum.add(int, int)")),
            (0x7f3f, Some("Sum.add(int, int)")),
            (0x7f40, None),
            (0x801f, Some("Sum::new")),
            (0x8100, None),
            (u64::MAX, None),
        ] {
            assert_eq!(name(address).as_deref(), expected, "{address:#x}");
        }
        assert_eq!(map.frame(0x8000).unwrap().module, path);
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf-7.map");
        assert!(Map::read(&path).is_none());
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(Map::read(&path).is_none(), "a link leads anywhere");
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success() && Map::read(&path).is_none());
    }

    #[test]
    fn a_process_without_names_has_addresses() {
        let mut names = JitNames::default();
        let frame = names.frame(Pid(std::process::id()), 0x1234);
        assert_eq!((frame.function, frame.offset), (None, 0x1234));
        assert_eq!(names.frame(Pid(u32::MAX), 0x1234), Frame::nowhere(0x1234));
    }
}
