//! Which nodes' LLCs hold a line.

use crate::{MOST_NODES, host::load_ahead};

const CHUNK_BYTES_SHIFT: u32 = 21;
const MODIFIED: u16 = 1 << 15;
const _: () = assert!(MOST_NODES <= MODIFIED.trailing_zeros() as usize);

/// Per line a bit for each node, and whether the one that holds it has modified it. Memory in proportion to
/// the 2 MiB pieces of address space that were touched.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    chunks: Vec<Option<Box<[u16]>>>,
    /// Lines of a chunk, as a power of two.
    chunk_shift: u32,
}

impl Directory {
    pub fn new(line_shift: u32) -> Self {
        Self { chunks: Vec::new(), chunk_shift: CHUNK_BYTES_SHIFT - line_shift }
    }

    /// A line will be asked for.
    #[inline]
    pub fn load_ahead(&self, line: u64) {
        let index = line as usize & ((1 << self.chunk_shift) - 1);
        if let Some(Some(chunk)) = self.chunks.get((line >> self.chunk_shift) as usize) {
            load_ahead(&chunk[index..=index]);
        }
    }

    /// The holders of a line.
    #[inline]
    pub fn get(&self, line: u64) -> Holders {
        let index = line as usize & ((1 << self.chunk_shift) - 1);
        match self.chunks.get((line >> self.chunk_shift) as usize) {
            Some(Some(chunk)) => Holders(chunk[index]),
            _ => Holders(0),
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
        let (number, lines) = ((line >> self.chunk_shift) as usize, 1 << self.chunk_shift);
        if number >= self.chunks.len() {
            self.chunks.resize(number + 1, None);
        }
        let chunk = self.chunks[number].get_or_insert_with(|| vec![0; lines].into_boxed_slice());
        let holders = &mut chunk[line as usize & (lines - 1)];
        *holders = change(Holders(*holders)).0;
    }
}

/// The nodes whose LLCs hold a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holders(u16);

impl Holders {
    /// Nobody but this node.
    #[inline]
    pub fn only(node: usize) -> Self {
        Self(1 << node)
    }

    /// These and one more, none with modifications.
    #[inline]
    pub fn with(self, node: usize) -> Self {
        Self(self.0 & !MODIFIED | 1 << node)
    }

    /// These but one; its modifications go with it.
    #[inline]
    pub fn without(self, node: usize) -> Self {
        let rest = self.0 & !(1 << node);
        Self(if rest == MODIFIED { 0 } else { rest })
    }

    /// The same, the one holder with modifications.
    #[inline]
    pub fn modified(self) -> Self {
        debug_assert_eq!(self.nodes().count(), 1);
        Self(self.0 | MODIFIED)
    }

    /// The node that has modified it.
    #[inline]
    pub fn modifier(self) -> Option<usize> {
        (self.0 & MODIFIED != 0).then_some(self.0.trailing_zeros() as usize)
    }

    /// Whether a node holds it.
    #[inline]
    pub fn has(self, node: usize) -> bool {
        self.0 & 1 << node != 0
    }

    /// Whether none holds it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The holders in order.
    pub fn nodes(self) -> impl Iterator<Item = usize> {
        (0..MOST_NODES).filter(move |node| self.0 & 1 << node != 0)
    }
}
