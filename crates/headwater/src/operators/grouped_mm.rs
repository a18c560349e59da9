//! `transformers::grouped_mm_fallback`, the custom operator of Hugging Face's mixtures of experts: rows
//! sorted by expert, each multiplied by its expert's matrix. An example of a custom operator: this file and
//! one line in [`registry`](super::registry) are all there is to it.

use crate::core::diagnostic::Result;
use crate::core::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample};
use crate::core::{Attrs, DType, Shape, Tensor, TensorType, ensure, fail};
use std::ops::Range;

/// `(input [rows, k], weight [experts, k, n], offs [experts])` to `[rows, n]`. Expert `e` serves the rows
/// from `offs[e − 1]` (0 for the first) to `offs[e]`; rows after the last give zeros.
pub static GROUPED_MM: OpDef = OpDef {
    name: "grouped_mm_fallback",
    schemas: &["transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"],
    infer: |cx| {
        let d = Dims::of(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, [d.rows, d.n])])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        let (x, w, offs) = (cx.x(0)?, cx.x(1)?, cx.x(2)?);
        let grads = cx.apply(&GROUPED_MM_BACKWARD, &[Some(x), Some(w), Some(offs), Some(g)], Attrs::new())?;
        cx.set(0, grads[0])?;
        cx.set(1, grads[1])
    }),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Dims::of(cx).map_or(0.0, |d| d.flops())),
    body: Body::Kernel(|cx, inputs, outs| {
        let d = Dims::of(cx)?;
        let (x, w) = (floats(inputs, 0), floats(inputs, 1));
        let mut y = vec![0.0; outs[0].shape.numel()];
        d.products(inputs[2].expect("typed"), |row, w_at, p, j| {
            y[row * d.n + j] += x[row * d.k + p] * w[w_at]
        })?;
        Ok(vec![tensor(&outs[0], y)])
    }),
    cases: || {
        let case =
            |name, offs: &[f64]| Case::new(name).f(&[6, 3]).f(&[3, 3, 2]).arg(DType::I32, &[3], given(offs));
        vec![
            case("uneven", &[1.0, 4.0, 6.0]),
            case("an idle expert", &[2.0, 2.0, 6.0]),
            case("rows left over", &[1.0, 2.0, 4.0]),
        ]
    },
};

/// Gradients of [`GROUPED_MM`] by input and weight: `(input, weight, offs, grad_output)`.
pub static GROUPED_MM_BACKWARD: OpDef = OpDef {
    name: "grouped_mm_fallback_backward",
    schemas: &[
        "transformers::grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let (d, g) = (Dims::of(cx)?, cx.ty(3)?);
        let fits = g.shape[..] == [d.rows, d.n] && g.dtype == cx.dtype(0)?;
        ensure!(fits, Shape, "gradient {g} does not fit {}", cx.list_types());
        Ok(vec![cx.ty(0)?.clone(), cx.ty(1)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Dims::of(cx).map_or(0.0, |d| 2.0 * d.flops())),
    body: Body::Kernel(|cx, inputs, outs| {
        let d = Dims::of(cx)?;
        let (x, w, g) = (floats(inputs, 0), floats(inputs, 1), floats(inputs, 3));
        let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
        d.products(inputs[2].expect("typed"), |row, w_at, p, j| {
            dx[row * d.k + p] += g[row * d.n + j] * w[w_at];
            dw[w_at] += g[row * d.n + j] * x[row * d.k + p];
        })?;
        Ok(vec![tensor(&outs[0], dx), tensor(&outs[1], dw)])
    }),
    cases: || {
        let case = Case::new("uneven").f(&[6, 3]).f(&[3, 3, 2]);
        vec![case.arg(DType::I64, &[3], given(&[1.0, 4.0, 6.0])).f(&[6, 2])]
    },
};

fn given(values: &[f64]) -> Sample {
    Sample::Values(values.to_vec())
}

fn floats<'a>(inputs: &[Option<&'a Tensor>], i: usize) -> &'a [f64] {
    inputs[i].expect("typed").floats()
}

fn tensor(ty: &TensorType, data: Vec<f64>) -> Tensor {
    Tensor::float(ty.dtype, ty.shape.clone(), data)
}

struct Dims {
    rows: usize,
    k: usize,
    n: usize,
}

impl Dims {
    fn of(cx: &OpCx) -> Result<Dims> {
        let (x, w, offs) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
        let sizes = |s: &Shape| Some((*s.first()?, *s.get(1)?, *s.get(2)?)).filter(|_| s.rank() == 3);
        let Some((experts, k, n)) = sizes(&w.shape) else {
            return Err(fail!(Shape, "the weight must be [experts, k, n], it is {w}"));
        };
        ensure!(x.shape.rank() == 2 && x.shape[1] == k, Shape, "input {x} does not fit weight {w}");
        ensure!(offs.shape[..] == [experts], Shape, "{experts} experts need as many offsets, not {offs}");
        let ints = matches!(offs.dtype, DType::I32 | DType::I64);
        ensure!(ints, DType, "offsets must be i32 or i64, they are {offs}");
        let one = x.dtype.is_float() && w.dtype == x.dtype;
        ensure!(one, DType, "input {x} and weight {w} must be of one floating-point dtype");
        Ok(Dims { rows: x.shape[0], k, n })
    }

    fn flops(&self) -> f64 {
        2.0 * self.rows as f64 * self.k as f64 * self.n as f64
    }

    /// The rows of each expert.
    fn groups(&self, offs: &Tensor) -> Result<Vec<Range<usize>>> {
        let mut start = 0;
        let mut groups = Vec::with_capacity(offs.ints().len());
        for &end in offs.ints() {
            let end = usize::try_from(end).ok().filter(|end| (start..=self.rows).contains(end));
            let end = end.ok_or_else(|| {
                fail!(Value, "offsets {:?} must rise from 0 to at most {} rows", offs.ints(), self.rows)
            })?;
            groups.push(start..end);
            start = end;
        }
        Ok(groups)
    }

    /// Calls `f(row, index into the weight, p, j)` for every product of the operator: its definition.
    fn products(&self, offs: &Tensor, mut f: impl FnMut(usize, usize, usize, usize)) -> Result<()> {
        for (e, rows) in self.groups(offs)?.into_iter().enumerate() {
            for row in rows {
                for p in 0..self.k {
                    (0..self.n).for_each(|j| f(row, (e * self.k + p) * self.n + j, p, j));
                }
            }
        }
        Ok(())
    }
}
