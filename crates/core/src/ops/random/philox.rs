//! The source of all random numbers: Philox4x32-10 (see [`crate::random`]).

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::random::{Stream, WORDS};
use crate::tensor::{Tensor, TensorType};

/// `size` numbers uniform in `[0, 1)`, multiples of 2⁻²⁴, in f32 or f64 (`dtype`), the same in both. Element
/// `i` comes from word `first + i` of the stream `stream` under the key `rng` (`i64[2]`: seed, step). `first`
/// is a multiple of 4, 0 where absent.
pub static PHILOX_UNIFORM: OpDef = OpDef {
    name: "philox_uniform",
    schemas: &[
        "headwater::philox_uniform(Tensor rng, *, SymInt[] size, ScalarType? dtype=None, int stream, int first=0) -> Tensor",
    ],
    infer: |cx| {
        key(cx, 0)?;
        number(cx)?;
        let (size, dtype) = (cx.sizes("size")?, cx.opt_dtype("dtype")?.unwrap_or(DType::F32));
        ensure!(
            matches!(dtype, DType::F32 | DType::F64),
            DType,
            "uniform numbers are f32 or f64, not {dtype}"
        );
        let last = first(cx)?.saturating_add(size.numel() as u64);
        ensure!(last <= WORDS, Size, "{size} needs more than 2^34 random numbers");
        Ok(vec![TensorType::new(dtype, size)])
    },
    derivative: Derivative::NotDifferentiable("random numbers depend on no tensor"),
    precision: Precision::Same,
    // About 10 rounds of 6 operations for 4 numbers.
    cost: Cost::PerOutput(15),
    body: Body::Kernel(|cx, inputs, outs| {
        let stream = stream(cx, inputs[0].expect("typed"))?;
        let first = first(cx)?;
        let numbers = (0..outs[0].shape.numel() as u64).map(|i| stream.uniform(first + i)).collect();
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), numbers)])
    }),
    cases: || {
        let case = |name| Case::new(name).index(&[2], 1000).attr("size", [3, 5]).attr("stream", 2);
        vec![case("odd count"), case("from a later word").attr("first", 8)]
    },
};

/// Checks that input `i` is a key.
pub fn key(cx: &OpCx, i: usize) -> Result<()> {
    let t = cx.ty(i)?;
    ensure!(
        t.dtype == DType::I64 && t.shape[..] == [2],
        Shape,
        "the key of random numbers is i64[2], not {t}"
    );
    Ok(())
}

/// The attribute `stream`.
pub fn number(cx: &OpCx) -> Result<u32> {
    let n = cx.int("stream")?;
    u32::try_from(n).map_err(|_| crate::fail!(Attribute, "`stream` must fit in 32 bits, got {n}"))
}

/// The attribute `first`: the word of the first element.
pub fn first(cx: &OpCx) -> Result<u64> {
    let n = cx.opt_int("first")?.unwrap_or(0);
    ensure!(n >= 0 && n % 4 == 0, Attribute, "`first` must be a multiple of 4 from 0, got {n}");
    Ok(n as u64)
}

/// The stream a node draws from.
pub fn stream(cx: &OpCx, key: &Tensor) -> Result<Stream> {
    Ok(Stream::new(key.ints()[0], key.ints()[1], number(cx)?))
}
