//! f16 to f32 and back by the instructions made for it (F16C), which round to nearest, ties to even, as everything here.
//! What does not fill a vector goes the way of the portable loops.

use super::loops::{LoadLoop, MapLoop, MoveLoop, RoundLoop, StoreLoop};
use half::f16;
use headwater_core::DType;
use std::arch::x86_64::*;

/// Elements of a vector.
const WIDE: usize = 8;

pub(super) struct Load;
impl MoveLoop for Load {
    #[inline(always)]
    unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
        let whole = if step == 1 { n / WIDE * WIDE } else { 0 };
        // SAFETY: the contract of `loops`; this tier has F16C.
        unsafe {
            for i in (0..whole).step_by(WIDE) {
                let half = _mm_loadu_si128(src.add(2 * i).cast());
                _mm256_storeu_ps(dst.add(4 * i).cast(), _mm256_cvtph_ps(half));
            }
            LoadLoop::<f16, f32>::run(src.add(2 * whole), dst.add(4 * whole), step, n - whole);
        }
    }
}

pub(super) struct Store<const STREAM: bool>;
impl<const STREAM: bool> MoveLoop for Store<STREAM> {
    #[inline(always)]
    unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
        // Streamed vectors are aligned to their size.
        let head = if STREAM { dst.cast::<f16>().align_offset(16).min(n) } else { 0 };
        let whole = if step == 1 { (n - head) / WIDE * WIDE } else { 0 };
        let head = if whole == 0 { 0 } else { head };
        // SAFETY: the contract of `loops`; this tier has F16C.
        unsafe {
            StoreLoop::<f16, f32>::run(src, dst, 1, head);
            for i in (head..head + whole).step_by(WIDE) {
                let half =
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(src.add(4 * i).cast()));
                if STREAM {
                    _mm_stream_si128(dst.add(2 * i).cast(), half);
                } else {
                    _mm_storeu_si128(dst.add(2 * i).cast(), half);
                }
            }
            let done = head + whole;
            StoreLoop::<f16, f32>::run(src.add(4 * done), dst.add(2 * done), step, n - done);
        }
    }
}

pub(super) struct Round;
impl MapLoop for Round {
    #[inline(always)]
    unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
        let whole = n / WIDE * WIDE;
        // SAFETY: the contract of `loops`; this tier has F16C.
        unsafe {
            for i in (0..whole).step_by(WIDE) {
                let x = _mm256_loadu_ps(args[0].add(4 * i).cast());
                let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                _mm256_storeu_ps(out.add(4 * i).cast(), _mm256_cvtph_ps(half));
            }
            let rest = [args[0].add(4 * whole); 3];
            RoundLoop::<f32, { DType::F16 as usize }>::run(rest, out.add(4 * whole), n - whole);
        }
    }
}
