//! Limits of this processor and its memory on the threads in use: the yardstick that kernels are held
//! against. They are measured, not looked up: the best of several runs, each long enough for the clock to
//! settle. Arithmetic is measured also run by run, alternately with the measured kernel.
//!
//! Knows threads and instruction sets; nothing of kernels, plans or operators.

use crate::memory::CpuMemory;
use crate::pool::{Pool, Shared};
#[cfg(target_arch = "x86_64")]
use crate::simd::amx;
use crate::tier::Tier;
use headwater_core::DType;
use headwater_core::diagnostic::Result;
use std::hint::black_box;
use std::time::Instant;

/// Limits of a machine; rates are sums over all threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Threads they were measured on.
    pub threads: usize,
    /// Instructions in use.
    pub tier: Tier,
    /// Multiply-adds on f32 registers, in floating-point operations a second (an FMA counts two).
    pub f32: f64,
    /// The same on f64.
    pub f64: f64,
    /// Multiply-adds for products of bf16: of pairs or tiles where there are instructions for these, of f32
    /// otherwise.
    pub bf16: f64,
    /// Bytes a second of an ordinary copy, read and written counted both; the destination's lines are read as
    /// well.
    pub copy: f64,
    /// The same with stores that bypass the cache.
    pub copy_streaming: f64,
    /// Bytes a second of a read whose result is a sum.
    pub read: f64,
}

impl Limits {
    /// Floating-point operations a second for products of operands of this dtype. The limit of f16 is that of
    /// f32, to which it is widened in registers; so is that of bf16 in all but products.
    pub fn flops(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F64 => self.f64,
            DType::BF16 => self.bf16,
            _ => self.f32,
        }
    }

    /// Bytes a second that can be read and written at best.
    pub fn bandwidth(&self) -> f64 {
        self.copy.max(self.copy_streaming)
    }

    /// Seconds that no program can beat: the larger of arithmetic and memory traffic at the limit.
    pub fn floor(&self, dtype: DType, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops(dtype)).max(bytes / self.bandwidth())
    }
}

/// Work that limits are measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Runs, of which the best counts.
    pub runs: usize,
    /// Multiply-adds of each register in a run.
    pub rounds: usize,
    /// Bytes copied or read in a run; several times the last cache.
    pub bytes: usize,
}

impl Workload {
    /// Little of it, for rough limits.
    pub const QUICK: Workload = Workload { runs: 3, rounds: 1 << 16, bytes: 16 << 20 };
}

impl Default for Workload {
    /// About a second in all.
    fn default() -> Self {
        Workload { runs: 8, rounds: 2 << 20, bytes: 256 << 20 }
    }
}

/// The best of several runs of so much work.
fn best(runs: usize, work: f64, mut run: impl FnMut()) -> f64 {
    let mut rate: f64 = 0.0;
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        run();
        rate = rate.max(work / start.elapsed().as_secs_f64().max(1e-9));
    }
    rate
}

/// Multiply-adds in registers, in floating-point operations a second: what [`Limits`] says of the same name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Rate in f32.
    pub f32: f64,
    /// Rate in f64.
    pub f64: f64,
    /// For products of bf16.
    pub bf16: f64,
}

/// Measures arithmetic alone, which touches only registers. So it can be measured alternately with a kernel:
/// a run takes some hundredths of a second.
pub fn arithmetic(pool: &Pool, tier: Tier, workload: Workload) -> Arithmetic {
    let threads = pool.threads();
    let each = |f: &(dyn Fn() -> f64 + Sync)| {
        pool.each(threads, |_| {
            black_box(f());
        });
    };
    let adds = |lanes: usize| 2.0 * (registers(tier) * lanes * workload.rounds * threads) as f64;
    let f32 =
        best(workload.runs, adds(lanes(tier, 4)), || each(&|| f64::from(fma_f32(tier, workload.rounds))));
    let f64 = best(workload.runs, adds(lanes(tier, 8)), || each(&|| fma_f64(tier, workload.rounds)));
    let bf16 = bf16_sums(tier).map(|[sums, each_adds]| {
        let operations = 2.0 * (sums * each_adds * workload.rounds * threads) as f64;
        best(workload.runs, operations, || each(&|| f64::from(fma_bf16(tier, workload.rounds))))
    });
    let bf16 = bf16.unwrap_or(f32);
    Arithmetic { f32, f64, bf16 }
}

