//! The crate's one error: which call failed and with what number.

use std::fmt;

/// Result of a system call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A system call that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error {
    call: &'static str,
    errno: i32,
}

/// The kind of an [`Error`], by what a caller can do about it; the exact number is in [`Error::errno`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `EPERM`, `EACCES`: a capability, a sysctl, ptrace rights, or a container's seccomp filter.
    NotPermitted,
    /// `ESRCH`: the process or thread is gone.
    NoSuchProcess,
    /// `ENODEV`, `ENXIO`: a node or a PMU that this machine does not have.
    NoSuchDevice,
    /// `ENOENT`: a file, or an event that this PMU does not know.
    NotFound,
    /// `EINVAL`, `E2BIG`: a malformed request, or one that is too new for this kernel.
    Invalid,
    /// `ENOSYS`, `EOPNOTSUPP`: the kernel was built without it, or the hardware cannot.
    NotSupported,
    /// `ENOMEM`, `ENOSPC`: out of memory, mappings or locked pages.
    OutOfMemory,
    /// `EMFILE`, `ENFILE`: out of file descriptors.
    TooManyFiles,
    /// `EBUSY`, `EAGAIN`: try again later.
    Busy,
    /// `EINTR`: a signal arrived.
    Interrupted,
    /// `EFAULT`: no memory there.
    BadAddress,
    /// Any other number.
    Other,
}

impl Error {
    /// An error as the named call would return it.
    #[must_use]
    pub const fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }

    /// The error that `errno` holds after a call of the C library failed.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::new(call, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The call's name, as its manual page has it.
    #[must_use]
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// The error number, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.errno
    }

    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self.errno {
            libc::EPERM | libc::EACCES => ErrorKind::NotPermitted,
            libc::ESRCH => ErrorKind::NoSuchProcess,
            libc::ENODEV | libc::ENXIO => ErrorKind::NoSuchDevice,
            libc::ENOENT => ErrorKind::NotFound,
            libc::EINVAL | libc::E2BIG => ErrorKind::Invalid,
            libc::ENOSYS | libc::EOPNOTSUPP => ErrorKind::NotSupported,
            libc::ENOMEM | libc::ENOSPC => ErrorKind::OutOfMemory,
            libc::EMFILE | libc::ENFILE => ErrorKind::TooManyFiles,
            libc::EBUSY | libc::EAGAIN => ErrorKind::Busy,
            libc::EINTR => ErrorKind::Interrupted,
            libc::EFAULT => ErrorKind::BadAddress,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = std::io::Error::from_raw_os_error(self.errno).to_string();
        let message = message.split(" (os error").next().unwrap_or_default().to_lowercase();
        write!(f, "{}: {message} (errno {})", self.call, self.errno)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno)
    }
}

/// Turns the return value of a C library call into a result; the value is never negative then.
pub(crate) fn check(call: &'static str, returned: libc::c_long) -> Result<u64> {
    u64::try_from(returned).map_err(|_| Error::last(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_call_reason_and_number() {
        let error = Error::new("move_pages", libc::ESRCH);
        assert_eq!(error.to_string(), "move_pages: no such process (errno 3)");
        assert_eq!(error.kind(), ErrorKind::NoSuchProcess);
    }

    #[test]
    fn becomes_an_io_error_of_the_same_number() {
        let error: std::io::Error = Error::new("mbind", libc::EPERM).into();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
