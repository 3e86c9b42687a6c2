//! Finds a program as a shell would, and what it needs beside itself: its interpreter and its libraries.

use crate::elf::Elf;
use crate::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The path of `program`: itself where it holds a slash, else the first executable of that name in PATH.
pub(crate) fn find(program: &OsStr, directory: &Path) -> Result<PathBuf, Error> {
    let path = if program.as_bytes().contains(&b'/') {
        directory.join(program)
    } else {
        in_path(program).ok_or_else(|| {
            Error::new(
                ErrorKind::ProgramNotFound,
                format!("{}: not found in PATH", Path::new(program).display()),
            )
        })?
    };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::new(ErrorKind::ProgramNotExecutable, format!("{}: is a directory", path.display())))
        }
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
            Err(Error::new(ErrorKind::ProgramNotExecutable, format!("{}: is not executable", path.display())))
        }
        Ok(_) => Ok(path),
        Err(error) => Err(Error::file(ErrorKind::ProgramNotFound, "find", &path, error)),
    }
}

fn in_path(program: &OsStr) -> Option<PathBuf> {
    let executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| executable(path))
}

/// The files that a file needs beside itself to be executed, as absolute paths. Data needs none, a script its
/// interpreter, and a program or a library the dynamic loader and all libraries. Nothing of the file is run.
pub(crate) fn needs(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |error| Error::file(ErrorKind::Unreadable, "read", path, error);
    let mut start = Vec::new();
    File::open(path).and_then(|file| file.take(4 << 10).read_to_end(&mut start)).map_err(unreadable)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return Ok(script_needs(line));
    }
    // A static program needs nothing; a library has no interpreter, and that of this machine loads it.
    let Some(elf) = Elf::read(path).map_err(unreadable)? else { return Ok(Vec::new()) };
    let loader = elf.interpreter.clone().unwrap_or_else(|| PathBuf::from("/lib64/ld-linux-x86-64.so.2"));
    if !(loader.is_absolute() && loader.is_file()) {
        return Ok(Vec::new());
    }
    libraries(path, elf, loader)
}

/// The loader and the libraries, which are looked for where the loader looks, see ld.so(8).
fn libraries(program: &Path, elf: Elf, loader: PathBuf) -> Result<Vec<PathBuf>, Error> {
    let is_program = elf.interpreter.is_some();
    let is_musl = loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl-"));
    // The loader is a library that every program has.
    let mut named: BTreeSet<OsString> = loader.file_name().into_iter().map(OsStr::to_owned).collect();
    let from_environment = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let from_environment: Vec<PathBuf> =
        env::split_paths(&from_environment).filter(|directory| directory.is_absolute()).collect();
    let mut found = vec![loader];
    // Each with the DT_RPATH of those that need it.
    let mut left = VecDeque::from([(program.to_owned(), elf, Vec::new())]);
    while let Some((path, elf, inherited)) = left.pop_front() {
        let directories = |list: &Option<OsString>| expand(list.as_deref().unwrap_or_default(), &path);
        let rpath = match elf.runpath {
            Some(_) => Vec::new(),
            None => [directories(&elf.rpath), inherited].concat(),
        };
        let before = [&rpath[..], &from_environment, &directories(&elf.runpath)].concat();
        for name in elf.needed {
            let of_musl = is_musl && name.as_bytes().starts_with(b"libc.");
            if of_musl || !named.insert(name.clone()) {
                continue;
            }
            let Some((library, needs)) = find_library(&name, &before, is_musl) else {
                if is_program {
                    let (path, name) = (path.display(), Path::new(&name).display());
                    let why = format!("{path}: needs {name}, which is not found");
                    return Err(Error::new(ErrorKind::ProgramNotExecutable, why));
                }
                continue;
            };
            // glibc loads this one only when a thread is cancelled, and aborts where it is missing.
            let unwinder = library.with_file_name("libgcc_s.so.1");
            if name == "libc.so.6" && unwinder.exists() {
                found.push(unwinder);
            }
            found.push(library.clone());
            left.push_back((library, needs, rpath.clone()));
        }
    }
    Ok(found)
}

