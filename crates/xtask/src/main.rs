//! Checks of the repository itself, run as `cargo xtask CHECK`.
#![forbid(unsafe_code)]

mod licences;
mod loom;
mod prose;
mod sentences;
mod spdx;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["licences"] => licences::check(),
        ["loom"] => loom::check(),
        ["prose"] => prose::check(None),
        ["prose", since] => prose::check(Some(since)),
        _ => {
            eprintln!("usage: cargo xtask licences   check every dependency against deny.toml");
            eprintln!(
                "       cargo xtask loom       check the runtime's models under every order of their steps"
            );
            eprintln!(
                "       cargo xtask prose [COMMIT]   check the prose of comments and pages, and of what is new since COMMIT"
            );
            Ok(ExitCode::from(2))
        }
    }
}
