//! Softmax attention in the one canonical form that devices write kernels for, and its gradient.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::random::philox;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::random::WORDS;
use crate::shape::Layout;
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// `(query [B, H, L, E], key [B, Hk, S, E], value [B, Hv, S, Ev], mask, rng)` to `[B, H, L, Ev]`, and for
/// each query its largest score and the softmax's denominator, `Σ exp(score − largest)`: `[B, H, L]` in f32
/// (f64 for f64). The gradient makes the weights again from these two. One number, the logarithm of the sum,
/// would not do: beside a largest score of −1e9, as masks make it, the logarithm of the number of keys is
/// rounded away, and with it what divides the weights.
///
/// Head `h` uses key head `h · Hk / H`; Hk and Hv divide H. The mask (optional) broadcasts to `[B, H, L, S]`:
/// bools say what takes part, floats are added. With `is_causal`, query `i` sees the keys up to `i`. A query
/// whose keys are all hidden, by −∞ or false, gives zeros, as PyTorch's operator does; −∞ is its largest
/// score, and 0 its denominator. With `nan_without_keys` it gives NaN, as PyTorch's softmax does, and NaN is
/// its denominator. With `dropout_p`, weights survive where a uniform number is less than `1 − dropout_p`,
/// and are scaled up by its inverse. The number is that of their index in `[B, H, L, S]`, from the stream
/// `stream` under the key `rng`.
pub static ATTENTION: OpDef = OpDef {
    name: "attention",
    schemas: &[
        "headwater::attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? rng, *, bool is_causal=False, float scale, float dropout_p=0., int? stream=None, bool nan_without_keys=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let a = Attention::of(cx, [0, 1, 2, 3, 4])?;
        let q = cx.dtype(0)?;
        let accumulator = if q == DType::F64 { DType::F64 } else { DType::F32 };
        let row = TensorType::new(accumulator, [a.batch, a.heads, a.l]);
        Ok(vec![TensorType::new(q, [a.batch, a.heads, a.l, a.ev]), row.clone(), row])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Attention::of(cx, [0, 1, 2, 3, 4]).map_or(0.0, |a| a.flops())),
    body: Body::Kernel(forward),
    cases: || {
        vec![
            qkv(Case::new("causal"), [1, 2, 2, 1], 3, 4)
                .none()
                .none()
                .attr("is_causal", true)
                .attr("scale", 0.7),
            qkv(Case::new("bool mask"), [2, 1, 1, 1], 2, 3)
                .arg(DType::Bool, &[2, 1, 1, 3], crate::ops::Sample::Values(vec![1., 0., 1., 0., 0., 0.]))
                .none()
                .attr("scale", 0.5),
            qkv(Case::new("added mask"), [1, 2, 1, 2], 3, 2).f(&[1, 2, 3, 2]).none().attr("scale", 1.0),
            qkv(Case::new("broadcast mask"), [1, 2, 1, 2], 3, 2).f(&[1, 1, 1, 2]).none().attr("scale", 1.0),
            qkv(Case::new("dropout"), [1, 2, 2, 2], 3, 3)
                .none()
                .index(&[2], 100)
                .attr("scale", 0.7)
                .attr("dropout_p", 0.4)
                .attr("stream", 3),
            qkv(Case::new("no keys"), [1, 1, 1, 1], 2, 0).none().none().attr("scale", 1.0),
        ]
    },
};

