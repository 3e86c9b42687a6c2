//! Writing a trace.

use crate::{Access, LINES, MAGIC, MOST_ACCESSES, MOST_BYTES, MOST_INSTRUCTIONS, MOST_THREADS, VERSION};
use std::io::{Error, ErrorKind, Result, Write};

/// Accesses of a block, so that a reader of many threads needs little memory.
const BLOCK: usize = 1 << 12;
const _: () = assert!(BLOCK <= MOST_ACCESSES && BLOCK * 20 <= MOST_BYTES);

/// Writes a trace.
///
/// Each thread's accesses are told in its own order, and those of several threads as they come. A file
/// without [`finish`](Self::finish) is one that was cut short.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    threads: Vec<Thread>,
    accesses: u64,
    /// Bytes that were written, and those that wait for their block to be full.
    written: u64,
    pending: u64,
}

/// Most bytes of a block's head, and of the file's end.
const HEAD: u64 = 12;
const END: u64 = 13;

#[derive(Clone, Debug, Default)]
struct Thread {
    line: u64,
    /// Accesses before those of `bytes`, and the latter's.
    before: u64,
    count: usize,
    bytes: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file of so many threads at most. Wrap a file in a [`BufWriter`](std::io::BufWriter).
    ///
    /// Fails if there are none or more than [`MOST_THREADS`], or as the output does.
    pub fn new(mut out: W, threads: usize) -> Result<Self> {
        if !(1..=MOST_THREADS).contains(&threads) {
            return Err(invalid(format!("{threads} threads, not 1 to {MOST_THREADS}")));
        }
        let mut head = [&MAGIC[..], &[VERSION]].concat();
        varint(&mut head, threads as u64);
        out.write_all(&head)?;
        let written = head.len() as u64;
        Ok(Self { out, threads: vec![Thread::default(); threads], accesses: 0, written, pending: 0 })
    }

    /// Adds an access of a thread.
    ///
    /// Fails if there is no such thread or line, or too many instructions, or as the output does.
    #[inline]
    pub fn access(&mut self, thread: usize, access: Access) -> Result<()> {
        if access.line >= LINES {
            return Err(invalid(format!("line {} is beyond 2^58", access.line)));
        }
        if access.instructions > MOST_INSTRUCTIONS {
            return Err(invalid(format!("{} instructions, more than 2^40", access.instructions)));
        }
        let count = self.threads.len();
        let Some(state) = self.threads.get_mut(thread) else {
            return Err(invalid(format!("thread {thread} of {count}")));
        };
        let step = (access.line as i64).wrapping_sub(state.line as i64);
        let zigzag = (step << 1 ^ step >> 63) as u64;
        let instructions = u64::from(access.instructions > 0);
        let before = if state.count == 0 { 0 } else { state.bytes.len() as u64 + HEAD };
        varint(&mut state.bytes, zigzag << 3 | (access.kind as u64) << 1 | instructions);
        if access.instructions > 0 {
            varint(&mut state.bytes, access.instructions);
        }
        (state.line, state.count) = (access.line, state.count + 1);
        self.accesses += 1;
        self.pending += state.bytes.len() as u64 + HEAD - before;
        if state.count == BLOCK { self.flush(thread) } else { Ok(()) }
    }

    fn flush(&mut self, thread: usize) -> Result<()> {
        let state = &mut self.threads[thread];
        if state.count == 0 {
            return Ok(());
        }
        let mut head = Vec::with_capacity(12);
        varint(&mut head, thread as u64);
        varint(&mut head, state.count as u64);
        varint(&mut head, state.bytes.len() as u64);
        self.out.write_all(&head)?;
        self.out.write_all(&state.bytes)?;
        self.written += (head.len() + state.bytes.len()) as u64;
        self.pending -= state.bytes.len() as u64 + HEAD;
        state.bytes.clear();
        state.before += state.count as u64;
        state.count = 0;
        Ok(())
    }

    /// How many accesses a thread has done, for another to [`wait`](Self::wait) for. A block ends there.
    ///
    /// Fails if there is no such thread, or as the output does.
    pub fn done(&mut self, thread: usize) -> Result<u64> {
        if thread >= self.threads.len() {
            return Err(invalid(format!("thread {thread} of {}", self.threads.len())));
        }
        self.flush(thread)?;
        Ok(self.threads[thread].before)
    }

    /// A thread's next access comes after another's first `done`.
    ///
    /// Fails if there is no such thread, or the other has not done as many, or as the output does.
    pub fn wait(&mut self, thread: usize, other: usize, done: u64) -> Result<()> {
        let Some(had) = self.threads.get(other).map(|other| other.before + other.count as u64) else {
            return Err(invalid(format!("thread {other} of {}", self.threads.len())));
        };
        if had < done {
            return Err(invalid(format!("thread {other} has not had {done} accesses")));
        }
        self.done(thread)?;
        if self.threads[other].before < done {
            self.flush(other)?;
        }
        let mut part = Vec::with_capacity(20);
        for number in [thread as u64, 0, other as u64, done] {
            varint(&mut part, number);
        }
        self.out.write_all(&part)?;
        self.written += part.len() as u64;
        Ok(())
    }

    /// The accesses of all threads so far.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// The bytes that a file has at most if it is finished now.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.written + self.pending + END
    }

    /// Ends the file, and gives the output back.
    ///
    /// Fails as the output does.
    pub fn finish(mut self) -> Result<W> {
        (0..self.threads.len()).try_for_each(|thread| self.flush(thread))?;
        let mut end = Vec::new();
        varint(&mut end, self.threads.len() as u64);
        varint(&mut end, self.accesses);
        self.out.write_all(&end)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidInput, reason)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
