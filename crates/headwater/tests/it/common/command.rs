//! The program as its users run it, and files for it.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A file of the tests, or of an example.
pub fn file(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = root.join("tests/newcomer").join(name);
    let found = if own.exists() { own } else { root.join("../../examples/digits-vit").join(name) };
    found.to_str().unwrap().to_string()
}

/// Exit status, standard output, standard error.
pub fn headwater(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ");
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The JSON of a command that must be done.
pub fn json(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).arg("--json").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
