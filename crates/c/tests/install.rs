//! A user's steps: one command installs the library, and programs are built with it by pkg-config and by
//! `CMake`.

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

fn install(settings: &[String]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(Command::new("make")
        .arg("install")
        .args(settings)
        .arg("PROFILE=dev")
        // The make that runs this test is none of its business.
        .env_remove("MAKEFLAGS")
        .current_dir(root));
}

impl Installed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        install(&[format!("PREFIX={}", directory.path().display())]);
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
    a_package_knows_nothing_of_where_it_was_made();
    a_place_may_have_spaces_in_its_name();
    exports_are_the_headers_functions(&installed);
    the_soname_is_the_headers_and_no_debug_information_is_installed(&installed);
    pkg_config_builds_the_examples(&installed);
    cmake_builds_the_examples(&installed);
    ported_programs_compute_what_the_plain_ones_do(&installed);
    libraries_that_are_loaded_and_closed_have_pools(&installed);
}

#[test]
fn the_diffs_that_are_shown_are_the_real_ones() {
    let shown = std::fs::read_to_string(Path::new(EXAMPLES).join("README.md")).unwrap();
    for (name, extension) in [("stream", "c"), ("kv_cache", "cpp")] {
        let [plain, ported] = ["plain", "nodewise"].map(|program| format!("{program}.{extension}"));
        let diff = Command::new("diff")
            .args(["-U1", "--label", &plain, "--label", &ported, &plain, &ported])
            .current_dir(Path::new(EXAMPLES).join(name))
            .output()
            .unwrap();
        let diff = String::from_utf8(diff.stdout).unwrap();
        assert!(
            shown.contains(&format!("```diff\n{diff}```\n")),
            "README.md should show for {name}:\n{diff}"
        );
    }
}

/// As who makes a package does: below another root, which nothing of what is installed knows.
fn a_package_knows_nothing_of_where_it_was_made() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path().display().to_string();
    install(&[format!("DESTDIR={at}"), "PREFIX=/usr".into(), "LIBDIR=/usr/lib/x86_64-linux-gnu".into()]);
    let lib = root.path().join("usr/lib/x86_64-linux-gnu");
    for file in ["pkgconfig/nodewise.pc", "cmake/nodewise/nodewise-config.cmake"] {
        let text = std::fs::read_to_string(lib.join(file)).unwrap();
        assert!(!text.contains(&at) && !text.contains('@'), "{file}: {text}");
    }
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "nodewise"])
        .env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", &at)
        .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
        .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1"));
    let expected = format!("-I{at}/usr/include -L{at}/usr/lib/x86_64-linux-gnu -lnodewise");
    assert_eq!(flags.split_whitespace().collect::<Vec<_>>().join(" "), expected);
}

/// As a shell and a Makefile take what pkg-config prints.
fn a_place_may_have_spaces_in_its_name() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path().join("a place of mine");
    install(&[format!("PREFIX={}", at.display())]);
    let build = format!("eval cc {EXAMPLES}/pages.c -o pages $(pkg-config --cflags --libs nodewise)");
    run(Command::new("sh")
        .args(["-c", &build])
        .env("PKG_CONFIG_PATH", at.join("lib/pkgconfig"))
        .current_dir(root.path()));
    run(Command::new(root.path().join("pages")).env("LD_LIBRARY_PATH", at.join("lib")));
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

fn the_soname_is_the_headers_and_no_debug_information_is_installed(installed: &Installed) {
    let library = installed.path("lib/libnodewise.so");
    let dynamic = run(Command::new("readelf").arg("--dynamic").arg(&library));
    let soname = match env!("CARGO_PKG_VERSION_MAJOR") {
        "0" => concat!("libnodewise.so.0.", env!("CARGO_PKG_VERSION_MINOR")).to_owned(),
        major => format!("libnodewise.so.{major}"),
    };
    assert!(dynamic.contains(&format!("Library soname: [{soname}]")), "{dynamic}");
    let header = std::fs::read_to_string(installed.path("include/nodewise.h")).unwrap();
    assert!(
        header.contains(&format!("ABI. The soname names it: {soname},")),
        "nodewise.h names another soname"
    );
    for file in ["lib/libnodewise.so", "lib/libnodewise.a"] {
        let sections = run(Command::new("readelf").args(["--sections", "--wide"]).arg(installed.path(file)));
        assert!(sections.contains(".text") && !sections.contains(".debug_info"), "{file}");
    }
}

