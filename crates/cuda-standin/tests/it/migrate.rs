//! A whole job of `headwater migrate` in checked mode, of a few steps: every verdict, but for the accuracy,
//! for which the run is too short.

use crate::common::{device, machine, skipped};
use headwater::migrate::{Begin, Watcher, migrate};
use headwater::report::{Section, Verdict};
use headwater::runtime::trainer::{Event, Observer};
use headwater_cuda::host::context::Settings;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

struct Quiet;

impl Observer for Quiet {
    fn event(&mut self, _: &Event) -> headwater::runtime::Result<()> {
        Ok(())
    }
}

impl Watcher for Quiet {
    fn begin(&mut self, _: usize, _: &str) {}
    fn end(&mut self, _: usize, _: &Section) {}
    fn training(&mut self) -> &mut dyn Observer {
        self
    }
}

/// Runs the job of the vision transformer for some steps, its second run in a low dtype.
fn job(steps: u64, low: &str) {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for file in
        ["digits_vit.pt2", "digits_vit.golden.safetensors", "train.safetensors", "heldout.safetensors"]
    {
        std::fs::copy(from.join(file), dir.path().join(file)).unwrap();
    }
    let settings = std::fs::read_to_string(Path::new(&from).join("migrate.toml")).unwrap();
    let changed = (settings.replace("steps = 550", &format!("steps = {steps}")))
        .replace("accuracy = 0.96", "")
        .replace("dtype = \"f16\"", &format!("dtype = \"{low}\""));
    std::fs::write(dir.path().join("migrate.toml"), changed).unwrap();
    let machine = machine(3);
    let gpu = Arc::new(device(&machine, Settings { poison: true, ..Settings::default() }));
    let stop = AtomicBool::new(false);
    let report = migrate(dir.path(), out.path(), Begin::Anew, gpu, |_| Ok(()), &mut Quiet, &stop);
    let report = report.unwrap_or_else(|e| panic!("{e:#}")).0;
    assert!(report.sections.len() >= 8, "{} steps", report.sections.len());
    for s in &report.sections {
        assert!(s.verdict == Verdict::Pass || s.title.contains("Evaluation"), "{}: {}", s.title, s.summary);
    }
    let mixed = report.sections.iter().find(|s| s.title.contains("Mixed")).unwrap();
    assert!(mixed.summary.contains(&format!("O2 {low}")), "{}", mixed.summary);
    let curve = report.sections.iter().find(|s| s.title.contains("curve")).unwrap();
    assert!(curve.summary.contains(&format!("over the first {steps} steps")), "{}", curve.summary);
    assert!(machine.calls("cuLaunchKernel") > 100 && machine.calls("cublasLtMatmul") > 10);
}

#[test]
fn a_job_passes_in_f32_and_f16() {
    if !skipped("a_job_passes_in_f32_and_f16") {
        job(2, "f16");
    }
}

#[test]
fn a_job_passes_in_f32_and_bf16() {
    if !skipped("a_job_passes_in_f32_and_bf16") {
        job(1, "bf16");
    }
}