/// The directories of a `DT_RPATH` or `DT_RUNPATH` in this file.
fn expand(list: &OsStr, path: &Path) -> Vec<PathBuf> {
    let origin = path.parent().unwrap_or(Path::new("/"));
    let all = env::split_paths(list).map(|directory| {
        let directory = directory.to_string_lossy().replace("${", "$").replace('}', "");
        let directory = directory.replace("$LIB", "lib/x86_64-linux-gnu").replace("$PLATFORM", "x86_64");
        match directory.strip_prefix("$ORIGIN") {
            Some(below) => origin.join(below.trim_start_matches('/')),
            None => PathBuf::from(directory),
        }
    });
    all.filter(|directory| directory.is_absolute()).collect()
}

/// The first library of that name in these directories, or else in the loader's own.
fn find_library(name: &OsStr, before: &[PathBuf], is_musl: bool) -> Option<(PathBuf, Elf)> {
    const GLIBC: [&str; 6] =
        ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
    const MUSL: [&str; 3] = ["/lib", "/usr/local/lib", "/usr/lib"];
    // A pipe would be waited for.
    let loadable = |path: PathBuf| {
        let elf = path.is_file().then(|| Elf::read(&path).ok().flatten()).flatten();
        elf.map(|elf| (path, elf))
    };
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).is_absolute().then(|| loadable(name.into())).flatten();
    }
    let (cached, own) = if is_musl { (None, &MUSL[..]) } else { (cache().get(name).cloned(), &GLIBC[..]) };
    let before = before.iter().map(|directory| directory.join(name));
    let own = own.iter().map(|directory| Path::new(directory).join(name));
    before.chain(cached).chain(own).find_map(loadable)
}

/// Libraries in directories of `/etc/ld.so.conf`, by name.
fn cache() -> &'static BTreeMap<OsString, PathBuf> {
    static CACHE: OnceLock<BTreeMap<OsString, PathBuf>> = OnceLock::new();
    CACHE.get_or_init(|| fs::read("/etc/ld.so.cache").map_or(BTreeMap::new(), |file| cached(&file)))
}

/// Reads ldconfig's file (`sysdeps/generic/dl-cache.h`, glibc 2.36): a header, entries, and the strings that
/// they point to.
fn cached(file: &[u8]) -> BTreeMap<OsString, PathBuf> {
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    const X86_64: u32 = 0x0303;
    let number = |at: usize| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let string = |at: u32| file.get(at as usize..)?.split(|&byte| byte == 0).next().map(OsStr::from_bytes);
    let mut libraries = BTreeMap::new();
    let count = number(20).filter(|_| file.starts_with(b"glibc-ld.so.cache1.1")).unwrap_or(0);
    for at in (0..count as usize).map(|index| HEADER + index * ENTRY) {
        let read =
            || Some((number(at)?, string(number(at + 4)?)?, string(number(at + 8)?)?, number(at + 20)?));
        // Links for some CPUs only are there for all, too.
        match read() {
            Some((X86_64, name, path, 0)) => {
                libraries.entry(name.to_owned()).or_insert_with(|| PathBuf::from(path));
            }
            Some(_) => {}
            None => break,
        }
    }
    libraries
}

