//! Attention on the CPU writes its results in the order that the model expects: no copy, and the same bits.

use headwater_core::device::Device;
use headwater_core::evaluate;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::attention::attention::ATTENTION;
use headwater_core::pass::{differentiate::gradients, fuse, plan, simplify};
use headwater_core::plan::Bindings;
use headwater_core::reference;
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId};
use headwater_cpu::{Cpu, Tier};

const BATCH: usize = 2;
const HEADS: usize = 4;
const SHARED: usize = 2;
const LENGTH: usize = 101;
const SIZE: usize = 8;

/// Attention of inputs laid out as `[batch, length, heads, size]`, and its gradients, all times 1.5; with
/// `merged` as `[batch, length, heads · size]`, otherwise as attention has them.
fn graph(dtype: DType, merged: bool) -> Graph {
    let mut b = Builder::new();
    let mut heads = |name: &str, n: usize| {
        let x = b.input(name, TensorType::new(dtype, [BATCH, LENGTH, n, SIZE]), InputRole::User);
        (x, b.permute(x, &[0, 2, 1, 3]).unwrap())
    };
    let [(_, q), (_, k), (_, v), (_, g)] =
        [("q", HEADS), ("k", SHARED), ("v", SHARED), ("g", HEADS)].map(|(name, n)| heads(name, n));
    let attrs = Attrs::new().with("is_causal", true).with("scale", 0.3);
    let y = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), None, None], attrs).unwrap()[0];
    let grads = gradients(&mut b, &[(y, g)], &[q, k, v]).unwrap();
    let results: Vec<ValueId> = std::iter::once(y).chain(grads.into_iter().flatten()).collect();
    for (i, r) in results.into_iter().enumerate() {
        let n = b.ty(r).shape[1];
        let mut r = r;
        if merged {
            r = b.permute(r, &[0, 2, 1, 3]).unwrap();
            r = b.reshape(r, &[BATCH, LENGTH, n * SIZE]).unwrap();
        }
        r = b.scale(r, 1.5).unwrap();
        b.output(format!("result {i}"), r, OutputRole::User);
    }
    fuse(simplify(b.finish()).graph, Cpu::new(2).target()).unwrap()
}

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let one = |(k, i): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(i.value);
        let number = |i: usize| ((i * 7919 + k * 31) % 2003) as f64 / 1001.0 - 1.0;
        let data = (0..ty.shape.numel()).map(number).collect();
        Tensor::float(DType::F64, ty.shape.clone(), data).cast(ty.dtype)
    };
    graph.inputs.iter().enumerate().map(one).collect()
}

#[test]
fn results_are_written_in_the_order_the_model_wants() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let (merged, own) = (graph(dtype, true), graph(dtype, false));
        let inputs = inputs(&own);
        for threads in [1, 2, 7] {
            let device = Cpu::new(threads);
            let plan = plan(&merged, &Bindings::simple(&merged), device.target()).unwrap();
            // Attention, its gradient and four products: no copies.
            assert_eq!(plan.steps.len(), 6, "{:?}", plan.steps.iter().map(|s| s.op).collect::<Vec<_>>());
            let got = evaluate(&device, &merged, &inputs).unwrap();
            let want = evaluate(&device, &own, &inputs).unwrap();
            for (got, want) in got.iter().zip(want) {
                let heads = want.shape()[1];
                for (i, x) in got.floats().iter().enumerate() {
                    let (e, h, l, b) =
                        (i % SIZE, i / SIZE % heads, i / SIZE / heads % LENGTH, i / SIZE / heads / LENGTH);
                    let own = want.floats()[((b * heads + h) * LENGTH + l) * SIZE + e];
                    assert_eq!(x.to_bits(), own.to_bits(), "{dtype} {i} {threads}");
                }
            }
        }
    }
}

