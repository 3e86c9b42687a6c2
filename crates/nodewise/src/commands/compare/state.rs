//! The runs so far, in a file, so that a comparison that was broken off can go on.

use crate::output::{PRIVATE, WholeFile};
use anyhow::Context as _;
use nodewise_verdict::compare::{Experiment, Skipped};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The content of the file.
#[derive(Serialize, Deserialize)]
pub struct State {
    /// Everything that has to be the same for runs to be comparable.
    pub key: String,
    /// The runs, and what is to be run.
    pub experiment: Experiment,
    /// Placements that are not tried.
    pub skipped: Vec<Skipped>,
}

impl State {
    /// That of a comparison that was broken off; none where there is none, or one of something else.
    pub fn load(path: &Path, key: &str) -> anyhow::Result<Option<Self>> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let state: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} holds no comparison that could go on: remove it", path.display()))?;
        Ok(Some(state).filter(|state| state.key == key))
    }

    /// Writes the file, whole.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        WholeFile::create(path, PRIVATE)?.finish(&(serde_json::to_string(self)? + "\n"))
    }
}

/// The default file for a comparison's state; none if the user has no home.
pub fn default_path(key: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let directory = base.join("nodewise");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).ok()?;
    // FNV-1a: the name only has to differ.
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(directory.join(format!("compare-{hash:016x}.json")))
}

/// The file that a word names as a program, and which version of it: another one gives other times.
pub fn identity(program: &Path) -> String {
    let is_path = program.components().count() > 1;
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = if is_path {
        Some(program.to_owned())
    } else {
        std::env::split_paths(&paths).map(|path| path.join(program)).find(|path| path.is_file())
    };
    let version = |path: &PathBuf| Some((path.metadata().ok()?.mtime(), path.metadata().ok()?.len()));
    format!("{:?}", found.map(|path| (version(&path), path)))
}
