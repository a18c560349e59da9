//! Spelled-out operators are recognised, with the roundings of the original and the gradients of the
//! operator. Operators that real models put around norms become one row program with them.

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::attention::sdpa::SDPA;
use headwater_core::ops::norm::{layer_norm::LAYER_NORM, rms_norm::RMS_NORM};
use headwater_core::ops::pointwise::{add::ADD, mul::MUL, pow::POW, rsqrt::RSQRT, silu::SILU, tanh::TANH};
use headwater_core::ops::reduce::mean::MEAN;
use headwater_core::pass::differentiate::gradients;
use headwater_core::pass::{decompose, differentiate, fuse, recognize, simplify};
use headwater_core::target::Target;
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId, reference};

const ROWS: usize = 5;
const COLS: usize = 24;
const EPS: f64 = 1e-6;

/// Features in which models vary.
#[derive(Clone, Copy, Debug)]
struct Spelling {
    /// Dtype of the input.
    dtype: DType,
    weight: Option<DType>,
    /// The weight is the first factor.
    weight_first: bool,
    /// The weight comes before the conversion back (Gemma), not after it (Llama).
    weight_inside: bool,
    /// `pow(x, 2)`, not `x · x`.
    power: bool,
    /// `x · rstd`, not `rstd · x`.
    x_first: bool,
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

/// The norm as models write it; a double computes in f64 throughout.
fn spelled(b: &mut Builder, x: ValueId, weight: Option<ValueId>, how: Spelling) -> ValueId {
    let one = |b: &mut Builder, op, v: &[ValueId], attrs| b.one(op, v, attrs).unwrap();
    let wide = if how.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let to = |b: &mut Builder, v, d: DType| {
        b.one(&headwater_core::ops::pointwise::to::TO, &[v], Attrs::new().with("dtype", d)).unwrap()
    };
    let x = to(b, x, wide);
    let square = match how.power {
        true => one(b, &POW, &[x], Attrs::new().with("exponent", 2i64)),
        false => one(b, &MUL, &[x, x], Attrs::new()),
    };
    let mean = one(b, &MEAN, &[square], Attrs::new().with("dim", [-1i64]).with("keepdim", true));
    let sum = one(b, &ADD, &[mean], Attrs::new().with("other", EPS));
    let rstd = one(b, &RSQRT, &[sum], Attrs::new());
    let mut y = one(b, &MUL, &if how.x_first { [x, rstd] } else { [rstd, x] }, Attrs::new());
    let weigh = |b: &mut Builder, y| match weight {
        Some(w) => one(b, &MUL, &if how.weight_first { [w, y] } else { [y, w] }, Attrs::new()),
        None => y,
    };
    if how.weight_inside {
        y = weigh(b, y);
    }
    y = to(b, y, how.dtype);
    if how.weight_inside { y } else { weigh(b, y) }
}

fn graph(how: Spelling) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", ty(how.dtype, &[ROWS, COLS]), InputRole::User);
    let w = how.weight.map(|d| b.input("w", ty(d, &[COLS]), InputRole::User));
    let y = spelled(&mut b, x, w, how);
    b.output("y", y, OutputRole::User);
    b.finish()
}