/// Masks that add the least number of their dtype, as Hugging Face makes them, hide nothing from a query if
/// they hide all.
#[test]
fn a_query_with_the_least_number_for_every_key_sees_all_of_them() {
    let (queries, keys, size) = (3, 5, 8);
    let mut b = Builder::new();
    let shapes = [[1, 1, queries, size], [1, 1, keys, size], [1, 1, keys, size], [1, 1, queries, keys]];
    let args: Vec<Option<ValueId>> = (0..4)
        .map(|i| Some(b.input(format!("x{i}"), TensorType::new(DType::F32, shapes[i]), InputRole::User)))
        .chain([None])
        .collect();
    let attrs = Attrs::new().with("is_causal", false).with("scale", 0.3);
    let y = b.apply(&ATTENTION, &args, attrs).unwrap()[0];
    b.output("y", y, OutputRole::User);
    let graph = b.finish();
    let mut inputs = inputs(&graph);
    let hidden = |i: usize| if i / keys == 1 { f32::MIN as f64 } else { 0.0 };
    inputs[3] = Tensor::float(DType::F32, shapes[3], (0..queries * keys).map(hidden).collect());
    let got = &evaluate(&Cpu::new(1), &graph, &inputs).unwrap()[0];
    for e in 0..size {
        let mean = (0..keys).map(|key| inputs[2].floats()[key * size + e]).sum::<f64>() / keys as f64;
        // Weights are exact but for one rounding, sums of five terms below 1.
        let (y, bound) = (got.floats()[size + e], 8.0 * f32::EPSILON as f64);
        assert!((y - mean).abs() <= bound, "element {e} is {y}, not {mean}");
    }
}

/// Scores so large that their products with the scale are rounded by more than 1 choose one key each: its
/// weight is 1.
#[test]
fn huge_scores_choose_one_key() {
    let (queries, keys, size) = (5, 3, 4);
    for scale in [3e7, 1e12, 1e30] {
        let mut b = Builder::new();
        let [q, k, v, g] = [("q", queries), ("k", keys), ("v", keys), ("g", queries)]
            .map(|(name, n)| b.input(name, TensorType::new(DType::F32, [1, 1, n, size]), InputRole::User));
        let attrs = Attrs::new().with("is_causal", false).with("scale", scale);
        let y = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), None, None], attrs).unwrap()[0];
        b.output("y", y, OutputRole::User);
        let dv = gradients(&mut b, &[(y, g)], &[v]).unwrap()[0].unwrap();
        b.output("dv", dv, OutputRole::User);
        let graph = b.finish();
        let mut inputs = inputs(&graph);
        inputs[3] = Tensor::float(DType::F32, [1, 1, queries, size], vec![1.0; queries * size]);
        let score = |i: usize, j: usize| -> f64 {
            (0..size).map(|e| inputs[0].floats()[i * size + e] * inputs[1].floats()[j * size + e]).sum()
        };
        let chosen = |i: usize| (0..keys).max_by(|&j, &k| score(i, j).total_cmp(&score(i, k))).unwrap();
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            let got = evaluate(&Cpu::new(1).with_tier(tier).unwrap(), &graph, &inputs).unwrap();
            for i in 0..queries {
                let value = &inputs[2].floats()[chosen(i) * size..][..size];
                assert_eq!(&got[0].floats()[i * size..][..size], value, "{scale}, {}", tier.name());
            }
            for j in 0..keys {
                let times = (0..queries).filter(|&i| chosen(i) == j).count() as f64;
                assert_eq!(got[1].floats()[j * size..][..size], [times; 4], "{scale}, {}", tier.name());
            }
        }
    }
}

