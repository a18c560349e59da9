//! Every operator's derivative against central differences in f64, on the operator's own cases.

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::{Case, Derivative, OpDef};
use headwater_core::pass::decompose::decompose;
use headwater_core::pass::differentiate::gradients;
use headwater_core::tensor::{Data, Tensor};
use headwater_core::{Builder, Graph, Registry, ValueId, reference};

/// The operator alone on the case's inputs, its gradients for cotangents that are further inputs.
struct Subject {
    graph: Graph,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    wanted: Vec<ValueId>,
    grads: Vec<Option<ValueId>>,
    cotangents: usize,
}

fn subject(op: &'static OpDef, case: &Case) -> Subject {
    let mut b = Builder::new();
    let ids: Vec<Option<ValueId>> =
        case.inputs.iter().map(|a| a.as_ref().map(|a| b.input("", a.ty.clone(), InputRole::User))).collect();
    let fail = |e| panic!("{} ({}): {e}", op.name, case.name);
    for (i, v) in b.apply(op, &ids, case.attrs.clone()).unwrap_or_else(fail).into_iter().enumerate() {
        b.output(i.to_string(), v, OutputRole::User);
    }
    let given = ids.iter().flatten().count();
    let graph = decompose(b.finish()).unwrap_or_else(|e| panic!("{} ({}): {e}", op.name, case.name));
    let outputs: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
    let present: Vec<ValueId> = graph.inputs[..given].iter().map(|i| i.value).collect();
    let mut b = Builder::extend(graph);
    let args = case.inputs.iter().flatten().zip(&present);
    let wanted: Vec<ValueId> =
        args.filter(|(a, _)| a.ty.dtype.is_float() && !a.constant).map(|(_, &v)| v).collect();
    // Stashes get no cotangent: only outputs that depend smoothly and that users see. The first output always
    // does.
    let seeds: Vec<(ValueId, ValueId)> = outputs
        .iter()
        .take(visible_outputs(op, outputs.len()))
        .filter(|&&v| b.ty(v).dtype.is_float())
        .copied()
        .collect::<Vec<_>>()
        .into_iter()
        .map(|v| {
            let ty = b.ty(v).clone();
            (v, b.input("", ty, InputRole::User))
        })
        .collect();
    let grads =
        gradients(&mut b, &seeds, &wanted).unwrap_or_else(|e| panic!("{} ({}): {e}", op.name, case.name));
    let outputs = seeds.iter().map(|s| s.0).collect();
    Subject { graph: b.finish(), inputs: present, outputs, wanted, grads, cotangents: seeds.len() }
}

/// Multi-output views and factorizations differentiate through all outputs; others through the first, the
/// rest being stashes.
fn visible_outputs(op: &OpDef, n: usize) -> usize {
    let factors = [
        "linalg_lu",
        "lu_unpack",
        "linalg_qr",
        "qr_factors",
        "linalg_eigh",
        "eigh_lower",
        "linalg_svd",
        "svd",
        "svd_factors",
    ];
    let all = matches!(op.body, headwater_core::ops::Body::View(_)) || factors.contains(&op.name);
    if all { n } else { 1 }
}

fn dot(outs: &[&Tensor], cotangents: &[Tensor]) -> f64 {
    outs.iter()
        .zip(cotangents)
        .map(|(o, c)| o.floats().iter().zip(c.floats()).map(|(a, b)| a * b).sum::<f64>())
        .sum()
}

fn check(op: &'static OpDef, case: &Case) {
    let s = subject(op, case);
    let drawn: Vec<Tensor> = case.draw(1).into_iter().flatten().collect();
    let mut inputs = drawn.clone();
    for input in &s.graph.inputs[drawn.len()..] {
        let ty = s.graph.ty(input.value);
        let n = ty.shape.numel();
        if input.role == InputRole::Rng {
            inputs.push(Tensor::int(ty.dtype, ty.shape.clone(), vec![5, 3]));
            continue;
        }
        let values = (0..n).map(|i| ((i * 37 + 11) % 17) as f64 / 8.0 - 1.0).collect();
        inputs.push(Tensor::float(ty.dtype, ty.shape.clone(), values));
    }
    let cotangents = inputs[inputs.len() - s.cotangents..].to_vec();
    let run = |inputs: &[Tensor]| {
        reference::trace(&s.graph, inputs).unwrap_or_else(|e| panic!("{} ({}): {e}", op.name, case.name))
    };
    let base = run(&inputs);
    let loss = |inputs: &[Tensor]| {
        let t = run(inputs);
        dot(&s.outputs.iter().map(|v| &t[v.0 as usize]).collect::<Vec<_>>(), &cotangents)
    };
    for (w, grad) in s.wanted.iter().zip(&s.grads) {
        let at = s.inputs.iter().position(|v| v == w).unwrap();
        let got = grad.map(|g| base[g.0 as usize].floats().to_vec());
        for e in 0..drawn[at].shape().numel() {
            // Central differences with Richardson extrapolation: truncation O(h⁴), rounding O(ε/h).
            let x = drawn[at].floats()[e];
            let slope = |h: f64| {
                let at_x = |x: f64| {
                    let mut inputs = inputs.clone();
                    let Data::Float(v) = &mut inputs[at].data else { unreachable!() };
                    v[e] = x;
                    loss(&inputs)
                };
                (at_x(x + h) - at_x(x - h)) / (2.0 * h)
            };
            let h = 2e-4 * x.abs().max(1.0);
            let want = (4.0 * slope(h) - slope(2.0 * h)) / 3.0;
            let got = got.as_ref().map_or(0.0, |g| g[e]);
            let scale = want.abs().max(1.0);
            assert!(
                (got - want).abs() <= 1e-7 * scale,
                "{} ({}): input {at}, element {e}: got {got}, central difference {want}",
                op.name,
                case.name
            );
        }
    }
}

#[test]
fn every_derivative_agrees_with_central_differences() {
    let mut checked = 0;
    for op in Registry::standard().operators() {
        let cases = (op.cases)();
        assert!(!cases.is_empty(), "{} has no cases", op.name);
        if let Derivative::Rule(_) | Derivative::ByDecomposition = op.derivative {
            for case in &cases {
                check(op, case);
                checked += 1;
            }
        }
    }
    assert!(checked > 0);
}
