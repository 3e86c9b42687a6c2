//! Finds kernels for guests to boot: Debian's cloud kernels, which have all they need built in.

use crate::{Error, ErrorKind};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::env;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// All kernels found, best first: `$NODEWISE_KERNEL`, `.nodewise/kernels` in the current directory or
/// one above it, `$XDG_DATA_HOME/nodewise/kernels` (`~/.local/share`) and `/var/lib/nodewise/kernels`, where
/// `make setup` puts them for a user and for root, `$XDG_CACHE_HOME/nodewise/kernels`,
/// `/boot/vmlinuz-*cloud-amd64`. The newest version comes first in each place; of files with one name only
/// the first counts.
#[must_use]
pub fn kernels() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = env::var_os("NODEWISE_KERNEL").map(PathBuf::from).into_iter().collect();
    for directory in directories() {
        found.extend(kernels_in(&directory, ""));
    }
    found.extend(kernels_in(Path::new("/boot"), "cloud-amd64"));
    let mut names = BTreeSet::new();
    found.retain(|path| path.file_name().is_none_or(|name| names.insert(name.to_owned())));
    found
}

/// Where kernels are kept for guests, the nearest first.
fn directories() -> Vec<PathBuf> {
    let here = env::current_dir().unwrap_or_default();
    let mut directories: Vec<PathBuf> =
        here.ancestors().map(|above| above.join(".nodewise/kernels")).collect();
    let of_user = |variable: &str, otherwise: &str| {
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(otherwise));
        let set = env::var_os(variable).filter(|value| !value.is_empty());
        set.map(PathBuf::from).or_else(home).map(|data| data.join("nodewise/kernels"))
    };
    directories.extend(of_user("XDG_DATA_HOME", ".local/share"));
    directories.push("/var/lib/nodewise/kernels".into());
    directories.extend(of_user("XDG_CACHE_HOME", ".cache"));
    directories
}

/// The error that says what to do where no kernel is found.
#[must_use]
pub fn no_kernel() -> Error {
    let places: Vec<String> = directories().iter().rev().map(|place| place.display().to_string()).collect();
    Error::new(
        ErrorKind::NotInstalled,
        format!(
            "no kernel for the guest: run 'make setup' in the nodewise sources, or give one with --kernel or \
             $NODEWISE_KERNEL (Debian's package linux-image-cloud-amd64 has one); looked for vmlinuz* in {}, and in /boot",
            places.join(", ")
        ),
    )
}

/// The kernel to boot: the one asked for, else the first of those found. A found one is booted from the
/// unpacked copy beside it, if there is one.
pub(crate) fn choose(asked: Option<&Path>, found: Vec<PathBuf>) -> Result<PathBuf, Error> {
    let found = || found.into_iter().next().map(|path| unpacked(&path).unwrap_or(path));
    let Some(path) = asked.map(Path::to_path_buf).or_else(found) else {
        return Err(no_kernel());
    };
    match std::fs::File::open(&path).and_then(|mut file| is_kernel(&mut file)) {
        Ok(true) => Ok(path),
        Ok(false) => {
            let message = format!("{} is no Linux kernel: expected a vmlinuz or vmlinux", path.display());
            Err(Error::new(ErrorKind::NotInstalled, message))
        }
        Err(error) => Err(Error::file(ErrorKind::NotInstalled, "open the guest's kernel", &path, error)),
    }
}

/// By its first bytes. It is an ELF file, or has x86's boot sector (`Documentation/arch/x86/boot.rst`). On
/// Arm it is an image (`Documentation/arch/arm64/booting.rst`), perhaps packed by gzip or such that EFI
/// unpacks it (`drivers/firmware/efi/libstub/Makefile.zboot`).
fn is_kernel(file: &mut std::fs::File) -> std::io::Result<bool> {
    let mut bytes = Vec::new();
    file.take(0x206).read_to_end(&mut bytes)?;
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    Ok(at(0, b"\x7fELF")
        || at(0, b"\x1f\x8b")
        || at(0x202, b"HdrS")
        || at(0x38, b"ARM\x64")
        || at(4, b"zimg"))
}

/// The `vmlinux` that `make setup` has unpacked beside a `vmlinuz`. An emulated CPU takes more than a second
/// to unpack one.
fn unpacked(kernel: &Path) -> Option<PathBuf> {
    let name = kernel.file_name()?.to_str()?.strip_prefix("vmlinuz")?;
    let unpacked = kernel.with_file_name(format!("vmlinux{name}"));
    unpacked.is_file().then_some(unpacked)
}

fn kernels_in(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("vmlinuz") && name.ends_with(ending)).collect();
    names.sort_by_cached_key(|name| Reverse(version(name)));
    names.into_iter().map(|name| directory.join(name)).collect()
}

/// The numbers in a name, so that 6.12 comes after 6.1.
fn version(name: &str) -> (Vec<u64>, String) {
    let numbers = name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
    (numbers.collect(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_newest_version_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "vmlinuz-6.1.0-9-cloud-amd64",
            "vmlinuz-6.12.9+deb12-cloud-amd64",
            "vmlinuz-6.1.0-50-cloud-amd64",
            "config-7",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let found = kernels_in(directory.path(), "cloud-amd64");
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "vmlinuz-6.12.9+deb12-cloud-amd64",
                "vmlinuz-6.1.0-50-cloud-amd64",
                "vmlinuz-6.1.0-9-cloud-amd64"
            ]
        );
    }

    #[test]
    fn an_unpacked_copy_is_booted_unless_another_kernel_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let kernels = || kernels_in(directory.path(), "");
        let [packed, copy, older] = ["vmlinuz-6.12-cloud", "vmlinux-6.12-cloud", "vmlinuz-6.1-cloud"]
            .map(|name| directory.path().join(name));
        for path in [&packed, &older] {
            fs::write(path, [&[0; 0x202][..], b"HdrS"].concat()).unwrap();
        }
        assert_eq!(choose(None, kernels()).unwrap(), packed);
        fs::write(&copy, b"\x7fELF").unwrap();
        assert_eq!(kernels(), [packed.clone(), older.clone()], "a copy is no kernel of its own");
        assert_eq!(choose(None, kernels()).unwrap(), copy);
        for asked in [packed, older] {
            assert_eq!(choose(Some(&asked), kernels()).unwrap(), asked);
        }
    }

    #[test]
    fn where_kernels_are_looked_for_is_said() {
        let message = no_kernel().to_string();
        for place in ["/.nodewise/kernels", "/var/lib/nodewise/kernels", "nodewise/kernels, ", "/boot"] {
            assert!(message.contains(place), "{message}");
        }
    }

    #[test]
    fn a_missing_kernel_is_named() {
        let error = choose(Some(Path::new("/no/such/vmlinuz")), kernels()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInstalled);
        assert_eq!(error.to_string(), "cannot open the guest's kernel /no/such/vmlinuz");
        for no_kernel in ["/etc/passwd", "/etc"] {
            let error = choose(Some(Path::new(no_kernel)), kernels()).unwrap_err().to_string();
            assert!(error.contains(no_kernel), "{error}");
        }
    }

    #[test]
    fn without_any_kernel_the_error_says_what_to_do() {
        let error = choose(None, Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInstalled);
        assert!(error.to_string().contains("make setup"), "{error}");
        assert!(error.to_string().contains("linux-image-cloud-amd64"), "{error}");
    }
}
