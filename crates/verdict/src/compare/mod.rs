//! A command under different placements.

pub mod ace;
mod experiment;
pub mod page;
mod placement;
pub mod remedy;
mod report;

pub use experiment::{Against, Experiment, LEVEL, Measured, NARROW, Ran, Run, Runner, blocks_needed};
pub use placement::{Candidates, How, NEVER, Placement, Rights, Skipped};
pub use report::{Answer, Correlation, Far, Kind, Migrations, Report, Row, Setting};
