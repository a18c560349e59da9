//! Properties of every operator, made from its own cases: no input can break its type rule. The body of every
//! operator that a model can name computes whatever the rule accepts. (Operators without schemas, or with
//! schemas of our own, occur only where passes put them, on types that fit.)

use headwater_core::diagnostic::Code;
use headwater_core::ops::{Body, Case, OpCx, OpDef};
use headwater_core::{Attr, Attrs, DType, Registry, Shape, Tensor, TensorType, reference};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Asks the type rule; if it accepts, the tensors are small and a model can name the operator, runs the
/// reference. `Err` says what went wrong: a panic, results of other types than the rule's, or an error other
/// than the allowed ones.
fn exercise(
    op: &OpDef,
    attrs: &Attrs,
    inputs: &[Option<TensorType>],
    draw: &dyn Fn() -> Vec<Option<Tensor>>,
    allowed: &[Code],
) -> Result<(), String> {
    let cx = OpCx { inputs: inputs.iter().map(Option::as_ref).collect(), attrs };
    let show = |what: &dyn std::fmt::Display| format!("{}({inputs:?}, {attrs}): {what}", op.name);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let Ok(outs) = (op.infer)(&cx) else { return Ok(()) };
        // Empty dimensions count as one: the reference may walk the others.
        let large = |t: &TensorType| t.shape.iter().fold(1, |n: usize, &d| n.saturating_mul(d.max(1))) > 1000;
        let ours = op.schemas.iter().all(|s| s.starts_with("headwater::"));
        if ours || outs.iter().chain(inputs.iter().flatten()).any(large) {
            return Ok(());
        }
        let tensors = draw();
        let tensors: Vec<_> = tensors.iter().map(Option::as_ref).collect();
        match reference::apply(op, attrs, &tensors, &outs) {
            Ok(results) => {
                let types: Vec<_> = results.into_iter().map(|t| t.ty).collect();
                if types == outs { Ok(()) } else { Err(show(&format!("gives {types:?}, its rule {outs:?}"))) }
            }
            Err(e) if allowed.contains(&e.code) => Ok(()),
            Err(e) => Err(show(&format!("the rule accepts it, but {e}"))),
        }
    }));
    caught.unwrap_or_else(|_| Err(show(&"panics")))
}

fn types_of(case: &Case) -> Vec<Option<TensorType>> {
    case.inputs.iter().map(|a| a.as_ref().map(|a| a.ty.clone())).collect()
}

