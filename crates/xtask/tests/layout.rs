//! All crates have one layout of modules, tests and imports, so that a reader who knows one knows the others.

use std::path::{Path, PathBuf};

/// Sources and tests of all crates.
fn sources() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(path);
            }
        }
    }
    assert!(sources.len() > 100, "{}", sources.len());
    sources
}

fn in_src(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "src")
}

/// Lines at which an import follows another after a blank line.
fn gaps(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let is_import = |line: &str| line.trim_start().starts_with("use ");
    // A list's end belongs to the line that opens it.
    let opener = |end: usize| match lines[end].trim() {
        "};" => lines[..end].iter().rev().find(|line| line.ends_with('{')).copied().unwrap_or(""),
        line => line,
    };
    let follows = |&index: &usize| {
        index >= 2 && is_import(lines[index]) && lines[index - 1].is_empty() && is_import(opener(index - 2))
    };
    (0..lines.len()).filter(follows).map(|index| index + 1).collect()
}

#[test]
fn imports_stand_in_one_block_which_rustfmt_sorts() {
    assert_eq!(gaps("use std::fmt;\n\nuse crate::{\n    A,\n    B,\n};\n\nuse c::D;\n\nfn f() {}\n"), [3, 8]);
    assert_eq!(gaps("mod a;\n\nuse crate::B;\nuse std::fmt;\n\npub use c::D;\n"), [0; 0]);
    for path in sources() {
        let gaps = gaps(&std::fs::read_to_string(&path).unwrap());
        assert!(gaps.is_empty(), "{}: lines {gaps:?} follow a gap between imports", path.display());
    }
}

#[test]
fn every_module_says_at_its_head_what_it_is() {
    for path in sources().into_iter().filter(|path| in_src(path) && !path.ends_with("tests.rs")) {
        let source = std::fs::read_to_string(&path).unwrap();
        let has_head = source.starts_with("//!") || path.ends_with("loom_tests.rs");
        assert!(has_head, "{}", path.display());
    }
}

#[test]
fn a_module_with_files_of_its_own_is_a_folder_with_its_mod_rs() {
    for path in sources().into_iter().filter(|path| in_src(path)) {
        assert!(!path.with_extension("").is_dir(), "{} belongs into its folder as mod.rs", path.display());
    }
}

#[test]
fn tests_are_in_their_module_or_in_its_tests_rs() {
    for path in sources().into_iter().filter(|path| in_src(path)) {
        let name = path.file_name().unwrap().to_str().unwrap();
        // Loom's models are built for themselves.
        assert!(!name.ends_with("_tests.rs") || name == "loom_tests.rs", "{}", path.display());
        let source = std::fs::read_to_string(&path).unwrap();
        assert!(!source.contains(concat!("#[", "path")), "{} takes a module from elsewhere", path.display());
    }
}
