//! A program's accesses to memory as a file.
//!
//! # The format, version 2
//!
//! Numbers are varints unless a size is given. A varint has seven bits a byte, the least significant first,
//! and the eighth bit set in all bytes but the last. It has ten bytes at most. A line is an address divided
//! by 64, and its page is the line divided by 64.
//!
//! | part | content |
//! |---|---|
//! | magic | the 8 bytes `NWTRACE2`; the last is the version |
//! | threads | more than the highest number of one, 1 to 65 536 |
//! | blocks | any number, each as one of the two below |
//! | end | that number of threads, then the count of all accesses |
//!
//! | part of a block | content |
//! |---|---|
//! | thread | its number, from 0 on |
//! | accesses | how many there are, 1 to 65 536 |
//! | bytes | the length of the rest, at most 1 MiB |
//! | rest | the accesses, in the thread's order |
//!
//! | part of a wait | content |
//! |---|---|
//! | thread | the number of the one that waits |
//! | accesses | 0 |
//! | other | the number of the one that it waits for |
//! | done | how many accesses the other has done by then, in all |
//!
//! | part of an access | content |
//! |---|---|
//! | head | 8 x the step + 2 x the kind + 1 if instructions follow |
//! | instructions | any since the last access, at most 2^40 |
//!
//! A step is the line minus that of the thread's last access (0 before the first), in zigzag. So 0, -1, 1, -2
//! become 0, 1, 2, 3. Lines are below 2^58. A tracer of several processes adds 2^41 times its number to each
//! one's lines, so that they share none.
//!
//! Kind 0 is a read, 1 a write, and 2 an atomic read-modify-write. Kind 3 is a read at an address that
//! depends on the read before. A tracer that cannot tell the last two apart writes writes and reads.
//!
//! A wait says that the thread's next access comes after the other's first so many. All of these are before
//! it in the file, so that threads never wait in a circle. Version 1 is version 2 without waits.
//!
//! Steps make files small: a program that goes through an array takes one or two bytes an access. Nothing in
//! a file makes a reader keep more than a block of each thread. Nothing follows the end. A file that is cut
//! short has no end, and a reader says so.
#![forbid(unsafe_code)]

mod read;
mod write;

pub use read::{Block, Error, Part, Reader};
pub use write::Writer;

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Most threads of a file.
pub const MOST_THREADS: usize = 1 << 16;
/// Most accesses of a block.
pub const MOST_ACCESSES: usize = 1 << 16;
/// Most bytes of a block's accesses.
pub const MOST_BYTES: usize = 1 << 20;
/// Lines are below this.
pub const LINES: u64 = 1 << 58;
/// Lines of each process, in a file of several.
pub const PROCESS_LINES: u64 = 1 << 41;
/// Most instructions between two accesses.
pub const MOST_INSTRUCTIONS: u64 = 1 << 40;

const MAGIC: [u8; 7] = *b"NWTRACE";
const VERSION: u8 = b'2';
/// The versions that can be read.
const VERSIONS: &[u8] = b"12";

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A read and write in one atomic instruction.
    Atomic,
    /// A read at an address that depends on the read before.
    Chase,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Atomic, Self::Chase];
}

