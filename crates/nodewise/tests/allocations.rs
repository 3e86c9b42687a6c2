//! `nodewise profile --allocations` on programs whose blocks are known, and on one that others wrote. The
//! truth is the programs' own source, or what the C library tells of the same command.

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A directory for a test, and the programs in it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds a source of this directory or another.
    fn build(&self, compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/allocating").join(source);
        let program = self.path(name);
        let mut build = Command::new(compiler);
        build.arg(source).arg("-o").arg(&program).args(flags);
        assert!(build.status().unwrap().success(), "{build:?}");
        program
    }

    /// Runs a command under profile, with this environment. None where this user may not watch page faults.
    fn profile(&self, options: &[&str], command: &[&str], environment: &[(&str, &str)]) -> Option<Output> {
        let output = Command::new(cargo_bin("nodewise"))
            .args(["profile", "-o", self.path("a.profile").to_str().unwrap()])
            .args(options)
            .arg("--")
            .args(command)
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        (output.status.code() != Some(77)).then_some(output)
    }

    /// The allocations that the file has.
    fn recorded(&self) -> Value {
        let text = std::fs::read_to_string(self.path("a.profile")).unwrap();
        let tail: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        tail["tail"]["allocations"].clone()
    }

    fn report(&self) -> (Vec<Site>, String) {
        let report = |more: &[&str]| {
            let file = self.path("a.profile");
            let output =
                Command::new(cargo_bin("nodewise")).arg("report").arg(file).args(more).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
        let sites = json["sites"].as_array().unwrap().iter().map(Site::of).collect();
        (sites, report(&[]))
    }
}

/// Code that asked for blocks.
#[derive(Debug)]
struct Site {
    by: Vec<String>,
    blocks: u64,
    bytes: u64,
    most_bytes: u64,
}

impl Site {
    fn of(site: &Value) -> Self {
        let number = |field: &str| site[field].as_u64().unwrap();
        Self {
            by: site["by"].as_array().unwrap().iter().map(|by| by.as_str().unwrap().to_owned()).collect(),
            blocks: number("blocks"),
            bytes: number("bytes"),
            most_bytes: number("most_bytes"),
        }
    }
}

/// The blocks and bytes of all sites whose chain begins with these functions, and the most at a time.
fn by(sites: &[Site], functions: &[&str]) -> (u64, u64, u64) {
    let is_it = |site: &&Site| {
        site.by.len() >= functions.len()
            && site.by.iter().zip(functions).all(|(by, function)| by.contains(function))
    };
    let found = sites.iter().filter(is_it);
    found.fold((0, 0, 0), |(blocks, bytes, most), site| {
        (blocks + site.blocks, bytes + site.bytes, most + site.most_bytes)
    })
}

const KIB: u64 = 1024;
/// With calls at the end of functions, which would leave no trace of these.
const CPP: [&str; 5] = ["-std=c++17", "-O2", "-g", "-pthread", "-fno-optimize-sibling-calls"];
/// With every request that the source has.
const C: [&str; 2] = ["-pthread", "-fno-builtin"];

#[test]
fn blocks_of_a_c_program_have_their_sites_and_sizes() {
    let place = Place::new();
    // As most programs are built: without frame pointers.
    for flags in [&["-O2", "-g", "-fomit-frame-pointer"][..], &["-O1", "-fno-omit-frame-pointer"]] {
        let program = place.build("cc", "sites.c", "sites", &[flags, &C].concat());
        let Some(output) = place.profile(&["--allocations"], &[program.to_str().unwrap()], &[]) else {
            return;
        };
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let (sites, text) = place.report();
        let once = |bytes| (1, bytes, bytes);
        assert_eq!(by(&sites, &["helper (", "make_table (", "main ("]).0, 2, "{text}");
        assert_eq!(by(&sites, &["helper (", "make_slices (", "main ("]), once(3072 * KIB), "{text}");
        assert_eq!(by(&sites, &["helper (", "in_child (", "main ("]), once(70 * KIB), "{text}");
        assert_eq!(by(&sites, &["zeroed ("]), once(1_000_000), "{text}");
        assert_eq!(by(&sites, &["mapping ("]), once(64 * KIB), "{text}");
        assert_eq!(by(&sites, &["aligned ("]).1, (20 + 64) * KIB, "{text}");
        let (blocks, bytes, most) = by(&sites, &["helper (", "work ("]);
        assert_eq!((blocks, bytes), (800, 8000 * KIB), "{text}");
        assert!((10 * KIB..=80 * KIB).contains(&most), "{text}");
        // Each request gives the block of the one before back.
        let (blocks, bytes, _) = by(&sites, &["grow ("]);
        assert_eq!((blocks, bytes), (11, (16384 - 8) * KIB), "{text}");
        assert_eq!(by(&sites, &["small ("]), (0, 0, 0), "{text}");
        assert!(text.contains("helper (") && text.contains(", called by make_slices ("), "{text}");
        let recorded = place.recorded();
        assert_eq!(recorded["lost"], 0);
        let is_there = |bytes: u64| {
            let blocks = recorded["blocks"].as_array().unwrap();
            blocks.iter().filter(|block| block["bytes"] == bytes && block["until_ns"].is_null()).count()
        };
        // The child has given its table back, and ended with the rest of what its parent had then.
        assert_eq!((is_there(1024 * KIB), is_there(3072 * KIB), is_there(8192 * KIB)), (2, 1, 2));
    }
}

