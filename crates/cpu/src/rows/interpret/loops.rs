//! The loops of row programs, plain Rust, inlined into one function per tier. They are by index and over
//! pointers: what iterators are made of is not always compiled into these functions, and then lacks the
//! tier's instructions.
//!
//! Contract of every `run`: arguments hold the elements named (`n`, or `slow × fast`), valid and aligned, of
//! the loop's types. Memory that is written is valid for writing, and overlaps nothing that is read. With a
//! step other than 1, the operand in memory is walked by that many elements.

#![allow(clippy::needless_range_loop)]

use super::functions::{self, Exact, Int, Memory, Real};
use crate::element::{self, Element};
use crate::rows::types::Ty;
use headwater_core::DType;
use headwater_core::expr::{Binary, Unary};
use headwater_core::reference::scalar;
use headwater_core::row::Reduce;
use std::marker::PhantomData;
use std::slice::{from_raw_parts, from_raw_parts_mut};

pub(in crate::rows) trait MapLoop {
    /// # Safety
    /// The module's contract.
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize);
}

pub(in crate::rows) trait MoveLoop {
    /// # Safety
    /// The module's contract.
    unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize);
}

pub(in crate::rows) trait FoldLoop {
    /// # Safety
    /// The module's contract; `acc` holds one accumulator for each slow (or fast) index.
    unsafe fn run(src: *const u8, slow: usize, fast: usize, acc: *mut u8);
}

pub(in crate::rows) trait DotLoop {
    /// # Safety
    /// The module's contract; `acc` holds one accumulator for each slow index.
    unsafe fn run(a: *const u8, b: *const u8, slow: usize, fast: usize, acc: *mut u8);
}

pub(in crate::rows) const UNARY: [Unary; 26] = {
    use Unary::*;
    [
        Neg, Abs, Sign, Exp, ExpNonpos, Expm1, Log, Log1p, Sqrt, Rsqrt, Recip, Sin, Cos, Tan, Tanh, Atan,
        Erf, Ndtr, Floor, Ceil, Trunc, Round, Sigmoid, IsNan, IsInf, Not,
    ]
};
const BINARY: [Binary; 20] = {
    use Binary::*;
    [Add, Sub, Mul, Div, FloorDiv, Rem, Fmod, Pow, Atan2, Min, Max, Eq, Ne, Lt, Le, Gt, Ge, And, Or, Xor]
};
const REDUCE: [Reduce; 4] = [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min];
// Loops are instantiated by these numbers.
const _: () = {
    let mut i = 0;
    while i < DType::ALL.len() {
        assert!(DType::ALL[i] as usize == i);
        i += 1;
    }
    i = 0;
    while i < UNARY.len() {
        assert!(UNARY[i] as usize == i);
        i += 1;
    }
    i = 0;
    while i < BINARY.len() {
        assert!(BINARY[i] as usize == i);
        i += 1;
    }
    i = 0;
    while i < REDUCE.len() {
        assert!(REDUCE[i] as usize == i);
        i += 1;
    }
};

#[inline(always)]
unsafe fn map1<A: Copy, O>(args: [*const u8; 3], out: *mut u8, n: usize, f: impl Fn(A) -> O) {
    let (a, out) = (args[0].cast::<A>(), out.cast::<O>());
    for i in 0..n {
        // SAFETY: the module's contract.
        unsafe { *out.add(i) = f(*a.add(i)) };
    }
}

#[inline(always)]
unsafe fn map2<A: Copy, O>(args: [*const u8; 3], out: *mut u8, n: usize, f: impl Fn(A, A) -> O) {
    let (a, b, out) = (args[0].cast::<A>(), args[1].cast::<A>(), out.cast::<O>());
    for i in 0..n {
        // SAFETY: the module's contract.
        unsafe { *out.add(i) = f(*a.add(i), *b.add(i)) };
    }
}

