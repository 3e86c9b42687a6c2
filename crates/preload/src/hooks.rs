//! The functions that stand before the allocator's and the kernel's. Each does what the one behind it does,
//! and tells of large blocks. `errno` stays as the function behind has left it.

use crate::callers::{find_stack, forget_number, frame, prepare_threads, tell_callers};
use crate::layout::{ALLOCATED, FORKED, FREED, MAPPED, MAPPINGS, MOST_TEXT, TEXT, UNMAPPED};
use crate::libc::{
    Block, ENOMEM, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, O_RDONLY_CLOEXEC, RTLD_NEXT, SYS_MMAP_MUNMAP_MREMAP,
    Symbol, close, dladdr, dlsym, errno, getenv, now_ns, open, pthread_atfork, read, set_errno, syscall,
};
use crate::records::{attach, take_number, tell, write};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Defines a place for a function behind ours, by its name and type.
macro_rules! behind {
    ($($place:ident $name:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        $(
            #[allow(non_snake_case, reason = "the place's name")]
            mod $place {
                #[allow(unused_imports, reason = "not all need it")]
                use super::*;

                pub(super) type Function = unsafe extern "C" fn($($argument),*) -> $result;

                pub(super) static PLACE: AtomicUsize = AtomicUsize::new(0);

                /// None while it is looked for, and if there is none.
                #[inline]
                pub(super) fn get() -> Option<Function> {
                    let mut address = PLACE.load(Ordering::Relaxed);
                    if address == 0 {
                        find();
                        address = PLACE.load(Ordering::Relaxed);
                    }
                    // SAFETY: null is none, and else it is what the loader has for the name. Its type is the
                    // C library's.
                    unsafe { core::mem::transmute::<usize, Option<Function>>(address) }
                }
            }
        )*

        /// Looks for all of them, once. Meanwhile the loader may ask for memory, and so may other threads.
        #[cold]
        fn find() {
            static IS_BEGUN: AtomicU32 = AtomicU32::new(0);
            if IS_BEGUN.swap(1, Ordering::Relaxed) == 0 {
                // SAFETY: the names are C strings.
                $($place::PLACE.store(unsafe { dlsym(RTLD_NEXT, $name.as_ptr()) } as usize, Ordering::Relaxed);)*
            }
        }
    };
}

behind! {
    real_malloc c"malloc": fn(usize) -> Block;
    real_calloc c"calloc": fn(usize, usize) -> Block;
    real_realloc c"realloc": fn(Block, usize) -> Block;
    real_free c"free": fn(Block) -> ();
    real_posix_memalign c"posix_memalign": fn(*mut Block, usize, usize) -> c_int;
    real_aligned_alloc c"aligned_alloc": fn(usize, usize) -> Block;
    real_memalign c"memalign": fn(usize, usize) -> Block;
    real_valloc c"valloc": fn(usize) -> Block;
    real_pvalloc c"pvalloc": fn(usize) -> Block;
    real_usable_size c"malloc_usable_size": fn(Block) -> usize;
    real_mmap c"mmap": fn(Block, usize, c_int, c_int, c_int, i64) -> Block;
    real_munmap c"munmap": fn(Block, usize) -> c_int;
    real_mremap c"mremap": fn(Block, usize, usize, c_int, Block) -> Block;
}

/// Memory for those who ask while the allocator is looked for. It is never given back.
struct Early(UnsafeCell<[u8; EARLY_BYTES]>);

const EARLY_BYTES: usize = 64 << 10;

// SAFETY: each byte is given away once.
unsafe impl Sync for Early {}

#[repr(align(64))]
struct Aligned(Early);

static EARLY: Aligned = Aligned(Early(UnsafeCell::new([0; EARLY_BYTES])));
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn early(bytes: usize) -> Block {
    let start = EARLY_USED.fetch_add(bytes.saturating_add(15) & !15, Ordering::Relaxed);
    if bytes > EARLY_BYTES || start > EARLY_BYTES - bytes {
        EARLY_USED.fetch_min(EARLY_BYTES, Ordering::Relaxed);
        return refused();
    }
    EARLY.0.0.get().cast::<u8>().wrapping_add(start).cast()
}

#[inline]
fn is_early(block: Block) -> bool {
    (block as usize).wrapping_sub(EARLY.0.0.get() as usize) < EARLY_BYTES
}

#[cold]
fn refused() -> Block {
    set_errno(ENOMEM);
    null_mut()
}

/// Blocks from so many bytes on are told; none before the shared memory is there.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether the allocator can be asked for a block's size.
static KNOWS_SIZES: AtomicU32 = AtomicU32::new(0);

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

/// Opens the shared memory, and says which files this program consists of.
extern "C" fn begin(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    let errno = errno();
    // SAFETY: the name is a C string, and nobody changes the environment before main.
    let path = unsafe { getenv(c"NODEWISE_ALLOCATIONS".as_ptr()) };
    if let Some(least) = attach(path).filter(|_| is_prepared(environment as usize)) {
        tell_mappings();
        KNOWS_SIZES.store(u32::from(knows_sizes()), Ordering::Relaxed);
        LEAST.store(least, Ordering::Release);
    }
    set_errno(errno);
}

/// `top` is above all that the first thread has on its stack.
fn is_prepared(top: usize) -> bool {
    // SAFETY: the function is there as long as the program is.
    prepare_threads(top) && unsafe { pthread_atfork(None, None, Some(forked)) == 0 }
}

/// In the child, whose only thread it is.
extern "C" fn forked() {
    let parent = take_number();
    forget_number();
    tell(FORKED, now_ns(), parent as usize, 0);
}

/// A block's size can be asked only of whoever gave it.
fn knows_sizes() -> bool {
    // Perhaps nobody has asked for memory yet.
    find();
    let base = |address: usize| {
        let mut symbol = Symbol {
            file: core::ptr::null(),
            base: null_mut(),
            name: core::ptr::null(),
            address: null_mut(),
        };
        // SAFETY: any address may be asked for, and it writes the structure.
        unsafe { dladdr(address as *const c_void, &raw mut symbol) };
        symbol.base
    };
    let [free, size] =
        [&real_free::PLACE, &real_usable_size::PLACE].map(|place| place.load(Ordering::Relaxed));
    size != 0 && base(free) == base(size)
}

fn tell_mappings() {
    // SAFETY: the path is a C string.
    let file = unsafe { open(c"/proc/self/maps".as_ptr(), O_RDONLY_CLOEXEC) };
    let (mut place, mut text) = (0, [0_u64; MOST_TEXT / 8]);
    loop {
        // SAFETY: so many bytes are there to be written.
        let bytes = unsafe { read(file, text.as_mut_ptr().cast(), MOST_TEXT) };
        let Ok(bytes @ 1..) = usize::try_from(bytes) else { break };
        write(MAPPINGS, now_ns(), place, bytes, |record| {
            text.iter().zip(TEXT..).for_each(|(&part, at)| record.set(at, part));
        });
        place += bytes;
    }
    // SAFETY: it is ours, or no file at all.
    unsafe { close(file) };
}

/// The time, if a block of this size is to be told.
#[inline]
fn begun(bytes: usize) -> Option<u64> {
    (bytes >= LEAST.load(Ordering::Relaxed)).then(now_ns)
}

/// Tells of a block and of the code that called the function with this frame.
#[inline(never)]
fn tell_block(kind: u64, time_ns: u64, block: Block, bytes: usize, frame: *const usize) {
    if block.is_null() {
        return;
    }
    // An allocator that maps memory may hold its locks.
    if kind == ALLOCATED {
        find_stack();
    }
    write(kind, time_ns, block as usize, bytes, |record| tell_callers(record, frame));
}

/// Tells that a block goes back, before anybody else can get it.
#[inline]
fn tell_freed(block: Block) {
    let least = LEAST.load(Ordering::Relaxed);
    if least != usize::MAX && !block.is_null() && size(block) >= least {
        tell_large_freed(block);
    }
}

#[cold]
#[inline(never)]
fn tell_large_freed(block: Block) {
    tell(FREED, now_ns(), block as usize, 0);
}

/// At least what was asked for; anything if that is not known.
fn size(block: Block) -> usize {
    match real_usable_size::get() {
        // SAFETY: the caller has it from the same allocator.
        Some(usable) if KNOWS_SIZES.load(Ordering::Relaxed) != 0 => unsafe { usable(block) },
        _ => usize::MAX,
    }
}

/// `void *malloc(size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(bytes: usize) -> Block {
    let Some(real) = real_malloc::get() else { return early(bytes) };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let block = unsafe { real(bytes) };
    if let Some(begun) = begun {
        tell_block(ALLOCATED, begun, block, bytes, frame());
    }
    block
}

