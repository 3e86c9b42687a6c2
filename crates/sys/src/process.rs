//! Other processes: handles, signals, children, and advice about their memory.

use crate::error::{Error, Result, check};
use std::cmp::Ordering;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// `int pidfd_open(pid_t pid, unsigned flags)`
///
/// A handle to a process that never comes to mean another one, and polls readable when the process ends.
///
/// # Errors
/// `ESRCH` gone; `EINVAL` a thread that leads no process; `EMFILE`; `ENOSYS` before Linux 5.3.
///
/// # References
/// [`pidfd_open(2)`](https://man7.org/linux/man-pages/man2/pidfd_open.2.html)
pub fn pidfd_open(pid: i32) -> Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let returned = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = check("pidfd_open", returned)?;
    // SAFETY: the kernel just made this descriptor for us (close-on-exec), nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// `int pidfd_send_signal(int pidfd, int sig, siginfo_t *info, unsigned flags)`
///
/// Signal 0 only asks whether one could be sent.
///
/// # Errors
/// `ESRCH` gone; `EPERM`; `EINVAL` no such signal.
///
/// # References
/// [`pidfd_send_signal(2)`](https://man7.org/linux/man-pages/man2/pidfd_send_signal.2.html)
pub fn pidfd_send_signal(pidfd: impl AsFd, signal: i32) -> Result<()> {
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: a null siginfo makes the kernel fill in its own.
    let returned = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    check("pidfd_send_signal", returned).map(|_| ())
}

/// `int kill(pid_t pid, int sig)`
///
/// Negative `pid`: the process group of that number. Signal 0 only asks.
///
/// # Errors
/// `ESRCH`, `EPERM`, `EINVAL`.
///
/// # References
/// [`kill(2)`](https://man7.org/linux/man-pages/man2/kill.2.html)
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: no memory is passed.
    let returned = unsafe { libc::kill(pid, signal) };
    check("kill", returned.into()).map(|_| ())
}

/// `int sigaction(int signum, NULL, struct sigaction *oldact)`
///
/// Whether this process ignores a signal, as `nohup` has it ignore `SIGHUP`. Ignored signals stay so across
/// `execve(2)`. False for numbers that are no signal.
///
/// # References
/// [`sigaction(2)`](https://man7.org/linux/man-pages/man2/sigaction.2.html)
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all of its fields are numbers, or addresses that may be null.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and the kernel writes one struct.
    let returned = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    returned == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// `pid_t getsid(0) == pid_t getpid()`
///
/// Whether this process leads its session, and so is the one that the kernel tells of its terminal's end.
///
/// # References
/// [`setsid(2)`](https://man7.org/linux/man-pages/man2/setsid.2.html)
#[must_use]
pub fn leads_session() -> bool {
    // SAFETY: no memory is passed.
    let session = unsafe { libc::getsid(0) };
    session == std::process::id() as i32
}

/// `int kcmp(pid_t pid1, pid_t pid2, KCMP_VM, 0, 0)`
///
/// Compares the memory of two processes: equal if they share one (`clone(CLONE_VM)`), else in an order of the
/// kernel's.
///
/// # Errors
/// `EPERM`; `ESRCH` one is gone; `ENOSYS` a kernel without `CONFIG_KCMP`.
///
/// # References
/// [`kcmp(2)`](https://man7.org/linux/man-pages/man2/kcmp.2.html)
pub fn compare_memory(one: i32, other: i32) -> Result<Ordering> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: no memory is passed.
    let returned = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    Ok(match check("kcmp", returned)? {
        0 => Ordering::Equal,
        1 => Ordering::Less,
        _ => Ordering::Greater,
    })
}

