//! Throw-away Linux guests with any number of NUMA nodes, in QEMU.
//!
//! A guest boots a stock Debian kernel and an initramfs made on the spot. It holds busybox, one program of
//! this machine, and the libraries of that program. The guest runs the program as root, and is gone.
//! Placement and the kernel's behaviour are real in it. Time is an emulator's, or a modelled machine's
//! ([`Machine`]).
//!
//! # By task
//!
//! - **Shape a guest.** [`Guest::uniform`] for equal nodes, [`Guest::new`] for nodes of any kind, such as one
//!   without CPUs. [`Guest::distances`] and [`Guest::device`] add to it.
//! - **Run a program and look at its output.** [`Guest::output`].
//! - **Follow a run, feed it, or end it.** [`Guest::run`] with [`Streams`].
//! - **Bring more files.** [`Guest::copy`] for files and directories, [`Guest::command`] for programs that
//!   the first one starts. [`Guest::package`] brings a Debian package with all that it depends on, and
//!   [`Guest::root`] a whole Debian tree.
//! - **Choose a kernel.** [`kernels`] lists those that are found, and [`Guest::kernel`] takes any other.
//! - **Give it the time of a modelled machine.** [`Guest::machine`].
//! - **Bound its time.** [`Guest::boot_limit`] and [`Guest::time_limit`].
//! - **Boot one guest at a time.** [`Guest::exclusive`], since emulated guests slow each other down.
//!
//! ```no_run
//! use nodewise_rig::{Distances, Guest};
//! use std::process::Command;
//! use std::time::Duration;
//!
//! let square = Distances::parse("square", 4)?;
//! let guest = Guest::uniform(4, 1, 512 << 20).distances(square).time_limit(Duration::from_secs(60));
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
mod own_cpu;
mod packages;
mod program;
mod qemu;
mod running;
mod shape;

pub use error::{Error, ErrorKind};
pub use guest::{Guest, Output, Stage, Streams, Terminal};
pub use kernel::{kernels, no_kernel};
pub use machine::{Machine, library};
pub use nodewise_model::{LinkWork, Report, Traced, Work};
pub use qemu::Accelerator;
pub use shape::{Device, Distances, Node, parse_size};
