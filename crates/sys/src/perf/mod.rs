//! Perf events: opening one, counting with it, and reading the records it samples from its ring.
//!
//! [`Attr`] says what to measure, [`Event`] is the open event, [`Ring`] the memory it shares with the kernel,
//! and [`Record`] what comes out. [`ring_in_memory`] gives a ring that a test writes instead of the kernel.
//!
//! # References
//! [`perf_event_open(2)`](https://man7.org/linux/man-pages/man2/perf_event_open.2.html),
//! `include/uapi/linux/perf_event.h` and `kernel/events/{core,ring_buffer}.c` of Linux 6.12

mod area;
mod attr;
mod event;
mod record;
mod ring;
mod sample;
#[cfg(test)]
mod tests;

pub use attr::{Attr, AttrFlags, BranchType, EventType, ReadFormat, SampleType, SoftwareEvent};
pub use event::{Count, Event, Target};
pub use record::{AuxFlags, Malformed, Record, Stamp, TaskChange};
pub use ring::{Losses, Ring, RingWriter, ring_in_memory};
pub use sample::{CallChain, CpuMode, Identity, Sample, SampleFormat};