#[test]
fn a_cpp_programs_new_and_containers_have_their_callers() {
    let place = Place::new();
    let program = place.build("c++", "sites.cpp", "sites", &CPP);
    let Some(output) = place.profile(&["--allocations"], &[program.to_str().unwrap()], &[]) else { return };
    assert_eq!(output.status.code(), Some(0), "a failed new throws as ever: {output:?}");
    let (sites, text) = place.report();
    let once = |bytes| (1, bytes, bytes);
    assert_eq!(by(&sites, &["by_new (sites.cpp:15)", "main ("]), once(8 << 15), "{text}");
    let (blocks, bytes, _) = by(&sites, &["lines (sites.cpp:17)"]);
    assert!(blocks == 1 && (64000..=64064).contains(&bytes), "{text}");
    assert_eq!(by(&sites, &["filled (sites.cpp:19)"]), once(400_000), "{text}");
    // Twice as much each time, the last two at once.
    let (blocks, bytes, most) = by(&sites, &["grow (sites.cpp:24)"]);
    assert_eq!((blocks, bytes, most), (9, (2 << 20) - 4096, 3 << 19), "{text}");
    assert_eq!(by(&sites, &["text (sites.cpp:27)"]), once(50_001), "{text}");
}

#[test]
fn a_rust_programs_collections_have_their_callers() {
    let place = Place::new();
    for flags in [&["-O", "-g"][..], &["-O"]] {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let program = place.build(&rustc, "sites.rs", "sites", flags);
        let Some(output) = place.profile(&["--allocations"], &[program.to_str().unwrap()], &[]) else {
            return;
        };
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let (sites, text) = place.report();
        assert_eq!(by(&sites, &["::table ("]), (2, 1_600_000, 1_600_000), "{text}");
        assert_eq!(by(&sites, &["::table (", "::main ("]).1, 800_000, "{text}");
        assert_eq!(by(&sites, &["::zeroed ("]), (1, 300_000, 300_000), "{text}");
        // From 4 KiB on.
        assert_eq!(by(&sites, &["::grown ("]).1, (512 - 4) * KIB, "{text}");
        let (blocks, bytes, _) = by(&sites, &["::map ("]);
        assert!(blocks == 1 && (80_000..200_000).contains(&bytes), "{text}");
    }
}

#[test]
fn only_blocks_of_the_size_that_was_asked_for_are_recorded() {
    let place = Place::new();
    let program = place.build("cc", "sites.c", "sites", &C);
    let program = [program.to_str().unwrap()];
    let Some(_) = place.profile(&["--allocations=1048576"], &program, &[]) else { return };
    let (sites, text) = place.report();
    assert_eq!(by(&sites, &["helper ("]).0, 3, "{text}");
    assert_eq!(by(&sites, &["grow ("]), (4, 15 << 20, 8 << 20), "{text}");
    // Neither do others take time or room when they are given back.
    place.profile(&["--allocations"], &[program[0], "many"], &[]).unwrap();
    let recorded = place.recorded();
    assert_eq!((&recorded["lost"], &recorded["sites"]), (&0.into(), &Value::Array(Vec::new())));
    place.profile(&["--allocations=1"], &program, &[]).unwrap();
    let (sites, text) = place.report();
    assert_eq!(by(&sites, &["small ("]).0, 1000, "{text}");
}

#[test]
fn without_it_a_program_loads_nothing() {
    let place = Place::new();
    let Some(output) = place.profile(&[], &["env"], &[("LD_PRELOAD", "")]) else { return };
    let environment = String::from_utf8_lossy(&output.stdout);
    assert!(!environment.contains("NODEWISE_ALLOCATIONS") && environment.contains("LD_PRELOAD=\n"));
    assert_eq!(place.recorded(), Value::Null);
    assert!(!place.report().1.contains("asked for by"));
}

#[test]
fn other_libraries_are_loaded_as_before() {
    let place = Place::new();
    let source = place.path("other.c");
    std::fs::write(
        &source,
        "__attribute__((constructor)) static void hi(void) { write(1, \"loaded\\n\", 7); }",
    )
    .unwrap();
    let other = place.build("cc", source.to_str().unwrap(), "other.so", &["-shared", "-fPIC", "-w"]);
    let other = [("LD_PRELOAD", other.to_str().unwrap())];
    let Some(output) = place.profile(&["--allocations"], &["true"], &other) else { return };
    // By nodewise, and by the program.
    assert_eq!(output.stdout, b"loaded\nloaded\n", "{output:?}");
}

