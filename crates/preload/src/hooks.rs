//! The functions that stand before the allocator's and the kernel's. Each does what the one behind it does,
//! and tells of large blocks. `errno` stays as the function behind has left it.

use crate::layout::{
    ADDRESS, ALLOCATED, BYTES, COUNTS, FORKED, FRAMES, FREED, HEAD, HEADER_WORDS, KIND, LEAST_BYTES, LENGTH,
    LOST, MAGIC, MAPPED, MAPPINGS, MOST_FRAMES, MOST_TEXT, MOST_WINDOW, RECORD_WORDS, RECORDS, RETURN, STACK,
    TAIL, TEXT, TIME, TURN, UNMAPPED, VERSION, WHO, WINDOW,
};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

type Block = *mut c_void;

// Functions of the C library, with the values that Linux has on x86-64 and arm64.
#[link(name = "c")]
unsafe extern "C" {
    fn abort() -> !;
    fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
    fn close(file: c_int) -> c_int;
    fn dladdr(address: *const c_void, info: *mut Symbol) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn getpid() -> c_int;
    fn gettid() -> c_int;
    fn lseek(file: c_int, offset: i64, from: c_int) -> i64;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn pthread_attr_destroy(attributes: *mut Attributes) -> c_int;
    fn pthread_attr_getstack(attributes: *const Attributes, low: *mut usize, bytes: *mut usize) -> c_int;
    fn pthread_getattr_np(thread: usize, attributes: *mut Attributes) -> c_int;
    fn pthread_getspecific(key: c_uint) -> *mut c_void;
    fn pthread_key_create(key: *mut c_uint, destroy: Option<extern "C" fn(*mut c_void)>) -> c_int;
    fn pthread_self() -> usize;
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
    fn read(file: c_int, into: *mut c_void, bytes: usize) -> isize;
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
}

/// `pthread_attr_t`, which is smaller.
type Attributes = [u64; 16];

/// `Dl_info`
#[repr(C)]
struct Symbol {
    file: *const c_char,
    base: *mut c_void,
    name: *const c_char,
    address: *mut c_void,
}

const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
const CLOCK_MONOTONIC: c_int = 1;
const O_RDWR_CLOEXEC: c_int = 0o2_000_002;
const O_RDONLY_CLOEXEC: c_int = 0o2_000_000;
const SEEK_END: c_int = 2;
const ENOMEM: c_int = 12;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_FAILED: usize = usize::MAX;
#[cfg(target_arch = "x86_64")]
const SYS_MMAP_MUNMAP_MREMAP: [c_long; 3] = [9, 11, 25];
#[cfg(target_arch = "aarch64")]
const SYS_MMAP_MUNMAP_MREMAP: [c_long; 3] = [222, 215, 216];

#[cfg(target_arch = "x86_64")]
const SYS_FSTAT: c_long = 5;
#[cfg(target_arch = "aarch64")]
const SYS_FSTAT: c_long = 80;

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

/// Ends the program.
pub fn abort_program() -> ! {
    // SAFETY: it has no condition.
    unsafe { abort() }
}

/// The shared memory; null before there is any.
static SHARED: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// Blocks from so many bytes on are told; none before the shared memory is there.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether the allocator can be asked for a block's size.
static KNOWS_SIZES: AtomicU32 = AtomicU32::new(0);
/// The number of this process. A child that shares its parent's memory counts as its parent.
static PID: AtomicU32 = AtomicU32::new(0);
/// The keys of a thread's own values: its number, and the bounds of its stack.
static THREAD: AtomicU32 = AtomicU32::new(0);
static STACK_LOW: AtomicU32 = AtomicU32::new(0);
static STACK_HIGH: AtomicU32 = AtomicU32::new(0);

/// The first thread's stack has nothing else below it for so many bytes (`MIN_GAP` of `mmap_base`,
/// `arch/x86/mm/mmap.c`, Linux 6.12). It may be more.
const FIRST_STACK_BYTES: usize = 128 << 20;
/// A bound of a stack that is looked for or that cannot be found.
const UNKNOWN: usize = 1;
const PAGE: usize = 4096;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

/// Opens the shared memory, and says which files this program consists of.
extern "C" fn begin(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    let errno = errno();
    // SAFETY: the name is a C string, and nobody changes the environment before main.
    let path = unsafe { getenv(c"NODEWISE_ALLOCATIONS".as_ptr()) };
    let shared = if path.is_null() { null_mut() } else { map(path) };
    if !shared.is_null() {
        SHARED.store(shared, Ordering::Relaxed);
        // SAFETY: it has no condition.
        PID.store(unsafe { getpid() } as u32, Ordering::Relaxed);
        if prepare_threads(environment as usize) {
            tell_mappings();
            KNOWS_SIZES.store(u32::from(knows_sizes()), Ordering::Relaxed);
            let least = word(shared, LEAST_BYTES).load(Ordering::Relaxed);
            LEAST.store(least as usize, Ordering::Release);
        }
    }
    set_errno(errno);
}