/// Gradients of [`ATTENTION`]: `(grad_output, query, key, value, output, largest, denominator, mask, rng)` to
/// those of query, key and value, and with `mask_grad` that of the mask before broadcasting is undone,
/// `[B, H, L, S]`. A query with a denominator of 0 has none, and one with NaN gives NaN to all.
///
/// Dao 2022, "FlashAttention", appendix B.2: `dS = P · (dP − Σ_e dO · O)`.
pub static ATTENTION_BACKWARD: OpDef = OpDef {
    name: "attention_backward",
    schemas: &[
        "headwater::attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor largest, Tensor denominator, Tensor? mask, Tensor? rng, *, bool mask_grad, bool is_causal=False, float scale, float dropout_p=0., int? stream=None) -> Tensor[]",
    ],
    infer: |cx| {
        let a = Attention::of(cx, BACKWARD)?;
        let out = [a.batch, a.heads, a.l, a.ev];
        ensure!(
            [0, 4].iter().all(|&i| cx.shape(i).is_ok_and(|s| s[..] == out))
                && [5, 6].iter().all(|&i| cx.shape(i).is_ok_and(|s| s[..] == out[..3])),
            Shape,
            "{} do not fit each other",
            cx.list_types()
        );
        let floats = [0, 4, 5, 6].iter().all(|&i| cx.ty(i).is_ok_and(|t| t.dtype.is_float()));
        ensure!(
            floats,
            DType,
            "gradient, output, largest score and denominator are floats, got {}",
            cx.list_types()
        );
        let mut types = vec![cx.ty(1)?.clone(), cx.ty(2)?.clone(), cx.ty(3)?.clone()];
        if cx.flag("mask_grad")? {
            ensure!(cx.dtype(7)?.is_float(), DType, "a mask of {} has no gradient", cx.dtype(7)?);
            types.push(TensorType::new(cx.dtype(7)?, [a.batch, a.heads, a.l, a.s]));
        }
        Ok(types)
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Attention::of(cx, BACKWARD).map_or(0.0, |a| 2.5 * a.flops())),
    body: Body::Kernel(backward),
    cases: || {
        let case = |name| {
            let c = Case::new(name).f(&[1, 2, 3, 2]).f(&[1, 2, 3, 2]).f(&[1, 1, 4, 2]).f(&[1, 1, 4, 2]);
            let c = c.f(&[1, 2, 3, 2]).range(&[1, 2, 3], 1.0, 2.0).range(&[1, 2, 3], 1.0, 4.0);
            c.attr("scale", 0.7)
        };
        vec![
            case("causal").none().none().attr("is_causal", true),
            case("mask").f(&[1, 1, 3, 4]).none().attr("mask_grad", true),
            case("dropout").none().index(&[2], 100).attr("dropout_p", 0.4).attr("stream", 3),
        ]
    },
};

fn qkv(case: Case, [batch, heads, hk, hv]: [usize; 4], l: usize, s: usize) -> Case {
    case.f(&[batch, heads, l, 2]).f(&[batch, hk, s, 2]).f(&[batch, hv, s, 3])
}

/// Positions of query, key, value, mask and rng among the inputs of the gradient.
const BACKWARD: [usize; 5] = [1, 2, 3, 7, 8];

/// The sizes and options of an attention node.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Samples.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Queries.
    pub l: usize,
    /// Keys.
    pub s: usize,
    /// Size of queries and keys.
    pub e: usize,
    /// Size of values.
    pub ev: usize,
    /// Factor on the scores.
    pub scale: f64,
    /// True if query `i` sees only the keys up to `i`.
    pub causal: bool,
    /// Share of weights dropped.
    pub dropout: f64,
    /// True if a query whose keys are all hidden gives NaN; otherwise it gives zeros.
    pub nan_without_keys: bool,
}

impl Attention {
    /// The geometry of a node whose query, key, value, mask and rng are the inputs `at`.
    ///
    /// # Errors
    /// `Shape`, `DType` or `Attribute` if they do not match.
    pub fn of(cx: &OpCx, at: [usize; 5]) -> Result<Attention> {
        let (q, k, v) = (cx.ty(at[0])?, cx.ty(at[1])?, cx.ty(at[2])?);
        let ([batch, heads, l, e], [bk, key_heads, s, ek], [bv, value_heads, sv, ev]) =
            (four(q)?, four(k)?, four(v)?);
        let shared = |h: usize| h > 0 && heads % h == 0;
        ensure!(
            bk == batch
                && bv == batch
                && e == ek
                && e > 0
                && s == sv
                && shared(key_heads)
                && shared(value_heads),
            Shape,
            "query {q}, key {k} and value {v} do not fit"
        );
        let one = q.dtype.is_float() && k.dtype == q.dtype && v.dtype == q.dtype;
        ensure!(one, DType, "query {q}, key {k} and value {v} must be of one floating-point dtype");
        if let Some(m) = cx.opt(at[3]) {
            let fits = m.shape.rank() == 4
                && (0..4).all(|d| m.shape[d] == 1 || m.shape[d] == [batch, heads, l, s][d]);
            ensure!(fits, Shape, "mask {m} does not broadcast to [{batch}, {heads}, {l}, {s}]");
            ensure!(
                m.dtype == DType::Bool || m.dtype.is_float(),
                DType,
                "a mask is of bools or floats, not {m}"
            );
        }
        let scores = crate::Shape::new(&[batch, heads, l, s]);
        ensure!(scores.checked_numel().is_some(), Size, "scores {scores} are larger than memory can be");
        let dropout = cx.opt_float("dropout_p")?.unwrap_or(0.0);
        ensure!(
            (0.0..=1.0).contains(&dropout),
            Attribute,
            "`dropout_p` must be between 0 and 1, got {dropout}"
        );
        if dropout > 0.0 {
            philox::key(cx, at[4])?;
            philox::number(cx)?;
            let few = scores.numel() as u64 <= WORDS;
            ensure!(few, Size, "dropout of {scores} weights needs more than 2^34 random numbers");
        }
        let (scale, causal) = (cx.float("scale")?, cx.flag("is_causal")?);
        // A softmax of nothing has nothing that could be NaN.
        let nan_without_keys = s > 0 && cx.flag("nan_without_keys")?;
        Ok(Attention {
            batch,
            heads,
            key_heads,
            value_heads,
            l,
            s,
            e,
            ev,
            scale,
            causal,
            dropout,
            nan_without_keys,
        })
    }

