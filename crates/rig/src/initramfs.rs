//! Collects what goes into a guest, busybox and our init first, and writes it as one archive.

use crate::cpio::{self, Attributes};
use crate::{Error, ErrorKind, program};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Component, Path, PathBuf};

/// The entry that will be at a path of the guest.
enum Entry {
    Directory(Attributes),
    Symlink(OsString),
    HostFile { path: PathBuf, attributes: Attributes },
    Bytes { content: Vec<u8>, permissions: u32 },
}

/// The root directory of a guest. A sorted map: directories come before what is in them, and the same
/// content gives the same archive.
pub(crate) struct Initramfs {
    entries: BTreeMap<PathBuf, Entry>,
}

/// Symbolic links followed in one path before it counts as a loop, as in the kernel.
const LINKS_MAX: u32 = 40;

impl Initramfs {
    pub fn new(busybox: &Path) -> Result<Self, Error> {
        let mut root = Self { entries: BTreeMap::new() };
        root.copy(Path::new("/bin"))?; // a link to usr/bin, where it is one
        root.copy_tree(busybox)?;
        if busybox != Path::new("/bin/busybox") && busybox != Path::new("/usr/bin/busybox") {
            let link = root.resolve(Path::new("/bin"))?.join("busybox");
            root.entries.insert(link, Entry::Symlink(busybox.into()));
        }
        let directories = [
            "/dev",
            "/etc",
            "/proc",
            "/root",
            "/run",
            "/sys",
            "/usr/bin",
            "/usr/local/bin",
            "/usr/sbin",
            "/var",
            "/.rig",
        ];
        for directory in directories {
            root.directory(Path::new(directory), 0o755);
        }
        root.directory(Path::new("/tmp"), 0o1777);
        root.directory(Path::new("/var/tmp"), 0o1777);
        root.bytes("/init", 0o755, include_bytes!("init.sh").to_vec());
        root.bytes("/etc/passwd", 0o644, with_others(ROOT_USER, "/etc/passwd", NOBODY));
        root.bytes("/etc/group", 0o644, with_others(ROOT_GROUP, "/etc/group", NOGROUP));
        // busybox's own setpriv takes no users.
        for useful in ["/usr/bin/setpriv", "/etc/localtime"].map(Path::new) {
            if useful.exists() {
                root.copy_tree(useful)?;
            }
        }
        root.bytes("/etc/hosts", 0o644, "127.0.0.1 localhost guest\n".into());
        Ok(root)
    }

    /// Puts `content` at `path`, whose directory must be there.
    pub fn bytes(&mut self, path: &str, permissions: u32, content: Vec<u8>) {
        self.entries.insert(path.into(), Entry::Bytes { content, permissions });
    }

    /// Makes a directory and those above it, where there are none yet.
    pub fn directory(&mut self, path: &Path, permissions: u32) {
        for above in path.ancestors().skip(1).filter(|above| above.parent().is_some()) {
            self.entries.entry(above.into()).or_insert(Entry::Directory(Attributes::of_root(0o755)));
        }
        self.entries.entry(path.into()).or_insert(Entry::Directory(Attributes::of_root(permissions)));
    }

    /// Makes `path`, whose directory must be there, lead to `target`.
    pub fn link(&mut self, path: &Path, target: &Path) {
        if path != target {
            self.entries.insert(path.into(), Entry::Symlink(target.into()));
        }
    }

    /// Copies a file, or a directory with all in it, to the same path in the guest, owners, modes and times
    /// included; programs and libraries bring along the libraries they need.
    pub fn copy_tree(&mut self, asked: &Path) -> Result<(), Error> {
        let mut left = vec![asked.to_path_buf()];
        while let Some(path) = left.pop() {
            if let Some(dangling) = dangling_link(&path) {
                self.entries.insert(path, Entry::Symlink(dangling));
                continue;
            }
            let target = match self.copy(&path) {
                // A directory may well hold a plugin or a test that nobody can run here, or will run there.
                Err(error) if error.kind() == ErrorKind::ProgramNotExecutable && path != asked => continue,
                copied => copied?,
            };
            if matches!(self.entries.get(&target), Some(Entry::Directory(_))) && !is_kernels(&target) {
                let children = fs::read_dir(&target)
                    .and_then(|entries| {
                        entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()
                    })
                    .map_err(|error| unreadable(&target, error))?;
                left.extend(children.into_iter().filter(|child| !self.entries.contains_key(child)));
            }
        }
        Ok(())
    }

    /// Copies one path, the symbolic links on the way to it included, and returns where it leads.
    fn copy(&mut self, path: &Path) -> Result<PathBuf, Error> {
        let target = self.resolve(path)?;
        if self.entries.contains_key(&target) || target.parent().is_none() {
            return Ok(target);
        }
        let metadata = fs::metadata(&target).map_err(|error| unreadable(path, error))?;
        let attributes = Attributes::of(&metadata);
        let kind = metadata.file_type();
        if kind.is_dir() {
            self.directory(&target, attributes.permissions);
            self.entries.insert(target.clone(), Entry::Directory(attributes));
        } else if kind.is_file() {
            self.entries.insert(target.clone(), Entry::HostFile { path: target.clone(), attributes });
            for needed in program::needs(&target)? {
                self.copy(&needed)?;
            }
            // Where the loader finds libraries outside its default directories.
            let cache = Path::new("/etc/ld.so.cache");
            if cache.exists() && !self.entries.contains_key(cache) {
                self.copy(cache)?;
            }
        }
        // Devices, sockets and pipes mean nothing in another machine.
        Ok(target)
    }

