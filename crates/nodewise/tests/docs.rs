//! Everything that the documentation points to is there: files, make's targets, packages and their tests.
//! Commands that a user is to type are parsed by the command line's own tests (`src/main.rs`).

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages that are written for readers, with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let named = [
        "README.md",
        "CONTRIBUTING.md",
        "RELEASE.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "crates/c/examples/README.md",
        "crates/runtime/examples/README.md",
        "crates/topology/testdata/sysfs/README.md",
    ];
    below(&root().join("docs"))
        .into_iter()
        .chain(named.iter().map(|name| root().join(name)))
        .map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap()))
        .collect()
}

/// All pages in a directory and below it.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(below(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// The pages that speak of today, as a diary does not.
fn current_pages() -> impl Iterator<Item = (PathBuf, String)> {
    let journal = root().join("docs/journal");
    pages().into_iter().filter(move |(path, _)| !path.starts_with(&journal))
}

/// The text between two marks on one line each.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().flat_map(move |line| {
        line.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
    })
}

/// Code in backquotes: every second piece of a paragraph, which may go over the end of a line.
fn codes(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split("\n\n")
        .filter(|paragraph| !paragraph.contains("```"))
        .flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " ")))
}

#[test]
fn pages_are_found_at_every_depth() {
    let docs = root().join("docs");
    let depths =
        pages().into_iter().filter_map(|(path, _)| Some(path.strip_prefix(&docs).ok()?.iter().count()));
    assert!(depths.max() >= Some(2), "docs has folders");
    assert!(current_pages().count() < pages().len(), "the journal is no page of today");
}

#[test]
fn links_lead_somewhere() {
    for (page, text) in pages() {
        for target in
            between(&text, "](", ")").filter(|target| !target.starts_with("http") && !target.contains(' '))
        {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            assert!(anchor.is_empty(), "{}: {target}: anchors are not checked", page.display());
            assert!(page.parent().unwrap().join(file).exists(), "{}: {target}", page.display());
        }
    }
}

#[test]
fn files_that_are_named_are_there() {
    for (page, text) in current_pages() {
        for code in codes(&text) {
            let rooted = ["crates/", "docs/", "scripts/", "fuzz/"].iter().any(|part| code.starts_with(part));
            // Not a command, nor a pattern.
            if rooted && !code.contains([' ', '*', '{']) {
                assert!(root().join(&code).exists(), "{}: {code}", page.display());
            }
        }
    }
}

/// The part of CONTRIBUTING.md that leads from a task to its files.
fn map() -> String {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let (_, map) = text.split_once("## From a task to its files\n").unwrap();
    map.split_once("\n## ").unwrap().0.to_owned()
}

/// Whether a source, or one of a folder, defines this: `enum Policy`, `Place::live`, `jobs`.
fn defines(path: &Path, name: &str) -> bool {
    if path.is_dir() {
        let mut entries = path.read_dir().unwrap().map(|entry| entry.unwrap().path());
        return entries.any(|entry| defines(&entry, name));
    }
    let keywords = ["fn", "enum", "struct", "trait", "const"];
    let Some((name, source)) = name.rsplit([' ', ':']).next().zip(std::fs::read_to_string(path).ok()) else {
        return false;
    };
    source.lines().any(|line| {
        let words: Vec<&str> = line.split(|c: char| c != '_' && !c.is_alphanumeric()).collect();
        words.windows(2).any(|pair| keywords.contains(&pair[0]) && pair[1] == name)
    })
}

#[test]
fn the_map_from_tasks_to_files_is_true() {
    let map = map();
    let is_source = |code: &str| Path::new(code).extension().is_some_and(|extension| extension == "rs");
    let mut seen = 0;
    let mut check = |path: &Path, name: &str| {
        assert!(defines(path, name), "{} has no {name}", path.display());
        seen += 1;
    };
    let rows = map.lines().filter(|line| line.starts_with("| ") && line.matches('|').count() == 4);
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        let Some(path) = codes(cells[2]).next() else { continue };
        let krate: PathBuf = Path::new(&path).iter().take(2).collect();
        let path = root().join(&path);
        let listed: Vec<String> = codes(cells[3]).filter(|code| !code.starts_with("cargo ")).collect();
        for (at, name) in listed.iter().enumerate().filter(|(_, code)| !is_source(code)) {
            // `name` in `file`, which is below the path or in its crate.
            let place = listed.get(at + 1).filter(|code| is_source(code)).map(|file| {
                let [below, in_crate] = [path.join(file), root().join(&krate).join(file)];
                if below.exists() { below } else { in_crate }
            });
            check(place.as_ref().unwrap_or(&path), name);
        }
    }
    // `name` (`file`)
    let text = map.split_whitespace().collect::<Vec<_>>().join(" ");
    let pieces: Vec<&str> = text.split('`').collect();
    for named in pieces.windows(3).filter(|three| three[1] == " (") {
        check(&root().join(named[2]), named[0]);
    }
    assert!(seen > 15, "only {seen} names were found");
}

#[test]
fn targets_that_are_named_are_there() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut seen = 0;
    for (page, text) in current_pages() {
        for command in
            codes(&text).chain(text.lines().filter_map(|line| Some(line.strip_prefix("    ")?.to_owned())))
        {
            let words: Vec<&str> = command.split_whitespace().take_while(|&word| word != "#").collect();
            match words[..] {
                ["make", target, ..] => {
                    let there = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
                    assert!(there, "{}: {command}", page.display());
                    seen += 1;
                }
                ["cargo", ..] => {
                    seen += usize::from(is_there(&words, &format!("{}: {command}", page.display())));
                }
                _ => {}
            }
        }
    }
    assert!(seen > 10, "only {seen} commands were found");
}

/// Checks the package of a cargo command, and its test or bench.
fn is_there(words: &[&str], place: &str) -> bool {
    let after = |option: &str| words.iter().skip_while(|&&word| word != option).nth(1).copied();
    let Some(package) = after("-p") else { return false };
    let directory = match package.strip_prefix("nodewise-") {
        Some(name) => root().join("crates").join(name),
        None => root().join("crates").join(package),
    };
    assert!(directory.join("Cargo.toml").exists(), "{place}");
    for (option, folder) in [("--test", "tests"), ("--bench", "benches"), ("--bin", "src/bin")] {
        if let Some(name) = after(option) {
            let sources = [format!("{name}.rs"), format!("{name}/main.rs")];
            assert!(sources.iter().any(|source| directory.join(folder).join(source).exists()), "{place}");
        }
    }
    if let Some(name) = after("--example").filter(|&name| name != "NAME") {
        let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        let named = manifest.contains(&format!("name = \"{name}\""));
        assert!(named || directory.join(format!("examples/{name}.rs")).exists(), "{place}");
    }
    true
}
