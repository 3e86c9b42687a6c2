//! Is it NUMA? From repeated runs under different placements, and from samples of a running program, to a
//! verdict in plain words and the change to make.
//!
//! # By task
//!
//! - **Compare placements.** [`compare::Candidates`] has those that make sense on a machine. A
//!   [`compare::Experiment`] says which one to run next, and takes in how the run went; a [`compare::Runner`]
//!   makes the run. [`compare::Report::of`] draws the conclusions, and [`compare::page::html`] shows them.
//! - **Compare two series of runs.** [`paired::compare`].
//! - **Judge a running program.** [`doctor::diagnose`], and [`profile::find`] for a recorded one.
//! - **Predict a gain** from latencies that were measured: [`load::Load`].
//!
//! Nothing here reads a file or a clock, or starts a program.
#![forbid(unsafe_code)]

pub mod compare;
pub mod doctor;
pub mod html;
pub mod load;
pub mod paired;
pub mod profile;
pub mod statistics;
