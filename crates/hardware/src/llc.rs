//! Tags of an LLC, and which of its cores may hold each line.

use crate::{
    MOST_CORES_A_NODE,
    cache::{EMPTY, Entry, set_of},
    host::load_ahead,
};

/// Cores of an LLC, by their numbers there: as many bits as its machine's largest LLC has cores. Lines of
/// most machines take four bytes for them.
pub(crate) trait CoreSet: Copy + Default + PartialEq + std::fmt::Debug {
    /// Most cores.
    const MOST: usize;

    /// One core.
    fn only(core: usize) -> Self;

    fn is_empty(self) -> bool;

    /// These and others.
    fn with(self, others: Self) -> Self;

    /// These without others.
    fn without(self, others: Self) -> Self;

    /// The cores in order.
    fn iter(self) -> impl Iterator<Item = usize> + use<Self>;
}

impl CoreSet for u32 {
    const MOST: usize = Self::BITS as usize;

    #[inline]
    fn only(core: usize) -> Self {
        1 << core
    }

    #[inline]
    fn is_empty(self) -> bool {
        self == 0
    }

    #[inline]
    fn with(self, others: Self) -> Self {
        self | others
    }

    #[inline]
    fn without(self, others: Self) -> Self {
        self & !others
    }

    #[inline]
    fn iter(mut self) -> impl Iterator<Item = usize> + use<> {
        std::iter::from_fn(move || {
            let core = self.trailing_zeros();
            (core < Self::BITS).then(|| {
                self &= self - 1;
                core as usize
            })
        })
    }
}

const WORDS: usize = MOST_CORES_A_NODE.div_ceil(u32::BITS as usize);

/// The cores of an LLC that has many.
pub(crate) type ManyCores = [u32; WORDS];

impl CoreSet for ManyCores {
    const MOST: usize = MOST_CORES_A_NODE;

    fn only(core: usize) -> Self {
        std::array::from_fn(|word| if word == core / 32 { u32::only(core % 32) } else { 0 })
    }

    fn is_empty(self) -> bool {
        self == [0; WORDS]
    }

    fn with(self, others: Self) -> Self {
        std::array::from_fn(|word| self[word] | others[word])
    }

    fn without(self, others: Self) -> Self {
        std::array::from_fn(|word| self[word] & !others[word])
    }

    fn iter(self) -> impl Iterator<Item = usize> + use<> {
        self.into_iter()
            .enumerate()
            .flat_map(|(word, cores)| CoreSet::iter(cores).map(move |core| word * 32 + core))
    }
}

/// The tags.
///
/// A set is a ring: from its head on, its entries are in the order of their last use. A new line overwrites
/// the least recently used entry, which becomes the head. No other entry moves, however many ways the set
/// has.
#[derive(Clone, Debug)]
pub(crate) struct Llc<S> {
    sets: u64,
    ways: usize,
    entries: Vec<Entry>,
    /// Beside each entry the cores that may hold the line.
    sharers: Vec<S>,
    /// Where in its set each ring begins.
    heads: Vec<u8>,
}

impl<S: CoreSet> Llc<S> {
    /// An empty cache of at least one set.
    pub fn new(lines: u64, ways: usize) -> Self {
        let sets = (lines / ways as u64).max(1);
        let all = sets as usize * ways;
        let sharers = vec![S::default(); all];
        Self { sets, ways, entries: vec![EMPTY; all], sharers, heads: vec![0; sets as usize] }
    }

    /// A line may come in: what it would displace.
    #[inline]
    pub fn load_victim_ahead(&self, line: u64) {
        let set = set_of(line, self.sets);
        let place = set * self.ways + before(usize::from(self.heads[set]), self.ways);
        load_ahead(&self.entries[place..=place]);
        load_ahead(&self.sharers[place..=place]);
    }

    /// The line's set, and where the line is in it.
    #[inline]
    fn position(&self, line: u64) -> Option<(usize, usize)> {
        let set = set_of(line, self.sets);
        let first = set * self.ways;
        let (older, newer) = self.entries[first..first + self.ways].split_at(usize::from(self.heads[set]));
        // The entries used last are the likeliest.
        let at = match newer.iter().position(|entry| entry.holds(line)) {
            Some(at) => older.len() + at,
            None => older.iter().position(|entry| entry.holds(line))?,
        };
        Some((set, at))
    }

    /// The entry of a line, which becomes the one used last, and the cores that may hold it.
    #[inline]
    pub fn touch(&mut self, line: u64) -> Option<(&mut Entry, &mut S)> {
        let (set, at) = self.position(line)?;
        let place = self.lead(set, at);
        Some((&mut self.entries[place], &mut self.sharers[place]))
    }

    /// The same, without any use of it.
    #[inline]
    pub fn find(&mut self, line: u64) -> Option<(&mut Entry, S)> {
        let (set, at) = self.position(line)?;
        let place = set * self.ways + at;
        Some((&mut self.entries[place], self.sharers[place]))
    }

    /// Puts a line in, which is not there; returns the one it displaces and the cores that may hold that.
    #[inline]
    pub fn insert(&mut self, entry: Entry, sharers: S) -> Option<(Entry, S)> {
        let set = set_of(entry.line(), self.sets);
        let head = before(usize::from(self.heads[set]), self.ways);
        self.heads[set] = head as u8;
        let place = set * self.ways + head;
        let victim = std::mem::replace(&mut self.entries[place], entry);
        let victim_sharers = std::mem::replace(&mut self.sharers[place], sharers);
        (victim != EMPTY).then_some((victim, victim_sharers))
    }

