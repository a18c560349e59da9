//! A matrix product, and sums of one of its operands: the gradients of a weight and of the bias beside it.

use super::matmul::MATMUL;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::row::{Access, RowBuilder, RowProgram};
use crate::tensor::{Tensor, TensorType};

/// `[m, k] × [k, n]`, and sums over `k` of one operand: `[m]` of the left one (`of` = 0), `[n]` of the right
/// one (`of` = 1). Sums in f32 or wider, rounded once. `pass::epilogues` makes it.
pub static MATMUL_SUM: OpDef = OpDef {
    name: "matmul_sum",
    schemas: &[],
    infer: |cx| {
        let ranks = [cx.shape(0)?.rank(), cx.shape(1)?.rank()];
        ensure!(ranks == [2, 2], Shape, "matmul_sum of {} needs matrices", cx.list_types());
        let product = product(cx)?;
        let length = product.shape[of(cx)?];
        Ok(vec![product.clone(), TensorType::new(product.dtype, [length])])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Low,
    // A term of the product takes a multiplication and an addition, one of the sum an addition.
    cost: Cost::Custom(|cx, outs| {
        let k = cx.shape(1).ok().and_then(|s| s.first().copied()).unwrap_or(1) as f64;
        outs.iter().map(|t| k * t.shape.rank() as f64 * t.shape.numel() as f64).sum()
    }),
    body: Body::Kernel(reference),
    cases: || {
        let case = |name, of: i64| Case::new(name).f(&[3, 4]).f(&[4, 2]).attr("of", of);
        vec![
            case("of the left operand", 0),
            case("of the right operand", 1),
            Case::new("k is 0").f(&[3, 0]).f(&[0, 2]).attr("of", 1),
        ]
    },
};

/// The operand that is summed: 0 or 1.
///
/// # Errors
/// `Attribute` for any other number.
pub fn of(cx: &OpCx) -> Result<usize> {
    let of = cx.int("of")?;
    ensure!(matches!(of, 0 | 1), Attribute, "`of` is 0 or 1, the operand that is summed, not {of}");
    Ok(of as usize)
}

fn product(cx: &OpCx) -> Result<TensorType> {
    let attrs = Attrs::new();
    let mut types = (MATMUL.infer)(&OpCx { inputs: cx.inputs.clone(), attrs: &attrs })?;
    types.pop().ok_or_else(|| crate::fail!(Graph, "a product without a result"))
}

fn reference(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let Body::Kernel(product) = MATMUL.body else {
        return Err(crate::fail!(Graph, "a product that is no kernel"));
    };
    let attrs = Attrs::new();
    let mut made = product(&OpCx { inputs: cx.inputs.clone(), attrs: &attrs }, inputs, &outs[..1])?;
    let of = of(cx)?;
    let operand = inputs[of].expect("typed");
    let columns = operand.shape()[1];
    let mut sums = vec![0.0; outs[1].shape.numel()];
    for (i, x) in operand.floats().iter().enumerate() {
        sums[if of == 0 { i / columns } else { i % columns }] += x;
    }
    made.push(Tensor::float(outs[1].dtype, outs[1].shape.clone(), sums));
    Ok(made)
}

/// Sums over the rows of a matrix `[k, length]`, as the gradient of a bias has them before it is joined with
/// a product.
pub fn program(shape: &[usize], dtype: crate::DType) -> RowProgram {
    let mut b = RowBuilder::new(&shape[..1], &shape[1..]);
    let x = b.read(dtype, Access::identity(2));
    b.columns(dtype, Access::dims(&[None, Some(0)]), x);
    b.finish()
}
