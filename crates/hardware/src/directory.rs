//! Which LLCs hold a line.

use crate::{MOST_LLCS, host::load_ahead};

const CHUNK_BYTES_SHIFT: u32 = 21;
const MODIFIED: u16 = 1 << 15;
/// Most LLCs of a machine whose lines take two bytes each.
const FEW: usize = MODIFIED.trailing_zeros() as usize;
const _: () = assert!(MOST_LLCS <= u64::BITS as usize);

/// Per line a bit for each LLC, and whether the one that holds it has modified it. Memory in proportion to
/// the 2 MiB pieces of address space that were touched.
#[derive(Clone, Debug)]
pub(crate) enum Directory {
    /// Two bytes a line, for a machine with few LLCs, which most are.
    Few(Chunks<u16>),
    Many(Chunks<Holders>),
}

#[derive(Clone, Debug)]
pub(crate) struct Chunks<T> {
    chunks: Vec<Option<Box<[T]>>>,
    /// Lines of a chunk, as a power of two.
    shift: u32,
}

impl Directory {
    pub fn new(line_shift: u32, llcs: usize) -> Self {
        let shift = CHUNK_BYTES_SHIFT - line_shift;
        if llcs <= FEW {
            Self::Few(Chunks { chunks: Vec::new(), shift })
        } else {
            Self::Many(Chunks { chunks: Vec::new(), shift })
        }
    }

    /// A line will be asked for.
    #[inline]
    pub fn load_ahead(&self, line: u64) {
        match self {
            Self::Few(chunks) => chunks.load_ahead(line),
            Self::Many(chunks) => chunks.load_ahead(line),
        }
    }

    /// The holders of a line.
    #[inline]
    pub fn get(&self, line: u64) -> Holders {
        match self {
            Self::Few(chunks) => chunks.get(line),
            Self::Many(chunks) => chunks.get(line),
        }
    }

    /// Says who holds a line.
    #[inline]
    pub fn set(&mut self, line: u64, holders: Holders) {
        self.update(line, |_| holders);
    }

    /// Changes the holders of a line.
    #[inline]
    pub fn update(&mut self, line: u64, change: impl FnOnce(Holders) -> Holders) {
        match self {
            Self::Few(chunks) => chunks.update(line, change),
            Self::Many(chunks) => chunks.update(line, change),
        }
    }
}

impl<T: Copy + Default + From<Holders> + Into<Holders>> Chunks<T> {
    #[inline]
    fn load_ahead(&self, line: u64) {
        let index = line as usize & ((1 << self.shift) - 1);
        if let Some(Some(chunk)) = self.chunks.get((line >> self.shift) as usize) {
            load_ahead(&chunk[index..=index]);
        }
    }

    #[inline]
    fn get(&self, line: u64) -> Holders {
        let index = line as usize & ((1 << self.shift) - 1);
        match self.chunks.get((line >> self.shift) as usize) {
            Some(Some(chunk)) => chunk[index].into(),
            _ => Holders::default(),
        }
    }

    #[inline]
    fn update(&mut self, line: u64, change: impl FnOnce(Holders) -> Holders) {
        let (number, lines) = ((line >> self.shift) as usize, 1 << self.shift);
        if number >= self.chunks.len() {
            self.chunks.resize(number + 1, None);
        }
        let chunk = self.chunks[number].get_or_insert_with(|| vec![T::default(); lines].into_boxed_slice());
        let holders = &mut chunk[line as usize & (lines - 1)];
        *holders = change((*holders).into()).into();
    }
}

/// The LLCs that hold a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    llcs: u64,
    /// The only one has modified it.
    is_modified: bool,
}

impl From<u16> for Holders {
    #[inline]
    fn from(bits: u16) -> Self {
        Self { llcs: u64::from(bits & !MODIFIED), is_modified: bits & MODIFIED != 0 }
    }
}

impl From<Holders> for u16 {
    #[inline]
    fn from(holders: Holders) -> Self {
        holders.llcs as Self | if holders.is_modified { MODIFIED } else { 0 }
    }
}

impl Holders {
    /// Nobody but this LLC.
    #[inline]
    pub fn only(llc: usize) -> Self {
        Self { llcs: 1 << llc, is_modified: false }
    }

    /// These and one more, none with modifications.
    #[inline]
    pub fn with(self, llc: usize) -> Self {
        Self { llcs: self.llcs | 1 << llc, is_modified: false }
    }

    /// These but one; its modifications go with it.
    #[inline]
    pub fn without(self, llc: usize) -> Self {
        let llcs = self.llcs & !(1 << llc);
        Self { llcs, is_modified: self.is_modified && llcs != 0 }
    }

    /// The same, the one holder with modifications.
    #[inline]
    pub fn modified(self) -> Self {
        debug_assert_eq!(self.llcs.count_ones(), 1);
        Self { is_modified: true, ..self }
    }

    /// The LLC that has modified it.
    #[inline]
    pub fn modifier(self) -> Option<usize> {
        self.is_modified.then_some(self.llcs.trailing_zeros() as usize)
    }

    /// Whether an LLC holds it.
    #[inline]
    pub fn has(self, llc: usize) -> bool {
        self.llcs & 1 << llc != 0
    }

    /// Whether none holds it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.llcs == 0
    }

    /// The holders in order.
    pub fn llcs(mut self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let llc = self.llcs.trailing_zeros();
            (llc < u64::BITS).then(|| {
                self.llcs &= self.llcs - 1;
                llc as usize
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Two bytes remember the same as is remembered of many LLCs.
        #[test]
        fn few_and_many_llcs_are_kept_alike(steps in prop::collection::vec((0u64..40, 0..FEW, 0..4u8), 1..200)) {
            let (mut few, mut many) = (Directory::new(6, FEW), Directory::new(6, FEW + 1));
            prop_assert!(matches!((&few, &many), (Directory::Few(_), Directory::Many(_))));
            for (line, llc, what) in steps {
                let change = |holders: Holders| match what {
                    0 => holders.with(llc),
                    1 => holders.without(llc),
                    2 => Holders::only(llc).modified(),
                    _ => Holders::only(llc),
                };
                few.update(line, change);
                many.update(line, change);
                let holders = few.get(line);
                prop_assert_eq!(holders, many.get(line));
                prop_assert_eq!(holders.has(llc), what != 1);
                prop_assert_eq!(holders.modifier(), if what == 2 { Some(llc) } else { holders.modifier() });
                prop_assert!(holders.modifier().is_none() || holders.llcs().count() == 1);
            }
        }
    }

    #[test]
    fn the_last_llc_is_a_holder_like_the_first() {
        let mut directory = Directory::new(6, MOST_LLCS);
        let last = MOST_LLCS - 1;
        directory.set(7, Holders::only(last).modified());
        assert_eq!(directory.get(7).modifier(), Some(last));
        directory.update(7, |holders| holders.with(0));
        assert_eq!((directory.get(7).modifier(), directory.get(7).llcs().collect()), (None, vec![0, last]));
    }
}
