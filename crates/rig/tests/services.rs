//! Services in guests: each starts with one command, as `docs/guests.md` says.

use nodewise_rig::{ErrorKind, Guest, Machine, library};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const GIB: u64 = 1 << 30;

fn large() -> Guest {
    Guest::uniform(4, 1, GIB).exclusive(true).time_limit(Duration::from_secs(400))
}

fn output_of(guest: &Guest, program: &mut Command) -> String {
    let output = guest.output(program).unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status, 0, "{out}\n{error}");
    out.into_owned()
}

#[test]
fn postgresql_starts_with_one_command() {
    let mut program = Command::new("pg_virtualenv");
    program.args(["sh", "-c", "pgbench -i -q && pgbench -T 2; id postgres; date +%Z"]);
    let output = output_of(&large().package("postgresql"), &mut program);
    assert!(output.contains("tps = "), "{output}");
    assert!(output.contains("(postgres)"), "{output}");
}

/// The package of this machine's `java`.
fn java() -> String {
    let java = fs::canonicalize("/usr/bin/java").expect("a JVM: run 'make setup'");
    let output = Command::new("dpkg-query").arg("-S").arg(java).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(':').next().unwrap().to_owned()
}

fn run_java(guest: Guest) -> String {
    let classes = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut program = Command::new("java");
    program.args(["-XX:+UseNUMA", "-cp"]).arg(&classes).arg("Sum");
    output_of(&guest.package(java()).copy(classes), &mut program)
}

/// Four times ten times the sum of all numbers below 65536.
const SUM: &str = "sum 85898035200\n";

#[test]
fn a_jvm_starts_with_one_command() {
    assert_eq!(run_java(large()), SUM);
}

#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
fn a_jvm_starts_on_a_modelled_machine() {
    let name = "opteron-8385-4n";
    let text = nodewise_hardware::Preset::text(name).unwrap();
    let machine = Machine::new(text, name, library().unwrap()).unwrap().slow(16.0);
    let distances = machine.distances().unwrap();
    assert_eq!(run_java(large().distances(distances).machine(machine)), SUM);
}

/// A tree with a shell and what a few programs need, of this machine's own files.
fn tree(at: &Path) {
    let script = r#"
        for directory in bin sbin lib lib64; do mkdir -p usr/$directory; ln -s usr/$directory $directory; done
        for package in libc6 dash coreutils libselinux1 libpcre2-8-0 libacl1 libattr1 libgmp10; do
            dpkg-query -L $package 2>/dev/null
        done | grep -v /usr/share | while read -r file; do [ -d "$file" ] || echo ".$file"; done |
            tar -C / -c -h -T - 2>/dev/null | tar -x
        mkdir -p etc root && echo 'a tree' >etc/os-release && echo 'root:x:0:0::/root:/bin/sh' >etc/passwd
        chmod 700 root"#;
    assert!(Command::new("sh").args(["-c", script]).current_dir(at).status().unwrap().success());
}

/// Names, modes and times of all files.
fn listing(at: &Path) -> String {
    let output = Command::new("find").args([".", "-ls"]).current_dir(at).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_tree_is_a_guests_root_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path());
    let before = listing(directory.path());
    let guest = Guest::uniform(2, 1, GIB / 2).exclusive(true).root(directory.path());
    let mut program = Command::new("sh");
    program.args([
        "-c",
        "cat /etc/os-release; cat /etc/passwd; stat -c %a /root; echo x >/etc/new; ls /usr/share",
    ]);
    let output = guest.output(&program).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text,
        "a tree\nroot:x:0:0::/root:/bin/sh\n700\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(listing(directory.path()), before);
}

#[test]
fn a_tree_that_does_not_fit_is_one_error_before_anything_boots() {
    let directory = tempfile::tempdir().unwrap();
    // As large as a file can look without taking any room.
    fs::File::create(directory.path().join("large")).unwrap().set_len(GIB).unwrap();
    let guest = Guest::uniform(4, 1, GIB / 2).root(directory.path());
    let error = guest.output(&Command::new("busybox")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    let text = error.to_string();
    assert!(text.contains("do not fit into a guest with 2048 MiB"), "{text}");
}

#[test]
fn a_package_that_is_not_installed_is_an_error_that_says_what_to_do() {
    let error = large().package("no-such-package").output(&Command::new("busybox")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInstalled);
    let expected = "package no-such-package is not installed here: apt-get install no-such-package";
    assert_eq!(error.to_string(), expected);
}
