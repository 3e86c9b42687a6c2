//! The memory that a program's processes and the reader share: a header, and behind it a ring of records. All
//! of it is words of 8 bytes. A reader must expect anything, as the program may write anything.

/// The header's words.
pub const HEADER_WORDS: usize = 64;
/// The words of a record.
pub const RECORD_WORDS: usize = 64;
/// The records of the ring: 32 MiB.
pub const RECORDS: usize = 1 << 16;
/// All bytes.
pub const BYTES: usize = 8 * (HEADER_WORDS + RECORDS * RECORD_WORDS);
/// The version of this layout, in the word [`MAGIC`].
pub const VERSION: u64 = 0x6e6f_6465_7769_0001;

/// Header: [`VERSION`].
pub const MAGIC: usize = 0;
/// Header: the bytes from which on a block is told.
pub const LEAST_BYTES: usize = 1;
/// Header: records begun, by all processes. On a cache line of its own, as are the next two.
pub const HEAD: usize = 16;
/// Header: records that the reader has taken.
pub const TAIL: usize = 32;
/// Header: records for which there was no room.
pub const LOST: usize = 48;

/// Record: its number since the beginning, plus 1. Written last, when the record is whole.
pub const TURN: usize = 0;
/// Record: `CLOCK_MONOTONIC`, in nanoseconds, before the call.
pub const TIME: usize = 1;
/// Record: one of the kinds below.
pub const KIND: usize = 2;
/// Record: the process in the upper half, the thread in the lower.
pub const WHO: usize = 3;
/// Record: the first byte's address.
pub const ADDRESS: usize = 4;
/// Record: the length in bytes.
pub const LENGTH: usize = 5;
/// Record of a block: the address that the allocator returns to.
pub const RETURN: usize = 6;
/// Record of a block: the stack pointer there, behind the return address.
pub const STACK: usize = 7;
/// Record of a block: the number of [frames](FRAMES), and in the upper half that of [words](WINDOW).
pub const COUNTS: usize = 8;
/// Record of a block: the frame pointer there. Behind it are two words for each frame, to which the frame
/// pointer points: the frame pointer before, and a return address.
pub const FRAMES: usize = 9;
/// The most frames.
pub const MOST_FRAMES: usize = 8;
/// Record of a block: the top of the stack, from [`STACK`] on.
pub const WINDOW: usize = FRAMES + 1 + 2 * MOST_FRAMES;
/// The most words of it.
pub const MOST_WINDOW: usize = RECORD_WORDS - WINDOW;
/// Record of a mapping's text: the text, from this word on.
pub const TEXT: usize = 8;
/// The most bytes of it.
pub const MOST_TEXT: usize = 8 * (RECORD_WORDS - TEXT);

/// A part of `/proc/PID/maps` of a program that begins. The address is the part's place in the text.
pub const MAPPINGS: u64 = 1;
/// The process was forked from the one whose number is the address.
pub const FORKED: u64 = 2;
/// The allocator has given a block.
pub const ALLOCATED: u64 = 3;
/// A block goes back to the allocator. One that was never told may be told here.
pub const FREED: u64 = 4;
/// Anonymous memory was mapped.
pub const MAPPED: u64 = 5;
/// Memory is unmapped, or something else is mapped there.
pub const UNMAPPED: u64 = 6;
