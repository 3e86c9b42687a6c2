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

/// The place of busybox that init runs, in all guests.
const BUSYBOX: &str = "/.rig/busybox";

impl Initramfs {
    /// The least that a guest has: busybox, init, users, a time zone.
    pub fn new(busybox: &Path) -> Result<Self, Error> {
        let mut root = Self { entries: BTreeMap::new() };
        root.copy(Path::new("/bin"))?; // a link to usr/bin, where it is one
        root.copy_tree(busybox)?;
        if busybox != Path::new("/bin/busybox") && busybox != Path::new("/usr/bin/busybox") {
            let link = root.resolve(Path::new("/bin"))?.join("busybox");
            root.entries.insert(link, Entry::Symlink(busybox.into()));
        }
        root.directories();
        root.entries.insert(BUSYBOX.into(), Entry::Symlink(busybox.into()));
        let passwd = with_others(ROOT_USER, "/etc/passwd", NOBODY);
        root.bytes("/etc/shadow", 0o640, locked(&passwd));
        root.bytes("/etc/passwd", 0o644, passwd);
        root.bytes("/etc/group", 0o644, with_others(ROOT_GROUP, "/etc/group", NOGROUP));
        // busybox's own setpriv takes no users. Many look for their sockets in /var/run.
        for useful in ["/usr/bin/setpriv", "/etc/localtime", "/var/run"].map(Path::new) {
            if useful.exists() {
                root.copy(useful)?;
            }
        }
        root.bytes("/etc/hosts", 0o644, HOSTS.into());
        Ok(root)
    }

    /// A tree of this machine as the guest's root. It has its own users, time zone and libraries.
    pub fn of_tree(tree: &Path, busybox: &Path) -> Result<Self, Error> {
        let mut root = Self { entries: BTreeMap::new() };
        let mut left = vec![PathBuf::from("/")];
        while let Some(directory) = left.pop() {
            let here = tree.join(directory.strip_prefix("/").unwrap_or(&directory));
            let entries = fs::read_dir(&here).map_err(|error| unreadable(&here, error))?;
            for entry in entries {
                let entry = entry.map_err(|error| unreadable(&here, error))?;
                let (host, path) = (entry.path(), directory.join(entry.file_name()));
                let metadata = entry.metadata().map_err(|error| unreadable(&host, error))?;
                let (kind, attributes) = (metadata.file_type(), Attributes::of(&metadata));
                if kind.is_dir() {
                    root.entries.insert(path.clone(), Entry::Directory(attributes));
                    left.extend((!is_kernels(&path)).then_some(path));
                } else if kind.is_symlink() {
                    let target = fs::read_link(&host).map_err(|error| unreadable(&host, error))?;
                    root.entries.insert(path, Entry::Symlink(target.into()));
                } else if kind.is_file() {
                    root.entries.insert(path, Entry::HostFile { path: host, attributes });
                }
                // Devices, sockets and pipes mean nothing in another machine.
            }
        }
        root.directories();
        let metadata = fs::metadata(busybox).map_err(|error| unreadable(busybox, error))?;
        let attributes = Attributes::of(&metadata);
        root.entries.insert(BUSYBOX.into(), Entry::HostFile { path: busybox.into(), attributes });
        root.entries
            .entry("/etc/hosts".into())
            .or_insert(Entry::Bytes { content: HOSTS.into(), permissions: 0o644 });
        Ok(root)
    }

