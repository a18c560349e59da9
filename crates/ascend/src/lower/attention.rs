//! Attention and its gradient.
//!
//! On A2 long attention in a 16-bit type is one kernel of cube and vector cores ([`kernels::attention`]).
//! Otherwise it is the launches of its expansion, and gradients always are: products on the cube, softmax and
//! its gradient by row programs.

use super::expand;
use super::launch::{LoweredLaunch, Refusal};
use super::sequence::{Sequence, Tensor};
use super::source::attributed;
use crate::kernel::Elem;
use crate::kernels::{self, HeadRows};
use headwater_core::DType;
use headwater_core::ops::OpCx;
use headwater_core::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD, Attention};
use std::sync::Arc;

/// Fewest queries that one kernel is for: rows of a tile of the cube.
const QUERIES: usize = 128;

/// Keys from which on one kernel is shorter than separate launches. Predicted microseconds on a 910B1, f16,
/// one kernel beside launches: 8 × 12 heads of 64 elements and so many queries and keys, 256: 39.7 and 37.9;
/// 288: 47.0 and 59.1; 512: 80.9 and 123.0. 32 heads of 128 elements, 256: 25.5 and 21.7; 320: 27.1 and 27.8;
/// 384: 30.8 and 34.0.
const LONG: usize = 288;

/// The launches of an `attention` node.
///
/// # Errors
/// Types and shapes that the kernels do not take.
pub fn attention(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let a = Attention::of(cx, [0, 1, 2, 3, 4])?;
    let results = s.outputs();
    let [out, largest, denominators] = &results[..] else {
        return Err(Refusal::new("attention without its three results"));
    };
    let plain = s.optional(3).is_none() && a.dropout == 0.0;
    let operands = [s.input(0)?, s.input(1)?, s.input(2)?];
    let [q, k, v] = &operands;
    if s.together && plain && fused(s, &a, [q, k, v, out, largest, denominators])? {
        return Ok(());
    }
    expand::launches(s, &ATTENTION, cx)
}

/// The launches of an `attention_backward` node.
///
/// # Errors
/// As [`attention`].
pub fn attention_backward(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    expand::launches(s, &ATTENTION_BACKWARD, cx)
}

/// Attention as one kernel, for operands that it takes and where it is shorter; says whether it is.
fn fused(s: &mut Sequence, a: &Attention, operands: [&Tensor; 6]) -> Result<bool, Refusal> {
    let [q, k, v, out, largest, denominators] = operands;
    let (Some(elem), Some(places)) = (Elem::of(q.dtype()), places([q, k, v, out])) else { return Ok(false) };
    let strides = &largest.view.layout.strides;
    let (Ok(sample), Ok(head)) = (u64::try_from(strides[0]), u64::try_from(strides[1])) else {
        return Ok(false);
    };
    let one_type =
        out.dtype() == q.dtype() && [largest, denominators].iter().all(|t| t.dtype() == DType::F32);
    let alike = denominators.view.layout.strides == *strides;
    if a.s < LONG || a.l < QUERIES || !one_type || !alike || strides[2] != 1 {
        return Ok(false);
    }
    let shape = kernels::Attention {
        elem,
        samples: a.batch as u64,
        heads: [a.heads, a.key_heads, a.value_heads].map(|n| n as u64),
        lens: [a.l, a.s].map(|n| n as u64),
        widths: [a.e, a.ev].map(|n| n as u64),
        places,
        numbers: [head, sample],
        scale: a.scale as f32,
        causal: a.causal,
        blocks: s.chip.cube_cores.into(),
    };
    // Shapes that it refuses have separate launches.
    let Ok(program) = kernels::attention(s.chip.arch, &shape) else { return Ok(false) };
    let [scores, products] = shape.rings().map(|n| n as usize);
    let rings = [(DType::F32, scores), (q.dtype(), scores), (DType::F32, products)];
    let mut args: Vec<_> = operands.iter().map(|t| t.arg).collect();
    for (dtype, len) in rings {
        args.push(s.scratch(dtype, &[len])?.arg);
    }
    let program = Arc::new(attributed(program, s.source));
    let blocks = u32::try_from(shape.tasks()).unwrap_or(u32::MAX).min(s.chip.cube_cores);
    s.lowered.launches.push(LoweredLaunch { program, args, blocks });
    Ok(true)
}

/// Offsets of rows of `[samples, heads, rows, elements]` whose elements are contiguous.
fn places(tensors: [&Tensor; 4]) -> Option<[HeadRows; 4]> {
    let mut all = [HeadRows { row: 0, head: 0, sample: 0 }; 4];
    for (place, t) in all.iter_mut().zip(tensors) {
        let layout = &t.view.layout;
        // A dimension of one index has any stride.
        let step = |d: usize| match layout.shape[d] {
            1 => Some(if d == 2 { layout.shape[3] as u64 } else { 0 }),
            _ => u64::try_from(layout.strides[d]).ok(),
        };
        if layout.shape[3] > 1 && layout.strides[3] != 1 {
            return None;
        }
        *place = HeadRows { row: step(2)?, head: step(1)?, sample: step(0)? };
    }
    Some(all)
}
