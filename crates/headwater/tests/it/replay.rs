//! Replay: every model of the goldens compiles to the plans, and trains to the bits, that `replay.txt`
//! records.
//!
//! A change that claims to change no plan shows it here. One that means to records anew and commits the file
//! with it:
//!
//! ```text
//! HEADWATER_RECORD=replay cargo test -p headwater --test it replay::
//! ```
//!
//! Each run leaves the plans as text under `target/tmp/replay`: keep the folder of the older revision to
//! compare them.

use headwater::core::DType;
use headwater::core::pass::precision::{Level, PrecisionSettings};
use headwater::core::plan::{Plan, parse};
use headwater::cpu::{Cpu, Tier};
use headwater::curve::recorded_training;
use headwater::golden::Golden;
use headwater::model::Model;
use headwater::runtime::session::{Session, SessionModel, Training};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FAMILIES: [&str; 9] =
    ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"];

/// Steps whose losses are recorded.
const STEPS: usize = 8;

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(16).fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// One line for each plan of a model's training in a precision, and one for its losses and final parameters.
fn replay(name: &str, precision: &PrecisionSettings, texts: &Path) -> String {
    let (family, form) = name.split_once('.').unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(family);
    let model = Model::open(&folder.join(format!("{family}.{form}.pt2"))).unwrap();
    let golden = Golden::read(&folder.join(format!("{family}.{form}.golden.safetensors"))).unwrap();
    let bound = model.bind_to(&golden).unwrap();
    // Kernels, workspaces and the bits of products are those of the instructions: of any processor's here.
    let device = Arc::new(Cpu::new(2).with_tier(Tier::Portable).unwrap());
    let training = Training { precision: precision.clone(), ..recorded_training(&golden).unwrap() };
    let weights = SessionModel { graph: &bound.graph, weights: &bound };
    let mut session = Session::new(device, weights, Some(training)).unwrap();
    let program = session.program().unwrap();
    let evaluation = session.evaluation_program(&bound.graph).unwrap();
    let label = match precision.level {
        Level::O0 => "f32".to_string(),
        level => format!("{level:?}-{}", precision.dtype.unwrap_or(DType::BF16)),
    };
    let mut lines = String::new();
    let mut line =
        |what: &str, bytes: &[u8]| writeln!(lines, "{name} {label} {what} {}", hash(bytes)).unwrap();
    let mut plan = |what: &str, plan: &Plan| {
        let text = plan.to_string();
        let back = parse(&text, &model.registry).unwrap_or_else(|e| panic!("{name}, {what}: {e}"));
        assert!(back.to_string() == text, "{name}, {what}: its text reads back as another plan");
        std::fs::write(texts.join(format!("{name}.{label}.{what}.plan")), &text).unwrap();
        line(what, text.as_bytes());
    };
    plan("training", session.plan(program));
    plan("update", session.update_plan().unwrap());
    plan("evaluation", session.plan(evaluation));
    let inputs = golden.inputs();
    let users = bound.user_inputs().zip(&bound.positions);
    let feeds: Vec<_> = users.map(|((_, ty), p)| inputs[p].cast(ty.dtype).to_bytes()).collect();
    let mut bits = Vec::new();
    for _ in 0..STEPS {
        session.begin_step().unwrap();
        session.gradients(program, &feeds).unwrap();
        bits.extend(session.output(program, 0).unwrap().to_f64()[0].to_le_bytes());
        session.update(1e-3).unwrap();
    }
    let losses: Vec<f64> = bits.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(losses.iter().all(|l| l.is_finite()) && losses[0] != losses[STEPS - 1], "{name}: {losses:?}");
    line("losses", &bits);
    let trained = session.tensors().iter().flat_map(|t| session.read(t).unwrap());
    line("trained", &trained.collect::<Vec<u8>>());
    lines
}

#[test]
fn plans_and_losses_are_those_recorded() {
    let texts = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replay");
    std::fs::create_dir_all(&texts).unwrap();
    let low =
        PrecisionSettings { level: Level::O2, dtype: Some(DType::BF16), ..PrecisionSettings::default() };
    let mut got = String::new();
    for family in FAMILIES {
        for form in ["core", "train"] {
            for precision in [&PrecisionSettings::default(), &low] {
                got += &replay(&format!("{family}.{form}"), precision, &texts);
            }
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/replay.txt");
    if std::env::var("HEADWATER_RECORD").is_ok_and(|what| what == "replay") {
        std::fs::write(&file, &got).unwrap();
    }
    let want = std::fs::read_to_string(&file).unwrap();
    let differ: Vec<&str> = got.lines().filter(|line| !want.lines().any(|w| w == *line)).collect();
    let few = &differ[..differ.len().min(10)];
    assert!(
        got == want,
        "{} of {} lines are not those of tests/it/replay.txt:\n{}\nThe plans are under {}.",
        differ.len(),
        want.lines().count(),
        few.join("\n"),
        texts.display()
    );
}
