//! Bounds of the distance of a computed value from the true one: first-order probabilistic rounding bounds,
//! derived from the graph.
//!
//! Every node adds the rounding of its result to its dtype and the roundings of its accumulation in the
//! target's accumulator (f64 for f64 data). Products add those of the target's [`ProductModel`]. All
//! roundings behave as independent zero-mean errors, so variances add along a path, and the worst path into a
//! value counts. The bound is `λ · √variance`, where `λ = √(2 ln(2F/δ))` makes the chance that any of the
//! graph's `F` operations breaks it less than `δ`. See Higham and Mary, "A new approach to probabilistic
//! rounding error analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4. Bounds are relative to the norm of a
//! value, or of the terms it is a sum of where these cancel. Results that PyTorch itself computes with a larger error
//! have that error too, since they are compared with its own.

mod rows;

use super::rebuild::{rebuild, same};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, Graph, InputRole, Node, ValueId};
use crate::ops::control::fused::{FUSED, encode_types};
use crate::ops::pointwise::elu::ELU_BACKWARD;
use crate::ops::pointwise::hardsigmoid::HARDSIGMOID_BACKWARD;
use crate::ops::pointwise::polygamma::POLYGAMMA;
use crate::ops::random::philox::PHILOX_UNIFORM;
use crate::ops::{Body, Cost, OpCx, Precision};
use crate::row::{Instr, Reduce};
use crate::target::{ProductModel, Target};
use crate::tensor::TensorType;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

/// Chance that an honest result breaks its bound.
const DELTA: f64 = 1e-9;

/// Relative error bound of every value, by [`crate::ValueId`]; integers have none (0). `rounded`: the graph's
/// float inputs were rounded to their dtypes from exact ones; otherwise they count as exact.
pub fn error_bounds(graph: &Graph, target: &Target, rounded: bool) -> Vec<f64> {
    let mut variance = vec![0.0f64; graph.values.len()];
    for input in graph.inputs.iter().filter(|_| rounded) {
        variance[input.value.0 as usize] = (graph.ty(input.value).dtype.epsilon() / 2.0).powi(2);
    }
    for node in &graph.nodes {
        let inherited = node.operands().map(|v| variance[v.0 as usize]).fold(0.0, f64::max);
        for &v in &node.outputs {
            let ty = graph.ty(v);
            if ty.dtype.is_float() {
                variance[v.0 as usize] = inherited + Rounding::of(graph, node, target, ty, None).variance();
            }
        }
    }
    let lambda = confidence(graph);
    variance.into_iter().map(|v| lambda * v.sqrt()).collect()
}

/// `λ = √(2 ln(2F/δ))`: standard deviations that none of the graph's `F` operations exceeds but with a chance
/// of `δ`, 1e-9.
pub fn confidence(graph: &Graph) -> f64 {
    let operations = graph.nodes.iter().map(|node| {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        node.op.cost_of(&graph.cx(node), &types).0
    });
    (2.0 * (2.0 * (1.0 + operations.sum::<f64>()) / DELTA).ln()).sqrt()
}

/// Standard deviations of the roundings a node makes itself, relative to its result.
struct Rounding {
    /// Deviation of storing the result.
    result: f64,
    /// Deviation of summing terms into one element of it.
    sum: f64,
    /// Deviation of the terms: roundings of operands and products, which differ from term to term.
    terms: f64,
}

impl Rounding {
    /// Roundings of a node on a target; `ty` is one of its results. In a graph that was lifted to f64,
    /// `lowered` is the dtype that it stands for.
    fn of(graph: &Graph, node: &Node, target: &Target, ty: &TensorType, lowered: Option<DType>) -> Rounding {
        let dtype = lowered.unwrap_or(ty.dtype);
        let unit = dtype.epsilon() / 2.0;
        let cx = &graph.cx(node);
        if moves(node) {
            // Nothing is computed; a change of dtype alone rounds.
            let same = cx.present().any(|t| t.dtype == ty.dtype);
            return Rounding { result: if same { 0.0 } else { unit }, sum: 0.0, terms: 0.0 };
        }
        let operands = cx.present().map(|t| t.dtype).filter(|d| d.is_float()).min_by_key(|d| d.size());
        let multiplies = matches!(node.op.body, Body::Kernel(_)) && node.op.precision == Precision::Low;
        let operands = operands.filter(|_| multiplies).map(|d| lowered.unwrap_or(d));
        let product = operands.and_then(|d| target.product(d));
        let plain = ProductModel::plain(dtype, accumulator(dtype, target));
        let p = product.unwrap_or(&plain);
        let terms = (2.0 * p.operand.powi(2) + p.product.powi(2)).sqrt();
        let result = unit.hypot(reference_error(cx, node));
        Rounding { result, sum: summed(graph, node, ty).sqrt() * p.accumulator, terms }
    }

