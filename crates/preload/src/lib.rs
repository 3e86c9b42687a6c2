//! The library that a program loads (`LD_PRELOAD`) so that its allocations are seen: its bytes, and the
//! memory that it shares with a reader.
//!
//! The library is `library/main.rs`, which consists of the modules in `src`. It stands before `malloc`,
//! `calloc`, `realloc`, `posix_memalign`, `aligned_alloc`, `memalign`, `valloc`, `pvalloc`, `free`, `mmap`,
//! `munmap` and `mremap`. The program's own allocator does the work, whichever it is. The library writes a
//! record of each block from a [size](layout::LEAST_BYTES) on. The records go into a ring that all processes
//! of the program share.
//!
//! - The program never waits: if the ring is full, the record is counted as lost.
//! - It takes no lock and no memory, so that signal handlers, forks and threads are no matter.
//! - Requests that come before the library knows the allocator, such as those of `dlsym`, are served from a
//!   small memory of its own.

/// The library, an ELF shared object for this crate's target.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnodewise_preload.so"));

/// The environment variable that names the file of the shared memory.
pub const VARIABLE: &str = "NODEWISE_ALLOCATIONS";

pub mod layout;

// Here for tests, and for the compiler's and clippy's warnings. They have no exported names here.
#[cfg(test)]
mod callers;
#[cfg(test)]
#[allow(dead_code, reason = "the loader calls it")]
mod hooks;
#[cfg(test)]
#[allow(dead_code, reason = "the library calls it")]
mod libc;
#[cfg(test)]
mod records;
