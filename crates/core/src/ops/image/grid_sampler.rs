//! Images and volumes sampled at given places: spatial transformers (Jaderberg et al. 2015,
//! arXiv:1506.02025).

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::control::detach::DETACH;
use crate::ops::index::gather::GATHER;
use crate::ops::pointwise::compare::{GE, GT, LE, LT};
use crate::ops::pointwise::logical::LOGICAL_AND;
use crate::ops::pointwise::{
    abs::ABS, clamp::CLAMP, floor::FLOOR, mul::MUL, remainder::REMAINDER, round::ROUND,
};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `(input [N, C, H, W], grid [N, P, Q, 2])` to `[N, C, P, Q]`: the image at places `(x, y)` of the grid. Its
/// coordinates −1 and 1 are the borders of the image, or with `align_corners` the centres of its first and
/// last pixels. Volumes `[N, C, D, H, W]` are sampled at places `(x, y, z)` of a grid `[N, P, Q, R, 3]`.
///
/// `interpolation_mode`: 0 linear along each dimension, 1 nearest (ties to even). `padding_mode`: places
/// outside are 0 (0), those of the border (1), or reflected at it (2). Places, weights and sums are in f32 or
/// wider.
///
/// As in PyTorch a place that is moved to the border gets no gradient. A grid sampled by `nearest` gets none
/// at all, where PyTorch gives it zeros.
pub static GRID_SAMPLER: OpDef = OpDef {
    name: "grid_sampler",
    schemas: &[
        "grid_sampler(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        "grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        "grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, Sampling::of(cx)?.output())]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(12),
    body: Body::Decompose(|b, cx, inputs| {
        let s = Sampling::of(cx)?;
        let (image, grid) = (required(inputs, 0)?, required(inputs, 1)?);
        let dtype = cx.dtype(0)?;
        let grid = b.cast(grid, if dtype == DType::F64 { DType::F64 } else { DType::F32 })?;
        let rank = s.sizes.len();
        let flat = b.reshape(image, &[s.batch, s.channels, s.sizes.iter().product()])?;
        // The grid holds the place along the last dimension first.
        let places = (0..rank).map(|d| {
            let at = b.select(grid, rank + 1, rank - 1 - d)?;
            s.place(b, at, s.sizes[d])
        });
        let places = places.collect::<Result<Vec<_>>>()?;
        let sampled = if s.nearest {
            let pixels: Result<Vec<_>> = places.iter().map(|&at| b.call(&ROUND, &[at])).collect();
            s.pixels(b, flat, &pixels?)?
        } else {
            s.linear(b, flat, &places)?
        };
        let sampled = b.cast(sampled, dtype)?;
        Ok(vec![b.reshape(sampled, &s.output())?])
    }),
    cases: || {
        let case = |name, image: &[usize], grid: &[usize], modes: [i64; 2], align: bool| {
            Case::new(name)
                .f(image)
                .range(grid, -1.4, 1.4)
                .attr("interpolation_mode", modes[0])
                .attr("padding_mode", modes[1])
                .attr("align_corners", align)
        };
        vec![
            case("zeros", &[1, 2, 3, 4], &[1, 2, 3, 2], [0, 0], false),
            case("zeros, corners", &[2, 1, 3, 2], &[2, 2, 2, 2], [0, 0], true),
            case("border", &[1, 2, 3, 4], &[1, 2, 3, 2], [0, 1], false),
            case("reflected", &[1, 2, 3, 4], &[1, 2, 3, 2], [0, 2], false),
            case("reflected, corners", &[1, 2, 3, 4], &[1, 3, 2, 2], [0, 2], true),
            case("one pixel, reflected", &[1, 2, 1, 1], &[1, 2, 2, 2], [0, 2], true),
            case("nearest", &[1, 2, 3, 4], &[1, 2, 3, 2], [1, 0], false).constant(),
            case("nearest, border", &[1, 2, 3, 4], &[1, 2, 3, 2], [1, 1], true).constant(),
            case("no places", &[1, 2, 3, 4], &[1, 0, 3, 2], [0, 0], false),
            case("volume", &[1, 2, 2, 3, 2], &[1, 2, 1, 2, 3], [0, 0], false),
            case("volume, reflected", &[2, 1, 2, 2, 3], &[2, 1, 2, 1, 3], [0, 2], false),
            case("volume, nearest", &[1, 2, 2, 3, 2], &[1, 2, 1, 2, 3], [1, 1], true).constant(),
        ]
    },
};

/// The way an image or volume is sampled.
struct Sampling {
    batch: usize,
    channels: usize,
    /// Its sizes, without batch and channels.
    sizes: Vec<usize>,
    /// Places along each dimension of the grid.
    places: Vec<usize>,
    nearest: bool,
    padding: Padding,
    align: bool,
}

/// Places outside of the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

impl Sampling {
    fn of(cx: &OpCx) -> Result<Sampling> {
        let (image, grid) = (cx.ty(0)?, cx.ty(1)?);
        let rank = image.shape.rank();
        let ranks = (4..=5).contains(&rank) && grid.shape.rank() == rank;
        ensure!(
            ranks && grid.shape[rank - 1] == rank - 2,
            Shape,
            "sampling needs an image [N, C, H, W] and a grid [N, P, Q, 2], or a volume [N, C, D, H, W] and a \
             grid [N, P, Q, R, 3], got {}",
            cx.list_types()
        );
        let floats = image.dtype.is_float() && image.dtype == grid.dtype;
        ensure!(floats, DType, "image and grid must be of one float dtype: {}", cx.list_types());
        let fits = image.shape[0] == grid.shape[0] && image.shape[2..].iter().all(|&n| n > 0);
        ensure!(fits, Shape, "this grid does not fit this image: {}", cx.list_types());
        let nearest = match cx.int("interpolation_mode")? {
            0 => false,
            1 => true,
            2 => {
                return Err(fail!(
                    Unsupported,
                    "bicubic sampling is not supported: use mode=\"bilinear\", or resample with interpolate"
                ));
            }
            other => return Err(fail!(Attribute, "`interpolation_mode` {other} is not known")),
        };
        let padding = match cx.int("padding_mode")? {
            0 => Padding::Zeros,
            1 => Padding::Border,
            2 => Padding::Reflection,
            other => return Err(fail!(Attribute, "`padding_mode` {other} is not known")),
        };
        let s = Sampling {
            batch: image.shape[0],
            channels: image.shape[1],
            sizes: image.shape[2..].to_vec(),
            places: grid.shape[1..rank - 1].to_vec(),
            nearest,
            padding,
            align: cx.flag("align_corners")?,
        };
        for shape in [&s.output(), &image.shape, &grid.shape] {
            ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        }
        Ok(s)
    }

    /// Shape of the result.
    fn output(&self) -> Shape {
        [&[self.batch, self.channels][..], &self.places].concat().into()
    }

    /// Coordinates of the grid along a dimension of `size` pixels as positions, pixels being at whole ones.
    fn place(&self, b: &mut Builder, at: ValueId, size: usize) -> Result<ValueId> {
        let size = size as f64;
        let at = b.shift(at, 1.0)?;
        let at = if self.align {
            b.scale(at, (size - 1.0) / 2.0)?
        } else {
            let at = b.scale(at, size)?;
            let at = b.shift(at, -1.0)?;
            b.scale(at, 0.5)?
        };
        let at = match self.padding {
            Padding::Zeros => return Ok(at),
            Padding::Border => at,
            Padding::Reflection => self.reflected(b, at, size)?,
        };
        let above = b.one(&GT, &[at], Attrs::new().with("other", 0.0))?;
        let below = b.one(&LT, &[at], Attrs::new().with("other", size - 1.0))?;
        let inside = b.call(&LOGICAL_AND, &[above, below])?;
        let border = b.call(&DETACH, &[at])?;
        let border = b.one(&CLAMP, &[border], Attrs::new().with("min", 0.0).with("max", size - 1.0))?;
        b.choose(inside, at, border)
    }

    /// Positions reflected at the borders: a triangle wave.
    fn reflected(&self, b: &mut Builder, at: ValueId, size: f64) -> Result<ValueId> {
        let (low, span) = if self.align { (0.0, size - 1.0) } else { (-0.5, size) };
        if span == 0.0 {
            let ty = b.ty(at).clone();
            return b.full(&ty, 0.0);
        }
        let at = b.shift(at, -low)?;
        let at = b.call(&ABS, &[at])?;
        let at = b.one(&REMAINDER, &[at], Attrs::new().with("other", 2.0 * span))?;
        let at = b.shift(at, -span)?;
        let at = b.call(&ABS, &[at])?;
        let at = b.scale(at, -1.0)?;
        b.shift(at, span + low)
    }

    /// The sum over the pixels around each place, by the share of each: `[N, C, places]`.
    fn linear(&self, b: &mut Builder, flat: ValueId, places: &[ValueId]) -> Result<ValueId> {
        // Along each dimension the two pixels beside the place, and the share of each: the distance of the
        // other.
        let sides = places.iter().map(|&at| {
            let low = b.call(&FLOOR, &[at])?;
            let high = b.shift(low, 1.0)?;
            Ok([(low, b.sub(high, at)?), (high, b.sub(at, low)?)])
        });
        let sides = sides.collect::<Result<Vec<_>>>()?;
        let count = self.places.iter().product();
        let mut sum = None;
        for corner in 0..1usize << sides.len() {
            let chosen = sides.iter().enumerate().map(|(d, side)| side[corner >> d & 1]);
            let (at, shares): (Vec<_>, Vec<_>) = chosen.unzip();
            let mut weight = shares[0];
            for &share in &shares[1..] {
                weight = b.mul(weight, share)?;
            }
            let weight = b.reshape(weight, &[self.batch, 1, count])?;
            let pixels = self.pixels(b, flat, &at)?;
            let term = b.mul(pixels, weight)?;
            sum = Some(match sum {
                Some(sum) => b.add(sum, term)?,
                None => term,
            });
        }
        sum.ok_or_else(|| fail!(Graph, "an image has dimensions"))
    }

    /// The pixels at whole positions along each dimension, `[N, C, places]`; 0 outside of the image.
    fn pixels(&self, b: &mut Builder, flat: ValueId, at: &[ValueId]) -> Result<ValueId> {
        let count = self.places.iter().product();
        let mut found: Option<(ValueId, ValueId)> = None;
        for (&at, &size) in at.iter().zip(&self.sizes) {
            let low = b.one(&GE, &[at], Attrs::new().with("other", 0.0))?;
            let high = b.one(&LE, &[at], Attrs::new().with("other", size as f64 - 1.0))?;
            let inside = b.call(&LOGICAL_AND, &[low, high])?;
            let at = b.keep_where(inside, at)?;
            let at = b.cast(at, DType::I64)?;
            found = Some(match found {
                Some((others, rows)) => {
                    let rows = b.one(&MUL, &[rows], Attrs::new().with("other", size as i64))?;
                    (b.call(&LOGICAL_AND, &[others, inside])?, b.add(rows, at)?)
                }
                None => (inside, at),
            });
        }
        let (inside, index) = found.ok_or_else(|| fail!(Graph, "an image has dimensions"))?;
        let index = b.reshape(index, &[self.batch, 1, count])?;
        let index = b.expand(index, &[self.batch, self.channels, count])?;
        let pixels = b.one(&GATHER, &[flat, index], Attrs::new().with("dim", 2))?;
        let inside = b.reshape(inside, &[self.batch, 1, count])?;
        b.keep_where(inside, pixels)
    }
}
