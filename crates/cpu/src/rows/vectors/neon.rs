//! Vectors of NEON, in pairs as `gemm` has them. Every processor of the architecture has these instructions,
//! and every function is compiled for them.

use crate::gemm::Eight;
use crate::rows::math::Lanes;
use std::arch::aarch64::*;

/// Vectors of NEON.
#[derive(Default)]
pub struct Neon;

/// The same of both registers.
macro_rules! both {
    (|$($x:ident),*| $f:expr) => {
        Eight([0, 1].map(|i| {
            $(let $x = $x.0[i];)*
            // SAFETY: for all intrinsics here: NEON is part of the architecture.
            unsafe { $f }
        }))
    };
}

#[inline(always)]
fn int(x: float32x4_t) -> int32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_s32_f32(x) }
}

#[inline(always)]
fn float(x: int32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f32_s32(x) }
}

/// All bits of a lane, or none.
#[inline(always)]
fn mask(x: uint32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_f32_u32(x) }
}

impl Lanes for Neon {
    type V = Eight;
    type M = Eight;

    #[inline(always)]
    fn num(&mut self, x: f32) -> Eight {
        crate::gemm::Lanes::splat(x)
    }
    #[inline(always)]
    fn add(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(&mut self, a: Eight, b: Eight, c: Eight) -> Eight {
        both!(|a, b, c| vfmaq_f32(c, a, b))
    }
    // The instructions for these would give a NaN wherever one takes part.
    #[inline(always)]
    fn max(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn min(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn lt(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| mask(vcltq_f32(a, b)))
    }
    #[inline(always)]
    fn eq(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| mask(vceqq_f32(a, b)))
    }
    #[inline(always)]
    fn is_nan(&mut self, a: Eight) -> Eight {
        both!(|a| mask(vmvnq_u32(vceqq_f32(a, a))))
    }
    #[inline(always)]
    fn select(&mut self, m: Eight, a: Eight, b: Eight) -> Eight {
        both!(|m, a, b| vbslq_f32(vreinterpretq_u32_f32(m), a, b))
    }
    #[inline(always)]
    fn bits(&mut self, x: u32) -> Eight {
        self.num(f32::from_bits(x))
    }
    #[inline(always)]
    fn and(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| float(vandq_s32(int(a), int(b))))
    }
    #[inline(always)]
    fn or(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| float(vorrq_s32(int(a), int(b))))
    }
    #[inline(always)]
    fn sub_int(&mut self, a: Eight, b: Eight) -> Eight {
        both!(|a, b| float(vsubq_s32(int(a), int(b))))
    }
    #[inline(always)]
    fn shift_left(&mut self, a: Eight, n: u8) -> Eight {
        both!(|a| float(vshlq_s32(int(a), vdupq_n_s32(n.into()))))
    }
    #[inline(always)]
    fn shift_right(&mut self, a: Eight, n: u8) -> Eight {
        // A negative number shifts right.
        both!(|a| float(vshlq_s32(int(a), vdupq_n_s32(-i32::from(n)))))
    }
    #[inline(always)]
    fn pick(&mut self, table: [u32; 8], a: Eight) -> Eight {
        // Bytes of the table: those of the entry, four times its number and on.
        // SAFETY: NEON is part of the architecture; the table has 32 bytes.
        let bytes = unsafe { vld1q_u8_x2(table.as_ptr().cast()) };
        both!(|a| {
            let entry = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(7));
            let first = vdupq_n_u32(u32::from_le_bytes([0, 1, 2, 3]));
            let at = vmlaq_u32(first, entry, vdupq_n_u32(0x0404_0404));
            vreinterpretq_f32_u8(vqtbl2q_u8(bytes, vreinterpretq_u8_u32(at)))
        })
    }
    #[inline(always)]
    fn int_to_float(&mut self, a: Eight) -> Eight {
        both!(|a| vcvtq_f32_s32(int(a)))
    }
}
