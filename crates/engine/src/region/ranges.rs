//! A map from disjoint page ranges to values: what was done where.

use crate::PageRange;

/// Disjoint ranges in address order, each with a value.
#[derive(Clone, Debug)]
pub struct RangeMap<T> {
    entries: Vec<Entry<T>>,
    most: usize,
    dropped: u64,
    /// How many values were set.
    sets: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    range: PageRange,
    value: T,
    /// The number of the call that set the value.
    set: u64,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), most: usize::MAX, dropped: 0, sets: 0 }
    }
}

impl<T: Clone + PartialEq> RangeMap<T> {
    /// A map that keeps no more ranges than so many. It forgets those whose values were set longest ago.
    #[must_use]
    pub fn with_most(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// From now on keeps no more ranges than so many.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
        self.thin();
    }

    /// How many ranges were forgotten for want of room.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sets the value of a range, cutting what was there.
    pub fn insert(&mut self, range: PageRange, value: T) {
        self.sets += 1;
        self.replace(range, &[Entry { range, value, set: self.sets }]);
        self.thin();
    }

    /// Forgets the values in a range.
    pub fn remove(&mut self, range: PageRange) {
        self.replace(range, &[]);
    }

    /// Changes the values that are there in a range, which makes them no younger.
    pub fn alter(&mut self, range: PageRange, mut change: impl FnMut(&T) -> T) {
        let first = self.first(range);
        let there = self.entries[first..].iter().take_while(|entry| entry.range.start < range.end);
        let changed: Vec<_> = there
            .map(|entry| Entry {
                range: entry.range.intersect(range),
                value: change(&entry.value),
                set: entry.set,
            })
            .collect();
        self.replace(range, &changed);
        self.thin();
    }

    /// The index of the first range that ends behind the beginning of this one.
    fn first(&self, range: PageRange) -> usize {
        self.entries.partition_point(|entry| entry.range.end <= range.start)
    }

    /// Puts these entries, which lie in the range, in the place of all that is there.
    fn replace(&mut self, range: PageRange, by: &[Entry<T>]) {
        if range.is_empty() {
            return;
        }
        let first = self.first(range);
        let last = first + self.entries[first..].partition_point(|entry| entry.range.start < range.end);
        let mut new = Vec::with_capacity(by.len() + 2);
        let old = &self.entries[first..last];
        if let Some(head) = old.first().filter(|entry| entry.range.start < range.start) {
            new.push(Entry { range: PageRange { end: range.start, ..head.range }, ..head.clone() });
        }
        new.extend_from_slice(by);
        if let Some(tail) = old.last().filter(|entry| entry.range.end > range.end) {
            new.push(Entry { range: PageRange { start: range.end, ..tail.range }, ..tail.clone() });
        }
        let count = new.len();
        self.entries.splice(first..last, new);
        self.join(first.saturating_sub(1), first + count + 1);
    }

    /// Forgets the oldest of too many ranges, and a quarter more, so that it is seldom done.
    fn thin(&mut self) {
        if self.entries.len() <= self.most {
            return;
        }
        let (before, keep) = (self.entries.len(), self.most / 4 * 3 + self.most % 4);
        let sets = self.entries.iter().map(|entry| entry.set).collect();
        let mut is_old = oldest(sets, before - keep);
        self.entries.retain(|entry| !is_old(entry.set));
        self.dropped += (before - self.entries.len()) as u64;
        self.entries.shrink_to(self.most);
    }

    /// Joins neighbours with equal values among the entries `from..to`.
    fn join(&mut self, from: usize, to: usize) {
        let mut i = to.min(self.entries.len());
        while i > from + 1 {
            i -= 1;
            let (left, right) = (&self.entries[i - 1], &self.entries[i]);
            if left.range.end == right.range.start && left.value == right.value {
                let (end, set) = (right.range.end, left.set.max(right.set));
                self.entries[i - 1].range.end = end;
                self.entries[i - 1].set = set;
                self.entries.remove(i);
            }
        }
    }

    /// Whether no range has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All ranges that have a value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (PageRange, &T)> {
        self.entries.iter().map(|entry| (entry.range, &entry.value))
    }

    /// The parts of a range: each with the value there, none where nothing is set. In order, and together the
    /// range.
    #[must_use]
    pub fn parts(&self, range: PageRange) -> Vec<(PageRange, Option<&T>)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let there = self.entries[self.first(range)..].iter();
        for Entry { range: r, value, .. } in there.take_while(|entry| entry.range.start < range.end) {
            let part = r.intersect(range);
            if at < part.start {
                parts.push((PageRange { start: at, end: part.start }, None));
            }
            parts.push((part, Some(value)));
            at = part.end;
        }
        if at < range.end {
            parts.push((PageRange { start: at, end: range.end }, None));
        }
        parts
    }

    /// Keeps the entries that `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&PageRange, &T) -> bool) {
        self.entries.retain(|entry| keep(&entry.range, &entry.value));
    }

    /// Forgets what lies outside these ranges (disjoint, in order).
    pub fn clip(&mut self, inside: &[PageRange]) {
        let old = std::mem::take(&mut self.entries);
        for entry in old {
            let first = inside.partition_point(|r| r.end <= entry.range.start);
            for part in inside[first..].iter().take_while(|r| r.start < entry.range.end) {
                self.entries.push(Entry { range: part.intersect(entry.range), ..entry.clone() });
            }
        }
        self.thin();
    }

    /// Bytes on the heap, those of the values aside.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>()
    }
}

