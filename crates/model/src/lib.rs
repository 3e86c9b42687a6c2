//! A guest whose clock is a modelled machine's.
//!
//! [`nodewise rig --machine`](https://docs.rs/nodewise) boots a stock kernel in a stock QEMU that loads this
//! crate's shared object as a TCG plugin. Once the rig says so, the plugin charges each instruction and each
//! access to memory to [`nodewise_hardware::Hardware`]. The guest's clocks show the time that this takes:
//!
//! - An instruction takes the preset's cycles. A memory access goes through the CPU's caches, its node's LLC,
//!   links and controllers. A CPU goes on while data is on its way, and waits where an address hangs on it
//!   (`flow`).
//! - Each CPU has its own time. None gets far ahead of the slowest (`clock`), so no result depends on how
//!   fast the host is. Time in which all CPUs idle is skipped.
//! - The kernel is charged like any program: its copies of pages, its faults, its locks.
//! - The guest sees the machine's counters, and samples of its accesses, by a device
//!   ([`nodewise_sys::device`]).
//! - The program's references behind the private caches can be written to a trace (`tracer`), which the
//!   simulator replays.
//!
//! [`Settings`] go to the plugin, and a [`Report`] comes back, over a socket.

mod clock;
mod control;
mod cpu;
mod flow;
mod model;
mod plugin;
mod qemu;
mod settings;
mod tracer;

pub use control::{Control, LIBRARY};
pub use settings::{LinkWork, Report, Settings, Traced, Tracing, Work};
