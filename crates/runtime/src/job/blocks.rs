//! Memory of small tasks. A worker keeps the blocks of tasks that it has run, for the next that it spawns. It
//! sends blocks of a peer's tasks back, or a peer that spawns would never have any. It keeps blocks of other
//! nodes: to send them back would move more lines between nodes.
//!
//! Lists hold the addresses of free blocks, and nothing is written into these. If a block held the next one's
//! address, the owner would have to wait for the line of a block that a peer had last. And they are sent back
//! many at a time.

use crate::sync::{Mutex, lock};
use crossbeam_utils::CachePadded;
use std::cell::{RefCell, UnsafeCell};
use std::mem::MaybeUninit;

/// A cache line, allocated.
pub(crate) struct Block(Box<Line>);

#[repr(align(64))]
struct Line {
    _bytes: MaybeUninit<[u8; 64]>,
}

/// The free blocks that a worker has.
#[derive(Default)]
pub(crate) struct Blocks {
    own: UnsafeCell<Vec<Block>>,
    /// The blocks of one of its peers, to be sent back.
    of_peer: RefCell<(usize, Vec<Block>)>,
}

/// The blocks that others have sent back, for the worker to take all at once.
#[derive(Default)]
pub(crate) struct SentBack(CachePadded<Mutex<Vec<Block>>>);

/// About so many are kept of each kind, 1 MiB: to allocate and free one takes longer than to run an empty
/// task.
const MOST: usize = 16_384;

/// A worker that has so many blocks of a peer's sends them back.
const PARCEL: usize = 64;

impl Block {
    pub(super) const fn has_room_for<T>() -> bool {
        size_of::<T>() <= size_of::<Line>() && align_of::<T>() <= align_of::<Line>()
    }

    pub(super) fn new() -> Self {
        Self(Box::new(Line { _bytes: MaybeUninit::uninit() }))
    }

    /// Where it is, for what it has room for.
    #[inline]
    pub(super) fn into_raw<T>(self) -> *mut T {
        Box::into_raw(self.0).cast()
    }

    /// # Safety
    /// It comes from [`Block::into_raw`], and nobody uses it any more.
    #[inline]
    pub(super) unsafe fn from_raw<T>(data: *mut T) -> Self {
        // SAFETY: as promised.
        Self(unsafe { Box::from_raw(data.cast()) })
    }
}

impl Blocks {
    /// A block, of those that were sent back if there is none left.
    #[inline]
    pub(super) fn take<'a>(&self, sent_back: impl FnOnce() -> &'a SentBack) -> Block {
        // SAFETY: blocks are not Sync, and nothing is called meanwhile that could come here.
        let own = unsafe { &mut *self.own.get() };
        own.pop().unwrap_or_else(|| refill(own, sent_back()))
    }

    #[inline]
    pub(super) fn give(&self, block: Block) {
        // SAFETY: as above.
        let own = unsafe { &mut *self.own.get() };
        if own.len() == own.capacity() {
            return give_more(own, block);
        }
        own.push(block);
    }

    /// Keeps a block for a peer, until there are many, or some of another's.
    #[inline]
    pub(super) fn give_to<'a>(&self, peer: usize, block: Block, sent_back: impl Fn(usize) -> &'a SentBack) {
        let (of, blocks) = &mut *self.of_peer.borrow_mut();
        if blocks.len() == PARCEL || *of != peer {
            sent_back(*of).take_all(blocks);
            *of = peer;
        }
        blocks.push(block);
    }

    /// Sends back what is a peer's.
    pub(super) fn send_back<'a>(&self, sent_back: impl Fn(usize) -> &'a SentBack) {
        let (of, blocks) = &mut *self.of_peer.borrow_mut();
        if !blocks.is_empty() {
            sent_back(*of).take_all(blocks);
        }
    }
}

#[cold]
fn refill(own: &mut Vec<Block>, sent_back: &SentBack) -> Block {
    std::mem::swap(own, &mut lock(&sent_back.0));
    own.pop().unwrap_or_else(Block::new)
}

/// There is no room.
#[cold]
fn give_more(own: &mut Vec<Block>, block: Block) {
    if own.len() < MOST {
        own.push(block);
    }
}

impl SentBack {
    fn take_all(&self, blocks: &mut Vec<Block>) {
        let mut list = lock(&self.0);
        let room = MOST - list.len();
        list.extend(blocks.drain(..).take(room));
    }
}
