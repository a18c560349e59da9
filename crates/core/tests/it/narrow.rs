//! Values that are read in part are made in part: fewer rows forward and backward, the same loss and
//! gradients.

use headwater_core::graph::verify::violations;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::attention::{attention::ATTENTION, sdpa::SDPA};
use headwater_core::ops::index::topk::TOPK;
use headwater_core::ops::linear::linear::LINEAR;
use headwater_core::ops::norm::{layer_norm::LAYER_NORM, softmax::SOFTMAX};
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::view::{select::SELECT, slice::SLICE, split::UNBIND, transpose::TRANSPOSE};
use headwater_core::pass::{decompose, demand, differentiate, recognize, simplify};
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, ValueId, reference};

const BATCH: usize = 2;
const TOKENS: usize = 5;
const HEADS: usize = 2;
const WIDTH: usize = 6;

/// Features in which models vary.
#[derive(Clone, Copy, Debug)]
struct Model {
    causal: bool,
    dropout: bool,
    /// A mask of this shape.
    mask: Option<&'static [usize]>,
    /// Reads a range of tokens, else one.
    range: Option<[i64; 2]>,
    /// The hidden states are a result as well.
    shown: bool,
}

const PLAIN: Model = Model { causal: false, dropout: false, mask: None, range: None, shown: false };

/// Two layers of an encoder, of whose last states a few are read.
fn graph(model: Model) -> Graph {
    let mut b = Builder::new();
    let mut x = b.parameter("x", DType::F64, &[BATCH, TOKENS, WIDTH]);
    let places = b.parameter("places", DType::F64, &[1, TOKENS, WIDTH]);
    x = b.add(x, places).unwrap();
    let mask = model.mask.map(|shape| b.parameter("mask", DType::F64, shape));
    let key = model.dropout.then(|| b.rng());
    for layer in 0..2 {
        x = block(&mut b, layer, x, model, mask, key);
    }
    let states = norm(&mut b, x);
    let read = match model.range {
        None => b.one(&SELECT, &[states], Attrs::new().with("dim", 1).with("index", -1)),
        Some([start, end]) => {
            let attrs = Attrs::new().with("dim", 1).with("start", start).with("end", end).with("step", 1);
            b.one(&SLICE, &[states], attrs)
        }
    };
    let read = read.unwrap();
    let square = b.mul(read, read).unwrap();
    let rank = b.ty(square).shape.rank();
    let loss = b.sum(square, &(0..rank).collect::<Vec<_>>(), false).unwrap();
    b.output("loss", loss, OutputRole::User);
    if model.shown {
        b.output("states", states, OutputRole::User);
    }
    decompose(b.finish()).unwrap()
}

fn block(
    b: &mut Builder,
    layer: usize,
    x: ValueId,
    model: Model,
    mask: Option<ValueId>,
    key: Option<ValueId>,
) -> ValueId {
    let linear = |b: &mut Builder, name: &str, x: ValueId, from: usize, to: usize| {
        let w = b.parameter(&format!("{layer}.{name}.weight"), DType::F64, &[to, from]);
        let bias = b.parameter(&format!("{layer}.{name}.bias"), DType::F64, &[to]);
        b.apply(&LINEAR, &[Some(x), Some(w), Some(bias)], Attrs::new()).unwrap()[0]
    };
    let normed = norm(b, x);
    let heads = |b: &mut Builder, x: ValueId| {
        let x = b.reshape(x, &[BATCH, TOKENS, HEADS, WIDTH / HEADS]).unwrap();
        b.one(&TRANSPOSE, &[x], Attrs::new().with("dim0", 1).with("dim1", 2)).unwrap()
    };
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let x = linear(b, name, normed, WIDTH, WIDTH);
        heads(b, x)
    });
    let mut attrs = Attrs::new().with("scale", 0.6).with("is_causal", model.causal);
    if model.dropout {
        attrs = attrs.with("dropout_p", 0.3).with("stream", layer as i64);
    }
    let seen = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), mask, key], attrs).unwrap()[0];
    let seen = b.permute(seen, &[0, 2, 1, 3]).unwrap();
    let seen = b.reshape(seen, &[BATCH, TOKENS, WIDTH]).unwrap();
    let seen = linear(b, "o", seen, WIDTH, WIDTH);
    let x = b.add(seen, x).unwrap();
    let y = norm(b, x);
    let y = linear(b, "up", y, WIDTH, 2 * WIDTH);
    let y = b.one(&GELU, &[y], Attrs::new().with("approximate", "none")).unwrap();
    let y = linear(b, "down", y, 2 * WIDTH, WIDTH);
    b.add(y, x).unwrap()
}