/// `#!/usr/bin/env python3` needs both env and what it is to find.
fn script_needs(line: &[u8]) -> Vec<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words =
        line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let Some(interpreter) = words.next().map(PathBuf::from) else { return Vec::new() };
    let found = match words.next() {
        Some(name) if interpreter.ends_with("env") => in_path(name),
        _ => None,
    };
    [Some(interpreter), found]
        .into_iter()
        .flatten()
        .filter(|path| path.is_absolute() && path.exists())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf;

    #[test]
    fn this_test_needs_libc_and_the_loader() {
        let needed = needs(&env::current_exe().unwrap()).unwrap();
        let has = |name: &str| needed.iter().any(|path| path.file_name() == Some(OsStr::new(name)));
        assert!(has("libc.so.6") && has("ld-linux-x86-64.so.2") && has("libgcc_s.so.1"), "{needed:?}");
    }

    #[test]
    fn scripts_need_their_interpreter() {
        assert_eq!(script_needs(b"! /bin/sh -e\n"), [] as [PathBuf; 0]);
        assert_eq!(script_needs(b" /bin/sh -e\nls"), [PathBuf::from("/bin/sh")]);
        let via_env = script_needs(b"/usr/bin/env sh\n");
        assert_eq!(via_env.len(), 2);
        assert!(via_env[1].ends_with("sh"));
    }

    #[test]
    fn static_programs_and_data_need_nothing() {
        assert_eq!(needs(Path::new("/bin/busybox")).unwrap(), [] as [PathBuf; 0]);
        assert_eq!(needs(Path::new("/etc/os-release")).unwrap(), [] as [PathBuf; 0]);
    }

    #[test]
    fn libraries_are_those_that_the_loader_lists() {
        let mut seen = 0;
        for program in ["/usr/bin/env", "/usr/bin/perl", "/usr/bin/git", "/bin/bash"].map(Path::new) {
            let Ok(program) = program.canonicalize() else { continue };
            let ours: BTreeSet<_> =
                needs(&program).unwrap().iter().map(|path| path.canonicalize().unwrap()).collect();
            let listing = std::process::Command::new("/lib64/ld-linux-x86-64.so.2")
                .arg("--list")
                .arg(&program)
                .output()
                .unwrap();
            let listing = String::from_utf8(listing.stdout).unwrap();
            for line in listing.lines().filter(|line| line.contains(" (0x") && line.contains('/')) {
                let path = line.split(" (0x").next().unwrap().rsplit(" => ").next().unwrap().trim();
                assert!(ours.contains(&Path::new(path).canonicalize().unwrap()), "{line}: {ours:?}");
                seen += 1;
            }
        }
        assert!(seen > 4);
    }

    /// As `gcc -Wl,--dynamic-linker=evil` makes one.
    #[test]
    fn the_loader_that_a_file_names_is_not_run() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let [evil, ran, hostile] = ["evil", "ran", "hostile"].map(|name| directory.path().join(name));
        fs::write(&evil, format!("#!/bin/sh\n: >{}\n", ran.display())).unwrap();
        fs::set_permissions(&evil, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&hostile, elf::tests::program(evil.to_str().unwrap(), "libc.so.6", "")).unwrap();
        let needed = needs(&hostile).unwrap();
        assert!(
            needed.contains(&evil) && needed.iter().any(|path| path.ends_with("libc.so.6")),
            "{needed:?}"
        );
        assert!(!ran.exists());
    }

    #[test]
    fn libraries_beside_a_program_and_such_as_are_missing() {
        let directory = tempfile::tempdir().unwrap();
        let bundled = directory.path().join("lib");
        fs::create_dir(&bundled).unwrap();
        let program = directory.path().join("program");
        let file = elf::tests::program("/lib64/ld-linux-x86-64.so.2", "libx.so", "/nowhere:${ORIGIN}/lib");
        fs::write(&program, &file).unwrap();
        let error = needs(&program).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ProgramNotExecutable);
        assert!(error.to_string().ends_with("program: needs libx.so, which is not found"), "{error}");
        fs::write(bundled.join("libx.so"), file).unwrap();
        assert!(needs(&program).unwrap().contains(&bundled.join("libx.so")));
    }

    #[test]
    fn no_cache_panics() {
        let file = fs::read("/etc/ld.so.cache").unwrap();
        assert!(cached(&file).contains_key(OsStr::new("libc.so.6")));
        for length in [0, 20, 21, 47, 48, 71, 72, 100, file.len() / 2] {
            cached(&file[..length]);
        }
    }

    #[test]
    fn errors_say_what_is_wrong_with_the_program() {
        let kind = |program: &str| find(OsStr::new(program), Path::new("/")).unwrap_err().kind();
        assert_eq!(kind("no-such-program-anywhere"), ErrorKind::ProgramNotFound);
        assert_eq!(kind("./no/such/program"), ErrorKind::ProgramNotFound);
        assert_eq!(kind("/etc"), ErrorKind::ProgramNotExecutable);
        assert_eq!(kind("/etc/os-release"), ErrorKind::ProgramNotExecutable);
    }
}
