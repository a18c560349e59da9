//! Verdicts of the comparison with PyTorch: values that are all rounding are no difference, and a difference
//! is one.

use crate::common::agrees;
use headwater::check::{CheckReport, check};
use headwater::core::{DType, Shape, Tensor};
use headwater::cpu::Cpu;
use headwater::golden::{Golden, Kind};
use headwater::model::Model;
use headwater::tensors::TensorFile;
use std::path::{Path, PathBuf};

fn at(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/cancelling").join(name)
}

fn model(name: &str) -> Model {
    Model::open(&at(&format!("{name}.pt2"))).unwrap_or_else(|e| panic!("{e:#}"))
}

fn run(name: &str, golden: &Path, precision: DType) -> CheckReport {
    let golden = Golden::read(golden).unwrap();
    check(&model(name), &golden, precision, &Cpu::new(2)).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

#[test]
fn what_cancels_is_zero_and_what_does_not_is_compared() {
    // Names of gradients that are 0 in exact arithmetic.
    let cases: [(&str, &[&str]); 6] = [
        ("one_key", &["k.bias", "k.weight", "q.bias", "q.weight"]),
        ("normed", &["linear.bias", "linear.weight"]),
        ("averaged", &[]),
        ("two_norms", &["linear.bias", "linear.weight", "norm.bias", "norm.weight", "over.weight"]),
        ("batch_normed", &["linear.bias", "linear.weight", "norm.weight"]),
        ("transposed", &[]),
    ];
    for (name, zero) in cases {
        for precision in [DType::F64, DType::F32, DType::BF16] {
            let report = run(name, &at(&format!("{name}.golden.safetensors")), precision);
            let wrong: Vec<_> = report.compared.iter().filter(|c| !agrees(c, precision)).collect();
            assert!(wrong.is_empty() && report.missing.is_empty(), "{name} in {precision}: {wrong:?}");
            if precision == DType::BF16 {
                continue;
            }
            let found: Vec<&str> =
                report.of(Kind::Gradient).filter(|c| c.zero).map(|c| c.name.as_str()).collect();
            assert_eq!(found, zero, "{name} in {precision}");
            assert!(report.evidence().is_empty());
        }
    }
}

/// A golden with one gradient changed by a share of what it is relative to.
fn changed(dir: &Path, name: &str, gradient: &str, change: impl Fn(f64) -> f64) -> PathBuf {
    let mut file = TensorFile::read(&at(&format!("{name}.golden.safetensors"))).unwrap();
    let t = file.tensors.get_mut(&format!("grad.{gradient}")).unwrap();
    let values = t.to_f64().into_iter().map(change).collect();
    *t = Tensor::float(t.dtype(), t.shape().clone(), values);
    let path = dir.join("changed.golden.safetensors");
    file.write(&path).unwrap();
    path
}

#[test]
fn a_difference_is_found_also_where_terms_cancel() {
    let dir = tempfile::tempdir().unwrap();
    // A wrong gradient: of no size where the truth is 0, of 1e-12 where it is not; both are far above f64's
    // rounding.
    for (name, gradient, change) in [
        ("one_key", "q.weight", (|_| 1e-9) as fn(f64) -> f64),
        ("one_key", "v.weight", |x| x * (1.0 + 1e-12)),
        ("averaged", "conv.bias", |x| x * (1.0 + 1e-12)),
        ("normed", "linear.weight", |_| 1e-9),
        ("averaged", "conv.bias", |x| x * (1.0 + 1e-13)),
        ("transposed", "conv.bias", |x| x * (1.0 + 1e-13)),
        // Zeros that rounding leaves 1e-17 to 1e-16 of.
        ("two_norms", "norm.bias", |_| 1e-14),
        ("batch_normed", "linear.bias", |_| 1e-14),
    ] {
        let golden = changed(dir.path(), name, gradient, change);
        let report = run(name, &golden, DType::F64);
        let wrong: Vec<&str> =
            report.compared.iter().filter(|c| !c.passed()).map(|c| c.name.as_str()).collect();
        assert_eq!(wrong, [gradient], "{name}");
        let evidence = report.evidence().join("\n");
        assert!(evidence.contains("1 of") && evidence.contains("derivative of an operator"), "{evidence}");
    }
}

/// The golden of an archive whose gradients are all near zero, with other entries.
fn with(dir: &Path, change: impl FnOnce(&mut TensorFile)) -> PathBuf {
    let mut file = TensorFile::read(&at("normed.golden.safetensors")).unwrap();
    change(&mut file);
    // A path that a shell would split.
    let path = dir.join("of another kind.golden.safetensors");
    file.write(&path).unwrap();
    path
}

#[test]
fn what_one_side_alone_has_is_explained_with_a_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let one = || Tensor::float(DType::F64, Shape::new(&[1]), vec![1.0]);
    let gradient = |f: &mut TensorFile| drop(f.tensors.insert("grad.nosuch".into(), one()));
    let own = |f: &mut TensorFile| drop(f.tensors.remove("grad.linear.weight").unwrap());
    let buffer = |f: &mut TensorFile| drop(f.tensors.insert("buffer.nosuch".into(), one()));
    let cases: [(&dyn Fn(&mut TensorFile), &str, &str); 3] = [
        (&gradient, "PyTorch has a gradient of nosuch", "headwater inspect "),
        (&own, "we have a gradient of linear.weight", "record the golden again"),
        (&buffer, "PyTorch writes buffer nosuch", "export and record in the same mode"),
    ];
    for (change, missing, next) in cases {
        for precision in [DType::F64, DType::F32] {
            let report = run("normed", &with(dir.path(), change), precision);
            assert!(!report.passed() && report.compared.iter().all(|c| c.passed()));
            assert_eq!(report.missing.len(), 1);
            assert!(report.missing[0].starts_with(missing), "{:?}", report.missing);
            let evidence = report.evidence();
            let [said] = &evidence[..] else { panic!("{evidence:?}") };
            assert!(said.contains("likely cause: ") && said.contains(next), "{said}");
        }
    }
}

#[test]
fn evidence_has_lines_to_copy() {
    let dir = tempfile::tempdir().unwrap();
    let golden = with(dir.path(), |f| {
        let t = f.get("output.0").unwrap().clone();
        f.tensors.insert("output.0".into(), Tensor::full(&t.ty, 9.0));
    });
    let evidence = run("normed", &golden, DType::F32).evidence().join("\n");
    let line = format!(
        "`headwater check {} '{}' --precision f64 --all`",
        at("normed.pt2").display(),
        golden.display()
    );
    assert!(evidence.contains(&line), "{line}: {evidence}");
}

#[test]
fn evidence_names_another_archive() {
    let golden = Golden::read(&at("normed.golden.safetensors")).unwrap();
    assert_eq!(golden.of_another(&at("normed.pt2")).unwrap(), None);
    let another = golden.of_another(&at("averaged.pt2")).unwrap().unwrap();
    assert!(another.contains("recorded from normed.pt2"), "{another}");
}
