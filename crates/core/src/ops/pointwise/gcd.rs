//! Divisors and multiples that two integers share.

use super::DISCRETE;
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::ensure;
use crate::ops::{Body, Case, Cost, OpCx, OpDef, Precision, Sample};
use crate::tensor::{Tensor, TensorType};

/// The greatest common divisor, never negative; of two zeros 0.
pub static GCD: OpDef = OpDef {
    name: "gcd",
    schemas: &["gcd(Tensor self, Tensor other) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(20),
    body: Body::Kernel(|_, inputs, outs| pairs(inputs, &outs[0], gcd)),
    cases,
};

/// The least common multiple, never negative; 0 if one is.
pub static LCM: OpDef = OpDef {
    name: "lcm",
    schemas: &["lcm(Tensor self, Tensor other) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(20),
    body: Body::Kernel(|_, inputs, outs| {
        pairs(inputs, &outs[0], |a, b| match gcd(a, b) {
            0 => 0,
            divisor => a.wrapping_div(divisor).wrapping_mul(b).wrapping_abs(),
        })
    }),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    cx.ty(1)?;
    let dtype = cx.result_type(&[]);
    ensure!(dtype.class() == Class::Int, DType, "divisors are of integers, got {}", cx.list_types());
    Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
}

/// Euclid's algorithm.
fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.wrapping_abs(), b.wrapping_abs());
    while b != 0 {
        (a, b) = (b, a.wrapping_rem(b));
    }
    a.wrapping_abs()
}

fn pairs(inputs: &[Option<&Tensor>], out: &TensorType, f: impl Fn(i64, i64) -> i64) -> Result<Vec<Tensor>> {
    let [a, b] = [0, 1].map(|i| inputs[i].expect("typed"));
    let (from_a, from_b) = (a.shape().broadcast_offsets(&out.shape), b.shape().broadcast_offsets(&out.shape));
    let y = from_a.zip(from_b).map(|(i, j)| f(a.ints()[i], b.ints()[j])).collect();
    Ok(vec![Tensor::int(out.dtype, out.shape.clone(), y)])
}

fn cases() -> Vec<Case> {
    let values = |v: [f64; 4]| Sample::Values(v.to_vec());
    let int = crate::DType::I64;
    vec![
        Case::new("signs and zeros").arg(int, &[4], values([12.0, -18.0, 0.0, 0.0])).arg(
            int,
            &[4],
            values([-8.0, 27.0, -5.0, 0.0]),
        ),
        Case::new("broadcast").index(&[2, 1], 40).index(&[3], 40),
    ]
}
