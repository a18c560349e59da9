//! Archives whose export has lost gradients of their modules: what is said of them.

use headwater::check::check;
use headwater::core::DType;
use headwater::cpu::Cpu;
use headwater::golden::Golden;
use headwater::model::Model;
use std::path::{Path, PathBuf};
use std::process::Command;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name)
}

/// The archive's own numbers are reproduced; that they are not the module's is what the old golden cannot
/// tell.
#[test]
fn a_golden_without_the_statement_is_named_as_such() {
    for name in [
        "no_grad_lost_decomposed",
        "autograd_function_lost_reversal",
        "inference_mode_trains_teacher",
        "tensor_hook_lost",
    ] {
        let model = Model::open(&file(&format!("bugs/{name}.pt2"))).unwrap();
        let golden = Golden::read(&file(&format!("bugs/{name}.golden.safetensors"))).unwrap();
        let report = check(&model, &golden, DType::F64, &Cpu::new(1)).unwrap();
        let said = report.module.expect(name);
        assert!(
            said.contains("does not state that the archive computes what its PyTorch module computes"),
            "{said}"
        );
        assert!(said.contains("headwater_tools.certify"), "{said}");
    }
    let stated = Golden::read(&file("writes/momentum.train.golden.safetensors")).unwrap();
    assert_eq!(stated.unstated(), None);
    let loops = Golden::read(&file("writes/loops.train.golden.safetensors")).unwrap();
    assert!(loops.unstated().unwrap().contains("not in float64"));
}

#[test]
fn what_cannot_be_trained_says_how_to_export_it() {
    for (name, words) in [
        ("reentrant_checkpoint_no_gradient", ["HW-R007", "use_reentrant=False"]),
        ("moco_parameter_written_decomposed", ["HW-I015", "decompose=False"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        let out = command.arg("inspect").arg(file(&format!("bugs/{name}.pt2"))).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).to_string();
        assert!(!out.status.success() && words.iter().all(|w| said.contains(w)), "{name}: {said}");
    }
}