    /// The geometry of a gradient node.
    ///
    /// # Errors
    /// As [`Attention::of`].
    pub fn of_backward(cx: &OpCx) -> Result<Attention> {
        Attention::of(cx, BACKWARD)
    }

    /// Operations of the forward pass's two products, of what a causal mask leaves.
    pub fn flops(&self) -> f64 {
        let (l, s) = (self.l as f64, self.s as f64);
        let both = l.min(s);
        // Query `i` sees `i + 1` keys until it sees all.
        let scores = if self.causal { both * (both + 1.0) / 2.0 + (l - both) * s } else { l * s };
        2.0 * (self.batch * self.heads) as f64 * scores * (self.e + self.ev) as f64
    }

    /// The factor of surviving weights.
    pub fn survivor_scale(&self) -> f64 {
        if self.dropout < 1.0 { 1.0 / (1.0 - self.dropout) } else { 0.0 }
    }
}

fn four(t: &TensorType) -> Result<[usize; 4]> {
    t.shape[..].try_into().map_err(|_| fail!(Shape, "attention needs [batch, heads, length, size], got {t}"))
}

/// The operands of both directions as the reference reads them.
struct Operands<'a> {
    a: Attention,
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    /// Numbers to add to the scores in `[B, H, L, S]`; −∞ where a query does not see a key.
    added: Vec<f64>,
    /// Factors on the weights.
    kept: Vec<f64>,
}

