//! Thin safe wrappers over the system calls that Nodewise needs and few libraries have: memory policies,
//! `move_pages`, advice to other processes, CPU affinity past 1024 CPUs, futexes, restartable sequences, and
//! perf events with their ring.
//!
//! One function a call. Nothing is retried, chunked or remembered here, and the caller gets the kernel's own
//! answer. All numbers are the kernel's (process ids, node numbers, addresses), so the crate depends on
//! nothing but `libc`. It contains `unsafe`, as few crates of the workspace do (`docs/architecture.md` names
//! them). Each block says why it is sound.
//!
//! # By task
//!
//! - **Ask where pages are.** [`query_pages`], or [`node_of_address`] for a single one of this process.
//! - **Move pages.** [`move_pages`], of this process or another.
//! - **Say where new memory goes.** [`set_mempolicy`] for a thread, [`mbind`] for a [`Mapping`].
//! - **Map memory.** [`Mapping`] shares it as atomics, [`OwnedMemory`] owns it as bytes.
//! - **Run on certain CPUs.** [`sched_setaffinity`], and [`sched_getcpu`] to look.
//! - **Know the node in a nanosecond.** [`rseq_node`], without a call.
//! - **Split or make huge pages of another process.** [`process_madvise`] with [`pidfd_open`].
//! - **Sample memory accesses.** [`perf::Event`] and [`perf::Ring`], or a modelled machine's
//!   [`device::Device`].
//!
//! ```
//! use nodewise_sys::{Mapping, MappingOptions, query_pages};
//! use std::sync::atomic::Ordering;
//!
//! let memory = Mapping::new(4096, MappingOptions::default())?;
//! memory.as_atomics()[0].store(1, Ordering::Relaxed);
//! let mut status = [i32::MAX];
//! match query_pages(0, &[memory.page_address(0)], &mut status) {
//!     Ok(()) => println!("the page is on node {}", status[0]),
//!     // A container's filter may refuse the question.
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), nodewise_sys::Error>(())
//! ```

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("nodewise runs on 64-bit Linux");

pub mod device;
mod error;
mod futex;
pub mod hints;
mod mapping;
mod mempolicy;
mod move_pages;
mod owned_memory;
pub mod perf;
mod poll;
mod process;
mod rseq;
mod sched;
mod shared_file;
mod task;

pub use error::{Error, ErrorKind, Result};
pub use futex::{Membarrier, futex_wait, futex_wake, membarrier};
pub use mapping::{Advice, Mapping, MappingOptions, Sharing, page_bytes};
pub use mempolicy::{
    MbindFlags, NODES_MAX, NodeMask, Policy, PolicyFlags, PolicyMode, get_mempolicy, get_mempolicy_at, mbind,
    mbind_at, mems_allowed, next_interleave_node, node_of_address, set_mempolicy,
};
pub use move_pages::{MoveFlags, move_pages, query_pages};
pub use owned_memory::OwnedMemory;
pub use poll::poll_readable;
pub use process::{
    AddressRange, Exited, HugePageLimit, ProcessAdvice, at_fork_in_child, compare_memory, is_ignored, kill,
    leads_session, pidfd_open, pidfd_send_signal, process_madvise, set_child_subreaper,
    start_with_huge_page_limit, wait,
};
pub use rseq::{CpuSlot, rseq_add, rseq_adds, rseq_cpu, rseq_node, rseq_take};
pub use sched::{
    AffinityMask, getcpu, pthread_setaffinity, sched_getaffinity, sched_getcpu, sched_setaffinity,
};
pub use shared_file::{SharedFile, is_sealed};
pub use task::{
    Capability, Clock, FileLimit, Usage, Whose, auxiliary_value, clock_ns, effective_capabilities,
    file_limit, gettid, set_file_limit, start_with_file_limit, usage,
};
