//! Nodewise does no harm to machine and programs by looking at them.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// `smaps` and `numa_maps` walk a process's page tables under its `mmap` lock, and stall a large one for
/// seconds. Only doctor looks at one, of the small process that it has started itself; and the kernel's side
/// of the machine where page tables are small.
#[test]
fn no_file_that_stalls_a_large_process_is_read() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for name in ["linux", "sys", "engine", "topology", "nodewise"] {
        sources(&crates.join(name).join("src"), &mut files);
    }
    assert!(files.len() > 50, "{files:?}");
    for file in files.iter().filter(|file| !file.ends_with("probe/target.rs")) {
        let text = fs::read_to_string(file).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let bounded = |line: &str| file.ends_with("src/kernel.rs") && line.contains("{pid}/numa_maps");
        for line in code.filter(|line| !bounded(line)) {
            for name in ["smaps", "numa_maps", "clear_refs", "page_idle"] {
                assert!(!line.contains(name), "{}: {line}", file.display());
            }
        }
    }
}
