//! AMX: the matrix unit of Intel's Xeons since Sapphire Rapids, with products of bf16 (TDPBF16PS).
//!
//! Its instructions are written in assembly, since Rust has no stable intrinsics for them. Compiled code uses
//! no tile registers, so that these keep their numbers between blocks of assembly. Functions called in
//! between must not use them.

use super::matrix_unit::MatrixUnit;
use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// True if the processor has AMX for bf16 and the system lets this process use it. Linux requires a request
/// for permission, which is made once; other systems are not supported here.
///
/// Linux grants it to the whole process, and then refuses alternate signal stacks that are too small for
/// tiles. If there is such a stack already, it grants nothing.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && has_permission())
}

/// AMX-TILE and AMX-BF16: bits 24 and 22 of EDX of CPUID's leaf 7.
fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BOTH: u32 = 1 << 24 | 1 << 22;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BOTH == BOTH
}

/// Asks Linux for the state of tiles: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn has_permission() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let status: i64;
    // SAFETY: a system call that takes two numbers and touches no memory of this process; the kernel
    // overwrites RCX and R11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    status == 0
}

#[cfg(not(target_os = "linux"))]
fn has_permission() -> bool {
    false
}

/// Sizes of the tile registers, as LDTILECFG reads them: palette 1, and eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = {
    let mut c = Configuration { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
    let mut i = 0;
    while i < 8 {
        (c.bytes[i], c.rows[i]) = (64, 16);
        i += 1;
    }
    c
};

/// The unit of this thread. Registers 0 to 3 are sums, 4 and 5 left tiles, 6 and 7 right ones.
/// Not to be sent to another thread.
pub(crate) struct Amx(PhantomData<*const ()>);

impl MatrixUnit for Amx {
    const SIDE: usize = 16;

