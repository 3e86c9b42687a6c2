//! Reading a trace that anybody may have written.

use crate::{
    Access, Kind, LINES, MAGIC, MOST_ACCESSES, MOST_BYTES, MOST_INSTRUCTIONS, MOST_THREADS, VERSION, VERSIONS,
};
use std::fmt;
use std::io::{ErrorKind, Read, Seek, SeekFrom};

/// Why a trace cannot be read.
#[derive(Debug)]
pub struct Error {
    /// The byte of the file at which it was found, if it is about one.
    at: Option<u64>,
    reason: String,
    source: Option<std::io::Error>,
}

impl Error {
    fn at(at: u64, reason: impl Into<String>) -> Self {
        Self { at: Some(at), reason: reason.into(), source: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "byte {at}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Reads a trace, block by block.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    at: u64,
    threads: usize,
    /// Whether the version has waits.
    waits: bool,
    /// Accesses of each thread up to here.
    accesses: Vec<u64>,
    bytes: Vec<u8>,
    ended: bool,
}

/// A part of a trace.
#[derive(Debug)]
pub enum Part<'a> {
    /// Accesses of a thread.
    Accesses(Block<'a>),
    /// A thread's next access comes after another's first `done`.
    Wait {
        /// The one that waits.
        thread: usize,
        /// The one that is waited for. It may be the same.
        other: usize,
        /// How many accesses that one has done by then.
        done: u64,
    },
}

/// Some accesses of a thread.
#[derive(Debug)]
pub struct Block<'a> {
    thread: usize,
    accesses: usize,
    /// Where in the file its accesses begin.
    at: u64,
    bytes: &'a [u8],
}

impl<R: Read> Reader<R> {
    /// Begins to read. Wrap a file in a [`BufReader`](std::io::BufReader).
    ///
    /// Fails if it is no trace of a known version, or as the input does.
    pub fn new(input: R) -> Result<Self, Error> {
        let mut reader = Self {
            input,
            at: 0,
            threads: 0,
            waits: true,
            accesses: Vec::new(),
            bytes: Vec::new(),
            ended: false,
        };
        let mut magic = [0; 8];
        reader.fill(&mut magic)?;
        if magic[..7] != MAGIC {
            let reason = "it is no trace: it does not begin with NWTRACE".to_owned();
            return Err(Error { at: None, reason, source: None });
        }
        if !VERSIONS.contains(&magic[7]) {
            let found = char::from(magic[7]).escape_default();
            let reason = format!("version {found} is not known, and 1 and 2 are");
            return Err(Error { at: None, reason, source: None });
        }
        reader.waits = magic[7] == VERSION;
        let at = reader.at;
        let threads = reader.varint()?;
        if !(1..=MOST_THREADS as u64).contains(&threads) {
            return Err(Error::at(at, format!("{threads} threads, not 1 to {MOST_THREADS}")));
        }
        reader.threads = threads as usize;
        reader.accesses = vec![0; reader.threads];
        Ok(reader)
    }

    /// More than the highest number of a thread.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Where in the file the next part begins.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next part; none after the last, when the end has been read.
    ///
    /// Fails if the file is wrong or cut short, or as the input does.
    pub fn next_part(&mut self) -> Result<Option<Part<'_>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let at = self.at;
        let thread = self.varint()?;
        if thread > self.threads as u64 {
            return Err(Error::at(at, format!("thread {thread} of {}", self.threads)));
        }
        let thread = thread as usize;
        let accesses = self.varint()?;
        if thread == self.threads {
            let all: u64 = self.accesses.iter().sum();
            if accesses != all {
                let reason = format!("it ends with {accesses} accesses, and has {all}");
                return Err(Error::at(at, reason));
            }
            if self.read_some(&mut [0])? > 0 {
                return Err(Error::at(self.at, "there is more after the end"));
            }
            self.ended = true;
            return Ok(None);
        }
        if accesses == 0 && self.waits {
            return self.wait(thread).map(Some);
        }
        if !(1..=MOST_ACCESSES as u64).contains(&accesses) {
            return Err(Error::at(at, format!("a block of {accesses} accesses, not 1 to {MOST_ACCESSES}")));
        }
        let at = self.at;
        let length = self.varint()?;
        if length > MOST_BYTES as u64 {
            return Err(Error::at(at, format!("a block of {length} bytes, and {MOST_BYTES} is the most")));
        }
        let at = self.at;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(length as usize, 0);
        let filled = self.fill(&mut bytes);
        self.bytes = bytes;
        filled?;
        self.accesses[thread] += accesses;
        Ok(Some(Part::Accesses(Block { thread, accesses: accesses as usize, at, bytes: &self.bytes })))
    }

