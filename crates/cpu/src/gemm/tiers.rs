//! The innermost kernels compiled for each instruction set, and the table that names them.

use super::Mat;
use super::dot::{self, DOT_COLS, DOT_ROWS, Dot};
use super::lanes::{Array, Converts, Lanes, Packs};
use super::lines::{self, Dots, Lines};
use super::taps;
use super::tile::{self, Tile};
use super::turn;
use super::walk::{self, Walk};
use crate::element::Float;
use crate::tier::Tier;
use half::{bf16, f16};

/// The kernels of one instruction set for operands of type `T`.
///
/// All are `unsafe`: besides what the generic function asks for, the processor must have the instructions.
#[derive(Debug)]
pub struct Kernels<T: Float> {
    /// Size of the block held in registers.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// As sums of products take operands fastest: widened, or pairs of them together.
    pub(crate) fast: Panels<T>,
    /// [`Panels::interleave`] of numbers that are wide already.
    pub(crate) transpose: unsafe fn(Mat<T::Wide>, usize, usize, *mut T::Wide, usize),
    /// Widens a matrix row by row.
    pub(crate) widen: unsafe fn(Mat<T>, usize, usize, *mut T::Wide, usize),
    pub(crate) narrow: unsafe fn(*const T::Wide, usize, *mut T),
    /// The same of a matrix, column after column.
    pub(crate) turn: unsafe fn(Mat<T::Wide>, usize, usize, *mut T, usize),
    /// Adds up rows.
    pub(crate) total: unsafe fn(*const T::Wide, usize, usize, usize, *mut T::Wide),
    /// Of one channel: lines convolved with a kernel, and with lines.
    pub(crate) lines: unsafe fn(&Lines<T::Wide>),
    pub(crate) dots: unsafe fn(&Dots<T::Wide>),
    pub(super) dot: unsafe fn(&Dot<T>, &mut [T::Wide; DOT_ROWS * DOT_COLS]),
}

/// How operands are packed and panels of them multiplied.
#[derive(Debug)]
pub struct Panels<T: Float> {
    /// Elements that are summed over, in a place of a panel.
    pub(crate) taken: usize,
    /// Places in a vector.
    pub(crate) lanes: usize,
    /// What is packed is counted in elements, what is multiplied in places.
    pub(crate) pack: unsafe fn(Mat<T>, usize, usize, usize, usize, *mut T::Wide),
    pub(crate) interleave: unsafe fn(Mat<T>, usize, usize, *mut T::Wide, usize),
    pub(crate) taps: unsafe fn(Mat<T>, usize, [usize; 2], *mut T::Wide, usize, *mut T::Wide),
    pub(crate) tile: unsafe fn(&Tile<T::Wide>),
    pub(crate) walk: unsafe fn(&Walk<T::Wide>),
}