    fn variance(&self) -> f64 {
        self.result.powi(2) + self.sum.powi(2) + self.terms.powi(2)
    }
}

/// Relative error of PyTorch's own result in f64, which stands for the true one, where it is more than rounding.
///
/// `hardsigmoid_backward` has 1/6 in f32 and that of `celu` 1/alpha; the series of the trigamma function is cut off. Seen with
/// PyTorch 2.15: 3.0e-8, 4.1e-9 of up to 6.0e-8, and 5e-10.
fn reference_error(cx: &OpCx, node: &Node) -> f64 {
    let float = |name| cx.opt_float(name).ok().flatten().unwrap_or(1.0);
    let unit = DType::F32.epsilon() / 2.0;
    match node.op {
        op if op == &HARDSIGMOID_BACKWARD => unit,
        op if op == &ELU_BACKWARD && float("input_scale") != 1.0 => unit,
        op if op == &POLYGAMMA && cx.int("n") == Ok(1) => 5e-10,
        _ => 0.0,
    }
}

/// The dtype in which a target computes and sums what is of `dtype`.
fn accumulator(dtype: DType, target: &Target) -> DType {
    if dtype == DType::F64 { DType::F64 } else { target.dtypes.accumulator }
}

fn moves(node: &Node) -> bool {
    matches!(node.op.body, Body::View(_) | Body::Copies(_)) || matches!(node.op.cost, Cost::Free)
}

/// Terms that are summed into one element of a result: the work done for each, on average. If its row program
/// makes longer sums, their length counts.
fn summed(graph: &Graph, node: &Node, ty: &TensorType) -> f64 {
    let cx = &graph.cx(node);
    let work = node.op.cost_of(cx, std::slice::from_ref(ty)).0 / ty.shape.numel().max(1) as f64;
    let program = match node.op.body {
        Body::Rows(program) => {
            let all: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            program(cx, &all).ok()
        }
        _ => None,
    };
    let long = program.map_or(0, |p| {
        let any = |f: fn(&Instr) -> bool, n: usize| if p.body.iter().any(f) { n } else { 0 };
        any(|i| matches!(i, Instr::Reduce(Reduce::Sum, _)), p.cols())
            .max(any(|i| matches!(i, Instr::Columns(..)), p.rows()))
    });
    work.max(long as f64).max(1.0)
}

/// Name of the input of [`sampled`] graphs, a number of role `State`, by which roundings are magnified.
pub const MAGNIFIED: &str = "magnified";

/// Streams of random numbers from here on are free for roundings: a model's are counted from 0.
const STREAMS: i64 = 1 << 30;

