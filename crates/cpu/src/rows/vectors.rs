//! Vectors that the elementary functions of `math` are computed on, one type for each instruction set, whose
//! registers are those of `gemm`. Only functions compiled for it may come here; everything is inlined into
//! them.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm;
    use crate::rows::math::{self, f32 as one, vector};
    use crate::tier::{Loop, Tier};
    use std::marker::PhantomData;

    const LANES: usize = 16;

    /// The functions of some numbers, each on all lanes at once.
    struct All<M>([fn(f32) -> f32; 7], [f32; LANES], PhantomData<M>);

    impl<M: math::Lanes<V: gemm::Lanes<E = f32>> + Default> Loop for All<M> {
        type Out = ();

        #[inline(always)]
        fn run(self) {
            let All(scalar, x, _) = self;
            let mut l = M::default();
            for part in x.chunks_exact(<M::V as gemm::Lanes>::N) {
                // SAFETY: as many lanes as the vector has; the caller is compiled for the instruction set.
                let v = unsafe { <M::V as gemm::Lanes>::load(part.as_ptr()) };
                let found = [
                    vector::exp(&mut l, v),
                    vector::exp_nonpos(&mut l, v),
                    vector::log(&mut l, v),
                    vector::tanh(&mut l, v),
                    vector::erf(&mut l, v),
                    vector::ndtr(&mut l, v),
                    vector::sigmoid(&mut l, v),
                ];
                for (found, scalar) in found.into_iter().zip(&scalar) {
                    let mut lanes = [0f32; LANES];
                    // SAFETY: as above.
                    unsafe { gemm::Lanes::store(found, lanes.as_mut_ptr()) };
                    for (&x, got) in part.iter().zip(lanes) {
                        let want = scalar(x);
                        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                        assert!(same, "of {x}: {got}, one at a time {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn functions_of_vectors_are_those_of_numbers() {
        let scalar: [fn(f32) -> f32; 7] =
            [one::exp, one::exp_nonpos, one::log, one::tanh, one::erf, one::ndtr, one::sigmoid];
        // All exponents and signs, special numbers among them, and what lies near zero and one.
        let numbers = (0..1u32 << 16).map(|i| f32::from_bits((i << 16) | (i * 7919 % 65536)));
        let numbers: Vec<f32> = numbers.chain((0..1 << 12).map(|i| (i as f32 - 2048.0) / 20.0)).collect();
        for x in numbers.as_chunks::<LANES>().0 {
            #[cfg(target_arch = "x86_64")]
            if Tier::detect() >= Tier::Avx2 {
                Tier::Avx2.run(All::<Avx2>(scalar, *x, PhantomData));
            }
            #[cfg(target_arch = "x86_64")]
            if Tier::detect() >= Tier::Avx512 {
                Tier::Avx512.run(All::<Avx512>(scalar, *x, PhantomData));
            }
            #[cfg(target_arch = "aarch64")]
            Tier::Neon.run(All::<Neon>(scalar, *x, PhantomData));
        }
    }
}
