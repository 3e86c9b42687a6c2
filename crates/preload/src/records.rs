//! Records in the memory that is shared with the reader.

use crate::callers::thread;
use crate::layout::{
    ADDRESS, BYTES, HEAD, HEADER_WORDS, KIND, LEAST_BYTES, LENGTH, LOST, MAGIC, RECORD_WORDS, RECORDS, TAIL,
    TIME, TURN, VERSION, WHO,
};
use crate::libc::{
    MAP_SHARED, O_RDWR_CLOEXEC, PROT_READ_WRITE, SEEK_END, SYS_FSTAT, SYS_MMAP_MUNMAP_MREMAP, close, getpid,
    lseek, open, syscall,
};
use core::ffi::{c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The shared memory; null before there is any.
static SHARED: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The number of this process. A child that shares its parent's memory counts as its parent.
static PID: AtomicU32 = AtomicU32::new(0);

/// Opens the shared memory that a text names. It returns the bytes from which on blocks are told, and none if
/// there is no such memory.
pub(crate) fn attach(text: *const c_char) -> Option<usize> {
    let shared = if text.is_null() { null_mut() } else { map(text) };
    if shared.is_null() {
        return None;
    }
    SHARED.store(shared, Ordering::Relaxed);
    take_number();
    Some(word(shared, LEAST_BYTES).load(Ordering::Relaxed) as usize)
}

/// Takes this process's number for that of its records. The one that they had.
pub(crate) fn take_number() -> u32 {
    // SAFETY: it has no condition.
    PID.swap(unsafe { getpid() } as u32, Ordering::Relaxed)
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

/// A word of the shared memory, which is as long as the layout says.
fn word<'a>(shared: *const AtomicU64, at: usize) -> &'a AtomicU64 {
    // SAFETY: `map` has mapped BYTES, and they stay mapped. Atomics may be shared by processes.
    unsafe { &*shared.wrapping_add(at) }
}

/// A record that is being written.
pub(crate) struct Record {
    first: *const AtomicU64,
}

impl Record {
    pub(crate) fn set(&self, at: usize, value: u64) {
        word(self.first, at).store(value, Ordering::Relaxed);
    }
}

/// Writes a record, or counts it as lost.
pub(crate) fn write(kind: u64, time_ns: u64, address: usize, bytes: usize, more: impl FnOnce(&Record)) {
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

pub(crate) fn tell(kind: u64, time_ns: u64, address: usize, bytes: usize) {
    write(kind, time_ns, address, bytes, |_| {});
}

#[cfg(test)]
mod tests {
    use super::*;

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