fn norm(b: &mut Builder, x: ValueId) -> ValueId {
    let attrs = Attrs::new().with("normalized_shape", [WIDTH as i64]).with("eps", 1e-5);
    b.apply(&LAYER_NORM, &[Some(x), None, None], attrs).unwrap()[0]
}

/// The loss and all gradients.
fn trained(graph: Graph) -> Vec<Tensor> {
    let loss = graph.outputs[0].value;
    let graph = simplify(decompose(differentiate(graph, loss).unwrap().graph).unwrap()).graph;
    let inputs: Vec<Tensor> = (graph.inputs.iter().enumerate())
        .map(|(i, input)| {
            let ty = graph.ty(input.value);
            if input.role == InputRole::Rng {
                return Tensor::int(DType::I64, ty.shape.clone(), vec![7, 1]);
            }
            if ty.dtype == DType::Bool {
                let seen = (0..ty.shape.numel()).map(|j| i64::from(j % 3 != 1)).collect();
                return Tensor::int(DType::Bool, ty.shape.clone(), seen);
            }
            let number = |j: usize| ((j * 37 + i * 11) % 23) as f64 / 23.0 - 0.4;
            Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(number).collect())
        })
        .collect();
    reference::run(&graph, &inputs).unwrap()
}

/// Shapes of the results of all nodes of an operator, in order.
fn shapes(graph: &Graph, op: &str) -> Vec<Vec<usize>> {
    let nodes = graph.nodes.iter().filter(|n| n.op.name == op);
    nodes.map(|n| graph.ty(n.outputs[0]).shape.to_vec()).collect()
}

/// Narrows a model, compares what it computes, and gives the shapes of its linear layers' and attention's
/// results.
fn narrowed(model: Model) -> [Vec<Vec<usize>>; 2] {
    let small = alike(graph(model), &model);
    ["linear", "attention"].map(|op| shapes(&small, op))
}

/// A graph narrowed: its loss and gradients are those of the whole.
fn alike(whole: Graph, how: &dyn std::fmt::Debug) -> Graph {
    let small = demand(whole.clone()).unwrap_or_else(|e| panic!("{how:?}: {e:?}"));
    assert_eq!(violations(&small), [], "{how:?}");
    let (want, got) = (trained(whole), trained(small.clone()));
    assert_eq!(want.len(), got.len());
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        assert_eq!(want.shape(), got.shape(), "{how:?}: result {i}");
        let size = want.floats().iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for (w, g) in want.floats().iter().zip(got.floats()) {
            // A dozen sums of at most a hundred terms, in sequence.
            assert!((w - g).abs() <= 1e3 * f64::EPSILON * size, "{how:?}: result {i}: {g} for {w}");
        }
    }
    small
}

const ALL: [usize; 3] = [BATCH, TOKENS, WIDTH];

#[test]
fn of_the_last_layer_keys_and_values_are_left() {
    for model in [
        PLAIN,
        Model { mask: Some(&[1, 1, TOKENS, TOKENS]), ..PLAIN },
        Model { mask: Some(&[BATCH, 1, 1, TOKENS]), ..PLAIN },
        Model { range: Some([1, 3]), ..PLAIN },
    ] {
        let n = model.range.map_or(1, |[start, end]| (end - start) as usize);
        let (some, up) = ([BATCH, n, WIDTH], [BATCH, n, 2 * WIDTH]);
        let [linear, attention] = narrowed(model);
        let first = [&ALL[..], &ALL, &ALL, &ALL, &[BATCH, TOKENS, 2 * WIDTH], &ALL];
        assert_eq!(linear[..6], first, "{model:?}");
        assert_eq!(linear[6..], [&some[..], &ALL, &ALL, &some, &up, &some], "{model:?}");
        let heads = |n: usize| vec![BATCH, HEADS, n, WIDTH / HEADS];
        assert_eq!(attention, [heads(TOKENS), heads(n)], "{model:?}");
    }
}

