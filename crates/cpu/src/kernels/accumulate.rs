//! Accumulation of several values in one element of a tensor, as `scatter` and `index_put` do, in f32 or
//! wider.

use super::grid::GRAIN;
use crate::element::{Element, Float};
use crate::pool::Pool;
use half::{bf16, f16};
use headwater_core::DType;
use headwater_core::ops::index::scatter::Combine;

/// An element, and the type in which several are accumulated.
pub(super) trait Accumulate: Element {
    type Sum: bytemuck::Pod + Send + Sync;
    fn lift(self) -> Self::Sum;
    fn lower(sum: Self::Sum) -> Self;
    fn of(number: f64) -> Self;
    fn combine(how: Combine, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divide(a: Self::Sum, n: u32) -> Self::Sum;
}

macro_rules! accumulate_floats {
    ($($t:ident)*) => { $(
        impl Accumulate for $t {
            type Sum = <$t as Float>::Wide;
            #[inline(always)]
            fn lift(self) -> Self::Sum {
                self.widen()
            }
            #[inline(always)]
            fn lower(sum: Self::Sum) -> $t {
                <$t as Float>::narrow(sum)
            }
            fn of(number: f64) -> $t {
                <$t as Float>::from_f64(number)
            }
            #[inline(always)]
            fn combine(how: Combine, a: Self::Sum, b: Self::Sum) -> Self::Sum {
                match how {
                    Combine::Replace => b,
                    Combine::Sum | Combine::Mean => a + b,
                    Combine::Prod => a * b,
                    Combine::Max => if a.is_nan() || a > b { a } else { b },
                    Combine::Min => if a.is_nan() || a < b { a } else { b },
                }
            }
            fn divide(a: Self::Sum, n: u32) -> Self::Sum {
                a / n as Self::Sum
            }
        }
    )* };
}
accumulate_floats!(f16 bf16 f32 f64);

macro_rules! accumulate_ints {
    ($($t:ident)*) => { $(
        impl Accumulate for $t {
            type Sum = $t;
            #[inline(always)]
            fn lift(self) -> $t {
                self
            }
            #[inline(always)]
            fn lower(sum: $t) -> $t {
                sum
            }
            fn of(number: f64) -> $t {
                number as i64 as $t
            }
            #[inline(always)]
            fn combine(how: Combine, a: $t, b: $t) -> $t {
                match how {
                    Combine::Replace => b,
                    Combine::Sum | Combine::Mean => a.wrapping_add(b),
                    Combine::Prod => a.wrapping_mul(b),
                    Combine::Max => a.max(b),
                    Combine::Min => a.min(b),
                }
            }
            fn divide(a: $t, _: u32) -> $t {
                a
            }
        }
    )* };
}
accumulate_ints!(u8 i8 i16 i32 i64);

/// True if values of a dtype are accumulated in another type, which needs a workspace.
pub(super) fn widened(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Runs `f` on accumulators that start as `x` and end, rounded, in `out`: `out` itself, or `wide` for the
/// narrow floats.
pub(super) fn accumulate<T: Accumulate>(
    pool: &Pool,
    x: &[T],
    out: &mut [T],
    wide: &mut [u8],
    f: impl FnOnce(&mut [T::Sum]),
) {
    if size_of::<T>() == size_of::<T::Sum>() {
        pool.chunks(out, GRAIN, |b, out| out.copy_from_slice(&x[b * GRAIN..][..out.len()]));
        f(bytemuck::cast_slice_mut(out));
    } else {
        let sums: &mut [T::Sum] = bytemuck::cast_slice_mut(wide);
        pool.chunks(sums, GRAIN, |b, sums| {
            sums.iter_mut().zip(&x[b * GRAIN..]).for_each(|(s, x)| *s = x.lift())
        });
        f(sums);
        pool.chunks(out, GRAIN, |b, out| {
            out.iter_mut().zip(&sums[b * GRAIN..]).for_each(|(o, s)| *o = T::lower(*s));
        });
    }
}
