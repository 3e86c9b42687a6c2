//! `nodewise topo`.

use std::process::ExitCode;

/// Not written yet.
#[derive(clap::Args)]
pub struct Args {}

pub fn main(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("'topo' is not written yet")
}
