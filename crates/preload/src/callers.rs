//! Threads with their stacks, and the code that called a function.

use crate::layout::{COUNTS, FRAMES, MOST_FRAMES, MOST_WINDOW, RETURN, STACK, WINDOW};
use crate::libc::{
    Attributes, errno, gettid, pthread_attr_destroy, pthread_attr_getstack, pthread_getattr_np,
    pthread_getspecific, pthread_key_create, pthread_self, pthread_setspecific, set_errno,
};
use crate::records::Record;
use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

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

/// `top` is above all that the first thread has on its stack.
pub(crate) fn prepare_threads(top: usize) -> bool {
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
    true
}

/// The thread has another number, as the first one of a child has.
pub(crate) fn forget_number() {
    remember(&THREAD, 0);
}

fn remember(key: &AtomicU32, value: usize) {
    // SAFETY: the key was made before. The value is a number.
    unsafe { pthread_setspecific(key.load(Ordering::Relaxed), value as *const c_void) };
}

fn remembered(key: &AtomicU32) -> usize {
    // SAFETY: the key was made before.
    unsafe { pthread_getspecific(key.load(Ordering::Relaxed)) as usize }
}

/// This thread's number.
pub(crate) fn thread() -> u64 {
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

/// The frame of the function that this becomes a part of. It points to its caller's, and behind that is the
/// address to return to.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it is about the frame of the function that it becomes a part of")]
pub(crate) fn frame() -> *const usize {
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

/// Finds the bounds of this thread's stack, if it has not looked for them. That may ask for a little memory.
pub(crate) fn find_stack() {
    if remembered(&STACK_HIGH) == 0 {
        look_for_stack();
    }
}

#[cold]
fn look_for_stack() {
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
pub(crate) fn tell_callers(record: &Record, frame: *const usize) {
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