macro_rules! tier {
    ($name:ident $(, #[$features:meta])?) => {
        mod $name {
            use super::*;

            /// # Safety
            /// As [`tile::tile`].
            $(#[$features])?
            unsafe fn tile<L: Lanes>(t: &Tile<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { tile::tile::<L>(t) }
            }

            /// # Safety
            /// As [`walk::walk`].
            $(#[$features])?
            unsafe fn walk<L: Lanes>(w: &Walk<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { walk::walk::<L>(w) }
            }

            /// # Safety
            /// As [`lines::lines`].
            $(#[$features])?
            unsafe fn lines<L: Lanes>(x: &Lines<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { lines::lines::<L>(x) }
            }

            /// # Safety
            /// As [`lines::dots`].
            $(#[$features])?
            unsafe fn dots<L: Lanes>(x: &Dots<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { lines::dots::<L>(x) }
            }

            /// # Safety
            /// As [`walk::interleave`].
            $(#[$features])?
            unsafe fn interleave<L: Packs<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                out: *mut L::E,
                pitch: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { walk::interleave::<L, T>(x, rows, k, out, pitch) }
            }

            /// # Safety
            /// As [`taps::taps`].
            $(#[$features])?
            unsafe fn taps<L: Packs<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                n: usize,
                sizes: [usize; 2],
                out: *mut L::E,
                cols: usize,
                scratch: *mut L::E,
            ) {
                // SAFETY: the caller's promise.
                unsafe { taps::taps::<L, T>(x, n, sizes, out, cols, scratch) }
            }

            /// # Safety
            /// As [`tile::pack`].
            $(#[$features])?
            unsafe fn pack<L: Packs<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                group: usize,
                pitch: usize,
                out: *mut L::E,
            ) {
                // SAFETY: the caller's promise.
                unsafe { tile::pack::<L, T>(x, rows, k, group, pitch, out) }
            }

            /// # Safety
            /// As [`walk::widen`].
            $(#[$features])?
            unsafe fn widen<L: Converts<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                out: *mut L::E,
                pitch: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { walk::widen::<L, T>(x, rows, k, out, pitch) }
            }

            /// # Safety
            /// As [`tile::narrow`].
            $(#[$features])?
            unsafe fn narrow<L: Converts<T>, T: Float<Wide = L::E>>(from: *const L::E, n: usize, to: *mut T) {
                // SAFETY: the caller's promise.
                unsafe { tile::narrow::<L, T>(from, n, to) }
            }

            /// # Safety
            /// As [`turn::turn`].
            $(#[$features])?
            unsafe fn turn<L, T: Float<Wide = L::E>>(
                x: Mat<L::E>,
                rows: usize,
                cols: usize,
                out: *mut T,
                pitch: usize,
            ) where
                L: Converts<T> + Converts<<L as Lanes>::E>,
            {
                // SAFETY: the caller's promise.
                unsafe { turn::turn::<L, T>(x, rows, cols, out, pitch) }
            }

            /// # Safety
            /// As [`tile::total`].
            $(#[$features])?
            unsafe fn total<L: Lanes>(from: *const L::E, pitch: usize, rows: usize, n: usize, to: *mut L::E) {
                // SAFETY: the caller's promise.
                unsafe { tile::total::<L>(from, pitch, rows, n, to) }
            }

            /// # Safety
            /// As [`dot::dot`].
            $(#[$features])?
            unsafe fn dot<L: Converts<T>, T: Float<Wide = L::E>>(
                d: &Dot<T>,
                out: &mut [L::E; DOT_ROWS * DOT_COLS],
            ) {
                // SAFETY: the caller's promise.
                unsafe { dot::dot::<L, T>(d, out) }
            }

            const fn panels<P: Packs<T>, T: Float<Wide = P::E>>() -> Panels<T> {
                Panels {
                    taken: P::TAKEN,
                    lanes: P::N,
                    pack: pack::<P, T>,
                    interleave: interleave::<P, T>,
                    taps: taps::<P, T>,
                    tile: tile::<P>,
                    walk: walk::<P>,
                }
            }

            pub(super) const fn kernels<L, P, T: Float<Wide = L::E>>() -> Kernels<T>
            where
                L: Converts<T> + Converts<<L as Lanes>::E>,
                P: Packs<T, E = L::E>,
            {
                assert!(P::N == L::N && P::ROWS == L::ROWS);
                // What moves rows of panels takes eight columns at a time.
                assert!((2 * L::N).is_multiple_of(8));
                Kernels {
                    rows: L::ROWS,
                    cols: 2 * L::N,
                    fast: panels::<P, T>(),
                    transpose: interleave::<L, L::E>,
                    widen: widen::<L, T>,
                    narrow: narrow::<L, T>,
                    turn: turn::<L, T>,
                    total: total::<L>,
                    lines: lines::<L>,
                    dots: dots::<L>,
                    dot: dot::<L, T>,
                }
            }
        }
    };
}
tier!(portable);
#[cfg(target_arch = "aarch64")]
tier!(neonbf16, #[target_feature(enable = "neon,bf16")]);
#[cfg(target_arch = "x86_64")]
tier!(avx2, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
tier!(avx512, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
tier!(avx512bf16, #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]);

/// A float that matrix products take.
pub trait Operand: Float {
    /// The kernels for it of a tier, which the processor must have.
    #[doc(hidden)]
    fn kernels(tier: Tier) -> &'static Kernels<Self>;
}

macro_rules! operand {
    ($($t:ty: $wide:ident $neon:ident $m256:ident $m512:ident $(pairs $pairs:ident $bfdot:ident $avx512:ident)?;)*) => { $(
        impl Operand for $t {
            fn kernels(tier: Tier) -> &'static Kernels<Self> {
                static PORTABLE: Kernels<$t> = portable::kernels::<Array<$wide>, Array<$wide>, $t>();
                $(
                    static PAIRS: Kernels<$t> = portable::kernels::<Array<$wide>, super::pairs::$pairs, $t>();
                    if tier == Tier::Pairs {
                        return &PAIRS;
                    }
                )?
                #[cfg(target_arch = "aarch64")]
                {
                    // The portable functions are compiled for NEON as well.
                    use super::neon::$neon;
                    static NEON: Kernels<$t> = portable::kernels::<$neon, $neon, $t>();
                    $(
                        static NEON_BF16: Kernels<$t> = neonbf16::kernels::<$neon, super::bfdot::$bfdot, $t>();
                        if tier == Tier::NeonBf16 {
                            return &NEON_BF16;
                        }
                    )?
                    match tier {
                        Tier::Pairs | Tier::Portable => {}
                        Tier::Neon | Tier::NeonBf16 => return &NEON,
                    }
                }
                #[cfg(target_arch = "x86_64")]
                {
                    use std::arch::x86_64::{$m256, $m512};
                    static AVX2: Kernels<$t> = avx2::kernels::<$m256, $m256, $t>();
                    static AVX512: Kernels<$t> = avx512::kernels::<$m512, $m512, $t>();
                    $(
                        static AVX512_BF16: Kernels<$t> =
                            avx512bf16::kernels::<$m512, super::avx512::$avx512, $t>();
                        if tier == Tier::Avx512Bf16 {
                            return &AVX512_BF16;
                        }
                    )?
                    match tier {
                        Tier::Pairs | Tier::Portable => {}
                        Tier::Avx2 => return &AVX2,
                        Tier::Avx512 | Tier::Avx512Bf16 => return &AVX512,
                    }
                }
                let _ = tier;
                &PORTABLE
            }
        }
    )* };
}
operand! {
    f32: f32 Eight __m256 __m512;
    f64: f64 Four __m256d __m512d;
    f16: f32 Eight __m256 __m512;
    bf16: f32 Eight __m256 __m512 pairs Pairs Pairs Pairs;
}
