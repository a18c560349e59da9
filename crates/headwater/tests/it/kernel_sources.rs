//! Sources of whole models: every file that `headwater kernels MODEL` writes, through a C++ compiler.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const FAMILIES: [&str; 9] =
    ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"];

/// Chips with their numbers and the precisions that training has there.
const CHIPS: [(&str, &str, &[&[&str]]); 2] = [
    ("910b1", "2201", &[&[], &["--amp", "O2", "--dtype", "bf16"]]),
    ("310p", "2002", &[&[], &["--amp", "O2", "--dtype", "f16"]]),
];

/// The kernels of a model in one unit, as compilers of CANN may be given them, are of sound syntax and types.
#[test]
fn every_source_of_every_family_compiles() {
    let Some(compiler) =
        ["g++", "clang++"].into_iter().find(|c| Command::new(c).arg("--version").output().is_ok())
    else {
        eprintln!("no g++ and no clang++ here: the syntax of sources is not checked");
        return;
    };
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut checked = 0;
    for family in FAMILIES {
        let model = crates.join(format!("../goldens/{family}/{family}.train.pt2"));
        for (chip, arch, precisions) in CHIPS {
            for precision in precisions {
                let folder = tempfile::tempdir().unwrap();
                let out = folder.path().to_str().unwrap();
                let done = Command::new(env!("CARGO_BIN_EXE_headwater"))
                    .args(["kernels", model.to_str().unwrap(), "--target", chip, "--out", out])
                    .args(*precision)
                    .output()
                    .unwrap();
                assert!(done.status.success(), "{family}: {}", String::from_utf8_lossy(&done.stderr));
                let mut files: Vec<_> =
                    std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).collect();
                files.sort();
                files.retain(|file| file.extension().is_some_and(|e| e == "cpp"));
                let unit: String =
                    files.iter().map(|file| format!("#include \"{}\"\n", file.display())).collect();
                let all = folder.path().join("all.cpp");
                std::fs::write(&all, unit).unwrap();
                // Sizes of a tile that nothing in the kernel reads are no error.
                let done = Command::new(compiler)
                    .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
                    .args(["-Wno-unused-variable", "-Wno-unused-but-set-variable"])
                    .arg(format!("-D__NPU_ARCH__={arch}"))
                    .arg(format!("-isystem{}", crates.join("ascend/check").display()))
                    .arg(&all)
                    .output()
                    .unwrap();
                let errors = String::from_utf8_lossy(&done.stderr);
                assert!(done.status.success(), "{family} on {chip} {precision:?}: {errors}");
                assert!(files.len() >= 20, "{family} on {chip} {precision:?}: {} sources", files.len());
                checked += files.len();
            }
        }
    }
    println!("{checked} sources");
}

/// The index has every source, every launch with as many arguments as its parameters, and every step that
/// runs on the host.
#[test]
fn the_index_lists_steps_in_order_with_their_launches() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit/digits_vit.pt2");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["--json", "kernels", model.to_str().unwrap(), "--target", "910b3", "--out", out])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let written: Value = serde_json::from_slice(&done.stdout).unwrap();
    let text = std::fs::read_to_string(folder.path().join("kernels.json")).unwrap();
    let steps: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(Value::from(steps.len()), written["steps"][0]);
    assert!(steps.iter().enumerate().all(|(i, s)| s["step"] == i));
    let by_kernels = steps.iter().filter(|s| s.get("host").is_none()).count();
    assert_eq!(Value::from(by_kernels), written["steps"][1]);
    let mut launched = BTreeSet::new();
    for launch in steps.iter().flat_map(|s| s["launches"].as_array().unwrap()) {
        let kernel = launch["kernel"].as_str().unwrap();
        let source = std::fs::read_to_string(folder.path().join(format!("{kernel}.cpp"))).unwrap();
        for argument in launch["arguments"].as_array().unwrap() {
            let (parameter, _) = argument.as_str().unwrap().split_once(" = ").unwrap();
            assert!(source.contains(parameter), "{kernel} has no {parameter}");
        }
        assert!(launch["blocks"].as_u64().unwrap() > 0);
        launched.insert(format!("{kernel}.cpp"));
    }
    let files: BTreeSet<String> = serde_json::from_value(written["files"].clone()).unwrap();
    assert_eq!(files, launched);
    assert!(steps.iter().any(|s| s["module"].as_str().unwrap().contains('.')), "{text}");
    let readme = std::fs::read_to_string(folder.path().join("README.md")).unwrap();
    assert!(readme.contains(&format!("{} steps, ", steps.len())), "{readme}");
}
