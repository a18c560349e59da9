//! Products of groups of rows, each with a matrix of its own: the experts of a mixture, whose rows are sorted
//! by expert.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};
use std::ops::Range;

/// `(input [rows, k], weight [groups, k, n], offs [groups])` to `[rows, n]`. Group `g` has the rows from
/// `offs[g − 1]` (0 for the first) to `offs[g]`; rows after the last group give zeros. Sums in f32 or wider.
/// The form of `_grouped_mm` with one matrix for each group of rows; it has neither bias nor a dtype of
/// its own. Hugging Face's operator is the same.
pub static GROUPED_MM: OpDef = OpDef {
    name: "_grouped_mm",
    schemas: &[
        "_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
        "transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor",
    ],
    infer: |cx| {
        let (w, d) = (cx.ty(1)?, Groups::of(cx)?);
        ensure!(w.shape.rank() == 3, Shape, "the weight must be [groups, k, n], it is {w}");
        let [groups, k, n] = [w.shape[0], w.shape[1], w.shape[2]];
        ensure!(k == d.k && groups == d.groups, Shape, "{} do not fit", cx.list_types());
        ensure!(w.dtype == d.dtype, DType, "input and weight of {} must be of one dtype", cx.list_types());
        ensure!(cx.opt(3).is_none(), Unsupported, "`bias` must be added by itself");
        let own = cx.opt_dtype("out_dtype")?.is_none_or(|t| t == d.dtype);
        ensure!(own, Unsupported, "`out_dtype` must be that of the input, {}", d.dtype);
        Ok(vec![TensorType::new(d.dtype, [d.rows, n])])
    },
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        let (x, w, offs) = (cx.x(0)?, cx.x(1)?, cx.x(2)?);
        if cx.needs(0) {
            let turned = cx.transpose_last(w)?;
            let dx = cx.one(&GROUPED_MM, &[g, turned, offs], Attrs::new())?;
            cx.set(0, dx)?;
        }
        if cx.needs(1) {
            let dw = cx.one(&GROUPED_MM_WEIGHT_BACKWARD, &[x, g, offs], Attrs::new())?;
            cx.set(1, dw)?;
        }
        Ok(())
    }),
    precision: Precision::Low,
    cost: Cost::Custom(flops),
    body: Body::Kernel(|cx, inputs, outs| {
        let (d, n) = (Groups::of(cx)?, outs[0].shape[1]);
        let (x, w) = (floats(inputs, 0), floats(inputs, 1));
        let mut y = vec![0.0; outs[0].shape.numel()];
        d.each_product(n, inputs[2].expect("typed").ints(), |row, group, p, j| {
            y[row * n + j] += x[row * d.k + p] * w[(group * d.k + p) * n + j];
        })?;
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), y)])
    }),
    cases: || {
        let case = |name, dtype, offs: &[f64]| {
            let groups = offs.len();
            Case::new(name).f(&[6, 3]).f(&[groups, 3, 2]).arg(dtype, &[groups], Sample::Values(offs.to_vec()))
        };
        vec![
            case("uneven", DType::I32, &[1.0, 4.0, 6.0]),
            case("a group without rows", DType::I64, &[2.0, 2.0, 6.0]),
            case("rows left over", DType::I32, &[1.0, 2.0, 4.0]),
            case("no group has rows", DType::I32, &[0.0, 0.0]),
            // Enough groups that several are multiplied at a time.
            case("many groups", DType::I32, &[1.0, 1.0, 3.0, 4.0, 5.0, 6.0]),
        ]
    },
};