    /// Takes a line out; returns the cores that may hold it.
    #[inline]
    pub fn remove(&mut self, line: u64) -> Option<S> {
        let (set, at) = self.position(line)?;
        let place = self.lead(set, at);
        // The hole is the end of the ring, where it is filled first.
        self.heads[set] = after(usize::from(self.heads[set]), self.ways) as u8;
        self.entries[place] = EMPTY;
        Some(std::mem::take(&mut self.sharers[place]))
    }

    /// Makes an entry the head of its ring; those that were used since follow it. Returns its place.
    #[inline]
    fn lead(&mut self, set: usize, at: usize) -> usize {
        let (ways, first, head) = (self.ways, set * self.ways, usize::from(self.heads[set]));
        let entries = &mut self.entries[first..first + ways];
        let sharers = &mut self.sharers[first..first + ways];
        let moved = (entries[at], sharers[at]);
        let used_since = if at < head { at + ways - head } else { at - head };
        let mut place = at;
        if 2 * used_since < ways {
            while place != head {
                let newer = before(place, ways);
                (entries[place], sharers[place]) = (entries[newer], sharers[newer]);
                place = newer;
            }
        } else {
            // The entries used before it are fewer: they move up, and the place that becomes free is the new
            // head.
            let last = before(head, ways);
            while place != last {
                let older = after(place, ways);
                (entries[place], sharers[place]) = (entries[older], sharers[older]);
                place = older;
            }
            self.heads[set] = last as u8;
        }
        (entries[place], sharers[place]) = moved;
        first + place
    }

    /// All lines in it.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().copied().filter(|&entry| entry != EMPTY)
    }
}

/// The place before another on a ring of so many.
#[inline]
fn before(place: usize, ways: usize) -> usize {
    if place == 0 { ways - 1 } else { place - 1 }
}

/// The place after another.
#[inline]
fn after(place: usize, ways: usize) -> usize {
    if place + 1 == ways { 0 } else { place + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::DIRTY;
    use proptest::prelude::*;

    #[test]
    fn the_least_recently_used_line_is_displaced() {
        let mut llc = Llc::<u32>::new(2, 2);
        assert_eq!(llc.insert(Entry::new(1, 0, 0), 1), None);
        assert_eq!(llc.insert(Entry::new(2, 63, DIRTY), 2), None);
        assert!(llc.touch(1).is_some());
        let (victim, sharers) = llc.insert(Entry::new(3, 0, 0), 4).unwrap();
        assert_eq!((victim.line(), victim.home(), victim.has(DIRTY), sharers), (2, 63, true, 2));
        assert_eq!(llc.touch(3).map(|(_, sharers)| *sharers), Some(4));
        assert_eq!(llc.remove(1), Some(1));
        assert!(llc.find(1).is_none());
    }

    #[test]
    fn an_array_as_big_as_the_cache_fits() {
        for lines in [512, 24_576, 28_672] {
            let mut llc = Llc::<u32>::new(lines, 16);
            let displaced =
                (5000..5000 + lines).filter(|&line| llc.insert(Entry::new(line, 0, 0), 0).is_some());
            assert!(displaced.count() as u64 * 50 <= lines);
        }
    }

    fn a_set_has<S: CoreSet>(cores: &[usize]) {
        let set = cores.iter().fold(S::default(), |set, &core| set.with(S::only(core)));
        assert_eq!(CoreSet::iter(set).collect::<Vec<_>>(), cores);
        let (last, others) = cores.split_last().unwrap();
        let rest = set.without(S::only(*last));
        assert_eq!(CoreSet::iter(rest).collect::<Vec<_>>(), others);
        assert!(S::only(*last).without(set).is_empty() && !rest.is_empty() && rest != set);
    }

    #[test]
    fn a_set_of_cores_has_each_of_those_that_there_may_be() {
        a_set_has::<u32>(&[0, 7, 31]);
        a_set_has::<ManyCores>(&[0, 31, 32, 63, 64, MOST_CORES_A_NODE - 1]);
        a_set_has::<ManyCores>(&(0..ManyCores::MOST).collect::<Vec<_>>());
    }

    /// It holds what a list in the order of use holds.
    fn is_as_a_list<S: CoreSet>(ways: usize, steps: Vec<(u64, u8)>) {
        let mut llc = Llc::<S>::new(ways as u64, ways);
        let mut model: Vec<(u64, S)> = Vec::new();
        for (number, (line, what)) in steps.into_iter().enumerate() {
            let cores = S::only(number * 7 % S::MOST);
            let at = model.iter().position(|held| held.0 == line);
            let held = at.map(|at| model.remove(at));
            if what == 0 {
                assert_eq!(llc.remove(line), held.map(|held| held.1));
                continue;
            }
            assert_eq!(llc.find(line).map(|(entry, sharers)| (entry.line(), sharers)), held);
            if let Some((_, sharers)) = llc.touch(line) {
                *sharers = cores;
            } else {
                let displaced = if model.len() == ways { model.pop() } else { None };
                let victim = llc.insert(Entry::new(line, 0, 0), cores);
                assert_eq!(victim.map(|(entry, sharers)| (entry.line(), sharers)), displaced);
            }
            model.insert(0, (line, cores));
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_list_in_order_of_use_holds(
            ways in 1..9usize,
            steps in prop::collection::vec((0u64..12, 0..4u8), 1..200),
        ) {
            is_as_a_list::<u32>(ways, steps.clone());
            is_as_a_list::<ManyCores>(ways, steps);
        }
    }
}
