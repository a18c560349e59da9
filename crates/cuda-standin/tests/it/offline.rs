//! Kernels without a GPU: a cache that is filled for a kind of GPU is all that training on one needs, and the
//! files of kernels compile by themselves.

use crate::common::{machine, skipped};
use headwater::core::device::Device;
use headwater::curve::recorded_training;
use headwater::golden::Golden;
use headwater::model::Model;
use headwater::runtime::session::{Planned, Session, SessionModel};
use headwater_core::device::Content;
use headwater_cuda::host::context::Settings;
use headwater_cuda::host::{Compiler, Installation};
use headwater_cuda::offline::Kernels;
use headwater_cuda::{Cuda, Offline};
use headwater_cuda_standin::install::compiler;
use std::path::PathBuf;
use std::sync::Arc;

#[test]
fn a_cache_filled_without_a_gpu_is_enough_to_train() {
    if skipped("a_cache_filled_without_a_gpu_is_enough_to_train") {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens/llama");
    let model = Model::open(&folder.join("llama.train.pt2")).unwrap();
    let golden = Golden::read(&folder.join("llama.train.golden.safetensors")).unwrap();
    let bound = model.bind_to(&golden).unwrap();
    let training = recorded_training(&golden).unwrap();
    let gpu = Offline::new("sm_90").unwrap();
    let planned = Planned::training(&bound.graph, &training, gpu.target(), None).unwrap();
    let kernels = Kernels::of([Some(planned.plan()), planned.update_plan()].into_iter().flatten());
    assert_eq!(gpu.survey(planned.plan()).len(), planned.plan().steps.len());
    assert!(gpu.alloc(4, Content::Zero).map(drop).unwrap_err().to_string().contains("nothing runs there"));

    // Each file compiles beside the header, and names the model's lines.
    let files = kernels.files();
    let sources = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| std::fs::write(sources.path().join(name), text).unwrap());
    let simt = concat!(env!("CARGO_MANIFEST_DIR"), "/src/simt.h");
    std::fs::copy(simt, sources.path().join("simt.h")).unwrap();
    let units: Vec<&(String, String)> = files.iter().filter(|(name, _)| name.ends_with(".cu")).collect();
    assert!(units.len() > 30, "{} kernels", units.len());
    assert!(units.iter().any(|(_, text)| text.contains("modeling_llama.py")), "{}", units[0].1);
    for (name, _) in units.iter().step_by(9) {
        let checked = std::process::Command::new(compiler().unwrap())
            .args(["-x", "c++", "-std=c++17", "-fsyntax-only", "-w", "-DHW_STANDIN", name])
            .current_dir(sources.path())
            .output()
            .unwrap();
        assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stderr));
    }

    let (machine, cache) = (machine(0), tempfile::tempdir().unwrap());
    let installation = Installation::of(vec![machine.path().to_owned()]);
    let nvrtc = Compiler::find(&installation, gpu.arch(), Some(cache.path().to_owned())).unwrap();
    let compiled = kernels.compile(&nvrtc).unwrap();
    assert_eq!(compiled.fresh, units.len());
    let calls = machine.calls("nvrtcCompileProgram");
    let device = Cuda::on(0, &installation, Settings::default(), Some(cache.path().to_owned())).unwrap();
    let weights = SessionModel { graph: &bound.graph, weights: &bound };
    let mut session = Session::new(Arc::new(device), weights, Some(training)).unwrap();
    let program = session.program().unwrap();
    let inputs = golden.inputs();
    let users = bound.user_inputs().zip(&bound.positions);
    let feeds: Vec<_> = users.map(|((_, ty), p)| inputs[p].cast(ty.dtype).to_bytes()).collect();
    session.begin_step().unwrap();
    session.gradients(program, &feeds).unwrap();
    session.update(1e-3).unwrap();
    assert!(session.output(program, 0).unwrap().to_f64()[0].is_finite());
    assert_eq!(
        machine.calls("nvrtcCompileProgram"),
        calls,
        "kernels were compiled that are not in the cache"
    );
}