fn pkg_config_builds_the_examples(installed: &Installed) {
    assert_eq!(installed.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let (example, test) = (Path::new(EXAMPLES), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    for (compiler, standard, source) in [
        ("cc", "-std=c11", example.join("pages.c")),
        // For strdup.
        ("cc", "-std=gnu11", test.join("contract.c")),
        ("cc", "-std=gnu11", test.join("refused.c")),
        ("c++", "-std=c++17", example.join("histogram.cpp")),
        ("c++", "-std=c++17", test.join("stress.cpp")),
        ("c++", "-std=c++17", test.join("allocations.cpp")),
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
    let readme = include_str!("../../../docs/building-blocks.md")
        .split_once("```cpp\n")
        .unwrap()
        .1
        .split_once("```")
        .unwrap()
        .0;
    let source = installed.path("readme.cpp");
    std::fs::write(
        &source,
        format!("#include <cmath>\n#include <nodewise.hpp>\nint main()\n{{\n{readme}}}\n"),
    )
    .unwrap();
    let program = installed.path("readme");
    run(Command::new("c++")
        .arg("-std=c++17")
        .arg(source)
        .args(installed.pkg_config(&["--cflags", "--libs"]))
        .arg("-o")
        .arg(&program));
    installed.run(program);
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
        .arg(format!("-DCMAKE_PREFIX_PATH={}", installed.directory.path().display()))
        .args(
            ["C", "CXX"].map(|language| format!("-DCMAKE_{language}_FLAGS=-Wall -Wextra -Wpedantic -Werror")),
        ));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["pages", "histogram"] {
        installed.run(build.join(program));
    }
    run(&mut Command::new(build.join("pages_static")));
    let near = Command::new(build.join("near"))
        .arg("nothing0")
        .env("LD_LIBRARY_PATH", installed.path("lib"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&near.stderr);
    assert_eq!(near.status.code(), Some(1), "{said}");
    assert!(said.starts_with("nodewise: there is no device nothing0"), "{said}");
}

/// The ported programs are those that `CMake` has built.
fn ported_programs_compute_what_the_plain_ones_do(installed: &Installed) {
    let plain = |compiler: &str, options: &[&str], source: &str, size: &str| {
        let program = installed.path("plain");
        run(Command::new(compiler)
            .args(["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(options)
            .arg(Path::new(EXAMPLES).join(source))
            .arg("-o")
            .arg(&program));
        run(Command::new(program).arg(size))
    };
    let ported = |program: &str, size: &str| {
        let program = installed.path("build").join(program);
        run(Command::new(program).arg(size).env("LD_LIBRARY_PATH", installed.path("lib")))
    };
    let sums = plain("cc", &["-std=c11", "-fopenmp"], "stream/plain.c", "100000");
    assert_eq!(sums.split_whitespace().count(), 4, "{sums}");
    assert_eq!(ported("stream", "100000"), sums);
    let answers = plain("c++", &["-std=c++17", "-pthread"], "kv_cache/plain.cpp", "3000");
    assert!(answers.contains(" hits, sum "), "{answers}");
    assert_eq!(ported("kv_cache", "3000"), answers);
}

fn libraries_that_are_loaded_and_closed_have_pools(installed: &Installed) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let library = |name: &str, options: &[&str]| {
        let library = installed.path(name);
        run(Command::new("c++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC"])
            .args(options)
            .arg(tests.join("plugin.cpp"))
            .args(installed.pkg_config(&["--cflags", "--libs"]))
            .arg("-o")
            .arg(&library));
        library
    };
    let host = installed.path("host");
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        .arg(tests.join("plugin_host.c"))
        .args(["-ldl", "-o"])
        .arg(&host));
    run(Command::new(host)
        .args([library("closed.so", &[]), library("stays.so", &["-Wl,-z,nodelete"])])
        .env("LD_LIBRARY_PATH", installed.path("lib")));
}