/// A program passes its environment on to whatever it runs later.
#[test]
fn programs_that_begin_when_it_has_ended_are_left_alone() {
    let place = Place::new();
    let Some(output) = place.profile(&["--allocations"], &["env"], &[]) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    let variable = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let (library, shared) = (variable("LD_PRELOAD="), variable("NODEWISE_ALLOCATIONS="));
    // Nobody else can put another library in its place.
    for path in Path::new(library).ancestors().take(2) {
        let metadata = std::fs::metadata(path).unwrap();
        assert_eq!(metadata.mode() & 0o022, 0, "{}", path.display());
    }
    // Another process may have the number by now, and a file that is as large and looks alike.
    let [_, device, file] = *shared.split(':').collect::<Vec<_>>() else { panic!("{shared}") };
    let alike = place.path("alike");
    let mut ring = vec![0; nodewise_preload::layout::BYTES];
    ring[..8].copy_from_slice(&nodewise_preload::layout::VERSION.to_ne_bytes());
    std::fs::write(&alike, &ring).unwrap();
    for shared in [shared.to_owned(), format!("{}:{device}:{file}", alike.display())] {
        let mut later = Command::new("sort");
        later
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .env("LD_PRELOAD", library)
            .env("NODEWISE_ALLOCATIONS", shared);
        let later = later.output().unwrap();
        assert!(later.status.success() && later.stderr.is_empty(), "{later:?}");
    }
    assert!(std::fs::read(&alike).unwrap() == ring, "nothing is written there");
}

#[test]
fn what_cannot_be_seen_is_said_in_a_line() {
    let place = Place::new();
    let program = place.build("cc", "sites.c", "sites", &[&C[..], &["-static", "-w"]].concat());
    let Some(output) = place.profile(&["--allocations"], &[program.to_str().unwrap()], &[]) else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().filter(|line| line.contains("has not loaded Nodewise's library")).count(), 1);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let output = place.profile(&["--allocations"], &["true"], &[]).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("--allocations: no function of the C library was asked for a large block"),
        "{said}"
    );
    let running = Command::new(cargo_bin("nodewise")).args(["profile", "--allocations", "-p", "1"]).output();
    let running = running.unwrap();
    let said = String::from_utf8(running.stderr).unwrap();
    assert_eq!(running.status.code(), Some(2), "{said}");
    assert!(said.contains("'--allocations[=<BYTES>]' cannot be used with '--pid <PID>'"), "{said}");
}

/// glibc writes down each request (mtrace(3)), if a program asks for that.
#[test]
fn sort_has_the_blocks_that_the_c_library_tells_of() {
    let place = Place::new();
    let source = place.path("trace.c");
    let asks = "#include <mcheck.h>\n__attribute__((constructor)) static void ask(void) { mtrace(); }";
    std::fs::write(&source, asks).unwrap();
    let asking = place.build("cc", source.to_str().unwrap(), "trace.so", &["-shared", "-fPIC"]);
    let (numbers, trace) = (place.path("numbers"), place.path("trace"));
    let lines: Vec<String> = (0..100_000).map(|i| (i * 7919 % 100_003).to_string()).collect();
    std::fs::write(
        &numbers,
        lines.join(
            "
",
        ),
    )
    .unwrap();
    // One thread asks for the same each time.
    let sort = ["sort", "--buffer-size=1M", "--parallel=1", numbers.to_str().unwrap(), "-o", "/dev/null"];
    let preload = format!("{}:libc_malloc_debug.so.0", asking.display());
    let mut alone = Command::new(sort[0]);
    alone.args(&sort[1..]).env("LD_PRELOAD", preload).env("MALLOC_TRACE", &trace);
    assert!(alone.status().unwrap().success());
    let Some(output) = place.profile(&["--allocations"], &sort, &[]) else { return };
    assert!(output.status.success(), "{output:?}");
    // Not every C library has it.
    let Ok(trace) = std::fs::read_to_string(trace) else { return };
    // "@ CALLER + ADDRESS SIZE", and for realloc "> ADDRESS SIZE".
    let mut told: HashMap<u64, u64> = HashMap::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let at = words.iter().position(|word| ["+", ">"].contains(word));
        let Some(size) = at.and_then(|at| words.get(at + 2)) else { continue };
        let size = u64::from_str_radix(size.trim_start_matches("0x"), 16).unwrap();
        if size >= 4096 {
            *told.entry(size).or_default() += 1;
        }
    }
    let sites = place.report().0;
    let (blocks, bytes, _) = by(&sites, &[]);
    let all = (told.values().sum::<u64>(), told.iter().map(|(size, count)| size * count).sum::<u64>());
    assert!(all.0 >= 3, "{trace}");
    assert_eq!((blocks, bytes), all, "{told:?}\n{sites:?}");
}
