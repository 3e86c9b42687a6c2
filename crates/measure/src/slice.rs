//! Memory that one thread works on, without the checks that a measurement cannot have.

use std::marker::PhantomData;

/// Bytes of a line, on every machine that is measured.
pub const LINE_BYTES: usize = 64;

/// A line of memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line([u8; LINE_BYTES]);

/// A part of a mapping that is this value's alone: whole lines.
#[derive(Debug)]
pub struct Slice<'a> {
    start: *mut Line,
    lines: usize,
    memory: PhantomData<&'a mut [Line]>,
}

// SAFETY: a slice is like `&mut [Line]`: nobody else reaches its memory while it lives.
unsafe impl Send for Slice<'_> {}

impl<'a> Slice<'a> {
    /// Memory that nobody else uses while the slice lives, less what is no whole line.
    ///
    /// # Panics
    /// If it does not begin at a line.
    pub fn new(memory: &'a mut [u8]) -> Self {
        // SAFETY: all values of bytes make a line.
        let (before, lines, _) = unsafe { memory.align_to_mut::<Line>() };
        assert!(before.is_empty(), "memory begins at a line");
        Self { start: lines.as_mut_ptr(), lines: lines.len(), memory: PhantomData }
    }

    /// The first line.
    pub fn start(&self) -> *mut Line {
        self.start
    }

    /// Length in lines.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Two parts: so many lines, or all if there are fewer, and the others.
    pub fn split(self, lines: usize) -> (Self, Self) {
        let lines = lines.min(self.lines);
        // SAFETY: the slice has no fewer lines, so that this is inside it or just past its end.
        let middle = unsafe { self.start.add(lines) };
        let front = Self { start: self.start, lines, memory: PhantomData };
        (front, Self { start: middle, lines: self.lines - lines, memory: PhantomData })
    }

    /// So many parts of equal length, less the lines that are left over.
    pub fn shares(self, count: usize) -> Vec<Self> {
        let lines = self.lines() / count;
        let (mut shares, mut rest) = (Vec::new(), self);
        for _ in 0..count {
            let (share, others) = rest.split(lines);
            shares.push(share);
            rest = others;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 640]);

    #[test]
    fn shares_are_equal_and_follow_each_other() {
        let mut lines = Lines([0; 640]);
        let slice = Slice::new(&mut lines.0);
        let start = slice.start().addr();
        let shares = slice.shares(3);
        let places: Vec<_> =
            shares.iter().map(|share| (share.start().addr() - start, share.lines())).collect();
        assert_eq!(places, [(0, 3), (192, 3), (384, 3)]);
    }
}
