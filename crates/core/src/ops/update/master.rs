//! f32 masters of bf16 weights in the 16 bits that their weights lack. The upper half of a master's bits,
//! rounded by the lower half, is the weight, and the lower half is kept beside it. Rounding goes to the
//! nearest bf16, of two equally near ones to the one farther from zero. With ties to even some weights would
//! stand for 65,537 masters, which 16 bits cannot distinguish.

use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// Half of the distance between neighbouring bf16 numbers, in bits of an f32.
const HALF: u32 = 0x8000;
/// The bits of an f32 that bf16 has.
const UPPER: u32 = 0xFFFF_0000;

/// `(master)`, f32, to the bf16 weight and the rest (i16), from which [`MASTER_JOIN`] makes the same f32:
/// every number, infinities included. A NaN comes back as one.
pub static MASTER_SPLIT: OpDef = OpDef {
    name: "master_split",
    schemas: &["headwater::master_split(Tensor master) -> (Tensor, Tensor)"],
    infer: |cx| {
        let t = cx.ty(0)?;
        ensure!(t.dtype.is_float(), DType, "splits f32, not {t}");
        let part = |dtype| TensorType::new(dtype, t.shape.clone());
        Ok(vec![part(DType::BF16), part(DType::I16)])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|_| {
        let bits = |x: u32| Expr::Int(x as i32 as i64);
        let rounded = (input(0).bits() + bits(HALF)).and(bits(UPPER)).from_bits();
        let weight = input(0).is_nan().select(input(0), rounded);
        Ok(vec![weight.cast(DType::BF16), input(0).bits().cast(DType::I16)])
    }),
    cases: || {
        let x = [1.0, 1.00390625, 1.01171875, -1.00390625, 0.1, 1e-42];
        vec![Case::new("numbers").arg(DType::F32, &[6], Sample::Values(x.to_vec()))]
    },
};

/// `(weight, rest)`, bf16 and i16, to the f32 master that [`MASTER_SPLIT`] made them of.
pub static MASTER_JOIN: OpDef = OpDef {
    name: "master_join",
    schemas: &["headwater::master_join(Tensor weight, Tensor rest) -> Tensor"],
    infer: |cx| {
        let (w, r) = (cx.ty(0)?, cx.ty(1)?);
        let types = w.dtype.is_float() && r.dtype == DType::I16 && w.shape == r.shape;
        ensure!(types, DType, "expected bf16 and i16 of one shape, got {}", cx.list_types());
        Ok(vec![TensorType::new(DType::F32, w.shape.clone())])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|_| Ok(vec![(input(0).bits() + input(1)).from_bits()])),
    cases: || {
        let rest = Sample::Values(vec![0.0, 1.0, -1.0, 32767.0, -32768.0]);
        let weight = Sample::Values(vec![1.0, -2.0, 0.5, 3.0, 1.0]);
        vec![Case::new("numbers").arg(DType::BF16, &[5], weight).arg(DType::I16, &[5], rest)]
    },
};

/// [`MASTER_SPLIT`] of one number: the bits of the weight, and the rest.
pub fn split(master: f32) -> (u16, i16) {
    let bits = master.to_bits();
    let weight = match master.is_nan() {
        true => half::bf16::from_f32(master).to_bits(),
        false => (bits.wrapping_add(HALF) >> 16) as u16,
    };
    (weight, bits as i16)
}

/// [`MASTER_JOIN`] of one weight, given as bits.
pub fn join(weight: u16, rest: i16) -> f32 {
    f32::from_bits(((weight as u32) << 16).wrapping_add(rest as i32 as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attrs, Tensor, reference};

    /// Properties that must hold of a master by its bits.
    fn holds(bits: u32) -> bool {
        let master = f32::from_bits(bits);
        let (weight, rest) = split(master);
        let (back, weight) = (join(weight, rest), half::bf16::from_bits(weight).to_f32());
        if master.is_nan() {
            return back.is_nan() && weight.is_nan();
        }
        // Beyond the largest bf16 the distance to infinity is that to the number that would follow.
        let reach = |x: f32| if x.is_infinite() { 2f64.powi(128).copysign(x as f64) } else { x as f64 };
        let even = half::bf16::from_f32(master).to_f32();
        let error = |w: f32| (reach(w) - reach(master)).abs();
        back.to_bits() == bits && error(weight) == error(even)
    }

    /// The halves act on each other by a carry alone. So all upper halves are tried with every kind of lower
    /// one, and the other way round (zeros, subnormals, ends of binades, infinities, NaNs).
    #[test]
    fn a_master_comes_back_bit_for_bit_and_its_weight_is_the_nearest() {
        let lower = [0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0x8002, 0xFFFE, 0xFFFF, 0x1234, 0xABCD];
        let upper = [0, 1, 0x7F, 0x80, 0x81, 0x3F7F, 0x3F80, 0x7F7E, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF];
        let all_upper = (0..1u32 << 16).flat_map(|u| lower.map(|l| u << 16 | l));
        let all_lower = (0..1u32 << 16).flat_map(|l| upper.map(|u| u << 16 | l));
        let signed = all_lower.flat_map(|bits| [bits, bits | 1 << 31]);
        assert_eq!(all_upper.chain(signed).find(|&bits| !holds(bits)), None);
    }

    #[test]
    #[ignore = "takes a minute"]
    fn every_master_comes_back() {
        assert_eq!((0..=u32::MAX).find(|&bits| !holds(bits)), None);
    }

    #[test]
    fn operators_do_the_same() {
        let lower = [0u32, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
        let bits: Vec<u32> = (0..1u32 << 16).step_by(7).flat_map(|u| lower.map(|l| u << 16 | l)).collect();
        let bits: Vec<u32> = bits.into_iter().filter(|&b| !f32::from_bits(b).is_nan()).collect();
        let masters: Vec<f64> = bits.iter().map(|&b| f32::from_bits(b) as f64).collect();
        let ty = TensorType::new(DType::F32, [bits.len()]);
        let types = [DType::BF16, DType::I16].map(|d| TensorType::new(d, [bits.len()]));
        let master = Tensor::float(DType::F32, ty.shape.clone(), masters.clone());
        let parts = reference::apply(&MASTER_SPLIT, &Attrs::new(), &[Some(&master)], &types).unwrap();
        for (i, &b) in bits.iter().enumerate() {
            let (weight, rest) = split(f32::from_bits(b));
            assert_eq!(half::bf16::from_f64(parts[0].floats()[i]).to_bits(), weight, "weight of {b:x}");
            assert_eq!(parts[1].ints()[i], rest as i64, "rest of {b:x}");
        }
        let parts: Vec<_> = parts.iter().map(Some).collect();
        let back = reference::apply(&MASTER_JOIN, &Attrs::new(), &parts, &[ty]).unwrap();
        assert_eq!(back[0].floats(), masters);
    }
}
