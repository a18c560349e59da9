//! Projects around kernels, as `headwater kernels OPERATOR --project` writes them. Every C++ file compiles,
//! tables agree, and commands and files of the pages exist.
//!
//! PyTorch, torch_npu and CANN are replaced by declarations, in `kernel_project/stubs` and in
//! `crates/ascend/check`. `tools/tests/test_kernel_project.py` runs projects with PyTorch.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Operators, each with two shapes that both chips have kernels for in both dtypes.
const OPERATORS: [(&str, [&str; 2]); 4] = [
    ("add", ["1003", "64x32"]),
    ("rms_norm", ["64x256", "37x1024"]),
    ("rms_norm_grad", ["64x256", "37x1024"]),
    ("embedding_grad", ["100x50x64", "7x1000x128"]),
];

const CHIPS: [(&str, &str); 2] = [("910b1", "2201"), ("310p", "2002")];

fn headwater(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headwater")).args(args).output().unwrap()
}

fn project(operator: &str, chip: &str, shapes: &[&str], out: &Path) -> Output {
    let mut args = vec!["kernels", operator, "--target", chip, "--project", "--out", out.to_str().unwrap()];
    shapes.iter().for_each(|shape| args.extend(["--shape", shape]));
    headwater(&args)
}

/// Every file below a folder: its path in it, and its text.
fn files(folder: &Path) -> Vec<(String, String)> {
    let (mut open, mut found) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Calls `check` with every operator and chip and the folder of the project.
fn each(check: impl Fn(&str, &str, &Path)) {
    for (operator, shapes) in OPERATORS {
        for (chip, arch) in CHIPS {
            let folder = tempfile::tempdir().unwrap();
            let done = project(operator, chip, &shapes, folder.path());
            assert!(done.status.success(), "{operator} {chip}: {}", String::from_utf8_lossy(&done.stderr));
            check(operator, arch, folder.path());
        }
    }
}

/// Names between quotes, of which `keep` is true.
fn quoted(text: &str, keep: impl Fn(&str) -> bool) -> BTreeSet<String> {
    text.split('"').skip(1).step_by(2).filter(|name| keep(name)).map(String::from).collect()
}

/// Names in the package's `__all__`.
fn offered(folder: &Path, operator: &str) -> BTreeSet<String> {
    let init = std::fs::read_to_string(folder.join(format!("src/headwater_{operator}/__init__.py"))).unwrap();
    quoted(init.lines().find(|l| l.starts_with("__all__ = [")).unwrap(), |_| true)
}

#[test]
fn every_source_compiles() {
    let Some(compiler) =
        ["g++", "clang++"].into_iter().find(|c| Command::new(c).arg("--version").output().is_ok())
    else {
        eprintln!("no g++ and no clang++ here: the syntax of projects is not checked");
        return;
    };
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    each(|operator, arch, folder| {
        let (mut kernels, mut host) = (0, 0);
        for (name, _) in files(folder).iter().filter(|(name, _)| name.ends_with(".cpp")) {
            let headers = match name.starts_with("kernels/") {
                true => crates.join("ascend/check"),
                false => crates.join("headwater/tests/it/kernel_project/stubs"),
            };
            *if name.starts_with("kernels/") { &mut kernels } else { &mut host } += 1;
            let done = Command::new(compiler)
                .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
                .arg(format!("-D__NPU_ARCH__={arch}"))
                .arg(format!("-isystem{}", headers.display()))
                .arg(folder.join(name))
                .output()
                .unwrap();
            assert!(
                done.status.success(),
                "{operator} {arch} {name}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
        assert!(kernels >= 4 && host >= 2, "{operator}: {kernels} kernels and {host} other sources");
    });
}

#[test]
fn tables_name_the_kernels_that_are_there() {
    each(|operator, arch, folder| {
        let all = files(folder);
        let text = |name: &str| &all.iter().find(|(n, _)| n == name).unwrap().1;
        let there: BTreeSet<String> = all
            .iter()
            .filter_map(|(name, _)| name.strip_prefix("kernels/")?.strip_suffix(".cpp"))
            .map(String::from)
            .collect();
        let named = |text: &str| quoted(text, |name| there.contains(name) || name.contains("_f16_"));
        assert_eq!(named(text("csrc/kernels.h")), there, "{operator} {arch}");
        assert_eq!(named(text(&format!("src/headwater_{operator}/_kernels.py"))), there, "{operator} {arch}");
        for name in &there {
            let source = text(&format!("kernels/{name}.cpp"));
            assert!(source.contains(&format!("void {name}(")), "{name} is in no file of its own");
            assert!(text("README.md").contains(&format!("| `{name}` |")), "the page has no {name}");
        }
        // Two dtypes and shapes, of embeddings two types of indices.
        let times = match operator {
            "rms_norm" => 3,
            "rms_norm_grad" | "embedding_grad" => 2,
            _ => 1,
        };
        assert_eq!(there.len(), 4 * times, "{operator} {arch}: {there:?}");
    });
}

#[test]
fn every_place_is_filled_in() {
    each(|operator, _, folder| {
        for (name, text) in files(folder) {
            assert!(!text.contains("headwater_OPERATOR"), "{operator} {name}");
            for word in text.split('@').skip(1).step_by(2) {
                let token = !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase());
                assert!(!token, "{operator} {name}: @{word}@");
            }
        }
        // A function that a module of its own name hides could not be imported.
        for name in offered(folder, operator) {
            let module = format!("src/headwater_{operator}/{name}.py");
            assert!(!folder.join(&module).exists(), "{operator}: {module} hides a function");
        }
    });
}

#[test]
fn a_page_names_commands_files_and_functions_that_are_there() {
    each(|operator, _, folder| {
        let page = std::fs::read_to_string(folder.join("README.md")).unwrap();
        let (mut python, mut own, mut listed, mut imported) = (0, 0, 0, 0);
        for line in page.lines() {
            if let Some(command) = line.strip_prefix("    ").filter(|l| !l.starts_with(' ')) {
                let words: Vec<&str> = command.split_whitespace().collect();
                match words[..] {
                    ["python", script, ..] => {
                        assert!(folder.join(script).is_file(), "{operator}: {command}");
                        python += 1;
                    }
                    ["headwater", ref rest @ ..] => {
                        // `--out` is the last option, and its folder is relative.
                        let out = folder.join(rest[rest.len() - 1]);
                        let mut args = rest[..rest.len() - 1].to_vec();
                        args.push(out.to_str().unwrap());
                        let done = headwater(&args);
                        let said = String::from_utf8_lossy(&done.stderr);
                        assert!(done.status.success(), "{operator}: {command}: {said}");
                        assert!(out.join("README.md").is_file(), "{operator}: {command}");
                        own += 1;
                    }
                    ["pip", "install", "--no-build-isolation", "."] => {
                        assert!(folder.join("setup.py").is_file());
                    }
                    ["source", script] => assert!(script.ends_with("/set_env.sh")),
                    _ => panic!("{operator}: `{command}` is no command that is known"),
                }
            }
            // The table of files: `kernels/*.cpp` names every one of a kind.
            if line.starts_with("| `") && ["/", ".py`"].iter().any(|sign| line.contains(sign)) {
                let cell = line.split('|').nth(1).unwrap();
                for file in cell.split('`').skip(1).step_by(2).filter(|f| f.contains(['/', '.'])) {
                    let path = folder.join(file.trim_end_matches("*.cpp"));
                    assert!(path.exists(), "{operator}: {file} is not there");
                    listed += 1;
                }
            }
            if let Some((module, names)) = line.strip_prefix("from ").and_then(|l| l.split_once(" import ")) {
                assert_eq!(module, format!("headwater_{operator}"));
                let names: BTreeSet<String> = names.split(", ").map(String::from).collect();
                assert!(names.is_subset(&offered(folder, operator)), "{operator}: {names:?}");
                imported += 1;
            }
        }
        assert_eq!((python, own, imported), (2, 1, 1), "{operator}: {page}");
        assert!(listed >= 8, "{operator}: {listed} files are listed");
    });
}

#[test]
fn sources_alone_are_the_projects_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let [alone, whole] = ["alone", "whole"].map(|name| folder.path().join(name));
    let out = alone.to_str().unwrap();
    let args =
        ["kernels", "rms_norm", "--target", "910b1", "--shape", "64x256", "--shape", "64x256", "--out", out];
    assert!(headwater(&args).status.success());
    assert!(project("rms_norm", "910b1", &["64x256"], &whole).status.success());
    let kernels: Vec<_> = files(&alone);
    assert_eq!(kernels.len(), 6, "f16 and f32, forward and two for the gradients; a shape counts once");
    assert_eq!(kernels, files(&whole.join("kernels")));
}

#[test]
fn eps_is_built_in() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let shared = ["--target", "310p", "--shape", "64x256", "--project", "--out", out];
    let args = [&["kernels", "rms_norm", "--eps", "1e-5"][..], &shared].concat();
    assert!(headwater(&args).status.success());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("csrc/kernels.h").contains("EPS = 1e-5f;"));
    assert!(read("src/headwater_rms_norm/_kernels.py").contains("EPS = 1e-5\n"));
    assert!(read("kernels/rms_norm_f32_64x256.cpp").contains("+ 1e-5f)"));
    let args = [&["kernels", "rms_norm_grad", "--eps", "1e-5"][..], &shared].concat();
    assert_eq!(headwater(&args).status.code(), Some(2), "gradients have no eps");
}

