//! The sources are Rust 1.85's, which Debian 13 has. Clippy knows what of the library is newer
//! (`incompatible_msrv`), but not what of the syntax.

use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// All of Cargo's workspace, and what is to be fuzzed.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("crates"), root.join("fuzz")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(path);
            }
        }
    }
    sources
}

/// Conditions in which a `let` is joined to others: Rust 1.88's.
#[derive(Default)]
struct LetChains(usize);

impl<'ast> Visit<'ast> for LetChains {
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let is_let = |side: &syn::Expr| matches!(side, syn::Expr::Let(_));
        self.0 += usize::from(is_let(&binary.left) || is_let(&binary.right));
        syn::visit::visit_expr_binary(self, binary);
    }
}

fn let_chains(source: &str) -> usize {
    let mut chains = LetChains::default();
    chains.visit_file(&syn::parse_file(source).unwrap());
    chains.0
}

#[test]
fn sources_have_no_let_chains() {
    assert_eq!(let_chains("fn f() { if let Some(1) = a() && b() {} while c() && let d = e() {} }"), 2);
    let sources = sources();
    assert!(sources.len() > 100, "{}", sources.len());
    for path in sources {
        assert_eq!(let_chains(&std::fs::read_to_string(&path).unwrap()), 0, "{}", path.display());
    }
}
