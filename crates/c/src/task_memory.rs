//! Memory of small tasks. Many are allocated by one thread and freed by others, and malloc has threads wait
//! for each other then. So each thread keeps free blocks, and threads exchange them a bundle at a time
//! (Bonwick and Adams, "Magazines and Vmem", USENIX 2001, section 3).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Mutex;

/// A block has room for two lines of a cache.
const BLOCK: Layout = match Layout::from_size_align(128, 64) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

const BUNDLE: usize = 64;

/// So many bundles wait for a thread that wants one, 512 KiB in all.
const BUNDLES: usize = 64;

/// A free block.
struct Block(NonNull<u8>);

// SAFETY: nobody else has it.
unsafe impl Send for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: from `allocate`, with this layout.
        unsafe { dealloc(self.0.as_ptr(), BLOCK) };
    }
}

/// Bundles of threads that had too many.
static SPARE: Mutex<Vec<Vec<Block>>> = Mutex::new(Vec::new());

thread_local! {
    static FREE: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Room for a task of that layout, which is not empty.
pub(crate) fn take(layout: Layout) -> NonNull<u8> {
    if !fits(layout) {
        return allocate(layout);
    }
    // A thread that ends has none any more.
    let block = FREE.try_with(|free| {
        let free = &mut *free.borrow_mut();
        free.pop().or_else(|| refill(free))
    });
    match block {
        Ok(Some(block)) => std::mem::ManuallyDrop::new(block).0,
        _ => allocate(BLOCK),
    }
}

/// # Safety
/// It comes from [`take`] with this layout, and nobody uses it any more.
pub(crate) unsafe fn give(memory: NonNull<u8>, layout: Layout) {
    if !fits(layout) {
        // SAFETY: it was allocated with this layout.
        return unsafe { dealloc(memory.as_ptr(), layout) };
    }
    let block = Block(memory);
    let _ = FREE.try_with(move |free| {
        let free = &mut *free.borrow_mut();
        if free.len() == 2 * BUNDLE {
            spare(free);
        }
        free.push(block);
    });
}

const fn fits(layout: Layout) -> bool {
    layout.size() <= BLOCK.size() && layout.align() <= BLOCK.align()
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: it has a size.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Takes a bundle. Nobody waits for the lock: in a forked child it may be held for ever.
#[cold]
fn refill(free: &mut Vec<Block>) -> Option<Block> {
    *free = SPARE.try_lock().ok()?.pop()?;
    free.pop()
}

/// Hands half of the blocks on, or frees them where there are enough.
#[cold]
fn spare(free: &mut Vec<Block>) {
    let bundle = free.split_off(BUNDLE);
    if let Ok(mut spare) = SPARE.try_lock() {
        if spare.len() < BUNDLES {
            spare.push(bundle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 16).unwrap()
    }

    /// The addresses of so many blocks, which this thread has taken.
    fn taken(count: usize) -> Vec<usize> {
        (0..count).map(|_| take(layout(100)).as_ptr().expose_provenance()).collect()
    }

    fn given(addresses: &[usize]) {
        for &address in addresses {
            let memory = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
            // SAFETY: each was taken with this layout, and is given once.
            unsafe { give(memory, layout(100)) };
        }
    }

    #[test]
    fn blocks_come_back_from_the_threads_that_free_them() {
        const COUNT: usize = 1000;
        let first = taken(COUNT);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), COUNT, "each is another's");
        assert!(first.iter().all(|address| address % BLOCK.align() == 0));
        // The thread that frees them keeps at most two bundles until it ends.
        std::thread::scope(|scope| {
            scope.spawn(|| given(&first));
        });
        let again = taken(COUNT);
        let of_first: BTreeSet<usize> = first.into_iter().collect();
        let back = again.iter().filter(|address| of_first.contains(address)).count();
        assert!(back >= COUNT - 3 * BUNDLE, "{back}");
        given(&again);
        assert!(FREE.with_borrow(Vec::len) <= 2 * BUNDLE);
        given(&taken((BUNDLES + 4) * BUNDLE));
        assert!(SPARE.lock().unwrap().len() <= BUNDLES);
    }

    #[test]
    fn large_tasks_have_memory_of_their_own() {
        let large = layout(BLOCK.size() + 1);
        let memory = take(large);
        // SAFETY: it has room for so many.
        unsafe { memory.write_bytes(1, large.size()) };
        // SAFETY: just taken, and not used any more.
        unsafe { give(memory, large) };
    }
}