/// `void *calloc(size_t n, size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn calloc(count: usize, each: usize) -> Block {
    let bytes = count.saturating_mul(each);
    // Early memory is zero.
    let Some(real) = real_calloc::get() else { return early(bytes) };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let block = unsafe { real(count, each) };
    if let Some(begun) = begun {
        tell_block(ALLOCATED, begun, block, bytes, frame());
    }
    block
}

/// `void *realloc(void *p, size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(old: Block, bytes: usize) -> Block {
    if is_early(old) {
        // SAFETY: as the caller promises.
        return unsafe { moved_from_early(old, bytes) };
    }
    let Some(real) = real_realloc::get() else { return early(bytes) };
    let begun = begun(bytes);
    tell_freed(old);
    // SAFETY: as the caller promises.
    let block = unsafe { real(old, bytes) };
    match begun {
        // Nothing has changed.
        Some(begun) if block.is_null() && !old.is_null() => {
            tell_block(ALLOCATED, begun, old, size(old), frame());
        }
        Some(begun) => tell_block(ALLOCATED, begun, block, bytes, frame()),
        None => {}
    }
    block
}

#[cold]
unsafe fn moved_from_early(old: Block, bytes: usize) -> Block {
    // SAFETY: it has no condition.
    let block = unsafe { malloc(bytes) };
    let left = EARLY_BYTES - (old as usize - EARLY.0.0.get() as usize);
    if !block.is_null() {
        // SAFETY: both have so many bytes. Whatever lies behind the old block is copied, too, and not used.
        unsafe { core::ptr::copy(old.cast::<u8>(), block.cast::<u8>(), bytes.min(left)) };
    }
    block
}

