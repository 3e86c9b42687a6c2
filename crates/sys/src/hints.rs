//! The section in which a program says how it uses its memory, and learns whether anybody listens.
//!
//! It is a memfd named [`NAME`], mapped shared by the program whose memory it speaks of, [`BYTES`] long and
//! sealed against growing and shrinking: `/proc/PID/maps` shows it as [`LINK`]. It holds words of 64 bits in
//! the machine's byte order:
//!
//! | word | what |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | the version, 1 |
//! | 2 | a sequence number, odd while the program changes what follows |
//! | 3 | how many entries there are, [`ENTRIES_MAX`] at most |
//! | 4 | written by the manager: until when it honours the hints, in ns of `CLOCK_MONOTONIC`; 0 if there is none |
//! | 5 to 7 | 0 |
//! | 8 and on | entries of four words: first address, one past the last address, kind, flags |
//!
//! Kinds are 1 private, 2 read-shared, 3 write-shared; flag 1 says that the program has interleaved the pages
//! itself. Entries do not overlap. A reader takes the sequence number, then everything, then the number
//! again: what it took is whole if both are equal and even. The program is the only writer but for word 4.
//!
//! A manager must not trust a word of it: [`entries`] leaves out what makes no sense, and what is left may
//! still name any address.

use std::ffi::CStr;

/// The memfd's name.
pub const NAME: &CStr = c"nodewise-hints";
/// The memfd's name in `/proc/PID/maps` and in the links of `/proc/PID/fd`.
pub const LINK: &str = "/memfd:nodewise-hints (deleted)";
/// Its length.
pub const BYTES: usize = 32 << 10;
/// The same in words.
pub const WORDS: usize = BYTES / 8;
/// Word 0.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"nodewise");
/// Word 1.
pub const VERSION: u64 = 1;
/// Which word is the sequence number.
pub const SEQUENCE: usize = 2;
/// Which word is the number of entries.
pub const COUNT: usize = 3;
/// Which word says until when the hints are honoured.
pub const MANAGED_UNTIL_NS: usize = 4;
/// Which word the entries begin at.
pub const ENTRIES: usize = 8;
/// How many entries there is room for.
pub const ENTRIES_MAX: usize = (WORDS - ENTRIES) / 4;

/// How a range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// Each page by threads of one node.
    Private = 1,
    /// Read by many, hardly ever written.
    ReadShared = 2,
    /// Written by many.
    WriteShared = 3,
}

/// A range and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The first address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// How it is used.
    pub kind: Kind,
    /// Whether the program has interleaved the pages itself.
    pub interleaved: bool,
}

impl Entry {
    /// As it lies in the section.
    #[must_use]
    pub const fn words(self) -> [u64; 4] {
        [self.start, self.end, self.kind as u64, self.interleaved as u64]
    }

    /// None for what makes no sense.
    #[must_use]
    pub fn parse(words: [u64; 4]) -> Option<Self> {
        let [start, end, kind, flags] = words;
        let kind = [Kind::Private, Kind::ReadShared, Kind::WriteShared]
            .into_iter()
            .find(|&known| known as u64 == kind)?;
        (start < end).then_some(Self { start, end, kind, interleaved: flags & 1 == 1 })
    }
}

/// Whether these first words are a section's; a manager writes into no file that is not one.
#[must_use]
pub fn is_section(words: &[u64]) -> bool {
    words.len() > MANAGED_UNTIL_NS && words[0] == MAGIC && words[1] == VERSION
}

/// The entries of a whole section, in order; those that make no sense are left out. None if this is no
/// section, or one that was being changed.
#[must_use]
pub fn entries(words: &[u64]) -> Option<Vec<Entry>> {
    let count = usize::try_from(*words.get(COUNT)?).ok()?;
    if words.len() != WORDS || !is_section(words) || words[SEQUENCE] % 2 != 0 || count > ENTRIES_MAX {
        return None;
    }
    let entries = words[ENTRIES..].chunks_exact(4).take(count);
    Some(entries.filter_map(|words| Entry::parse([words[0], words[1], words[2], words[3]])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_entry() -> impl Strategy<Value = Entry> {
        let kind = prop_oneof![Just(Kind::Private), Just(Kind::ReadShared), Just(Kind::WriteShared)];
        (any::<u64>(), any::<u64>(), kind, any::<bool>())
            .prop_filter("a range", |(a, b, _, _)| a != b)
            .prop_map(|(a, b, kind, interleaved)| Entry { start: a.min(b), end: a.max(b), kind, interleaved })
    }

    fn section(entries: &[Entry]) -> Vec<u64> {
        let mut words = vec![MAGIC, VERSION, 2, entries.len() as u64, 0, 0, 0, 0];
        words.extend(entries.iter().flat_map(|entry| entry.words()));
        words.resize(WORDS, 0);
        words
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_written_is_read(written in proptest::collection::vec(any_entry(), 0..100)) {
            prop_assert_eq!(entries(&section(&written)), Some(written));
        }

        #[test]
        fn any_words_are_read_without_harm(
            header in proptest::collection::vec(prop_oneof![any::<u64>(), 0..5_u64], 0..8),
            body in proptest::collection::vec(prop_oneof![any::<u64>(), 0..5_u64], 0..200),
            right in 0..9_usize,
        ) {
            let mut words = section(&[]);
            words[ENTRIES..ENTRIES + body.len()].copy_from_slice(&body[..body.len()]);
            for (at, &word) in header.iter().enumerate().skip(right) {
                words[at] = word;
            }
            if let Some(entries) = entries(&words) {
                prop_assert!(entries.len() as u64 <= words[COUNT]);
                prop_assert!(entries.iter().all(|entry| entry.start < entry.end));
            }
            prop_assert_eq!(entries(&words[..words.len() - 1]), None);
        }
    }

    #[test]
    fn what_is_no_section_is_not_read() {
        let good = section(&[]);
        for (word, wrong) in [(0, 0), (1, 2), (SEQUENCE, 3), (COUNT, ENTRIES_MAX as u64 + 1)] {
            let mut words = good.clone();
            words[word] = wrong;
            assert_eq!(entries(&words), None, "word {word}");
        }
        assert_eq!(entries(&[]), None);
        assert!(!is_section(&[]));
    }
}