#[test]
fn a_dtype_that_the_chip_lacks_is_named_and_the_others_are_built() {
    let folder = tempfile::tempdir().unwrap();
    // Rows of 24 elements are whole blocks in f32, and not in f16.
    let done = project("rms_norm_grad", "310p", &["64x24"], folder.path());
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("float16 64x24"), "{said}");
    let page = std::fs::read_to_string(folder.path().join("README.md")).unwrap();
    assert!(
        page.contains("| float16 64x24 | a row has 24 elements, no multiple of 16 (32 bytes) |"),
        "{page}"
    );
    assert!(!folder.path().join("kernels/rms_norm_grad_f16_64x24.cpp").exists());
    assert!(folder.path().join("kernels/rms_norm_grad_f32_64x24.cpp").exists());
}

#[test]
fn what_has_no_project_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit/digits_vit.pt2");
    let model = model.to_str().unwrap();
    let huge = "18446744073709551615x18446744073709551615";
    let most = "2147483647x2147483647x2147483647";
    // Arguments, exit status, and a part of what is said.
    let cases: [(&[&str], i32, &str); 14] = [
        (&[model, "--project"], 2, "add, rms_norm, rms_norm_grad, embedding_grad"),
        (&["gelu", "--project"], 2, "headwater train --device ascend:0"),
        (&[model, "--shape", "4x4"], 2, "--shape is for a single operator"),
        (&["gelu"], 1, "no operator with kernels of its own"),
        (&["rms_norm", "--project"], 2, "needs --shape: rows x columns"),
        (&["rms_norm", "--shape", "4096x4096", "--dtype", "f16"], 2, "cannot be used with"),
        (&["rms_norm", "--shape", "4096"], 1, "a shape of `rms_norm` is rows x columns, such as 4096x4096"),
        (
            &["rms_norm", "--shape", "4x7"],
            1,
            "float32 4x7: a row has 7 elements, no multiple of 8 (32 bytes)",
        ),
        (&["rms_norm", "--shape", "4x8192"], 1, "8192 elements of a row, outside 1 to 4096"),
        (&["rms_norm", "--shape", "64x256", "--eps", "nan"], 2, "it is a number from 0"),
        (&["embedding_grad", "--shape", "0x10x64"], 1, "a size of 0"),
        (&["embedding_grad", "--shape", most, "--project"], 1, "no kernel for"),
        (&["add", "--shape", huge], 1, "the shape is too large"),
        (&["add", "--shape", "4xfour"], 2, "no shape such as 4096x4096"),
    ];
    for (args, status, part) in cases {
        let done = headwater(&[&["kernels", "--target", "310p", "--out", out], args].concat());
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
        assert!(!Path::new(out).exists(), "{args:?} wrote something");
    }
}