/// Null if it is no such file. The text is a path with the numbers of the device and of the file there. The
/// process that made it may have ended, and another one have its number.
fn map(text: *const c_char) -> *mut AtomicU64 {
    let mut path = [0_u8; 64];
    let Some(numbers) = split(text, &mut path) else { return null_mut() };
    // SAFETY: the path ends with a 0.
    let file = unsafe { open(path.as_ptr().cast(), O_RDWR_CLOEXEC) };
    if file < 0 {
        return null_mut();
    }
    // SAFETY: these numbers are checked by the kernel.
    if numbers_of(file) != numbers || unsafe { lseek(file, 0, SEEK_END) } < BYTES as i64 {
        // SAFETY: it is ours.
        unsafe { close(file) };
        return null_mut();
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of others.
    let mapped = unsafe {
        syscall(SYS_MMAP_MUNMAP_MREMAP[0], 0_usize, BYTES, PROT_READ_WRITE, MAP_SHARED, file, 0_usize)
    };
    // SAFETY: it is ours.
    unsafe { close(file) };
    // An error is -4095 to -1, and syscall makes it -1.
    let shared = if mapped == -1 { null_mut() } else { mapped as *mut AtomicU64 };
    if !shared.is_null() && word(shared, MAGIC).load(Ordering::Relaxed) != VERSION {
        return null_mut();
    }
    shared
}

/// Splits `PATH:DEVICE:FILE`. None if it is something else.
fn split(text: *const c_char, path: &mut [u8; 64]) -> Option<[u64; 2]> {
    let (mut numbers, mut part, mut length) = ([0_u64; 2], 0, 0);
    let mut at = text;
    loop {
        // SAFETY: it is a C string, and its end was not met yet.
        let byte = unsafe { at.read() } as u8;
        match (byte, part) {
            (0, 2) => return Some(numbers),
            (b':', 0 | 1) => part += 1,
            (1.., 0) if length + 1 < path.len() => {
                *path.get_mut(length)? = byte;
                length += 1;
            }
            (b'0'..=b'9', 1 | 2) => {
                let number = numbers.get_mut(part - 1)?;
                *number = number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            }
            _ => return None,
        }
        at = at.wrapping_add(1);
    }
}

/// The numbers of a file's device and of the file, the first two words of `struct stat`.
fn numbers_of(file: c_int) -> [u64; 2] {
    let mut stat = [0_u64; 18];
    // SAFETY: the structure is no longer than that.
    unsafe { syscall(SYS_FSTAT, file, stat.as_mut_ptr()) };
    [stat[0], stat[1]]
}

/// `top` is above all that the first thread has on its stack.
fn prepare_threads(top: usize) -> bool {
    let mut keys = [0; 3];
    // SAFETY: it writes the key, and no value is to be destroyed.
    let mut create = |key: &mut c_uint| unsafe { pthread_key_create(key, None) } == 0;
    if !keys.iter_mut().all(&mut create) {
        return false;
    }
    for (place, key) in [&THREAD, &STACK_LOW, &STACK_HIGH].into_iter().zip(keys) {
        place.store(key, Ordering::Relaxed);
    }
    remember(&STACK_LOW, top.saturating_sub(FIRST_STACK_BYTES));
    remember(&STACK_HIGH, top);
    // SAFETY: the function is there as long as the program is.
    unsafe { pthread_atfork(None, None, Some(forked)) == 0 }
}

fn remember(key: &AtomicU32, value: usize) {
    // SAFETY: the key was made before. The value is a number.
    unsafe { pthread_setspecific(key.load(Ordering::Relaxed), value as *const c_void) };
}

fn remembered(key: &AtomicU32) -> usize {
    // SAFETY: the key was made before.
    unsafe { pthread_getspecific(key.load(Ordering::Relaxed)) as usize }
}

/// In the child, whose only thread it is.
extern "C" fn forked() {
    let parent = PID.load(Ordering::Relaxed);
    // SAFETY: it has no condition.
    PID.store(unsafe { getpid() } as u32, Ordering::Relaxed);
    remember(&THREAD, 0);
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

fn errno() -> c_int {
    // SAFETY: it has no condition.
    let place = unsafe { __errno_location() };
    // SAFETY: it is the thread's own.
    unsafe { *place }
}

fn set_errno(errno: c_int) {
    // SAFETY: it has no condition.
    let place = unsafe { __errno_location() };
    // SAFETY: it is the thread's own.
    unsafe { *place = errno };
}

fn now_ns() -> u64 {
    let mut time = [0; 2];
    // SAFETY: it writes the two numbers.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// A word of the shared memory, which is as long as the layout says.
fn word<'a>(shared: *const AtomicU64, at: usize) -> &'a AtomicU64 {
    // SAFETY: `map` has mapped BYTES, and they stay mapped. Atomics may be shared by processes.
    unsafe { &*shared.wrapping_add(at) }
}

/// A record that is being written.
struct Record {
    first: *const AtomicU64,
}

impl Record {
    fn set(&self, at: usize, value: u64) {
        word(self.first, at).store(value, Ordering::Relaxed);
    }
}

/// Writes a record, or counts it as lost.
fn write(kind: u64, time_ns: u64, address: usize, bytes: usize, more: impl FnOnce(&Record)) {
    let shared = SHARED.load(Ordering::Relaxed);
    let head = word(shared, HEAD);
    let mut number = head.load(Ordering::Relaxed);
    loop {
        // A record that the reader has taken may be written again.
        if number.wrapping_sub(word(shared, TAIL).load(Ordering::Acquire)) >= RECORDS as u64 {
            word(shared, LOST).fetch_add(1, Ordering::Relaxed);
            return;
        }
        match head.compare_exchange_weak(number, number + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => number = now,
        }
    }
    let at = HEADER_WORDS + number as usize % RECORDS * RECORD_WORDS;
    let record = Record { first: shared.wrapping_add(at) };
    // A page that is first read is mapped with its neighbours (`do_fault_around`, `mm/memory.c`, Linux 6.12).
    if word(record.first, TURN).load(Ordering::Relaxed) > number {
        return;
    }
    record.set(TIME, time_ns);
    record.set(KIND, kind);
    record.set(WHO, u64::from(PID.load(Ordering::Relaxed)) << 32 | thread());
    record.set(ADDRESS, address as u64);
    record.set(LENGTH, bytes as u64);
    more(&record);
    word(record.first, TURN).store(number + 1, Ordering::Release);
}

fn tell(kind: u64, time_ns: u64, address: usize, bytes: usize) {
    write(kind, time_ns, address, bytes, |_| {});
}

/// This thread's number.
fn thread() -> u64 {
    match remembered(&THREAD) {
        0 => {
            // SAFETY: it has no condition.
            let thread = unsafe { gettid() } as usize;
            remember(&THREAD, thread);
            thread as u64
        }
        thread => thread as u64,
    }
}

/// The time, if a block of this size is to be told.
#[inline]
fn begun(bytes: usize) -> Option<u64> {
    (bytes >= LEAST.load(Ordering::Relaxed)).then(now_ns)
}

/// The frame of the function that this becomes a part of. It points to its caller's, and behind that is the
/// address to return to.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it is about the frame of the function that it becomes a part of")]
fn frame() -> *const usize {
    let frame;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it reads a register.
    unsafe {
        core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it reads a register.
    unsafe {
        core::arch::asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    frame
}

/// Tells of a block and of the code that called the function with this frame.
#[inline(never)]
fn tell_block(kind: u64, time_ns: u64, block: Block, bytes: usize, frame: *const usize) {
    if block.is_null() {
        return;
    }
    // An allocator that maps memory may hold its locks.
    if kind == ALLOCATED && remembered(&STACK_HIGH) == 0 {
        find_stack();
    }
    write(kind, time_ns, block as usize, bytes, |record| tell_callers(record, frame));
}

/// Finds the bounds of this thread's stack. That may ask for a little memory.
#[cold]
fn find_stack() {
    let errno = errno();
    remember(&STACK_LOW, UNKNOWN);
    remember(&STACK_HIGH, UNKNOWN);
    let (mut attributes, mut low, mut bytes) = (Attributes::default(), 0, 0);
    // SAFETY: it has no condition.
    let own = unsafe { pthread_self() };
    // SAFETY: it writes the attributes, which have room for them.
    if unsafe { pthread_getattr_np(own, &raw mut attributes) } == 0 {
        // SAFETY: the attributes are there, and it writes two numbers.
        if unsafe { pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut bytes) } == 0 {
            remember(&STACK_LOW, low);
            remember(&STACK_HIGH, low + bytes);
        }
        // SAFETY: they are no longer used.
        unsafe { pthread_attr_destroy(&raw mut attributes) };
    }
    set_errno(errno);
}

/// Writes the code that called the function with this frame: where it returns to, the chain of frames, and
/// the top of the stack. Nothing outside of the stack is read. On a stack that is not the thread's own, that
/// is what is on the same page.
fn tell_callers(record: &Record, frame: *const usize) {
    let at = frame as usize + 16;
    let page_end = (at | (PAGE - 1)) + 1;
    let (low, high) = (remembered(&STACK_LOW), remembered(&STACK_HIGH));
    let end = if low <= at && at < high { high } else { page_end };
    // SAFETY: it is the function's own frame.
    let mut pointer = unsafe { load(frame as usize) };
    // SAFETY: so is this.
    record.set(RETURN, unsafe { load(frame as usize + 8) } as u64);
    // Elsewhere, frames are not at the end of what a function has on the stack.
    let is_at_end = cfg!(target_arch = "x86_64");
    record.set(STACK, if is_at_end { at as u64 } else { 0 });
    record.set(FRAMES, pointer as u64);
    let (mut frames, mut last) = (0, at - 1);
    while frames < MOST_FRAMES && pointer > last && pointer < end.saturating_sub(15) && pointer % 8 == 0 {
        // SAFETY: it is on the stack, behind the frame.
        let before = unsafe { load(pointer) };
        record.set(FRAMES + 1 + 2 * frames, before as u64);
        // SAFETY: so is this.
        record.set(FRAMES + 2 + 2 * frames, unsafe { load(pointer + 8) } as u64);
        frames += 1;
        (last, pointer) = (pointer, before);
    }
    let words = if is_at_end { MOST_WINDOW.min((end - at) / 8) } else { 0 };
    for i in 0..words {
        // SAFETY: it is on the stack, behind the frame.
        record.set(WINDOW + i, unsafe { load(at + 8 * i) } as u64);
    }
    record.set(COUNTS, frames as u64 | (words as u64) << 32);
}

/// A word of the stack.
///
/// # Safety
/// It is there, at a multiple of 8.
unsafe fn load(address: usize) -> usize {
    // SAFETY: as the caller promises. Whatever another function has left there is a number.
    unsafe { core::ptr::read_volatile(address as *const usize) }
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

/// `void *aligned_alloc(size_t alignment, size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> Block {
    let Some(real) = real_aligned_alloc::get() else { return refused() };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let block = unsafe { real(alignment, bytes) };
    if let Some(begun) = begun {
        tell_block(ALLOCATED, begun, block, bytes, frame());
    }
    block
}

/// `void *memalign(size_t alignment, size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> Block {
    let Some(real) = real_memalign::get() else { return refused() };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let block = unsafe { real(alignment, bytes) };
    if let Some(begun) = begun {
        tell_block(ALLOCATED, begun, block, bytes, frame());
    }
    block
}

/// `void *valloc(size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn valloc(bytes: usize) -> Block {
    let Some(real) = real_valloc::get() else { return refused() };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let block = unsafe { real(bytes) };
    if let Some(begun) = begun {
        tell_block(ALLOCATED, begun, block, bytes, frame());
    }
    block
}

/// `void *pvalloc(size_t size)`
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pvalloc(bytes: usize) -> Block {
    let Some(real) = real_pvalloc::get() else { return refused() };
    let begun = begun(bytes);
    // SAFETY: as the caller promises.
    let block = unsafe { real(bytes) };
    if let Some(begun) = begun {
        tell_block(ALLOCATED, begun, block, bytes, frame());
    }
    block
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

    #[test]
    fn a_place_is_a_path_and_two_numbers() {
        let place = |text: &core::ffi::CStr| {
            let mut path = [0; 64];
            let numbers = split(text.as_ptr(), &mut path)?;
            let end = path.iter().position(|&byte| byte == 0).unwrap();
            Some((String::from_utf8(path[..end].to_vec()).unwrap(), numbers))
        };
        assert_eq!(place(c"/proc/12/fd/3:1:4567"), Some(("/proc/12/fd/3".to_owned(), [1, 4567])));
        for other in
            [c"", c"/proc/12/fd/3", c"/proc/12/fd/3:1", c"/a:1:2:3", c"/a:x:1", c"/a:1:99999999999999999999"]
        {
            assert_eq!(place(other), None, "{other:?}");
        }
        let long = std::ffi::CString::new(format!("/{}:1:2", "a".repeat(64))).unwrap();
        assert_eq!(place(&long), None);
    }

    #[test]
    fn a_file_is_known_by_its_numbers() {
        use std::os::fd::AsRawFd as _;
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(numbers_of(file.as_raw_fd()), [metadata.dev(), metadata.ino()]);
        // Another file than was meant.
        assert!(map(c"/proc/self/exe:1:2".as_ptr()).is_null());
    }
}
