//! The output of a command: files never half-written, and refused before anything is started; standard output
//! and error without panics. `clippy.toml` keeps every other way to write there out of this crate.

use anyhow::Context as _;
use std::fmt::{Display, Write as _};
use std::fs::{File, Metadata, Permissions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Writes to standard output, with colours where that is a terminal. A reader that has seen enough (`nodewise
/// topo | head`) is no error; a full disk is.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_more(text).map(drop)
}

/// The same, and returns whether the reader may want more.
pub fn print_more(text: &str) -> anyhow::Result<bool> {
    written(&harmless(text))
}

fn written(text: &str) -> anyhow::Result<bool> {
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context("cannot write to standard output"),
    }
}

/// The same for a help of clap's, whose styles are its own.
pub fn print_help(help: &clap::builder::StyledStr) -> anyhow::Result<()> {
    written(&help.ansi().to_string()).map(drop)
}

/// Writes a line to standard error, after the command's name and without styles. See [`report`].
pub fn note(message: impl Display) {
    report(&format!("nodewise: {}\n", escaped(&message.to_string(), &LAYOUT)));
}

/// Writes to standard error, with colours where that is a terminal. A report that cannot be written is lost:
/// nothing that only reports may stop the program that it is about.
pub fn report(text: &str) {
    let _ = anstream::stderr().write_all(harmless(text).as_bytes());
}

/// The styles that commands use. Nothing else tells a terminal what to do.
const STYLES: [&str; 7] = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"];

/// The control characters of tables and of JSON.
const LAYOUT: [char; 2] = ['\n', '\t'];

/// A name for a text. Names in a captured tree, or of other people's processes and files, may hold anything,
/// such as a row of a table or a style. Each such character is shown as JSON writes it.
///
/// Every name from outside goes through here before it is part of a text. [`print`] and [`report`] cannot
/// tell a name's end of a line from that of a text.
pub fn shown(name: impl Display) -> String {
    escaped(&name.to_string(), &[])
}

/// A command's output. Each character that a terminal would obey is shown as JSON writes it, as the text may
/// be JSON. Styles and layout stay as they are.
fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        let style = STYLES.iter().find(|style| rest[at..].starts_with(**style));
        let end = at + style.map_or(1, |style| style.len());
        safe += &escaped(&rest[..at], &LAYOUT);
        safe += &style.map_or_else(|| escaped("\x1b", &[]), |style| (*style).to_owned());
        rest = &rest[end..];
    }
    safe + &escaped(rest, &LAYOUT)
}

fn escaped(text: &str, but: &[char]) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) && !but.contains(&character) {
            // Writing to a string does not fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Control characters, and those that turn the direction of writing.
fn is_obeyed(character: char) -> bool {
    let turns =
        matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || character.is_control()
}

/// Address layouts in a new file are for its owner only.
pub const PRIVATE: u32 = 0o600;
/// A new file is to be read like any other output.
pub const PUBLIC: u32 = 0o666;

/// A file that appears, whole, when it is finished. One that was there keeps its owner and mode. A path that
/// is no ordinary file (`/dev/stderr`, a pipe) is written to directly.
pub struct WholeFile {
    path: PathBuf,
    /// That of a new file, before the umask.
    mode: u32,
    special: Option<File>,
}

impl WholeFile {
    /// Checks that the file can be written. Nothing of it is there until it is finished, as a signal may end
    /// the command.
    pub fn create(path: &Path, mode: u32) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
            anyhow::bail!("cannot write '{}': that is no file's name", path.display());
        }
        let special = match Target::find(path).with_context(cannot)? {
            Target::Special(file) => Some(file),
            Target::Ordinary(target) => {
                drop(target.pending(mode).with_context(cannot)?);
                None
            }
        };
        Ok(Self { path: path.to_owned(), mode, special })
    }

    /// Writes the content and makes it visible.
    pub fn finish(self, content: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        // Somebody may have put another there meanwhile.
        let target = self.special.map_or_else(|| Target::find(&self.path), |file| Ok(Target::Special(file)));
        match target.with_context(cannot)? {
            Target::Special(mut file) => file.write_all(content.as_bytes()).with_context(cannot),
            Target::Ordinary(target) => target.write(self.mode, content).with_context(cannot),
        }
    }
}

/// A file that another program writes, and that appears, whole, when it is finished. One that was there keeps
/// its owner and mode.
pub struct OthersFile {
    path: PathBuf,
    target: Ordinary,
    pending: tempfile::NamedTempFile,
}