#[test]
fn every_body_computes_what_its_rule_accepts() {
    let mut wrong = Vec::new();
    for op in Registry::standard().operators() {
        for case in (op.cases)() {
            let own = types_of(&case);
            let floats: Vec<usize> =
                (0..own.len()).filter(|&i| own[i].as_ref().is_some_and(|t| t.dtype.is_float())).collect();
            // All float inputs of another dtype, and each alone.
            let mut sets: Vec<Vec<usize>> = floats.iter().map(|&i| vec![i]).collect();
            sets.push(floats.clone());
            for (set, dtype) in sets.iter().flat_map(|s| DType::ALL.map(|d| (s, d))) {
                let mut types = own.clone();
                set.iter().for_each(|&i| types[i].as_mut().expect("a float input").dtype = dtype);
                let draw = || {
                    let cast = |(t, ty): (Option<Tensor>, &Option<TensorType>)| {
                        t.zip(ty.as_ref()).map(|(t, ty)| t.cast(ty.dtype))
                    };
                    case.draw(1).into_iter().zip(&types).map(cast).collect()
                };
                // Wrong numbers are no fault of the types. A decomposition refuses them through its parts.
                let allowed: &[Code] =
                    if matches!(op.body, Body::Decompose(_)) { &REFUSALS } else { &[Code::Value] };
                wrong.extend(exercise(op, &case.attrs, &types, &draw, allowed).err());
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{} combinations:\n{}", wrong.len(), wrong.join("\n"));
}

/// Sizes and numbers that arithmetic stumbles over.
const SIZES: [usize; 8] = [0, 1, 2, 3, 7, 1 << 31, 1 << 40, (isize::MAX as usize) - 1];
const INTS: [i64; 12] = [0, 1, -1, 2, -2, 3, 7, i32::MAX as i64, 1 << 40, i64::MAX, i64::MIN, i64::MIN + 1];

/// Refusals that a body may make of what its rule let through.
const REFUSALS: [Code; 6] =
    [Code::Value, Code::Attribute, Code::Shape, Code::DType, Code::Size, Code::Unsupported];

/// One change of a case: an input's dtype, rank or size, or an attribute. The number of inputs stays, which
/// is checked against the schemas.
fn spoil(
    types: &mut [Option<TensorType>],
    attrs: &mut Attrs,
    (what, which, a, b): (u8, usize, usize, usize),
) {
    let names: Vec<&'static str> = attrs.iter().map(|(n, _)| n).collect();
    if what < 4 && !types.is_empty() {
        let at = which % types.len();
        match (what, &mut types[at]) {
            (0, Some(t)) => t.dtype = DType::ALL[a % DType::ALL.len()],
            (1, Some(t)) if t.shape.rank() > 0 => {
                let mut shape = t.shape.to_vec();
                let d = a % shape.len();
                shape[d] = SIZES[b % SIZES.len()];
                t.shape = shape.into();
            }
            (2, Some(t)) => {
                let mut shape = t.shape.to_vec();
                if a % 2 == 0 {
                    shape.push(SIZES[b % SIZES.len()])
                } else {
                    shape.truncate(b % 4)
                }
                t.shape = shape.into();
            }
            (3, Some(t)) => *t = TensorType::new(DType::F32, Shape::new(&[2])),
            _ => {}
        }
    } else if !names.is_empty() {
        let name = names[which % names.len()];
        let int = INTS[a % INTS.len()];
        let value = match (attrs.get(name), b % 5) {
            (Some(Attr::Ints(v)), 0..3) if !v.is_empty() => {
                let mut v = v.clone();
                let at = b % v.len();
                v[at] = int;
                Attr::Ints(v)
            }
            (Some(Attr::Ints(v)), _) => Attr::Ints(v.iter().copied().chain([int]).skip(a % 3).collect()),
            (_, 0) => Attr::Float([0.0, -1.0, 0.5, f64::NAN, f64::INFINITY, 1e300][a % 6]),
            (_, 1) => Attr::Str("nonsense".into()),
            (_, 2) => Attr::DType(DType::ALL[a % DType::ALL.len()]),
            (_, 3) => return attrs.remove(name),
            _ => Attr::Int(int),
        };
        attrs.set(name, value);
    }
}

#[test]
fn no_rule_panics_on_any_types_and_attributes() {
    let mut wrong = Vec::new();
    for op in Registry::standard().operators() {
        if let Body::Decompose(_) = op.body {
            continue; // Its parts are exercised by themselves.
        }
        for case in (op.cases)() {
            let changes =
                prop::collection::vec((0u8..10, any::<usize>(), any::<usize>(), any::<usize>()), 1..4);
            let mut runner = TestRunner::new_with_rng(
                Config { cases: 150, failure_persistence: None, max_shrink_iters: 0, ..Config::default() },
                prop::test_runner::TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha),
            );
            let found = runner.run(&changes, |changes| {
                let (mut types, mut attrs) = (types_of(&case), case.attrs.clone());
                changes.into_iter().for_each(|c| spoil(&mut types, &mut attrs, c));
                if types.iter().flatten().any(|t| t.shape.checked_numel().is_none()) {
                    return Ok(()); // A graph refuses such a value before any rule sees it.
                }
                let draw = || types.iter().map(|t| t.as_ref().map(|t| Tensor::full(t, 1.0))).collect();
                exercise(op, &attrs, &types, &draw, &REFUSALS).map_err(TestCaseError::fail)
            });
            if let Err(proptest::test_runner::TestError::Fail(reason, _)) = found {
                wrong.push(reason.to_string());
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
