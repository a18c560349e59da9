//! The elementary functions on vectors of x86: what `math` is written in, as instructions of AVX2 and
//! AVX-512. Only functions compiled for these may come here; everything is inlined into them.

use crate::rows::math::Lanes;
use std::arch::x86_64::*;

/// Vectors of AVX2.
#[derive(Default)]
pub struct Avx2;
/// Vectors of AVX-512.
#[derive(Default)]
pub struct Avx512;

macro_rules! lanes {
    ($name:ident: $v:ty, $m:ty; $set:ident $add:ident $sub:ident $mul:ident $div:ident $fma:ident $max:ident $min:ident
        $and:ident $or:ident; $sub_int:ident $set_int:ident $left:ident $right:ident $to_float:ident $to_int:ident $of_int:ident;
        $compare:ident $select:expr, $pick:expr) => {
        impl Lanes for $name {
            type V = $v;
            type M = $m;

            #[inline(always)]
            fn num(&mut self, x: f32) -> $v {
                // SAFETY: for all intrinsics here: callers are compiled for the instruction set (module
                // documentation), which the processor was found to have.
                unsafe { $set(x) }
            }
            #[inline(always)]
            fn add(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $add(a, b) }
            }
            #[inline(always)]
            fn sub(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            fn mul(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            fn div(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $div(a, b) }
            }
            #[inline(always)]
            fn fma(&mut self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: as above.
                unsafe { $fma(a, b, c) }
            }
            #[inline(always)]
            fn max(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $max(a, b) }
            }
            #[inline(always)]
            fn min(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $min(a, b) }
            }
            #[inline(always)]
            fn lt(&mut self, a: $v, b: $v) -> $m {
                // SAFETY: as above.
                unsafe { $compare::<_CMP_LT_OQ>(a, b) }
            }
            #[inline(always)]
            fn eq(&mut self, a: $v, b: $v) -> $m {
                // SAFETY: as above.
                unsafe { $compare::<_CMP_EQ_OQ>(a, b) }
            }
            #[inline(always)]
            fn is_nan(&mut self, a: $v) -> $m {
                // SAFETY: as above.
                unsafe { $compare::<_CMP_UNORD_Q>(a, a) }
            }
            #[inline(always)]
            fn select(&mut self, m: $m, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $select(m, a, b) }
            }
            #[inline(always)]
            fn bits(&mut self, x: u32) -> $v {
                // SAFETY: as above.
                unsafe { $of_int($set_int(x.cast_signed())) }
            }
            #[inline(always)]
            fn and(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $and(a, b) }
            }
            #[inline(always)]
            fn or(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $or(a, b) }
            }
            #[inline(always)]
            fn sub_int(&mut self, a: $v, b: $v) -> $v {
                // SAFETY: as above.
                unsafe { $of_int($sub_int($to_int(a), $to_int(b))) }
            }
            #[inline(always)]
            fn shift_left(&mut self, a: $v, n: u8) -> $v {
                // SAFETY: as above.
                unsafe { $of_int($left($to_int(a), _mm_cvtsi32_si128(n.into()))) }
            }
            #[inline(always)]
            fn shift_right(&mut self, a: $v, n: u8) -> $v {
                // SAFETY: as above.
                unsafe { $of_int($right($to_int(a), _mm_cvtsi32_si128(n.into()))) }
            }
            #[inline(always)]
            fn int_to_float(&mut self, a: $v) -> $v {
                // SAFETY: as above.
                unsafe { $to_float($to_int(a)) }
            }
            #[inline(always)]
            fn pick(&mut self, table: [u32; 8], a: $v) -> $v {
                // SAFETY: as above; the table has eight entries.
                unsafe { $of_int($pick(_mm256_loadu_si256(table.as_ptr().cast()), $to_int(a))) }
            }
        }
    };
}

lanes!(Avx2: __m256, __m256; _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_fmadd_ps
    _mm256_max_ps _mm256_min_ps _mm256_and_ps _mm256_or_ps; _mm256_sub_epi32 _mm256_set1_epi32 _mm256_sll_epi32
    _mm256_sra_epi32 _mm256_cvtepi32_ps _mm256_castps_si256 _mm256_castsi256_ps;
    // One instruction is left of these if one of them is zero.
    _mm256_cmp_ps |m, a, b| _mm256_or_ps(_mm256_and_ps(m, a), _mm256_andnot_ps(m, b)),
    |table, a| _mm256_permutevar8x32_epi32(table, a));
lanes!(Avx512: __m512, __mmask16; _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_fmadd_ps
    _mm512_max_ps _mm512_min_ps _mm512_and_ps _mm512_or_ps; _mm512_sub_epi32 _mm512_set1_epi32 _mm512_sll_epi32
    _mm512_sra_epi32 _mm512_cvtepi32_ps _mm512_castps_si512 _mm512_castsi512_ps;
    _mm512_cmp_ps_mask |m, a, b| _mm512_mask_blend_ps(m, b, a),
    // Twice the table: the fourth bit is of no matter.
    |table, a| _mm512_permutexvar_epi32(a, _mm512_broadcast_i64x4(table)));
