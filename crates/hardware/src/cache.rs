//! Tags of a set-associative cache with LRU replacement. No data: values are the program's.

/// The core that holds the line may write it without asking.
pub(crate) const WRITABLE: u64 = 1;
/// The line differs from memory.
pub(crate) const DIRTY: u64 = 2;
const HOME_SHIFT: u32 = 4;
const LINE_SHIFT: u32 = 8;

/// A line in a cache: its number, its home node, its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

/// A place without a line: no address has this line number.
const EMPTY: Entry = Entry(u64::MAX);

impl Entry {
    #[inline]
    pub fn new(line: u64, home: usize, state: u64) -> Entry {
        Entry(line << LINE_SHIFT | (home as u64) << HOME_SHIFT | state)
    }

    #[inline]
    pub fn line(self) -> u64 {
        self.0 >> LINE_SHIFT
    }

    #[inline]
    pub fn home(self) -> usize {
        (self.0 >> HOME_SHIFT & 15) as usize
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
    fn holds(self, line: u64) -> bool {
        self.0 >> LINE_SHIFT == line
    }
}

/// The tags. A set's entries are in the order of their last use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tags {
    sets: u64,
    ways: usize,
    entries: Vec<Entry>,
    /// Beside each entry the cores of the node that may hold the line; only in an LLC.
    sharers: Vec<u32>,
}

impl Tags {
    /// An empty cache of at least one set.
    pub fn new(lines: u64, ways: usize, with_sharers: bool) -> Tags {
        let sets = (lines / ways as u64).max(1);
        let entries = vec![EMPTY; sets as usize * ways];
        let sharers = if with_sharers { vec![0; entries.len()] } else { Vec::new() };
        Tags { sets, ways, entries, sharers }
    }

    /// The first entry of the line's set. Sets need not be a power of two; neighbouring lines fall evenly on the sets
    /// (Fibonacci hashing), and lines a power of two apart do not fall on one, as in today's hashed LLCs.
    #[inline]
    fn set(&self, line: u64) -> usize {
        let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (hash * self.sets >> 32) as usize * self.ways
    }

    /// The entry of a line, which becomes the one used last.
    #[inline]
    pub fn touch(&mut self, line: u64) -> Option<&mut Entry> {
        let first = self.set(line);
        let set = &mut self.entries[first..first + self.ways];
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
        if !self.sharers.is_empty() {
            self.sharers[first..=first + at].rotate_right(1);
        }
        Some(&mut set[0])
    }

    /// The entry of a line and the cores that may hold it, without any use of it.
    #[inline]
    pub fn find(&mut self, line: u64) -> Option<(&mut Entry, u32)> {
        let first = self.set(line);
        let at = first + self.entries[first..first + self.ways].iter().position(|entry| entry.holds(line))?;
        let sharers = self.sharers.get(at).copied().unwrap_or(0);
        Some((&mut self.entries[at], sharers))
    }

    /// The cores that may hold the line used last in its set.
    #[inline]
    pub fn sharers_of_touched(&mut self, line: u64) -> &mut u32 {
        let first = self.set(line);
        debug_assert!(self.entries[first].holds(line));
        &mut self.sharers[first]
    }

    /// Puts a line in, which is not there; returns the one it displaces and the cores that may hold that.
    #[inline]
    pub fn insert(&mut self, entry: Entry, sharers: u32) -> Option<(Entry, u32)> {
        let first = self.set(entry.line());
        let set = &mut self.entries[first..first + self.ways];
        let victim = *set.last()?;
        for index in (0..set.len() - 1).rev() {
            set[index + 1] = set[index];
        }
        set[0] = entry;
        let mut victim_sharers = 0;
        if !self.sharers.is_empty() {
            let set = &mut self.sharers[first..first + self.ways];
            victim_sharers = set[self.ways - 1];
            set.copy_within(0..self.ways - 1, 1);
            set[0] = sharers;
        }
        (victim != EMPTY).then_some((victim, victim_sharers))
    }

    /// Takes a line out.
    #[inline]
    pub fn remove(&mut self, line: u64) -> Option<(Entry, u32)> {
        let first = self.set(line);
        let at = self.entries[first..first + self.ways].iter().position(|entry| entry.holds(line))?;
        let entry = self.entries[first + at];
        // The hole goes to the end of the set, where it is filled first.
        self.entries[first + at..first + self.ways].rotate_left(1);
        self.entries[first + self.ways - 1] = EMPTY;
        let mut sharers = 0;
        if !self.sharers.is_empty() {
            self.sharers[first + at..first + self.ways].rotate_left(1);
            sharers = std::mem::take(&mut self.sharers[first + self.ways - 1]);
        }
        Some((entry, sharers))
    }

    /// All lines in it.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().copied().filter(|&entry| entry != EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_recently_used_line_is_displaced() {
        let mut tags = Tags::new(2, 2, true);
        assert_eq!(tags.insert(Entry::new(1, 0, 0), 1), None);
        assert_eq!(tags.insert(Entry::new(2, 3, DIRTY), 2), None);
        assert!(tags.touch(1).is_some());
        let (victim, sharers) = tags.insert(Entry::new(3, 0, 0), 4).unwrap();
        assert_eq!((victim.line(), victim.home(), victim.has(DIRTY), sharers), (2, 3, true, 2));
        assert_eq!(*tags.sharers_of_touched(3), 4);
        assert_eq!(tags.remove(1).map(|(_, sharers)| sharers), Some(1));
        assert!(tags.find(1).is_none());
    }

    #[test]
    fn an_array_as_big_as_the_cache_fits() {
        for lines in [512, 24_576, 28_672] {
            let mut tags = Tags::new(lines, 16, false);
            let displaced =
                (5000..5000 + lines).filter(|&line| tags.insert(Entry::new(line, 0, 0), 0).is_some());
            assert!(displaced.count() as u64 * 50 <= lines);
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_list_in_order_of_use_holds(lines in prop::collection::vec(0u64..12, 1..200)) {
            let mut tags = Tags::new(8, 8, false);
            let mut model: Vec<u64> = Vec::new();
            for line in lines {
                let held = model.contains(&line);
                prop_assert_eq!(tags.touch(line).is_some(), held);
                if !held {
                    tags.insert(Entry::new(line, 0, 0), 0);
                }
                model.retain(|&other| other != line);
                model.insert(0, line);
                model.truncate(8);
            }
        }
    }
}