/// Declares loops: `Name [generics] [their names]: from => to, function`.
macro_rules! maps {
    ($($name:ident [$($g:tt)*] [$($n:tt)*]: $map:ident $a:ty => $o:ty, $f:expr;)*) => { $(
        pub(in crate::rows) struct $name<$($g)*>(PhantomData<($a, $o)>);
        impl<$($g)*> MapLoop for $name<$($n)*> {
            #[inline(always)]
            unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
                // SAFETY: the module's contract.
                unsafe { $map::<$a, $o>(args, out, n, $f) }
            }
        }
    )* };
}
maps! {
    UnaryLoop [T: Real, const OP: usize] [T, OP]: map1 T => T, |x| T::unary(const { UNARY[OP] }, x);
    TestLoop [T: Real, const OP: usize] [T, OP]: map1 T => u8, |x| T::test(const { UNARY[OP] }, x) as u8;
    IntUnaryLoop [const OP: usize] [OP]: map1 i64 => i64, |x| scalar::unary_i(const { UNARY[OP] }, x);
    BitsLoop [T: Real] [T]: map1 T => i64, |x| x.bits();
    FromBitsLoop [T: Real] [T]: map1 i64 => T, |x| T::from_bits(x);
    NotLoop [] []: map1 u8 => u8, |x| x ^ 1;
    BinaryLoop [T: Real, const OP: usize] [T, OP]: map2 T => T, |a, b| T::binary(const { BINARY[OP] }, a, b);
    CompareLoop [T: Element, const OP: usize] [T, OP]: map2 T => u8, |a, b| functions::compare(const { BINARY[OP] }, a, b);
    IntBinaryLoop [const OP: usize] [OP]: map2 i64 => i64, |a, b| functions::binary_int(const { BINARY[OP] }, a, b);
    BoolBinaryLoop [const OP: usize] [OP]: map2 u8 => u8, |a, b| functions::binary_bool(const { BINARY[OP] }, a, b);
    FloatToIntLoop [T: Real, const TO: usize] [T, TO]: map1 T => i64, |x| functions::wrap(const { DType::ALL[TO] }, x.to_i64());
    WrapLoop [const TO: usize] [TO]: map1 i64 => i64, |x| functions::wrap(const { DType::ALL[TO] }, x);
    FloatToBoolLoop [T: Real] [T]: map1 T => u8, |x| (x != T::from_i64(0)) as u8;
    IntToBoolLoop [] []: map1 i64 => u8, |x| (x != 0) as u8;
    BoolToIntLoop [] []: map1 u8 => i64, |x| x as i64;
    BoolToFloatLoop [T: Real] [T]: map1 u8 => T, |x| T::from_i64(x as i64);
    IntToFloatLoop [T: Real, const TO: usize] [T, TO]: map1 i64 => T, |x| T::round_i64(x, const { DType::ALL[TO] });
    RoundLoop [T: Real, const TO: usize] [T, TO]: map1 T => T, |x| x.round(const { DType::ALL[TO] });
}

/// A function of a vector and one number, which is argument `ONE`.
pub(in crate::rows) struct SpreadLoop<T, const OP: usize, const ONE: usize>(PhantomData<T>);
impl<T: Real, const OP: usize, const ONE: usize> MapLoop for SpreadLoop<T, OP, ONE> {
    #[inline(always)]
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
        // SAFETY: the module's contract; argument `ONE` holds one element.
        let one = unsafe { *args[ONE].cast::<T>() };
        let f = |x| {
            if ONE == 0 {
                T::binary(const { BINARY[OP] }, one, x)
            } else {
                T::binary(const { BINARY[OP] }, x, one)
            }
        };
        // SAFETY: as above.
        unsafe { map1::<T, T>([args[1 - ONE]; 3], out, n, f) }
    }
}

