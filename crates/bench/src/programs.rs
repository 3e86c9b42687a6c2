//! Programs that nobody here wrote, and how to run them in a guest for a while.

use anyhow::{Context as _, ensure};
use nodewise_hardware::Preset;
use nodewise_rig::Machine;
use std::path::{Path, PathBuf};

/// A program, and how to get a score of it.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Functions `prepare`, which runs once, and `score`, which prints the score of a run of some
    /// `$SECONDS_LONG` seconds; `under` starts what is measured. The first line says which programs in
    /// `PATH`, files and directories are needed; `*` stands for the one name there is.
    pub script: &'static str,
    /// `$OPTIONS` of the script.
    pub options: &'static str,
}

macro_rules! programs {
    ($($name:literal $file:literal $options:literal),* $(,)?) => {
        &[$(Program {
            name: $name,
            script: include_str!(concat!("../programs/", $file, ".sh")),
            options: $options,
        }),*]
    };
}

/// All of them.
pub const PROGRAMS: &[Program] = programs![
    "pgbench-select" "pgbench" "-S",
    "pgbench-tpcb" "pgbench" "",
    "perf-bench-numa" "perf-bench-numa" "",
    "sysbench-memory" "sysbench-memory" "",
    "redis" "redis" "",
    "memcached" "memcached" "",
    "nginx" "nginx" "",
    "sqlite" "sqlite" "",
    "java" "java" "",
    "stress-ng-vm" "stress-ng-vm" "",
    "compile" "compile" "",
    "duckdb" "duckdb" "",
];

/// Functions for every script, and the programs' own preparation. `$MODE` says how `under` starts a program.
pub const FUNCTIONS: &str = r#"
under() {
    case $MODE in
    nodewise) "$NODEWISE" run --quiet --json /tmp/summary -- "$@" ;;
    interleave) "$NODEWISE" run --interleave all -- "$@" ;;
    profile) "$NODEWISE" profile -o /tmp/profile --model "$MACHINE" -- "$@" 2>/dev/null ;;
    *) "$@" ;;
    esac
}
within() {
    tenths=$(($1 * 10)); shift
    until "$@"; do tenths=$((tenths - 1)); [ $tenths -gt 0 ] || { echo "in vain: $*" >&2; return 1; }; sleep 0.1; done
}
listens() { grep -q ":$(printf %04X "$1") 00000000:0000 0A" /proc/net/tcp; }
work_done_per_second() {
    read -r begin rest </proc/uptime; "$@" >/dev/null || return; read -r end rest </proc/uptime
    awk "BEGIN { print 1 / ($end - $begin) }"
}
ip link set lo up
last=$((1 << ($(nproc) - 1)))
ON_LAST_CPU="taskset $(printf %x $last)"
ON_OTHER_CPUS="taskset $(printf %x $((last - 1)))"
if type prepare >/dev/null 2>&1; then prepare || exit; fi
"#;

/// The paths of what a program needs.
///
/// # Errors
/// Something is not there.
pub fn needs(program: &Program) -> anyhow::Result<Vec<PathBuf>> {
    let line = program.script.lines().next().and_then(|line| line.strip_prefix("# needs: "));
    line.context("the script does not say what it needs")?.split(' ').map(find).collect()
}

/// A preset's machine, or that of a TOML file, and how many nodes it has.
///
/// # Errors
/// There is no such machine.
pub fn machine(name: &str) -> anyhow::Result<(Machine, usize)> {
    let text = match Preset::text(name) {
        Some(text) => text.to_owned(),
        None => std::fs::read_to_string(name).with_context(|| name.to_owned())?,
    };
    let nodes = Preset::parse(&text, name)?.nodes.len();
    Ok((Machine::new(text, name, nodewise_rig::library()?)?, nodes))
}

/// A path, with `*` for the one name there is, or a program in `PATH`.
fn find(need: &str) -> anyhow::Result<PathBuf> {
    let missing = || format!("there is no {need}");
    if !need.starts_with('/') {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        return places.map(|place| place.join(need)).find(|path| path.is_file()).with_context(missing);
    }
    let mut found = PathBuf::from("/");
    for part in Path::new(need).iter().skip(1) {
        let part = part.to_string_lossy();
        found = match part.split_once('*') {
            None => found.join(part.as_ref()),
            Some((before, after)) => {
                let names = std::fs::read_dir(&found).with_context(missing)?.filter_map(Result::ok);
                let fits = |name: &str| name.starts_with(before) && name.ends_with(after);
                let mut names = names
                    .map(|entry| entry.path())
                    .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(fits));
                names.next().with_context(missing)?
            }
        };
    }
    ensure!(found.exists(), missing());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn each_script_says_its_needs_and_is_one() {
        for program in PROGRAMS {
            let line = program.script.lines().next().and_then(|line| line.strip_prefix("# needs: "));
            assert!(line.is_some_and(|needs| !needs.is_empty()), "{}", program.name);
            let whole = format!("{}\n{FUNCTIONS}", program.script);
            let status = Command::new("sh").args(["-n", "-c", &whole]).status().unwrap();
            assert!(status.success() && program.script.contains("score() {"), "{}", program.name);
        }
    }

    #[test]
    fn a_star_stands_for_the_one_name_there_is() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let wanted = here.join("programs/redis.sh");
        assert_eq!(find(&here.join("prog*/red*.sh").display().to_string()).unwrap(), wanted);
        let error = find("/nowhere/at-*").unwrap_err();
        assert!(error.to_string().contains("/nowhere/at-*"), "{error}");
        assert!(find("no-such-program").is_err());
    }
}
