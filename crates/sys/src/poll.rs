//! Waiting for file descriptors.

use crate::error::{Result, check};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// `int poll(struct pollfd *fds, nfds_t n, int timeout)`
///
/// Waits until one of the descriptors has something to read, has hung up (a perf event's target ended) or is
/// in error, or until the timeout (`None`: for ever). Says for each whether it has.
///
/// # Errors
/// `EINTR` a signal arrived; `EINVAL` more descriptors than the limit; `ENOMEM`.
///
/// # References
/// [`poll(2)`](https://man7.org/linux/man-pages/man2/poll.2.html)
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    // Rounded up, so that a wait for half a millisecond is not a spin.
    let timeout_ms = timeout
        .map_or(-1, |timeout| i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: the kernel reads and writes `len` pollfds.
    let returned = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
    check("poll", returned.into())?;
    Ok(polled.iter().map(|polled| polled.revents != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn tells_the_one_that_has_something() {
        let (quiet, _keep_open) = UnixStream::pair().unwrap();
        let (busy, mut writer) = UnixStream::pair().unwrap();
        assert_eq!(poll_readable(&[quiet.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
        writer.write_all(b"x").unwrap();
        assert_eq!(poll_readable(&[quiet.as_fd(), busy.as_fd()], None).unwrap(), [false, true]);
    }
}
