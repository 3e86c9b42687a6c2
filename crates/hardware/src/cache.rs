//! Tags of set-associative caches with LRU replacement. No data: values are the program's.

use crate::{MOST_NODES, host::load_ahead};

/// The core that holds the line may write it without asking.
pub(crate) const WRITABLE: u64 = 1;
/// The line differs from memory.
pub(crate) const DIRTY: u64 = 2;
const HOME_SHIFT: u32 = 2;
const HOME: u64 = 63;
const LINE_SHIFT: u32 = 8;
const _: () = assert!(MOST_NODES <= HOME as usize + 1);

/// A line in a cache: its number, its home node, its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

/// A place without a line: no address has this line number.
pub(crate) const EMPTY: Entry = Entry(u64::MAX);

impl Entry {
    #[inline]
    pub fn new(line: u64, home: usize, state: u64) -> Self {
        Self(line << LINE_SHIFT | (home as u64) << HOME_SHIFT | state)
    }

    #[inline]
    pub fn line(self) -> u64 {
        self.0 >> LINE_SHIFT
    }

    #[inline]
    pub fn home(self) -> usize {
        (self.0 >> HOME_SHIFT & HOME) as usize
    }

    #[inline]
    pub fn has(self, state: u64) -> bool {
        self.0 & state != 0
    }

    #[inline]
    pub fn set(&mut self, state: u64) {
        self.0 |= state;
    }

    #[inline]
    pub fn clear(&mut self, state: u64) {
        self.0 &= !state;
    }

    #[inline]
    pub fn holds(self, line: u64) -> bool {
        self.0 >> LINE_SHIFT == line
    }
}

/// Sets need not be a power of two; neighbouring lines fall evenly on them (Fibonacci hashing), and lines a
/// power of two apart do not fall on one, as in today's hashed LLCs.
#[inline]
pub(crate) fn set_of(line: u64, sets: u64) -> usize {
    let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash * sets >> 32) as usize
}

/// The tags of a core's own cache. A set's entries are in the order of their last use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tags {
    sets: u64,
    ways: usize,
    entries: Vec<Entry>,
}

impl Tags {
    /// An empty cache of at least one set.
    pub fn new(lines: u64, ways: usize) -> Self {
        let sets = (lines / ways as u64).max(1);
        Self { sets, ways, entries: vec![EMPTY; sets as usize * ways] }
    }

    /// The entries of the line's set.
    #[inline]
    fn set(&mut self, line: u64) -> &mut [Entry] {
        let first = set_of(line, self.sets) * self.ways;
        &mut self.entries[first..first + self.ways]
    }

    /// How many lines it can hold.
    #[inline]
    pub fn lines(&self) -> usize {
        self.entries.len()
    }

    /// A line will be asked for.
    #[inline]
    pub fn load_ahead(&self, line: u64) {
        let first = set_of(line, self.sets) * self.ways;
        load_ahead(&self.entries[first..first + self.ways]);
    }

    /// All lines will be asked for.
    pub fn load_all_ahead(&self) {
        load_ahead(&self.entries);
    }

    /// The entry of a line, which becomes the one used last.
    #[inline]
    pub fn touch(&mut self, line: u64) -> Option<&mut Entry> {
        let set = self.set(line);
        if set.first()?.holds(line) {
            return Some(&mut set[0]);
        }
        let at = set.iter().position(|entry| entry.holds(line))?;
        // A rotation by one, written out: short, and never worth a call.
        let entry = set[at];
        for index in (0..at).rev() {
            set[index + 1] = set[index];
        }
        set[0] = entry;
        Some(&mut set[0])
    }

    /// The entry of a line, without any use of it.
    #[inline]
    pub fn find(&mut self, line: u64) -> Option<&mut Entry> {
        self.set(line).iter_mut().find(|entry| entry.holds(line))
    }

    /// Puts a line in, which is not there, in place of the least recently used one.
    #[inline]
    pub fn insert(&mut self, entry: Entry) {
        let set = self.set(entry.line());
        for index in (1..set.len()).rev() {
            set[index] = set[index - 1];
        }
        if let Some(first) = set.first_mut() {
            *first = entry;
        }
    }

    /// Takes a line out.
    #[inline]
    pub fn remove(&mut self, line: u64) {
        let set = self.set(line);
        if let Some(at) = set.iter().position(|entry| entry.holds(line)) {
            // The hole goes to the end of the set, where it is filled first.
            set[at..].rotate_left(1);
            set[set.len() - 1] = EMPTY;
        }
    }

    /// All lines in it.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().copied().filter(|&entry| entry != EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_holds_what_a_list_in_order_of_use_holds(
            ways in 1..9usize,
            steps in prop::collection::vec((0u64..12, 0..4u8), 1..200),
        ) {
            let mut tags = Tags::new(ways as u64, ways);
            let mut model: Vec<u64> = Vec::new();
            for (line, what) in steps {
                let held = model.contains(&line);
                prop_assert_eq!(tags.find(line).map(|entry| entry.line()), held.then_some(line));
                model.retain(|&other| other != line);
                if what == 0 {
                    tags.remove(line);
                    continue;
                }
                prop_assert_eq!(tags.touch(line).is_some(), held);
                if !held {
                    tags.insert(Entry::new(line, 0, 0));
                }
                model.insert(0, line);
                model.truncate(ways);
            }
        }
    }
}
