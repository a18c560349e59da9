//! Fourier transforms as `torch.fft` and `torch.stft` name them, by ATen's `_fft_c2c`, `_fft_r2c` and
//! `_fft_c2r`.

use super::maker::{Maker, Term};
use crate::arguments::Obstacle;
use crate::error::{Result, refuse};
use headwater_core::ops::complex::{conj::CONJ, fft_c2c::FFT_C2C, fft_c2r::FFT_C2R, fft_r2c::FFT_R2C, half};
use headwater_core::ops::movement::pad::{CONSTANT_PAD_ND, PAD};
use headwater_core::ops::view::unfold::{UNFOLD, UNFOLD_BACKWARD};
use headwater_core::shape::wrap_dim;
use headwater_core::tensor::TensorType;
use headwater_core::{Attr, Attrs, Builder, ValueId};

type Made = Result<ValueId, Obstacle>;

/// ATen's `fft_norm_mode`: results as they are, over the root of the number of elements, or over that number.
const NONE: i64 = 0;
const BY_ROOT_N: i64 = 1;
const BY_N: i64 = 2;

/// The signal of a transform: its dimensions, without that of pairs, and their sizes.
struct Signal {
    dims: Vec<usize>,
    sizes: Vec<usize>,
    mode: i64,
}

/// Reads `n` and `dim`, or `s` and `dim`, for a tensor of these sizes. To real numbers, the last dimension
/// has twice as many elements less two, unless it is given.
fn signal(m: &Maker, shape: &[usize], forward: bool, to_real: bool) -> Result<Signal, Obstacle> {
    let args = m.args();
    let ints = |name: &str| match m.call.attrs.get(name) {
        Some(Attr::Int(d)) => Ok(Some(vec![*d])),
        _ => args.opt_ints(name).map(|v| v.map(<[i64]>::to_vec)),
    };
    let (given, dims) = (ints("n")?.or(ints("s")?), ints("dim")?);
    let rank = shape.len();
    let dims = match (dims, &given) {
        (Some(dims), _) => dims,
        (None, Some(s)) => (rank.saturating_sub(s.len()) as i64..rank as i64).collect(),
        (None, None) => (0..rank as i64).collect(),
    };
    let wrapped: Option<Vec<usize>> = dims.iter().map(|&d| wrap_dim(d, rank).filter(|&d| d < rank)).collect();
    let dims =
        wrapped.ok_or_else(|| refuse!(Argument, "`dim` = {dims:?} is out of range for {rank} dimensions"))?;
    if given.as_ref().is_some_and(|s| s.len() != dims.len()) {
        return Err(refuse!(Argument, "as many sizes as dimensions are transformed").into());
    }
    let mut sizes: Vec<usize> = dims.iter().map(|&d| shape[d]).collect();
    if let Some(last) = sizes.last_mut().filter(|_| to_real) {
        *last = last.saturating_sub(1).saturating_mul(2);
    }
    for (size, &n) in sizes.iter_mut().zip(given.iter().flatten()).filter(|(_, n)| **n != -1) {
        *size = usize::try_from(n).map_err(|_| refuse!(Argument, "a transform of {n} elements"))?;
    }
    let mode = match (args.opt_str("norm")?, forward) {
        (Some("ortho"), _) => BY_ROOT_N,
        (None | Some("backward"), true) | (Some("forward"), false) => NONE,
        (None | Some("backward"), false) | (Some("forward"), true) => BY_N,
        (Some(other), _) => return Err(refuse!(Argument, "`norm` = {other:?}").into()),
    };
    Ok(Signal { dims, sizes, mode })
}

impl Signal {
    /// Attributes of a transform of some of its dimensions.
    fn attrs(&self, dims: &[usize]) -> Attrs {
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        Attrs::new().with("dim", dims).with("normalization", self.mode)
    }

    /// The last dimension, and those before it.
    fn last(&self) -> Result<(usize, &[usize])> {
        let (last, others) =
            self.dims.split_last().ok_or_else(|| refuse!(Argument, "no dimension is transformed"))?;
        Ok((*last, others))
    }

    /// Cuts off or adds zeros at the ends, so that dimensions have these sizes.
    fn fitted(&self, b: &mut Builder, x: ValueId, sizes: &[usize]) -> headwater_core::Result<ValueId> {
        let shape = b.ty(x).shape.clone();
        let mut borders = vec![0; 2 * shape.rank()];
        for (&d, &n) in self.dims.iter().zip(sizes) {
            // The last dimension's border comes first.
            borders[2 * (shape.rank() - 1 - d) + 1] = (n as i64).saturating_sub(shape[d] as i64);
        }
        if borders.iter().all(|&n| n == 0) {
            return Ok(x);
        }
        b.one(&CONSTANT_PAD_ND, &[x], Attrs::new().with("pad", borders).with("value", 0.0))
    }
}

/// Sizes of what a term holds, without the dimension of pairs.
fn sizes(m: &mut Maker, term: Term) -> Vec<usize> {
    match term {
        Term::Complex(v) => {
            let shape = &m.b().ty(v).shape;
            shape[..shape.rank() - 1].to_vec()
        }
        Term::Real(v) => m.b().ty(v).shape.to_vec(),
        Term::Number(_) => vec![],
    }
}