/// `select(condition, a, b)`.
pub(in crate::rows) struct SelectLoop<T>(PhantomData<T>);
impl<T: Copy> MapLoop for SelectLoop<T> {
    #[inline(always)]
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
        let (c, a, b, out) = (args[0], args[1].cast::<T>(), args[2].cast::<T>(), out.cast::<T>());
        for i in 0..n {
            // SAFETY: the module's contract.
            unsafe { *out.add(i) = if *c.add(i) != 0 { *a.add(i) } else { *b.add(i) } };
        }
    }
}

/// Copies with conversion; `step` walks the source (`gather`) or the destination.
#[inline(always)]
unsafe fn moves<A: Copy, O: Copy>(
    src: *const u8,
    dst: *mut u8,
    step: isize,
    n: usize,
    gather: bool,
    f: impl Fn(A) -> O,
) {
    let (src, dst) = (src.cast::<A>(), dst.cast::<O>());
    // SAFETY: the module's contract: contiguous elements, or elements at the step.
    unsafe {
        if step == 1 {
            for i in 0..n {
                *dst.add(i) = f(*src.add(i));
            }
        } else if gather && step == 0 {
            if n > 0 {
                let x = f(*src);
                for i in 0..n {
                    dst.add(i).write(x);
                }
            }
        } else if gather {
            for i in 0..n {
                *dst.add(i) = f(*src.offset(i as isize * step));
            }
        } else {
            for i in 0..n {
                *dst.offset(i as isize * step) = f(*src.add(i));
            }
        }
    }
}

/// Declares loops that copy: `Name [generics] [their names]: from => to, gather, function`.
macro_rules! moves {
    ($($name:ident [$($g:tt)*] [$($n:tt)*]: $a:ty => $o:ty, $gather:literal, $f:expr;)*) => { $(
        pub(in crate::rows) struct $name<$($g)*>(PhantomData<($a, $o)>);
        impl<$($g)*> MoveLoop for $name<$($n)*> {
            #[inline(always)]
            unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
                // SAFETY: the module's contract.
                unsafe { moves::<$a, $o>(src, dst, step, n, $gather, $f) }
            }
        }
    )* };
}
moves! {
    LoadLoop [D: Memory<T>, T: Real] [D, T]: D => T, true, |x| x.get();
    LoadIntLoop [D: Int] [D]: D => i64, true, |x| x.widen();
    LoadBoolLoop [] []: u8 => u8, true, |x| (x != 0) as u8;
    StoreLoop [D: Memory<T>, T: Real] [D, T]: T => D, false, |x| D::of(x);
    StoreIntLoop [D: Int] [D]: i64 => D, false, |x| D::wrap(x);
    StoreBoolLoop [] []: u8 => u8, false, |x| x;
}

/// Makes what this thread has streamed visible to others before anything it writes later.
pub(in crate::rows) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Lanes of a sum along the fast dimension, and elements summed in them before they are added up in f64.
pub(in crate::rows) const LANES: usize = 32;
pub(in crate::rows) const CHUNK: usize = 4096;

/// Sum of `n` terms in lanes: at most `CHUNK / LANES + 5` roundings in `T` on the way of any term, the rest
/// in f64. `term` gives those of a stretch.
#[inline(always)]
fn sum<T: Real>(n: usize, term: impl Fn(usize) -> T) -> f64 {
    let mut total = 0.0;
    for from in (0..n).step_by(CHUNK) {
        let here = CHUNK.min(n - from);
        let whole = here / LANES * LANES;
        let mut lanes = [T::from_i64(0); LANES];
        let mut at = from;
        while at < from + whole {
            for i in 0..LANES {
                lanes[i] = T::binary(Binary::Add, lanes[i], term(at + i));
            }
            at += LANES;
        }
        for i in 0..here - whole {
            lanes[i] = T::binary(Binary::Add, lanes[i], term(from + whole + i));
        }
        total += element::total(lanes, LANES).to_f64();
    }
    total
}