impl<'a> Operands<'a> {
    fn of(cx: &OpCx, a: Attention, inputs: &[Option<&'a Tensor>], at: [usize; 5]) -> Result<Operands<'a>> {
        let get = |i: usize| inputs.get(i).copied().flatten();
        let float = |i: usize| get(i).expect("typed").floats();
        let full = crate::Shape::new(&[a.batch, a.heads, a.l, a.s]);
        let mut added = vec![0.0; full.numel()];
        if let Some(mask) = get(at[3]) {
            let own = mask.shape().strides();
            let strides = (0..4).map(|d| if mask.shape()[d] == 1 { 0 } else { own[d] }).collect();
            let places = Layout { shape: full.clone(), strides, offset: 0 }.offsets();
            let value = |i: usize| match &mask.data {
                crate::tensor::Data::Float(v) => v[i],
                crate::tensor::Data::Int(v) => {
                    if v[i] != 0 {
                        0.0
                    } else {
                        f64::NEG_INFINITY
                    }
                }
            };
            added = places.into_iter().map(|i| value(i as usize)).collect();
        }
        if a.causal {
            for (i, x) in added.iter_mut().enumerate() {
                let (query, key) = (i / a.s % a.l, i % a.s);
                if key > query {
                    *x = f64::NEG_INFINITY;
                }
            }
        }
        let mut kept = vec![1.0; full.numel()];
        if a.dropout > 0.0 {
            let stream = philox::stream(cx, get(at[4]).expect("typed"))?;
            for (x, i) in kept.iter_mut().zip(0..) {
                *x = if stream.uniform(i) < 1.0 - a.dropout { a.survivor_scale() } else { 0.0 };
            }
        }
        Ok(Operands { a, q: float(at[0]), k: float(at[1]), v: float(at[2]), added, kept })
    }

    /// Every query: its row among all `[B, H, L]`, and the first rows of its keys and values.
    fn queries(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let a = self.a;
        (0..a.batch * a.heads * a.l).map(move |row| {
            let (b, h) = (row / a.l / a.heads, row / a.l % a.heads);
            let start = |heads: usize| (b * heads + h / (a.heads / heads)) * a.s;
            (row, start(a.key_heads), start(a.value_heads))
        })
    }

    /// The scores of a query, mask added.
    fn scores(&self, row: usize, k: usize) -> Vec<f64> {
        let a = &self.a;
        let q = &self.q[row * a.e..][..a.e];
        let score = |j: usize| a.scale * dot(q, &self.k[(k + j) * a.e..][..a.e]) + self.added[row * a.s + j];
        (0..a.s).map(score).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn axpy(y: &mut [f64], a: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

fn forward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let at = [0, 1, 2, 3, 4];
    let o = Operands::of(cx, Attention::of(cx, at)?, inputs, at)?;
    let a = o.a;
    let (mut out, mut largest, mut sums) = (vec![0.0; outs[0].shape.numel()], Vec::new(), Vec::new());
    for (row, k, v) in o.queries() {
        let scores = o.scores(row, k);
        let max = scores.iter().fold(f64::NEG_INFINITY, |m, &s| if s > m || s.is_nan() { s } else { m });
        largest.push(max);
        let out = &mut out[row * a.ev..][..a.ev];
        if max == f64::NEG_INFINITY {
            let (value, sum) = if a.nan_without_keys { (f64::NAN, f64::NAN) } else { (0.0, 0.0) };
            out.fill(value);
            sums.push(sum);
            continue;
        }
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        sums.push(sum);
        for (j, s) in scores.iter().enumerate() {
            let weight = (s - max).exp() / sum * o.kept[row * a.s + j];
            axpy(out, weight, &o.v[(v + j) * a.ev..][..a.ev]);
        }
    }
    let results = [out, largest, sums];
    Ok(outs.iter().zip(results).map(|(t, x)| Tensor::float(t.dtype, t.shape.clone(), x)).collect())
}

fn backward(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let o = Operands::of(cx, Attention::of(cx, BACKWARD)?, inputs, BACKWARD)?;
    let a = o.a;
    let float = |i: usize| inputs[i].expect("typed").floats();
    let (g, y, largest, sums) = (float(0), float(4), float(5), float(6));
    let zeros = |t: &TensorType| vec![0.0; t.shape.numel()];
    let (mut dq, mut dk, mut dv) = (zeros(&outs[0]), zeros(&outs[1]), zeros(&outs[2]));
    let mut ds = vec![0.0; o.added.len()];
    for (row, k, v) in o.queries() {
        if sums[row] == 0.0 {
            continue;
        }
        let g = &g[row * a.ev..][..a.ev];
        let through = dot(g, &y[row * a.ev..][..a.ev]);
        for (j, s) in o.scores(row, k).into_iter().enumerate() {
            let (weight, kept) = ((s - largest[row]).exp() / sums[row], o.kept[row * a.s + j]);
            axpy(&mut dv[(v + j) * a.ev..][..a.ev], weight * kept, g);
            let slope = weight * (kept * dot(g, &o.v[(v + j) * a.ev..][..a.ev]) - through);
            axpy(&mut dq[row * a.e..][..a.e], a.scale * slope, &o.k[(k + j) * a.e..][..a.e]);
            axpy(&mut dk[(k + j) * a.e..][..a.e], a.scale * slope, &o.q[row * a.e..][..a.e]);
            ds[row * a.s + j] = slope;
        }
    }
    let results = [dq, dk, dv, ds];
    Ok(outs.iter().zip(results).map(|(t, d)| Tensor::float(t.dtype, t.shape.clone(), d)).collect())
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    if cx.opt_grad(1).or(cx.opt_grad(2)).is_some() {
        return Err(fail!(
            Gradient,
            "the gradient of attention's largest scores and denominators is not taken"
        ));
    }
    let g = cx.grad(0)?;
    let kept = [cx.y(0), cx.y(1), cx.y(2)].map(Some);
    let operands = [cx.opt_x(0), cx.opt_x(1), cx.opt_x(2)];
    let inputs = [&[Some(g)][..], &operands, &kept, &[cx.opt_x(3), cx.opt_x(4)]].concat();
    let mut attrs = cx.attrs().clone().with("mask_grad", cx.needs(3));
    // The denominator says so.
    attrs.remove("nan_without_keys");
    let grads = cx.apply(&ATTENTION_BACKWARD, &inputs, attrs)?;
    grads.into_iter().enumerate().try_for_each(|(i, d)| cx.set(i, d))
}