    fn wait(&mut self, thread: usize) -> Result<Part<'_>, Error> {
        let at = self.at;
        let other = self.varint()?;
        let done = self.varint()?;
        let had = usize::try_from(other).ok().and_then(|other| self.accesses.get(other));
        match had {
            None => Err(Error::at(at, format!("it waits for thread {other} of {}", self.threads))),
            Some(&had) if done > had => {
                let reason = format!("it waits for access {done} of thread {other}, which has had {had}");
                Err(Error::at(at, reason))
            }
            Some(_) => Ok(Part::Wait { thread, other: other as usize, done }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let mut filled = 0;
        while filled < bytes.len() {
            let more = self.read_some(&mut bytes[filled..])?;
            if more == 0 {
                let reason = format!("it ends at byte {}, before its end", self.at + filled as u64);
                return Err(Error { at: None, reason, source: None });
            }
            filled += more;
        }
        self.at += filled as u64;
        Ok(())
    }

    /// Reads what there is, nothing where the input ends.
    fn read_some(&mut self, bytes: &mut [u8]) -> Result<usize, Error> {
        loop {
            match self.input.read(bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => {
                    return read.map_err(|error| {
                        let reason = "it cannot be read".to_owned();
                        Error { at: Some(self.at), reason, source: Some(error) }
                    });
                }
            }
        }
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let begin = self.at;
        let mut value = Varint::default();
        loop {
            let mut byte = [0];
            self.fill(&mut byte)?;
            match value.add(byte[0]) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(reason) => return Err(Error::at(begin, reason)),
            }
        }
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Goes to where accesses of a thread begin, which [`position`](Self::position) has said before.
    ///
    /// Fails as the input does.
    pub fn seek(&mut self, position: u64) -> Result<(), Error> {
        let moved = self.input.seek(SeekFrom::Start(position));
        moved.map_err(|error| Error {
            at: Some(position),
            reason: "it cannot be read".to_owned(),
            source: Some(error),
        })?;
        (self.at, self.ended) = (position, false);
        Ok(())
    }
}

impl Block<'_> {
    /// The thread whose accesses these are.
    #[must_use]
    pub fn thread(&self) -> usize {
        self.thread
    }

    /// How many there are.
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.accesses
    }

    /// Gives each access in order. `line` is that of the thread's access before, and is moved on: 0 before
    /// its first block.
    ///
    /// Fails if the block does not consist of as many accesses as it says, or one is of no line.
    pub fn decode(&self, line: &mut u64, mut each: impl FnMut(Access)) -> Result<(), Error> {
        let mut at = 0;
        for _ in 0..self.accesses {
            let begin = self.at + at as u64;
            let head = self.varint(&mut at)?;
            let instructions = if head & 1 == 1 { self.varint(&mut at)? } else { 0 };
            if instructions > MOST_INSTRUCTIONS {
                return Err(Error::at(begin, format!("{instructions} instructions, more than 2^40")));
            }
            let zigzag = head >> 3;
            let step = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            let Some(next) = line.checked_add_signed(step).filter(|&next| next < LINES) else {
                return Err(Error::at(begin, format!("a step of {step} from line {line} leads beyond 2^58")));
            };
            *line = next;
            each(Access { instructions, line: *line, kind: Kind::ALL[(head >> 1 & 3) as usize] });
        }
        if at == self.bytes.len() {
            return Ok(());
        }
        let left = self.bytes.len() - at;
        Err(Error::at(self.at + at as u64, format!("{left} bytes follow a block's last access")))
    }

    fn varint(&self, at: &mut usize) -> Result<u64, Error> {
        let begin = self.at + *at as u64;
        let mut value = Varint::default();
        loop {
            let Some(&byte) = self.bytes.get(*at) else {
                return Err(Error::at(begin, "a block ends within an access"));
            };
            *at += 1;
            match value.add(byte) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(reason) => return Err(Error::at(begin, reason)),
            }
        }
    }
}

#[derive(Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    /// Takes a byte; gives the number if that was the last.
    fn add(&mut self, byte: u8) -> Result<Option<u64>, &'static str> {
        let bits = u64::from(byte & 0x7f);
        if self.shift > 63 || bits << self.shift >> self.shift != bits {
            return Err("a number is of more than 64 bits");
        }
        self.value |= bits << self.shift;
        self.shift += 7;
        Ok((byte < 0x80).then_some(self.value))
    }
}