/// Sums of products along the fast dimension into f64, one for each slow index.
pub(in crate::rows) struct DotFast<T>(PhantomData<T>);
impl<T: Real> DotLoop for DotFast<T> {
    #[inline(always)]
    unsafe fn run(a: *const u8, b: *const u8, slow: usize, fast: usize, acc: *mut u8) {
        for s in 0..slow {
            // SAFETY: the module's contract; terms are read below `fast`.
            unsafe {
                let (a, b) = (a.cast::<T>().add(s * fast), b.cast::<T>().add(s * fast));
                *acc.cast::<f64>().add(s) +=
                    sum(fast, |i| T::binary(Binary::Mul, a.add(i).read(), b.add(i).read()));
            }
        }
    }
}

/// Largest or smallest, NaN winning, in lanes.
#[inline(always)]
fn extreme<T: Real>(op: Binary, x: &[T], from: T) -> f64 {
    let mut lanes = [from; LANES];
    let whole = x.len() / LANES * LANES;
    let mut at = 0;
    while at < whole {
        for i in 0..LANES {
            lanes[i] = T::binary(op, lanes[i], x[at + i]);
        }
        at += LANES;
    }
    for i in whole..x.len() {
        lanes[i - whole] = T::binary(op, lanes[i - whole], x[i]);
    }
    element::halved(lanes, LANES, |a, b| T::binary(op, a, b)).to_f64()
}

/// Reduction of floats along the fast dimension into f64, one for each slow index.
pub(in crate::rows) struct FoldFastFloat<T, const OP: usize>(PhantomData<T>);
impl<T: Real, const OP: usize> FoldLoop for FoldFastFloat<T, OP> {
    #[inline(always)]
    unsafe fn run(src: *const u8, slow: usize, fast: usize, acc: *mut u8) {
        // SAFETY: the module's contract.
        let (x, acc) = unsafe {
            (from_raw_parts(src.cast::<T>(), slow * fast), from_raw_parts_mut(acc.cast::<f64>(), slow))
        };
        for (s, a) in acc.iter_mut().enumerate() {
            let x = &x[s * fast..(s + 1) * fast];
            *a = match const { REDUCE[OP] } {
                // SAFETY: terms are read below the length.
                Reduce::Sum => *a + sum(x.len(), |i| unsafe { *x.get_unchecked(i) }),
                Reduce::Prod => x.iter().fold(*a, |a, x| a * x.to_f64()),
                Reduce::Max => {
                    f64::binary(Binary::Max, *a, extreme(Binary::Max, x, T::from_f64(f64::NEG_INFINITY)))
                }
                Reduce::Min => {
                    f64::binary(Binary::Min, *a, extreme(Binary::Min, x, T::from_f64(f64::INFINITY)))
                }
            };
        }
    }
}

/// Reduction of floats along the slow dimension into f64, one for each fast index.
pub(in crate::rows) struct FoldSlowFloat<T, const OP: usize>(PhantomData<T>);
impl<T: Real, const OP: usize> FoldLoop for FoldSlowFloat<T, OP> {
    #[inline(always)]
    unsafe fn run(src: *const u8, slow: usize, fast: usize, acc: *mut u8) {
        let (x, acc) = (src.cast::<T>(), acc.cast::<f64>());
        for s in 0..slow {
            for i in 0..fast {
                // SAFETY: the module's contract.
                unsafe {
                    *acc.add(i) =
                        fold_float(const { REDUCE[OP] }, *acc.add(i), (*x.add(s * fast + i)).to_f64());
                }
            }
        }
    }
}

/// Sum of f32 along the slow dimension into f32, one for each fast index.
pub(in crate::rows) struct SumSlow;
impl FoldLoop for SumSlow {
    #[inline(always)]
    unsafe fn run(src: *const u8, slow: usize, fast: usize, acc: *mut u8) {
        let (x, acc) = (src.cast::<f32>(), acc.cast::<f32>());
        for s in 0..slow {
            for i in 0..fast {
                // SAFETY: the module's contract.
                unsafe { *acc.add(i) += *x.add(s * fast + i) };
            }
        }
    }
}

