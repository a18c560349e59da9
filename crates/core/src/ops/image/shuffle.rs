//! Channels turned into pixels and back: views and one copy.

use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `[…, C · r², H, W]` to `[…, C, H · r, W · r]`: Shi and others 2016.
pub static PIXEL_SHUFFLE: OpDef = OpDef {
    name: "pixel_shuffle",
    schemas: &["pixel_shuffle(Tensor self, int upscale_factor) -> Tensor"],
    infer: |cx| {
        let (p, r) = (Pixels::of(cx, "upscale_factor")?, factor(cx, "upscale_factor")?);
        ensure!(p.channels.is_multiple_of(r * r), Shape, "{} channels for a factor of {r}", p.channels);
        result(cx, p.shape(&[p.channels / (r * r), times(p.rows, r)?, times(p.columns, r)?]))
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (p, r) = (Pixels::of(cx, "upscale_factor")?, factor(cx, "upscale_factor")?);
        let c = p.channels / (r * r);
        let parts = p.shape(&[c, r, r, p.rows, p.columns]);
        shuffle(b, inputs, &parts, &[0, 3, 1, 4, 2], &p.shape(&[c, p.rows * r, p.columns * r]))
    }),
    cases: || vec![Case::new("two").f(&[1, 8, 2, 3]).attr("upscale_factor", 2)],
};

/// `[…, C, H · r, W · r]` to `[…, C · r², H, W]`.
pub static PIXEL_UNSHUFFLE: OpDef = OpDef {
    name: "pixel_unshuffle",
    schemas: &["pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor"],
    infer: |cx| {
        let (p, r) = (Pixels::of(cx, "downscale_factor")?, factor(cx, "downscale_factor")?);
        let fits = p.rows.is_multiple_of(r) && p.columns.is_multiple_of(r);
        ensure!(fits, Shape, "an image of {} by {} for a factor of {r}", p.rows, p.columns);
        result(cx, p.shape(&[times(p.channels, r * r)?, p.rows / r, p.columns / r]))
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (p, r) = (Pixels::of(cx, "downscale_factor")?, factor(cx, "downscale_factor")?);
        let (rows, columns) = (p.rows / r, p.columns / r);
        let parts = p.shape(&[p.channels, rows, r, columns, r]);
        shuffle(b, inputs, &parts, &[0, 2, 4, 1, 3], &p.shape(&[p.channels * r * r, rows, columns]))
    }),
    cases: || vec![Case::new("two").f(&[2, 4, 6]).attr("downscale_factor", 2)],
};

/// Channels in `groups` interleaved: `[N, g, C / g, …]` with the two exchanged. Zhang and others 2018.
pub static CHANNEL_SHUFFLE: OpDef = OpDef {
    name: "channel_shuffle",
    schemas: &["channel_shuffle(Tensor self, SymInt groups) -> Tensor"],
    infer: |cx| {
        let (x, g) = (cx.ty(0)?, factor(cx, "groups")?);
        ensure!(x.shape.rank() >= 3, Shape, "channels are the second of at least three dimensions, got {x}");
        ensure!(x.shape[1].is_multiple_of(g), Shape, "{} channels in {g} groups", x.shape[1]);
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (x, g) = (cx.shape(0)?, factor(cx, "groups")?);
        let inner: usize = x[2..].iter().product();
        let parts: Shape = [x[0], g, x[1] / g, inner].into();
        shuffle(b, inputs, &parts, &[1, 0, 2], x)
    }),
    cases: || vec![Case::new("three").f(&[2, 6, 2]).attr("groups", 3)],
};

fn factor(cx: &OpCx, name: &str) -> Result<usize> {
    let r = cx.int(name)?;
    ensure!((1..1 << 16).contains(&r), Attribute, "`{name}` must be positive and less than 65536, got {r}");
    Ok(r as usize)
}

fn times(a: usize, b: usize) -> Result<usize> {
    a.checked_mul(b).ok_or_else(|| fail!(Size, "the image is larger than memory can be"))
}

fn result(cx: &OpCx, shape: Shape) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
}

/// The last three dimensions of an image, and those before.
struct Pixels {
    lead: Vec<usize>,
    channels: usize,
    rows: usize,
    columns: usize,
}

impl Pixels {
    fn of(cx: &OpCx, name: &str) -> Result<Pixels> {
        factor(cx, name)?;
        match &cx.shape(0)?[..] {
            [lead @ .., channels, rows, columns] => {
                Ok(Pixels { lead: lead.to_vec(), channels: *channels, rows: *rows, columns: *columns })
            }
            _ => Err(fail!(Shape, "pixels need [..., C, H, W], got {}", cx.ty(0)?)),
        }
    }

    fn shape(&self, last: &[usize]) -> Shape {
        self.lead.iter().chain(last).copied().collect()
    }
}

/// The input as `parts`, whose last dimensions are put in `order`, as `shape`.
fn shuffle(
    b: &mut Builder,
    inputs: &[Option<ValueId>],
    parts: &Shape,
    order: &[usize],
    shape: &Shape,
) -> Result<Vec<ValueId>> {
    let lead = parts.rank() - order.len();
    let dims: Vec<usize> = (0..lead).chain(order.iter().map(|d| lead + d)).collect();
    let x = b.reshape(inputs[0].expect("typed"), parts)?;
    let x = b.permute(x, &dims)?;
    Ok(vec![b.reshape(x, shape)?])
}