    /// Follows the symbolic links in an absolute path on this machine and puts each into the guest.
    fn resolve(&mut self, path: &Path) -> Result<PathBuf, Error> {
        let mut resolved = PathBuf::from("/");
        let mut left: Vec<OsString> = path.components().rev().map(|c| c.as_os_str().to_owned()).collect();
        let mut links = 0;
        while let Some(component) = left.pop() {
            match Path::new(&component).components().next() {
                None | Some(Component::CurDir) => continue,
                Some(Component::RootDir | Component::Prefix(_)) => {
                    resolved = PathBuf::from("/");
                    continue;
                }
                Some(Component::ParentDir) => {
                    resolved.pop();
                    continue;
                }
                Some(Component::Normal(_)) => {}
            }
            let next = resolved.join(&component);
            if !fs::symlink_metadata(&next).map_err(|error| unreadable(path, error))?.is_symlink() {
                resolved = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(unreadable(path, std::io::Error::other("too many levels of symbolic links")));
            }
            let target = fs::read_link(&next).map_err(|error| unreadable(&next, error))?;
            left.extend(target.components().rev().map(|c| c.as_os_str().to_owned()));
            self.directory(&resolved, 0o755);
            self.entries.insert(next, Entry::Symlink(target.into()));
        }
        if let Some(parent) = resolved.parent().filter(|parent| parent.parent().is_some()) {
            self.directory(parent, 0o755);
        }
        Ok(resolved)
    }

    /// Writes the archive and returns its size in bytes.
    pub fn write(&self, out: impl Write) -> Result<u64, Error> {
        let failed = |error| Error::system("write the initramfs", error);
        let mut archive = cpio::Writer::new(BufWriter::new(out));
        for (path, entry) in self.entries.iter().filter(|(path, _)| path.parent().is_some()) {
            match entry {
                Entry::Directory(attributes) => archive.directory(path, *attributes),
                Entry::Symlink(target) => archive.symlink(path, target),
                Entry::Bytes { content, permissions } => {
                    let attributes = Attributes::of_root(*permissions);
                    archive.file(path, attributes, content.len() as u64, &mut &content[..])
                }
                Entry::HostFile { path: host, attributes } => {
                    let open = File::open(host).and_then(|file| Ok((file.metadata()?.len(), file)));
                    let (size, mut file) = open.map_err(|error| unreadable(host, error))?;
                    archive.file(path, *attributes, size, &mut file)
                }
            }
            .map_err(|error| Error::file(ErrorKind::System, "put into the initramfs", path, error))?;
        }
        // The kernel opens this for init's own output before anything is mounted.
        archive.character_device(Path::new("/dev/console"), 0o600, (5, 1)).map_err(failed)?;
        archive.finish().map_err(failed)
    }
}

fn dangling_link(path: &Path) -> Option<OsString> {
    let target = fs::read_link(path).ok()?;
    (!path.exists()).then(|| target.into())
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::file(ErrorKind::Unreadable, "copy", path, error)
}

/// File systems of the kernel: the guest mounts its own.
fn is_kernels(path: &Path) -> bool {
    ["/proc", "/sys", "/dev"].iter().any(|mount| path == Path::new(mount))
}

/// This machine's root may have a shell that the guest has not.
const ROOT_USER: &str = "root:x:0:0:root:/root:/bin/sh\n";
const ROOT_GROUP: &str = "root:x:0:\n";
const NOBODY: &str = "nobody:x:65534:65534:nobody:/:/bin/sh\n";
const NOGROUP: &str = "nogroup:x:65534:\n";

/// Root's line, and from a file of this machine the other users or groups, so that what is copied belongs to
/// somebody.
fn with_others(root: &str, file: &str, otherwise: &str) -> Vec<u8> {
    let here = fs::read(file).unwrap_or_else(|_| otherwise.into());
    let others = here.split_inclusive(|&byte| byte == b'\n').filter(|line| !line.starts_with(b"root:"));
    std::iter::once(root.as_bytes()).chain(others).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_unless_the_program_is_one_of_many() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let mut file = fs::read("/usr/bin/env").unwrap();
        let name = b"libc.so.6\0";
        let at = file.windows(name.len()).position(|bytes| bytes == name).unwrap();
        file[at + 3] = b'X';
        fs::write(&program, file).unwrap();

        let mut root = Initramfs::new(Path::new("/bin/busybox")).unwrap();
        let error = root.copy_tree(&program).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ProgramNotExecutable);
        assert!(error.to_string().contains("libX.so.6"), "{error}");

        let mut root = Initramfs::new(Path::new("/bin/busybox")).unwrap();
        root.copy_tree(directory.path()).unwrap();
        assert!(root.entries.contains_key(&program));

        let error = root.copy_tree(Path::new("/no/such/file")).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Unreadable, "cannot copy /no/such/file")
        );
    }

    #[test]
    fn links_lead_where_they_lead_here() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().canonicalize().unwrap();
        fs::create_dir(here.join("real")).unwrap();
        fs::write(here.join("real/file"), "x").unwrap();
        std::os::unix::fs::symlink("real", here.join("link")).unwrap();
        std::os::unix::fs::symlink("b", here.join("a")).unwrap();
        std::os::unix::fs::symlink("a", here.join("b")).unwrap();

        let mut root = Initramfs::new(Path::new("/bin/busybox")).unwrap();
        root.copy_tree(&here.join("link/../link/file")).unwrap();
        assert!(matches!(root.entries.get(&here.join("link")), Some(Entry::Symlink(_))));
        assert!(matches!(root.entries.get(&here.join("real/file")), Some(Entry::HostFile { .. })));
        assert!(root.copy(&here.join("a")).is_err(), "a loop of links is an error, not a hang");
    }
}
