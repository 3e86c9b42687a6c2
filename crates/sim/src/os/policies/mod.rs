//! Policies that act while a program runs, each with the state that it keeps of pages and threads.

pub(super) mod ace_pages;
pub(super) mod autonuma27;
pub(super) mod balancing;
pub(super) mod exchange;
mod group;
mod hint_faults;
pub(super) mod plan;
mod scan;
mod task;
mod task_placement;
pub(super) mod weights;
