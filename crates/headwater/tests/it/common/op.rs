//! `headwater op`, as other people's tests call it.

use headwater::tensors::TensorFile;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

use headwater::core::Tensor;

/// The outputs, and the steps that ran on the host with their reasons; or what was printed as an error.
pub fn op(
    name: &str,
    device: &str,
    tensors: Vec<(&str, Tensor)>,
    args: &[String],
) -> Result<(TensorFile, Vec<String>), String> {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    let tensors = tensors.into_iter().map(|(n, t)| (n.to_string(), t)).collect();
    TensorFile { tensors, ..TensorFile::default() }.write(&input).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.args(["--json", "--device", device, "op", name, "--in"]).arg(&input).arg("--out").arg(&output);
    let done = command.args(args).output().unwrap();
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let host = report["host"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_string());
    Ok((TensorFile::read(&output).unwrap(), host.collect()))
}

/// Attributes as the command takes them.
pub fn attrs(list: &str) -> Vec<String> {
    list.split_whitespace().flat_map(|a| ["--attr".to_string(), a.to_string()]).collect()
}

/// The table of an operator: its tensors, and its cases.
pub fn table(name: &str) -> (TensorFile, Vec<Value>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../goldens/ops/{name}.safetensors"));
    let file = TensorFile::read(&path).unwrap();
    let cases = serde_json::from_str(&file.metadata["cases"]).unwrap();
    (file, cases)
}