    /// The directories that every guest has, and init.
    fn directories(&mut self) {
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
            self.directory(Path::new(directory), 0o755);
        }
        self.directory(Path::new("/tmp"), 0o1777);
        self.directory(Path::new("/var/tmp"), 0o1777);
        self.bytes("/init", 0o755, include_bytes!("init.sh").to_vec());
    }

    /// Copies files as a package lists them: directories without what is in them, and nothing that has gone
    /// since.
    pub fn copy_listed(&mut self, path: &Path) -> Result<(), Error> {
        if let Some(dangling) = dangling_link(path) {
            if let Some(directory) = path.parent().filter(|directory| directory.exists()) {
                let place = self.copy(directory)?.join(path.file_name().unwrap_or_default());
                self.entries.insert(place, Entry::Symlink(dangling));
            }
            return Ok(());
        }
        if !path.exists() {
            return Ok(());
        }
        match self.copy(path) {
            Err(error) if error.kind() == ErrorKind::ProgramNotExecutable => Ok(()),
            copied => copied.map(drop),
        }
    }

    /// The path in the guest of a program by its name or path, where the guest has it already.
    pub fn find(&self, program: &std::ffi::OsStr) -> Option<PathBuf> {
        const PATH: [&str; 6] =
            ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let is_here = |path: &PathBuf| {
            matches!(self.entries.get(path), Some(Entry::Symlink(_) | Entry::HostFile { .. }))
        };
        let given = Path::new(program);
        if given.components().count() > 1 {
            return Some(given.to_path_buf()).filter(|path| given.is_absolute() && is_here(path));
        }
        PATH.iter().map(|directory| Path::new(directory).join(program)).find(is_here)
    }

    /// The bytes of all files.
    pub fn bytes_of_files(&self) -> u64 {
        let bytes = |entry: &Entry| match entry {
            Entry::HostFile { path, .. } => fs::metadata(path).map_or(0, |metadata| metadata.len()),
            Entry::Bytes { content, .. } => content.len() as u64,
            Entry::Directory(_) | Entry::Symlink(_) => 0,
        };
        self.entries.values().map(bytes).sum()
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
            self.entries.entry(next).or_insert(Entry::Symlink(target.into()));
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

const HOSTS: &str = "127.0.0.1 localhost guest\n";

/// A line of `/etc/shadow` for each user, none of whom has a password.
fn locked(passwd: &[u8]) -> Vec<u8> {
    let names =
        passwd.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&byte| byte == b':').next());
    names
        .filter(|name| !name.is_empty())
        .flat_map(|name| [name, b":*:19000:0:99999:7:::\n"].concat())
        .collect()
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
    fn a_tree_is_a_guests_root_as_it_is() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let tree = tempfile::tempdir().unwrap();
        let at = |path: &str| tree.path().join(path);
        for directory in ["usr/bin", "etc", "proc"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        symlink("usr/bin", at("bin")).unwrap();
        fs::write(at("usr/bin/program"), "x").unwrap();
        fs::set_permissions(at("usr/bin/program"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("/etc/alternatives/chosen", at("usr/bin/chosen")).unwrap();
        fs::write(at("etc/passwd"), "its own").unwrap();
        fs::write(at("proc/version"), "not copied").unwrap();
        let root = Initramfs::of_tree(tree.path(), Path::new("/bin/busybox")).unwrap();
        let entry = |path: &str| root.entries.get(Path::new(path));
        assert!(matches!(entry("/bin"), Some(Entry::Symlink(target)) if target == "usr/bin"));
        assert!(
            matches!(entry("/etc/passwd"), Some(Entry::HostFile { path, .. }) if *path == at("etc/passwd"))
        );
        assert!(entry("/proc/version").is_none() && entry("/init").is_some() && entry(BUSYBOX).is_some());
        let found = |name: &str| root.find(std::ffi::OsStr::new(name));
        assert_eq!(found("program"), Some("/usr/bin/program".into()));
        assert_eq!(found("/usr/bin/chosen"), Some("/usr/bin/chosen".into()));
        assert_eq!((found("other"), found("./program")), (None, None));
        assert!(root.bytes_of_files() > 1000, "busybox counts");
        assert!(Initramfs::of_tree(&at("nowhere"), Path::new("/bin/busybox")).is_err());
    }

    #[test]
    fn nobody_has_a_password() {
        assert_eq!(
            locked(b"root:x:0:0::/:\na:x:1:1::/:\n"),
            b"root:*:19000:0:99999:7:::\na:*:19000:0:99999:7:::\n"
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