/// An access of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Instructions of the thread since its last access.
    pub instructions: u64,
    /// The line, which is the address divided by [`LINE_BYTES`].
    pub line: u64,
    /// How it is touched.
    pub kind: Kind,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn write(threads: usize, accesses: &[(usize, Access)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), threads).unwrap();
        for (thread, access) in accesses {
            writer.access(*thread, *access).unwrap();
        }
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<(usize, Access)>, Error> {
        let mut reader = Reader::new(Cursor::new(bytes))?;
        let mut lines = vec![0; reader.threads()];
        let mut all = Vec::new();
        while let Some(part) = reader.next_part()? {
            let Part::Accesses(block) = part else { continue };
            let thread = block.thread();
            block.decode(&mut lines[thread], |access| all.push((thread, access)))?;
        }
        Ok(all)
    }

    fn accesses() -> impl Strategy<Value = Vec<(usize, Access)>> {
        let kind = prop::sample::select(Kind::ALL.to_vec());
        let instructions = prop_oneof![Just(0), 0u64..100, 0..=MOST_INSTRUCTIONS];
        let line = prop_oneof![0u64..1000, 0..LINES];
        let access = (instructions, line, kind).prop_map(|(instructions, line, kind)| Access {
            instructions,
            line,
            kind,
        });
        prop::collection::vec((0usize..5, access), 0..300)
    }

    proptest! {
        #[test]
        fn each_thread_has_the_accesses_that_were_written(accesses in accesses()) {
            let found = read(&write(5, &accesses)).unwrap();
            prop_assert_eq!(found.len(), accesses.len());
            for thread in 0..5 {
                let of = |all: &[(usize, Access)]| -> Vec<Access> {
                    all.iter().filter(|(number, _)| *number == thread).map(|(_, access)| *access).collect()
                };
                prop_assert_eq!(of(&found), of(&accesses));
            }
        }

        #[test]
        fn a_file_that_is_cut_short_is_no_file(accesses in accesses(), share in 0.0..1.0f64) {
            let bytes = write(5, &accesses);
            let cut = (bytes.len() as f64 * share) as usize;
            prop_assert!(read(&bytes[..cut]).is_err());
        }

        #[test]
        fn any_bytes_are_a_file_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let _ = read(&[b"NWTRACE2", &bytes[..]].concat());
        }
    }

    #[test]
    fn a_pass_through_an_array_takes_a_byte_an_access() {
        let pass = |line: u64| (0, Access { instructions: 0, line: 1000 + line, kind: Kind::Read });
        let accesses: Vec<_> = (0..300_000).map(pass).collect();
        let bytes = write(1, &accesses);
        assert!(bytes.len() < 301_000, "{}", bytes.len());
        assert_eq!(read(&bytes).unwrap(), accesses);
    }

    /// The example of the documentation, byte by byte.
    #[test]
    fn the_format_is_the_documented_one() {
        let access = |instructions, line, kind| Access { instructions, line, kind };
        let bytes = write(2, &[(1, access(3, 2, Kind::Write)), (1, access(0, 1, Kind::Chase))]);
        // Step 2 is zigzag 4, and step -1 is zigzag 1.
        let block = [1, 2, 3, 4 * 8 + 2 + 1, 3, 8 + 6];
        assert_eq!(bytes, [b"NWTRACE2", &[2][..], &block[..], &[2, 2][..]].concat());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(said(b"ELF"), "it ends at byte 3, before its end");
        assert_eq!(said(b"NWTRACE3\x01\x01\x00"), "version 3 is not known, and 1 and 2 are");
        assert_eq!(said(b"something else"), "it is no trace: it does not begin with NWTRACE");
        assert_eq!(said(b"NWTRACE1\x00"), "byte 8: 0 threads, not 1 to 65536");
        let huge = [b"NWTRACE1\x01\x00\x01", &[0xff, 0xff, 0xff, 0x7f][..]].concat();
        assert_eq!(said(&huge), "byte 11: a block of 268435455 bytes, and 1048576 is the most");
        let before = b"NWTRACE1\x01\x00\x01\x01\x08\x01\x01";
        assert_eq!(said(before), "byte 12: a step of -1 from line 0 leads beyond 2^58");
        assert_eq!(said(b"NWTRACE1\x01\x01\x07"), "byte 9: it ends with 7 accesses, and has 0");
        assert_eq!(said(b"NWTRACE1\x01\x05"), "byte 9: thread 5 of 1");
        let early = b"NWTRACE2\x02\x00\x00\x01\x03";
        assert_eq!(said(early), "byte 11: it waits for access 3 of thread 1, which has had 0");
        assert_eq!(said(b"NWTRACE2\x02\x00\x00\x02\x00"), "byte 11: it waits for thread 2 of 2");
    }

    #[test]
    fn waits_are_told_where_they_are() {
        let access = |line| Access { instructions: 0, line, kind: Kind::Read };
        let mut writer = Writer::new(Vec::new(), MOST_THREADS).unwrap();
        writer.access(0, access(1)).unwrap();
        writer.access(1, access(2)).unwrap();
        writer.access(0, access(3)).unwrap();
        let done = writer.done(0).unwrap();
        assert_eq!(done, 2);
        writer.access(0, access(4)).unwrap();
        writer.wait(1, 0, done).unwrap();
        writer.access(1, access(5)).unwrap();
        assert_eq!(writer.wait(1, 0, 4).unwrap_err().to_string(), "thread 0 has not had 4 accesses");
        let most = writer.most_bytes();
        let bytes = writer.finish().unwrap();
        assert!(bytes.len() as u64 <= most, "{} of {most}", bytes.len());
        let (mut reader, mut parts) = (Reader::new(Cursor::new(bytes)).unwrap(), Vec::new());
        while let Some(part) = reader.next_part().unwrap() {
            parts.push(match part {
                Part::Accesses(block) => format!("{} does {}", block.thread(), block.accesses()),
                Part::Wait { thread, other, done } => format!("{thread} waits for {done} of {other}"),
            });
        }
        assert_eq!(parts, ["0 does 2", "1 does 1", "1 waits for 2 of 0", "0 does 1", "1 does 1"]);
    }
}