fn numbers(graph: &Graph) -> Vec<Tensor> {
    let number = |i: usize, k: usize| ((i * 37 + k * 11 + 3) % 101) as f64 / 37.0 - 1.3;
    let tensor = |(k, i): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(i.value);
        let data = (0..ty.shape.numel()).map(|i| number(i, k)).collect();
        Tensor::float(DType::F64, ty.shape.clone(), data).cast(ty.dtype)
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

fn spellings() -> Vec<Spelling> {
    let mut out = Vec::new();
    for bits in 0..16 {
        let bit = |i: u32| bits >> i & 1 == 1;
        for (dtype, weight, weight_inside) in [
            (DType::F64, Some(DType::F64), false),
            (DType::F32, Some(DType::F32), bit(3)),
            (DType::F32, None, false),
            (DType::BF16, Some(DType::BF16), false),
            (DType::F16, Some(DType::F16), false),
            (DType::BF16, Some(DType::F32), true),
            (DType::BF16, None, false),
        ] {
            out.push(Spelling {
                dtype,
                weight,
                weight_inside,
                weight_first: bit(0),
                power: bit(1),
                x_first: bit(2),
            });
        }
    }
    out
}

#[test]
fn the_norm_of_models_becomes_the_operator_with_its_roundings() {
    for how in spellings() {
        let original = graph(how);
        let r = recognize(original.clone()).unwrap();
        assert_eq!(r.graph.nodes.len(), 1, "{how:?}\n{}", r.graph);
        assert_eq!(r.graph.nodes[0].op.name, RMS_NORM.name);
        let inputs = numbers(&original);
        let got = reference::run(&r.graph, &inputs).unwrap();
        // The formula, rounded where the model converts.
        let low = how.dtype.size() < 4;
        let (x, w) = (inputs[0].floats(), inputs.get(1).map(|w| w.floats()));
        let mut want = Vec::new();
        for row in x.chunks(COLS) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / COLS as f64;
            let rstd = 1.0 / (mean + EPS).sqrt();
            for (i, x) in row.iter().enumerate() {
                let mut h = x * rstd;
                if low && !how.weight_inside {
                    h = how.dtype.round(h);
                }
                want.push(how.dtype.round(h * w.map_or(1.0, |w| w[i])));
            }
        }
        assert_eq!(got[0].floats(), want, "{how:?}");
        // The original rounds to f32 after each of its operations, seven of them. They may cross a boundary
        // of the narrower dtypes' roundings: one step of each.
        let own = reference::run(&original, &inputs).unwrap();
        let step = how.dtype.epsilon() * if low { 2.0 } else { 8.0 };
        for (a, b) in own[0].floats().iter().zip(&want) {
            assert!((a - b).abs() <= step * b.abs(), "{how:?}: {a} became {b}");
        }
    }
}

/// The graph with the gradients of all its inputs for a cotangent `g`.
fn with_gradients(graph: Graph) -> Graph {
    let mut b = Builder::extend(decompose(graph).unwrap());
    let y = b.graph().outputs.iter().find(|o| o.name == "y").unwrap().value;
    let wanted: Vec<_> = b.graph().inputs.iter().map(|i| i.value).collect();
    let of = b.ty(y).clone();
    let g = b.input("g", of, InputRole::User);
    for (v, g) in wanted.iter().zip(gradients(&mut b, &[(y, g)], &wanted).unwrap()) {
        b.output(format!("grad.{v}"), g.unwrap(), OutputRole::Gradient(*v));
    }
    simplify(decompose(b.finish()).unwrap()).graph
}

#[test]
fn gradients_of_the_operator_are_those_of_its_spelling() {
    for how in spellings().into_iter().filter(|h| h.dtype == DType::F64) {
        let (a, b) = (with_gradients(graph(how)), with_gradients(recognize(graph(how)).unwrap().graph));
        assert!(b.nodes.iter().any(|n| n.op.name == "_fused_rms_norm_backward"));
        let inputs = numbers(&a);
        for (a, b) in reference::run(&a, &inputs).unwrap().iter().zip(reference::run(&b, &inputs).unwrap()) {
            for (x, y) in a.floats().iter().zip(b.floats()) {
                // A few sums of COLS (or ROWS) terms of size about one, rounded in f64.
                assert!((x - y).abs() <= 16.0 * COLS as f64 * f64::EPSILON, "{x} and {y}");
            }
        }
    }
}

#[test]
fn what_only_looks_like_a_norm_is_left_alone() {
    let same = |b: Builder| {
        let g = b.finish();
        let r = recognize(g.clone()).unwrap();
        assert!(r.found.is_empty() && r.graph.nodes.len() == g.nodes.len(), "{}", r.graph);
    };
    let start = |dim: i64, exponent: i64, other: bool| {
        let mut b = Builder::new();
        let x = b.input("x", ty(DType::F32, &[COLS, COLS]), InputRole::User);
        let z = b.input("z", ty(DType::F32, &[COLS, COLS]), InputRole::User);
        let p = b.one(&POW, &[x], Attrs::new().with("exponent", exponent)).unwrap();
        let m = b.one(&MEAN, &[p], Attrs::new().with("dim", [dim]).with("keepdim", true)).unwrap();
        let s = b.one(&ADD, &[m], Attrs::new().with("other", EPS)).unwrap();
        let r = b.one(&RSQRT, &[s], Attrs::new()).unwrap();
        let y = b.mul(if other { z } else { x }, r).unwrap();
        b.output("y", y, OutputRole::User);
        b.output("p", p, OutputRole::User);
        b
    };
    same(start(0, 2, false));
    same(start(-1, 3, false));
    same(start(-1, 2, true));
    // The square is an output: it stays, and the norm is still found.
    let r = recognize(start(-1, 2, false).finish()).unwrap();
    assert_eq!((r.found.len(), r.graph.nodes.len()), (1, 2));
    // A normalised value that is used twice is the operator; what weighs it is not part of it.
    let mut b = Builder::new();
    let how = spellings()[1];
    let x = b.input("x", ty(how.dtype, &[ROWS, COLS]), InputRole::User);
    let w = b.input("w", ty(how.dtype, &[COLS]), InputRole::User);
    let h = spelled(&mut b, x, None, how);
    let y = b.mul(h, w).unwrap();
    b.output("h", h, OutputRole::User);
    b.output("y", y, OutputRole::User);
    let r = recognize(b.finish()).unwrap();
    assert_eq!(r.graph.nodes.len(), 2, "{}", r.graph);
}

