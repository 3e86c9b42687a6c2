//! Checks of the repository itself, run as `cargo xtask CHECK`.
#![forbid(unsafe_code)]

mod licences;
mod loom;
mod prose;
mod results;
mod sentences;
mod spdx;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask licences            check every dependency against deny.toml
       cargo xtask loom                check the runtime's models under every order of their steps
       cargo xtask prose [COMMIT]      check the prose of comments and pages, and what is new since COMMIT
       cargo xtask results [--check]   write docs/results.md from docs/results, or check it
";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["licences"] => licences::check(),
        ["loom"] => loom::check(),
        ["prose"] => prose::check(None),
        ["prose", since] => prose::check(Some(since)),
        ["results"] => results::run(false),
        ["results", "--check"] => results::run(true),
        _ => {
            eprint!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}