/// Tells the `count` oldest of these ages, smaller being older, when each of them is asked about once. Among
/// equals those that are asked about first are older.
pub(crate) fn oldest<A: Copy + Ord>(mut ages: Vec<A>, count: usize) -> impl FnMut(A) -> bool {
    let last = (0 < count && count <= ages.len()).then(|| *ages.select_nth_unstable(count - 1).1);
    let mut equal = last.map_or(0, |last| count - ages.iter().filter(|&&age| age < last).count());
    move |age| match last {
        Some(last) if age == last => {
            let is_old = equal > 0;
            equal -= usize::from(is_old);
            is_old
        }
        Some(last) => age < last,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::RangeMap;
    use crate::PageRange;
    use proptest::prelude::*;

    #[test]
    fn a_map_keeps_what_was_set_last() {
        let mut map = RangeMap::with_most(100);
        let range = |at: u64| PageRange::new(2 * at, 2 * at + 1);
        for at in 0..100_000_u64 {
            // In no order of addresses, and one of them again and again.
            map.insert(range((at * 7919) % 100_003), at);
            map.insert(range(200_000), 1 << 32);
        }
        let mut kept: Vec<u64> = map.iter().map(|(_, &at)| at).collect();
        kept.sort_unstable();
        let count = kept.len() as u64;
        assert!((75..=100).contains(&count), "{count}");
        assert_eq!(kept, (100_001 - count..100_000).chain([1 << 32]).collect::<Vec<_>>());
        assert_eq!(map.dropped(), 100_001 - count);
        assert!(map.heap_bytes() < 200 * 32);
        // A change of a value does not make it any younger.
        let eldest = map.iter().min_by_key(|&(_, &at)| at).unwrap().0;
        map.alter(eldest, |_| 1 << 33);
        for at in 0..=100 - count {
            map.insert(range(300_000 + at), at);
        }
        assert!(map.iter().all(|(range, _)| range != eldest));
        // One range is cut into many.
        let mut map = RangeMap::with_most(100);
        map.insert(PageRange::new(0, 10_000), ());
        map.clip(&(0..1000).map(|at| PageRange::new(10 * at, 10 * at + 5)).collect::<Vec<_>>());
        assert!((75..=100).contains(&map.iter().count()));
        map.limit(0);
        assert!(map.is_empty());
    }

    #[test]
    fn the_oldest_are_as_many_as_asked_for() {
        let ages = [5, 1, 3, 3, 3, 9];
        for count in 0..=ages.len() {
            let mut is_old = super::oldest(ages.to_vec(), count);
            let old: Vec<usize> = (0..ages.len()).filter(|&at| is_old(ages[at])).collect();
            let mut all = [1, 2, 3, 4, 0, 5][..count].to_vec();
            all.sort_unstable();
            assert_eq!(old, all, "{count}");
        }
    }

    proptest! {
        #[test]
        fn ranges_behave_as_an_array_of_pages(writes in prop::collection::vec((0_u64..60, 0_u64..20, 0_u8..6), 0..30)) {
            let mut map = RangeMap::default();
            let mut pages = [None; 80];
            for (start, len, value) in writes {
                let range = PageRange::new(start, start + len);
                let there = &mut pages[start as usize..(start + len) as usize];
                match value {
                    4 => map.remove(range),
                    5 => map.alter(range, |value| (value + 1) % 3),
                    _ => map.insert(range, value),
                }
                for page in there.iter_mut() {
                    *page = match value {
                        4 => None,
                        5 => page.map(|value| (value + 1) % 3),
                        _ => Some(value),
                    };
                }
            }
            let mut got = [None; 80];
            let mut next = 0;
            for (range, value) in map.parts(PageRange::new(0, 80)) {
                prop_assert_eq!(range.start.0, next);
                next = range.end.0;
                got[range.start.0 as usize..range.end.0 as usize].fill(value.copied());
            }
            prop_assert_eq!(next, 80);
            prop_assert_eq!(&got[..], &pages[..]);
            let joined = map.iter().zip(map.iter().skip(1)).all(|(a, b)| a.0.end < b.0.start || a.1 != b.1);
            prop_assert!(joined, "equal neighbours are one entry");
        }
    }
}
