//! A sorted table from page number to a few bytes: as small as a list, and filled by merging sorted batches.

/// Pages in ascending order, each with `stride` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    stride: usize,
    pages: Vec<u64>,
    bytes: Vec<u8>,
}

impl Table {
    /// An empty table.
    pub fn new(stride: usize) -> Self {
        Self { stride, pages: Vec::new(), bytes: Vec::new() }
    }

    /// How many pages there are.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// The pages, ascending.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// The record of the page at a position.
    pub fn record(&self, at: usize) -> &[u8] {
        &self.bytes[at * self.stride..(at + 1) * self.stride]
    }

    /// The record of the page at a position.
    pub fn record_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at * self.stride..(at + 1) * self.stride]
    }

    /// The positions of the pages in `start..end`.
    pub fn positions(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.pages.partition_point(|&page| page < start);
        let count = self.pages[first..].partition_point(|&page| page < end);
        first..first + count
    }

    /// Where the page is.
    pub fn position(&self, page: u64) -> Option<usize> {
        self.pages.binary_search(&page).ok()
    }

    /// The first position at or after `from` whose page is not below `page`: quick when it is near.
    pub fn seek(&self, from: usize, page: u64) -> usize {
        let mut step = 1;
        let mut low = from;
        while low + step <= self.pages.len() && self.pages[low + step - 1] < page {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.pages.len());
        low + self.pages[low..high].partition_point(|&p| p < page)
    }

    /// How many of the first `to` pages are below `page`: quick when it is near the end.
    fn seek_back(&self, to: usize, page: u64) -> usize {
        let mut step = 1;
        let mut high = to;
        while high >= step && self.pages[high - step] >= page {
            high -= step;
            step *= 2;
        }
        let low = high.saturating_sub(step);
        low + self.pages[low..high].partition_point(|&p| p < page)
    }

    /// Inserts records of pages that are not in the table; ascending. In place, from the back.
    pub fn insert(&mut self, new_pages: &[u64], new_bytes: &[u8]) {
        let (stride, old, new) = (self.stride, self.pages.len(), new_pages.len());
        assert_eq!(new_bytes.len(), new * stride, "a record for each page");
        if new == 0 {
            return;
        }
        // A little slack instead of doubling: the table's size is a promise.
        let room = |len: usize| new.max(len / 16);
        if self.pages.capacity() < old + new {
            self.pages.reserve_exact(room(old));
            self.bytes.reserve_exact(room(old) * stride);
        }
        self.pages.resize(old + new, 0);
        self.bytes.resize((old + new) * stride, 0);
        let (mut read, mut write, mut next) = (old, old + new, new);
        while next > 0 {
            let page = new_pages[next - 1];
            // The run of old records above `page` moves up at once.
            let keep = self.seek_back(read, page);
            let run = read - keep;
            self.pages.copy_within(keep..read, write - run);
            self.bytes.copy_within(keep * stride..read * stride, (write - run) * stride);
            write -= run;
            read = keep;
            next -= 1;
            write -= 1;
            self.pages[write] = page;
            self.bytes[write * stride..(write + 1) * stride]
                .copy_from_slice(&new_bytes[next * stride..(next + 1) * stride]);
        }
    }

    /// Keeps the records that `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &[u8]) -> bool) {
        let stride = self.stride;
        let mut write = 0;
        for read in 0..self.pages.len() {
            if keep(self.pages[read], &self.bytes[read * stride..(read + 1) * stride]) {
                self.pages[write] = self.pages[read];
                self.bytes.copy_within(read * stride..(read + 1) * stride, write * stride);
                write += 1;
            }
        }
        self.pages.truncate(write);
        self.bytes.truncate(write * stride);
        if self.pages.capacity() > 2 * write + 1024 {
            self.pages.shrink_to_fit();
            self.bytes.shrink_to_fit();
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<u64>() + self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::Table;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn batches_merge_as_into_a_map(batches in prop::collection::vec(prop::collection::btree_set(0_u64..500, 0..60), 0..8)) {
            let mut table = Table::new(3);
            let mut model: BTreeMap<u64, [u8; 3]> = BTreeMap::new();
            for (round, batch) in batches.iter().enumerate() {
                let new: Vec<u64> = batch.iter().copied().filter(|p| !model.contains_key(p)).collect();
                let mut bytes = Vec::new();
                for &page in &new {
                    let record = [round as u8, page as u8, (page >> 8) as u8];
                    bytes.extend(record);
                    model.insert(page, record);
                }
                table.insert(&new, &bytes);
                let got: Vec<_> = (0..table.len()).map(|i| (table.pages()[i], table.record(i).to_vec())).collect();
                let want: Vec<_> = model.iter().map(|(&p, r)| (p, r.to_vec())).collect();
                prop_assert_eq!(got, want);
                for page in 0..500 {
                    prop_assert_eq!(table.seek(0, page), table.positions(0, page).end);
                }
            }
            table.retain(|page, _| page % 3 == 0);
            model.retain(|page, _| page % 3 == 0);
            prop_assert_eq!(table.pages().to_vec(), model.keys().copied().collect::<Vec<_>>());
        }
    }
}
