//! Lines one after the other, as many at a time as the CPU can have.

use crate::slice::{LINE_BYTES, Slice};
use serde::Serialize;
use std::fmt;

/// The accesses of a stream to its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// It reads each line.
    Reads,
    /// It writes each line, and reads none.
    Writes,
    /// It reads lines of one part, and writes as many of another.
    Copy,
    /// It reads each line and writes each that it read.
    #[serde(rename = "1:1")]
    OneToOne,
    /// It writes every second line that it reads.
    #[serde(rename = "2:1")]
    TwoToOne,
    /// It writes every third line that it reads.
    #[serde(rename = "3:1")]
    ThreeToOne,
}

/// Whether this architecture has stores that go past the caches.
pub const NON_TEMPORAL_STORES: bool = cfg!(target_arch = "x86_64");

impl Traffic {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Reads, Self::ThreeToOne, Self::TwoToOne, Self::OneToOne, Self::Writes, Self::Copy];

    /// Lines that are read for each that is written; or just read.
    const fn reads(self) -> usize {
        match self {
            Self::Writes => 0,
            Self::Reads | Self::Copy | Self::OneToOne => 1,
            Self::TwoToOne => 2,
            Self::ThreeToOne => 3,
        }
    }

    /// Whether it writes at all.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::Reads
    }

    /// Whether written lines are among those that were read. A store past the caches to such a line would
    /// first have it leave them, so that non-temporal stores have lines of their own.
    fn in_place(self, non_temporal: bool) -> bool {
        !non_temporal && matches!(self, Self::OneToOne | Self::TwoToOne | Self::ThreeToOne)
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Copy => "copy",
            Self::OneToOne => "1:1",
            Self::TwoToOne => "2:1",
            Self::ThreeToOne => "3:1",
        })
    }
}

#[cfg(target_arch = "x86_64")]
type Word = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Word = u64;

const WORDS: usize = LINE_BYTES / size_of::<Word>();
const PLAIN: u8 = 1;
const NON_TEMPORAL: u8 = 2;

/// A thread's lines, and where it is among them.
#[derive(Debug)]
pub struct Stream<'a> {
    slice: Slice<'a>,
    kernel: Kernel,
    /// Lines that are read in a group.
    reads: usize,
    writes: bool,
    /// The written line of the first group, and the distance to that of the next, in lines.
    target: usize,
    target_step: usize,
    groups: usize,
    next: usize,
}

/// Handles so many groups, from these lines on.
type Kernel = unsafe fn(source: *const Word, target: *mut Word, target_step: usize, groups: usize);

impl<'a> Stream<'a> {
    /// A stream over a slice.
    pub fn new(slice: Slice<'a>, traffic: Traffic, non_temporal: bool) -> Self {
        let (reads, in_place) = (traffic.reads(), traffic.in_place(non_temporal));
        let (target, target_step, groups) = match (traffic, in_place) {
            (Traffic::Reads, _) => (0, 0, slice.lines()),
            (_, true) => (reads - 1, reads, slice.lines() / reads),
            (_, false) => {
                let groups = slice.lines() / (reads + 1);
                (groups * reads, 1, groups)
            }
        };
        let kernel = kernel(traffic, non_temporal);
        Self { slice, kernel, reads, writes: traffic.writes(), target, target_step, groups, next: 0 }
    }

    /// Bytes that a group reads and writes. A line that a store has the CPU read first counts once.
    pub fn group_bytes(&self) -> u64 {
        ((self.reads + usize::from(self.writes)) * LINE_BYTES) as u64
    }

    /// Goes on by up to so many groups, and returns the bytes that it read and wrote. After the last group
    /// comes the first.
    pub fn run(&mut self, groups: usize) -> u64 {
        let groups = groups.min(self.groups - self.next);
        let source = self.slice.start().wrapping_add(self.next * self.reads);
        let target = self.target + self.next * self.target_step;
        let target = self.slice.start().wrapping_add(target);
        // SAFETY: the groups from `next` on end before the slice does, by the arithmetic of `new`. The slice
        // is this stream's alone.
        unsafe { (self.kernel)(source.cast(), target.cast(), self.target_step, groups) };
        self.next += groups;
        if self.next == self.groups {
            self.next = 0;
        }
        groups as u64 * self.group_bytes()
    }
}

fn kernel(traffic: Traffic, non_temporal: bool) -> Kernel {
    match (traffic, traffic.reads(), non_temporal) {
        (Traffic::Reads, ..) => groups::<1, 0>,
        (_, 0, false) => groups::<0, PLAIN>,
        (_, 1, false) => groups::<1, PLAIN>,
        (_, 2, false) => groups::<2, PLAIN>,
        (_, _, false) => groups::<3, PLAIN>,
        (_, 0, true) => groups::<0, NON_TEMPORAL>,
        (_, 1, true) => groups::<1, NON_TEMPORAL>,
        (_, 2, true) => groups::<2, NON_TEMPORAL>,
        (_, _, true) => groups::<3, NON_TEMPORAL>,
    }
}

