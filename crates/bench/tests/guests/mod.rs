//! The code that the guest tests of this directory share.

use nodewise_bench::scenario::{Finished, Place, Programs};
use nodewise_rig::Guest;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The programs, built once for a test binary.
pub fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| Programs::build().expect("the programs build"))
}

/// Runs a script in the guest. `try NAME COMMAND...` leaves NAME.out, NAME.err and NAME.status there.
#[allow(dead_code, reason = "not every test runs in a guest of its own")]
pub fn run(guest: Guest, script: &str, files: &[&str]) -> Finished {
    run_in(&Place::guest(guest), script, files)
}

/// The same in a guest that is made for it.
pub fn run_in(place: &Place, script: &str, files: &[&str]) -> Finished {
    place.run(programs(), &format!("{TRY}{script}"), files).unwrap()
}

/// Builds a program in C of this directory, named like its source.
#[allow(dead_code, reason = "not every test has one")]
pub fn c_program(source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.file_stem().expect("a file"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source);
    assert!(cc.status().expect("there is a C compiler").success());
    program
}

const TRY: &str = "
try() { name=$1; shift; \"$@\" >$name.out 2>$name.err; echo $? >$name.status; }
# within SECONDS COMMAND...: waits until the command succeeds.
within() { tenths=$(($1 * 10)); shift; until \"$@\"; do
    tenths=$((tenths - 1)); [ $tenths -gt 0 ] || { echo \"in vain: $*\" >&2; return 1; }; sleep 0.1; done; }
";
