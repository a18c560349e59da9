//! Proof that indices are in range, for programs that cannot raise an error themselves.

use super::{given, integers, resolve};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::Tensor;

/// The indices themselves, negative ones counted from the end if `wrap`. One that is not in `0..limit` is a
/// `Value` error, unless it is `ignore_index` (absent: none is).
pub static CHECK_INDEX: OpDef = OpDef {
    name: "check_index",
    schemas: &[],
    infer: |cx| {
        integers(cx, 0)?;
        cx.size("limit")?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let (limit, wrap, ignored) = (cx.size("limit")?, cx.flag("wrap")?, cx.opt_int("ignore_index")?);
        let index = given(inputs, 0)?.ints().iter().enumerate();
        let checked = index.map(|(at, &i)| match ignored == Some(i) {
            true => Ok(i),
            false => Ok(resolve(i, at, limit, wrap)? as i64),
        });
        Ok(vec![Tensor::int(outs[0].dtype, outs[0].shape.clone(), checked.collect::<Result<_>>()?)])
    }),
    cases: || {
        let values = crate::ops::Sample::Values(vec![0.0, -3.0, 2.0, -100.0]);
        vec![
            Case::new("plain").index(&[2, 3], 4).attr("limit", 4),
            Case::new("wrapped and ignored")
                .arg(crate::dtype::DType::I64, &[4], values)
                .attr("limit", 3)
                .attr("wrap", true)
                .attr("ignore_index", -100),
        ]
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attrs, Code, DType, reference};

    #[test]
    fn refuses_what_is_out_of_range() {
        let check = |i: i64, attrs: &Attrs| {
            let t = Tensor::int(DType::I64, [1], vec![i]);
            reference::apply(&CHECK_INDEX, attrs, &[Some(&t)], std::slice::from_ref(&t.ty))
        };
        let attrs = Attrs::new().with("limit", 3);
        assert!(check(2, &attrs).is_ok());
        for i in [3, -1, i64::MIN, i64::MAX] {
            assert_eq!(check(i, &attrs).unwrap_err().code, Code::Value);
        }
        assert_eq!(check(-3, &attrs.with("wrap", true)).unwrap()[0].ints(), [0]);
    }
}
