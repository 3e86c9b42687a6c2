//! The archive format of an initramfs: cpio's "newc" (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst). Written only.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// File types of `st_mode`, see inode(7).
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// The attributes that are kept of a file, beside its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub permissions: u32,
    pub user: u32,
    pub group: u32,
    /// When the content last changed, in seconds since 1970.
    pub modified_s: i64,
}

impl Attributes {
    /// The attributes of a file of root's.
    pub const fn of_root(permissions: u32) -> Self {
        Self { permissions, user: 0, group: 0, modified_s: 0 }
    }

    pub fn of(metadata: &Metadata) -> Self {
        Self {
            permissions: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
            modified_s: metadata.mtime(),
        }
    }
}

/// Writes entries to `out`; every directory must come before what is in it.
pub(crate) struct Writer<W> {
    out: W,
    entries: u32,
    written: u64,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Self { out, entries: 0, written: 0 }
    }

    pub fn directory(&mut self, path: &Path, attributes: Attributes) -> io::Result<()> {
        self.header(path, DIRECTORY, attributes, 0, (0, 0))
    }

    pub fn symlink(&mut self, path: &Path, target: &OsStr) -> io::Result<()> {
        self.header(path, SYMLINK, Attributes::of_root(0o777), target.len() as u64, (0, 0))?;
        self.put(target.as_bytes())?;
        self.pad()
    }

    pub fn character_device(
        &mut self,
        path: &Path,
        permissions: u32,
        major_minor: (u32, u32),
    ) -> io::Result<()> {
        self.header(path, CHARACTER, Attributes::of_root(permissions), 0, major_minor)
    }

    /// A regular file of `size` bytes. A source that turns out shorter or longer, because somebody is
    /// writing to it, is an error.
    pub fn file(
        &mut self,
        path: &Path,
        attributes: Attributes,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        self.header(path, REGULAR, attributes, size, (0, 0))?;
        let copied = io::copy(&mut content.take(size), &mut self.out)?;
        self.written += copied;
        if copied != size {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        self.pad()
    }

    /// Writes the trailer and returns how many bytes the archive has.
    pub fn finish(mut self) -> io::Result<u64> {
        self.header(Path::new("TRAILER!!!"), 0, Attributes::default(), 0, (0, 0))?;
        self.out.flush()?;
        Ok(self.written)
    }

    fn header(
        &mut self,
        path: &Path,
        kind: u32,
        Attributes { permissions, user, group, modified_s }: Attributes,
        size: u64,
        (major, minor): (u32, u32),
    ) -> io::Result<()> {
        let size = u32::try_from(size).map_err(|_| {
            io::Error::new(io::ErrorKind::FileTooLarge, "an initramfs holds files below 4 GiB")
        })?;
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        self.entries += 1;
        let inode = self.entries;
        let (mode, links) = (kind | permissions, if kind == DIRECTORY { 2 } else { 1 });
        // The format ends in 2106, and begins in 1970.
        let modified_s = u32::try_from(modified_s.max(0)).unwrap_or(u32::MAX);
        let name_size = name.len() as u32 + 1;
        let fields = [inode, mode, user, group, links, modified_s, size, 0, 0, major, minor, name_size, 0]
            .map(|field| format!("{field:08x}"));
        self.put(b"070701")?;
        self.put(fields.concat().as_bytes())?;
        self.put(name)?;
        self.put(b"\0")?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Headers and contents start at multiples of 4 bytes.
    fn pad(&mut self) -> io::Result<()> {
        let short = (self.written.next_multiple_of(4) - self.written) as usize;
        self.put(&[0; 3][..short])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::process::{Command, Stdio};

    fn cpio(arguments: &[&str], directory: &Path, archive: &[u8]) -> String {
        let mut child = Command::new("cpio")
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Debian's package cpio is installed (make setup)");
        child.stdin.take().unwrap().write_all(archive).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn debians_cpio_lists_types_and_sizes() {
        let mut archive = Vec::new();
        let mut writer = Writer::new(&mut archive);
        writer.directory(Path::new("/etc"), Attributes::of_root(0o755)).unwrap();
        let motd = Attributes { permissions: 0o640, user: 1234, group: 2345, modified_s: 1_000_000_000 };
        writer.file(Path::new("/etc/motd"), motd, 3, &mut &b"hey"[..]).unwrap();
        writer.symlink(Path::new("/etc/issue"), OsStr::new("motd")).unwrap();
        writer.character_device(Path::new("/console"), 0o600, (5, 1)).unwrap();
        assert_eq!(writer.finish().unwrap(), archive.len() as u64);
        let listing = cpio(&["-tv", "--quiet", "--numeric-uid-gid"], Path::new("/"), &archive);
        let lines: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][0], "drwxr-xr-x");
        assert_eq!((lines[1][0], lines[1][4], lines[1].last()), ("-rw-r-----", "3", Some(&"etc/motd")));
        assert_eq!((lines[0][2], lines[0][3]), ("0", "0"));
        assert_eq!((lines[1][2], lines[1][3], lines[1][5], lines[1][7]), ("1234", "2345", "Sep", "2001"));
        assert_eq!((lines[2][0], lines[2].last()), ("lrwxrwxrwx", Some(&"motd")));
        assert_eq!((lines[3][0], lines[3][4], lines[3][5]), ("crw-------", "5,", "1"));
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let mut writer = Writer::new(Vec::new());
        let error =
            writer.file(Path::new("/x"), Attributes::of_root(0o644), 10, &mut &b"short"[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn debians_cpio_unpacks_what_was_packed(
            files in proptest::collection::btree_map("[a-zA-Z0-9 ._-]{1,30}", proptest::collection::vec(any::<u8>(), 0..300), 0..8)
        ) {
            let files: BTreeMap<String, Vec<u8>> =
                files.into_iter().filter(|(name, _)| name != "." && name != ".." && name != "TRAILER!!!").collect();
            let mut archive = Vec::new();
            let mut writer = Writer::new(&mut archive);
            writer.directory(Path::new("d"), Attributes::of_root(0o755)).unwrap();
            for (name, content) in &files {
                let path = Path::new("/d").join(name);
                writer.file(&path, Attributes::of_root(0o644), content.len() as u64, &mut &content[..]).unwrap();
            }
            writer.finish().unwrap();
            let directory = tempfile::tempdir().unwrap();
            cpio(&["-i", "--quiet"], directory.path(), &archive);
            let unpacked: BTreeMap<String, Vec<u8>> = fs::read_dir(directory.path().join("d"))
                .unwrap()
                .map(|entry| {
                    let entry = entry.unwrap();
                    (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
                })
                .collect();
            prop_assert_eq!(unpacked, files);
        }
    }
}
