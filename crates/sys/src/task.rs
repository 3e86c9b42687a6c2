//! The process itself: time and resources used, limits, capabilities.

use crate::error::{Result, check};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Which clock [`clock_ns`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum Clock {
    /// Time since boot without suspends; what perf events can be stamped with.
    Monotonic = libc::CLOCK_MONOTONIC,
    /// The same, untouched by clock adjustment.
    MonotonicRaw = libc::CLOCK_MONOTONIC_RAW,
    /// Time since boot with suspends.
    BootTime = libc::CLOCK_BOOTTIME,
    /// CPU time of this process, all threads.
    ProcessCpu = libc::CLOCK_PROCESS_CPUTIME_ID,
    /// CPU time of the calling thread.
    ThreadCpu = libc::CLOCK_THREAD_CPUTIME_ID,
}

/// `int clock_gettime(clockid_t clock, struct timespec *now)`, in nanoseconds.
///
/// # Errors
/// None known.
///
/// # References
/// [`clock_gettime(2)`](https://man7.org/linux/man-pages/man2/clock_gettime.2.html)
pub fn clock_ns(clock: Clock) -> Result<u64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let returned = unsafe { libc::clock_gettime(clock as libc::clockid_t, &raw mut now) };
    check("clock_gettime", returned.into())?;
    Ok(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Whose resources [`usage`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Whose {
    /// This process, all threads.
    Process = libc::RUSAGE_SELF,
    /// Children that were waited for, and theirs.
    Children = libc::RUSAGE_CHILDREN,
    /// The calling thread.
    Thread = libc::RUSAGE_THREAD,
}

/// Resources used so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// Greatest resident memory.
    pub resident_max_bytes: u64,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// Times that a thread waited and so gave its CPU up.
    pub voluntary_switches: u64,
    /// Times that a thread had to.
    pub involuntary_switches: u64,
}

/// `int getrusage(int who, struct rusage *usage)`
///
/// # Errors
/// None known.
///
/// # References
/// [`getrusage(2)`](https://man7.org/linux/man-pages/man2/getrusage.2.html)
pub fn usage(whose: Whose) -> Result<Usage> {
    // SAFETY: a struct of numbers, for which all bits zero is a value.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage.
    let returned = unsafe { libc::getrusage(whose as i32, &raw mut raw) };
    check("getrusage", returned.into())?;
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Ok(Usage {
        user_ns: ns(raw.ru_utime),
        system_ns: ns(raw.ru_stime),
        resident_max_bytes: raw.ru_maxrss as u64 * 1024,
        minor_faults: raw.ru_minflt as u64,
        major_faults: raw.ru_majflt as u64,
        voluntary_switches: raw.ru_nvcsw as u64,
        involuntary_switches: raw.ru_nivcsw as u64,
    })
}

/// How many file descriptors this process may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimit {
    /// The limit in force.
    pub soft: u64,
    /// The most that the soft limit may be raised to.
    pub hard: u64,
}

/// `int getrlimit(RLIMIT_NOFILE, struct rlimit *limit)`
///
/// # Errors
/// None known.
///
/// # References
/// [`getrlimit(2)`](https://man7.org/linux/man-pages/man2/getrlimit.2.html)
pub fn file_limit() -> Result<FileLimit> {
    let mut raw = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    let returned = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut raw) };
    check("getrlimit", returned.into())?;
    Ok(FileLimit { soft: raw.rlim_cur, hard: raw.rlim_max })
}

/// `int setrlimit(RLIMIT_NOFILE, const struct rlimit *limit)`
///
/// # Errors
/// `EINVAL` soft above hard; `EPERM` a higher hard limit without `CAP_SYS_RESOURCE`.
///
/// # References
/// [`setrlimit(2)`](https://man7.org/linux/man-pages/man2/setrlimit.2.html)
pub fn set_file_limit(limit: FileLimit) -> Result<()> {
    let raw = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: the kernel reads one rlimit.
    let returned = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raw) };
    check("setrlimit", returned.into()).map(|_| ())
}

/// Has the program that `command` starts begin with this limit instead of the caller's, which may have been
/// raised since the caller itself began: `select(2)` knows no descriptor above 1023, and programs that use it
/// rely on the usual limit.
pub fn start_with_file_limit(command: &mut Command, limit: FileLimit) {
    let set = move || set_file_limit(limit).map_err(|error| std::io::Error::from_raw_os_error(error.errno()));
    // SAFETY: between fork and exec one system call is made; nothing is allocated, locked or shared.
    unsafe { command.pre_exec(set) };
}

