//! Indexing by tensors, as NumPy's advanced indexing.

use super::index_put::INDEX_PUT_IMPL;
use super::{given, integers, resolve, take};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::{Layout, Shape};
use crate::tensor::{Tensor, TensorType};
use crate::{DType, ensure, fail};

/// `self[indices]`: one integer index for each leading dimension, `None` for a whole one; the indices are
/// broadcast against each other. Their dimensions replace the indexed ones if those are adjacent, else first.
/// Negative indices count from the end (attribute `wrap`, absent is true).
pub static INDEX: OpDef = OpDef {
    name: "index",
    schemas: &[
        "index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
        "_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, Indexing::of(cx, cx.inputs.len())?.out)]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x) = (cx.grad(0)?, cx.x(0)?);
        let ty = TensorType::new(cx.ty(g).dtype, cx.ty(x).shape.clone());
        let zeros = cx.full(&ty, 0.0)?;
        let mut inputs = vec![Some(zeros)];
        inputs.extend((1..cx.arity()).map(|i| cx.opt_x(i)));
        inputs.push(Some(g));
        let attrs = wrap_of(&cx.args())?.with("accumulate", true);
        let dx = cx.apply(&INDEX_PUT_IMPL, &inputs, attrs)?[0];
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let at = Indexing::of(cx, inputs.len())?.places(cx, inputs)?;
        Ok(vec![Tensor { ty: outs[0].clone(), data: take(given(inputs, 0)?, &at) }])
    }),
    cases: || {
        let signed = crate::ops::Sample::Uniform(-3.0, 3.0);
        vec![
            Case::new("first").f(&[3, 4]).index(&[5], 3),
            Case::new("wrapped").f(&[3, 2]).arg(DType::I64, &[2, 3], signed),
            Case::new("not wrapped").f(&[3, 2]).index(&[4], 3).attr("wrap", false),
            Case::new("neighbours").f(&[2, 3, 4]).none().index(&[2, 1], 3).index(&[3], 4),
            Case::new("apart").f(&[2, 3, 4]).index(&[2, 2], 2).none().index(&[2, 2], 4),
            Case::new("of ints").index(&[4, 2], 9).index(&[3, 1], 4).index(&[2], 2),
            Case::new("nothing").f(&[3, 4]).index(&[0], 3),
        ]
    },
};

/// An indexing resolved: which dimensions are indexed and where the result's elements come from.
#[derive(Debug)]
pub struct Indexing {
    /// Indexed dimensions, ascending; input `d + 1` holds the index of dimension `d`.
    pub dims: Vec<usize>,
    /// Broadcast shape of the indices.
    pub index: Shape,
    /// Position of the indices' dimensions in the result.
    pub first: usize,
    /// Shape of the result.
    pub out: Shape,
    /// True if negative indices count from the end.
    pub wrap: bool,
}

impl Indexing {
    /// The geometry of input 0, indexed by inputs `1..end`.
    ///
    /// # Errors
    /// `Unsupported` for masks: how much they select depends on the data. `Shape` if the indices do not fit.
    pub fn of(cx: &OpCx, end: usize) -> Result<Indexing> {
        let x = cx.shape(0)?;
        ensure!(end <= x.rank() + 1, Shape, "{} indices for {x}", end - 1);
        let dims: Vec<usize> = (0..end.saturating_sub(1)).filter(|&d| cx.opt(d + 1).is_some()).collect();
        let mut index = Shape::default();
        for &d in &dims {
            let t = cx.ty(d + 1)?;
            ensure!(
                t.dtype != DType::Bool,
                Unsupported,
                "the size of a result selected by the mask {t} depends on the data: use where or masked_fill"
            );
            integers(cx, d + 1)?;
            let both = index.broadcast(&t.shape);
            index = both.ok_or_else(|| fail!(Shape, "indices in {} do not broadcast", cx.list_types()))?;
        }
        let neighbours = dims.windows(2).all(|w| w[1] == w[0] + 1);
        let first = if neighbours { dims.first().copied().unwrap_or(0) } else { 0 };
        let mut out: Vec<usize> = (0..x.rank()).filter(|d| !dims.contains(d)).map(|d| x[d]).collect();
        out.splice(first..first, index.iter().copied());
        let wrap = cx.attrs.get("wrap").is_none() || cx.flag("wrap")?;
        Ok(Indexing { dims, index, first, out: out.into(), wrap })
    }

    /// Row-major offset in input 0 of every element of the result.
    ///
    /// # Errors
    /// `Value` if an index is out of range.
    pub fn places(&self, cx: &OpCx, inputs: &[Option<&Tensor>]) -> Result<Vec<usize>> {
        let x = cx.shape(0)?;
        let strides = x.strides();
        // The share of the indices in offsets, for each element of their broadcast shape.
        let mut picked = vec![0usize; self.index.numel()];
        for &d in &self.dims {
            let t = given(inputs, d + 1)?;
            for (sum, at) in picked.iter_mut().zip(t.shape().broadcast_offsets(&self.index)) {
                *sum += resolve(t.ints()[at], at, x[d], self.wrap)? * strides[d] as usize;
            }
        }
        // The share of the other dimensions in offsets, walked over the result's shape with the indices'
        // strides 0.
        let rest = (0..x.rank()).filter(|d| !self.dims.contains(d)).map(|d| strides[d]);
        let mut walk: Vec<isize> = rest.collect();
        walk.splice(self.first..self.first, self.index.iter().map(|_| 0));
        let rest = Layout { shape: self.out.clone(), strides: walk[..].into(), offset: 0 }.offsets();
        let mut walk = vec![0; self.out.rank()];
        walk[self.first..self.first + self.index.rank()].copy_from_slice(&self.index.strides());
        let which = Layout { shape: self.out.clone(), strides: walk[..].into(), offset: 0 }.offsets();
        Ok(rest.into_iter().zip(which).map(|(r, w)| r as usize + picked[w as usize]).collect())
    }
}

/// The attribute `wrap` alone, if given.
pub(super) fn wrap_of(cx: &OpCx) -> Result<Attrs> {
    Ok(match cx.attrs.get("wrap") {
        Some(_) => Attrs::new().with("wrap", cx.flag("wrap")?),
        None => Attrs::new(),
    })
}
