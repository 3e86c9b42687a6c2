//! Compiles the shared library whose bytes this crate holds: so it is wherever the crate is, and `cargo
//! install` has no second file to install. It needs no crate but `core`, and so only the compiler.
#![forbid(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR")).join("libnodewise_preload.so");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["library/main.rs", "--crate-name=nodewise_preload", "--crate-type=cdylib", "--edition=2024"]);
    // With frame pointers, each function knows who called it.
    rustc.args(["-Copt-level=3", "-Cpanic=abort", "-Cforce-frame-pointers=yes", "-Cstrip=symbols"]);
    // Nothing is left to be found when a program loads it, such as what a panic takes.
    rustc.arg("-Clink-arg=-Wl,-z,defs");
    rustc.arg("--target").arg(variable("TARGET")).arg("-o").arg(&out);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-Clinker").arg(linker);
    }
    let status = rustc.status().expect("the compiler starts");
    assert!(status.success(), "the library to preload cannot be built: {status}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=library");
    println!("cargo:rerun-if-changed=src");
}
