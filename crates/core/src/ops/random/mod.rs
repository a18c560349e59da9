//! Random numbers, all from one counter-based source. Every importable operator is decomposed in one step
//! into draws from it, each with a stream of its own, and pointwise transformations. The same seed, step and
//! graph give the same numbers on every device.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::shape::Shape;

operators! {
    distributions: RAND, UNIFORM, RANDN, NORMAL, NORMAL_FUNCTIONAL, RANDINT, BERNOULLI, EXPONENTIAL;
    dropout: DROPOUT, NATIVE_DROPOUT, FEATURE_DROPOUT, ALPHA_DROPOUT, FEATURE_ALPHA_DROPOUT;
    multinomial: MULTINOMIAL, RANDPERM;
    philox: PHILOX_UNIFORM;
    rrelu: RRELU;
    transform: UNIFORM_BELOW, UNIFORM_BETWEEN, UNIFORM_TO_NORMAL, UNIFORM_TO_INTEGER, UNIFORM_TO_EXPONENTIAL;
}

/// Uniform numbers in `[0, 1)` of f32 or f64 from a stream that no other node draws from.
pub fn draw(b: &mut Builder, shape: &Shape, dtype: DType) -> Result<ValueId> {
    let attrs = Attrs::new().with("size", shape.to_ints()).with("dtype", dtype).with("stream", b.stream());
    let key = b.rng();
    b.one(&philox::PHILOX_UNIFORM, &[key], attrs)
}