impl OthersFile {
    /// Makes a [`PRIVATE`] file beside the path, which is gone if it is not finished.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        match Target::find(&std::path::absolute(path).with_context(cannot)?).with_context(cannot)? {
            Target::Special(_) => anyhow::bail!("cannot write {}: it is no ordinary file", path.display()),
            Target::Ordinary(target) => {
                let pending = target.pending(PRIVATE).with_context(cannot)?;
                Ok(Self { path: path.to_owned(), target, pending })
            }
        }
    }

    /// The path at which it is written.
    pub fn pending(&self) -> &Path {
        self.pending.path()
    }

    /// The path at which it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it visible. Some file systems tell only now that there was no room for it.
    pub fn finish(self) -> anyhow::Result<()> {
        let synced = self.pending.as_file().sync_all();
        let persisted = synced.and_then(|()| self.target.persist(self.pending));
        persisted.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The end of a path.
enum Target {
    /// A device or a pipe.
    Special(File),
    Ordinary(Ordinary),
}

struct Ordinary {
    path: PathBuf,
    /// The file that is there already.
    replaces: Option<Metadata>,
}

impl Target {
    /// The kernel says where links lead, and which files may be written: in directories that all may write to
    /// it heeds neither links (`fs.protected_symlinks`) nor files (`fs.protected_regular`) that a
    /// stranger put there.
    fn find(path: &Path) -> std::io::Result<Self> {
        let mut options = File::options();
        let file = match options.write(true).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound && !path.is_symlink() => {
                return Ok(Self::Ordinary(Ordinary { path: path.to_owned(), replaces: None }));
            }
            opened => opened?,
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Ok(Self::Special(file));
        }
        // Files are protected only from programs that would also create them.
        options.create(true).truncate(false).open(path)?;
        let path = path.canonicalize()?;
        let there = path.symlink_metadata()?;
        if (there.dev(), there.ino()) != (found.dev(), found.ino()) {
            return Err(std::io::Error::other("somebody else replaces it just now"));
        }
        Ok(Self::Ordinary(Ordinary { path, replaces: Some(found) }))
    }
}

impl Ordinary {
    /// An empty file beside it, which is gone when it is dropped. A file that `tempfile` creates itself has
    /// another mode, and its errors would name the temporary path.
    fn pending(&self, mode: u32) -> std::io::Result<tempfile::NamedTempFile> {
        let directory = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode = if self.replaces.is_some() { PRIVATE } else { mode };
        let create = |path: &Path| File::options().write(true).create_new(true).mode(mode).open(path);
        let file = tempfile::Builder::new().prefix(".nodewise-").make_in(directory, create)?;
        if let Some(old) = &self.replaces {
            let new = file.as_file().metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                std::os::unix::fs::fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
            }
            file.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
        }
        Ok(file)
    }

    fn write(&self, mode: u32, content: &str) -> std::io::Result<()> {
        let mut file = self.pending(mode)?;
        // The file itself, as errors of its wrapper name the temporary path.
        file.as_file_mut().write_all(content.as_bytes())?;
        self.persist(file)
    }

    fn persist(&self, file: tempfile::NamedTempFile) -> std::io::Result<()> {
        let persisted = match self.replaces {
            Some(_) => file.persist(&self.path),
            None => file.persist_noclobber(&self.path),
        };
        persisted.map(drop).map_err(|e| e.error)
    }
}

/// A file of one JSON value a line, each line written whole. Until the first line, whatever the path held
/// stays; without any, nothing is left. A new file is [`PRIVATE`].
pub struct JsonLines {
    path: PathBuf,
    file: BufWriter<File>,
    begun: bool,
    /// Whether there was no such file before.
    created: bool,
    /// So many bytes may still be written.
    left: usize,
}

/// A file of lines has no more bytes. A managed program decides how much there is to say.
const LINES_BYTES: usize = 1 << 30;

