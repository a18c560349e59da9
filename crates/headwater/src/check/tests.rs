//! The bits of the training plan, and verdicts in f16.

use super::step::{Given, feed, trained};
use super::*;
use crate::core::evaluate;
use crate::core::graph::OutputRole;
use crate::cpu::Cpu;
use crate::curve::recorded_training;
use crate::runtime::session::{Session, SessionModel};
use std::path::Path;
use std::sync::Arc;

#[test]
fn a_check_has_the_bits_of_the_training_plan() {
    for family in ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(family);
        let model = Model::open(&folder.join(format!("{family}.core.pt2"))).unwrap();
        let golden = Golden::read(&folder.join(format!("{family}.core.golden.safetensors"))).unwrap();
        let bound = model.bind_to(&golden).unwrap();
        let device = Arc::new(Cpu::new(2));

        let checked = trained(&bound.graph, &DType::F32.into(), device.target()).unwrap();
        let given = Given { scale: 1.0, rounding: [0.0, 0.0] };
        let fed = feed(&checked, &checked, &bound, &golden, given).unwrap();
        let got = evaluate(device.as_ref(), &checked, &fed).unwrap();

        let weights = SessionModel { graph: &bound.graph, weights: &bound };
        let training = recorded_training(&golden).unwrap();
        let mut session = Session::new(device, weights, Some(training)).unwrap();
        let program = session.program().unwrap();
        let inputs = golden.inputs();
        let users = bound.user_inputs().zip(&bound.positions);
        let feeds: Vec<_> = users.map(|((_, ty), p)| inputs[p].cast(ty.dtype).to_bytes()).collect();
        session.gradients(program, &feeds).unwrap();

        let mut gradients = 0;
        for (output, got) in checked.outputs.iter().zip(&got) {
            let want = match output.role {
                OutputRole::User => session.output(program, 0).unwrap(),
                OutputRole::Gradient(p) => {
                    gradients += 1;
                    let input = checked.input_index(p).unwrap();
                    session.gradient(&checked.inputs[input].name).unwrap()
                }
                _ => continue,
            };
            assert!(
                got.to_bytes() == want.to_bytes(),
                "{family}: {} has other bits in training",
                output.name
            );
        }
        assert!(gradients > 5, "{family}: {gradients} gradients");
    }
}

/// In f16 roundings exchange the largest numbers of ResNet's first pool, and signs in front of ReLU.
#[test]
fn a_gradient_behind_a_pool_that_is_off_by_half_is_seen_in_f16() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/resnet");
    let model = Model::open(&folder.join("resnet.train.pt2")).unwrap();
    let golden = Golden::read(&folder.join("resnet.train.golden.safetensors")).unwrap();
    let report = check(&model, &golden, DType::F16, &Cpu::new(2)).unwrap();
    let first = |c: &&Compared| {
        c.kind == Kind::Gradient && c.name == "model.resnet.embedder.embedder.convolution.weight"
    };
    let first = report.compared.iter().find(first).unwrap();
    assert_eq!(first.verdict, Verdict::Proved, "{} of its norm is allowed", first.bound);
}

/// A NaN is wrong where the rounded step has a number, and not proved where it has none.
#[test]
fn a_nan_is_excused_only_where_rounding_makes_one() {
    let precision = Precision::from(DType::F16);
    let target = crate::core::target::Target::default();
    for (rounded, verdict) in [(f64::NAN, Verdict::NotProved), (1.0, Verdict::Differs)] {
        let mut value = judge::Value { got: vec![f64::NAN, 2.0], ..judge::Value::default() };
        value.result = crate::core::TensorType::new(DType::F16, [2usize]);
        value.spread = crate::core::pass::bound::Spread::new(vec![1.0, 2.0], DType::F16, 1.0);
        value.spread.nearest(&[rounded, 2.0]);
        (0..16).for_each(|_| value.spread.add(&[rounded, 2.0]));
        value.bound = value.spread.bound(1.0);
        let want = crate::core::Tensor::float(DType::F64, value.result.shape.clone(), vec![1.0, 2.0]);
        let c = value.judge(&want, 1.0, &precision, &target).unwrap();
        assert_eq!((c.verdict, c.lost), (verdict, verdict == Verdict::NotProved));
    }
}

