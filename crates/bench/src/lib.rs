//! Programs whose access pattern is known, to see what a placement policy makes of them.
#![forbid(unsafe_code)]

pub mod pattern;
pub mod report;
pub mod scenario;
