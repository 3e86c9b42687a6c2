//! The files of installed Debian packages, and of all that these depend on.

use crate::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The links that choose one of several programs for a name, and who administers them
/// (update-alternatives(1)).
const ALTERNATIVES: &str = "/var/lib/dpkg/alternatives";
const CHOSEN: &str = "/etc/alternatives";

/// Documentation and translations, which no service needs.
const LEFT_OUT: [&str; 7] = [
    "/usr/share/doc",
    "/usr/share/info",
    "/usr/share/lintian",
    "/usr/share/locale",
    "/usr/share/man",
    "/usr/share/bug",
    "/usr/include",
];

const FIELDS: &str =
    "${binary:Package}\t${db:Status-Status}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\n";

/// The files of these packages, of all that they depend on, and of the essential ones, on which nobody needs
/// to depend.
pub(crate) fn files(packages: &[String]) -> Result<BTreeSet<PathBuf>, Error> {
    let installed = Installed::parse(&query(&["-W", "-f", FIELDS])?);
    let names = installed.closure(packages)?;
    let mut arguments = vec!["-L"];
    arguments.extend(&names);
    let listing = query(&arguments)?;
    let mut files: BTreeSet<PathBuf> = listed(&listing).filter(|path| is_wanted(path)).collect();
    let links = fs::read_dir(ALTERNATIVES).into_iter().flatten().flatten();
    for entry in links.filter_map(|entry| fs::read(entry.path()).ok()) {
        for (name, link) in alternatives(&entry) {
            let chosen = Path::new(CHOSEN).join(name);
            if fs::read_link(&chosen).is_ok_and(|target| files.contains(&target)) {
                files.extend([chosen, link]);
            }
        }
    }
    Ok(files)
}

fn query(arguments: &[&str]) -> Result<Vec<u8>, Error> {
    let output = Command::new("dpkg-query").args(arguments).output().map_err(|error| {
        let message = format!("packages are Debian's, and dpkg-query cannot be run: {error}");
        Error::new(ErrorKind::NotInstalled, message)
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new(ErrorKind::NotInstalled, format!("dpkg-query: {why}")))
}

/// The paths of `dpkg-query -L`: other lines tell of diversions.
fn listed(listing: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = listing.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"/"));
    lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).filter(|path| path.as_os_str() != "/.")
}

fn is_wanted(path: &Path) -> bool {
    !LEFT_OUT.iter().any(|left_out| path.starts_with(left_out))
}

/// The names in `/etc/alternatives` of one group, and the links to these. The text has the group's state,
/// the link, then a name and a link for each slave, up to an empty line. The group's name is the link's last
/// part.
fn alternatives(group: &[u8]) -> Vec<(&OsStr, PathBuf)> {
    let mut lines = group.split(|&byte| byte == b'\n').map(OsStr::from_bytes);
    let Some(link) = lines.nth(1) else { return Vec::new() };
    let mut found: Vec<_> =
        Path::new(link).file_name().map(|name| (name, PathBuf::from(link))).into_iter().collect();
    while let (Some(name), Some(link)) = (lines.next().filter(|name| !name.is_empty()), lines.next()) {
        found.push((name, PathBuf::from(link)));
    }
    found
}

/// All packages of this machine.
#[derive(Debug, Default)]
struct Installed {
    /// By name, and by what they provide: the package, and alternatives for each of its dependencies.
    packages: BTreeMap<String, String>,
    depends: BTreeMap<String, Vec<Vec<String>>>,
    essential: Vec<String>,
}

impl Installed {
    fn parse(text: &[u8]) -> Self {
        let mut all = Self::default();
        let text = String::from_utf8_lossy(text);
        let mut offers = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [package, "installed", essential, depends, provides] = fields[..] else { continue };
            let name = bare(package);
            all.packages.insert(name.to_owned(), package.to_owned());
            let offered = provides.split(',').map(bare).filter(|name| !name.is_empty());
            offers.extend(offered.map(|name| (name.to_owned(), package.to_owned())));
            if essential == "yes" {
                all.essential.push(name.to_owned());
            }
            let alternatives = |group: &str| group.split('|').map(|name| bare(name).to_owned()).collect();
            all.depends.insert(package.to_owned(), depends.split(',').map(alternatives).collect());
        }
        for (name, package) in offers {
            all.packages.entry(name).or_insert(package);
        }
        all
    }

    /// These, and all that they depend on. The first that is there is taken of several that would do.
    fn closure(&self, packages: &[String]) -> Result<BTreeSet<&str>, Error> {
        let mut found = BTreeSet::new();
        let mut left = Vec::new();
        for name in packages {
            let package = self.packages.get(name).ok_or_else(|| {
                let advice = format!("apt-get install {name}");
                Error::new(ErrorKind::NotInstalled, format!("package {name} is not installed here: {advice}"))
            })?;
            left.push(package.as_str());
        }
        left.extend(self.essential.iter().filter_map(|name| self.packages.get(name)).map(String::as_str));
        while let Some(package) = left.pop() {
            if found.insert(package) {
                let groups = self.depends.get(package).into_iter().flatten();
                left.extend(groups.filter_map(|group| {
                    group.iter().find_map(|name| self.packages.get(name)).map(String::as_str)
                }));
            }
        }
        Ok(found)
    }
}

/// `libc6:amd64 (>= 2.34)` is libc6.
fn bare(name: &str) -> &str {
    let name = name.trim();
    name.split([' ', '(', ':', '[']).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"a\tinstalled\t\t, b (>= 2) | c, d:any\t\n\
        c:amd64\tinstalled\t\tlibc6 (>= 2.34), \t\n\
        b\tnot-installed\t\t, \t\n\
        e\tinstalled\t\t, a\td (= 1), x\n\
        libc6:amd64\tinstalled\t\t, \t\n\
        tar\tinstalled\tyes\tlibc6, \t\n\
        other\tinstalled\t\t, \t\n";

    #[test]
    fn packages_bring_what_they_depend_on() {
        let installed = Installed::parse(TEXT);
        let closure = |name: &str| installed.closure(&[name.to_owned()]);
        assert_eq!(closure("a").unwrap(), BTreeSet::from(["a", "c:amd64", "e", "libc6:amd64", "tar"]));
        assert_eq!(closure("other").unwrap(), BTreeSet::from(["libc6:amd64", "other", "tar"]));
        let error = closure("b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInstalled);
        assert_eq!(error.to_string(), "package b is not installed here: apt-get install b");
    }

    #[test]
    fn this_machines_own_packages_are_read() {
        let files = files(&["busybox-static".to_owned()]).unwrap();
        assert!(files.iter().any(|path| path.ends_with("bin/busybox")), "{files:?}");
        assert!(files.iter().any(|path| path.ends_with("bin/tar")), "tar is essential");
        assert!(files.iter().all(|path| !path.starts_with("/usr/share/doc")));
    }

    #[test]
    fn a_group_of_alternatives_has_a_link_and_slaves() {
        let group =
            b"auto\n/usr/bin/java\njava.1.gz\n/usr/share/man/man1/java.1.gz\n\n/usr/lib/jvm/java\n1711\n";
        let names: Vec<_> = alternatives(group);
        let expected = [("java", "/usr/bin/java"), ("java.1.gz", "/usr/share/man/man1/java.1.gz")];
        assert_eq!(names, expected.map(|(name, link)| (OsStr::new(name), PathBuf::from(link))));
        assert!(alternatives(b"auto").is_empty());
    }
}
