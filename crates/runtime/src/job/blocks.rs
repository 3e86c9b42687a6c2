//! Memory of small tasks. A worker keeps the blocks of tasks that it has run, for the next that it spawns; those of a mate's tasks it
//! sends back, or who spawns would never have any. Those of other nodes it keeps: to send them back would move more lines between nodes.

use crate::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::mem::MaybeUninit;

/// A cache line. While it is free, it begins with the address of the next.
#[repr(align(64))]
pub(crate) struct Block {
    _bytes: MaybeUninit<[u8; 64]>,
}

/// The free blocks of a worker.
pub(crate) struct Blocks {
    first: Cell<*mut Block>,
    count: Cell<usize>,
}

/// What others have sent back, for the worker to take all at once.
#[derive(Debug, Default)]
pub(crate) struct SentBack(CachePadded<List>);

#[derive(Debug)]
struct List {
    first: AtomicPtr<Block>,
    /// About.
    count: AtomicUsize,
}

/// About so many are kept of each kind, 1 MiB: to allocate and free one takes longer than to run an empty task.
const MOST: usize = 16_384;

// SAFETY: the blocks are its own.
unsafe impl Send for Blocks {}

impl Block {
    pub(super) const fn has_room_for<T>() -> bool {
        size_of::<T>() <= size_of::<Self>() && align_of::<T>() <= align_of::<Self>()
    }

    pub(super) fn new() -> *mut Self {
        Box::into_raw(Box::new(Self { _bytes: MaybeUninit::uninit() }))
    }
}

/// # Safety
/// It is a valid block that is free.
unsafe fn next(block: *mut Block) -> *mut Block {
    // SAFETY: it begins so.
    unsafe { block.cast::<*mut Block>().read() }
}

/// # Safety
/// It is a valid block that nobody uses any more.
unsafe fn set_next(block: *mut Block, next: *mut Block) {
    // SAFETY: it has room for an address.
    unsafe { block.cast::<*mut Block>().write(next) };
}

/// # Safety
/// The blocks in the list are valid and free, and it is its only use.
unsafe fn drop_all(mut list: *mut Block) {
    while !list.is_null() {
        // SAFETY: as promised.
        let rest = unsafe { next(list) };
        // SAFETY: it came from `Block::new`.
        drop(unsafe { Box::from_raw(list) });
        list = rest;
    }
}

impl Default for Blocks {
    fn default() -> Self {
        Self { first: Cell::new(std::ptr::null_mut()), count: Cell::default() }
    }
}

impl Blocks {
    /// A block, of those that were sent back if there is none left.
    #[inline]
    pub(super) fn take(&self, sent_back: &SentBack) -> *mut Block {
        let mut block = self.first.get();
        if block.is_null() {
            block = sent_back.0.first.swap(std::ptr::null_mut(), Ordering::Acquire);
            if block.is_null() {
                return Block::new();
            }
            self.count.set(sent_back.0.count.swap(0, Ordering::Relaxed));
        }
        self.count.set(self.count.get().saturating_sub(1));
        // SAFETY: free blocks are valid.
        self.first.set(unsafe { next(block) });
        block
    }

    /// # Safety
    /// It comes from [`Block::new`] or [`Blocks::take`], and nobody uses it any more.
    #[inline]
    pub(super) unsafe fn give(&self, block: *mut Block) {
        if self.count.get() >= MOST {
            // SAFETY: it came from `Block::new` once.
            drop(unsafe { Box::from_raw(block) });
            return;
        }
        // SAFETY: as promised.
        unsafe { set_next(block, self.first.get()) };
        self.first.set(block);
        self.count.set(self.count.get() + 1);
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: they are its own.
        unsafe { drop_all(self.first.get()) };
    }
}

impl Default for List {
    fn default() -> Self {
        Self { first: AtomicPtr::new(std::ptr::null_mut()), count: AtomicUsize::new(0) }
    }
}

impl SentBack {
    /// # Safety
    /// As [`Blocks::give`].
    pub(super) unsafe fn give(&self, block: *mut Block) {
        let count = self.0.count.load(Ordering::Relaxed);
        if count >= MOST {
            // SAFETY: it came from `Block::new` once.
            drop(unsafe { Box::from_raw(block) });
            return;
        }
        self.0.count.store(count + 1, Ordering::Relaxed);
        let mut first = self.0.first.load(Ordering::Relaxed);
        loop {
            // SAFETY: as promised; nobody else sees it yet.
            unsafe { set_next(block, first) };
            match self.0.first.compare_exchange_weak(first, block, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

impl Drop for SentBack {
    fn drop(&mut self) {
        // SAFETY: nobody else has it any more.
        unsafe { drop_all(self.0.first.swap(std::ptr::null_mut(), Ordering::Acquire)) };
    }
}
