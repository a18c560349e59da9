//! Microkernels: the innermost loops, generic over vectors ([`crate::simd::Simd`]), compiled here for each
//! instruction set, and the table of them that a product is computed with. Packing and epilogues are compiled
//! here as well.
//!
//! Everything generic is inlined into the functions of this file, which alone have the instructions of the
//! instruction set enabled. Hence loops go by index: closures would be compiled separately.

mod depthwise;
pub(super) mod dot;
mod indirect;
mod matrix_tile;
#[cfg(test)]
mod tests;
mod tile;

pub(crate) use depthwise::{DepthwiseLines, DepthwiseWeightSums};
pub(crate) use indirect::{IndirectRow, IndirectRun, IndirectTile};
pub(super) use tile::MAX_COLS;
pub(crate) use tile::Tile;

use super::{epilogue, pack};
use crate::element::Float;
use crate::matrix::Mat;
#[cfg(target_arch = "x86_64")]
use crate::simd::amx::Amx;
use crate::simd::matrix_unit::{MatrixUnit, PortableUnit};
use crate::simd::pack::Pack;
use crate::simd::{Array, Convert, K_UNROLL, MAX_LANES, Simd};
use crate::tier::Tier;
use dot::{DOT_COLS, DOT_ROWS, DotTile};
use half::{bf16, f16};

/// Most of MR of any kernels: that of matrix units.
pub(super) const MAX_MR: usize = 2 * MAX_LANES;

/// The kernels of one instruction set for operands of type `T`.
///
/// All are `unsafe`: besides the requirements of the generic function, the processor must have the
/// instructions.
#[derive(Debug)]
pub struct Microkernels<T: Float> {
    /// MR × NR, the size of the register tile.
    pub(crate) mr: usize,
    pub(crate) nr: usize,
    /// Kernels on packed micro-panels, in the form that is fastest: widened elements, or VNNI-2 groups.
    pub(crate) panels: PanelKernels<T>,
    /// [`PanelKernels::interleave`] of accumulators: a transposition.
    pub(crate) transpose: unsafe fn(Mat<T::Wide>, usize, usize, *mut T::Wide, usize),
    /// Widens a matrix row by row.
    pub(crate) widen: unsafe fn(Mat<T>, usize, usize, *mut T::Wide, usize),
    pub(crate) narrow: unsafe fn(*const T::Wide, usize, *mut T),
    /// The same of a matrix, transposed.
    pub(crate) store_transposed: unsafe fn(Mat<T::Wide>, usize, usize, *mut T, usize),
    /// Adds up rows.
    pub(crate) sum_rows: unsafe fn(*const T::Wide, usize, usize, usize, *mut T::Wide),
    /// Direct depthwise convolution, and the gradient of its weights.
    pub(crate) depthwise_lines: unsafe fn(&DepthwiseLines<T::Wide>),
    pub(crate) depthwise_weight_sums: unsafe fn(&DepthwiseWeightSums<T::Wide>),
    pub(in crate::gemm) dot: unsafe fn(&DotTile<T>, &mut [T::Wide; DOT_ROWS * DOT_COLS]),
}

/// Packing of operands, and the microkernels on packed micro-panels.
#[derive(Debug)]
pub struct PanelKernels<T: Float> {
    /// Elements along `k` in a k-group ([`Pack::K_GROUP`]).
    pub(crate) k_group: usize,
    /// k-groups in a vector.
    pub(crate) lanes: usize,
    /// k-groups that microkernels take per step: parts of `k` are best multiples of it.
    pub(crate) k_step: usize,
    /// Packing counts `k` in elements, microkernels count it in k-groups. For right operands.
    pub(crate) pack: unsafe fn(Mat<T>, usize, usize, usize, usize, *mut T::Wide),
    /// The same for left operands.
    pub(crate) pack_left: unsafe fn(Mat<T>, usize, usize, usize, usize, *mut T::Wide),
    left: LeftLayout,
    pub(crate) interleave: unsafe fn(Mat<T>, usize, usize, *mut T::Wide, usize),
    pub(crate) pack_filters: unsafe fn(Mat<T>, usize, [usize; 2], *mut T::Wide, usize, *mut T::Wide),
    pub(crate) tile: unsafe fn(&Tile<T::Wide>),
    pub(crate) indirect: unsafe fn(&IndirectTile<T::Wide>),
}

/// Layout of micro-panels of a packed left operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeftLayout {
    /// MR rows of one k-group follow each other: vectors multiply them in this order.
    Across,
    /// k-groups of a row follow each other: rows of a matrix unit's tile.
    Along,
}

impl<T: Float> PanelKernels<T> {
    /// True if a matrix unit multiplies.
    pub(crate) fn of_unit(&self) -> bool {
        self.left == LeftLayout::Along
    }

    /// Strides of rows and of k-groups in packed micro-panels of `mr` rows and `pitch` k-groups.
    pub(crate) fn left_strides(&self, mr: usize, pitch: usize) -> [isize; 2] {
        match self.left {
            LeftLayout::Across => [1, mr as isize],
            LeftLayout::Along => [pitch as isize, 1],
        }
    }
}

