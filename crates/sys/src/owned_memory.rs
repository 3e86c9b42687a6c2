//! Anonymous memory of one owner, as plain bytes.

use crate::error::Result;
use crate::mapping::{Advice, Mapping, MappingOptions, Sharing};
use crate::mempolicy::{MbindFlags, Policy, mbind};
use std::ops::Range;

/// A private anonymous mapping that is reached as bytes, under Rust's rules for borrowing; zero at first,
/// unmapped when dropped.
///
/// After `fork` parent and child have copies of their own, as of all private memory.
#[derive(Debug)]
pub struct OwnedMemory(Mapping);

impl OwnedMemory {
    /// Maps `bytes`, rounded up to whole pages, aligned to `align_bytes` (a power of two). Nothing is
    /// allocated until it is touched.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub fn new(bytes: usize, align_bytes: usize) -> Result<Self> {
        Mapping::new(bytes, MappingOptions { sharing: Sharing::Private, align_bytes }).map(Self)
    }

    /// Length in bytes, whole pages.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Address of base page `i`; addresses past the end are not checked, as they are only numbers.
    #[must_use]
    pub fn page_address(&self, i: usize) -> u64 {
        self.0.page_address(i)
    }

    /// The memory.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: mapped and readable for as long as `self` lives; all bits are valid bytes. It is private
        // memory, whose words are handed out neither as atomics nor, while this borrow lives,
        // mutably; whatever else takes `&self` changes no contents.
        unsafe { std::slice::from_raw_parts(self.0.as_atomics().as_ptr().cast::<u8>(), self.0.bytes()) }
    }

    /// The memory, to be written.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        let start = self.0.as_atomics().as_ptr().cast_mut().cast::<u8>();
        // SAFETY: as above, and writable; `&mut self` excludes every other borrow. The pointer may be written
        // through: it comes from mmap by way of interior-mutable atomics.
        unsafe { std::slice::from_raw_parts_mut(start, self.0.bytes()) }
    }

    /// Brings `bytes` (page-aligned) in, writable, without changing their contents (`MADV_POPULATE_WRITE`,
    /// Linux 5.14).
    ///
    /// # Errors
    /// `EINVAL` unaligned, outside, or a kernel without it; `ENOMEM`; `EFAULT`, `EHWPOISON`.
    pub fn populate(&self, bytes: Range<usize>) -> Result<()> {
        self.0.advise(bytes, Advice::PopulateWrite)
    }

    /// Advises about `bytes` (page-aligned): [`Advice::DontNeed`] makes zeros of them, which is why this
    /// takes `&mut`.
    ///
    /// # Errors
    /// As [`Mapping::advise`].
    pub fn advise(&mut self, bytes: Range<usize>, advice: Advice) -> Result<()> {
        self.0.advise(bytes, advice)
    }

    /// [`mbind`] of `bytes` (page-aligned).
    ///
    /// # Errors
    /// As [`mbind`].
    pub fn bind(&self, bytes: Range<usize>, policy: &Policy, flags: MbindFlags) -> Result<()> {
        mbind(&self.0, bytes, policy, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_bytes;

    #[test]
    fn what_is_written_is_read_until_it_is_dropped() {
        let page = page_bytes();
        let mut memory = OwnedMemory::new(3 * page - 5, 2 << 20).unwrap();
        assert_eq!((memory.len_bytes(), memory.page_address(0) % (2 << 20)), (3 * page, 0));
        memory.populate(0..memory.len_bytes()).unwrap();
        assert!(memory.as_bytes().iter().all(|&byte| byte == 0));
        memory.as_mut_bytes().fill(7);
        memory.populate(0..page).unwrap();
        memory.advise(page..2 * page, Advice::DontNeed).unwrap();
        let of_page = |i: usize| &memory.as_bytes()[i * page..(i + 1) * page];
        assert!(of_page(0).iter().chain(of_page(2)).all(|&byte| byte == 7));
        assert!(of_page(1).iter().all(|&byte| byte == 0));
        assert!(memory.populate(1..page).is_err() && memory.populate(0..4 * page).is_err());
    }
}
