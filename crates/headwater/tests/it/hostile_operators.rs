//! `headwater op` on arguments that request unbounded work or memory. A message names the argument, in a
//! process that may claim 4 GiB.
#![cfg(target_os = "linux")]

use headwater::core::{DType, Tensor, TensorType};
use headwater::tensors::TensorFile;
use std::process::{Command, Stdio};

/// The message of an operator on tensors of these names and shapes, which must be refused.
fn refused(name: &str, tensors: &[(&str, &[usize])], attrs: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    let ones = |shape: &[usize]| Tensor::full(&TensorType::new(DType::F32, shape.to_vec()), 1.0);
    let tensors = tensors.iter().map(|(name, shape)| (name.to_string(), ones(shape))).collect();
    TensorFile { tensors, ..TensorFile::default() }.write(&input).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 4194304 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_headwater")]);
    command.args(["op", name, "--threads", "1", "--in"]).arg(&input).arg("--out").arg(&output);
    attrs.iter().for_each(|a| _ = command.args(["--attr", a]));
    let done = command.env_remove("RUST_BACKTRACE").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    // A panic ends with 101, an allocation that fails with a signal.
    assert_eq!(done.status.code(), Some(1), "{name} {attrs:?}: {said}");
    assert!(!output.exists(), "{name} {attrs:?} has written a result");
    said
}

#[test]
fn a_list_of_tensors_is_as_long_as_what_is_given() {
    // Each number below the last would be an element of the list; the second wraps around if one is added.
    for last in ["99999999999", "18446744073709551615"] {
        let named = format!("tensors.{last}");
        let said = refused("cat", &[("tensors.0", &[4]), (&named, &[4])], &[]);
        assert!(said.contains(&format!("`{named}` is given, but not all of the {last} before it")), "{said}");
    }
}

#[test]
fn endless_rows_without_columns_are_refused() {
    let said = refused("reshape", &[("self", &[0])], &["shape=4611686018427387904,0"]);
    assert!(said.contains("HW-C009: reshape: result f32[4611686018427387904, 0]"), "{said}");
    assert!(said.contains("larger than memory can be"), "{said}");
}

#[test]
fn padding_beyond_32_bits_is_refused_before_windows_are_planned() {
    let tensors: [(&str, &[usize]); 2] = [("input", &[1, 1, 2, 2]), ("weight", &[1, 1, 1, 1])];
    for (padding, code, named) in [
        ("2147483648,2147483648", "HW-C003: convolution", "`padding` = [2147483648, 2147483648]"),
        ("9223372036854775807,0", "HW-C003: convolution", "`padding` = [9223372036854775807, 0]"),
        ("2147483647,2147483647", "HW-C009: convolution", "f32[1, 1, 4294967296, 4294967296]"),
    ] {
        let said = refused("convolution", &tensors, &[&format!("padding={padding}")]);
        assert!(said.contains(code) && said.contains(named), "{said}");
    }
}
