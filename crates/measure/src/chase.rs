//! A walk in which each load says where the next one goes, so that nothing overlaps and nothing is foreseen.

use crate::slice::{LINE_BYTES, Slice};
use std::ptr;

/// Lines that prefetchers fetch as one: Intel's spatial prefetcher completes pairs of lines.
const PAIR_LINES: usize = 2;

/// One line of each pair of a slice, linked to a cycle in random order.
#[derive(Debug)]
pub struct Chase<'a> {
    slice: Slice<'a>,
    /// The line that the walk is at.
    at: *mut u64,
    pairs: usize,
}

// SAFETY: `at` points into the slice, which goes with it.
unsafe impl Send for Chase<'_> {}

impl<'a> Chase<'a> {
    /// Links a slice of at least a pair. The walk stays in windows of so many bytes, one after the other, so
    /// that the TLB misses seldom. With huge pages one window is all.
    ///
    /// The links are written in the order of the walk. Caches keep what was written last, so that a walk from
    /// the beginning finds little of it.
    pub fn new(slice: Slice<'a>, window_bytes: usize) -> Self {
        let pairs = slice.lines() / PAIR_LINES;
        assert!(pairs > 0, "a chase has a pair of lines at least");
        let lines = order(pairs, window_bytes / (PAIR_LINES * LINE_BYTES));
        let place = |line: u32| {
            // SAFETY: `order` gives lines of the slice only.
            unsafe { slice.start().add(line as usize) }.cast::<u64>()
        };
        for (index, &line) in lines.iter().enumerate() {
            let next = place(lines[(index + 1) % lines.len()]);
            let link = next.expose_provenance() as u64;
            // SAFETY: the line is the slice's, aligned, and longer than a link.
            unsafe { place(line).write(link) };
        }
        Self { at: place(lines[0]), slice, pairs }
    }

    /// Lines of the cycle.
    pub fn lines(&self) -> usize {
        self.pairs
    }

    /// Goes on by so many lines. Returns the place it has come to, so that nobody can leave the walk out.
    pub fn walk(&mut self, hops: usize) -> usize {
        let mut at = self.at;
        for _ in 0..hops {
            // SAFETY: every link of the cycle is the address of one of its lines. Only `new` and `rewrite`
            // write there.
            let link = unsafe { at.read_volatile() };
            at = ptr::with_exposed_provenance_mut(link as usize);
        }
        self.at = at;
        at.addr()
    }

    /// Once round the cycle, storing to each line: all of them are modified, and in the caches of this CPU as
    /// far as they fit.
    pub fn rewrite(&mut self) {
        for _ in 0..self.pairs {
            // SAFETY: as in `walk`.
            let link = unsafe { self.at.read_volatile() };
            // SAFETY: as in `walk`; the link stays as it was.
            unsafe { self.at.write_volatile(link) };
            self.at = ptr::with_exposed_provenance_mut(link as usize);
        }
    }

    /// Once round the cycle, after all its lines left every cache: this CPU alone has them, unmodified. False
    /// if this architecture lets no program do that.
    pub fn reread(&mut self) -> bool {
        let evicted = self.evict();
        self.walk(self.pairs);
        evicted
    }

    #[cfg(target_arch = "x86_64")]
    fn evict(&mut self) -> bool {
        for line in 0..self.slice.lines() {
            // SAFETY: the line is the slice's.
            let line = unsafe { self.slice.start().add(line) };
            // SAFETY: any mapped address may be flushed, and contents stay as they are.
            unsafe { std::arch::x86_64::_mm_clflush(line.cast()) };
        }
        // SAFETY: a fence does nothing but order accesses.
        unsafe { std::arch::asm!("mfence", options(nostack, preserves_flags)) };
        true
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[allow(clippy::unused_self)]
    fn evict(&mut self) -> bool {
        false
    }
}

/// One line of each pair, in the order of the walk. Windows of so many pairs follow each other in random
/// order, as do the lines of each.
fn order(pairs: usize, window: usize) -> Vec<u32> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut lines: Vec<u32> =
        (0..pairs).map(|pair| (pair * PAIR_LINES + random.below(PAIR_LINES)) as u32).collect();
    let mut windows: Vec<&mut [u32]> = lines.chunks_mut(window.max(1)).collect();
    random.shuffle(&mut windows);
    let mut walk = Vec::with_capacity(pairs);
    for window in windows {
        random.shuffle(window);
        walk.extend_from_slice(window);
    }
    walk
}

/// Marsaglia's xorshift, with Vigna's multiplication (xorshift64*).
struct Random(u64);

impl Random {
    /// A number below `bound`, which is below 2^32.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (high * bound as u64 >> 32) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::OwnedMemory;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Whatever the sizes: once round visits one line of every pair, and comes back.
        #[test]
        fn a_cycle_visits_one_line_of_each_pair_once(lines in 2_usize..3000, window in 0_usize..200_000) {
            let mut memory = OwnedMemory::new(lines * LINE_BYTES, 4096).unwrap();
            let slice = Slice::new(&mut memory.as_mut_bytes()[..lines * LINE_BYTES]);
            let start = slice.start().addr();
            let mut chase = Chase::new(slice, window);
            let first = chase.walk(0);
            let visited: Vec<usize> = (0..lines / 2).map(|_| (chase.walk(1) - start) / LINE_BYTES).collect();
            prop_assert_eq!(chase.walk(0), first);
            let pairs: BTreeSet<usize> = visited.iter().map(|line| line / 2).collect();
            prop_assert_eq!(pairs, (0..lines / 2).collect::<BTreeSet<_>>());
        }

        /// A window is left for good before the next begins.
        #[test]
        fn windows_follow_each_other(pairs in 1_usize..2000, window in 1_usize..300) {
            let mut windows: Vec<usize> =
                order(pairs, window).into_iter().map(|line| line as usize / 2 / window).collect();
            windows.dedup();
            prop_assert_eq!(windows.len(), pairs.div_ceil(window));
        }
    }

    #[test]
    fn writing_and_evicting_leave_the_cycle_as_it_is() {
        let mut memory = OwnedMemory::new(1 << 16, 4096).unwrap();
        let mut chase = Chase::new(Slice::new(memory.as_mut_bytes()), 1 << 16);
        let places = |chase: &mut Chase| (0..chase.lines()).map(|_| chase.walk(1)).collect::<Vec<_>>();
        let before = places(&mut chase);
        chase.rewrite();
        chase.reread();
        assert_eq!(places(&mut chase), before);
    }

    /// A walk whose next line were the neighbour would be foreseen.
    #[test]
    fn neighbours_seldom_follow_each_other() {
        let walk = order(10_000, 10_000);
        let near = walk.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 8).count();
        assert!(near < 50, "{near}");
    }
}
