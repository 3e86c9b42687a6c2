//! Files in memory, mapped by who made them and open to others.

use crate::error::{Error, Result, check};
use crate::mapping::Mapping;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// A memfd of fixed length, mapped shared: zero at first. Children do not inherit the mapping. Other
/// processes reach the file through `/proc/PID/map_files` or, as long as this lives, `/proc/PID/fd`.
#[derive(Debug)]
pub struct SharedFile {
    mapping: Mapping,
    /// Open for others.
    file: OwnedFd,
}

impl SharedFile {
    /// `int memfd_create(const char *name, unsigned flags)`, sized, sealed against growing and shrinking, and
    /// mapped.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`; `EINVAL` no bytes, or a name of more than 249; `EPERM` a container's
    /// filter.
    ///
    /// # References
    /// [`memfd_create(2)`](https://man7.org/linux/man-pages/man2/memfd_create.2.html),
    /// [`F_ADD_SEALS(2const)`](https://man7.org/linux/man-pages/man2/F_GET_SEALS.2const.html)
    pub fn new(name: &CStr, bytes: usize) -> Result<Self> {
        // SAFETY: `name` is a C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        check("memfd_create", fd.into())?;
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let length = libc::off_t::try_from(bytes).map_err(|_| Error::new("ftruncate", libc::EINVAL))?;
        // SAFETY: it touches no memory of ours.
        check("ftruncate", unsafe { libc::ftruncate(fd, length) }.into())?;
        // SAFETY: as above.
        check("fcntl", unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) }.into())?;
        let mapping = Mapping::of_file(&file, bytes)?;
        Ok(Self { mapping, file })
    }

    /// The path by which other processes of the same user open it. It holds as long as this lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Its words, which other processes may change at any time.
    #[must_use]
    pub fn as_atomics(&self) -> &[AtomicU64] {
        self.mapping.as_atomics()
    }
}

const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;

/// `int fcntl(int fd, F_GET_SEALS)`: whether it is sealed against growing and shrinking, as only files in
/// memory can be.
///
/// # Errors
/// `EINVAL` a file that cannot be sealed.
pub fn is_sealed(file: BorrowedFd<'_>) -> Result<bool> {
    // SAFETY: it touches no memory of ours.
    let seals = check("fcntl", unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) }.into())?;
    Ok(seals as libc::c_int & SEALS == SEALS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    #[test]
    fn others_see_what_is_written_and_cannot_cut_it() {
        let shared = SharedFile::new(c"nodewise-test", 8192).unwrap();
        shared.as_atomics()[1023].store(7, Ordering::Relaxed);
        let other = File::options().read(true).write(true).open(shared.path()).unwrap();
        let mut word = [0; 8];
        other.read_exact_at(&mut word, 8184).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 7);
        other.write_all_at(&9_u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(shared.as_atomics()[0].load(Ordering::Relaxed), 9);
        assert!(other.set_len(0).is_err());
        assert!(is_sealed(other.as_fd()).unwrap());
        assert!(is_sealed(File::open("/proc/self/stat").unwrap().as_fd()).is_err());
        assert!(SharedFile::new(c"nodewise-test", 0).is_err());
    }
}