/// Measures the limits of a pool's threads with the instructions of a tier.
///
/// # Errors
/// `Device` if there is no memory for two buffers of `workload.bytes`.
pub fn measure(pool: &Pool, tier: Tier, workload: Workload) -> Result<Limits> {
    let threads = pool.threads();
    let Arithmetic { f32, f64, bf16 } = arithmetic(pool, tier, workload);
    let blocks = (workload.bytes / BLOCK).max(1);
    let (mut from, mut to) = (CpuMemory::new(blocks * BLOCK)?, CpuMemory::new(blocks * BLOCK)?);
    // Pages that were never written are all one page of zeros, which would stay in the cache.
    from.as_mut_slice().fill(1);
    to.as_mut_slice().fill(2);
    let (source, target) = (Shared(from.base()), Shared(to.base()));
    let moved = |streaming: bool| {
        best(workload.runs, (2 * blocks * BLOCK) as f64, || {
            pool.each(blocks, |b| {
                // SAFETY: block `b` is inside both buffers, and no other call touches the target's.
                let (from, to) = unsafe {
                    (
                        std::slice::from_raw_parts(source.get().add(b * BLOCK), BLOCK),
                        std::slice::from_raw_parts_mut(target.get().add(b * BLOCK), BLOCK),
                    )
                };
                copy(tier, from, to, streaming);
            })
        })
    };
    let (copy, copy_streaming) = (moved(false), moved(true));
    let read = best(workload.runs, (blocks * BLOCK) as f64, || {
        pool.each(blocks, |b| {
            // SAFETY: block `b` is inside the buffer, which nothing writes.
            let block = unsafe { std::slice::from_raw_parts(source.get().add(b * BLOCK), BLOCK) };
            black_box(sum(tier, block));
        })
    });
    Ok(Limits { threads, tier, f32, f64, bf16, copy, copy_streaming, read })
}

/// Bytes handed to a thread at once.
const BLOCK: usize = 1 << 20;

/// Independent accumulators of a tier with 16 registers: enough to hide the latency of an FMA (4 or 5 cycles,
/// two a cycle).
const REGISTERS: usize = 12;

/// Sums of a tier with 32 registers. A product of pairs of bf16 takes 6 cycles on Zen 5; twelve sums would
/// just hide that, and missed a tenth of the peak.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const REGISTERS_OF_32: usize = 24;

/// Accumulators of the tier.
fn registers(tier: Tier) -> usize {
    match tier {
        #[cfg(target_arch = "aarch64")]
        Tier::Neon | Tier::NeonBf16 => REGISTERS_OF_32,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => REGISTERS_OF_32,
        _ => REGISTERS,
    }
}

/// Elements of `size` bytes in a register of the tier.
pub(crate) fn lanes(tier: Tier, size: usize) -> usize {
    match tier {
        Tier::Tiles | Tier::Pairs | Tier::Portable => 16 / size,
        #[cfg(target_arch = "aarch64")]
        Tier::Neon | Tier::NeonBf16 => 16 / size,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => 32 / size,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => 64 / size,
    }
}

/// Sums of a round of [`fma_bf16`], and products that are added to each. None if the tier has no instructions
/// for products of bf16.
fn bf16_sums(tier: Tier) -> Option<[usize; 2]> {
    match tier {
        #[cfg(target_arch = "aarch64")]
        Tier::NeonBf16 => Some([registers(tier) * lanes(tier, 4), 2]),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512Bf16 => Some([registers(tier) * lanes(tier, 4), 2]),
        #[cfg(target_arch = "x86_64")]
        Tier::Amx => Some([amx::SUMS, amx::DEPTH]),
        _ => None,
    }
}

/// `REGISTERS` accumulators of `N` elements, `rounds` times multiplied and added to. Without an FMA
/// instruction the compiler keeps the two separate; the count stays the same.
macro_rules! portable_fma {
    ($name:ident, $float:ty, $lanes:expr) => {
        fn $name(rounds: usize) -> $float {
            let (a, b) = (black_box(0.999 as $float), black_box(1e-3 as $float));
            let mut acc = [[0.0 as $float; $lanes]; REGISTERS];
            for _ in 0..rounds {
                for x in acc.as_flattened_mut() {
                    *x = *x * a + b;
                }
            }
            acc.as_flattened().iter().sum()
        }
    };
}
portable_fma!(portable_f32, f32, 4);
portable_fma!(portable_f64, f64, 2);

