//! What a command writes: files never half-written, and refused before anything is started; standard output and error
//! without panics. `clippy.toml` keeps every other way to write there out of this crate.

use anyhow::Context as _;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes to standard output, with colours where that is a terminal. A reader that has seen enough (`nodewise topo | head`) is
/// no error; a full disk is.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error, after the command's name. See [`report`].
pub fn note(message: impl Display) {
    report(&format!("nodewise: {message}\n"));
}

/// Writes to standard error, with colours where that is a terminal. A report that cannot be written is lost: nothing that only
/// reports may stop the program that it is about.
pub fn report(text: &str) {
    let _ = anstream::stderr().write_all(text.as_bytes());
}

/// A file that appears, whole, when it is finished. A path that is no ordinary file (`/dev/stderr`, a pipe) is written to
/// directly.
pub struct WholeFile {
    path: PathBuf,
    /// Where it is written before it is renamed; nothing is there until then, as a signal may end the command.
    directory: Option<PathBuf>,
}

impl WholeFile {
    /// Checks that the file can be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
            anyhow::bail!("cannot write '{}': that is no file's name", path.display());
        }
        // What a symbolic link leads to is written, and the link stays.
        let followed = path.is_symlink().then(|| path.canonicalize().ok()).flatten();
        let path = followed.as_deref().unwrap_or(path);
        let special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        let directory = if special {
            File::options().write(true).open(path).with_context(cannot)?;
            None
        } else {
            let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            drop(pending_in(directory).with_context(cannot)?);
            Some(directory.to_owned())
        };
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Writes the content and makes it visible.
    pub fn finish(self, content: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        match &self.directory {
            None => File::options()
                .write(true)
                .open(&self.path)
                .and_then(|mut file| file.write_all(content.as_bytes()))
                .with_context(cannot),
            Some(directory) => {
                let mut file = pending_in(directory).with_context(cannot)?;
                // The file itself, as errors of its wrapper name the temporary path.
                file.as_file_mut().write_all(content.as_bytes()).with_context(cannot)?;
                file.persist(&self.path).map(|_| ()).map_err(|e| e.error).with_context(cannot)
            }
        }
    }
}

/// To be read like any other output, unlike what `tempfile` creates itself; and its errors would name the temporary path.
fn pending_in(directory: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let create = |path: &Path| File::options().write(true).create_new(true).mode(0o666).open(path);
    tempfile::Builder::new().prefix(".nodewise-").make_in(directory, create)
}

/// A file of one JSON value a line, each line written whole. Until the first line, whatever the path held stays; without
/// any, nothing is left.
pub struct JsonLines {
    path: PathBuf,
    file: BufWriter<File>,
    begun: bool,
    /// Whether there was no such file before.
    created: bool,
}

impl JsonLines {
    /// Checks that the file can be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let created = !path.exists();
        let file =
            File::options().write(true).create(true).truncate(false).open(path).with_context(cannot)?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), begun: false, created })
    }

    /// Adds a line.
    pub fn line(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        if !std::mem::replace(&mut self.begun, true) && self.file.get_ref().metadata()?.is_file() {
            self.file.get_ref().set_len(0).with_context(cannot)?;
        }
        let mut text = serde_json::to_string(value)?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.flush()).with_context(cannot)
    }
}

impl Drop for JsonLines {
    fn drop(&mut self) {
        if self.created && !self.begun {
            // An empty file left behind is a blemish, not an error.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_path_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let said = |path: &Path| format!("{:#}", WholeFile::create(path).err().unwrap());
        let nowhere = directory.path().join("nowhere/summary.json");
        let missing = "No such file or directory (os error 2)";
        assert_eq!(said(&nowhere), format!("cannot write {}: {missing}", nowhere.display()));
        assert!(said(directory.path()).ends_with(": Is a directory (os error 21)"));
        assert_eq!(said(Path::new("")), "cannot write '': that is no file's name");
        assert_eq!(said(Path::new("summary/")), "cannot write 'summary/': that is no file's name");
        // Gone meanwhile.
        let later = directory.path().join("later");
        std::fs::create_dir(&later).unwrap();
        let file = WholeFile::create(&later.join("summary.json")).unwrap();
        std::fs::remove_dir(&later).unwrap();
        let error = format!("{:#}", file.finish("{}").unwrap_err());
        assert_eq!(error, format!("cannot write {}: {missing}", later.join("summary.json").display()));
    }

    #[test]
    fn a_log_without_lines_leaves_everything_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        std::fs::write(&old, "of yesterday\n").unwrap();
        drop((JsonLines::create(&old).unwrap(), JsonLines::create(&new).unwrap()));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "of yesterday\n");
        assert!(!new.exists());
        JsonLines::create(&old).unwrap().line(&1).unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "1\n");
    }
}
