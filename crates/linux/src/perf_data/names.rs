//! The names of memory: what was mapped where, as records tell it one after the other.

use nodewise_engine::{PAGE_BYTES, PageRange, Pid};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Mappings that are kept, of all processes together: some 64 MiB.
const MOST_MAPPINGS: usize = 1 << 20;
/// Bytes of names that are kept.
const MOST_BYTES: usize = 64 << 20;

/// The number of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(u32);

impl Name {
    /// Its place among all.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names, each once.
#[derive(Default)]
pub(super) struct Names {
    numbers: HashMap<Vec<u8>, Name>,
    bytes: usize,
}

impl Names {
    /// The number of a name; none of memory that has none, and where there is no room for another.
    pub fn number(&mut self, name: &[u8]) -> Option<Name> {
        // perf_event_mmap_event in kernel/events/core.c.
        if name.is_empty() || name == b"//anon" {
            return None;
        }
        if let Some(&number) = self.numbers.get(name) {
            return Some(number);
        }
        let number = Name(self.numbers.len() as u32);
        self.bytes += name.len();
        (self.bytes <= MOST_BYTES).then(|| {
            self.numbers.insert(name.to_vec(), number);
            number
        })
    }

    /// All of them, by number.
    pub fn texts(&self) -> Vec<String> {
        let mut texts = vec![String::new(); self.numbers.len()];
        for (text, number) in &self.numbers {
            texts[number.index()] = String::from_utf8_lossy(text).into_owned();
        }
        texts
    }
}

/// A mapping.
#[derive(Clone, Copy)]
struct Mapped {
    end: u64,
    name: Option<Name>,
    /// Whether it begins with its file's first byte.
    has_first_byte: bool,
}

/// The mappings of processes.
#[derive(Default)]
pub(super) struct Mappings {
    /// By process and first byte.
    by_pid: BTreeMap<Pid, BTreeMap<u64, Mapped>>,
    /// All together.
    count: usize,
}

impl Mappings {
    /// Something is mapped, and whatever was there no longer is.
    pub fn map(&mut self, pid: Pid, Range { start, end }: Range<u64>, offset: u64, name: Option<Name>) {
        if start >= end || self.count >= MOST_MAPPINGS {
            return;
        }
        let mappings = self.by_pid.entry(pid).or_default();
        self.count -= mappings.len();
        let below = mappings.range(..start).next_back().filter(|(_, other)| other.end > start);
        let first = below.map_or(start, |(&first, _)| first);
        let hidden: Vec<(u64, Mapped)> = mappings.range(first..end).map(|(&at, &one)| (at, one)).collect();
        for (at, other) in hidden {
            mappings.remove(&at);
            for (from, to) in [(at, other.end.min(start)), (at.max(end), other.end)] {
                if from < to {
                    let has_first_byte = other.has_first_byte && from == at;
                    mappings.insert(from, Mapped { end: to, has_first_byte, ..other });
                }
            }
        }
        mappings.insert(start, Mapped { end, name, has_first_byte: offset == 0 });
        self.count += mappings.len();
    }

    /// A process has another program, and none of the memory that it had.
    pub fn forget(&mut self, pid: Pid) {
        self.count -= self.by_pid.remove(&pid).map_or(0, |mappings| mappings.len());
    }

    /// A child has its parent's memory.
    pub fn fork(&mut self, parent: Pid, child: Pid) {
        self.forget(child);
        let mappings = self.by_pid.get(&parent).cloned().unwrap_or_default();
        if self.count + mappings.len() <= MOST_MAPPINGS {
            self.count += mappings.len();
            self.by_pid.insert(child, mappings);
        }
    }

    /// The mappings that have a name.
    pub fn named(&self) -> impl Iterator<Item = (Pid, PageRange, Name)> + '_ {
        self.by_pid.iter().flat_map(|(&pid, mappings)| {
            mappings.iter().filter_map(move |(&start, mapped)| {
                let range = PageRange::new(start / PAGE_BYTES, mapped.end.div_ceil(PAGE_BYTES));
                Some((pid, range, mapped.name?))
            })
        })
    }

    /// Where a process has the first bytes of files.
    pub fn first_bytes(&self, pid: Pid) -> impl Iterator<Item = (Range<u64>, Name)> + '_ {
        let mappings = self.by_pid.get(&pid).into_iter().flatten();
        mappings
            .filter(|(_, mapped)| mapped.has_first_byte)
            .filter_map(|(&start, mapped)| Some((start..mapped.end, mapped.name?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_mapping_of_a_page_holds(
            maps in proptest::collection::vec((0_u64..64, 1_u64..32, 0_u8..3), 0..40),
        ) {
            let (mut names, mut mappings) = (Names::default(), Mappings::default());
            let texts: [&[u8]; 3] = [b"//anon", b"[heap]", b"/bin/solver"];
            let mut truth = [None; 128];
            for (start, pages, name) in maps {
                let name = names.number(texts[usize::from(name)]);
                mappings.map(Pid(1), start * PAGE_BYTES..(start + pages) * PAGE_BYTES, 0, name);
                truth[start as usize..][..pages as usize].fill(name);
            }
            mappings.fork(Pid(1), Pid(2));
            for pid in [1, 2] {
                let mut found = [None; 128];
                for (_, range, name) in mappings.named().filter(|(of, ..)| of.0 == pid) {
                    let pages = &mut found[range.start.0 as usize..range.end.0 as usize];
                    prop_assert!(pages.iter().all(Option::is_none), "two overlap");
                    pages.fill(Some(name));
                }
                prop_assert_eq!(found, truth);
            }
            mappings.forget(Pid(1));
            mappings.forget(Pid(2));
            prop_assert_eq!(mappings.count, 0);
        }
    }
}
