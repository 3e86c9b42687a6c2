//! `nodewise rig`.

use std::process::ExitCode;

/// Not written yet.
#[derive(clap::Args)]
pub struct Args {}

pub fn main(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("'rig' is not written yet")
}
