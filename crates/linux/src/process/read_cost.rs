//! Reads of `/proc` and `/sys`, and their cost.

use crate::ending::{Ending, Until};
use crate::maps::Maps;
use nodewise_engine::Pid;
use serde::Serialize;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

/// The cost of reading `/proc` and `/sys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadCost {
    /// Files opened.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Wall time spent reading, ns.
    pub time_ns: u64,
}

impl ReadCost {
    /// Opens a file to read pieces of it, counting the cost. None when it is gone or not readable.
    pub(crate) fn open(&mut self, path: &str) -> Option<fs::File> {
        let begin = Instant::now();
        let file = fs::File::open(path);
        self.files += 1;
        self.time_ns += begin.elapsed().as_nanos() as u64;
        file.ok()
    }

    /// Reads one word of an open file, counting the cost. None behind its end.
    pub(crate) fn word(&mut self, file: &fs::File, index: u64) -> Option<u64> {
        let begin = Instant::now();
        let mut bytes = [0; 8];
        let read = file.read_exact_at(&mut bytes, index * 8);
        self.bytes += 8;
        self.time_ns += begin.elapsed().as_nanos() as u64;
        read.ok().map(|()| u64::from_ne_bytes(bytes))
    }

    /// Reads words of an open file, counting the cost. Returns how many there were: fewer than asked for
    /// where the file ends. The others are 0.
    pub(crate) fn words(&mut self, file: &fs::File, index: u64, words: &mut [u64]) -> usize {
        let begin = Instant::now();
        let mut bytes = vec![0; words.len() * 8];
        let read = file.read_at(&mut bytes, index.saturating_mul(8)).unwrap_or(0);
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        self.bytes += read as u64;
        self.time_ns += begin.elapsed().as_nanos() as u64;
        read / 8
    }

    /// Reads a file whole, up to 1 MiB, counting the cost. None when it is gone or not readable. Bytes that
    /// are not UTF-8 are replaced: names are bytes, and a thread's is cut in the middle of a character at 15
    /// of them.
    pub(crate) fn read(&mut self, path: &str) -> Option<String> {
        const MOST_BYTES: u64 = 1 << 20;
        let begin = Instant::now();
        // `take` keeps `File` from asking for a size, which such files do not have, and from reading by 32
        // bytes then.
        let mut bytes = Vec::with_capacity(READ_BYTES);
        let read = fs::File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
        self.files += 1;
        self.bytes += bytes.len() as u64;
        self.time_ns += begin.elapsed().as_nanos() as u64;
        read.ok().map(|_| lossy(bytes))
    }

    /// Reads `most` mappings of a process, until then.
    pub(super) fn maps(&mut self, pid: Pid, most: usize, until: Until) -> Option<Maps> {
        let begin = Instant::now();
        let maps =
            fs::File::open(format!("/proc/{pid}/maps")).and_then(|file| Maps::read(file, most, until)).ok();
        self.files += 1;
        self.bytes += maps.as_ref().map_or(0, |maps| maps.bytes);
        self.time_ns += begin.elapsed().as_nanos() as u64;
        maps
    }

    /// Adds the children of the threads of `pid` (`Documentation/filesystems/proc.rst`, 3.7), as long as
    /// `threads` last and managing goes on.
    pub(super) fn children(&mut self, pid: Pid, threads: &mut usize, found: &mut Vec<Pid>, ending: &Ending) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        self.files += 1;
        for task in tasks.flatten() {
            if *threads == 0 || ending.is_set() {
                return;
            }
            *threads -= 1;
            let tid = task.file_name();
            let Some(text) = self.read(&format!("/proc/{pid}/task/{}/children", tid.to_string_lossy()))
            else {
                continue;
            };
            found.extend(text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).map(Pid));
        }
    }
}

pub(super) fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

impl std::ops::Add for ReadCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
            time_ns: self.time_ns + other.time_ns,
        }
    }
}

/// Most files of `/proc` are shorter and come in one call.
const READ_BYTES: usize = 4096;
