//! Bilinear map of two inputs.

use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `(input1 [..., I], input2 [..., J], weight [O, I, J], bias [O] or none)` to `Σ input1[i] · weight[o, i, j]
/// · input2[j] + bias[o]`.
pub static BILINEAR: OpDef = OpDef {
    name: "bilinear",
    schemas: &["bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor"],
    infer: |cx| {
        let (lead, [o, ..]) = sizes(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, [lead, vec![o]].concat())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| {
        let of = |(lead, [o, i, j]): (Vec<usize>, [usize; 3])| {
            let rows: f64 = lead.iter().map(|&n| n as f64).product();
            2.0 * rows * o as f64 * j as f64 * (i as f64 + 1.0)
        };
        sizes(cx).map_or(0.0, of)
    }),
    body: Body::Decompose(|b, cx, inputs| {
        let (lead, [o, i, j]) = sizes(cx)?;
        let rows: usize = lead.iter().product();
        let x1 = b.reshape(required(inputs, 0)?, &[rows, i])?;
        let x2 = b.reshape(required(inputs, 1)?, &[rows, j, 1])?;
        let weight = b.permute(required(inputs, 2)?, &[1, 0, 2])?;
        let weight = b.reshape(weight, &[i, o * j])?;
        let maps = b.matmul(x1, weight)?;
        let maps = b.reshape(maps, &[rows, o, j])?;
        let y = b.matmul(maps, x2)?;
        let y = b.reshape(y, &[lead, vec![o]].concat())?;
        Ok(vec![match inputs.get(3).copied().flatten() {
            Some(bias) => b.add(y, bias)?,
            None => y,
        }])
    }),
    cases: || {
        vec![
            Case::new("bias").f(&[2, 2]).f(&[2, 3]).f(&[2, 2, 3]).f(&[2]),
            Case::new("more dimensions").f(&[2, 2, 2]).f(&[2, 2, 1]).f(&[3, 2, 1]).none(),
            Case::new("one sample").f(&[3]).f(&[2]).f(&[2, 3, 2]).none(),
        ]
    },
};

/// Leading dimensions, and the sizes of the weight.
fn sizes(cx: &OpCx) -> Result<(Vec<usize>, [usize; 3])> {
    let (x1, x2, w) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
    let [o, i, j] = w.shape[..] else {
        return Err(fail!(Shape, "a bilinear weight is [out, in1, in2], got {w}"));
    };
    let one = x1.dtype.is_float() && cx.present().all(|t| t.dtype == x1.dtype);
    ensure!(one, DType, "bilinear of {} needs one floating-point dtype", cx.list_types());
    let (Some((&last1, lead1)), Some((&last2, lead2))) = (x1.shape.split_last(), x2.shape.split_last())
    else {
        return Err(fail!(Shape, "bilinear of scalars: {}", cx.list_types()));
    };
    let fits = lead1 == lead2
        && last1 == i
        && last2 == j
        && o.checked_mul(j).and_then(|n| n.checked_mul(i)).is_some();
    ensure!(fits, Shape, "inputs and weight do not fit: {}", cx.list_types());
    let maps = crate::shape::Shape::from([lead1, &[o, j]].concat());
    ensure!(maps.checked_numel().is_some(), Size, "{maps} products are larger than memory can be");
    cx.expect_floats(3, &[o])?;
    Ok((lead1.to_vec(), [o, i, j]))
}
