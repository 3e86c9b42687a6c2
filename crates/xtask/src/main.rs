//! Checks of the repository itself, run as `cargo xtask CHECK`.
#![forbid(unsafe_code)]

mod licences;
mod spdx;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["licences"] {
        return licences::check();
    }
    eprintln!("usage: cargo xtask licences   check every dependency against deny.toml");
    Ok(ExitCode::from(2))
}
