//! `nodewise sim`, as the tests of this directory run it.

#![allow(dead_code, reason = "each test file uses its part")]

use assert_cmd::Command;
use serde_json::Value;

/// A run of a moment.
pub const RUN: [&str; 7] =
    ["run", "--machine", "opteron-8385-4n", "--workload", "streamcluster", "--scale", "0.001"];

/// Status, output and errors.
pub fn sim(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("nodewise").unwrap().arg("sim").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The output as JSON.
pub fn json(arguments: &[&str]) -> Value {
    let (code, text, error) = sim(&[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    serde_json::from_str(&text).unwrap()
}
