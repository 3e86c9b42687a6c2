//! A user of Debian installs the packages, looks at the machine, reads a manual page, and builds a
//! program with the library.

use std::path::Path;
use std::process::Command;

/// Runs a command to its end and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

#[test]
fn packages_hold_what_their_users_need() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().unwrap();
    let (packages, root) = (directory.path().join("packages"), directory.path().join("root"));
    let made = run(Command::new("make")
        .args(["--silent", "deb", "PROFILE=dev"])
        .arg(format!("OUT={}", packages.display()))
        .env_remove("MAKEFLAGS")
        .current_dir(source));
    let made: Vec<&str> = made.lines().collect();
    let names = ["nodewise_", "libnodewise0.1_", "libnodewise-dev_"];
    assert_eq!(made.len(), names.len(), "{made:?}");
    for (package, name) in made.iter().zip(names) {
        assert!(Path::new(package).file_name().unwrap().to_str().unwrap().starts_with(name), "{package}");
        run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root));
    }
    let field = |package: usize, name: &str| {
        run(Command::new("dpkg-deb").args(["--field", made[package], name])).trim().to_owned()
    };
    assert!(field(0, "Depends").contains("libc6 (>= "), "{}", field(0, "Depends"));
    assert!(field(1, "Depends").contains("libc6 (>= "), "{}", field(1, "Depends"));
    assert_eq!(field(2, "Depends"), format!("libnodewise0.1 (= {})", field(1, "Version")));

    let topology = run(Command::new(root.join("usr/bin/nodewise")).args(["topo", "--json"]));
    assert!(topology.contains("\"nodes\""), "{topology}");
    let page = root.join("usr/share/man/man1/nodewise-run.1.gz");
    let page = run(Command::new("sh")
        .args(["-c", "gzip -dc \"$1\" | groff -man -Tutf8 -Kutf8 -ww", "sh"])
        .arg(page));
    assert!(page.contains("--dry-run"), "{page}");
    assert!(root.join("usr/lib/systemd/system/nodewise@.service").exists());

    let triplet = run(Command::new("gcc").arg("-print-multiarch"));
    let lib = root.join("usr/lib").join(triplet.trim());
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "nodewise"])
        .env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", &root)
        .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
        .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1"));
    let program = directory.path().join("histogram");
    run(Command::new("g++")
        .args(["-std=c++17", "-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/histogram.cpp"))
        .args(flags.split_whitespace()));
    assert_ne!(run(Command::new(&program).env("LD_LIBRARY_PATH", &lib)), "");
}
