//! `move_pages(2)`: where pages are, and putting them elsewhere.

use crate::error::{Error, Result, check};
use crate::mempolicy::{MPOL_MF_MOVE, MPOL_MF_MOVE_ALL};

/// Which pages [`move_pages`] may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MoveFlags {
    /// `MPOL_MF_MOVE`: pages that only this process maps.
    Exclusive,
    /// `MPOL_MF_MOVE_ALL`: shared pages too; needs `CAP_SYS_NICE`.
    All,
}

/// `long move_pages(int pid, unsigned long count, void *pages[], const int nodes[], int status[], int flags)`
///
/// Moves the page that holds `pages[i]` to node `nodes[i]`, in process `pid` (0: this one). Afterwards
/// `status[i]` is the page's node, or a negative error number: `-EACCES` shared and not [`MoveFlags::All`],
/// `-EBUSY` in use right now, `-EFAULT` zero page or not mapped, `-ENOENT` not present, `-ENOMEM` no room on
/// the target, `-EIO` not written back. These are data, not errors of the call. The slices have equal
/// lengths; the kernel takes the whole of them in one go, so the caller bounds them.
///
/// Returns how many pages were not moved for a reason other than their status (since Linux 4.17; before,
/// always 0). When that is not 0, statuses past the failure are unset: fill `status` with a value of your own
/// first.
///
/// # Errors
/// `EINVAL` lengths differ; `EPERM` no ptrace access, or `All` without `CAP_SYS_NICE`; `ESRCH` process gone;
/// `ENODEV` a target node is not online; `EACCES` a target node is outside of the process's cpuset; `E2BIG`.
///
/// # References
/// [`move_pages(2)`](https://man7.org/linux/man-pages/man2/move_pages.2.html), `mm/migrate.c` `do_pages_move`
pub fn move_pages(
    pid: i32,
    pages: &[u64],
    nodes: &[i32],
    status: &mut [i32],
    flags: MoveFlags,
) -> Result<u64> {
    if pages.len() != nodes.len() || pages.len() != status.len() {
        return Err(Error::new("move_pages", libc::EINVAL));
    }
    let flags = match flags {
        MoveFlags::Exclusive => MPOL_MF_MOVE,
        MoveFlags::All => MPOL_MF_MOVE_ALL,
    };
    // SAFETY: all three arrays have `pages.len()` elements of the kernel's types (a u64 is a pointer's size
    // here, see the crate's compile_error); the kernel reads two and writes the third. Moving a page
    // changes no contents.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            flags,
        )
    };
    check("move_pages", returned)
}

/// `move_pages` with `nodes` NULL: asks where pages are and moves nothing.
///
/// `status[i]` becomes the node of the page that holds `pages[i]`, or a negative error number: `-ENOENT` not
/// present, `-EFAULT` the zero page or not mapped at all.
///
/// # Errors
/// As [`move_pages`]: `EINVAL`, `EPERM`, `ESRCH`.
pub fn query_pages(pid: i32, pages: &[u64], status: &mut [i32]) -> Result<()> {
    if pages.len() != status.len() {
        return Err(Error::new("move_pages", libc::EINVAL));
    }
    // SAFETY: both arrays have `pages.len()` elements of the kernel's types; the kernel reads one, writes the
    // other.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    check("move_pages", returned).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Mapping, MappingOptions, page_bytes};
    use std::sync::atomic::Ordering;

    #[test]
    fn tells_present_pages_from_absent_ones() {
        let mapping = Mapping::new(4 * page_bytes(), MappingOptions::default()).unwrap();
        mapping.as_atomics()[0].store(1, Ordering::Relaxed);
        let pages: Vec<u64> = (0..4).map(|i| mapping.page_address(i)).collect();
        let mut status = [i32::MAX; 4];
        query_pages(0, &pages, &mut status).unwrap();
        assert!(status[0] >= 0, "{status:?}");
        assert!(status[1..].iter().all(|&s| s == -libc::ENOENT || s == -libc::EFAULT), "{status:?}");
    }

    #[test]
    fn moves_a_page_to_the_node_it_is_on() {
        let mapping = Mapping::new(page_bytes(), MappingOptions::default()).unwrap();
        mapping.as_atomics()[0].store(1, Ordering::Relaxed);
        let pages = [mapping.page_address(0)];
        let mut home = [i32::MAX];
        query_pages(0, &pages, &mut home).unwrap();
        let mut status = [i32::MAX];
        assert_eq!(move_pages(0, &pages, &home, &mut status, MoveFlags::Exclusive).unwrap(), 0);
        assert_eq!(status, home);
    }

    #[test]
    fn names_the_errors() {
        let mut status = [0];
        let gone = query_pages(i32::MAX, &[0x1000], &mut status).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NoSuchProcess);
        let uneven = move_pages(0, &[0x1000], &[], &mut status, MoveFlags::Exclusive).unwrap_err();
        assert_eq!(uneven.kind(), ErrorKind::Invalid);
        let mapping = Mapping::new(page_bytes(), MappingOptions::default()).unwrap();
        mapping.as_atomics()[0].store(1, Ordering::Relaxed);
        let nowhere = move_pages(0, &[mapping.page_address(0)], &[1000], &mut status, MoveFlags::Exclusive)
            .unwrap_err();
        assert_eq!(nowhere.kind(), ErrorKind::NoSuchDevice);
    }
}
