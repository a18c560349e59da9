//! Moments in codes of 8 bits with a scale for each block. This is blockwise quantization as in 8-bit Adam
//! (Dettmers et al. 2022, arXiv:2110.02861), on logarithmic levels. Rounding is stochastic, so that small
//! changes are not all lost.
//!
//! Code 0 is 0. Level `k` of `top` stands for `scale · 2^((k − top) / 8)`: relative steps of 9 %. Signed
//! codes have 127 levels on each side, down to `scale · 2^−15.75`; unsigned ones, for moments that are never
//! negative, 255, down to `scale · 2^−31.75`.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::row::{Access, Reduce, ReduceSpace};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Levels in an octave.
const OCTAVE: f64 = 8.0;

/// The highest level of a type of codes.
///
/// # Errors
/// `DType` for a type that codes do not have.
fn top(codes: DType) -> Result<f64> {
    match codes {
        DType::I8 => Ok(127.0),
        DType::U8 => Ok(255.0),
        other => Err(fail!(DType, "codes are i8 or u8, not {other}")),
    }
}

/// Number of a level above 0, as a share of the scale.
fn share(level: Expr, top: f64) -> Expr {
    ((level - top) * (std::f64::consts::LN_2 / OCTAVE)).exp()
}

/// `(codes [blocks, width], scales f32 [blocks, 1])` to the numbers that they stand for, in f32.
pub static DEQUANTIZE_BLOCK: OpDef = OpDef {
    name: "dequantize_block",
    schemas: &["headwater::dequantize_block(Tensor codes, Tensor scales) -> Tensor"],
    infer: |cx| {
        let codes = coded(cx, 0)?;
        Ok(vec![TensorType::new(DType::F32, codes.shape.clone())])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(14),
    body: Body::Pointwise(|cx| {
        let top = top(cx.ty(0)?.dtype)?;
        let code = input(0).cast(DType::F32);
        Ok(vec![code.clone().sign() * share(code.abs(), top) * input(1)])
    }),
    cases: || {
        let case = |name, dtype, codes: [f64; 6]| {
            let case = Case::new(name).arg(dtype, &[2, 3], Sample::Values(codes.to_vec()));
            case.arg(DType::F32, &[2, 1], Sample::Values(vec![0.75, 3e-5]))
        };
        vec![
            case("signed", DType::I8, [127.0, -3.0, 0.0, -127.0, 64.0, 1.0]),
            case("unsigned", DType::U8, [255.0, 3.0, 0.0, 128.0, 64.0, 1.0]),
        ]
    },
};

/// `(x [blocks, width], noise, apply, codes, scales)` to new codes and scales of `x`, f32. The scale is the
/// largest magnitude of a block. A number between two levels gets the upper one where `noise`, uniform in
/// `[0, 1)`, is below its share of the way. So the expectation is exact. Unsigned codes never become 0 for a
/// number above 0: it may be a divisor. Where `apply` is false, codes and scales stay.
pub static QUANTIZE_BLOCK: OpDef = OpDef {
    name: "quantize_block",
    schemas: &[
        "headwater::quantize_block(Tensor x, Tensor noise, Tensor apply, Tensor codes, Tensor scales) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let codes = coded(cx, 3)?;
        for i in [0, 1] {
            let t = cx.ty(i)?;
            let fits = t.dtype == DType::F32 && t.shape == codes.shape;
            ensure!(fits, Shape, "input {i} is {t}, it must be f32{}", codes.shape);
        }
        let apply = cx.ty(2)?;
        ensure!(
            apply.dtype == DType::Bool && apply.shape.rank() == 0,
            Shape,
            "`apply` is {apply}, no truth value"
        );
        Ok(vec![codes.clone(), cx.ty(4)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(50),
    body: Body::Rows(|_, out| {
        let (top, unsigned) = (top(out[0].dtype)?, out[0].dtype == DType::U8);
        let space = ReduceSpace::new(&out[0].shape, &[1]);
        let mut b = space.builder();
        let x = b.read(DType::F32, space.full.clone());
        let noise = b.read(DType::F32, space.full.clone());
        let apply = b.read(DType::Bool, Access::still(2));
        let old = b.read(out[0].dtype, space.full.clone());
        let old_scale = b.read(DType::F32, space.kept.clone());
        let magnitude = b.expr(&input(0).abs(), &[x]);
        let largest = b.reduce(Reduce::Max, magnitude);
        let part = b.expr(&(input(0) / input(1)), &[magnitude, largest]);
        let level = input(0).log() * (OCTAVE / std::f64::consts::LN_2) + top;
        let low = b.expr(&level.floor().max(float(0.0)).min(float(top - 1.0)), &[part]);
        let above = input(0).gt(float(0.0)).select(share(input(0), top), float(0.0));
        let lower = b.expr(&above, &[low]);
        let upper = b.expr(&share(input(0) + 1.0, top), &[low]);
        // Part, lower and upper, noise, low, x.
        let chance = (input(0) - input(1)) / (input(2) - input(1));
        let rounded = input(3).lt(chance).select(input(4) + 1.0, input(4));
        let least = if unsigned { rounded.max(float(1.0)) } else { rounded };
        let coded = input(5).abs().gt(float(0.0)).select(least * input(5).sign(), float(0.0));
        let code = b.expr(&coded.cast(out[0].dtype), &[part, lower, upper, noise, low, x]);
        let code = b.expr(&input(0).select(input(1), input(2)), &[apply, code, old]);
        b.store(out[0].dtype, space.full.clone(), code);
        let scale = b.expr(&input(0).select(input(1), input(2)), &[apply, largest, old_scale]);
        b.store(DType::F32, space.kept.clone(), scale);
        Ok(b.finish())
    }),
    cases: || {
        let case = |name, dtype, x: [f64; 8], apply: f64| {
            let values = |v: &[f64]| Sample::Values(v.to_vec());
            Case::new(name)
                .arg(DType::F32, &[2, 4], values(&x))
                .arg(DType::F32, &[2, 4], values(&[0.1, 0.9, 0.3, 0.5, 0.02, 0.98, 0.6, 0.4]))
                .arg(DType::Bool, &[], values(&[apply]))
                .arg(dtype, &[2, 4], values(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
                .arg(DType::F32, &[2, 1], values(&[0.5, 0.25]))
        };
        let signed = [1.0, -0.3, 0.011, 0.0, -2e-3, 7e-4, 3e-9, -1.3e-5];
        let squares = [1.0, 0.3, 0.011, 0.0, 2e-3, 7e-4, 3e-14, 1.3e-9];
        vec![
            case("signed", DType::I8, signed, 1.0),
            case("unsigned", DType::U8, squares, 1.0),
            case("nothing", DType::I8, [0.0; 8], 1.0),
            case("skipped", DType::U8, squares, 0.0),
        ]
    },
};

/// The type of codes at input `i`, whose scales follow it.
fn coded<'a>(cx: &OpCx<'a>, i: usize) -> Result<&'a TensorType> {
    let (codes, scales) = (cx.inputs.get(i).copied().flatten(), cx.ty(i + 1)?);
    let codes = codes.ok_or_else(|| fail!(Attribute, "input {i} is missing"))?;
    top(codes.dtype)?;
    ensure!(codes.shape.rank() == 2, Shape, "codes are [blocks, width], got {codes}");
    let want = TensorType::new(DType::F32, [codes.shape[0], 1]);
    ensure!(*scales == want, Shape, "scales are {scales}, they must be {want}");
    Ok(codes)
}

/// Codes and scale of a block of numbers on the host, each the nearest level.
pub fn encode(x: &[f32], unsigned: bool) -> (Vec<u8>, f32) {
    let top = if unsigned { 255.0 } else { 127.0 };
    let scale = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let code = |&x: &f32| {
        if x == 0.0 || scale == 0.0 {
            return 0;
        }
        let level = ((x.abs() as f64 / scale as f64).log2() * OCTAVE + top).round().clamp(0.0, top);
        match unsigned {
            true => level.max(1.0) as u8,
            false => (level * x.signum() as f64) as i8 as u8,
        }
    };
    (x.iter().map(code).collect(), scale)
}

/// The number that a code stands for.
pub fn decode(code: u8, scale: f32, unsigned: bool) -> f32 {
    let (level, top) = if unsigned { (code as f64, 255.0) } else { (code as i8 as f64, 127.0) };
    match level {
        0.0 => 0.0,
        _ => (level.signum() * ((level.abs() - top) / OCTAVE).exp2() * scale as f64) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_reads_back_as_itself() {
        for unsigned in [false, true] {
            let scale = 0.37f32;
            let numbers: Vec<f32> = (0..=255u8).map(|code| decode(code, scale, unsigned)).collect();
            let (codes, found) = encode(&numbers, unsigned);
            // -128 is no code: its number is beyond the scale.
            let all = (0..=255u8).filter(|&c| unsigned || c as i8 != i8::MIN);
            if unsigned {
                assert_eq!(found, scale);
            }
            for code in all {
                let (again, own) = encode(&[decode(code, scale, unsigned), scale], unsigned);
                assert_eq!((again[0], own), (code, scale), "unsigned {unsigned}");
            }
            assert_eq!(codes.len(), 256);
        }
    }

    #[test]
    fn the_expectation_is_the_number() {
        use crate::graph::{Builder, InputRole, OutputRole};
        use crate::reference;
        use crate::tensor::Tensor;
        let x = [1.0, -0.31, 0.0123, 7e-4, -3.3e-5, 0.9999, -0.0872, 0.5];
        for dtype in [DType::I8, DType::U8] {
            let x: Vec<f64> = x.iter().map(|x: &f64| if dtype == DType::U8 { x.abs() } else { *x }).collect();
            let mut b = Builder::new();
            let types = [
                TensorType::new(DType::F32, [1, 8]),
                TensorType::new(DType::F32, [1, 8]),
                TensorType::new(DType::Bool, [0usize; 0]),
                TensorType::new(dtype, [1, 8]),
                TensorType::new(DType::F32, [1, 1]),
            ];
            let ids = types.each_ref().map(|ty| b.input("", ty.clone(), InputRole::User));
            let made = b.apply(&QUANTIZE_BLOCK, &ids.map(Some), crate::Attrs::new()).unwrap();
            let back = b.call(&DEQUANTIZE_BLOCK, &[made[0], made[1]]).unwrap();
            b.output("back", back, OutputRole::User);
            let graph = b.finish();
            // All noise there is, in steps: the mean is then exact but for a step's share of a level.
            const STEPS: usize = 500;
            let mut mean = [0.0; 8];
            for i in 0..STEPS {
                let noise = (i as f64 + 0.5) / STEPS as f64;
                let inputs = [
                    Tensor::float(DType::F32, types[0].shape.clone(), x.clone()),
                    Tensor::full(&types[1], noise),
                    Tensor::full(&types[2], 1.0),
                    Tensor::full(&types[3], 0.0),
                    Tensor::full(&types[4], 0.0),
                ];
                let out = reference::run(&graph, &inputs).unwrap();
                mean.iter_mut().zip(out[0].floats()).for_each(|(m, y)| *m += y / STEPS as f64);
            }
            for (m, x) in mean.iter().zip(&x) {
                // A level is 9 % wide, or reaches from 0 to the lowest of the signed ones.
                let width = (0.1 * x.abs()).max(2f64.powf(-126.0 / OCTAVE));
                assert!((m - x).abs() <= width / STEPS as f64 + 1e-6 * x.abs(), "{dtype}: {x} became {m}");
            }
        }
    }
}
