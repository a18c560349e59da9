//! The vendor's compiler takes every kernel of the golden Llama's training, where it is installed.

use headwater::core::DType;
use headwater::core::pass::precision::{Level, PrecisionSettings};
use headwater::curve::recorded_training;
use headwater::golden::Golden;
use headwater::model::Model;
use headwater::runtime::session::{Session, SessionModel, Training};
use headwater_cuda::host::compile::Source;
use headwater_cuda::host::context::Settings;
use headwater_cuda::host::library::{NVRTC, packages};
use headwater_cuda::host::{Compiler, Installation};
use headwater_cuda::program::Work;
use headwater_cuda::{CudaProgram, lower};
use headwater_launch::{Distinct, Program};
use std::path::PathBuf;
use std::sync::Arc;

/// An installation of the vendor's: by the environment, or in the Python environment of `VIRTUAL_ENV` or of
/// `python3`.
fn installation() -> Option<Installation> {
    let mut folders = Installation::find().folders().to_vec();
    let found = std::process::Command::new("python3").args(["-c", "import sys; print(sys.prefix)"]).output();
    if let Ok(found) = found {
        folders.extend(packages(&PathBuf::from(String::from_utf8_lossy(&found.stdout).trim())));
    }
    Some(Installation::of(folders)).filter(|i| i.library(NVRTC).is_some())
}

/// Kernels of a training step of the golden Llama.
fn kernels(distinct: &mut Distinct<CudaProgram>, precision: &PrecisionSettings) {
    let machine = crate::common::machine(0);
    let gpu = crate::common::device(&machine, Settings::default());
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens/llama");
    let model = Model::open(&folder.join("llama.train.pt2")).unwrap();
    let golden = Golden::read(&folder.join("llama.train.golden.safetensors")).unwrap();
    let bound = model.bind_to(&golden).unwrap();
    let training = Training { precision: precision.clone(), ..recorded_training(&golden).unwrap() };
    let weights = SessionModel { graph: &bound.graph, weights: &bound };
    let session = Session::new(Arc::new(gpu), weights, Some(training)).unwrap();
    let program = session.program().unwrap();
    for plan in [session.plan(program), session.update_plan().unwrap()] {
        for step in &plan.steps {
            let Ok(lowered) = lower::step(step) else { continue };
            lowered.launches.iter().for_each(|launch| {
                distinct.number(&launch.program);
            });
        }
    }
}

#[test]
fn the_vendors_compiler_takes_all_kernels() {
    let test = "the_vendors_compiler_takes_all_kernels";
    let Some(installation) = installation() else {
        return eprintln!("{test} is skipped: libnvrtc is not installed");
    };
    if crate::common::skipped(test) {
        return;
    }
    let mut distinct = Distinct::default();
    let low =
        PrecisionSettings { level: Level::O2, dtype: Some(DType::BF16), ..PrecisionSettings::default() };
    [PrecisionSettings::default(), low].iter().for_each(|p| kernels(&mut distinct, p));
    let text = |p: &Arc<CudaProgram>| matches!(p.work, Work::Text { .. });
    let sources: Vec<Source> = (distinct.programs().iter().filter(|p| text(p)))
        .map(|p| Source { name: p.name().into(), text: p.source() })
        .collect();
    assert!(sources.len() > 50, "{} kernels", sources.len());
    for arch in ["sm_80", "sm_90", "sm_100"] {
        let compiler = Compiler::find(&installation, arch, None).unwrap();
        let start = std::time::Instant::now();
        let compiled = compiler.compile(&sources).unwrap_or_else(|e| panic!("{arch}: {e}"));
        assert!(compiled.binaries.iter().all(|b| b.starts_with(b"\x7fELF")), "{arch}");
        let (major, minor) = compiler.version();
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("{} kernels for {arch} by NVRTC {major}.{minor} in {seconds:.1} s", sources.len());
    }
}