/// `$registers` accumulators of `$lanes` elements, `rounds` times multiplied and added to.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! fma {
    ($name:ident, $float:ty, $features:literal, $set:ident, $fma:expr, $add:ident, $store:ident, $lanes:literal, $registers:ident) => {
        #[target_feature(enable = $features)]
        pub fn $name(rounds: usize) -> $float {
            let (a, b) = ($set(black_box(0.999)), $set(black_box(1e-3)));
            let mut acc = [$set(0.0); $registers];
            for _ in 0..rounds {
                for x in &mut acc {
                    *x = $fma(*x, a, b);
                }
            }
            let mut total = $set(0.0);
            for x in acc {
                total = $add(total, x);
            }
            let mut out = [0.0; $lanes];
            // SAFETY: `out` can hold one register.
            unsafe { $store(out.as_mut_ptr(), total) };
            out.iter().sum()
        }
    };
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{REGISTERS_OF_32, black_box};
    use std::arch::aarch64::*;

    #[target_feature(enable = "neon")]
    #[inline]
    fn fma_f32(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }
    #[target_feature(enable = "neon")]
    #[inline]
    fn fma_f64(a: float64x2_t, b: float64x2_t, c: float64x2_t) -> float64x2_t {
        vfmaq_f64(c, a, b)
    }
    fma!(neon_f32, f32, "neon", vdupq_n_f32, fma_f32, vaddq_f32, vst1q_f32, 4, REGISTERS_OF_32);
    /// Products of pairs of bf16, as [`neon_f32`] multiplies f32: 2⁻⁸ · 2⁻⁸ + 2⁻⁸ · 0 is added, round after
    /// round.
    #[target_feature(enable = "neon,bf16")]
    pub fn neon_bf16(rounds: usize) -> f32 {
        // 2⁻⁸ twice, and 2⁻⁸ with 0.
        let (a, b) = (vdupq_n_u32(black_box(0x3b80_3b80)), vdupq_n_u32(black_box(0x3b80)));
        let mut acc = [vdupq_n_f32(0.0); REGISTERS_OF_32];
        for _ in 0..rounds {
            for x in &mut acc {
                // SAFETY: the processor has the instruction, which works on registers alone.
                unsafe {
                    std::arch::asm!(
                        "bfdot {x:v}.4s, {a:v}.8h, {b:v}.8h",
                        x = inout(vreg) *x,
                        a = in(vreg) a,
                        b = in(vreg) b,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
            }
        }
        acc.into_iter().map(|x| vaddvq_f32(x)).sum()
    }
    fma!(neon_f64, f64, "neon", vdupq_n_f64, fma_f64, vaddq_f64, vst1q_f64, 2, REGISTERS_OF_32);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{REGISTERS, REGISTERS_OF_32, black_box};
    use std::arch::x86_64::*;

    fma!(
        avx2_f32,
        f32,
        "avx2,fma",
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        _mm256_storeu_ps,
        8,
        REGISTERS
    );
    fma!(
        avx2_f64,
        f64,
        "avx2,fma",
        _mm256_set1_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd,
        _mm256_storeu_pd,
        4,
        REGISTERS
    );
    fma!(
        avx512_f32,
        f32,
        "avx512f",
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        _mm512_storeu_ps,
        16,
        REGISTERS_OF_32
    );
    fma!(
        avx512_f64,
        f64,
        "avx512f",
        _mm512_set1_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd,
        _mm512_storeu_pd,
        8,
        REGISTERS_OF_32
    );

    /// The same by products of pairs of bf16: 2⁻⁸ · 2⁻⁸ + 2⁻⁸ · 0 is added, round after round.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn avx512_bf16(rounds: usize) -> f32 {
        // SAFETY: any bits are operands.
        let pairs = |x: u32| unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32)) };
        // 2⁻⁸ twice, and 2⁻⁸ with 0.
        let (a, b) = (pairs(black_box(0x3b80_3b80)), pairs(black_box(0x3b80_0000)));
        let mut acc = [_mm512_setzero_ps(); REGISTERS_OF_32];
        for _ in 0..rounds {
            for x in &mut acc {
                *x = _mm512_dpbf16_ps(*x, a, b);
            }
        }
        let mut total = _mm512_setzero_ps();
        for x in acc {
            total = _mm512_add_ps(total, x);
        }
        let mut out = [0.0; 16];
        // SAFETY: `out` can hold one register.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), total) };
        out.iter().sum()
    }

    /// # Safety
    /// Both slices are one block long and start at a multiple of 32.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy(from: &[u8], to: &mut [u8], streaming: bool) {
        let (from, to) = (from.as_ptr().cast::<__m256i>(), to.as_mut_ptr().cast::<__m256i>());
        let registers = super::BLOCK / 32;
        for i in (0..registers).step_by(4) {
            // SAFETY: the caller's promise: in bounds and aligned.
            unsafe {
                let x = [0, 1, 2, 3].map(|j| _mm256_load_si256(from.add(i + j)));
                for (j, x) in x.into_iter().enumerate() {
                    if streaming {
                        _mm256_stream_si256(to.add(i + j), x);
                    } else {
                        _mm256_store_si256(to.add(i + j), x);
                    }
                }
            }
        }
        // Streamed stores are ordered with nothing else.
        _mm_sfence();
    }

    #[target_feature(enable = "avx2")]
    pub fn sum(block: &[u8]) -> u64 {
        super::added(block)
    }
}

