//! The captured machines of testdata/sysfs, unpacked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A captured machine, unpacked for as long as this value lives.
pub struct Capture {
    dir: TempDir,
}

impl Capture {
    /// Unpacks an archive, by its name without `.tar.bz2`.
    pub fn unpack(name: &str) -> Self {
        let archive = sysfs().join(format!("{name}.tar.bz2"));
        // A capture is some thousand tiny files, in memory ten times as fast as on some disks.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let bytes =
            bzip2::read::BzDecoder::new(File::open(&archive).unwrap_or_else(|e| panic!("{name}: {e}")));
        for entry in tar::Archive::new(bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            if !is_memory_block(&entry.path().unwrap()) {
                entry.set_preserve_mtime(false);
                entry.unpack_in(&dir).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        Self { dir }
    }

    /// The directory that stands for `/`: the one folder in the archive, not always named as the archive is.
    pub fn root(&self) -> PathBuf {
        fs::read_dir(&self.dir).unwrap().next().unwrap().unwrap().path()
    }
}

/// The names of all captures, sorted.
#[allow(dead_code)] // Each test file is a crate of its own and uses what it needs.
pub fn names() -> Vec<String> {
    let files = fs::read_dir(sysfs()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        files.filter_map(|file| file.strip_suffix(".tar.bz2").map(str::to_owned)).collect();
    names.sort();
    assert!(names.len() >= 14, "testdata/sysfs holds only {names:?}");
    names
}

fn sysfs() -> PathBuf {
    // The command line's tests use this file too, from their own crate beside this one.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../topology/testdata/sysfs")
}

/// `node0/memory17` and the like: a third of all entries, and nobody reads them.
fn is_memory_block(path: &Path) -> bool {
    path.components()
        .filter_map(|part| part.as_os_str().to_str()?.strip_prefix("memory"))
        .any(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}
