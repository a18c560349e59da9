//! Random numbers from counters: `philox_uniform`, the same numbers as the core's reference.

use super::{Args, Kernel, Prepared, Site, contiguous, no_workspace};
use crate::element::Float;
use crate::float_dtype;
use crate::tier::{Loop, Tier};
use headwater_core::diagnostic::Result;
use headwater_core::ops::random::philox::{self, PHILOX_UNIFORM};
use headwater_core::random::{Stream, uniform};

/// The family.
pub static KERNELS: &[Kernel] = &[Kernel {
    op: &PHILOX_UNIFORM,
    takes: super::any,
    workspace: no_workspace,
    strided: contiguous,
    prepare: |site| prepare(site),
}];

/// Numbers per chunk; a multiple of the words that the generator computes at a time.
const GROUP: usize = 1 << 14;

fn prepare(site: &Site) -> Result<Prepared> {
    let (stream, tier) = (philox::number(&site.cx)?, site.tier);
    let first = philox::first(&site.cx)? as usize;
    Ok(float_dtype!(site.outs[0].dtype, T => Box::new(move |args| run::<T>(tier, stream, first, args))))
}

fn run<T: Float>(tier: Tier, stream: u32, first: usize, args: &mut Args) -> Result<()> {
    let key = args.read(0)?.slice::<i64>();
    let stream = Stream::new(key[0], key[1], stream);
    let out = args.writes[0].slice_mut::<T>();
    args.pool.chunks(out, GROUP, |i, out| tier.run(Uniform { stream, first: first + i * GROUP, out }));
    Ok(())
}

/// Numbers from word `first` on, a multiple of 4.
struct Uniform<'a, T> {
    stream: Stream,
    first: usize,
    out: &'a mut [T],
}

impl<T: Float> Loop for Uniform<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (i, out) in self.out.chunks_mut(32).enumerate() {
            let words = self.stream.blocks::<8>((self.first / 4 + i * 8) as u32);
            for (o, &word) in out.iter_mut().zip(words.as_flattened()) {
                *o = T::from_f64(uniform(word));
            }
        }
    }
}
