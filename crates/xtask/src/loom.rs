//! The runtime's models, checked by loom: every order of their threads' steps that the memory model allows,
//! up to a bound.

use anyhow::Context;
use std::path::Path;
use std::process::{Command, ExitCode};

pub fn check() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["test", "--locked", "--package", "nodewise-runtime", "--lib", "loom_tests"])
        .current_dir(&root)
        // Another configuration of every crate: its own directory, so that neither build throws the other's
        // away.
        .env("CARGO_TARGET_DIR", root.join("target/loom"))
        .env("RUSTFLAGS", "--cfg loom")
        .status()
        .context("cannot run cargo test")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