/// A query that sees no key among others that do has no gradient, and gives none, whatever its numbers are.
/// With more keys than a block has, and dropout: as the reference.
#[test]
fn gradients_with_hidden_queries_and_dropout_are_those_of_the_reference() {
    let (queries, keys, size) = (7, 403, 8);
    for dropout in [0.0, 0.3] {
        let graph = |dtype: DType| {
            let mut b = Builder::new();
            let [q, k, v, g] = [("q", queries), ("k", keys), ("v", keys), ("g", queries)]
                .map(|(name, n)| b.input(name, TensorType::new(dtype, [1, 2, n, size]), InputRole::User));
            let mask = b.input("mask", TensorType::new(DType::Bool, [1, 1, queries, keys]), InputRole::User);
            let rng = b.input("rng", TensorType::new(DType::I64, [2]), InputRole::User);
            let attrs = Attrs::new().with("is_causal", false).with("scale", 0.3);
            let attrs = attrs.with("dropout_p", dropout).with("stream", 5);
            let args = [Some(q), Some(k), Some(v), Some(mask), (dropout > 0.0).then_some(rng)];
            let y = b.apply(&ATTENTION, &args, attrs).unwrap()[0];
            for (i, grad) in gradients(&mut b, &[(y, g)], &[q, k, v]).unwrap().into_iter().enumerate() {
                b.output(format!("gradient {i}"), grad.unwrap(), OutputRole::User);
            }
            b.finish()
        };
        let mut inputs = inputs(&graph(DType::F32));
        let seen = (0..queries * keys).map(|i| i64::from(i / keys != 3 && i % 5 != 0)).collect();
        inputs[4] = Tensor::int(DType::Bool, [1, 1, queries, keys], seen);
        inputs[5] = Tensor::int(DType::I64, [2], vec![11, 3]);
        let exact: Vec<Tensor> = inputs
            .iter()
            .map(|t| if t.dtype().is_float() { t.cast(DType::F64) } else { t.clone() })
            .collect();
        let want = reference::run(&graph(DType::F64), &exact).unwrap();
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            let got = evaluate(&Cpu::new(2).with_tier(tier).unwrap(), &graph(DType::F32), &inputs).unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                // Sums of as many terms as there are keys, each at most 4 with dropout, of weights within a
                // few roundings.
                let bound = 4.0 * keys as f64 * f32::EPSILON as f64;
                for (at, (g, w)) in got.floats().iter().zip(want.floats()).enumerate() {
                    assert!((g - w).abs() <= bound, "gradient {i}, {at}: {g}, not {w}, {}", tier.name());
                }
            }
        }
    }
}

/// A query whose keys are all masked by a number sees all alike, however large it is: its weights are 1/n, in
/// the gradient too. By −∞ it sees none, and gives NaN where that is requested, to all keys. With more keys
/// than a block has: as the reference.
#[test]
fn queries_that_are_masked_as_a_whole_are_those_of_the_reference() {
    let (queries, keys, size, hidden) = (7, 403, 8, 3);
    for mask in [-1e4, -1e9, 1e9, -1e30, f64::from(f32::MIN), f64::NEG_INFINITY] {
        let graph = |dtype: DType, mask_dtype: DType| {
            let mut b = Builder::new();
            let [q, k, v, g] = [("q", queries), ("k", keys), ("v", keys), ("g", queries)]
                .map(|(name, n)| b.input(name, TensorType::new(dtype, [1, 2, n, size]), InputRole::User));
            let ty = TensorType::new(mask_dtype, [1, 1, queries, keys]);
            let added = b.input("mask", ty, InputRole::User);
            let attrs = Attrs::new().with("is_causal", false).with("scale", 0.3);
            let attrs = attrs.with("nan_without_keys", mask == f64::NEG_INFINITY);
            let y = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), Some(added), None], attrs).unwrap()[0];
            let grads = gradients(&mut b, &[(y, g)], &[q, k, v, added]).unwrap();
            for (i, x) in std::iter::once(y).chain(grads.into_iter().flatten()).enumerate() {
                b.output(format!("result {i}"), x, OutputRole::User);
            }
            b.finish()
        };
        for dtype in [DType::F32, DType::BF16] {
            let mut inputs = inputs(&graph(dtype, DType::F32));
            // Scores of 0, which a number of any size leaves equal.
            let mut q = inputs[0].to_f64();
            (0..2).for_each(|h| q[(h * queries + hidden) * size..][..size].fill(0.0));
            inputs[0] = Tensor::float(dtype, inputs[0].ty.shape.clone(), q);
            let whole = |i: usize| i / keys == hidden || mask < 0.0 && i.is_multiple_of(5);
            let added = (0..queries * keys).map(|i| if whole(i) { mask } else { 0.0 }).collect();
            inputs[4] = Tensor::float(DType::F32, [1, 1, queries, keys], added);
            let exact: Vec<Tensor> = inputs.iter().map(|t| t.cast(DType::F64)).collect();
            let want = reference::run(&graph(DType::F64, DType::F64), &exact).unwrap();
            for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
                let device = Cpu::new(2).with_tier(tier).unwrap();
                let got = evaluate(&device, &graph(dtype, DType::F32), &inputs).unwrap();
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let all = || got.floats().iter().zip(want.floats());
                    let about = format!("{mask:e} {dtype}, result {i}, {}", tier.name());
                    assert!(all().all(|(g, w)| g.is_nan() == w.is_nan()), "{about}: NaN elsewhere");
                    let norm = |x: &dyn Fn((&f64, &f64)) -> f64| {
                        let terms = all().map(x).filter(|x| !x.is_nan());
                        terms.map(|x| x * x).sum::<f64>().sqrt()
                    };
                    // In f32, sums of as many terms as there are keys, of weights within a few roundings; in
                    // bf16 weights, slopes and results are rounded, and slopes have that of the output.
                    let bound = match dtype {
                        DType::F32 => keys as f64 * f64::from(f32::EPSILON),
                        _ => 4.0 * f64::exp2(-9.0),
                    };
                    let (apart, size) = (norm(&|(g, w)| g - w), norm(&|(_, w)| *w));
                    assert!(apart <= bound * size, "{about}: {apart:e} of {size:e}");
                }
            }
        }
    }
}