impl JsonLines {
    /// Checks that the file can be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let created = !path.exists();
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).mode(PRIVATE).open(path);
        let file = file.with_context(cannot)?;
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
            begun: false,
            created,
            left: LINES_BYTES,
        })
    }

    /// Adds a line.
    pub fn line(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        if !std::mem::replace(&mut self.begun, true) && self.file.get_ref().metadata()?.is_file() {
            self.file.get_ref().set_len(0).with_context(cannot)?;
        }
        let mut text = serde_json::to_string(value)?;
        text.push('\n');
        let left = self.left.checked_sub(text.len());
        self.left = left.with_context(|| format!("{} has a GiB, which is the most", self.path.display()))?;
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
    use anstyle::AnsiColor;

    #[test]
    fn terminals_are_told_styles_and_nothing_else() {
        let styled = "\x1b[1mnode 0\x1b[0m\tnaïve ├─┤\n";
        assert_eq!(harmless(styled), styled);
        // Doctor's table, topo's drawing and measure's heat maps have these.
        for colour in [AnsiColor::Green, AnsiColor::Yellow, AnsiColor::Red, AnsiColor::Cyan] {
            let style = colour.on_default().bold();
            let styled = format!("{style}text{style:#}");
            assert_eq!(harmless(&styled), styled);
        }
        assert_eq!(harmless("eth0\x1b]0;PWNED\x07"), "eth0\\u001b]0;PWNED\\u0007");
        assert_eq!(harmless("\x1b[8mhidden\x1b[1"), "\\u001b[8mhidden\\u001b[1");
        assert_eq!(harmless("a\r\u{9b}2J\u{202e}b"), "a\\u000d\\u009b2J\\u202eb");
        let json = serde_json::to_string("\x1b\u{9b}").unwrap();
        assert_eq!(serde_json::from_str::<String>(&harmless(&json)).unwrap(), "\x1b\u{9b}");
    }

    #[test]
    fn a_name_is_neither_styled_nor_more_than_one_cell() {
        assert_eq!(shown("naïve ├─┤"), "naïve ├─┤");
        assert_eq!(shown("q\n  1 fake\t\x1b[31mX\r"), "q\\u000a  1 fake\\u0009\\u001b[31mX\\u000d");
    }

    #[test]
    fn errors_name_the_path_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let said = |path: &Path| format!("{:#}", WholeFile::create(path, PRIVATE).err().unwrap());
        let nowhere = directory.path().join("nowhere/summary.json");
        let missing = "No such file or directory (os error 2)";
        assert_eq!(said(&nowhere), format!("cannot write {}: {missing}", nowhere.display()));
        assert!(said(directory.path()).ends_with(": Is a directory (os error 21)"));
        assert_eq!(said(Path::new("")), "cannot write '': that is no file's name");
        assert_eq!(said(Path::new("summary/")), "cannot write 'summary/': that is no file's name");
        // Gone meanwhile.
        let later = directory.path().join("later");
        std::fs::create_dir(&later).unwrap();
        let file = WholeFile::create(&later.join("summary.json"), PRIVATE).unwrap();
        std::fs::remove_dir(&later).unwrap();
        let error = format!("{:#}", file.finish("{}").unwrap_err());
        assert_eq!(error, format!("cannot write {}: {missing}", later.join("summary.json").display()));
    }

    #[test]
    fn what_tells_address_layouts_is_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        let [summary, log, old] = ["summary", "log", "old"].map(|name| directory.path().join(name));
        let write = |path: &Path| WholeFile::create(path, PRIVATE).unwrap().finish("{}").unwrap();
        write(&summary);
        JsonLines::create(&log).unwrap().line(&1).unwrap();
        assert_eq!([mode(&summary), mode(&log)], [0o600, 0o600]);
        std::fs::write(&old, "of yesterday\n").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o640)).unwrap();
        write(&old);
        JsonLines::create(&old).unwrap().line(&1).unwrap();
        assert_eq!(mode(&old), 0o640);
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let [link, file] = ["link", "file"].map(|name| directory.path().join(name));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = format!("{:#}", WholeFile::create(&link, PRIVATE).err().unwrap());
        assert!(error.ends_with("No such file or directory (os error 2)"), "{error}");
        std::fs::write(&file, "").unwrap();
        WholeFile::create(&link, PRIVATE).unwrap().finish("{}").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}");
    }

    #[test]
    fn what_appears_meanwhile_is_asked_about_again() {
        let directory = tempfile::tempdir().unwrap();
        let [link, elsewhere] = ["link", "elsewhere"].map(|name| directory.path().join(name));
        let summary = WholeFile::create(&link, PRIVATE).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        assert!(summary.finish("{}").is_err());
        assert!(link.is_symlink() && !elsewhere.exists());
    }

    #[test]
    fn a_log_has_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = JsonLines::create(&path).unwrap();
        log.left = 10;
        assert_eq!((0..20).flat_map(|_| log.line(&12)).count(), 3);
        let error = format!("{:#}", log.line(&12).unwrap_err());
        assert_eq!(error, format!("{} has a GiB, which is the most", path.display()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "12\n12\n12\n");
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
