//! Page table, faults, moves, and what the operating system charges for them.

pub(super) mod costs;
pub(super) mod machine;
pub(super) mod memory;
pub(super) mod sampler;