/// # Safety
/// From `source` on, `READS * groups` lines may be read. If `STORES` is not 0, the line at `target` may be
/// written, and those at each further step.
unsafe fn groups<const READS: usize, const STORES: u8>(
    source: *const Word,
    target: *mut Word,
    target_step: usize,
    groups: usize,
) {
    for group in 0..groups {
        for word in 0..READS * WORDS {
            let word = source.wrapping_add(group * READS * WORDS + word);
            // SAFETY: the word is in one of the lines that may be read. Volatile, as nobody looks at the
            // value.
            unsafe { word.read_volatile() };
        }
        for word in 0..if STORES == 0 { 0 } else { WORDS } {
            let word = target.wrapping_add(group * target_step * WORDS + word);
            // SAFETY: the word is in a line that may be written.
            unsafe { store::<STORES>(word) };
        }
    }
    if STORES == NON_TEMPORAL {
        fence();
    }
}

#[cfg(target_arch = "x86_64")]
const VALUE: Word = {
    // SAFETY: both are 16 bytes of which all values are valid.
    unsafe { std::mem::transmute::<[u64; 2], Word>([0x6e6f_6465_7769_7365; 2]) }
};
#[cfg(not(target_arch = "x86_64"))]
const VALUE: Word = 0x6e6f_6465_7769_7365;

/// # Safety
/// The word may be written.
#[inline]
unsafe fn store<const STORES: u8>(word: *mut Word) {
    #[cfg(target_arch = "x86_64")]
    if STORES == NON_TEMPORAL {
        // SAFETY: the word may be written. Words are aligned, and `fence` ends the block.
        return unsafe { std::arch::x86_64::_mm_stream_si128(word, VALUE) };
    }
    // SAFETY: the word may be written. Volatile, so that it does not become a call of memset.
    unsafe { word.write_volatile(VALUE) };
}

/// Has all stores past the caches done.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence does nothing but order accesses.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
}

/// Waits by counting to so many, about a cycle each.
pub fn pause(count: u32) {
    for _ in 0..count {
        // SAFETY: nothing is executed; the loop stays, as the compiler does not look inside.
        unsafe { std::arch::asm!("", options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::OwnedMemory;

    fn written(traffic: Traffic, non_temporal: bool, lines: usize) -> (Vec<bool>, u64) {
        let mut memory = OwnedMemory::new(lines * LINE_BYTES, 4096).unwrap();
        let mut stream =
            Stream::new(Slice::new(&mut memory.as_mut_bytes()[..lines * LINE_BYTES]), traffic, non_temporal);
        let groups = stream.groups;
        let mut bytes = 0;
        while bytes < groups as u64 * stream.group_bytes() {
            bytes += stream.run(5);
        }
        assert_eq!(stream.next, 0, "it begins again");
        let lines = memory.as_bytes().chunks(LINE_BYTES).take(lines);
        (lines.map(|line| line.iter().all(|&byte| byte != 0)).collect(), bytes)
    }

    #[test]
    fn streams_write_the_lines_that_they_say() {
        let lines = 24;
        for (traffic, expected) in [
            (Traffic::Reads, (0..24).map(|_| false).collect::<Vec<_>>()),
            (Traffic::Writes, vec![true; 24]),
            (Traffic::Copy, (0..24).map(|line| line >= 12).collect()),
            (Traffic::OneToOne, vec![true; 24]),
            (Traffic::TwoToOne, (0..24).map(|line| line % 2 == 1).collect()),
            (Traffic::ThreeToOne, (0..24).map(|line| line % 3 == 2).collect()),
        ] {
            assert_eq!(written(traffic, false, lines).0, expected, "{traffic}");
        }
        // Past the caches, to lines of their own.
        for (traffic, first) in [(Traffic::TwoToOne, 16), (Traffic::ThreeToOne, 18), (Traffic::OneToOne, 12)]
        {
            let expected: Vec<bool> = (0..24).map(|line| line >= first).collect();
            assert_eq!(written(traffic, true, lines).0, expected, "{traffic}");
        }
    }

    #[test]
    fn bytes_are_those_read_and_those_written() {
        let line = LINE_BYTES as u64;
        let bytes = |traffic, non_temporal| written(traffic, non_temporal, 24).1 / line;
        assert_eq!(bytes(Traffic::Reads, false), 24);
        assert_eq!(bytes(Traffic::Writes, false), 24);
        assert_eq!(bytes(Traffic::Copy, false), 24);
        assert_eq!(bytes(Traffic::OneToOne, false), 48);
        assert_eq!(bytes(Traffic::TwoToOne, false), 36);
        assert_eq!(bytes(Traffic::ThreeToOne, false), 32);
        assert_eq!(bytes(Traffic::ThreeToOne, true), 24);
    }

    #[test]
    fn lines_that_are_left_over_are_left_alone() {
        for traffic in Traffic::ALL {
            for non_temporal in [false, true] {
                for lines in 4..20 {
                    let (written, _) = written(traffic, non_temporal, lines);
                    assert_eq!(written.len(), lines);
                }
            }
        }
    }
}
