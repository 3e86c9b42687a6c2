//! Which CPUs a thread runs on, on machines of any size.

use crate::error::{Error, Result, check};
use std::fmt;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// A set of CPUs by the kernel's numbers, as large as it needs to be (the C library's stops at 1024).
#[derive(Clone, Default)]
pub struct AffinityMask(Vec<u64>);

impl AffinityMask {
    /// No CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: u32) {
        let word = cpu as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (cpu % 64);
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.0.len() as u32 * 64).filter(|&cpu| self.contains(cpu))
    }

    /// How many CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl FromIterator<u32> for AffinityMask {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

/// Sets of different capacity are equal when they hold the same CPUs.
impl PartialEq for AffinityMask {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for AffinityMask {}

impl fmt::Debug for AffinityMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// `int sched_setaffinity(pid_t tid, size_t length, const cpu_set_t *mask)`
///
/// Confines a thread (0: the caller) to CPUs; those that are offline or outside of its cpuset are dropped
/// silently.
///
/// # Errors
/// `EINVAL` none is left; `EPERM` another user's; `ESRCH` gone.
///
/// # References
/// [`sched_setaffinity(2)`](https://man7.org/linux/man-pages/man2/sched_setaffinity.2.html)
pub fn sched_setaffinity(tid: i32, cpus: &AffinityMask) -> Result<()> {
    // SAFETY: the kernel reads `len * 8` bytes of the vector.
    let returned =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, cpus.0.len() * 8, cpus.0.as_ptr()) };
    check("sched_setaffinity", returned).map(|_| ())
}

/// `int pthread_setaffinity_np(pthread_t thread, size_t length, const cpu_set_t *mask)`
///
/// As [`sched_setaffinity`], for a thread of this process that does not end meanwhile: of one that has ended,
/// glibc forgets the number, and confines the caller instead.
///
/// # Errors
/// As [`sched_setaffinity`].
///
/// # References
/// [`pthread_setaffinity_np(3)`](https://man7.org/linux/man-pages/man3/pthread_setaffinity_np.3.html)
pub fn pthread_setaffinity<T>(thread: &JoinHandle<T>, cpus: &AffinityMask) -> Result<()> {
    // SAFETY: the thread was neither joined nor detached, since its handle is there; `len * 8` bytes of the
    // vector are read.
    let errno = unsafe {
        libc::pthread_setaffinity_np(thread.as_pthread_t(), cpus.0.len() * 8, cpus.0.as_ptr().cast())
    };
    // It is the system call that fails.
    if errno == 0 { Ok(()) } else { Err(Error::new("sched_setaffinity", errno)) }
}

/// `int sched_getaffinity(pid_t tid, size_t length, cpu_set_t *mask)`
///
/// The CPUs a thread (0: the caller) may run on.
///
/// # Errors
/// `ESRCH` gone.
///
/// # References
/// [`sched_getaffinity(2)`](https://man7.org/linux/man-pages/man2/sched_getaffinity.2.html)
pub fn sched_getaffinity(tid: i32) -> Result<AffinityMask> {
    // The kernel refuses a mask smaller than its own with EINVAL; it never needs more than 8192 bits
    // (CONFIG_NR_CPUS).
    let mut words = vec![0_u64; 8192 / 64];
    // SAFETY: the kernel writes at most `len * 8` bytes to the vector.
    let returned =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, words.len() * 8, words.as_mut_ptr()) };
    let bytes = check("sched_getaffinity", returned)?;
    words.truncate(bytes as usize / 8);
    Ok(AffinityMask(words))
}

/// `int getcpu(unsigned int *cpu, unsigned int *node)`
///
/// CPU and node the caller runs on now; both may have changed when it returns, unless the thread is bound.
///
/// # Errors
/// None known.
///
/// # References
/// [`getcpu(2)`](https://man7.org/linux/man-pages/man2/getcpu.2.html)
pub fn getcpu() -> Result<(u32, u32)> {
    let (mut cpu, mut node) = (0_u32, 0_u32);
    // SAFETY: the kernel writes two unsigned ints; the third argument has been unused since Linux 2.6.24.
    let returned = unsafe {
        libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, std::ptr::null_mut::<libc::c_void>())
    };
    check("getcpu", returned)?;
    Ok((cpu, node))
}

/// `int sched_getcpu(void)`
///
/// As [`getcpu`], the CPU only, and without a system call where the C library or the vDSO can tell.
///
/// # Errors
/// `ENOSYS` the kernel does not tell.
///
/// # References
/// [`sched_getcpu(3)`](https://man7.org/linux/man-pages/man3/sched_getcpu.3.html)
pub fn sched_getcpu() -> Result<u32> {
    // SAFETY: no arguments.
    let returned = unsafe { libc::sched_getcpu() };
    check("sched_getcpu", returned.into()).map(|cpu| cpu as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn a_bound_thread_runs_where_it_was_bound() {
        for cpu in sched_getaffinity(0).unwrap().iter() {
            let one: AffinityMask = [cpu].into_iter().collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sched_setaffinity(0, &one).unwrap();
                    assert_eq!(sched_getaffinity(0).unwrap(), one);
                    assert_eq!(getcpu().unwrap().0, cpu);
                    assert_eq!(sched_getcpu().unwrap(), cpu);
                });
            });
        }
    }

    #[test]
    fn a_thread_is_confined_by_another() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = told.recv();
            sched_getaffinity(0).unwrap()
        });
        let all = sched_getaffinity(0).unwrap();
        let one: AffinityMask = all.iter().take(1).collect();
        pthread_setaffinity(&thread, &one).unwrap();
        let nowhere = pthread_setaffinity(&thread, &AffinityMask::from_iter([4095])).unwrap_err();
        assert_eq!(nowhere.kind(), ErrorKind::Invalid);
        drop(tell);
        assert_eq!(thread.join().unwrap(), one);
        assert_eq!(sched_getaffinity(0).unwrap(), all);
    }

    #[test]
    fn a_machine_of_4096_cpus_can_be_named() {
        let far: AffinityMask = [4095].into_iter().collect();
        // No such CPU here, which is the kernel's answer and not a truncated mask's.
        assert_eq!(sched_setaffinity(0, &far).unwrap_err().kind(), ErrorKind::Invalid);
        let mut with_real_ones = sched_getaffinity(0).unwrap();
        with_real_ones.insert(4095);
        std::thread::scope(|scope| {
            scope.spawn(|| sched_setaffinity(0, &with_real_ones).unwrap());
        });
    }

    proptest! {
        #[test]
        fn a_set_holds_exactly_what_was_put_in(cpus in proptest::collection::btree_set(0..5000_u32, 0..40)) {
            let set: AffinityMask = cpus.iter().copied().collect();
            prop_assert_eq!(set.len(), cpus.len());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
        }
    }
}
