//! Every package that is published can be, as far as can be told offline: `cargo publish --dry-run
//! --workspace` also builds each.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn cargo(arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {}: {said}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// The workspace's packages, those to be published first.
fn packages() -> (Vec<Value>, Vec<Value>) {
    let workspace: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]))
            .unwrap();
    let packages = workspace["packages"].as_array().unwrap().iter().cloned();
    packages.partition(|package| package["publish"].is_null())
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

#[test]
fn what_is_not_published_is_meant_not_to_be() {
    let (published, kept) = packages();
    let mut kept: Vec<&str> = kept.iter().map(name).collect();
    kept.sort_unstable();
    // Tests and automation, and the C library, which `make install` builds from the sources.
    assert_eq!(kept, ["nodewise-bench", "nodewise-c", "xtask"]);
    for package in &published {
        for dependency in package["dependencies"].as_array().unwrap() {
            assert!(!kept.contains(&name(dependency)), "{} needs {}", name(package), name(dependency));
            assert_ne!(dependency["req"], "*", "{}: {} has no version", name(package), name(dependency));
        }
    }
}

#[test]
fn published_packages_say_what_they_are() {
    for package in packages().0 {
        let name = name(&package);
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[field].is_string(), "{name}: {field}");
        }
        // The command line's documentation is its help.
        assert!(package["documentation"].is_string() || name == "nodewise", "{name}: documentation");
        let words = |field: &str| package[field].as_array().unwrap().len();
        // The registry takes five of each.
        assert!((1..=5).contains(&words("keywords")) && (1..=5).contains(&words("categories")), "{name}");
        let files = cargo(&["package", "--list", "--offline", "--allow-dirty", "--package", name]);
        for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.toml"] {
            assert!(files.lines().any(|line| line == file), "{name} lacks {file}:\n{files}");
        }
    }
}

/// Cargo before 1.90 packs only what depends on nothing unpublished.
#[test]
fn published_packages_are_packed() {
    let version = cargo(&["--version"]);
    let minor: u32 = version.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect(&version);
    if minor < 90 {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().to_str().unwrap();
    let mut arguments = vec!["package", "--no-verify", "--offline", "--allow-dirty", "--target-dir", target];
    let published = packages().0;
    for package in &published {
        arguments.extend(["--package", name(package)]);
    }
    cargo(&arguments);
    for package in &published {
        let file = format!("package/{}-{}.crate", name(package), package["version"].as_str().unwrap());
        assert!(directory.path().join(&file).is_file(), "{file}");
    }
}