/// `void free(void *p)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: Block) {
    if is_early(block) {
        return;
    }
    tell_freed(block);
    if let Some(real) = real_free::get() {
        // SAFETY: as the caller promises.
        unsafe { real(block) };
    }
}

/// `int posix_memalign(void **memptr, size_t alignment, size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(into: *mut Block, alignment: usize, bytes: usize) -> c_int {
    let Some(real) = real_posix_memalign::get() else { return ENOMEM };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let result = unsafe { real(into, alignment, bytes) };
    if let Some(begun) = begun.filter(|_| result == 0) {
        // SAFETY: it was written just now.
        tell_block(ALLOCATED, begun, unsafe { *into }, bytes, frame());
    }
    result
}

/// Defines functions that give a block, perhaps at an alignment.
macro_rules! giving {
    ($($(#[$of_c:meta])* $name:ident($($alignment:ident)?) behind $real:ident;)*) => {
        $(
            $(#[$of_c])*
            ///
            /// # Safety
            /// As the C library's.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($alignment: usize,)? bytes: usize) -> Block {
                let Some(real) = $real::get() else { return refused() };
                let begun = begun(bytes);
                // SAFETY: as the caller promises.
                let block = unsafe { real($($alignment,)? bytes) };
                if let Some(begun) = begun {
                    tell_block(ALLOCATED, begun, block, bytes, frame());
                }
                block
            }
        )*
    };
}

giving! {
    /// `void *aligned_alloc(size_t alignment, size_t size)`
    aligned_alloc(alignment) behind real_aligned_alloc;
    /// `void *memalign(size_t alignment, size_t size)`
    memalign(alignment) behind real_memalign;
    /// `void *valloc(size_t size)`
    valloc() behind real_valloc;
    /// `void *pvalloc(size_t size)`
    pvalloc() behind real_pvalloc;
}

/// Memory that the kernel has mapped: anonymous memory is a block, and anything else ends what was there.
#[inline]
fn mapped(begun: u64, block: Block, bytes: usize, flags: c_int, frame: *const usize) {
    if block as usize == MAP_FAILED {
        return;
    }
    if flags & MAP_ANONYMOUS != 0 {
        tell_block(MAPPED, begun, block, bytes, frame);
    } else if flags & MAP_FIXED != 0 {
        tell(UNMAPPED, begun, block as usize, bytes);
    }
}

/// Maps memory and tells of it. It becomes a part of the two functions below, whose frame it takes.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it is about the frame of the function that it becomes a part of")]
unsafe fn map_and_tell(
    address: Block,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Block {
    let begun = begun(bytes);
    let block = match real_mmap::get() {
        // SAFETY: as the caller promises.
        Some(real) => unsafe { real(address, bytes, protection, flags, file, offset) },
        // SAFETY: as the caller promises.
        None => unsafe {
            syscall(SYS_MMAP_MUNMAP_MREMAP[0], address, bytes, protection, flags, file, offset) as Block
        },
    };
    if let Some(begun) = begun {
        mapped(begun, block, bytes, flags, frame());
    }
    block
}

/// `void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: Block,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Block {
    // SAFETY: as the caller promises.
    unsafe { map_and_tell(address, bytes, protection, flags, file, offset) }
}

/// `void *mmap64(void *addr, size_t length, int prot, int flags, int fd, off64_t offset)`: the same.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: Block,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Block {
    // SAFETY: as the caller promises.
    unsafe { map_and_tell(address, bytes, protection, flags, file, offset) }
}

/// `int munmap(void *addr, size_t length)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(address: Block, bytes: usize) -> c_int {
    // Before anybody else can get it.
    if LEAST.load(Ordering::Relaxed) != usize::MAX {
        tell(UNMAPPED, now_ns(), address as usize, bytes);
    }
    match real_munmap::get() {
        // SAFETY: as the caller promises.
        Some(real) => unsafe { real(address, bytes) },
        // SAFETY: as the caller promises.
        None => unsafe { syscall(SYS_MMAP_MUNMAP_MREMAP[1], address, bytes) as c_int },
    }
}