/// Capabilities that matter here; `include/uapi/linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Capability {
    /// `CAP_SYS_PTRACE`: read and steer other users' processes.
    SysPtrace = 19,
    /// `CAP_SYS_ADMIN`: nearly everything, perf events of every CPU included.
    SysAdmin = 21,
    /// `CAP_SYS_NICE`: move shared pages, advise about other processes' memory.
    SysNice = 23,
    /// `CAP_SYS_RESOURCE`: raise hard limits.
    SysResource = 24,
    /// `CAP_PERFMON`: perf events of every CPU and process. Linux 5.8.
    PerfMon = 38,
    /// `CAP_BPF`. Linux 5.8.
    Bpf = 39,
}

impl Capability {
    /// Whether a set as [`effective_capabilities`] returns it holds this capability.
    #[must_use]
    pub const fn is_in(self, set: u64) -> bool {
        set >> self as u32 & 1 == 1
    }
}

/// `int capget(cap_user_header_t header, cap_user_data_t data)`
///
/// The calling thread's effective capabilities, one bit each.
///
/// # Errors
/// None known.
///
/// # References
/// [`capget(2)`](https://man7.org/linux/man-pages/man2/capget.2.html), version 3 of the call
pub fn effective_capabilities() -> Result<u64> {
    const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let mut header = [LINUX_CAPABILITY_VERSION_3, 0];
    // Two times effective, permitted, inheritable: first the low, then the high 32 bits.
    let mut data = [0_u32; 6];
    // SAFETY: version 3 of the call has a header of two 32-bit words and writes six.
    let returned = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    check("capget", returned)?;
    Ok(u64::from(data[0]) | u64::from(data[3]) << 32)
}

/// `pid_t gettid(void)`: the calling thread's number.
///
/// # References
/// [`gettid(2)`](https://man7.org/linux/man-pages/man2/gettid.2.html)
#[must_use]
pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// `unsigned long getauxval(unsigned long type)`: a value the kernel gave this process at its start, `None`
/// when it did not.
///
/// # References
/// [`getauxval(3)`](https://man7.org/linux/man-pages/man3/getauxval.3.html)
#[must_use]
pub fn auxiliary_value(kind: u64) -> Option<u64> {
    // SAFETY: getauxval only looks a number up.
    let value = unsafe { libc::getauxval(kind) };
    // 0 is also what absent values read as; none of those that are asked for here are ever 0.
    (value != 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_and_usage_advance() {
        let before = clock_ns(Clock::Monotonic).unwrap();
        let cpu_before = clock_ns(Clock::ThreadCpu).unwrap();
        let sum = (0..1_000_000_u64).fold(0, |sum, i| sum ^ std::hint::black_box(i));
        std::hint::black_box(sum);
        assert!(clock_ns(Clock::Monotonic).unwrap() > before);
        assert!(clock_ns(Clock::ThreadCpu).unwrap() > cpu_before);
        assert!(usage(Whose::Process).unwrap().resident_max_bytes > 100_000);
    }

    #[test]
    fn the_file_limit_can_be_set_to_what_it_is() {
        let limit = file_limit().unwrap();
        assert!(limit.soft <= limit.hard);
        set_file_limit(limit).unwrap();
        assert_eq!(file_limit().unwrap(), limit);
    }

    #[test]
    fn a_program_starts_with_the_file_limit_it_is_given() {
        let own = file_limit().unwrap();
        let mut command = Command::new("sh");
        start_with_file_limit(command.args(["-c", "ulimit -S -n"]), FileLimit { soft: 77, ..own });
        assert_eq!(command.output().unwrap().stdout, b"77\n");
        assert_eq!(file_limit().unwrap(), own);
    }

    #[test]
    fn capabilities_agree_with_proc() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let expected = u64::from_str_radix(line.trim(), 16).unwrap();
        assert_eq!(effective_capabilities().unwrap(), expected);
        assert_eq!(Capability::SysNice.is_in(expected), expected & 1 << 23 != 0);
    }

    #[test]
    fn the_page_size_is_in_the_auxiliary_vector() {
        assert_eq!(auxiliary_value(libc::AT_PAGESZ), Some(crate::page_bytes() as u64));
        assert_eq!(auxiliary_value(9999), None);
    }
}
