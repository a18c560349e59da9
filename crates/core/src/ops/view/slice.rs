//! Every `step`-th index of a range along one dimension, and writing into it.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::movement::pad::CONSTANT_PAD_ND;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, RegionCopy, Source, View};
use crate::tensor::TensorType;

/// `self[..., start:end:step, ...]` along `dim`, bounds clamped as in Python.
pub static SLICE: OpDef = OpDef {
    name: "slice",
    schemas: &[
        "slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)",
    ],
    infer: |cx| {
        let (x, r) = (cx.ty(0)?, Range::of(cx)?);
        let mut shape = x.shape.to_vec();
        shape[r.dim] = r.len;
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, attrs) = (cx.grad(0)?, cx.attrs().clone());
        let (ty, r) = cx.of(|of| Ok::<_, crate::Error>((of.ty(0)?.clone(), Range::of(of)?)))?;
        let dx = if r.step == 1 {
            let mut pad = vec![0; 2 * ty.shape.rank()];
            // Pairs come last dimension first.
            let at = 2 * (ty.shape.rank() - 1 - r.dim);
            (pad[at], pad[at + 1]) = (r.start as i64, (ty.shape[r.dim] - r.start - r.len) as i64);
            cx.one(&CONSTANT_PAD_ND, &[g], Attrs::new().with("pad", pad).with("value", 0.0))?
        } else {
            let zeros = cx.full(&ty, 0.0)?;
            cx.one(&SLICE_SCATTER, &[zeros, g], attrs)?
        };
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let (mut l, r) = (l.clone(), Range::of(cx)?);
            let mut shape = l.shape.to_vec();
            shape[r.dim] = r.len;
            l.offset += r.start as isize * l.strides[r.dim];
            l.strides[r.dim] *= r.step as isize;
            l.shape = shape.into();
            Ok(Some(l))
        },
        scatter: Some(|b, cx, base, new, _| b.one(&SLICE_SCATTER, &[base, new], cx.attrs.clone())),
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[5, 4]);
        vec![
            case("middle").attr("dim", 0).attr("start", 1).attr("end", 4).attr("step", 2),
            case("negative").attr("dim", -1).attr("start", -3).attr("end", i64::MAX).attr("step", 1),
            case("empty").attr("dim", 0).attr("start", 4).attr("end", 2).attr("step", 1),
        ]
    },
};

/// `self` with that range replaced by `src`.
pub static SLICE_SCATTER: OpDef = OpDef {
    name: "slice_scatter",
    schemas: &[
        "slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
    ],
    infer: |cx| {
        let (x, src, r) = (cx.ty(0)?, cx.ty(1)?, Range::of(cx)?);
        let mut want = x.shape.to_vec();
        want[r.dim] = r.len;
        ensure!(src.shape[..] == want[..], Shape, "source {src} does not fit the slice {:?} of {x}", want);
        Ok(vec![x.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, src, attrs) = (cx.grad(0)?, cx.x(1)?, cx.attrs().clone());
        if cx.needs(0) {
            let ty = cx.ty(src).clone();
            let zeros = cx.full(&ty, 0.0)?;
            let dx = cx.one(&SLICE_SCATTER, &[g, zeros], attrs.clone())?;
            cx.set(0, dx)?;
        }
        if cx.needs(1) {
            let ds = cx.one(&SLICE, &[g], attrs)?;
            cx.set(1, ds)?;
        }
        Ok(())
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Copies(|cx, out| {
        let r = Range::of(cx)?;
        let whole = RegionCopy::whole(Source::Input(0), &out.shape);
        let mut part = RegionCopy { source: Source::Input(1), ..whole.clone() };
        (part.start[r.dim], part.step[r.dim], part.extent[r.dim]) = (r.start, r.step, r.len);
        Ok(vec![whole, part])
    }),
    cases: || {
        vec![
            Case::new("middle")
                .f(&[5, 4])
                .f(&[2, 4])
                .attr("dim", 0)
                .attr("start", 1)
                .attr("end", 4)
                .attr("step", 2),
        ]
    },
};

/// The range of indices a slice names, resolved.
pub(crate) struct Range {
    pub dim: usize,
    pub start: usize,
    pub step: usize,
    pub len: usize,
}

impl Range {
    pub(crate) fn of(cx: &OpCx) -> Result<Range> {
        let shape = cx.shape(0)?;
        ensure!(shape.rank() > 0, Shape, "a scalar cannot be sliced");
        let dim = match cx.opt_int("dim")? {
            Some(_) => cx.dim("dim", shape.rank())?,
            None => 0,
        };
        let n = shape[dim] as i64;
        let clamp = |i: i64| (if i < 0 { i.saturating_add(n) } else { i }).clamp(0, n);
        let start = clamp(cx.opt_int("start")?.unwrap_or(0));
        let end = clamp(cx.opt_int("end")?.unwrap_or(n)).max(start);
        let step = cx.opt_int("step")?.unwrap_or(1);
        ensure!(step > 0, Attribute, "`step` must be positive, got {step}");
        // Beyond the end any step names the same one index; strides times step must not overflow.
        let step = step.min(n.max(1));
        let len = (end - start).unsigned_abs().div_ceil(step.unsigned_abs());
        Ok(Range { dim, start: start as usize, step: step as usize, len: len as usize })
    }
}