/// `void *mremap(void *old_address, size_t old_size, size_t new_size, int flags, ...)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    old: Block,
    old_bytes: usize,
    bytes: usize,
    flags: c_int,
    to: Block,
) -> Block {
    let begun = now_ns();
    let is_told = LEAST.load(Ordering::Relaxed) != usize::MAX;
    if is_told {
        tell(UNMAPPED, begun, old as usize, old_bytes);
    }
    let block = match real_mremap::get() {
        // SAFETY: as the caller promises. It takes as many arguments as it is given.
        Some(real) => unsafe { real(old, old_bytes, bytes, flags, to) },
        // SAFETY: as the caller promises.
        None => unsafe { syscall(SYS_MMAP_MUNMAP_MREMAP[2], old, old_bytes, bytes, flags, to) as Block },
    };
    // As if it were anonymous: that is what programs do this to.
    let (now, length) = if block as usize == MAP_FAILED { (old, old_bytes) } else { (block, bytes) };
    if is_told && length >= LEAST.load(Ordering::Relaxed) {
        tell_block(MAPPED, begun, now, length, frame());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_memory_is_bounded_and_moves_to_the_allocator() {
        let blocks = [early(100), early(1), early(4000)];
        assert!(blocks.iter().all(|&block| is_early(block) && block as usize % 16 == 0), "{blocks:?}");
        assert_eq!(blocks[2] as usize - blocks[0] as usize, 128);
        assert!(early(EARLY_BYTES).is_null() && early(usize::MAX).is_null());
        assert!(!is_early(null_mut()));
        // SAFETY: the block has 100 bytes.
        unsafe { blocks[0].cast::<u8>().write_bytes(7, 100) };
        // SAFETY: the block is early memory.
        let moved = unsafe { moved_from_early(blocks[0], 50) };
        // SAFETY: it has 50 bytes.
        let copied = unsafe { core::slice::from_raw_parts(moved.cast::<u8>(), 50) };
        assert!(!is_early(moved) && copied.iter().all(|&byte| byte == 7));
        // SAFETY: it is ours.
        unsafe { free(moved) };
    }
}
