//! The captured machines of testdata/sysfs, unpacked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The captures in a temporary directory that lives as long as this value.
pub struct Captures {
    dir: TempDir,
}

impl Captures {
    /// Unpacks every archive.
    pub fn unpack() -> Self {
        let this = Self { dir: TempDir::new().unwrap() };
        let archives: Vec<PathBuf> = archives().collect();
        assert!(archives.len() >= 14, "testdata/sysfs holds only {} captures", archives.len());
        for archive in &archives {
            unpack(archive, &this.dir.path().join(name(archive)));
        }
        this
    }

    /// Unpacks one archive, by its name without `.tar.bz2`.
    #[allow(dead_code)] // Each test file is its own crate and uses what it needs.
    pub fn one(name: &str) -> Self {
        let this = Self { dir: TempDir::new().unwrap() };
        unpack(&sysfs().join(format!("{name}.tar.bz2")), &this.dir.path().join(name));
        this
    }

    /// The names of the captures and the directories that stand for `/`, sorted.
    pub fn roots(&self) -> Vec<(String, PathBuf)> {
        let mut roots: Vec<_> = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|capture| {
                let capture = capture.unwrap();
                // The one folder in an archive is not always named as the archive is.
                let folder = fs::read_dir(capture.path()).unwrap().next().unwrap().unwrap().path();
                (capture.file_name().into_string().unwrap(), folder)
            })
            .collect();
        roots.sort();
        roots
    }

    /// The directory that stands for `/` in a capture.
    #[allow(dead_code)]
    pub fn root(&self, name: &str) -> PathBuf {
        self.roots()
            .into_iter()
            .find(|(capture, _)| capture == name)
            .unwrap_or_else(|| panic!("no capture {name}"))
            .1
    }
}

fn sysfs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/sysfs")
}

fn archives() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(sysfs()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "bz2"))
}

fn name(archive: &Path) -> &str {
    archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.bz2").unwrap()
}

fn unpack(archive: &Path, into: &Path) {
    let mut tar = tar::Archive::new(bzip2::read::BzDecoder::new(File::open(archive).unwrap()));
    tar.set_preserve_mtime(false);
    tar.unpack(into).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
}