/// Gradient of [`GROUPED_MM`] by its weight: `(input [rows, k], grad_output [rows, n], offs [groups])` to
/// `[groups, k, n]`. A group without rows has a gradient of zeros.
pub static GROUPED_MM_WEIGHT_BACKWARD: OpDef = OpDef {
    name: "grouped_mm_weight_backward",
    schemas: &[],
    infer: |cx| {
        let (g, d) = (cx.ty(1)?, Groups::of(cx)?);
        let fits = g.shape.rank() == 2 && g.shape[0] == d.rows && g.dtype == d.dtype;
        ensure!(fits, Shape, "gradient {g} does not fit {}", cx.list_types());
        Ok(vec![TensorType::new(d.dtype, [d.groups, d.k, g.shape[1]])])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Low,
    cost: Cost::Custom(flops),
    body: Body::Kernel(|cx, inputs, outs| {
        let (d, n) = (Groups::of(cx)?, outs[0].shape[2]);
        let (x, g) = (floats(inputs, 0), floats(inputs, 1));
        let mut dw = vec![0.0; outs[0].shape.numel()];
        d.each_product(n, inputs[2].expect("typed").ints(), |row, group, p, j| {
            dw[(group * d.k + p) * n + j] += x[row * d.k + p] * g[row * n + j];
        })?;
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), dw)])
    }),
    cases: || {
        let case = |name, offs: &[f64]| {
            let groups = offs.len();
            Case::new(name).f(&[6, 3]).f(&[6, 2]).arg(DType::I64, &[groups], Sample::Values(offs.to_vec()))
        };
        vec![case("uneven", &[1.0, 4.0, 4.0, 6.0]), case("rows left over", &[1.0, 1.0, 4.0])]
    },
};

fn floats<'a>(inputs: &[Option<&'a Tensor>], i: usize) -> &'a [f64] {
    inputs[i].expect("typed").floats()
}

/// Each row is multiplied by one matrix.
fn flops(cx: &OpCx, outs: &[TensorType]) -> f64 {
    let n = outs[0].shape.last().copied().unwrap_or(0);
    Groups::of(cx).map_or(0.0, |d| 2.0 * d.rows as f64 * d.k as f64 * n as f64)
}

/// Rows in groups: input 0, `[rows, k]`, divided by the offsets of input 2, `[groups]`.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// Dtype of the rows.
    pub dtype: DType,
    /// Rows of all groups, and those left over.
    pub rows: usize,
    /// Elements of a row.
    pub k: usize,
    /// Groups.
    pub groups: usize,
}

impl Groups {
    /// The groups of a node.
    ///
    /// # Errors
    /// `Shape` or `DType` for operands that are none.
    pub fn of(cx: &OpCx) -> Result<Groups> {
        let (x, offs) = (cx.ty(0)?, cx.ty(2)?);
        ensure!(x.shape.rank() == 2, Shape, "the input must be [rows, k], it is {x}");
        ensure!(x.dtype.is_float(), DType, "the input must be floats, it is {x}");
        ensure!(offs.shape.rank() == 1, Shape, "offsets must be [groups], they are {offs}");
        let ints = matches!(offs.dtype, DType::I32 | DType::I64);
        ensure!(ints, DType, "offsets must be i32 or i64, they are {offs}");
        Ok(Groups { dtype: x.dtype, rows: x.shape[0], k: x.shape[1], groups: offs.shape[0] })
    }

    /// The rows of a group that begins at row `start` and whose offset is `end`.
    ///
    /// # Errors
    /// `Value` for offsets that fall, or are outside of the rows.
    pub fn group(&self, start: usize, end: i64) -> Result<Range<usize>> {
        let rows = usize::try_from(end).ok().filter(|end| (start..=self.rows).contains(end));
        let outside =
            || fail!(Value, "offset {end} must lie between {start}, the last one, and {} rows", self.rows);
        Ok(start..rows.ok_or_else(outside)?)
    }

    /// Calls `f(row, group, p, j)` for every product of the operator: its definition.
    fn each_product(
        &self,
        n: usize,
        offs: &[i64],
        mut f: impl FnMut(usize, usize, usize, usize),
    ) -> Result<()> {
        let mut start = 0;
        for (group, &end) in offs.iter().enumerate() {
            let rows = self.group(start, end)?;
            start = rows.end;
            for (row, p) in rows.flat_map(|row| (0..self.k).map(move |p| (row, p))) {
                (0..n).for_each(|j| f(row, group, p, j));
            }
        }
        Ok(())
    }
}