/// `int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))`
///
/// Has `child` called in every child that is forked from here on, by its one thread, before fork(2) returns
/// there.
///
/// # Errors
/// `ENOMEM`.
///
/// # Safety
/// `child` does only what a signal handler may, since other threads may have been in the middle of anything.
///
/// # References
/// [`pthread_atfork(3)`](https://man7.org/linux/man-pages/man3/pthread_atfork.3.html)
pub unsafe fn at_fork_in_child(child: extern "C" fn()) -> Result<()> {
    // SAFETY: the function stays where it is as long as it may be called: the C library forgets it when the
    // library that it is in is unloaded.
    let errno = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    if errno == 0 { Ok(()) } else { Err(Error::new("pthread_atfork", errno)) }
}

/// `int prctl(PR_SET_CHILD_SUBREAPER, int set)`
///
/// From here on orphans among this process's descendants become its children, so that [`wait`] sees them end.
///
/// # Errors
/// None known.
///
/// # References
/// [`PR_SET_CHILD_SUBREAPER(2const)`](https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html)
pub fn set_child_subreaper(set: bool) -> Result<()> {
    // SAFETY: this option takes a number only.
    let returned = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, libc::c_ulong::from(set), 0, 0, 0) };
    check("prctl", returned.into()).map(|_| ())
}

/// The transparent huge pages that a process and its descendants are limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePageLimit {
    /// None at all.
    None,
    /// Only where it asks for them: `MADV_HUGEPAGE`, `MADV_COLLAPSE`. Linux 6.18.
    Advised,
}

/// `int prctl(PR_SET_THP_DISABLE, long flag, long flags)`
///
/// Has the program that `command` starts limited in its huge pages. It cannot be started where the kernel
/// does not know the limit: `EINVAL`.
///
/// # References
/// [`PR_SET_THP_DISABLE(2const)`](https://man7.org/linux/man-pages/man2/PR_SET_THP_DISABLE.2const.html);
/// `PR_THP_DISABLE_EXCEPT_ADVISED` in `Documentation/admin-guide/mm/transhuge.rst`, Linux 6.18
pub fn start_with_huge_page_limit(command: &mut Command, limit: HugePageLimit) {
    /// `include/uapi/linux/prctl.h`.
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    let (yes, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let flags = if limit == HugePageLimit::Advised { EXCEPT_ADVISED } else { 0 };
    let set = move || {
        // SAFETY: this option takes numbers only.
        let returned = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, flags, none, none) };
        check("prctl", returned.into())
            .map(|_| ())
            .map_err(|error| std::io::Error::from_raw_os_error(error.errno()))
    };
    // SAFETY: between fork and exec one system call is made; nothing is allocated, locked or shared.
    unsafe { command.pre_exec(set) };
}

/// A child that ended, as [`wait`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exited {
    /// Which.
    pub pid: i32,
    /// The raw wait status; `std::os::unix::process::ExitStatusExt::from_raw` takes it apart.
    pub status: i32,
}

/// `pid_t waitpid(pid_t pid, int *wstatus, int options)`
///
/// Reaps child `pid`, or any when it is -1. Without `block`, `None` when none has ended yet. Do not mix with
/// [`std::process::Child::wait`] on the same child: one of the two gets `ECHILD`.
///
/// # Errors
/// `ECHILD` there is no such child; `EINTR`.
///
/// # References
/// [`waitpid(2)`](https://man7.org/linux/man-pages/man2/waitpid.2.html)
pub fn wait(pid: i32, block: bool) -> Result<Option<Exited>> {
    let mut status = 0;
    // SAFETY: the kernel writes one int.
    let returned = unsafe { libc::waitpid(pid, &raw mut status, if block { 0 } else { libc::WNOHANG }) };
    let pid = check("waitpid", returned.into())? as i32;
    Ok((pid != 0).then_some(Exited { pid, status }))
}

/// A range of another process's addresses, as [`process_madvise`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AddressRange {
    /// The first byte's address, page-aligned.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

// The kernel reads these as iovecs.
const _: () = assert!(size_of::<AddressRange>() == size_of::<libc::iovec>());
const _: () =
    assert!(std::mem::offset_of!(AddressRange, bytes) == std::mem::offset_of!(libc::iovec, iov_len));

