//! PyTorch's spellings of interpolation: each is [`UPSAMPLE2D`] with its mode, over one dimension with one
//! row.

use super::upsample2d::UPSAMPLE2D;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

macro_rules! upsample {
    ($(#[$doc:meta])* $static:ident, $name:literal, $mode:literal, $antialias:literal, [$($schema:literal),* $(,)?]) => {
        $(#[$doc])*
        pub static $static: OpDef = OpDef {
            name: $name,
            schemas: &[$($schema),*],
            infer: |cx| {
                let (image, attrs) = call(cx, $mode, $antialias)?;
                let x = TensorType::new(cx.dtype(0)?, image);
                let outs = (UPSAMPLE2D.infer)(&OpCx { inputs: vec![Some(&x)], attrs: &attrs })?;
                Ok(vec![TensorType::new(cx.dtype(0)?, own(cx, &outs[0].shape)?)])
            },
            derivative: Derivative::ByDecomposition,
            precision: Precision::Full,
            cost: Cost::Free,
            body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, $mode, $antialias)),
            cases: || cases(),
        };
    };
}

upsample!(
    /// The nearest input; in PyTorch's older sense, by the output's start.
    NEAREST, "upsample_nearest2d", "nearest", false, [
        "upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        "upsample_nearest1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
        "upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// The nearest input, by the output's centre.
    NEAREST_EXACT, "_upsample_nearest_exact2d", "nearest-exact", false, [
        "_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        "_upsample_nearest_exact1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
        "_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_nearest_exact2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Linear between neighbours.
    BILINEAR, "upsample_bilinear2d", "bilinear", false, [
        "upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor",
        "upsample_linear1d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
        "upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Linear, smoothed where it shrinks.
    BILINEAR_AA, "_upsample_bilinear2d_aa", "bilinear", true, [
        "_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_bilinear2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Cubic through four neighbours.
    BICUBIC, "upsample_bicubic2d", "bicubic", false, [
        "upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_bicubic2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Cubic, smoothed where it shrinks.
    BICUBIC_AA, "_upsample_bicubic2d_aa", "bicubic", true, [
        "_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_bicubic2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

fn cases() -> Vec<Case> {
    vec![
        Case::new("size").f(&[1, 2, 3, 4]).attr("output_size", [5, 3]).attr("align_corners", false),
        Case::new("factor")
            .f(&[1, 1, 3, 4])
            .attr("scale_factors", vec![1.5, 2.0])
            .attr("align_corners", false),
        Case::new("one dimension").f(&[2, 1, 5]).attr("output_size", [7]).attr("align_corners", false),
    ]
}

/// The image's shape (`[N, C, L]` becomes `[N, C, 1, L]`) and the attributes of the resampling.
fn call(cx: &OpCx, mode: &'static str, antialias: bool) -> Result<(Shape, Attrs)> {
    let x = cx.shape(0)?;
    ensure!(matches!(x.rank(), 3 | 4), Shape, "interpolation needs [N, C, H, W] or [N, C, L], got {x}");
    let n = x.rank() - 2;
    let scales: Vec<Option<f64>> = match cx.attrs.get("scale_factors") {
        Some(Attr::Floats(f)) if f.len() == n => f.iter().copied().map(Some).collect(),
        Some(other) => return Err(fail!(Attribute, "`scale_factors` must be {n} numbers, they are {other}")),
        None if n == 1 => vec![cx.opt_float("scales")?],
        None => vec![cx.opt_float("scales_h")?, cx.opt_float("scales_w")?],
    };
    let mut size: Vec<i64> = match cx.opt_ints("output_size")? {
        Some(s) => s.to_vec(),
        None => {
            let one = |(&from, s): (&usize, &Option<f64>)| s.map(|s| (from as f64 * s).floor() as i64);
            x[2..].iter().zip(&scales).map(one).collect::<Option<_>>().unwrap_or_default()
        }
    };
    ensure!(size.len() == n, Attribute, "neither `output_size` nor `scale_factors` gives {n} sizes");
    let mut image = x.to_vec();
    let mut names = vec!["scales_h", "scales_w"];
    if n == 1 {
        size.insert(0, 1);
        image.insert(2, 1);
        names.remove(0);
    }
    let mut attrs = Attrs::new().with("mode", mode).with("output_size", size).with("antialias", antialias);
    attrs.set("align_corners", cx.flag("align_corners")?);
    for (name, scale) in names.into_iter().zip(scales) {
        if let Some(s) = scale {
            attrs.set(name, s);
        }
    }
    Ok((image.into(), attrs))
}

/// The result's shape as the model sees it.
fn own(cx: &OpCx, image: &Shape) -> Result<Shape> {
    let mut shape = image.to_vec();
    if cx.shape(0)?.rank() == 3 {
        shape.remove(2);
    }
    Ok(shape.into())
}

fn decompose(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    mode: &'static str,
    antialias: bool,
) -> Result<Vec<ValueId>> {
    let (image, attrs) = call(cx, mode, antialias)?;
    let x = b.reshape(inputs[0].expect("typed"), &image)?;
    let y = b.one(&UPSAMPLE2D, &[x], attrs)?;
    let shape = own(cx, &b.ty(y).shape)?;
    Ok(vec![b.reshape(y, &shape)?])
}
