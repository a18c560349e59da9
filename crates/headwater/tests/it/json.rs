//! `docs/json.md`: results of commands have the keys that it documents, of the types it states. Keys of a
//! migration are compared in `migrate.rs`.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Keys and types of the tables in the section of a command.
pub fn tables(page: &str, command: &str) -> Vec<Vec<(String, String)>> {
    let head = format!("`headwater {command} --json`");
    let section = page.split("\n## ").find(|s| s.starts_with(&head));
    let mut tables: Vec<Vec<(String, String)>> = Vec::new();
    let mut inside = false;
    for line in section.unwrap_or_else(|| panic!("no section {head}")).lines() {
        if line.starts_with('|') && !inside {
            tables.push(Vec::new());
        }
        inside = line.starts_with('|');
        let cells: Vec<&str> = line.split(" | ").collect();
        let key = cells[0].strip_prefix("| `").and_then(|key| key.strip_suffix('`'));
        if let (Some(key), Some(ty), Some(table)) = (key, cells.get(1), tables.last_mut()) {
            table.push((key.to_string(), ty.to_string()));
        }
    }
    tables
}

/// The value at a documented key: `a.b` is in an object, `a[]` the first element of a list. Null if there is
/// none.
pub fn at<'a>(value: &'a Value, key: &str) -> &'a Value {
    key.split('.').fold(value, |value, part| match part.strip_suffix("[]") {
        Some("") => &value[0],
        Some(name) => &value[name][0],
        None => &value[part],
    })
}

/// True if a value is of a type as the page spells it.
pub fn fits(value: &Value, ty: &str) -> bool {
    if let Some(ty) = ty.strip_suffix('?') {
        return value.is_null() || fits(value, ty);
    }
    if let Some(of) = ty.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let Some(list) = value.as_array() else { return false };
        return match of.split_once(", ") {
            Some((first, second)) if !of.starts_with('[') => {
                list.len() == 2 && fits(&list[0], first) && fits(&list[1], second)
            }
            _ => list.iter().all(|x| fits(x, of)),
        };
    }
    if let Some(of) = ty.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        return value.as_object().is_some_and(|o| of == "…" || o.values().all(|x| fits(x, of)));
    }
    match ty {
        "text" => value.is_string(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => panic!("`{ty}` is no type of the page"),
    }
}

fn result(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).arg("--json").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A file with one tensor, `self`, of two f32.
fn two_numbers() -> Vec<u8> {
    let header = r#"{"self":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}       "#;
    let numbers = [1.0f32, -0.5].map(f32::to_le_bytes).concat();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &numbers[..]].concat()
}

#[test]
fn results_are_as_the_page_documents_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/json.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let own = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let example = |name: &str| root.join("examples/digits-vit").join(name).to_str().unwrap().to_string();
    let [model, golden, data, heldout] =
        ["digits_vit.pt2", "digits_vit.golden.safetensors", "train.safetensors", "heldout.safetensors"]
            .map(example);
    let [given, predicted, exported, computed] =
        ["given", "predicted", "exported", "computed"].map(|name| own(&format!("{name}.safetensors")));
    let rows = own("rows.csv");
    let [run, kernels, project] = ["run", "kernels", "project"].map(own);
    std::fs::write(&given, two_numbers()).unwrap();
    let chip = "ascend-sim:310p";
    // Section, table in it, key of the result that the table is of, and the command.
    let commands: [(&str, usize, &str, &[&str]); 17] = [
        (
            "train",
            0,
            "",
            &["train", &model, "--data", &data, "--eval", &heldout, "--steps", "2", "--out", &run],
        ),
        ("eval", 0, "", &["eval", &model, "--data", &heldout, "--weights", &run]),
        ("predict", 0, "", &["predict", &model, "--data", &heldout, "--weights", &run, "--out", &predicted]),
        ("predict", 1, "", &["predict", &model, "--data", &heldout, "--weights", &run, "--out", &rows]),
        ("data", 0, "", &["data", &heldout, "--out", &own("fed.npz")]),
        ("export", 0, "", &["export", &run, "--out", &exported]),
        ("inspect", 0, "", &["inspect", &model, "--amp", "O2", "--dtype", "f16", "--device", chip]),
        ("check", 0, "", &["check", &model, &golden, "--precision", "f32", "--power"]),
        ("compile", 0, "", &["compile", &model]),
        ("kernels", 0, "", &["kernels", &model, "--target", "310p", "--out", &kernels]),
        (
            "kernels",
            1,
            "",
            &["kernels", "add", "--target", "310p", "--shape", "64x32", "--project", "--out", &project],
        ),
        ("op", 0, "", &["op", "gelu", "--in", &given, "--out", &computed, "--grad"]),
        ("doctor", 0, "", &["doctor"]),
        ("doctor", 1, "", &["doctor", "--conformance", "softmax,linear", "--device", chip]),
        ("bench", 0, "", &["bench", "machine", "--quick"]),
        ("bench", 1, "step", &["bench", "step", &model, "--steps", "2", "--quick"]),
        ("bench", 2, "", &["bench", "kernel", "rms_norm", "--device", "ascend-sim:910b1"]),
    ];
    let mut keys = 0;
    for (section, table, under, args) in commands {
        let found = result(args);
        let found = if under.is_empty() { &found } else { &found[under] };
        for (key, ty) in &tables(&page, section)[table] {
            let value = at(found, key);
            assert!(fits(value, ty), "{section}: `{key}` is {value}, no {ty}");
            keys += 1;
        }
    }
    assert!(keys > 140, "only {keys} keys are documented");
}
