//! Anonymous memory with an owner, so that workloads and probes need no `unsafe` of their own.

use crate::error::{Error, Result, check};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes of a base page.
#[must_use]
pub fn page_bytes() -> usize {
    // SAFETY: sysconf reads no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Whether children share a [`Mapping`] or get copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// `MAP_PRIVATE`
    #[default]
    Private,
    /// `MAP_SHARED`
    Shared,
}

/// How a [`Mapping`] is made.
#[derive(Clone, Copy, Debug)]
pub struct MappingOptions {
    /// Private or shared with children.
    pub sharing: Sharing,
    /// The start's alignment, a power of two; at least a page. Take 2 MiB for memory that is to have huge
    /// pages.
    pub align_bytes: usize,
}

impl Default for MappingOptions {
    fn default() -> Self {
        Self { sharing: Sharing::Private, align_bytes: page_bytes() }
    }
}

/// Advice about a [`Mapping`]; `madvise(2)`'s constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum Advice {
    /// Huge pages, please.
    HugePage = libc::MADV_HUGEPAGE,
    /// No huge pages; does not split those there.
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// Not needed soon. On part of a huge page this splits it.
    Cold = libc::MADV_COLD,
    /// Reclaim now.
    PageOut = libc::MADV_PAGEOUT,
    /// Needed soon.
    WillNeed = libc::MADV_WILLNEED,
    /// Drop the contents: zeros from here on (private memory).
    DontNeed = libc::MADV_DONTNEED,
    /// Bring every page in, writable. Linux 5.14.
    PopulateWrite = libc::MADV_POPULATE_WRITE,
    /// Make huge pages of small ones now. Linux 6.1.
    Collapse = libc::MADV_COLLAPSE,
}

