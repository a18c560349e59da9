//! Loops on vectors: conversion of floats in memory to f32 and back, to nearest, ties to even; and elementary
//! functions. Tails that fill no vector take the portable loops.

use super::functions::Memory;
use super::loops::{LoadLoop, MapLoop, MoveLoop, StoreLoop, UNARY, UnaryLoop};
use crate::element::Float;
use crate::simd::{Convert, Native, Simd, SimdF32};
use headwater_core::expr::elementary;
use std::marker::PhantomData;

/// Vectors of the lowest tier that has such instructions.
#[cfg(target_arch = "aarch64")]
type Vector = crate::simd::neon::Eight;
#[cfg(target_arch = "x86_64")]
type Vector = std::arch::x86_64::__m256;

/// Elements of a vector.
const WIDE: usize = <Vector as Simd>::N;

pub(in crate::rows) struct Load<D>(PhantomData<D>);
impl<D: Memory<f32> + Float<Wide = f32>> MoveLoop for Load<D>
where
    Vector: Convert<D>,
{
    #[inline(always)]
    unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
        let (from, to) = (src.cast::<D>(), dst.cast::<f32>());
        let whole = if step == 1 { n / WIDE * WIDE } else { 0 };
        // SAFETY: the contract of `loops`; this tier has the instructions.
        unsafe {
            for i in (0..whole).step_by(WIDE) {
                <Vector as Convert<D>>::load_widen(from.add(i)).store(to.add(i));
            }
            LoadLoop::<D, f32>::run(from.add(whole).cast(), to.add(whole).cast(), step, n - whole);
        }
    }
}

/// With `STREAM`, with non-temporal stores where the destination is contiguous.
pub(in crate::rows) struct Store<D, const STREAM: bool>(PhantomData<D>);
impl<D: Memory<f32> + Float<Wide = f32>, const STREAM: bool> MoveLoop for Store<D, STREAM>
where
    Vector: Convert<D>,
{
    #[inline(always)]
    unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
        let (from, to) = (src.cast::<f32>(), dst.cast::<D>());
        let (mut head, mut whole) = (0, 0);
        if step == 1 {
            // Streamed vectors are aligned to their size.
            head = if STREAM { to.align_offset(WIDE * size_of::<D>()).min(n) } else { 0 };
            whole = (n - head) / WIDE * WIDE;
        }
        // SAFETY: the contract of `loops`; this tier has the instructions.
        unsafe {
            StoreLoop::<D, f32>::run(src, dst, 1, head);
            for i in (head..head + whole).step_by(WIDE) {
                let x = Vector::load(from.add(i));
                if STREAM {
                    Convert::<D>::stream_narrow(x, to.add(i));
                } else {
                    Convert::<D>::store_narrow(x, to.add(i));
                }
            }
            let done = head + whole;
            StoreLoop::<D, f32>::run(from.add(done).cast(), to.add(done).cast(), step, n - done);
        }
    }
}

/// To `D` and back.
pub(in crate::rows) struct Round<D>(PhantomData<D>);
impl<D: Memory<f32> + Float<Wide = f32>> MapLoop for Round<D>
where
    Vector: Convert<D>,
{
    #[inline(always)]
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
        let (from, to) = (args[0].cast::<f32>(), out.cast::<f32>());
        let whole = n / WIDE * WIDE;
        // SAFETY: the contract of `loops`; this tier has the instructions.
        unsafe {
            for i in (0..whole).step_by(WIDE) {
                Convert::<D>::round_through(Vector::load(from.add(i))).store(to.add(i));
            }
            for i in whole..n {
                *to.add(i) = <D as Memory<f32>>::of(*from.add(i)).get();
            }
        }
    }
}

/// An elementary function of f32, on the vectors `V`.
pub(in crate::rows) struct Function<V, const OP: usize>(PhantomData<V>);
impl<V: SimdF32, const OP: usize> MapLoop for Function<V, OP> {
    #[inline(always)]
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
        let (from, to, mut l) = (args[0].cast::<f32>(), out.cast::<f32>(), Native::<V>::default());
        let wide = V::N;
        let whole = n / wide * wide;
        // SAFETY: the contract of `loops`; this tier has the instructions.
        unsafe {
            for i in (0..whole).step_by(wide) {
                let x = V::load(from.add(i));
                let y = elementary::unary(&mut l, const { UNARY[OP] }, x);
                y.expect("a function of vectors").store(to.add(i));
            }
            let rest = [from.add(whole).cast(), args[1], args[2]];
            UnaryLoop::<f32, OP>::run(rest, to.add(whole).cast(), n - whole);
        }
    }
}