macro_rules! tier {
    ($name:ident $(, #[$features:meta])?) => {
        mod $name {
            use super::*;

            /// # Safety
            /// As [`tile::tile`].
            $(#[$features])?
            unsafe fn tile<L: Simd>(t: &Tile<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { tile::tile::<L>(t) }
            }

            /// # Safety
            /// As [`indirect::indirect`].
            $(#[$features])?
            unsafe fn indirect<L: Simd>(w: &IndirectTile<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { indirect::indirect::<L>(w) }
            }

            /// # Safety
            /// As [`depthwise::lines`].
            $(#[$features])?
            unsafe fn depthwise_lines<L: Simd>(x: &DepthwiseLines<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { depthwise::lines::<L>(x) }
            }

            /// # Safety
            /// As [`depthwise::weight_sums`].
            $(#[$features])?
            unsafe fn depthwise_weight_sums<L: Simd>(x: &DepthwiseWeightSums<L::E>) {
                // SAFETY: the caller's promise.
                unsafe { depthwise::weight_sums::<L>(x) }
            }

            /// # Safety
            /// As [`pack::interleave`].
            $(#[$features])?
            unsafe fn interleave<L: Pack<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                out: *mut L::E,
                pitch: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { pack::interleave::<L, T>(x, rows, k, out, pitch) }
            }

            /// # Safety
            /// As [`pack::pack_filters`].
            $(#[$features])?
            unsafe fn pack_filters<L: Pack<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                n: usize,
                sizes: [usize; 2],
                out: *mut L::E,
                cols: usize,
                scratch: *mut L::E,
            ) {
                // SAFETY: the caller's promise.
                unsafe { pack::pack_filters::<L, T>(x, n, sizes, out, cols, scratch) }
            }

            /// # Safety
            /// As [`pack::pack`].
            $(#[$features])?
            unsafe fn pack<L: Pack<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                group: usize,
                pitch: usize,
                out: *mut L::E,
            ) {
                // SAFETY: the caller's promise.
                unsafe { pack::pack::<L, T>(x, rows, k, group, pitch, out) }
            }

            /// # Safety
            /// As [`pack::pack_along`].
            $(#[$features])?
            unsafe fn pack_along<L: Pack<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                height: usize,
                pitch: usize,
                out: *mut L::E,
            ) {
                // SAFETY: the caller's promise.
                unsafe { pack::pack_along::<L, T>(x, rows, k, height, pitch, out) }
            }

            /// # Safety
            /// As [`matrix_tile::tile`].
            $(#[$features])?
            unsafe fn unit_tile<U: MatrixUnit, L: Simd<E = f32>>(t: &Tile<f32>) {
                // SAFETY: the caller's promise.
                unsafe { matrix_tile::tile::<U, L>(t) }
            }

            /// # Safety
            /// As [`matrix_tile::indirect`].
            $(#[$features])?
            unsafe fn unit_indirect<U: MatrixUnit, L: Simd<E = f32>>(w: &IndirectTile<f32>) {
                // SAFETY: the caller's promise.
                unsafe { matrix_tile::indirect::<U, L>(w) }
            }

            /// # Safety
            /// As [`pack::widen`].
            $(#[$features])?
            unsafe fn widen<L: Convert<T>, T: Float<Wide = L::E>>(
                x: Mat<T>,
                rows: usize,
                k: usize,
                out: *mut L::E,
                pitch: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { pack::widen::<L, T>(x, rows, k, out, pitch) }
            }

            /// # Safety
            /// As [`epilogue::narrow`].
            $(#[$features])?
            unsafe fn narrow<L: Convert<T>, T: Float<Wide = L::E>>(from: *const L::E, n: usize, to: *mut T) {
                // SAFETY: the caller's promise.
                unsafe { epilogue::narrow::<L, T>(from, n, to) }
            }

            /// # Safety
            /// As [`epilogue::store_transposed`].
            $(#[$features])?
            unsafe fn store_transposed<L, T: Float<Wide = L::E>>(
                x: Mat<L::E>,
                rows: usize,
                cols: usize,
                out: *mut T,
                pitch: usize,
            ) where
                L: Convert<T> + Convert<<L as Simd>::E>,
            {
                // SAFETY: the caller's promise.
                unsafe { epilogue::store_transposed::<L, T>(x, rows, cols, out, pitch) }
            }

            /// # Safety
            /// As [`epilogue::sum_rows`].
            $(#[$features])?
            unsafe fn sum_rows<L: Simd>(from: *const L::E, pitch: usize, rows: usize, n: usize, to: *mut L::E) {
                // SAFETY: the caller's promise.
                unsafe { epilogue::sum_rows::<L>(from, pitch, rows, n, to) }
            }

            /// # Safety
            /// As [`dot::dot`].
            $(#[$features])?
            unsafe fn dot<L: Convert<T>, T: Float<Wide = L::E>>(
                d: &DotTile<T>,
                out: &mut [L::E; DOT_ROWS * DOT_COLS],
            ) {
                // SAFETY: the caller's promise.
                unsafe { dot::dot::<L, T>(d, out) }
            }

            const fn panels<P: Pack<T>, T: Float<Wide = P::E>>() -> PanelKernels<T> {
                PanelKernels {
                    k_group: P::K_GROUP,
                    lanes: P::N,
                    k_step: K_UNROLL,
                    pack: pack::<P, T>,
                    pack_left: pack::<P, T>,
                    left: LeftLayout::Across,
                    interleave: interleave::<P, T>,
                    pack_filters: pack_filters::<P, T>,
                    tile: tile::<P>,
                    indirect: indirect::<P>,
                }
            }

            pub(super) const fn kernels<L, P, T: Float<Wide = L::E>>() -> Microkernels<T>
            where
                L: Convert<T> + Convert<<L as Simd>::E>,
                P: Pack<T, E = L::E>,
            {
                assert!(P::N == L::N && P::MR == L::MR);
                // Kernels that move rows of panels take eight columns at a time.
                assert!((2 * L::N).is_multiple_of(8));
                Microkernels {
                    mr: L::MR,
                    nr: 2 * L::N,
                    panels: panels::<P, T>(),
                    transpose: interleave::<L, L::E>,
                    widen: widen::<L, T>,
                    narrow: narrow::<L, T>,
                    store_transposed: store_transposed::<L, T>,
                    sum_rows: sum_rows::<L>,
                    depthwise_lines: depthwise_lines::<L>,
                    depthwise_weight_sums: depthwise_weight_sums::<L>,
                    dot: dot::<L, T>,
                }
            }

            /// The same with products on a matrix unit.
            #[allow(dead_code)]
            pub(super) const fn with_unit<U: MatrixUnit, P: Pack<T, E = f32>, T: Float<Wide = f32>>(
                kernels: Microkernels<T>,
            ) -> Microkernels<T> {
                let panels = PanelKernels {
                    k_step: U::SIDE,
                    pack_left: pack_along::<P, T>,
                    left: LeftLayout::Along,
                    tile: unit_tile::<U, P>,
                    indirect: unit_indirect::<U, P>,
                    ..kernels.panels
                };
                Microkernels { mr: 2 * U::SIDE, panels, ..kernels }
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
    fn kernels(tier: Tier) -> &'static Microkernels<Self>;
}

macro_rules! operand {
    ($($t:ty: $wide:ident $neon:ident $m256:ident $m512:ident $(pairs $pairs:ident $bfdot:ident $avx512:ident)?;)*) => { $(
        impl Operand for $t {
            fn kernels(tier: Tier) -> &'static Microkernels<Self> {
                static PORTABLE: Microkernels<$t> = portable::kernels::<Array<$wide>, Array<$wide>, $t>();
                $(
                    use crate::simd::portable_bf16;
                    static PAIRS: Microkernels<$t> =
                        portable::kernels::<Array<$wide>, portable_bf16::$pairs, $t>();
                    static TILES: Microkernels<$t> = portable::with_unit::<
                        PortableUnit<{ <Array<$wide> as Simd>::N }>,
                        portable_bf16::$pairs,
                        $t,
                    >(portable::kernels::<Array<$wide>, portable_bf16::$pairs, $t>());
                    match tier {
                        Tier::Tiles => return &TILES,
                        Tier::Pairs => return &PAIRS,
                        _ => {}
                    }
                )?
                #[cfg(target_arch = "aarch64")]
                {
                    // The portable functions are compiled for NEON as well.
                    use crate::simd::neon::$neon;
                    static NEON: Microkernels<$t> = portable::kernels::<$neon, $neon, $t>();
                    $(
                        static NEON_BF16: Microkernels<$t> =
                            neonbf16::kernels::<$neon, crate::simd::neon_bf16::$bfdot, $t>();
                        if tier == Tier::NeonBf16 {
                            return &NEON_BF16;
                        }
                    )?
                    match tier {
                        Tier::Tiles | Tier::Pairs | Tier::Portable => {}
                        Tier::Neon | Tier::NeonBf16 => return &NEON,
                    }
                }
                #[cfg(target_arch = "x86_64")]
                {
                    use std::arch::x86_64::{$m256, $m512};
                    static AVX2: Microkernels<$t> = avx2::kernels::<$m256, $m256, $t>();
                    static AVX512: Microkernels<$t> = avx512::kernels::<$m512, $m512, $t>();
                    $(
                        static AVX512_BF16: Microkernels<$t> =
                            avx512bf16::kernels::<$m512, crate::simd::avx512::$avx512, $t>();
                        static AMX: Microkernels<$t> =
                            avx512::with_unit::<Amx, crate::simd::avx512::$avx512, $t>(
                                avx512::kernels::<$m512, crate::simd::avx512::$avx512, $t>(),
                            );
                        match tier {
                            Tier::Avx512Bf16 => return &AVX512_BF16,
                            Tier::Amx => return &AMX,
                            _ => {}
                        }
                    )?
                    match tier {
                        Tier::Tiles | Tier::Pairs | Tier::Portable => {}
                        Tier::Avx2 => return &AVX2,
                        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => return &AVX512,
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