/// The advice the kernel takes about another process's memory: none of it loses contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum ProcessAdvice {
    /// Not needed soon. On part of a huge page this splits it.
    Cold = libc::MADV_COLD,
    /// Reclaim now.
    PageOut = libc::MADV_PAGEOUT,
    /// Needed soon.
    WillNeed = libc::MADV_WILLNEED,
    /// Make huge pages of small ones now. Linux 6.1.
    Collapse = libc::MADV_COLLAPSE,
}

/// `ssize_t process_madvise(int pidfd, const struct iovec *iovec, size_t n, int advice, unsigned flags)`
///
/// Advises about up to 1024 ranges of a process. Returns the bytes advised about, less than asked for when a
/// range failed after others had succeeded.
///
/// # Errors
/// `EPERM` no ptrace access or no `CAP_SYS_NICE`; `ESRCH` gone; `EINVAL` more than 1024 ranges, locked or
/// huge-TLB memory, or advice this kernel lacks; `ENOMEM` not mapped.
///
/// # References
/// [`process_madvise(2)`](https://man7.org/linux/man-pages/man2/process_madvise.2.html), `mm/madvise.c`
pub fn process_madvise(pidfd: impl AsFd, ranges: &[AddressRange], advice: ProcessAdvice) -> Result<u64> {
    if ranges.len() > libc::UIO_MAXIOV as usize {
        return Err(Error::new("process_madvise", libc::EINVAL));
    }
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: an AddressRange is laid out as an iovec (asserted above), the kernel reads `ranges.len()` of
    // them; the advices change no contents, also when the process is this one.
    let returned = unsafe {
        libc::syscall(libc::SYS_process_madvise, fd, ranges.as_ptr(), ranges.len(), advice as i32, 0)
    };
    check("process_madvise", returned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    #[test]
    fn a_signal_by_handle_ends_the_child() {
        #[allow(clippy::zombie_processes, reason = "wait() below reaps it")]
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let pidfd = pidfd_open(pid).unwrap();
        assert_eq!(wait(pid, false).unwrap(), None);
        pidfd_send_signal(&pidfd, 0).unwrap();
        pidfd_send_signal(&pidfd, libc::SIGTERM).unwrap();
        let ended = wait(pid, true).unwrap().unwrap();
        assert_eq!(ended.pid, pid);
        assert_eq!(ExitStatus::from_raw(ended.status).signal(), Some(libc::SIGTERM));
        assert_eq!(pidfd_send_signal(&pidfd, 0).unwrap_err().kind(), ErrorKind::NoSuchProcess);
    }

    #[test]
    fn what_is_gone_is_said_to_be_gone() {
        assert_eq!(pidfd_open(i32::MAX).unwrap_err().kind(), ErrorKind::NoSuchProcess);
        assert_eq!(kill(i32::MAX, 0).unwrap_err().kind(), ErrorKind::NoSuchProcess);
    }

    #[test]
    fn advice_counts_the_bytes() {
        let mapping = crate::Mapping::new(4 * crate::page_bytes(), crate::MappingOptions::default()).unwrap();
        let pidfd = pidfd_open(std::process::id() as i32).unwrap();
        let ranges = [
            AddressRange { address: mapping.page_address(0), bytes: crate::page_bytes() as u64 },
            AddressRange { address: mapping.page_address(2), bytes: 2 * crate::page_bytes() as u64 },
        ];
        let advised = process_madvise(&pidfd, &ranges, ProcessAdvice::Cold).unwrap();
        assert_eq!(advised, 3 * crate::page_bytes() as u64);
        let nothing = [AddressRange { address: 0, bytes: 4096 }];
        assert!(process_madvise(&pidfd, &nothing, ProcessAdvice::Cold).is_err());
        let many = vec![ranges[0]; 1025];
        let error = process_madvise(&pidfd, &many, ProcessAdvice::Cold).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
