//! Complex numbers, and discrete Fourier transforms of them. They are pairs: a last dimension of 2 holds real
//! and imaginary part, as PyTorch's `view_as_real` lays them out. Attributes count the dimensions before it.

operators! {
    conj: CONJ;
    fft_c2c: FFT_C2C;
    fft_c2r: FFT_C2R;
    fft_freq: FFT_FFTFREQ, FFT_RFFTFREQ;
    fft_r2c: FFT_R2C;
    fft_shift: FFT_FFTSHIFT, FFT_IFFTSHIFT;
    scale_middle: SCALE_MIDDLE;
}

pub mod transform;

use crate::diagnostic::Result;
use crate::ops::OpCx;
use crate::shape::{Shape, wrap_dim};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Most dimensions that are transformed at once.
const MOST: usize = 8;

/// A transform: dimensions and sizes of its signal, before it is halved or after it was completed.
#[derive(Clone, PartialEq, Debug)]
pub struct Transform {
    /// Sizes of the signal's tensor, without the pairs' dimension.
    pub signal: Vec<usize>,
    /// Dimensions transformed, each once. Of a real signal the last of them is transformed in halves.
    pub dims: Vec<usize>,
    /// Factor of the results: 1, `1/√n` or `1/n` for `n` elements of a signal.
    pub scale: f64,
}

impl Transform {
    /// That of the attributes `dim` and `normalization` (ATen's `fft_norm_mode`: 0, 1, 2 for the factors 1,
    /// `1/√n`, `1/n`). `last` is the size of the signal along the last dimension transformed, if not that in
    /// `sizes`.
    fn of(cx: &OpCx, sizes: &[usize], last: Option<usize>) -> Result<Transform> {
        let mut dims = Vec::new();
        for &d in cx.ints("dim")? {
            let at = wrap_dim(d, sizes.len()).filter(|&at| at < sizes.len());
            let at = at.ok_or_else(|| {
                fail!(Attribute, "`dim` has {d}, out of range for {} dimensions", sizes.len())
            })?;
            ensure!(!dims.contains(&at), Attribute, "`dim` names dimension {at} twice");
            dims.push(at);
        }
        ensure!(dims.len() <= MOST, Unsupported, "a transform of {} dimensions at once", dims.len());
        let mut signal = sizes.to_vec();
        if let (Some(n), Some(&d)) = (last, dims.last()) {
            signal[d] = n;
        }
        let count: f64 = dims.iter().map(|&d| signal[d] as f64).product();
        ensure!(count > 0.0, Shape, "a transform of no elements along {dims:?} of {}", Shape::new(sizes));
        let scale = match cx.int("normalization")? {
            0 => 1.0,
            1 => 1.0 / count.sqrt(),
            2 => 1.0 / count,
            other => return Err(fail!(Attribute, "`normalization` = {other} is none of 0, 1, 2")),
        };
        Ok(Transform { signal, dims, scale })
    }

    /// The dimension that a real signal is transformed along in halves.
    ///
    /// # Errors
    /// `Attribute` if none is transformed.
    pub fn last(&self) -> Result<usize> {
        self.dims.last().copied().ok_or_else(|| fail!(Attribute, "`dim` names no dimension"))
    }

    /// Operations of all transforms, `5 n log₂ n` for one of `n` complex numbers.
    fn flops(&self) -> f64 {
        let all: f64 = self.signal.iter().map(|&n| n as f64).product();
        self.dims.iter().map(|&d| 5.0 * all * (self.signal[d] as f64).log2().max(1.0)).sum()
    }
}

/// Number of frequencies that a real signal of `n` elements has: the others are their conjugates.
pub fn half(n: usize) -> usize {
    n / 2 + 1
}

/// Input 0 as pairs: its type, and the sizes before the last dimension.
///
/// # Errors
/// `DType`, `Shape` if it is not of pairs.
pub fn pairs<'a>(cx: &OpCx<'a>) -> Result<(&'a TensorType, &'a [usize])> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.is_float(), DType, "complex numbers are pairs of floats, got {x}");
    match x.shape.split_last() {
        Some((2, sizes)) => Ok((x, sizes)),
        _ => Err(fail!(Shape, "complex numbers are pairs in a last dimension of 2, got {x}")),
    }
}

/// Shape of pairs of these sizes.
fn paired(mut sizes: Vec<usize>) -> Vec<usize> {
    sizes.push(2);
    sizes
}
