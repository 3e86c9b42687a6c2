//! Throw-away Linux guests with any number of NUMA nodes, in QEMU.
//!
//! A guest boots a stock Debian kernel and an initramfs made on the spot, which holds busybox, one
//! program of this machine and what it needs; it runs that program as root, and is gone. Placement
//! and the kernel's behaviour are real in it. Time is an emulator's, or a modelled machine's ([`Machine`]).
//!
//! ```no_run
//! use nodewise_rig::{Distances, Guest};
//! use std::process::Command;
//!
//! let guest = Guest::uniform(4, 1, 512 << 20).distances(Distances::parse("square", 4)?);
//! let output = guest.output(Command::new("numactl").arg("--hardware"))?;
//! assert_eq!(output.status, 0);
//! # Ok::<(), nodewise_rig::Error>(())
//! ```
#![forbid(unsafe_code)]

mod cpio;
mod elf;
mod error;
mod guest;
mod initramfs;
mod kernel;
mod lock;
mod machine;
mod program;
mod qemu;
mod running;
mod shape;

pub use error::{Error, ErrorKind};
pub use guest::{Guest, Output, Stage, Streams, Terminal};
pub use kernel::{kernels, no_kernel};
pub use machine::{Machine, library};
pub use nodewise_model::{LinkWork, Report, Work};
pub use qemu::Accelerator;
pub use shape::{Device, Distances, Node, parse_size};
