//! A function with a derivative that the model states itself, such as a `torch.autograd.Function`.
//!
//! Both of its bodies are in the graph as ordinary nodes. The backward body computes gradients from
//! [`COTANGENT_OF`] the results, whose numbers are of no account; [`CUSTOM_VJP`] names results, cotangents,
//! operands and gradients. Its derivative is the backward body once more, with the cotangents that arrive. So
//! precision, rewrites and the proof treat the bodies as they treat the rest of the graph, and the first copy
//! of the backward body is dead code once the graph has been differentiated.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Def, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, required};
use std::collections::{BTreeSet, HashMap};

/// `(results…, cotangents…, operands…, gradients…)` to the results. There are `outputs` results, floats that
/// get gradients, and as many cotangents, each made by [`COTANGENT_OF`]; a gradient for each operand, as the
/// backward body computes it.
pub static CUSTOM_VJP: OpDef = OpDef {
    name: "custom_vjp",
    schemas: &["headwater::custom_vjp(Tensor[] values, int outputs) -> Tensor[]"],
    infer: |cx| {
        let results = results(cx.attrs, cx.inputs.len())?;
        let operands = (cx.inputs.len() - 2 * results) / 2;
        let pair = |a: usize, b: usize| {
            let (a, b) = (cx.ty(a)?, cx.ty(b)?);
            ensure!(a == b, Shape, "a gradient is {b}, what it is the gradient of is {a}");
            Ok(a.clone())
        };
        (2 * results..2 * results + operands).try_for_each(|i| pair(i, i + operands).map(drop))?;
        (0..results).map(|i| pair(i, i + results)).collect()
    },
    derivative: Derivative::Rule(derivative),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|_, cx, inputs| {
        (0..results(cx.attrs, inputs.len())?).map(|i| required(inputs, i)).collect()
    }),
    // In integers: its derivative is by definition not that of its numbers, which central differences would
    // find.
    cases: || {
        let integers = |n: usize| (0..n).fold(Case::new("integers"), |c, _| c.index(&[2, 3], 9));
        vec![integers(4).attr("outputs", 1), integers(6).attr("outputs", 2)]
    },
};

/// Stands for the gradient that will arrive at a result of a function, where its backward body is written
/// down. Its numbers are zeros.
pub static COTANGENT_OF: OpDef = OpDef {
    name: "cotangent_of",
    schemas: &["headwater::cotangent_of(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, _| Ok(vec![b.full(cx.ty(0)?, 0.0)?])),
    cases: || vec![Case::new("matrix").f(&[2, 3])],
};

/// True for the operators that must stay as they are until the graph is differentiated.
pub fn waits(op: &OpDef) -> bool {
    *op == CUSTOM_VJP || *op == COTANGENT_OF
}

/// The number of results, of which there are not more than the operands tell.
fn results(attrs: &Attrs, values: usize) -> Result<usize> {
    let cx = OpCx { inputs: Vec::new(), attrs };
    let results = usize::try_from(cx.int("outputs")?).unwrap_or(usize::MAX);
    let fits = results > 0 && results.checked_mul(2).is_some_and(|n| n <= values) && values.is_multiple_of(2);
    ensure!(fits, Attribute, "{values} values are not results, cotangents, operands and gradients in pairs");
    Ok(results)
}

fn derivative(cx: &mut GradCx) -> Result<()> {
    let results = results(cx.attrs(), cx.arity())?;
    let operands = (cx.arity() - 2 * results) / 2;
    let mut known: HashMap<ValueId, ValueId> = HashMap::new();
    let mut first = usize::MAX;
    for i in 0..results {
        let (stand_in, arrived) = (cx.x(results + i)?, cx.grad(i)?);
        known.insert(stand_in, arrived);
        first = first.min(maker(cx, stand_in).unwrap_or(0));
    }
    let wanted = (2 * results..2 * results + operands).filter(|&i| cx.needs(i));
    let wanted: Vec<(usize, ValueId)> =
        wanted.map(|i| Ok((i, cx.x(i + operands)?))).collect::<Result<_>>()?;
    // The nodes from the first cotangent on that the gradients are made of. Nothing before it depends on one.
    let (mut body, mut open) = (BTreeSet::new(), wanted.iter().map(|w| w.1).collect::<Vec<_>>());
    while let Some(v) = open.pop() {
        if let Some(n) = maker(cx, v).filter(|&n| n >= first && !known.contains_key(&v))
            && body.insert(n)
        {
            open.extend(cx.graph().nodes[n].operands());
        }
    }
    let origin = cx.origin;
    for n in body {
        let node = cx.graph().nodes[n].clone();
        if node.operands().any(|v| known.contains_key(&v)) {
            let inputs: Vec<_> =
                node.inputs.iter().map(|v| v.map(|v| *known.get(&v).unwrap_or(&v))).collect();
            cx.origin = node.origin;
            let made = cx.apply(node.op, &inputs, node.attrs.clone())?;
            known.extend(node.outputs.iter().copied().zip(made));
        }
    }
    cx.origin = origin;
    wanted.into_iter().try_for_each(|(i, g)| cx.set(i, *known.get(&g).unwrap_or(&g)))
}

/// The position of the node that makes a value.
fn maker(cx: &GradCx, v: ValueId) -> Option<usize> {
    match cx.graph().value(v).def {
        Def::Input(_) => None,
        Def::Node(n, _) => Some(n.0 as usize),
    }
}
