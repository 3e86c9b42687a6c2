//! Free memory: blocks in chains, and what has not been cut into blocks yet.

use super::class::{Class, SMALL_CLASSES};
use std::ptr::NonNull;

/// The contents of a free block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Free {
    /// The next in its chain.
    next: Option<NonNull<Self>>,
    /// In the first block of a batch that lies with others: the next batch.
    next_batch: Option<NonNull<Self>>,
}

/// Free blocks of one class, the last that came first.
#[derive(Default)]
pub(super) struct Chain {
    first: Option<NonNull<Free>>,
    len: usize,
}

impl Chain {
    /// # Safety
    /// `block` is a block of a class, 16 bytes at least, which nobody uses and is in no other chain.
    #[inline]
    unsafe fn push(&mut self, block: NonNull<u8>) {
        let block = block.cast::<Free>();
        // SAFETY: by contract the block is ours; blocks are aligned to 16 bytes. `next` comes first in it.
        unsafe { block.cast().write(self.first) };
        self.first = Some(block);
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        let first = self.first?;
        // SAFETY: what is in a chain was written by `push`, and is nobody else's.
        self.first = unsafe { first.cast().read() };
        self.len -= 1;
        Some(first.cast())
    }
}

/// Batches of one class, full ones only.
#[derive(Default)]
pub(super) struct Batches(Option<NonNull<Free>>);

impl Batches {
    pub(super) fn push(&mut self, mut batch: Chain) {
        let Some(first) = batch.first.take() else { return };
        // SAFETY: what is in a chain was written by `push`, and is nobody else's.
        let next = unsafe { first.cast().read() };
        // SAFETY: as above.
        unsafe { first.write(Free { next, next_batch: self.0 }) };
        self.0 = Some(first);
    }

    pub(super) fn pop(&mut self, class: Class) -> Option<Chain> {
        let first = self.0?;
        // SAFETY: what is in a batch was written by `push`, and is nobody else's.
        self.0 = unsafe { first.read() }.next_batch;
        Some(Chain { first: Some(first), len: class.batch() })
    }
}

/// Memory that has not been cut into blocks yet.
pub(super) struct Span {
    start: NonNull<u8>,
    bytes: usize,
}

impl Default for Span {
    fn default() -> Self {
        Self { start: NonNull::dangling(), bytes: 0 }
    }
}

impl Span {
    /// # Safety
    /// `bytes` from `start` on are memory that nobody else uses.
    pub(super) unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// So many bytes from its start.
    pub(super) fn cut(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let skip = self.start.align_offset(align);
        let taken = skip.checked_add(bytes).filter(|&taken| taken <= self.bytes)?;
        // SAFETY: `skip` and `taken` are within the span.
        let block = unsafe { self.start.add(skip) };
        // SAFETY: as above.
        self.start = unsafe { self.start.add(taken) };
        self.bytes -= taken;
        Some(block)
    }
}

/// Two chains, so that blocks come from elsewhere and go there a batch at a time, however a program's
/// requests and returns alternate. (The magazines of Bonwick and Adams, 'Magazines and Vmem', USENIX 2001.)
#[derive(Default)]
struct Magazine {
    loaded: Chain,
    /// Full or empty.
    spare: Chain,
}

/// A CPU's own free memory.
#[derive(Default)]
pub(super) struct Shard {
    magazines: [Magazine; SMALL_CLASSES],
    pub(super) span: Span,
}

impl Shard {
    /// A block that needs no other magazine.
    #[inline]
    pub(super) fn pop(&mut self, class: Class) -> Option<NonNull<u8>> {
        self.magazines[class.index()].loaded.pop()
    }

    /// Takes a block back, if that needs no other magazine.
    ///
    /// # Safety
    /// `block` is a block of the class that nobody uses.
    #[inline]
    pub(super) unsafe fn try_push(&mut self, class: Class, block: NonNull<u8>) -> bool {
        let loaded = &mut self.magazines[class.index()].loaded;
        let room = loaded.len < class.batch();
        if room {
            // SAFETY: by contract.
            unsafe { loaded.push(block) };
        }
        room
    }

    /// A block from the other magazine, once the loaded one is empty, or one that is new.
    pub(super) fn pop_spare(&mut self, class: Class) -> Option<NonNull<u8>> {
        let magazine = &mut self.magazines[class.index()];
        if magazine.loaded.len == 0 {
            std::mem::swap(&mut magazine.loaded, &mut magazine.spare);
        }
        magazine.loaded.pop().or_else(|| self.span.cut(class.bytes(), class.align()))
    }

    /// Takes a batch in, when there is none.
    pub(super) fn load(&mut self, class: Class, batch: Chain) {
        self.magazines[class.index()].loaded = batch;
    }

    /// Takes a block back; returns a batch when there are too many.
    ///
    /// # Safety
    /// `block` is a block of the class that nobody uses.
    pub(super) unsafe fn push(&mut self, class: Class, block: NonNull<u8>) -> Option<Chain> {
        let magazine = &mut self.magazines[class.index()];
        let mut full = None;
        if magazine.loaded.len == class.batch() {
            let spare = std::mem::replace(&mut magazine.spare, std::mem::take(&mut magazine.loaded));
            full = (spare.len > 0).then_some(spare);
        }
        // SAFETY: by contract.
        unsafe { magazine.loaded.push(block) };
        full
    }
}

/// # Safety
/// `block` is a block of a class whose batches are of one, which nobody uses.
pub(super) unsafe fn batch_of_one(block: NonNull<u8>) -> Chain {
    let mut chain = Chain::default();
    // SAFETY: by contract.
    unsafe { chain.push(block) };
    chain
}