#[test]
fn attention_whose_queries_are_not_alike_stays() {
    for model in [Model { causal: true, ..PLAIN }, Model { dropout: true, ..PLAIN }] {
        let [linear, attention] = narrowed(model);
        assert_eq!(attention, vec![vec![BATCH, HEADS, TOKENS, WIDTH / HEADS]; 2], "{model:?}");
        // Nodes after it are narrow all the same.
        assert_eq!(linear[6..10], [&ALL[..], &ALL, &ALL, &[BATCH, 1, WIDTH]], "{model:?}");
    }
}

#[test]
fn what_is_read_as_a_whole_stays() {
    let model = Model { shown: true, ..PLAIN };
    let [linear, _] = narrowed(model);
    assert_eq!(linear[6..10], [&ALL[..], &ALL, &ALL, &ALL]);
    // A range that is all of it.
    let [linear, _] = narrowed(Model { range: Some([0, i64::MAX]), ..PLAIN });
    assert_eq!(linear[6..10], [&ALL[..], &ALL, &ALL, &ALL]);
}

#[test]
fn further_results_and_different_parts_stay() {
    let mut b = Builder::new();
    let x = b.parameter("x", DType::F64, &[2, 4]);
    // Both read one column, of the second result and of two places.
    let top = b.apply(&TOPK, &[Some(x)], Attrs::new().with("k", 2).with("dim", 1)).unwrap();
    let doubled = b.scale(x, 2.0).unwrap();
    let column = |x: ValueId, index: i64, b: &mut Builder| {
        b.one(&SELECT, &[x], Attrs::new().with("dim", 1).with("index", index)).unwrap()
    };
    let second = column(top[1], 1, &mut b);
    let [first, last] = [0, 3].map(|i| column(doubled, i, &mut b));
    let second = b.cast(second, DType::F64).unwrap();
    let sum = b.add(first, last).unwrap();
    let sum = b.add(sum, second).unwrap();
    // Narrowed, and so not to be had for what nobody reads.
    let exact = b.scale(x, 3.0).unwrap();
    let read = column(exact, 2, &mut b);
    let unread = b.scale(exact, 1.0).unwrap();
    b.scale(unread, 2.0).unwrap();
    let sum = b.add(sum, read).unwrap();
    b.output("sum", sum, OutputRole::User);
    let graph = b.finish();
    let small = demand(graph.clone()).unwrap();
    assert!(small.nodes.iter().any(|n| small.ty(n.outputs[0]).shape[..] == [2, 1]));
    let x = Tensor::float(DType::F64, [2, 4], vec![0.5, 3.0, 2.0, 1.0, 7.0, -1.0, 8.0, 9.0]);
    let run = |g: &Graph| reference::run(g, std::slice::from_ref(&x)).unwrap()[0].floats().to_vec();
    assert_eq!(run(&small), run(&graph));
    assert_eq!(run(&graph), [1.0 + 2.0 + 2.0 + 6.0, 14.0 + 18.0 + 2.0 + 24.0]);
}

/// Ways to read a part along a dimension.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Read {
    /// One index, from the end if it is negative.
    One(i64),
    /// From one index to another in steps.
    Range([i64; 3]),
    /// One of all that `unbind` gives.
    Unbound(usize),
    /// One index after the dimension was exchanged with the first.
    Exchanged(i64),
}

/// Masks of attention.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seen {
    All,
    Causal,
    Bools,
    Added,
}

/// The operators between attention and the part that is read.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Between {
    Nothing,
    Residual,
    Norm,
    Projection,
}

