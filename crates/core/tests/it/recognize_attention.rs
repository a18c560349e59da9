//! Attention that models spell out becomes the operator: the same numbers but for the order of sums, forward
//! and backward.

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::norm::softmax::SOFTMAX;
use headwater_core::ops::random::dropout::DROPOUT;
use headwater_core::ops::view::{clone::CLONE, expand::EXPAND};
use headwater_core::pass::recognize::Exactness;
use headwater_core::pass::{canonical, decompose, differentiate, recognize};
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId, reference};

const BATCH: usize = 2;
const HEADS: usize = 3;
const L: usize = 4;
const S: usize = 5;
const E: usize = 2;
const EV: usize = 3;

/// Features in which models vary.
#[derive(Clone, Copy, Debug)]
struct Spelling {
    dtype: DType,
    /// Products of three dimensions between reshapes, as exported core graphs have them.
    flat: bool,
    mask: Option<&'static [usize]>,
    mask_first: bool,
    /// The scores are divided by a number, or else multiplied.
    divided: Option<bool>,
    dropout: Option<(f64, bool)>,
    softmax: i64,
    /// The weights are a result of the model.
    shown: bool,
    /// Keys of two heads are repeated.
    repeated: bool,
}

const PLAIN: Spelling = Spelling {
    dtype: DType::F64,
    flat: false,
    mask: None,
    mask_first: false,
    divided: None,
    dropout: None,
    softmax: -1,
    shown: false,
    repeated: false,
};

/// The product as the importer gets it: `bmm` of what is expanded, copied and reshaped, or `matmul`.
fn product(b: &mut Builder, flat: bool, x: ValueId, y: ValueId) -> ValueId {
    if !flat {
        return b.matmul(x, y).unwrap();
    }
    let [x, y] = [x, y].map(|v| {
        let shape = b.ty(v).shape.clone();
        let v = b.one(&EXPAND, &[v], Attrs::new().with("size", shape.to_ints())).unwrap();
        let v = b.call(&CLONE, &[v]).unwrap();
        b.reshape(v, &[shape[0] * shape[1], shape[2], shape[3]]).unwrap()
    });
    let z = b.matmul(x, y).unwrap();
    let [m, n] = [b.ty(z).shape[1], b.ty(z).shape[2]];
    b.reshape(z, &[BATCH, HEADS, m, n]).unwrap()
}

fn graph(how: Spelling) -> Graph {
    let mut b = Builder::new();
    let mut heads = |name: &str, length: usize, size: usize, heads: usize| {
        let x = b.parameter(name, how.dtype, &[BATCH, length, heads, size]);
        b.permute(x, &[0, 2, 1, 3]).unwrap()
    };
    let own = if how.repeated { 1 } else { HEADS };
    let (q, mut k, mut v) = (heads("q", L, E, HEADS), heads("k", S, E, own), heads("v", S, EV, own));
    if how.repeated {
        [k, v] = [k, v].map(|x| {
            let shape = b.ty(x).shape.clone();
            let x = b.unsqueeze(x, 2).unwrap();
            let x = b.expand(x, &[BATCH, own, HEADS / own, shape[2], shape[3]]).unwrap();
            b.reshape(x, &[BATCH, HEADS, shape[2], shape[3]]).unwrap()
        });
    }
    let kt = b.permute(k, &[0, 1, 3, 2]).unwrap();
    let mut scores = product(&mut b, how.flat, q, kt);
    scores = match how.divided {
        None => scores,
        Some(false) => b.scale(scores, 0.7).unwrap(),
        Some(true) => {
            let by = Attrs::new().with("other", 2.0);
            b.one(&headwater_core::ops::pointwise::div::DIV, &[scores], by).unwrap()
        }
    };
    if let Some(shape) = how.mask {
        let mask = b.parameter("mask", how.dtype, shape);
        scores = if how.mask_first { b.add(mask, scores) } else { b.add(scores, mask) }.unwrap();
    }
    let mut weights = b.one(&SOFTMAX, &[scores], Attrs::new().with("dim", how.softmax)).unwrap();
    if how.shown {
        b.output("weights", weights, OutputRole::User);
    }
    if let Some((p, train)) = how.dropout {
        weights = b.one(&DROPOUT, &[weights], Attrs::new().with("p", p).with("train", train)).unwrap();
    }
    let y = product(&mut b, how.flat, weights, v);
    let y = b.permute(y, &[0, 2, 1, 3]).unwrap();
    let square = b.mul(y, y).unwrap();
    let loss = b.sum(square, &[0, 1, 2, 3], false).unwrap();
    b.graph_mut().outputs.reverse();
    b.output("loss", loss, OutputRole::User);
    b.graph_mut().outputs.reverse();
    b.finish()
}

