//! Gives the shared library its soname: while the major version is 0, each minor version has an ABI of its
//! own.
#![forbid(unsafe_code)]

fn main() {
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let soname = match version("MAJOR").as_str() {
        "0" => format!("libnodewise.so.0.{}", version("MINOR")),
        major => format!("libnodewise.so.{major}"),
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo:rerun-if-changed=build.rs");
}
