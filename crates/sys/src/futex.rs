//! Sleeping until a number changes, and barriers that only one side pays for.

use crate::error::{Result, check};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// `long syscall(SYS_futex, uint32_t *word, FUTEX_WAIT_PRIVATE, uint32_t expected, const struct timespec
/// *timeout)`
///
/// Sleeps while the word is `expected`, until [`futex_wake`] or the timeout (`None`: for ever; relative, by
/// the monotonic clock). The kernel compares and goes to sleep in one step, so that a change followed by a
/// wake-up is never missed. May also return for no reason.
///
/// # Errors
/// `EAGAIN` the word is not what was expected; `EINTR` a signal; `ETIMEDOUT`.
///
/// # References
/// [`futex(2)`](https://man7.org/linux/man-pages/man2/futex.2.html)
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads the word, which is aligned and borrowed, and the timeout, which lives to the
    // end of this function.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout,
        )
    };
    check("futex", returned).map(|_| ())
}

/// `long syscall(SYS_futex, uint32_t *word, FUTEX_WAKE_PRIVATE, uint32_t most)`
///
/// Wakes at most so many threads that sleep on the word; says how many.
///
/// # Errors
/// None known.
///
/// # References
/// [`futex(2)`](https://man7.org/linux/man-pages/man2/futex.2.html)
pub fn futex_wake(word: &AtomicU32, most: u32) -> Result<u32> {
    // The kernel takes the number as an int.
    let most = most.min(i32::MAX as u32);
    // SAFETY: the kernel uses the address as a key only.
    let returned = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, most)
    };
    check("futex", returned).map(|woken| woken as u32)
}

/// The commands of [`membarrier`]; `enum membarrier_cmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum Membarrier {
    /// Every running thread of this process passes a full memory barrier before the call returns.
    PrivateExpedited = 1 << 3,
    /// Says that this process will ask for that. Linux 4.14.
    RegisterPrivateExpedited = 1 << 4,
}

/// `int membarrier(int cmd, unsigned int flags, int cpu_id)`
///
/// # Errors
/// `EPERM` not registered; `EINVAL`, `ENOSYS` not in this kernel, or `nohz_full` CPUs.
///
/// # References
/// [`membarrier(2)`](https://man7.org/linux/man-pages/man2/membarrier.2.html)
pub fn membarrier(command: Membarrier) -> Result<()> {
    // SAFETY: no memory is passed.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, command as i32, 0, 0) };
    check("membarrier", returned).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_is_not_slept_on() {
        let word = AtomicU32::new(1);
        assert_eq!(futex_wait(&word, 0, None).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(futex_wake(&word, 1).unwrap(), 0);
    }

    #[test]
    fn a_wait_ends_with_its_time() {
        let error = futex_wait(&AtomicU32::new(7), 7, Some(Duration::from_millis(1))).unwrap_err();
        assert_eq!(error.errno(), libc::ETIMEDOUT);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    let _ = futex_wait(&word, 0, None);
                }
            });
            word.store(1, Ordering::Release);
            futex_wake(&word, u32::MAX).unwrap();
        });
    }

    #[test]
    fn a_registered_process_may_ask_for_barriers() {
        if membarrier(Membarrier::RegisterPrivateExpedited).is_ok() {
            membarrier(Membarrier::PrivateExpedited).unwrap();
        }
    }
}
