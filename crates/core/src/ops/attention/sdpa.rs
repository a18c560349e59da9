//! Attention as PyTorch spells it, brought to the one form of [`ATTENTION`].

use super::attention::ATTENTION;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::log::LOG;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `softmax(query · keyᵀ · scale + mask) · value` over `[…, L, E]`, `[…, S, E]`, `[…, S, Ev]`; also the
/// logarithm of the softmax's denominator, `[…, L]` in f32 (f64 for f64).
///
/// The mask broadcasts to `[…, L, S]`: of bools, true takes part; of floats, it is added. `is_causal` lets
/// query `i` see the keys up to `i`. `scale` is `1 / √E` unless given. With `enable_gqa` several query heads
/// (dimension -3) share a key head. A query whose keys are all hidden, by false or −∞, gives zeros; the form
/// with `nan_without_keys` stands for the spelled-out softmax, which gives NaN.
pub static SDPA: OpDef = OpDef {
    name: "scaled_dot_product_attention",
    schemas: &[
        "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
        "_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
        "headwater::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., *, float? scale=None, bool enable_gqa=False, bool nan_without_keys=False) -> (Tensor output, Tensor logsumexp)",
    ],
    infer: |cx| {
        let d = Dims::of(cx)?;
        let q = cx.dtype(0)?;
        let accumulator = if q == DType::F64 { DType::F64 } else { DType::F32 };
        let with = |last: &[usize]| d.batch.iter().copied().chain(last.iter().copied()).collect::<Shape>();
        Ok(vec![TensorType::new(q, with(&[d.l, d.ev])), TensorType::new(accumulator, with(&[d.l]))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(decompose),
    cases: || {
        let qkv = |name, q: &[usize], k: &[usize], v: &[usize]| Case::new(name).f(q).f(k).f(v);
        vec![
            qkv("plain", &[2, 2, 3, 4], &[2, 2, 5, 4], &[2, 2, 5, 3]).none(),
            qkv("causal", &[1, 2, 3, 2], &[1, 2, 4, 2], &[1, 2, 4, 2]).none().attr("is_causal", true),
            qkv("bool mask", &[2, 1, 3, 2], &[2, 1, 3, 2], &[2, 1, 3, 2])
                .mask(&[2, 1, 1, 3])
                .attr("scale", 0.3),
            qkv("added mask", &[1, 2, 3, 2], &[1, 2, 3, 2], &[1, 2, 3, 2]).f(&[3, 3]),
            qkv("shared heads", &[1, 4, 2, 3], &[1, 2, 3, 3], &[1, 2, 3, 3]).none().attr("enable_gqa", true),
            qkv("one head, no batch", &[3, 2], &[4, 2], &[4, 2]).none(),
            qkv("many batches", &[2, 1, 2, 3, 2], &[1, 2, 2, 3, 2], &[1, 2, 2, 3, 2]).mask(&[2, 1, 3, 3]),
            qkv("dropout", &[1, 2, 3, 2], &[1, 2, 3, 2], &[1, 2, 3, 2]).none().attr("dropout_p", 0.4),
        ]
    },
};

/// The sizes of an attention.
#[derive(Debug)]
struct Dims {
    /// Broadcast leading dimensions, with the query's heads.
    batch: Shape,
    l: usize,
    s: usize,
    ev: usize,
    e: usize,
}

impl Dims {
    fn heads(&self) -> usize {
        self.batch.last().copied().unwrap_or(1)
    }

    /// All leading dimensions but the heads, flattened.
    fn outer(&self) -> usize {
        self.batch.iter().rev().skip(1).product()
    }

    fn of(cx: &OpCx) -> Result<Dims> {
        let (q, k, v) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
        let one = q.dtype.is_float() && k.dtype == q.dtype && v.dtype == q.dtype;
        ensure!(one, DType, "query, key and value must be of one floating-point dtype: {}", cx.list_types());
        ensure!(
            [q, k, v].iter().all(|t| t.shape.rank() >= 2),
            Shape,
            "attention needs [..., length, size], got {}",
            cx.list_types()
        );
        let last = |t: &TensorType| (t.shape[t.shape.rank() - 2], t.shape[t.shape.rank() - 1]);
        let ((l, e), (s, ek), (sv, ev)) = (last(q), last(k), last(v));
        ensure!(e == ek && e > 0 && s == sv, Shape, "query, key and value do not fit: {}", cx.list_types());
        let lead = |t: &TensorType| Shape::new(&t.shape[..t.shape.rank() - 2]);
        let (mut bk, mut bv) = (lead(k), lead(v));
        if cx.flag("enable_gqa")? {
            ensure!(q.shape.rank() >= 3, Shape, "`enable_gqa` needs a dimension of heads, got {q}");
            bk = shared(&lead(q), &bk)?;
            bv = shared(&lead(q), &bv)?;
        }
        let batch = lead(q).broadcast(&bk).and_then(|b| b.broadcast(&bv));
        let Some(batch) = batch else {
            return Err(crate::fail!(Shape, "leading dimensions differ in {}", cx.list_types()));
        };
        if let Some(m) = cx.opt(3) {
            ensure!(
                m.dtype == DType::Bool || m.dtype.is_float(),
                DType,
                "the mask must be of bools or floats, it is {m}"
            );
            let full: Shape = batch.iter().copied().chain([l, s]).collect();
            ensure!(
                full.broadcast(&m.shape) == Some(full.clone()),
                Shape,
                "mask {m} does not broadcast to {full}"
            );
        }
        let p = cx.opt_float("dropout_p")?.unwrap_or(0.0);
        ensure!((0.0..=1.0).contains(&p), Attribute, "`dropout_p` must be between 0 and 1, got {p}");
        Ok(Dims { batch, l, s, ev, e })
    }
}

/// Leading dimensions of keys whose heads are each repeated to serve the query's.
fn shared(query: &Shape, key: &Shape) -> Result<Shape> {
    let (hq, hk) = (query.last().copied().unwrap_or(1), key.last().copied().unwrap_or(0));
    ensure!(hk > 0 && hq % hk == 0, Shape, "{hq} query heads cannot share {hk} key heads");
    let mut out = key.to_vec();
    *out.last_mut().expect("a dimension of heads") = hq;
    Ok(out.into())
}

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let d = Dims::of(cx)?;
    let (batch, heads) = (d.outer(), d.heads());
    // To [batch, heads, length, size].
    let four = |b: &mut Builder, v: ValueId, heads: usize, last: [usize; 2]| {
        let mut full = d.batch.to_vec();
        if let Some(h) = full.last_mut() {
            *h = heads;
        }
        full.extend(last);
        let v = b.expand(v, &full)?;
        b.reshape(v, &[batch, heads, last[0], last[1]])
    };
    // Keys and values that heads share stay shared.
    let own_heads = |t: &TensorType| t.shape.iter().rev().nth(2).copied().unwrap_or(1);
    let q = four(b, inputs[0].expect("typed"), heads, [d.l, d.e])?;
    let k = four(b, inputs[1].expect("typed"), own_heads(cx.ty(1)?), [d.s, d.e])?;
    let v = four(b, inputs[2].expect("typed"), own_heads(cx.ty(2)?), [d.s, d.ev])?;
    let mask = inputs.get(3).copied().flatten().map(|m| four_mask(b, m, &d)).transpose()?;
    let scale = cx.opt_float("scale")?.unwrap_or(1.0 / (d.e as f64).sqrt());
    let mut attrs = Attrs::new().with("is_causal", cx.flag("is_causal")?).with("scale", scale);
    if cx.flag("nan_without_keys")? {
        attrs = attrs.with("nan_without_keys", true);
    }
    let p = cx.opt_float("dropout_p")?.unwrap_or(0.0);
    let mut rng = None;
    if p > 0.0 {
        attrs = attrs.with("dropout_p", p).with("stream", b.stream());
        rng = Some(b.rng());
    }
    let outs = b.apply(&ATTENTION, &[Some(q), Some(k), Some(v), mask, rng], attrs)?;
    let shape: Shape = d.batch.iter().copied().chain([d.l]).collect();
    let log = b.call(&LOG, &[outs[2]])?;
    let lse = b.add(outs[1], log)?;
    let lse = b.reshape(lse, &shape)?;
    let shape: Shape = shape.iter().copied().chain([d.ev]).collect();
    Ok(vec![b.reshape(outs[0], &shape)?, lse])
}

/// PyTorch's kernel for CPUs multiplies the -inf of masked scores by the scale.
pub fn departs(cx: &OpCx) -> Option<&'static str> {
    let scale = cx.opt_float("scale").ok().flatten();
    (scale.is_some_and(|s| s <= 0.0) && cx.flag("is_causal").is_ok_and(|causal| causal)).then_some(
        "with `is_causal` and a scale of 0 or less, PyTorch's kernel for CPUs multiplies the -inf of masked scores by the \
         scale and gives NaN; the same formula in single operators is finite",
    )
}

/// The mask with four dimensions; those it broadcasts along stay 1.
fn four_mask(b: &mut Builder, mask: ValueId, d: &Dims) -> Result<ValueId> {
    let own = b.ty(mask).shape.clone();
    if own.rank() <= 4 && d.batch.rank() <= 2 {
        let lead = vec![1; 4 - own.rank()];
        let shape: Vec<usize> = lead.into_iter().chain(own.iter().copied()).collect();
        return b.reshape(mask, &shape);
    }
    let full: Vec<usize> = d.batch.iter().copied().chain([d.l, d.s]).collect();
    let mask = b.expand(mask, &full)?;
    b.reshape(mask, &[d.outer(), d.heads(), d.l, d.s])
}