/// With an odd number of queries, a last one that is NaN does not affect keys that no query sees.
#[test]
fn keys_behind_the_last_query_have_no_gradient() {
    let (queries, keys, size) = (17, 251, 8);
    let mut b = Builder::new();
    let [q, k, v, g] = [("q", queries), ("k", keys), ("v", keys), ("g", queries)]
        .map(|(name, n)| b.input(name, TensorType::new(DType::BF16, [1, 1, n, size]), InputRole::User));
    let attrs = Attrs::new().with("is_causal", true).with("scale", 0.3);
    let y = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), None, None], attrs).unwrap()[0];
    for (name, grad) in ["dk", "dv"].into_iter().zip(gradients(&mut b, &[(y, g)], &[k, v]).unwrap()) {
        b.output(name, grad.unwrap(), OutputRole::User);
    }
    let graph = b.finish();
    let mut inputs = inputs(&graph);
    for i in [0, 3] {
        let mut data = inputs[i].to_f64();
        data[(queries - 1) * size] = f64::NAN;
        inputs[i] = Tensor::float(DType::BF16, inputs[i].ty.shape.clone(), data);
    }
    for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
        for grad in evaluate(&Cpu::new(1).with_tier(tier).unwrap(), &graph, &inputs).unwrap() {
            // Keys that share a register tile, of 32 rows at most, with those that are seen are multiplied
            // with zeros.
            let behind = &grad.floats()[queries.next_multiple_of(32) * size..];
            assert!(behind.iter().all(|&x| x == 0.0), "{}", tier.name());
        }
    }
}

/// Blocks and tiles of every size in bf16: as f32 on the portable tier, but for roundings.
#[test]
fn attention_in_bf16_is_that_of_f32_on_every_tier() {
    let size = 64;
    for (queries, keys, causal) in
        [(33, 33, true), (71, 71, false), (300, 300, true), (300, 300, false), (17, 251, false)]
    {
        let graph = |dtype: DType| {
            let mut b = Builder::new();
            let [q, k, v, g] = [("q", queries), ("k", keys), ("v", keys), ("g", queries)]
                .map(|(name, n)| b.input(name, TensorType::new(dtype, [1, 2, n, size]), InputRole::User));
            let attrs = Attrs::new().with("is_causal", causal).with("scale", 0.125);
            let y = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), None, None], attrs).unwrap()[0];
            let grads = gradients(&mut b, &[(y, g)], &[q, k, v]).unwrap();
            for (i, x) in std::iter::once(y).chain(grads.into_iter().flatten()).enumerate() {
                b.output(format!("result {i}"), x, OutputRole::User);
            }
            b.finish()
        };
        let inputs = inputs(&graph(DType::BF16));
        let wide: Vec<Tensor> = inputs.iter().map(|x| x.cast(DType::F32)).collect();
        let portable = Cpu::new(2).with_tier(Tier::Portable).unwrap();
        let want = evaluate(&portable, &graph(DType::F32), &wide).unwrap();
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            let cpu = Cpu::new(2).with_tier(tier).unwrap();
            let got = evaluate(&cpu, &graph(DType::BF16), &inputs).unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let all = || got.floats().iter().zip(want.floats());
                let share = norm(&mut all().map(|(g, w)| g - w)) / norm(&mut want.floats().iter().copied());
                // Weights, slopes and the result are rounded, and slopes have that of the output: 2⁻⁹ each.
                // One wrong row of the most, 600, would be 0.04.
                let bound = 4.0 * f64::exp2(-9.0);
                assert!(share <= bound, "{queries} {keys} {causal}, {i}: {share} of it, {}", tier.name());
            }
        }
    }
}
