//! The unsafe core: memory shared with a writer that follows the kernel's protocol.
//!
//! The writer appends bytes to a circular buffer and publishes how far it got (head); the reader publishes
//! how far it read (tail), and the writer never passes that. Both count bytes for ever and do not wrap. As
//! `perf_output_put_handle` in `kernel/events/ring_buffer.c` explains, two pairs of barriers order this:
//!
//! ```text
//!   writer                       reader
//!   LOAD tail (acquire)          LOAD head (acquire)     A: the bytes before head were written before head
//!   STORE bytes                  LOAD bytes
//!   STORE head (release)         STORE tail (release)    B: the bytes before tail were read before tail
//! ```
//!
//! `tools/include/linux/ring_buffer.h` has the reader's half: `smp_load_acquire` and `smp_store_release`.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory, mapped from an event or the heap's.
pub(super) struct Block {
    base: NonNull<AtomicU64>,
    bytes: usize,
    mapped: bool,
}

// SAFETY: words are reached as atomics, the rest through Area's protocol.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Maps part of a perf event's file.
    pub(super) fn map(event: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        let base = NonNull::new(address.cast()).ok_or(Error::new("mmap", libc::EINVAL))?;
        Ok(Self { base, bytes, mapped: true })
    }

    /// Zeroed memory of exactly this size, so that `AddressSanitizer` sees a step outside.
    pub(super) fn heap(bytes: usize) -> Self {
        let words: Box<[AtomicU64]> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        let base = NonNull::new(Box::into_raw(words).cast::<AtomicU64>()).unwrap_or(NonNull::dangling());
        Self { base, bytes: bytes / 8 * 8, mapped: false }
    }

    /// The 8-byte word number `i`.
    pub(super) fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.bytes / 8, "word {i} of {} bytes", self.bytes);
        let word = self.base.as_ptr().wrapping_add(i);
        // SAFETY: inside the block, aligned as base is, alive as long as `self`; whoever else writes there
        // (kernel or RingWriter) writes whole words.
        unsafe { &*word }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: exactly what mmap returned; borrows ended with `self`.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        } else {
            let words = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.bytes / 8);
            // SAFETY: what Box::into_raw gave in `heap`, of the same length.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}

/// Indices of 8-byte words in `struct perf_event_mmap_page`.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) head: usize,
    pub(super) tail: usize,
}

/// `data_head`, `data_tail`: bytes 1024 and 1032.
pub(super) const DATA_WORDS: Words = Words { head: 128, tail: 129 };
/// `aux_head`, `aux_tail`: bytes 1056 and 1064.
pub(super) const AUX_WORDS: Words = Words { head: 132, tail: 133 };
/// `aux_offset`, `aux_size`: bytes 1072 and 1080.
pub(super) const AUX_OFFSET_WORD: usize = 134;
pub(super) const AUX_SIZE_WORD: usize = 135;

/// A circular buffer in shared memory: `bytes`, a power of two, at `start` in `data`, with its head and tail
/// in `control`.
#[derive(Clone)]
pub(super) struct Area {
    control: Arc<Block>,
    words: Words,
    data: Arc<Block>,
    start: usize,
    bytes: usize,
}

impl Area {
    pub(super) fn new(
        control: Arc<Block>,
        words: Words,
        data: Arc<Block>,
        start: usize,
        bytes: usize,
    ) -> Self {
        assert!(bytes.is_power_of_two(), "a ring of {bytes} bytes");
        assert!(start.checked_add(bytes).is_some_and(|end| end <= data.bytes), "a ring past its memory");
        Self { control, words, data, start, bytes }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How far the writer got: all bytes before are written (A).
    pub(super) fn head(&self) -> u64 {
        self.control.word(self.words.head).load(Ordering::Acquire)
    }

    /// How far the reader got: all bytes before are read (B), as the writer sees it.
    pub(super) fn tail(&self) -> u64 {
        self.control.word(self.words.tail).load(Ordering::Acquire)
    }

    pub(super) fn publish_head(&self, head: u64) {
        self.control.word(self.words.head).store(head, Ordering::Release);
    }

    pub(super) fn publish_tail(&self, tail: u64) {
        self.control.word(self.words.tail).store(tail, Ordering::Release);
    }

    /// Copies bytes out from `position` on, across the wrap.
    ///
    /// # Safety
    /// The bytes lie between the tail this reader published and a head it loaded, so that the writer leaves
    /// them alone.
    pub(super) unsafe fn copy_out(&self, position: u64, into: &mut [u8]) {
        let (first, second) = self.parts(position, into.len());
        let (into_first, into_second) = into.split_at_mut(first.1);
        for ((offset, length), into) in [(first, into_first), (second, into_second)] {
            // SAFETY: `parts` stays inside the area; the caller keeps the writer away from these bytes.
            unsafe { self.pointer(offset).copy_to_nonoverlapping(into.as_mut_ptr(), length) };
        }
    }

    /// Copies bytes in from `position` on, across the wrap.
    ///
    /// # Safety
    /// The bytes lie between the head this writer published and one ring's length past a tail it loaded, so
    /// that the reader leaves them alone; there is one writer.
    pub(super) unsafe fn copy_in(&self, position: u64, from: &[u8]) {
        let (first, second) = self.parts(position, from.len());
        let (from_first, from_second) = from.split_at(first.1);
        for ((offset, length), from) in [(first, from_first), (second, from_second)] {
            // SAFETY: `parts` stays inside the area; the caller keeps the reader and other writers away from
            // these bytes.
            unsafe { self.pointer(offset).copy_from_nonoverlapping(from.as_ptr(), length) };
        }
    }

    /// (offset, length) before and after the wrap. Asserts that both are inside: this is what `copy_*` rest
    /// on.
    fn parts(&self, position: u64, length: usize) -> ((usize, usize), (usize, usize)) {
        assert!(length <= self.bytes, "{length} bytes of a ring of {}", self.bytes);
        let offset = (position & (self.bytes as u64 - 1)) as usize;
        let first = length.min(self.bytes - offset);
        ((offset, first), (0, length - first))
    }

    /// A pointer into the area; `offset` is below its length.
    fn pointer(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.bytes);
        self.data.base.as_ptr().cast::<u8>().wrapping_add(self.start + offset)
    }
}
