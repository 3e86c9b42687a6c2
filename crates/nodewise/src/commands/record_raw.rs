//! `nodewise record-raw`: what this machine's PMU writes, for tests.

use crate::manage::explain;
use crate::output::{PUBLIC, WholeFile};
use nodewise_linux::sampler::hardware::raw::Recording;
use nodewise_topology::Topology;
use std::path::PathBuf;
use std::process::ExitCode;

/// Record what this machine's PMU writes, to be sent to the developers
///
/// A thread on each node reads and writes 256 MiB of its own on each node. The file gets the PMU's records of
/// that thread alone. It also gets the files of /sys and /proc that describe the PMU, the CPU's model and the
/// nodes.
/// It takes about a second for each pair of nodes. docs/record-raw.md describes the file and its use.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sudo nodewise record-raw genoa-2-sockets.json

Exit status:
  0   done
  1   it failed, for example because there is no PMU that samples memory accesses
  2   the command line could not be understood
  77  a capability, sysctl or file permission is missing; the message names it")]
pub struct Args {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let file = WholeFile::create(&args.file, PUBLIC)?;
    let recording = Recording::take(&Topology::live()?).map_err(explain)?;
    file.finish(&(serde_json::to_string_pretty(&recording)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}
