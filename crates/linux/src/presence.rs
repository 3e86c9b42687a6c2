//! Which pages of a process have been there before: the first fault on a page allocates it and says nothing about who uses it
//! later, while every further one is a hint fault.

use nodewise_engine::{HUGE_PAGE_PAGES, Mapping, PageNumber};
use std::collections::HashMap;

/// The pages of one process that are known to be present, one bit each.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// By the first page of each 2 MiB.
    blocks: HashMap<u64, [u64; WORDS]>,
}

const WORDS: usize = HUGE_PAGE_PAGES as usize / 64;

impl Presence {
    /// Notes that the page is present; whether it was known already.
    pub(crate) fn note(&mut self, page: PageNumber) -> bool {
        let (word, bit) = Self::place(page);
        let block = self.blocks.entry(page.huge().0).or_default();
        let before = block[word] & bit != 0;
        block[word] |= bit;
        before
    }

    /// Notes that all pages of a huge page are present.
    pub(crate) fn note_huge(&mut self, page: PageNumber) {
        self.blocks.insert(page.huge().0, [u64::MAX; WORDS]);
    }

    /// Forgets what lies outside of these mappings (in address order): if it is mapped again, it is allocated again.
    pub(crate) fn keep_mapped(&mut self, mappings: &[Mapping]) {
        let is_mapped = |page: u64| {
            let after = mappings.partition_point(|mapping| mapping.range.start.0 <= page);
            mappings[..after].last().is_some_and(|mapping| page < mapping.range.end.0)
        };
        self.blocks.retain(|&first, words| {
            let last = first + HUGE_PAGE_PAGES - 1;
            let after = mappings.partition_point(|mapping| mapping.range.start.0 <= first);
            let whole = mappings[..after].last().is_some_and(|mapping| last < mapping.range.end.0);
            if !whole {
                for page in (first..=last).filter(|&page| !is_mapped(page)) {
                    let (word, bit) = Self::place(PageNumber(page));
                    words[word] &= !bit;
                }
            }
            words.iter().any(|&word| word != 0)
        });
    }

    fn place(page: PageNumber) -> (usize, u64) {
        let at = page.0 % HUGE_PAGE_PAGES;
        ((at / 64) as usize, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{MappingKind, PageRange};

    fn mapping(start: u64, end: u64) -> Mapping {
        Mapping { range: PageRange::new(start, end), writable: true, kind: MappingKind::Anonymous }
    }

    #[test]
    fn only_the_first_note_is_new() {
        let mut presence = Presence::default();
        for page in [0, 63, 64, 511, 512, 1 << 35] {
            assert!(!presence.note(PageNumber(page)));
            assert!(presence.note(PageNumber(page)));
        }
        presence.note_huge(PageNumber(1025));
        assert!(presence.note(PageNumber(1024)) && presence.note(PageNumber(1535)));
    }

    #[test]
    fn what_was_unmapped_is_new_again() {
        let mut presence = Presence::default();
        for page in 0..2048 {
            presence.note(PageNumber(page));
        }
        presence.keep_mapped(&[mapping(0, 512), mapping(600, 700), mapping(1024, 1536)]);
        for page in 0..2048 {
            let mapped = page < 512 || (600..700).contains(&page) || (1024..1536).contains(&page);
            assert_eq!(presence.note(PageNumber(page)), mapped, "{page}");
        }
    }
}
