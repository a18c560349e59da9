//! Floats in memory to f32 and back, a vector at a time, by the instructions of x86: nearest, ties to even,
//! as everywhere. What fills no vector goes the way of the portable loops.

use super::loops::{LoadLoop, MapLoop, MoveLoop, StoreLoop};
use super::real::Memory;
use crate::element::Float;
use crate::gemm::{Converts, Lanes};
use std::arch::x86_64::__m256;
use std::marker::PhantomData;

/// Elements of a vector.
const WIDE: usize = 8;

pub(super) struct Load<D>(PhantomData<D>);
impl<D: Memory<f32> + Float<Wide = f32>> MoveLoop for Load<D>
where
    __m256: Converts<D>,
{
    #[inline(always)]
    unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
        let (from, to) = (src.cast::<D>(), dst.cast::<f32>());
        let whole = if step == 1 { n / WIDE * WIDE } else { 0 };
        // SAFETY: the contract of `loops`; this tier has the instructions.
        unsafe {
            for i in (0..whole).step_by(WIDE) {
                <__m256 as Converts<D>>::read(from.add(i)).store(to.add(i));
            }
            LoadLoop::<D, f32>::run(from.add(whole).cast(), to.add(whole).cast(), step, n - whole);
        }
    }
}

/// With `STREAM`, past the caches where the destination is contiguous.
pub(super) struct Store<D, const STREAM: bool>(PhantomData<D>);
impl<D: Memory<f32> + Float<Wide = f32>, const STREAM: bool> MoveLoop for Store<D, STREAM>
where
    __m256: Converts<D>,
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
                let x = __m256::load(from.add(i));
                if STREAM {
                    Converts::<D>::stream(x, to.add(i));
                } else {
                    Converts::<D>::write(x, to.add(i));
                }
            }
            let done = head + whole;
            StoreLoop::<D, f32>::run(from.add(done).cast(), to.add(done).cast(), step, n - done);
        }
    }
}

/// To `D` and back.
pub(super) struct Round<D>(PhantomData<D>);
impl<D: Memory<f32> + Float<Wide = f32>> MapLoop for Round<D>
where
    __m256: Converts<D>,
{
    #[inline(always)]
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
        let (from, to) = (args[0].cast::<f32>(), out.cast::<f32>());
        let whole = n / WIDE * WIDE;
        // SAFETY: the contract of `loops`; this tier has the instructions.
        unsafe {
            for i in (0..whole).step_by(WIDE) {
                Converts::<D>::rounded(__m256::load(from.add(i))).store(to.add(i));
            }
            for i in whole..n {
                *to.add(i) = <D as Memory<f32>>::of(*from.add(i)).get();
            }
        }
    }
}