    /// Configures the registers unless they are: another library may have used them on this thread. Looking
    /// takes 5 to 9 ns, configuring 45 to 90 ns (a Xeon of family 6, model 167).
    #[inline(always)]
    unsafe fn ready() -> Self {
        let mut now = Configuration { palette: 0, ..CONFIGURATION };
        // SAFETY: the processor has the instructions (the caller's promise); 64 bytes are written.
        unsafe {
            asm!("sttilecfg [{}]", in(reg) &raw mut now, options(nostack, preserves_flags));
            let words = |c: &Configuration| std::ptr::from_ref(c).cast::<[u64; 8]>().read();
            if words(&now) != words(&CONFIGURATION) {
                asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, preserves_flags));
            }
        }
        Amx(PhantomData)
    }

    #[inline(always)]
    fn zero(&mut self) {
        // SAFETY: there is a unit, so the registers are configured; nothing else uses them.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, preserves_flags, nomem)
            );
        }
    }

    #[inline(always)]
    unsafe fn load(&mut self, i: usize, j: usize, from: *const f32, stride: isize) {
        macro_rules! loaded {
            ($to:literal) => {
                asm!(
                    concat!("tileloadd ", $to, ", [{c} + {s} * 1]"),
                    c = in(reg) from, s = in(reg) stride, options(nostack, preserves_flags, readonly)
                )
            };
        }
        // SAFETY: the rows may be read (the caller's promise).
        unsafe {
            match (i, j) {
                (0, 0) => loaded!("tmm0"),
                (0, _) => loaded!("tmm1"),
                (_, 0) => loaded!("tmm2"),
                _ => loaded!("tmm3"),
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const C: usize>(
        &mut self,
        [(top, top_stride), (bottom, bottom_stride)]: [(*const f32, isize); 2],
        (right, stride): (*const f32, isize),
    ) {
        // SAFETY: the tiles may be read (the caller's promise).
        unsafe {
            match (R, C) {
                (1, 1) => asm!(
                    "tileloadd tmm4, [{a} + {s} * 1]",
                    "tileloadd tmm6, [{b} + {t} * 1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    a = in(reg) top, s = in(reg) top_stride, b = in(reg) right, t = in(reg) stride,
                    options(nostack, preserves_flags, readonly)
                ),
                (1, _) => asm!(
                    "tileloadd tmm4, [{a} + {s} * 1]",
                    "tileloadd tmm6, [{b} + {t} * 1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b} + {t} * 1 + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    a = in(reg) top, s = in(reg) top_stride, b = in(reg) right, t = in(reg) stride,
                    options(nostack, preserves_flags, readonly)
                ),
                (_, 1) => asm!(
                    "tileloadd tmm4, [{a} + {s} * 1]",
                    "tileloadd tmm6, [{b} + {t} * 1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{c} + {u} * 1]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    a = in(reg) top, s = in(reg) top_stride, b = in(reg) right, t = in(reg) stride,
                    c = in(reg) bottom, u = in(reg) bottom_stride,
                    options(nostack, preserves_flags, readonly)
                ),
                _ => asm!(
                    "tileloadd tmm4, [{a} + {s} * 1]",
                    "tileloadd tmm6, [{b} + {t} * 1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b} + {t} * 1 + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{c} + {u} * 1]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    a = in(reg) top, s = in(reg) top_stride, b = in(reg) right, t = in(reg) stride,
                    c = in(reg) bottom, u = in(reg) bottom_stride,
                    options(nostack, preserves_flags, readonly)
                ),
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, i: usize, j: usize, to: *mut f32, stride: isize) {
        macro_rules! stored {
            ($from:literal) => {
                asm!(
                    concat!("tilestored [{c} + {s} * 1], ", $from),
                    c = in(reg) to, s = in(reg) stride, options(nostack, preserves_flags)
                )
            };
        }
        // SAFETY: the rows may be written (the caller's promise).
        unsafe {
            match (i, j) {
                (0, 0) => stored!("tmm0"),
                (0, _) => stored!("tmm1"),
                (_, 0) => stored!("tmm2"),
                _ => stored!("tmm3"),
            }
        }
    }
}

/// Sums that [`multiply_in_registers`] holds, and products added to each in a round.
pub(crate) const SUMS: usize = 4 * Amx::SIDE * Amx::SIDE;
pub(crate) const DEPTH: usize = 2 * Amx::SIDE;

/// Products of tiles that touch no memory: a round adds 2⁻¹⁶ to each of four tiles of sums. Returns the sum
/// of all: what the unit does at best.
///
/// # Safety
/// As [`Amx::ready`].
pub(crate) unsafe fn multiply_in_registers(rounds: usize) -> f32 {
    // Pairs of 2⁻⁸ on the left; on the right 2⁻⁸ with 0 in the first row, and zeros.
    let left = [f32::from_bits(0x3b80_3b80); Amx::SIDE * Amx::SIDE];
    let mut right = [0.0; 2 * Amx::SIDE * Amx::SIDE];
    right[..2 * Amx::SIDE].fill(f32::from_bits(0x3b80));
    let mut sums = [0.0f32; SUMS];
    let line = (Amx::SIDE * size_of::<f32>()) as isize;
    // SAFETY: the caller's promise; tiles are within the arrays.
    unsafe {
        let mut unit = Amx::ready();
        // Loads the operands; its sums are dropped.
        unit.multiply::<2, 2>([(left.as_ptr(), line); 2], (right.as_ptr(), 2 * line));
        unit.zero();
        for _ in 0..rounds {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                options(nostack, preserves_flags, nomem)
            );
        }
        for (i, tile) in sums.chunks_exact_mut(SUMS / 4).enumerate() {
            unit.store(i / 2, i % 2, tile.as_mut_ptr(), line);
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::matrix_unit::PortableUnit;

    /// Words of pairs of bf16 of many magnitudes, subnormal numbers, infinities and NaN among them if `wild`.
    fn words(n: usize, seed: u32, wild: bool) -> Vec<f32> {
        let mut s = seed;
        let mut half = || {
            s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let exponent = if wild { s >> 24 } else { 120 + (s >> 24) % 14 };
            (s >> 8 & 0x807f) | exponent << 7
        };
        (0..n).map(|_| f32::from_bits(half() | half() << 16)).collect()
    }

    #[test]
    fn amx_has_the_bits_of_the_portable_unit() {
        if !available() {
            return;
        }
        const N: usize = 16;
        for (seed, wild) in (0..200).flat_map(|seed| [(seed, false), (seed, true)]) {
            let (a, b) = (words(2 * N * N, seed, wild), words(2 * N * N, seed + 1000, wild));
            let (line, pitch) = (4 * N as isize, 8 * N as isize);
            let left = [(a.as_ptr(), line), (a[N * N..].as_ptr(), line)];
            let mut got = [[0.0f32; 4 * N * N]; 2];
            // SAFETY: the processor has the unit; tiles are within the arrays.
            unsafe {
                let mut amx = Amx::ready();
                let mut portable = PortableUnit::<N>::ready();
                amx.zero();
                for _ in 0..2 {
                    amx.multiply::<2, 2>(left, (b.as_ptr(), pitch));
                    portable.multiply::<2, 2>(left, (b.as_ptr(), pitch));
                }
                for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let at = (2 * i + j) * N * N;
                    amx.store(i, j, got[0][at..].as_mut_ptr(), line);
                    portable.store(i, j, got[1][at..].as_mut_ptr(), line);
                }
            }
            for (i, (x, y)) in got[0].iter().zip(&got[1]).enumerate() {
                let same = x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
                assert!(same, "seed {seed}, wild {wild}, element {i}: {x:e}, portable {y:e}");
            }
        }
    }
}