/// `fft`, `ifft` and theirs of several dimensions. The transform back of real numbers is the conjugate of the
/// forward one.
pub(super) fn complex(m: &mut Maker, forward: bool) -> Made {
    let term = m.term("self")?;
    let shape = sizes(m, term);
    let s = signal(m, &shape, forward, false)?;
    let b = m.b();
    Ok(match term {
        Term::Real(x) if !s.dims.is_empty() => {
            let x = s.fitted(b, x, &s.sizes)?;
            let made = b.one(&FFT_R2C, &[x], s.attrs(&s.dims).with("onesided", false))?;
            if forward { made } else { b.call(&CONJ, &[made])? }
        }
        term => {
            let z = m.pair(term)?;
            let z = s.fitted(m.b(), z, &s.sizes)?;
            m.b().one(&FFT_C2C, &[z], s.attrs(&s.dims).with("forward", forward))?
        }
    })
}

/// `rfft`, `ihfft` and theirs of several dimensions.
pub(super) fn from_real(m: &mut Maker, forward: bool) -> Made {
    let x = match m.term("self")? {
        Term::Real(x) => x,
        _ => return Err(refuse!(Argument, "a transform of real numbers is asked of complex ones").into()),
    };
    let shape = m.b().ty(x).shape.to_vec();
    let s = signal(m, &shape, forward, false)?;
    let b = m.b();
    let x = s.fitted(b, x, &s.sizes)?;
    if forward {
        return Ok(b.one(&FFT_R2C, &[x], s.attrs(&s.dims).with("onesided", true))?);
    }
    let (last, others) = s.last()?;
    let made = b.one(&FFT_R2C, &[x], s.attrs(&[last]).with("onesided", true))?;
    let made = b.call(&CONJ, &[made])?;
    if others.is_empty() {
        return Ok(made);
    }
    Ok(b.one(&FFT_C2C, &[made], s.attrs(others).with("forward", false))?)
}

/// `irfft`, `hfft` and theirs of several dimensions.
pub(super) fn to_real(m: &mut Maker, forward: bool) -> Made {
    let term = m.term("self")?;
    let shape = sizes(m, term);
    let s = signal(m, &shape, forward, true)?;
    let (last, others) = s.last()?;
    let n = s.sizes[s.sizes.len() - 1];
    let given: Vec<usize> = s.sizes[..others.len()].iter().copied().chain([half(n)]).collect();
    let z = m.pair(term)?;
    let b = m.b();
    let mut z = s.fitted(b, z, &given)?;
    let attrs = |dims: &[usize]| s.attrs(dims).with("last_dim_size", n as i64);
    if !forward {
        return Ok(b.one(&FFT_C2R, &[z], attrs(&s.dims))?);
    }
    if !others.is_empty() {
        z = b.one(&FFT_C2C, &[z], s.attrs(others).with("forward", true))?;
    }
    let z = b.call(&CONJ, &[z])?;
    Ok(b.one(&FFT_C2R, &[z], attrs(&[last]))?)
}

/// Windows of a short-time transform.
struct Frames {
    /// Elements of a frame.
    size: usize,
    /// From frame to frame.
    hop: usize,
    /// Factors of a frame's elements.
    window: Option<ValueId>,
}

impl Frames {
    fn of(m: &mut Maker) -> Result<Frames, Obstacle> {
        let args = m.args();
        let size = args.size("n_fft")?;
        let length = |name: &str| args.opt_int(name).map(|n| n.map(|n| usize::try_from(n).unwrap_or(0)));
        let hop = length("hop_length")?.unwrap_or(size / 4);
        let width = length("win_length")?.unwrap_or(size);
        if hop == 0 || width == 0 || width > size {
            return Err(refuse!(Argument, "frames of {size} with a window of {width}, {hop} apart").into());
        }
        let window = match m.get("window")? {
            None if width == size => None,
            None => {
                let ty = TensorType::new(m.want.dtype, [width]);
                Some(m.b().full(&ty, 1.0)?)
            }
            Some(Term::Real(window)) => Some(window),
            Some(_) => return Err(Obstacle::Unsupported("the window is of complex numbers".into())),
        };
        let window = match window {
            Some(window) if width < size => {
                let left = (size - width) / 2;
                let pad = vec![left as i64, (size - width - left) as i64];
                Some(m.b().one(
                    &CONSTANT_PAD_ND,
                    &[window],
                    Attrs::new().with("pad", pad).with("value", 0.0),
                )?)
            }
            other => other,
        };
        Ok(Frames { size, hop, window })
    }
}

/// Borders of `by` elements on both sides of the last dimension.
fn bordered(b: &mut Builder, x: ValueId, by: usize, mode: &str) -> headwater_core::Result<ValueId> {
    let attrs = Attrs::new().with("pad", vec![by as i64; 2]).with("mode", mode);
    b.one(&PAD, &[x], attrs)
}

