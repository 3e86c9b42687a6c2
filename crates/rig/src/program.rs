//! Finds a program as a shell would, and what it needs beside itself: its interpreter and its libraries.

use crate::{Error, ErrorKind};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// What a file needs beside itself to be executed, as absolute paths: nothing for data, its interpreter
/// for a script, the dynamic loader and all libraries for a program or a library.
pub(crate) fn needs(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |error| Error::file(ErrorKind::Unreadable, "read", path, error);
    let mut start = Vec::new();
    File::open(path).and_then(|file| file.take(64 << 10).read_to_end(&mut start)).map_err(unreadable)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return Ok(script_needs(line));
    }
    if !start.starts_with(b"\x7fELF") {
        return Ok(Vec::new());
    }
    // A static program needs nothing; a library has no interpreter, and that of this machine loads it.
    let loader = match interpreter(&start) {
        Elf::Program(loader) => loader,
        Elf::Library => PathBuf::from("/lib64/ld-linux-x86-64.so.2"),
        Elf::Static => return Ok(Vec::new()),
    };
    if !loader.exists() {
        return Ok(Vec::new());
    }
    let listing = list_libraries(&loader, path)?;
    let mut needed = vec![loader];
    for line in listing.split(|&byte| byte == b'\n') {
        if let Some(library) = library_of(line) {
            // glibc loads this one only when a thread is cancelled, and aborts where it is missing.
            let unwinder = library.with_file_name("libgcc_s.so.1");
            if library.file_name() == Some(OsStr::new("libc.so.6")) && unwinder.exists() {
                needed.push(unwinder);
            }
            needed.push(library);
        }
    }
    Ok(needed)
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

/// The loader resolves names exactly as it will when the program runs, search paths in the files included.
fn list_libraries(loader: &Path, path: &Path) -> Result<Vec<u8>, Error> {
    let output = Command::new(loader).arg("--list").arg(path).env_remove("LD_PRELOAD").output();
    let output = output.map_err(|error| Error::file(ErrorKind::System, "run", loader, error))?;
    // Programs and libraries that are dynamic in form but need nothing, static-pie for one.
    if output.status.success() || output.stderr.windows(10).any(|words| words == b"statically") {
        return Ok(output.stdout);
    }
    let why = String::from_utf8_lossy(&output.stderr); // names the file and the library
    let why = why.lines().next().unwrap_or("the dynamic loader refuses it").trim().to_owned();
    Err(Error::new(ErrorKind::ProgramNotExecutable, why))
}

/// The path in a line such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)`.
fn library_of(line: &[u8]) -> Option<PathBuf> {
    let line = line.trim_ascii();
    let path = match line.windows(4).position(|arrow| arrow == b" => ") {
        Some(at) => &line[at + 4..],
        None => line,
    };
    let end = path.windows(3).rposition(|address| address == b" (0")?;
    path.starts_with(b"/").then(|| PathBuf::from(OsString::from_vec(path[..end].to_vec())))
}

enum Elf {
    Program(PathBuf),
    Library,
    Static,
}

/// Reads `PT_INTERP` and `PT_DYNAMIC` out of the first part of an x86-64 ELF file, see elf(5). What is not
/// one, or is cut short, counts as static: it is copied as it is.
fn interpreter(file: &[u8]) -> Elf {
    fn number<const BYTES: usize>(file: &[u8], at: usize) -> Option<usize> {
        let mut value = [0; 8];
        value[..BYTES].copy_from_slice(file.get(at..at.checked_add(BYTES)?)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    }
    const PT_DYNAMIC: usize = 2;
    const PT_INTERP: usize = 3;
    let read = || {
        if file.get(4..6)? != [2, 1] || number::<2>(file, 18)? != 62 {
            return None; // not 64 bits, little endian, EM_X86_64
        }
        let (table, size, count) = (number::<8>(file, 32)?, number::<2>(file, 54)?, number::<2>(file, 56)?);
        let mut elf = Elf::Static;
        for at in (0..count).map(|i| table.checked_add(i * size)) {
            let at = at?;
            match number::<4>(file, at)? {
                PT_INTERP => {
                    let (offset, length) = (number::<8>(file, at + 8)?, number::<8>(file, at + 32)?);
                    let name = file.get(offset..offset.checked_add(length)?)?.strip_suffix(b"\0")?;
                    return Some(Elf::Program(PathBuf::from(OsStr::from_bytes(name))));
                }
                PT_DYNAMIC => elf = Elf::Library,
                _ => {}
            }
        }
        Some(elf)
    };
    read().unwrap_or(Elf::Static)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn libraries_in_the_loaders_words() {
        let line = b"\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0000000000)";
        assert_eq!(library_of(line), Some(PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6")));
        assert_eq!(
            library_of(b"\t/lib64/ld-linux-x86-64.so.2 (0x0000)"),
            Some("/lib64/ld-linux-x86-64.so.2".into())
        );
        assert_eq!(library_of(b"\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(library_of(b"\tlibx.so => not found"), None);
    }

    #[test]
    fn errors_say_what_is_wrong_with_the_program() {
        let kind = |program: &str| find(OsStr::new(program), Path::new("/")).unwrap_err().kind();
        assert_eq!(kind("no-such-program-anywhere"), ErrorKind::ProgramNotFound);
        assert_eq!(kind("./no/such/program"), ErrorKind::ProgramNotFound);
        assert_eq!(kind("/etc"), ErrorKind::ProgramNotExecutable);
        assert_eq!(kind("/etc/os-release"), ErrorKind::ProgramNotExecutable);
    }

    proptest! {
        #[test]
        fn no_file_panics(mut file in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = interpreter(&file);
            for (byte, header) in file.iter_mut().zip([0x7f, b'E', b'L', b'F', 2, 1]) {
                *byte = header;
            }
            if file.len() > 20 {
                file[18] = 62;
                file[19] = 0;
            }
            let _ = interpreter(&file);
        }
    }
}
