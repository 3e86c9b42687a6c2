//! The file of the library that a program loads.
//!
//! A program passes `LD_PRELOAD` on to whatever it runs, even after this process has ended. So the file stays
//! where it is, and it lies where nobody but root and this user can put another one in its place.

use crate::settings::require_own;
use crate::{Error, ErrorKind, NamedMapping};
use nodewise_preload::LIBRARY;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher as _;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs, io};

/// Root's directories. Debian mounts `/run` such that no code is loaded from there.
const OF_ROOT: [&str; 2] = ["/run/nodewise", "/var/lib/nodewise"];

/// Writes the library to the first directory from which it can be loaded, unless it is there.
pub(super) fn path() -> Result<PathBuf, Error> {
    let user = rustix::process::geteuid();
    let directories = if user.is_root() { OF_ROOT.map(PathBuf::from).to_vec() } else { of_user() };
    let mut refused = None;
    for directory in directories {
        match in_directory(&directory) {
            Ok(path) => return Ok(path),
            Err(error) => refused = Some(error),
        }
    }
    let none = || {
        let message = "there is no directory for a library: neither XDG_RUNTIME_DIR nor HOME is set";
        Error::new(ErrorKind::NotPermitted, message)
    };
    Err(refused.unwrap_or_else(none))
}

fn of_user() -> Vec<PathBuf> {
    let directory = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")));
    [directory("XDG_RUNTIME_DIR"), cache].into_iter().flatten().map(|path| path.join("nodewise")).collect()
}

fn in_directory(directory: &Path) -> Result<PathBuf, Error> {
    let failed = |doing, error| Error::file(directory, doing, error);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(|e| failed("create", e))?;
    let metadata = fs::symlink_metadata(directory).map_err(|e| failed("read", e))?;
    require_own(directory, &metadata)?;
    let flags = statvfs(directory).map_err(|e| failed("read", e.into()))?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) || !metadata.is_dir() {
        let message = format!("no library can be loaded from {}", directory.display());
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let path = directory.join(name());
    if is_whole(&path) {
        return Ok(path);
    }
    write(&path).map_err(|e| Error::file(&path, "write", e))?;
    Ok(path)
}

/// The file's name.
fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let mut hash = DefaultHasher::new();
        hash.write(LIBRARY);
        format!("preload-{}-{:016x}.so", env!("CARGO_PKG_VERSION"), hash.finish())
    })
}

/// Whether a mapping is of the library. A file that was replaced meanwhile is called deleted.
pub(super) fn is_mapped(mapping: &NamedMapping) -> bool {
    let file = Path::new(&mapping.name).file_name().unwrap_or_default();
    mapping.is_code && file.as_encoded_bytes().starts_with(name().as_bytes())
}

/// Whether the library is there, as this user or root has written it.
fn is_whole(path: &Path) -> bool {
    let metadata = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    metadata.is_some_and(|metadata| require_own(path, &metadata).is_ok())
        && fs::read(path).is_ok_and(|bytes| bytes == LIBRARY)
}

/// Others may be loading the one that was there: it is replaced, and not changed.
fn write(path: &Path) -> io::Result<()> {
    let pending = path.with_extension(format!("{}.pending", std::process::id()));
    let written = (|| {
        let mut options = fs::File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(&pending)?;
        file.write_all(LIBRARY)?;
        // Whatever the umask.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        fs::rename(&pending, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&pending);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_written_once_and_again_if_it_is_another() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/nodewise");
        let path = in_directory(&directory).unwrap();
        let written = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let first = written(&path);
        assert_eq!((in_directory(&directory).unwrap(), written(&path)), (path.clone(), first));
        fs::write(&path, "another").unwrap();
        assert_eq!(in_directory(&directory).unwrap(), path);
        assert!(fs::read(&path).unwrap() == LIBRARY);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing else is left there");
    }

    #[test]
    fn a_process_that_has_loaded_it_is_known() {
        let place = tempfile::tempdir().unwrap();
        let path = in_directory(place.path()).unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("100").env("LD_PRELOAD", &path).spawn().unwrap();
        let has = |pid: u32| {
            NamedMapping::all_of(nodewise_engine::Pid(pid)).unwrap_or_default().iter().any(is_mapped)
        };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !has(child.id()) && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let is_known = has(child.id());
        fs::remove_file(&path).unwrap();
        let is_still_known = has(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_known && is_still_known && !has(std::process::id()), "{is_known} {is_still_known}");
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("nodewise");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(in_directory(&directory).unwrap_err().to_string().contains("others could write"));
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(in_directory(&link).is_err());
    }
}
