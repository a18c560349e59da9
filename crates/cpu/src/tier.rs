//! Instruction sets: those that this processor has. The fastest is taken; `HEADWATER_TIER` forces another.
//!
//! All tiers do the same operations in the same order: by the same Rust loops, compiled for different
//! instruction sets (Rust never contracts or reorders floating point by itself) or written on their vectors,
//! or by machine code that `rows` writes. So all give the same bits, except in products (of matrices, in
//! convolutions and attention) and Fourier transforms: the higher tiers multiply and add with one rounding,
//! and the highest take pairs or tiles of bf16, for which subnormal numbers are zero. NEON's products have
//! AVX2's lanes, blocks and order of sums, and so should have its bits; no machine has compared them.

use headwater_core::diagnostic::Result;
use headwater_core::fail;
use std::sync::OnceLock;

/// Declares the tiers, lowest first: the name that `HEADWATER_TIER` takes, and the architecture that has it.
macro_rules! tiers {
    ($($(#[$doc:meta])* $tier:ident $name:literal $(on $arch:literal)?;)*) => {
        /// An instruction set of this architecture, lowest first.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Tier {
            $($(#[$doc])* $(#[cfg(target_arch = $arch)])? $tier,)*
        }

        /// Their number.
        const TIERS: usize = [$($(#[cfg(target_arch = $arch)])? $name,)*].len();

        impl Tier {
            /// Every tier.
            pub const ALL: [Tier; TIERS] = [$($(#[cfg(target_arch = $arch)])? Tier::$tier,)*];

            /// Name, as `HEADWATER_TIER` takes it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(#[cfg(target_arch = $arch)])? Tier::$tier => $name,)*
                }
            }
        }
    };
}
tiers! {
    /// As the portable one, with products of bf16 by tiles as AMX multiplies them: to test these on any
    /// processor.
    Tiles "tiles";
    /// As the portable one, with products of bf16 by pairs as AVX512_BF16 takes them: to test these on any
    /// processor.
    Pairs "pairs";
    /// The instructions that every processor of the target has.
    Portable "portable";
    /// NEON. Every processor of the target has it, and compilers use it in the portable tier as well; here
    /// are kernels written for it.
    Neon "neon" on "aarch64";
    /// The same with BF16: products of matrices in bf16 take pairs of numbers.
    NeonBf16 "neonbf16" on "aarch64";
    /// AVX2, FMA, F16C.
    Avx2 "avx2" on "x86_64";
    /// AVX-512 F, BW, DQ, VL.
    Avx512 "avx512" on "x86_64";
    /// The same with AVX512_BF16: products of matrices in bf16 take pairs of numbers.
    Avx512Bf16 "avx512bf16" on "x86_64";
    /// The same with AMX: products of matrices in bf16 take tiles of 16 × 32 numbers.
    Amx "amx" on "x86_64";
}

impl Tier {
    /// The highest tier of this processor.
    pub fn detect() -> Tier {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c") && has!("bmi2");
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                return match has!("avx512bf16") {
                    true if crate::simd::amx::available() => Tier::Amx,
                    true => Tier::Avx512Bf16,
                    false => Tier::Avx512,
                };
            }
            if avx2 {
                return Tier::Avx2;
            }
            Tier::Portable
        }
        #[cfg(target_arch = "aarch64")]
        return if std::arch::is_aarch64_feature_detected!("bf16") { Tier::NeonBf16 } else { Tier::Neon };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Tier::Portable
    }

    /// The tier that is fastest on this processor: the highest, except on Intel's with AVX512_BF16 and
    /// without AMX.
    ///
    /// VDPBF16PS multiplies there at 0.55 of the rate of FMA in f32 (`bench machine`, a Xeon of family 6,
    /// model 207), on Zen 5 at twice. So Intel's widen bf16 to f32, which makes products 1.4 to 1.6 times as
    /// fast.
    pub fn fastest() -> Tier {
        #[cfg(target_arch = "x86_64")]
        if Tier::detect() == Tier::Avx512Bf16 && vendor() == *b"GenuineIntel" {
            return Tier::Avx512;
        }
        Tier::detect()
    }

    /// The tier in use: the fastest, unless `HEADWATER_TIER` names another that this processor has.
    ///
    /// # Errors
    /// `Device` if `HEADWATER_TIER` names no tier, or one this processor lacks.
    pub fn current() -> Result<Tier> {
        static CURRENT: OnceLock<Result<Tier>> = OnceLock::new();
        CURRENT
            .get_or_init(|| {
                choose(std::env::var("HEADWATER_TIER").ok().as_deref(), Tier::fastest(), Tier::detect())
            })
            .clone()
    }
}

/// The maker of this processor, as CPUID names it.
#[cfg(target_arch = "x86_64")]
fn vendor() -> [u8; 12] {
    let words = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    for (bytes, word) in name.chunks_exact_mut(4).zip([words.ebx, words.edx, words.ecx]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    name
}

fn choose(asked: Option<&str>, fastest: Tier, highest: Tier) -> Result<Tier> {
    let Some(name) = asked.filter(|s| !s.is_empty()) else { return Ok(fastest) };
    let tier = Tier::ALL.into_iter().find(|t| t.name() == name);
    let tier = tier.ok_or_else(|| {
        let names = Tier::ALL.map(Tier::name).join(", ");
        fail!(Device, "HEADWATER_TIER={name}: the tiers of {} are {names}", std::env::consts::ARCH)
    })?;
    if tier > highest {
        return Err(fail!(Device, "HEADWATER_TIER={name}: this processor has {} at most", highest.name()));
    }
    Ok(tier)
}

/// A loop to be compiled for each tier.
pub(crate) trait Loop {
    /// Its result.
    type Out;
    /// Runs it. To be marked `#[inline(always)]`, as all that it calls.
    fn run(self) -> Self::Out;
}

/// A loop with AVX2.
///
/// # Safety
/// The processor has it, FMA, F16C and BMI2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(crate) unsafe fn avx2<L: Loop>(l: L) -> L::Out {
    l.run()
}

/// A loop with AVX-512.
///
/// # Safety
/// The processor has its parts F, BW, DQ and VL, and what [`avx2`] requires.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")]
pub(crate) unsafe fn avx512<L: Loop>(l: L) -> L::Out {
    l.run()
}

/// A loop with AVX-512 and its conversions to bf16.
///
/// # Safety
/// The processor has its part BF16, and what [`avx512`] requires.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")]
pub(crate) unsafe fn avx512bf16<L: Loop>(l: L) -> L::Out {
    l.run()
}

impl Tier {
    /// Runs a loop with the instructions of this tier, which the processor must have.
    #[inline]
    pub(crate) fn run<L: Loop>(self, l: L) -> L::Out {
        #[cfg(target_arch = "x86_64")]
        match self {
            Tier::Tiles | Tier::Pairs | Tier::Portable => {}
            // SAFETY: devices take only tiers that the processor has.
            Tier::Avx2 => return unsafe { avx2(l) },
            // SAFETY: as above.
            Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => return unsafe { avx512(l) },
        }
        l.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_the_processor_has_can_be_forced() {
        for (i, highest) in Tier::ALL.into_iter().enumerate() {
            for (j, asked) in Tier::ALL.into_iter().enumerate() {
                assert_eq!(choose(None, asked, highest), Ok(asked));
                let chosen = choose(Some(asked.name()), Tier::Portable, highest);
                assert_eq!(chosen.ok(), (j <= i).then_some(asked), "{asked:?} of {highest:?}");
            }
            let unknown = choose(Some("sse9"), highest, highest).unwrap_err().to_string();
            assert!(Tier::ALL.iter().all(|t| unknown.contains(t.name())), "{unknown}");
        }
        assert!(Tier::current().is_ok());
        assert!(Tier::fastest() <= Tier::detect());
    }
}