/// Fusion makes one program of the forward pass, and at most `backward` more of the backward pass.
fn fuses(
    what: &str,
    inputs: &[TensorType],
    backward: usize,
    build: impl Fn(&mut Builder, &[ValueId]) -> ValueId,
) {
    let mut b = Builder::new();
    let ins: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| b.input(format!("x{i}"), t.clone(), InputRole::User))
        .collect();
    let y = build(&mut b, &ins);
    b.output("y", y, OutputRole::User);
    let graph = recognize(b.finish()).unwrap().graph;
    let forward = fuse(decompose(graph.clone()).unwrap(), &Target::default()).unwrap();
    assert_eq!(forward.nodes.len(), 1, "{what}\n{forward}");
    let both = fuse(with_gradients(graph), &Target::default()).unwrap();
    assert!(both.nodes.len() <= 1 + backward, "{what}\n{both}");
}

#[test]
fn norms_take_in_what_models_put_around_them() {
    let (x, w) = (ty(DType::BF16, &[ROWS, COLS]), ty(DType::BF16, &[COLS]));
    let rms = |b: &mut Builder, v: &[ValueId]| {
        b.one(&RMS_NORM, v, Attrs::new().with("normalized_shape", [COLS as i64]).with("eps", EPS)).unwrap()
    };
    let layer = |b: &mut Builder, v: &[ValueId]| {
        b.one(&LAYER_NORM, v, Attrs::new().with("normalized_shape", [COLS as i64]).with("eps", EPS)).unwrap()
    };
    let three = [x.clone(), x.clone(), w.clone()];
    let residual = |b: &mut Builder, v: &[ValueId]| {
        let h = b.add(v[0], v[1]).unwrap();
        b.output("h", h, OutputRole::User);
        rms(b, &[h, v[2]])
    };
    fuses("residual addition and RMSNorm", &three, 1, residual);
    let residual = |b: &mut Builder, v: &[ValueId]| {
        let h = b.add(v[0], v[1]).unwrap();
        b.output("h", h, OutputRole::User);
        layer(b, &[h, v[2], v[3]])
    };
    let four = [x.clone(), x.clone(), w.clone(), w.clone()];
    fuses("residual addition and LayerNorm", &four, 1, residual);
    let cast = |b: &mut Builder, v: &[ValueId]| {
        let y = rms(b, v);
        b.cast(y, DType::F32).unwrap()
    };
    fuses("RMSNorm and conversion", &[x.clone(), w.clone()], 1, cast);
    let cast = |b: &mut Builder, v: &[ValueId]| {
        let y = layer(b, v);
        b.cast(y, DType::F32).unwrap()
    };
    fuses("LayerNorm and conversion", &[x.clone(), w.clone(), w.clone()], 1, cast);
    let swiglu = |b: &mut Builder, v: &[ValueId]| {
        let s = b.one(&SILU, &v[..1], Attrs::new()).unwrap();
        b.mul(s, v[1]).unwrap()
    };
    fuses("SwiGLU", &[x.clone(), x.clone()], 1, swiglu);
    let gelu = |b: &mut Builder, v: &[ValueId]| {
        let cube = b.one(&POW, &v[..1], Attrs::new().with("exponent", 3.0)).unwrap();
        let cube = b.scale(cube, 0.044715).unwrap();
        let sum = b.add(v[0], cube).unwrap();
        let sum = b.scale(sum, (2.0 / std::f64::consts::PI).sqrt()).unwrap();
        let t = b.one(&TANH, &[sum], Attrs::new()).unwrap();
        let t = b.one(&ADD, &[t], Attrs::new().with("other", 1.0)).unwrap();
        let half = b.scale(v[0], 0.5).unwrap();
        b.mul(half, t).unwrap()
    };
    let wide = ty(DType::F32, &[ROWS, COLS]);
    // Two uses of the input, whose gradients meet at the end.
    fuses("GELU by tanh", &[wide], 2, gelu);
}