/// The graph, in f64, with a random rounding wherever running it in `dtype` rounds. Results and the terms of
/// sums are off by the standard deviations that [`error_bounds`] counts. So is each instruction of a row
/// program, times the input [`MAGNIFIED`] over the unit roundoff of `dtype`. For 0 it is the graph itself.
/// `rounded`: float inputs are off by one rounding too. What an output moves by is a sample of its error,
/// cancellation included (Monte Carlo arithmetic: Parker, "Monte Carlo arithmetic", UCLA 1997).
///
/// # Errors
/// Refusals of type rules: none for a legal graph in f64.
pub fn sampled(graph: &Graph, target: &Target, dtype: DType, rounded: bool) -> Result<Graph> {
    let unit = dtype.epsilon() / 2.0;
    let stream = Cell::new(STREAMS);
    let mut magnified = None;
    let mut inputs: HashMap<ValueId, ValueId> = HashMap::new();
    rebuild(graph, same, |b, node, operands| {
        let by = *magnified.get_or_insert_with(|| {
            b.input(MAGNIFIED, TensorType::new(DType::F64, [0usize; 0]), InputRole::State)
        });
        let uniform = |b: &mut Builder, size: Vec<i64>| {
            stream.set(stream.get() + 1);
            let attrs =
                Attrs::new().with("size", size).with("dtype", DType::F64).with("stream", stream.get());
            let key = b.rng();
            b.one(&PHILOX_UNIFORM, &[key], attrs)
        };
        let off = |b: &mut Builder, v: ValueId, deviation: f64| -> Result<ValueId> {
            let shape = b.ty(v).shape.clone();
            if b.ty(v).dtype != DType::F64 || deviation == 0.0 || shape.numel() == 0 {
                return Ok(v);
            }
            let drawn = uniform(b, shape.to_ints())?;
            // Uniform in ±√3 has the deviation 1.
            let width = b.scale(drawn, 12f64.sqrt() * deviation / unit)?;
            let scalar = TensorType::new(DType::F64, [0usize; 0]);
            let half = b.full(&scalar, -(3f64.sqrt()) * deviation / unit)?;
            let centred = b.add(width, half)?;
            let relative = b.mul(centred, by)?;
            // A factor, so that what is infinite stays it.
            let one = b.full(&scalar, 1.0)?;
            let factor = b.add(relative, one)?;
            b.mul(v, factor)
        };
        let own: Vec<Rounding> = node
            .outputs
            .iter()
            .map(|&v| Rounding::of(graph, node, target, graph.ty(v), Some(dtype)))
            .collect();
        let sums = own.iter().map(|r| r.sum.hypot(r.terms)).fold(0.0, f64::max);
        let noisy = rows::noisy(graph, node, unit, accumulator(dtype, target).epsilon() / 2.0);
        // A pointwise operator sums nothing: its own roundings are its result's.
        let accumulates =
            noisy.is_none() && matches!(node.op.body, Body::Rows(_) | Body::Kernel(_)) && !moves(node);
        let mut operands = operands.to_vec();
        for (v, old) in operands.iter_mut().zip(&node.inputs) {
            let (Some(v), Some(old)) = (v, old) else { continue };
            if rounded && graph.producer(*old).is_none() {
                *v = match inputs.get(v) {
                    Some(off) => *off,
                    None => *inputs.entry(*v).or_insert(off(b, *v, unit)?),
                };
            }
        }
        for v in operands.iter_mut().flatten().filter(|_| accumulates) {
            *v = off(b, *v, sums)?;
        }
        let outputs = match noisy {
            None => b.apply(node.op, &operands, node.attrs.clone())?,
            Some(noisy) => {
                let mut reads: Vec<Option<ValueId>> =
                    operands.into_iter().flatten().chain([by]).map(Some).collect();
                for size in noisy.draws {
                    reads.push(Some(uniform(b, size)?));
                }
                let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
                let attrs = Attrs::new()
                    .with("outputs", encode_types(&types))
                    .with("ops", node.op.name)
                    .with("program", Arc::new(noisy.program));
                b.apply(&FUSED, &reads, attrs)?
            }
        };
        outputs.into_iter().zip(own).map(|(v, r)| off(b, v, r.variance().sqrt())).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OutputRole;
    use crate::{Tensor, reference};

    #[test]
    fn longer_sums_and_coarser_types_get_wider_bounds() {
        let bound = |dtype, n: usize| {
            let mut b = Builder::new();
            let x = b.input("x", TensorType::new(dtype, [n]), InputRole::User);
            let s = b.sum(x, &[0], false).unwrap();
            error_bounds(b.graph(), &Target::default(), false)[s.0 as usize]
        };
        assert!(bound(DType::F32, 1000) > 5.0 * bound(DType::F32, 10));
        assert!(bound(DType::F64, 1000) < 1e-11);
        assert!(bound(DType::BF16, 10) > DType::BF16.epsilon());
    }

    #[test]
    fn results_that_pytorch_computes_less_exactly_have_its_error() {
        let bound = |op, attrs| {
            let mut b = Builder::new();
            let ty = TensorType::new(DType::F64, [3usize]);
            let [g, x] = ["g", "x"].map(|name| b.input(name, ty.clone(), InputRole::User));
            let y = b.one(op, &[g, x], attrs).unwrap();
            error_bounds(b.graph(), &Target::default(), false)[y.0 as usize]
        };
        let elu = |scale: f64| {
            let attrs = Attrs::new().with("alpha", 0.7).with("scale", 1.0).with("input_scale", scale);
            bound(&ELU_BACKWARD, attrs.with("is_result", false))
        };
        // 1/6 in f32 is off by 2.98e-8, and PyTorch's gradient of `celu` by 0.7 was by 4.1e-9.
        let hard = bound(&HARDSIGMOID_BACKWARD, Attrs::new());
        assert!(hard > 2.98e-8 && hard < 1e-6, "{hard}");
        assert!(elu(1.0 / 0.7) > 4.1e-9 && elu(1.0) < 1e-14);
    }

    #[test]
    fn samples_show_what_cancels_and_what_does_not() {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F64, [256]), InputRole::User);
        let minus = b.scale(x, -1.0).unwrap();
        let (one, zero) = (b.mul(x, x).unwrap(), b.add(x, minus).unwrap());
        for (name, v) in [("one", one), ("zero", zero)] {
            let sum = b.sum(v, &[0], false).unwrap();
            b.output(name, sum, OutputRole::User);
        }
        let graph = b.finish();
        let unit = DType::F64.epsilon() / 2.0;
        let sample = |key: f64, magnified: f64| {
            let sampled = sampled(&graph, &Target::default(), DType::F64, false).unwrap();
            let fed: Vec<Tensor> = sampled
                .inputs
                .iter()
                .map(|i| match i.name.as_str() {
                    "x" => Tensor::float(DType::F64, [256], vec![1.0; 256]),
                    MAGNIFIED => Tensor::full(sampled.ty(i.value), magnified),
                    _ => Tensor::full(sampled.ty(i.value), key),
                })
                .collect();
            let out = reference::run(&sampled, &fed).unwrap();
            (out[0].floats()[0], out[1].floats()[0])
        };
        assert_eq!(sample(0.0, 0.0), (256.0, 0.0), "the graph itself");
        let size = |key| {
            let (one, zero) = sample(key, 1e-8);
            ((one - 256.0).abs() / 1e-8 * unit, zero.abs() / 1e-8 * unit)
        };
        let (one, _) = size(0.0);
        // A single draw is below a tenth of its deviation once in twelve times, the largest of four never but
        // once in twenty thousand.
        let zero = (0..4).map(|key| size(f64::from(key)).1).fold(0.0, f64::max);
        // A sum of 256 ones is off by about √256 units of itself; what cancels by about √256 units of its
        // terms' root.
        let about = 256.0 * 16.0 * unit;
        assert!(one > about / 50.0 && one < about * 5.0, "{one:e} {about:e}");
        assert!(zero > 16.0 * unit / 10.0 && zero < about * 5.0, "{zero:e}");
        let (twice, _) = sample(0.0, 2e-8);
        assert!(((twice - 256.0).abs() / 2e-8 * unit / one - 1.0).abs() < 1e-6, "it is linear");
    }

    #[test]
    fn samples_show_what_cancels_inside_an_operator() {
        // The gradient of batch norm's bias for a constant cotangent: zeros, whatever the operands are off by.
        let mut b = Builder::new();
        let f64s = |shape: &[usize]| TensorType::new(DType::F64, shape.to_vec());
        let [g, x] = ["g", "x"].map(|n| b.input(n, f64s(&[16, 1]), InputRole::User));
        let [weight, mean, rstd] =
            ["weight", "mean", "rstd"].map(|n| b.input(n, f64s(&[1]), InputRole::User));
        let attrs = Attrs::new().with("training", true).with("output_mask", vec![1i64, 1, 1]);
        let operands = [g, x, weight, mean, rstd].map(Some);
        let op = &crate::ops::norm::batch_norm::BATCH_NORM_BACKWARD;
        let input_grad = b.apply(op, &operands, attrs).unwrap()[0];
        let sum = b.sum(input_grad, &[0], false).unwrap();
        b.output("sum", sum, OutputRole::User);
        let graph = sampled(&b.finish(), &Target::default(), DType::F64, false).unwrap();
        // Values that are no round numbers.
        let values: Vec<f64> = (0..16).map(|i| (i as f64 * 0.7).sin()).collect();
        let average = values.iter().sum::<f64>() / 16.0;
        let variance = values.iter().map(|x| (x - average).powi(2)).sum::<f64>() / 16.0;
        let sample = |key: i64, magnified: f64| {
            let fed = graph.inputs.iter().map(|i| match i.name.as_str() {
                "g" => Tensor::full(graph.ty(i.value), 0.3),
                "x" => Tensor::float(DType::F64, [16, 1], values.clone()),
                "weight" => Tensor::full(graph.ty(i.value), 1.0),
                "mean" => Tensor::full(graph.ty(i.value), average),
                "rstd" => Tensor::full(graph.ty(i.value), 1.0 / variance.sqrt()),
                MAGNIFIED => Tensor::full(graph.ty(i.value), magnified),
                _ => Tensor::int(DType::I64, [2], vec![key, 0]),
            });
            reference::run(&graph, &fed.collect::<Vec<_>>()).unwrap()[0].floats()[0].abs()
        };
        // 16 times the rounding of the mean of the cotangent, √16 units of it at most.
        let unit = 0.3 / variance.sqrt() * 1e-8;
        let largest = (0..4).map(|key| sample(key, 1e-8)).fold(0.0, f64::max);
        assert!(largest > unit && largest < 16.0 * 16.0 * unit, "{largest:e}, unit {unit:e}");
        assert!(sample(0, 0.0) < 1e-14);
    }
}