fn fma_f32(tier: Tier, rounds: usize) -> f32 {
    match tier {
        // SAFETY: a tier is in use only where the processor has its instructions.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => unsafe { x86::avx512_f32(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { x86::avx2_f32(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Tier::Neon | Tier::NeonBf16 => unsafe { neon::neon_f32(rounds) },
        _ => portable_f32(rounds),
    }
}

fn fma_f64(tier: Tier, rounds: usize) -> f64 {
    match tier {
        // SAFETY: a tier is in use only where the processor has its instructions.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => unsafe { x86::avx512_f64(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { x86::avx2_f64(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Tier::Neon | Tier::NeonBf16 => unsafe { neon::neon_f64(rounds) },
        _ => portable_f64(rounds),
    }
}

/// Products of pairs or tiles of bf16, of which the tier must have instructions.
fn fma_bf16(tier: Tier, rounds: usize) -> f32 {
    match tier {
        // SAFETY: a tier is in use only where the processor has its instructions.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512Bf16 => unsafe { x86::avx512_bf16(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Tier::Amx => unsafe { amx::multiply_in_registers(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Tier::NeonBf16 => unsafe { neon::neon_bf16(rounds) },
        _ => unreachable!("{} has no products of bf16 ({rounds} rounds)", tier.name()),
    }
}

/// Copies a block; `streaming` where the tier has such stores.
fn copy(tier: Tier, from: &[u8], to: &mut [u8], streaming: bool) {
    assert!(from.len() == BLOCK && to.len() == BLOCK);
    match tier {
        // SAFETY: the tier has AVX2; both are one block, and blocks start at multiples of their size in
        // memory that is aligned to 64 bytes.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 | Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => unsafe { x86::copy(from, to, streaming) },
        _ => {
            let _ = streaming;
            to.copy_from_slice(from);
        }
    }
}

fn sum(tier: Tier, block: &[u8]) -> u64 {
    match tier {
        // SAFETY: the tier has AVX2.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 | Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => unsafe { x86::sum(block) },
        _ => added(block),
    }
}

/// Sum of a block's words, in as many lanes as the surrounding function's instructions have.
#[inline(always)]
fn added(block: &[u8]) -> u64 {
    let mut lanes = [0u64; 16];
    for line in block.as_chunks::<128>().0 {
        for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
            *lane = lane.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    lanes.iter().fold(0, |a, &b| a.wrapping_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_copies_and_sums_alike() {
        let from: Vec<u64> = (0..BLOCK as u64 / 8).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let (mut source, mut target) = (CpuMemory::new(BLOCK).unwrap(), CpuMemory::new(BLOCK).unwrap());
        source.as_mut_slice().copy_from_slice(bytemuck::cast_slice(&from));
        let total = from.iter().fold(0u64, |a, &b| a.wrapping_add(b));
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            for streaming in [false, true] {
                target.as_mut_slice().fill(0);
                copy(tier, source.as_slice(), target.as_mut_slice(), streaming);
                assert!(source.as_slice() == target.as_slice(), "{} {streaming}", tier.name());
            }
            assert_eq!(sum(tier, source.as_slice()), total);
        }
    }

    #[test]
    fn the_arithmetic_is_done() {
        // x ← 0.999·x + 0.001 tends to 1 in every lane.
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            let want = |size| (registers(tier) * lanes(tier, size)) as f64;
            assert!((fma_f64(tier, 40_000) - want(8)).abs() < 1e-9);
            assert!((f64::from(fma_f32(tier, 40_000)) - want(4)).abs() < 1e-2);
            if let Some([sums, _]) = bf16_sums(tier) {
                // 2⁻¹⁶ is added to each, round after round.
                assert_eq!(f64::from(fma_bf16(tier, 1 << 16)), sums as f64);
            }
        }
    }

    #[test]
    fn limits_are_rates() {
        let workload = Workload { runs: 1, rounds: 1000, bytes: BLOCK };
        let l = measure(&Pool::new(2), Tier::detect(), workload).unwrap();
        assert!([l.f32, l.f64, l.copy, l.copy_streaming, l.read].iter().all(|r| r.is_finite() && *r > 0.0));
        assert_eq!(
            (l.threads, l.flops(DType::F16), l.flops(DType::BF16), l.flops(DType::F64)),
            (2, l.f32, l.bf16, l.f64)
        );
        assert_eq!(l.floor(DType::F32, l.f32, 0.0), 1.0);
        assert_eq!(l.floor(DType::F32, 0.0, 2.0 * l.bandwidth()), 2.0);
    }
}