/// Attention of `heads` query heads on keys and values of `shared` heads, repeated as Hugging Face's models
/// do.
fn repeated(shared: usize, interleaved: bool, copy: bool) -> Graph {
    const HEADS: usize = 6;
    let (batch, length, size) = (2, 3, 4);
    let mut b = Builder::new();
    let q = b.parameter("q", DType::F64, &[batch, HEADS, length, size]);
    let [k, v] = ["k", "v"].map(|name| {
        let x = b.parameter(name, DType::F64, &[batch, shared, length, size]);
        let n = HEADS / shared;
        // Repeated one by one, or (which attention cannot share) all of them n times.
        let at = if interleaved { 1 } else { 2 };
        let x = b.unsqueeze(x, at).unwrap();
        let sizes =
            if interleaved { [batch, n, shared, length, size] } else { [batch, shared, n, length, size] };
        let mut x = b.expand(x, &sizes).unwrap();
        if copy {
            x = b.call(&headwater_core::ops::view::clone::CLONE, &[x]).unwrap();
        }
        b.reshape(x, &[batch, HEADS, length, size]).unwrap()
    });
    let attrs = Attrs::new().with("is_causal", true);
    let y = b.apply(&SDPA, &[Some(q), Some(k), Some(v), None], attrs).unwrap()[0];
    let y = b.mul(y, y).unwrap();
    let loss = b.sum(y, &[0, 1, 2, 3], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

#[test]
fn keys_repeated_for_the_heads_that_share_them_are_shared() {
    for (shared, interleaved, copy) in [
        (2, false, false),
        (3, false, true),
        (1, false, false),
        (1, false, true),
        (2, true, false),
        (3, true, true),
    ] {
        let graph = repeated(shared, interleaved, copy);
        let r = recognize(graph.clone()).unwrap();
        assert_eq!(r.found.len(), usize::from(!interleaved), "{shared} {interleaved} {copy}\n{}", r.graph);
        let train = |graph: Graph| {
            let graph = decompose(graph).unwrap();
            let loss = graph.outputs[0].value;
            decompose(differentiate(graph, loss).unwrap().graph).unwrap()
        };
        let (plain, shares) = (train(graph), train(r.graph));
        let inputs = numbers(&plain);
        let (want, got) =
            (reference::run(&plain, &inputs).unwrap(), reference::run(&shares, &inputs).unwrap());
        assert_eq!(want[0], got[0], "the forward pass computes the same");
        for (want, got) in want.iter().zip(&got) {
            for (w, g) in want.floats().iter().zip(got.floats()) {
                // The heads' sums of each key's gradient are added in another order: some tens of terms of
                // order 1.
                assert!((w - g).abs() <= 64.0 * f64::EPSILON * (1.0 + w.abs()), "{w} {g}");
            }
        }
        let heads = |g: &Graph| {
            g.nodes
                .iter()
                .filter(|n| n.op.name == "attention")
                .map(|n| g.ty(n.inputs[1].unwrap()).shape[1])
                .max()
        };
        assert_eq!(heads(&shares), Some(if interleaved { 6 } else { shared }));
    }
}

#[test]
fn a_border_larger_than_the_image_stays() {
    use headwater_core::ops::conv::convolution::CONVOLUTION;
    use headwater_core::ops::movement::pad::CONSTANT_PAD_ND;
    for (border, dilation, nodes) in [(62, 31, 1), (512, 256, 2), (1 << 32, 1, 2)] {
        let mut b = Builder::new();
        let x = b.input("x", ty(DType::F32, &[1, 3, 32]), InputRole::User);
        let w = b.input("w", ty(DType::F32, &[4, 3, 3]), InputRole::User);
        let p = b.one(&CONSTANT_PAD_ND, &[x], Attrs::new().with("pad", [border, 0i64])).unwrap();
        let y = b.one(&CONVOLUTION, &[p, w], Attrs::new().with("dilation", [dilation])).unwrap();
        b.output("y", y, OutputRole::User);
        let found = recognize(b.finish()).unwrap().graph;
        assert_eq!(found.nodes.len(), nodes, "{border}\n{found}");
    }
}

#[test]
fn a_convolution_pads_by_itself() {
    use headwater_core::ops::conv::convolution::CONVOLUTION;
    use headwater_core::ops::conv::general::GENERAL;
    use headwater_core::ops::movement::pad::{CONSTANT_PAD_ND, PAD};
    // Border, its value, padding of the convolution, and what becomes of both.
    let cases: [(&[i64], f64, &[i64], Option<&[i64]>); 7] = [
        (&[0, 1, 0, 1], 0.0, &[0, 0], Some(&[0, 0, 1, 1])),
        (&[1, 1, 2, 2], 0.0, &[1, 0], Some(&[3, 1])),
        (&[3, 1], 0.0, &[1], Some(&[1, 4, 1, 2])),
        (&[1, 1], 0.5, &[0, 0], None),
        (&[1, -1], 0.0, &[0, 0], None),
        (&[0, 0, 0, 0, 0, 1], 0.0, &[0, 0], None),
        (&[0, 0, 2, 0], -0.0, &[0, 0], Some(&[2, 0, 0, 0])),
    ];
    for (pad, value, padding, want) in cases {
        let mut b = Builder::new();
        let x = b.input("x", ty(DType::F64, &[2, 3, 6, 7]), InputRole::User);
        let channels = 3 + if pad.len() > 4 { 1 } else { 0 };
        let w = b.input("w", ty(DType::F64, &[4, channels, 3, 2]), InputRole::User);
        let attrs = Attrs::new().with("pad", pad).with("value", value);
        let op = if pad.len() == 2 { &PAD } else { &CONSTANT_PAD_ND };
        let p = b.one(op, &[x], attrs).unwrap();
        let attrs = Attrs::new().with("padding", padding).with("stride", [2i64, 1]);
        // Both spellings, each with one of the convolution's.
        let y = match pad.len() {
            4 => b.one(&CONVOLUTION, &[p, w], attrs).unwrap(),
            _ => {
                let attrs = attrs.with("dilation", [1i64]).with("transposed", false);
                let attrs = attrs.with("output_padding", [0i64]).with("groups", 1i64);
                b.one(&GENERAL, &[p, w], attrs).unwrap()
            }
        };
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        let found = recognize(graph.clone()).unwrap().graph;
        assert_eq!(found.nodes.len(), if want.is_some() { 1 } else { 2 }, "{pad:?}\n{found}");
        if let Some(want) = want {
            assert_eq!(found.cx(&found.nodes[0]).ints("padding").unwrap(), want);
        }
        let number = |i: usize| ((i * 37) % 19) as f64 - 9.0;
        let tensor = |v: ValueId| {
            let shape = graph.ty(v).shape.clone();
            Tensor::float(DType::F64, shape.clone(), (0..shape.numel()).map(number).collect::<Vec<_>>())
        };
        let inputs = [tensor(x), tensor(w)];
        let run = |graph: &Graph| reference::run(&decompose(graph.clone()).unwrap(), &inputs).unwrap();
        assert_eq!(run(&graph), run(&found));
    }
}

#[test]
fn pooling_to_one_position_is_a_mean() {
    use headwater_core::ops::conv::avg_pool2d::ADAPTIVE_AVG_POOL2D;
    for (shape, size, want) in [
        (&[2, 3, 4, 5][..], &[1i64, 1][..], "mean"),
        (&[3, 4, 5], &[1], "mean"),
        (&[3, 4, 5], &[1, 2], "adaptive_avg_pool2d"),
        (&[0, 3, 4, 5], &[1, 1], "adaptive_avg_pool2d"),
    ] {
        let mut b = Builder::new();
        let x = b.input("x", ty(DType::F64, shape), InputRole::User);
        let attrs = Attrs::new().with("output_size", size);
        let y = b.one(&ADAPTIVE_AVG_POOL2D, &[x], attrs).unwrap();
        b.output("y", y, OutputRole::User);
        let graph = b.finish();
        let found = recognize(graph.clone()).unwrap().graph;
        assert_eq!(found.nodes[0].op.name, want, "{shape:?} {size:?}");
        // Sums of small whole numbers are exact in any order.
        let n = graph.ty(x).shape.numel();
        let x = Tensor::float(DType::F64, shape, (0..n).map(|i| (i * 37 % 19) as f64).collect::<Vec<_>>());
        let run = |graph: &Graph| reference::run(graph, std::slice::from_ref(&x)).unwrap();
        assert_eq!(run(&graph), run(&found));
    }
}