/// An anonymous mapping, readable and writable, zero at first, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The result of mmap, and its length: more than asked for when an alignment is.
    reserved: NonNull<AtomicU64>,
    reserved_bytes: usize,
    start: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the memory is reached only as atomics, and the addresses do not depend on the thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)`
    ///
    /// Maps `bytes`, rounded up to whole pages. Nothing is allocated until it is touched.
    ///
    /// # Errors
    /// `EINVAL` no bytes, too many, or an alignment that is no power of two; `ENOMEM`.
    ///
    /// # References
    /// [`mmap(2)`](https://man7.org/linux/man-pages/man2/mmap.2.html)
    pub fn new(bytes: usize, options: MappingOptions) -> Result<Self> {
        let page = page_bytes();
        let align = options.align_bytes.max(page);
        let invalid = Error::new("mmap", libc::EINVAL);
        if bytes == 0 || !align.is_power_of_two() {
            return Err(invalid);
        }
        let bytes = bytes.checked_next_multiple_of(page).ok_or(invalid)?;
        let reserved_bytes = bytes.checked_add(align - page).ok_or(invalid)?;
        let sharing = match options.sharing {
            Sharing::Private => libc::MAP_PRIVATE,
            Sharing::Shared => libc::MAP_SHARED,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        let reserved = NonNull::new(address.cast::<AtomicU64>()).ok_or(invalid)?;
        let skip = address.cast::<u8>().align_offset(align);
        // SAFETY: the mapping is `align - page` longer than asked for and page-aligned, so `skip` and `bytes`
        // fit.
        let start = unsafe { reserved.byte_add(skip) };
        Ok(Self { reserved, reserved_bytes, start, bytes })
    }

    /// A file's first `bytes`, shared with all who have them; children do not inherit it. The memory of a PCI
    /// device is such a file, too. A file that shrinks meanwhile ends the process by SIGBUS.
    ///
    /// # Errors
    /// `EACCES` the file is not open for reading and writing; `EINVAL` no bytes; `ENODEV` no such file.
    ///
    /// # References
    /// [`mmap(2)`](https://man7.org/linux/man-pages/man2/mmap.2.html)
    pub fn of_file(file: &impl AsFd, bytes: usize) -> Result<Self> {
        let (readable, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_fd().as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, readable, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        let start = NonNull::new(address.cast()).ok_or(Error::new("mmap", libc::EINVAL))?;
        let mapping = Self { reserved: start, reserved_bytes: bytes, start, bytes };
        // SAFETY: the range is this mapping, whose memory stays as it is.
        let returned = unsafe { libc::madvise(address, bytes, libc::MADV_DONTFORK) };
        check("madvise", returned.into()).map(|_| mapping)
    }

    /// Length in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of base pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.bytes / page_bytes()
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Address of base page `i`; addresses past the end are not checked, as they are only numbers.
    #[must_use]
    pub fn page_address(&self, i: usize) -> u64 {
        self.address() + (i * page_bytes()) as u64
    }

    /// The memory as 8-byte words, which any number of threads may read and write.
    #[must_use]
    pub fn as_atomics(&self) -> &[AtomicU64] {
        // SAFETY: page-aligned, mapped for as long as `self` lives, never handed out as anything but atomics;
        // all bits zero is a valid AtomicU64, and pages that are moved, split or dropped by the
        // kernel stay valid memory.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / 8) }
    }

    /// `int madvise(void *addr, size_t length, int advice)`
    ///
    /// Advises about `bytes` (page-aligned) of the mapping.
    ///
    /// # Errors
    /// `EINVAL` unaligned, outside of the mapping, or advice this kernel lacks; `EAGAIN`, `EBUSY`, `ENOMEM`
    /// for [`Advice::Collapse`].
    ///
    /// # References
    /// [`madvise(2)`](https://man7.org/linux/man-pages/man2/madvise.2.html)
    pub fn advise(&self, bytes: Range<usize>, advice: Advice) -> Result<()> {
        let (address, length) = self.part("madvise", bytes)?;
        // SAFETY: the range is inside this mapping, and none of the advices unmaps it; DontNeed makes zeros,
        // which are valid values of the atomics that references point to.
        let returned = unsafe { libc::madvise(address as *mut libc::c_void, length, advice as i32) };
        check("madvise", returned.into()).map(|_| ())
    }

    /// Address and length of a part, checked.
    pub(crate) fn part(&self, call: &'static str, bytes: Range<usize>) -> Result<(u64, usize)> {
        let inside = bytes.start <= bytes.end && bytes.end <= self.bytes;
        if !inside || bytes.start % page_bytes() != 0 {
            return Err(Error::new(call, libc::EINVAL));
        }
        Ok((self.address() + bytes.start as u64, bytes.end - bytes.start))
    }
}

impl AsRef<[AtomicU64]> for Mapping {
    fn as_ref(&self) -> &[AtomicU64] {
        self.as_atomics()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned; borrows of the memory ended with `self`.
        unsafe { libc::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    const HUGE: usize = 2 << 20;

    #[test]
    fn is_zero_aligned_and_as_long_as_asked() {
        let options = MappingOptions { align_bytes: HUGE, ..MappingOptions::default() };
        let mapping = Mapping::new(HUGE + 1, options).unwrap();
        assert_eq!(mapping.address() % HUGE as u64, 0);
        assert_eq!(mapping.bytes(), HUGE + page_bytes());
        assert!(mapping.as_atomics().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        mapping.as_atomics().last().unwrap().store(7, Ordering::Relaxed);
    }

    #[test]
    fn dontneed_makes_zeros_of_that_part_only() {
        let page = page_bytes();
        let mapping = Mapping::new(2 * page, MappingOptions::default()).unwrap();
        mapping.as_atomics().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        mapping.advise(page..2 * page, Advice::DontNeed).unwrap();
        assert_eq!(mapping.as_atomics()[page / 8 - 1].load(Ordering::Relaxed), 7);
        assert_eq!(mapping.as_atomics()[page / 8].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn refuses_malformed_requests() {
        let odd = MappingOptions { align_bytes: 3 * page_bytes(), ..MappingOptions::default() };
        assert!(Mapping::new(1, odd).is_err());
        assert!(Mapping::new(0, MappingOptions::default()).is_err());
        assert!(Mapping::new(usize::MAX, MappingOptions::default()).is_err());
        let mapping = Mapping::new(page_bytes(), MappingOptions::default()).unwrap();
        assert!(mapping.advise(1..page_bytes(), Advice::Cold).is_err());
        assert!(mapping.advise(0..page_bytes() + 1, Advice::Cold).is_err());
    }
}
