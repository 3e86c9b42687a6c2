//! The functions of the C library that are used, and the values that Linux has on x86-64 and arm64.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

pub(crate) type Block = *mut c_void;

// Functions of the C library, with the values that Linux has on x86-64 and arm64.
#[link(name = "c")]
unsafe extern "C" {
    pub(crate) fn abort() -> !;
    pub(crate) fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
    pub(crate) fn close(file: c_int) -> c_int;
    pub(crate) fn dladdr(address: *const c_void, info: *mut Symbol) -> c_int;
    pub(crate) fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    pub(crate) fn getenv(name: *const c_char) -> *const c_char;
    pub(crate) fn getpid() -> c_int;
    pub(crate) fn gettid() -> c_int;
    pub(crate) fn lseek(file: c_int, offset: i64, from: c_int) -> i64;
    pub(crate) fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub(crate) fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    pub(crate) fn pthread_attr_destroy(attributes: *mut Attributes) -> c_int;
    pub(crate) fn pthread_attr_getstack(
        attributes: *const Attributes,
        low: *mut usize,
        bytes: *mut usize,
    ) -> c_int;
    pub(crate) fn pthread_getattr_np(thread: usize, attributes: *mut Attributes) -> c_int;
    pub(crate) fn pthread_getspecific(key: c_uint) -> *mut c_void;
    pub(crate) fn pthread_key_create(key: *mut c_uint, destroy: Option<extern "C" fn(*mut c_void)>) -> c_int;
    pub(crate) fn pthread_self() -> usize;
    pub(crate) fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
    pub(crate) fn read(file: c_int, into: *mut c_void, bytes: usize) -> isize;
    pub(crate) fn syscall(number: c_long, ...) -> c_long;
    pub(crate) fn __errno_location() -> *mut c_int;
}

/// `pthread_attr_t`, which is smaller.
pub(crate) type Attributes = [u64; 16];

/// `Dl_info`
#[repr(C)]
pub(crate) struct Symbol {
    pub(crate) file: *const c_char,
    pub(crate) base: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) address: *mut c_void,
}

pub(crate) const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
pub(crate) const CLOCK_MONOTONIC: c_int = 1;
pub(crate) const O_RDWR_CLOEXEC: c_int = 0o2_000_002;
pub(crate) const O_RDONLY_CLOEXEC: c_int = 0o2_000_000;
pub(crate) const SEEK_END: c_int = 2;
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const PROT_READ_WRITE: c_int = 3;
pub(crate) const MAP_SHARED: c_int = 1;
pub(crate) const MAP_FIXED: c_int = 0x10;
pub(crate) const MAP_ANONYMOUS: c_int = 0x20;
pub(crate) const MAP_FAILED: usize = usize::MAX;
#[cfg(target_arch = "x86_64")]
pub(crate) const SYS_MMAP_MUNMAP_MREMAP: [c_long; 3] = [9, 11, 25];
#[cfg(target_arch = "aarch64")]
pub(crate) const SYS_MMAP_MUNMAP_MREMAP: [c_long; 3] = [222, 215, 216];

#[cfg(target_arch = "x86_64")]
pub(crate) const SYS_FSTAT: c_long = 5;
#[cfg(target_arch = "aarch64")]
pub(crate) const SYS_FSTAT: c_long = 80;

/// Ends the program.
pub(crate) fn abort_program() -> ! {
    // SAFETY: it has no condition.
    unsafe { abort() }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: it has no condition.
    let place = unsafe { __errno_location() };
    // SAFETY: it is the thread's own.
    unsafe { *place }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: it has no condition.
    let place = unsafe { __errno_location() };
    // SAFETY: it is the thread's own.
    unsafe { *place = errno };
}

pub(crate) fn now_ns() -> u64 {
    let mut time = [0; 2];
    // SAFETY: it writes the two numbers.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}
