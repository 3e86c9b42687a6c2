//! Every dependency: a licence that deny.toml allows, from crates.io, and no newer Rust than ours.

use crate::spdx;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, ExitCode};

#[derive(Deserialize)]
struct Deny {
    graph: Graph,
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// The output of `cargo metadata --format-version 1`, as far as it matters here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None for the workspace's own.
    source: Option<String>,
    rust_version: Option<String>,
}

/// Both ways cargo writes it, of which the second is the sparse index.
const CRATES_IO: [&str; 2] =
    ["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];

pub fn check() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let deny = std::fs::read_to_string(root.join("deny.toml")).context("cannot read deny.toml")?;
    let deny: Deny = toml::from_str(&deny).context("cannot parse deny.toml")?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(["metadata", "--locked", "--format-version", "1"]).current_dir(&root);
    for target in &deny.graph.targets {
        command.args(["--filter-platform", target]);
    }
    let output =
        command.stderr(std::process::Stdio::inherit()).output().context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed");
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot parse cargo's metadata")?;
    let problems: Vec<String> =
        metadata.packages.iter().filter_map(|package| problem(package, &deny.licenses.allow)).collect();
    for problem in &problems {
        eprintln!("licences: {problem}");
    }
    if !problems.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    eprintln!("licences: {} packages, all as deny.toml allows", metadata.packages.len());
    Ok(ExitCode::SUCCESS)
}

fn problem(package: &Package, allow: &[String]) -> Option<String> {
    let why = match (&package.license, &package.source) {
        (_, Some(source)) if !CRATES_IO.contains(&source.as_str()) => format!("comes from {source}"),
        (None, _) => "states no licence".into(),
        (Some(licence), _) => match spdx::allowed(licence, allow) {
            Ok(true) => match &package.rust_version {
                Some(needs) if numbers(needs) > numbers(env!("CARGO_PKG_RUST_VERSION")) => {
                    format!("needs Rust {needs}, and our minimum is {}", env!("CARGO_PKG_RUST_VERSION"))
                }
                _ => return None,
            },
            Ok(false) => format!("has the licence '{licence}', which deny.toml does not allow"),
            Err(why) => why,
        },
    };
    Some(format!("{} {} {why}", package.name, package.version))
}

/// For comparing; 1.85 and 1.85.0 are the same.
fn numbers(version: &str) -> [u32; 3] {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(license: Option<&str>, source: &str, rust_version: &str) -> Package {
        Package {
            name: "thing".into(),
            version: "1.2.3".into(),
            license: license.map(Into::into),
            source: Some(source.into()),
            rust_version: Some(rust_version.into()),
        }
    }

    #[test]
    fn problems_are_named() {
        let allow = ["MIT".to_owned()];
        assert_eq!(problem(&package(Some("MIT"), CRATES_IO[0], "1.70"), &allow), None);
        let said = |license, source, rust| problem(&package(license, source, rust), &allow).unwrap();
        assert_eq!(
            said(Some("GPL-3.0"), CRATES_IO[1], "1.70"),
            "thing 1.2.3 has the licence 'GPL-3.0', which deny.toml does not allow"
        );
        assert_eq!(said(None, CRATES_IO[0], "1.70"), "thing 1.2.3 states no licence");
        assert_eq!(
            said(Some("MIT"), "git+https://example.org", "1.70"),
            "thing 1.2.3 comes from git+https://example.org"
        );
        assert!(said(Some("MIT"), CRATES_IO[0], "1.100").contains("needs Rust 1.100"));
        assert_eq!(problem(&package(Some("MIT"), CRATES_IO[0], "1.85.0"), &allow), None);
    }
}
