//! A map from disjoint page ranges to values: what was done where.

use crate::PageRange;

/// Disjoint ranges in address order, each with a value.
#[derive(Clone, Debug)]
pub struct RangeMap<T> {
    entries: Vec<(PageRange, T)>,
    most: usize,
    dropped: u64,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), most: usize::MAX, dropped: 0 }
    }
}

impl<T: Clone + PartialEq> RangeMap<T> {
    /// A map that keeps no more ranges than so many: where there are more, it forgets every second one.
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
        self.replace(range, Some(value));
        self.thin();
    }

    /// Forgets the values in a range.
    pub fn remove(&mut self, range: PageRange) {
        self.replace(range, None);
    }

    fn replace(&mut self, range: PageRange, value: Option<T>) {
        if range.is_empty() {
            return;
        }
        let first = self.entries.partition_point(|(r, _)| r.end <= range.start);
        let last = first + self.entries[first..].partition_point(|(r, _)| r.start < range.end);
        let mut new = Vec::with_capacity(3);
        if let Some((r, old)) = self.entries[first..last].first() {
            if r.start < range.start {
                new.push((PageRange { start: r.start, end: range.start }, old.clone()));
            }
        }
        let tail = self.entries[first..last].last().filter(|(r, _)| r.end > range.end);
        let tail = tail.map(|(r, old)| (PageRange { start: range.end, end: r.end }, old.clone()));
        new.extend(value.map(|value| (range, value)));
        new.extend(tail);
        let count = new.len();
        self.entries.splice(first..last, new);
        self.join(first.saturating_sub(1), first + count + 1);
    }

    /// Forgets every second range, again and again, while there are too many.
    fn thin(&mut self) {
        while self.entries.len() > self.most {
            let before = self.entries.len();
            let mut odd = false;
            self.entries.retain(|_| {
                odd = !odd;
                odd && before > 1
            });
            self.dropped += (before - self.entries.len()) as u64;
            self.entries.shrink_to(self.most);
        }
    }

    /// Joins neighbours with equal values among the entries `from..to`.
    fn join(&mut self, from: usize, to: usize) {
        let mut i = to.min(self.entries.len());
        while i > from + 1 {
            i -= 1;
            let (left, right) = (&self.entries[i - 1], &self.entries[i]);
            if left.0.end == right.0.start && left.1 == right.1 {
                self.entries[i - 1].0.end = self.entries[i].0.end;
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
        self.entries.iter().map(|(range, value)| (*range, value))
    }

    /// The parts of a range: each with the value there, none where nothing is set. In order, and together the
    /// range.
    #[must_use]
    pub fn parts(&self, range: PageRange) -> Vec<(PageRange, Option<&T>)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let first = self.entries.partition_point(|(r, _)| r.end <= range.start);
        for (r, value) in self.entries[first..].iter().take_while(|(r, _)| r.start < range.end) {
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
        self.entries.retain(|(range, value)| keep(range, value));
    }

    /// Forgets what lies outside these ranges (disjoint, in order).
    pub fn clip(&mut self, inside: &[PageRange]) {
        let old = std::mem::take(&mut self.entries);
        for (range, value) in old {
            let first = inside.partition_point(|r| r.end <= range.start);
            for part in inside[first..].iter().take_while(|r| r.start < range.end) {
                self.entries.push((part.intersect(range), value.clone()));
            }
        }
        self.thin();
    }

    /// Bytes on the heap, those of the values aside.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(PageRange, T)>()
    }
}

#[cfg(test)]
mod tests {
    use super::RangeMap;
    use crate::PageRange;
    use proptest::prelude::*;

    #[test]
    fn a_map_keeps_what_it_has_room_for() {
        let mut map = RangeMap::with_most(100);
        for at in 0..100_000_u64 {
            map.insert(PageRange::new(2 * at, 2 * at + 1), at);
        }
        let kept: Vec<u64> = map.iter().map(|(_, &at)| at).collect();
        assert!((50..=100).contains(&kept.len()), "{}", kept.len());
        assert_eq!((kept.last(), map.dropped()), (Some(&99_999), 100_000 - kept.len() as u64));
        assert!(map.heap_bytes() < 200 * 24);
        // One range is cut into many.
        let mut map = RangeMap::with_most(100);
        map.insert(PageRange::new(0, 10_000), ());
        map.clip(&(0..1000).map(|at| PageRange::new(10 * at, 10 * at + 5)).collect::<Vec<_>>());
        assert!((50..=100).contains(&map.iter().count()));
        map.limit(0);
        assert!(map.is_empty());
    }

    proptest! {
        #[test]
        fn ranges_behave_as_an_array_of_pages(writes in prop::collection::vec((0_u64..60, 0_u64..20, 0_u8..5), 0..30)) {
            let mut map = RangeMap::default();
            let mut pages = [None; 80];
            for (start, len, value) in writes {
                let range = PageRange::new(start, start + len);
                if value == 4 { map.remove(range) } else { map.insert(range, value) }
                pages[start as usize..(start + len) as usize].fill(Some(value).filter(|&value| value != 4));
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