fn trained(graph: Graph) -> Graph {
    let loss = graph.outputs[0].value;
    decompose(differentiate(graph, loss).unwrap().graph).unwrap()
}

fn numbers(graph: &Graph) -> Vec<Tensor> {
    let tensor = |(k, i): (usize, &headwater_core::graph::Input)| {
        let ty = graph.ty(i.value);
        if i.role == InputRole::Rng {
            return Tensor::int(DType::I64, [2], vec![7, 1]);
        }
        let number = |i: usize| ((i * 37 + k * 11 + 3) % 101) as f64 / 50.0 - 1.0;
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(number).collect::<Vec<_>>())
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

fn count(graph: &Graph, op: &str) -> usize {
    graph.nodes.iter().filter(|n| n.op.name == op).count()
}

#[test]
fn what_models_write_becomes_attention_with_its_gradients() {
    let mut spellings = Vec::new();
    for flat in [false, true] {
        for divided in [None, Some(false), Some(true)] {
            let masks: [Option<&[usize]>; 4] =
                [None, Some(&[BATCH, 1, 1, S]), Some(&[L, S]), Some(&[BATCH, HEADS, L, S])];
            for mask in masks {
                let mask_first = flat ^ divided.is_some();
                spellings.push(Spelling { flat, divided, mask, mask_first, ..PLAIN });
            }
        }
        spellings.push(Spelling { flat, dropout: Some((0.1, false)), softmax: 3, ..PLAIN });
        spellings.push(Spelling { flat, repeated: true, ..PLAIN });
    }
    for how in spellings {
        let original = graph(how);
        let found = recognize(original.clone()).unwrap().found;
        assert_eq!(found[0].exactness, Exactness::Reordered, "{how:?}");
        let spelled = trained(decompose(original.clone()).unwrap());
        let attention = trained(canonical(original).unwrap());
        assert_eq!(
            (count(&attention, "attention"), count(&attention, "matmul")),
            (1, 0),
            "{how:?}\n{attention}"
        );
        if how.repeated {
            let node = attention.nodes.iter().find(|n| n.op.name == "attention").unwrap();
            assert_eq!(attention.ty(node.inputs[1].unwrap()).shape[1], 1, "heads stay shared");
        }
        let inputs = numbers(&spelled);
        let want = reference::run(&spelled, &inputs).unwrap();
        let got = reference::run(&attention, &inputs).unwrap();
        assert_eq!(want.len(), got.len());
        for (want, got) in want.iter().zip(&got) {
            for (w, g) in want.floats().iter().zip(got.floats()) {
                // Sums of at most 120 terms of order 1, in another order.
                assert!((w - g).abs() <= 128.0 * f64::EPSILON * (1.0 + w.abs()), "{w} {g}: {how:?}");
            }
        }
    }
}

#[test]
fn dropout_of_the_weights_becomes_that_of_attention() {
    let graph = canonical(graph(Spelling { dropout: Some((0.25, true)), ..PLAIN })).unwrap();
    let node = graph.nodes.iter().find(|n| n.op.name == "attention").unwrap();
    assert_eq!(graph.cx(node).float("dropout_p"), Ok(0.25));
}

#[test]
fn other_things_stay_as_they_are() {
    let stays = [
        Spelling { shown: true, ..PLAIN },
        Spelling { softmax: 2, ..PLAIN },
        // Low precision rounds scores and weights, which the operator does not.
        Spelling { dtype: DType::BF16, ..PLAIN },
    ];
    for how in stays {
        let r = recognize(graph(how)).unwrap();
        assert!(r.found.is_empty(), "{how:?}\n{}", r.graph);
        assert_eq!(count(&r.graph, "softmax"), 1);
    }
}

#[test]
fn f32_is_recognised() {
    let graph = canonical(graph(Spelling { dtype: DType::F32, divided: Some(true), ..PLAIN })).unwrap();
    let ty = TensorType::new(DType::F32, [BATCH, HEADS, L, EV]);
    let node = graph.nodes.iter().find(|n| n.op.name == "attention").unwrap();
    assert_eq!(*graph.ty(node.outputs[0]), ty);
}
