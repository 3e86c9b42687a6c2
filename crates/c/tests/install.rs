//! What a user does: installs the library by one command, and builds programs with it with pkg-config and with `CMake`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// Runs a command to its end and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// An installation below a directory of its own.
struct Installed {
    directory: TempDir,
}

impl Installed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        run(Command::new("make")
            .arg("install")
            .arg(format!("PREFIX={}", directory.path().display()))
            .arg("PROFILE=dev")
            // The make that runs this test is none of its business.
            .env_remove("MAKEFLAGS")
            .current_dir(root));
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("nodewise").env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        run(&mut command).split_whitespace().map(str::to_owned).collect()
    }

    /// Runs a program that was linked with the shared library.
    fn run(&self, program: impl AsRef<OsStr>) -> String {
        run(Command::new(program).env("LD_LIBRARY_PATH", self.path("lib")))
    }
}

#[test]
fn programs_are_built_with_what_was_installed() {
    let installed = Installed::new();
    exports_are_the_headers_functions(&installed);
    pkg_config_builds_the_examples(&installed);
    cmake_builds_the_examples(&installed);
}

fn exports_are_the_headers_functions(installed: &Installed) {
    let symbols = run(Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(installed.path("lib/libnodewise.so")));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let header = std::fs::read_to_string(installed.path("include/nodewise.h")).unwrap();
    // Comments, too, have parentheses behind functions only.
    let word = |text: &'_ str| -> String {
        let name: Vec<char> = text.chars().rev().take_while(|&c| c.is_alphanumeric() || c == '_').collect();
        name.into_iter().rev().collect()
    };
    let declared: BTreeSet<String> = header
        .match_indices('(')
        .map(|(at, _)| word(&header[..at]))
        .filter(|name| name.starts_with("nodewise_"))
        .collect();
    assert_eq!(declared.iter().map(String::as_str).collect::<BTreeSet<_>>(), exported);
}

fn pkg_config_builds_the_examples(installed: &Installed) {
    assert_eq!(installed.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let (example, test) = (Path::new(EXAMPLES), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    for (compiler, standard, source) in [
        ("cc", "-std=c11", example.join("pages.c")),
        // For strdup.
        ("cc", "-std=gnu11", test.join("contract.c")),
        ("c++", "-std=c++17", example.join("histogram.cpp")),
        ("c++", "-std=c++17", test.join("stress.cpp")),
    ] {
        let program = installed.path("shared").with_extension(source.file_stem().unwrap());
        run(Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg(source)
            .args(installed.pkg_config(&["--cflags", "--libs"]))
            .arg("-o")
            .arg(&program));
        installed.run(program);
    }
    let program = installed.path("pages.static");
    run(Command::new("cc")
        .arg(Path::new(EXAMPLES).join("pages.c"))
        .args(installed.pkg_config(&["--cflags"]))
        .arg(installed.path("lib/libnodewise.a"))
        .args(
            installed
                .pkg_config(&["--static", "--libs-only-l"])
                .iter()
                .filter(|library| *library != "-lnodewise"),
        )
        .arg("-o")
        .arg(&program));
    // The loader finds no shared library here.
    run(&mut Command::new(program));
}

fn cmake_builds_the_examples(installed: &Installed) {
    let build = installed.path("build");
    run(Command::new("cmake")
        .args(["-S", EXAMPLES, "-B"])
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", installed.directory.path().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["pages", "histogram"] {
        installed.run(build.join(program));
    }
}