#[inline(always)]
fn fold_float(op: Reduce, a: f64, x: f64) -> f64 {
    match op {
        Reduce::Sum => a + x,
        Reduce::Prod => a * x,
        Reduce::Max => f64::binary(Binary::Max, a, x),
        Reduce::Min => f64::binary(Binary::Min, a, x),
    }
}

/// Reduction of integers (wrapping) or bools along the fast dimension.
pub(in crate::rows) struct FoldFastOther<T, const OP: usize>(PhantomData<T>);
impl<T: Exact, const OP: usize> FoldLoop for FoldFastOther<T, OP> {
    #[inline(always)]
    unsafe fn run(src: *const u8, slow: usize, fast: usize, acc: *mut u8) {
        // SAFETY: the module's contract.
        let (x, acc) = unsafe {
            (from_raw_parts(src.cast::<T>(), slow * fast), from_raw_parts_mut(acc.cast::<T>(), slow))
        };
        for (s, a) in acc.iter_mut().enumerate() {
            *a = x[s * fast..(s + 1) * fast].iter().fold(*a, |a, &x| T::fold(const { REDUCE[OP] }, a, x));
        }
    }
}

/// Reduction of integers (wrapping) or bools along the slow dimension.
pub(in crate::rows) struct FoldSlowOther<T, const OP: usize>(PhantomData<T>);
impl<T: Exact, const OP: usize> FoldLoop for FoldSlowOther<T, OP> {
    #[inline(always)]
    unsafe fn run(src: *const u8, slow: usize, fast: usize, acc: *mut u8) {
        // SAFETY: the module's contract.
        let (x, acc) = unsafe {
            (from_raw_parts(src.cast::<T>(), slow * fast), from_raw_parts_mut(acc.cast::<T>(), fast))
        };
        for row in x.chunks_exact(fast.max(1)) {
            for (a, &x) in acc.iter_mut().zip(row) {
                *a = T::fold(const { REDUCE[OP] }, *a, x);
            }
        }
    }
}

/// The result of a reduction of nothing, as an accumulator of a type.
pub(in crate::rows) fn identity(accumulator: Ty, op: Reduce) -> [u8; 8] {
    match (accumulator, op) {
        (Ty::F32 | Ty::F64, Reduce::Sum) => 0f64.to_ne_bytes(),
        (Ty::F32 | Ty::F64, Reduce::Prod) => 1f64.to_ne_bytes(),
        (Ty::F32 | Ty::F64, Reduce::Max) => f64::NEG_INFINITY.to_ne_bytes(),
        (Ty::F32 | Ty::F64, Reduce::Min) => f64::INFINITY.to_ne_bytes(),
        (Ty::I64, Reduce::Sum) => 0i64.to_ne_bytes(),
        (Ty::I64, Reduce::Prod) => 1i64.to_ne_bytes(),
        (Ty::I64, Reduce::Max) => i64::MIN.to_ne_bytes(),
        (Ty::I64, Reduce::Min) => i64::MAX.to_ne_bytes(),
        (Ty::Bool, Reduce::Sum | Reduce::Max) => [0; 8],
        (Ty::Bool, Reduce::Prod | Reduce::Min) => [1; 8],
    }
}

/// Folds one accumulator into another: how partial results are combined.
pub(in crate::rows) fn combine(ty: Ty, op: Reduce, into: &mut [u8; 8], with: [u8; 8]) {
    *into = match ty.accumulator() {
        Ty::F32 | Ty::F64 => {
            fold_float(op, f64::from_ne_bytes(*into), f64::from_ne_bytes(with)).to_ne_bytes()
        }
        Ty::I64 => i64::fold(op, i64::from_ne_bytes(*into), i64::from_ne_bytes(with)).to_ne_bytes(),
        Ty::Bool => [u8::fold(op, into[0], with[0]); 8],
    };
}
