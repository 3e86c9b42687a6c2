//! The caches of the computer that simulates.

// No safe function asks them for anything.
#![allow(unsafe_code)]

/// Has values come nearer while other things are done. All that it changes is time: a simulated miss is
/// mostly waiting for the host's own misses, and these then wait together.
#[inline]
pub(crate) fn load_ahead<T>(values: &[T]) {
    for line in values.chunks((64 / size_of::<T>()).max(1)) {
        let address = line.as_ptr();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: it is a hint, which changes nothing that a program can see, and every x86-64 processor
        // takes it.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: it is a hint, which changes nothing that a program can see.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    }
}