/// `torch.stft`: frames of the last dimension, windowed and transformed, as `[..., frequency, frame]`.
pub(super) fn stft(m: &mut Maker) -> Made {
    let Term::Real(mut x) = m.term("self")? else {
        return Err(Obstacle::Unsupported(
            "a short-time transform of complex numbers: take `fft` of their frames".into(),
        ));
    };
    let frames = Frames::of(m)?;
    let (centred, mode) =
        (m.args().flag("center")?, m.args().opt_str("pad_mode")?.unwrap_or("reflect").to_string());
    if m.args().flag("align_to_window")? && !centred {
        return Err(Obstacle::Unsupported("`align_to_window`: pad the signal before the transform".into()));
    }
    let (onesided, normalized) = (m.args().opt_int("onesided")? != Some(0), m.args().flag("normalized")?);
    let b = m.b();
    if centred {
        // Mirrored borders are of images, or of signals by channels.
        let shape = b.ty(x).shape.to_vec();
        let channels = [vec![1; 3usize.saturating_sub(shape.len())], shape.clone()].concat();
        x = b.reshape(x, &channels)?;
        x = bordered(b, x, frames.size / 2, &mode)?;
        let padded = b.ty(x).shape.to_vec();
        x = b.reshape(x, &padded[padded.len() - shape.len()..])?;
    }
    let rank = b.ty(x).shape.rank();
    let attrs =
        Attrs::new().with("dimension", -1).with("size", frames.size as i64).with("step", frames.hop as i64);
    x = b.one(&UNFOLD, &[x], attrs)?;
    if let Some(window) = frames.window {
        x = b.mul(x, window)?;
    }
    let mode = if normalized { BY_ROOT_N } else { NONE };
    let attrs = Attrs::new().with("dim", vec![rank as i64]).with("normalization", mode);
    let made = b.one(&FFT_R2C, &[x], attrs.with("onesided", onesided))?;
    Ok(b.transpose(made, rank - 1, rank)?)
}

/// `torch.istft`: the frames transformed back, windowed and added, over the sum of squared windows.
pub(super) fn istft(m: &mut Maker) -> Made {
    if m.args().flag("return_complex")? {
        return Err(Obstacle::Unsupported(
            "complex signals of a short-time transform: take `ifft` of the frames".into(),
        ));
    }
    let (z, frames) = (m.pairs("self")?, Frames::of(m)?);
    let (centred, normalized) = (m.args().flag("center")?, m.args().flag("normalized")?);
    let length = m.args().opt_int("length")?;
    let (dtype, b) = (m.want.dtype, m.b());
    let rank = b.ty(z).shape.rank() - 1;
    if rank < 2 {
        return Err(refuse!(Argument, "frames need two dimensions, got {}", b.ty(z)).into());
    }
    let z = b.transpose(z, rank - 2, rank - 1)?;
    let count = b.ty(z).shape[rank - 2];
    let z = b.slice(z, rank - 1, 0, half(frames.size))?;
    let mode = if normalized { BY_ROOT_N } else { BY_N };
    let attrs = Attrs::new().with("dim", vec![rank as i64 - 1]).with("normalization", mode);
    let mut y = b.one(&FFT_C2R, &[z], attrs.with("last_dim_size", frames.size as i64))?;
    let window = match frames.window {
        Some(window) => window,
        None => b.full(&TensorType::new(dtype, [frames.size]), 1.0)?,
    };
    y = b.mul(y, window)?;
    // Frames are added where they were taken from.
    let whole = count.saturating_sub(1).saturating_mul(frames.hop).saturating_add(frames.size);
    let added = |b: &mut Builder, frames_of: ValueId| {
        let shape = b.ty(frames_of).shape.clone();
        let sizes: Vec<i64> = shape[..shape.rank() - 2].iter().chain([&whole]).map(|&n| n as i64).collect();
        let dim = sizes.len() as i64 - 1;
        let attrs = Attrs::new().with("input_sizes", sizes).with("dim", dim);
        let attrs = attrs.with("size", frames.size as i64).with("step", frames.hop as i64);
        b.one(&UNFOLD_BACKWARD, &[frames_of], attrs)
    };
    let square = b.mul(window, window)?;
    let square = b.expand(square, &[count, frames.size])?;
    let (y, weight) = (added(b, y)?, added(b, square)?);
    let start = if centred { frames.size / 2 } else { 0 };
    let end = match length.map(|n| usize::try_from(n).unwrap_or(0)) {
        Some(n) => start.saturating_add(n),
        None if centred => whole.saturating_sub(frames.size / 2),
        None => whole,
    };
    let kept = end.min(whole).max(start);
    let (y, weight) = (b.slice(y, rank - 2, start, kept)?, b.slice(weight, 0, start, kept)?);
    let y = b.div(y, weight)?;
    let missing = end.saturating_sub(kept);
    if missing == 0 {
        return Ok(y);
    }
    Ok(b.one(&CONSTANT_PAD_ND, &[y], Attrs::new().with("pad", vec![0, missing as i64]).with("value", 0.0))?)
}