/// Attention of so many dimensions, of which a part is read along one.
fn attends(rank: usize, spelled: bool, seen: Seen, between: Between, dim: usize, read: Read) -> Graph {
    let (queries, keys, size) = (5, 4, 3);
    let mut b = Builder::new();
    let lead = &[2, 3, 2][3 - (rank - 2)..];
    let [q, k, v] = [("q", queries), ("k", keys), ("v", keys)]
        .map(|(name, n)| b.parameter(name, DType::F64, &[lead, &[n, size]].concat()));
    let mask = match seen {
        Seen::All | Seen::Causal => None,
        Seen::Bools => Some(b.input("mask", TensorType::new(DType::Bool, [queries, keys]), InputRole::User)),
        Seen::Added => Some(b.parameter("mask", DType::F64, &[queries, keys])),
    };
    let mut y = if spelled {
        let k = b.transpose(k, rank - 2, rank - 1).unwrap();
        let scores = b.matmul(q, k).unwrap();
        let mut scores = b.scale(scores, 0.6).unwrap();
        if let Some(mask) = mask {
            scores = b.add(scores, mask).unwrap();
        }
        let weights = b.one(&SOFTMAX, &[scores], Attrs::new().with("dim", -1)).unwrap();
        b.matmul(weights, v).unwrap()
    } else {
        let attrs = Attrs::new().with("is_causal", seen == Seen::Causal);
        b.apply(&SDPA, &[Some(q), Some(k), Some(v), mask], attrs).unwrap()[0]
    };
    if between == Between::Residual {
        y = b.add(y, q).unwrap();
    }
    if between == Between::Norm {
        let attrs = Attrs::new().with("normalized_shape", [size as i64]).with("eps", 1e-5);
        y = b.apply(&LAYER_NORM, &[Some(y), None, None], attrs).unwrap()[0];
    }
    if between == Between::Projection {
        let w = b.parameter("w", DType::F64, &[2, size]);
        y = b.apply(&LINEAR, &[Some(y), Some(w), None], Attrs::new()).unwrap()[0];
    }
    let select = |b: &mut Builder, y, dim: usize, index: i64| {
        b.one(&SELECT, &[y], Attrs::new().with("dim", dim as i64).with("index", index)).unwrap()
    };
    let y = match read {
        Read::One(index) => select(&mut b, y, dim, index),
        Read::Range([start, end, step]) => {
            let attrs = Attrs::new().with("dim", dim as i64).with("start", start);
            b.one(&SLICE, &[y], attrs.with("end", end).with("step", step)).unwrap()
        }
        Read::Unbound(i) => b.apply(&UNBIND, &[Some(y)], Attrs::new().with("dim", dim as i64)).unwrap()[i],
        Read::Exchanged(index) => {
            let y = b.transpose(y, 0, dim).unwrap();
            select(&mut b, y, 0, index)
        }
    };
    let square = b.mul(y, y).unwrap();
    let rank = b.ty(square).shape.rank();
    let loss = b.sum(square, &(0..rank).collect::<Vec<_>>(), false).unwrap();
    b.output("loss", loss, OutputRole::User);
    decompose(recognize(b.finish()).unwrap().graph).unwrap()
}

#[test]
fn attention_of_any_rank_is_read_in_any_way() {
    let reads = [
        Read::One(0),
        Read::One(-1),
        Read::Range([1, 2, 1]),
        Read::Range([-2, i64::MAX, 1]),
        Read::Range([0, i64::MAX, 2]),
        Read::Range([0, 0, 1]),
        Read::Unbound(1),
        Read::Exchanged(-1),
    ];
    let seen = [Seen::All, Seen::Causal, Seen::Bools, Seen::Added];
    let between = [Between::Nothing, Between::Residual, Between::Norm, Between::Projection];
    let mut narrow = 0;
    for rank in 2..=5 {
        for (spelled, seen, between) in [false, true]
            .into_iter()
            .flat_map(|s| seen.into_iter().flat_map(move |m| between.into_iter().map(move |b| (s, m, b))))
        {
            // A causal mask and one of bools are the operator's own.
            if spelled && matches!(seen, Seen::Causal | Seen::Bools) {
                continue;
            }
            for (dim, read) in (0..rank).flat_map(|dim| reads.into_iter().map(move |read| (dim, read))) {
                let how = (rank, spelled, seen, between, dim, read);
                let whole = attends(rank, spelled, seen, between, dim, read);
                let small = alike(whole, &how);
                let attention = shapes(&small, "attention");
                assert_eq!(attention.len(), usize::from(rank > 2 || !spelled), "{how:?}");
                if dim == rank - 2
                    && seen != Seen::Causal
                    && matches!(read, Read::One(_))
                    && !attention.is_empty()
                {
                    assert_eq!(attention[0][2], 1, "{how:?}");
                    narrow += 1;
                }
            }
        }
    }
    assert!(narrow > 100);
}