/// Where f16 saturates, a number is excused in the place of an infinity if the saturating runs have it,
/// whatever its own dtype is. Any other number differs, however large, and so does what is wrong beside it.
#[test]
fn a_number_for_an_infinity_is_excused_only_where_saturation_makes_it() {
    let precision = Precision::from(DType::F16);
    let saturating = crate::core::target::Target {
        saturating: crate::core::target::DTypeSet::of(&[DType::F16]),
        ..Default::default()
    };
    let infinite = f64::NEG_INFINITY;
    let lowest = -65504.0 + 2f64.ln();
    for (target, dtype, runs, got, verdict) in [
        (&saturating, DType::F32, lowest, [lowest, 1.0], Verdict::NotProved),
        (&saturating, DType::F32, lowest, [-65000.0, 1.0], Verdict::Differs),
        (&saturating, DType::F32, lowest, [-33000.0, 1.0], Verdict::Differs),
        (&saturating, DType::F32, lowest, [-1e30, 1.0], Verdict::Differs),
        (&saturating, DType::F32, lowest, [lowest, 1.5], Verdict::Differs),
        (&saturating, DType::F32, infinite, [lowest, 1.0], Verdict::Differs),
        (&saturating, DType::F16, -32752.0, [-32752.0, 1.0], Verdict::NotProved),
        (&saturating, DType::F16, -32752.0, [-40000.0, 1.0], Verdict::Differs),
        (&Default::default(), DType::F32, infinite, [lowest, 1.0], Verdict::Differs),
    ] {
        let mut value = judge::Value { got: got.to_vec(), ..judge::Value::default() };
        value.result = crate::core::TensorType::new(dtype, [2usize]);
        value.spread = crate::core::pass::bound::Spread::new(vec![infinite, 1.0], dtype, 1.0);
        value.spread.nearest_saturated(&[runs, 1.0]);
        (0..16).for_each(|i| value.spread.add(&[runs, 1.0 + 1e-3 * f64::from(i % 2)]));
        value.bound = value.spread.bound(1.0);
        let want = crate::core::Tensor::float(DType::F64, value.result.shape.clone(), vec![infinite, 1.0]);
        let c = value.judge(&want, 1.0, &precision, target).unwrap();
        assert_eq!(c.verdict, verdict, "{got:?} where the runs have {runs} in {dtype}");
        assert_eq!(c.saturated, got[0] == runs, "{got:?}");
    }
}

/// A value that roundings leave nothing of is expected to be zero: its sign is not proved.
#[test]
fn what_rounding_takes_away_is_not_proved() {
    let precision = Precision::from(DType::BF16);
    let target = crate::core::target::Target::default();
    for (left, verdict) in [(0.0, Verdict::NotProved), (1.0, Verdict::Proved)] {
        let mut value = judge::Value { got: vec![left, left], ..judge::Value::default() };
        value.result = crate::core::TensorType::new(DType::BF16, [2usize]);
        value.spread = crate::core::pass::bound::Spread::new(vec![1.0, 1.0], DType::BF16, 1.0);
        value.spread.nearest(&[left, left]);
        (0..16).for_each(|i| {
            value.spread.add(&[left + 1e-3 * f64::from(i % 3), left - 1e-3 * f64::from(i % 2)])
        });
        value.bound = value.spread.bound(1.0);
        let want = crate::core::Tensor::float(DType::F64, value.result.shape.clone(), vec![1.0, 1.0]);
        assert_eq!(value.judge(&want, 1.0, &precision, &target).unwrap().verdict, verdict, "{left}");
    }
}
