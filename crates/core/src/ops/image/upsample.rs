//! PyTorch's spellings of interpolation: each is [`UPSAMPLE2D`] with its mode, over one dimension with one
//! row. A volume is resampled layer by layer, then along its depth.

use super::upsample2d::UPSAMPLE2D;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

macro_rules! upsample {
    ($(#[$doc:meta])* $static:ident, $name:literal, $mode:literal, $antialias:literal, $cases:ident, [$($schema:literal),* $(,)?]) => {
        $(#[$doc])*
        pub static $static: OpDef = OpDef {
            name: $name,
            schemas: &[$($schema),*],
            infer: |cx| {
                let call = Call::of(cx, $mode, $antialias)?;
                for (image, attrs) in &call.stages {
                    let x = TensorType::new(cx.dtype(0)?, image.clone());
                    (UPSAMPLE2D.infer)(&OpCx { inputs: vec![Some(&x)], attrs })?;
                }
                Ok(vec![TensorType::new(cx.dtype(0)?, call.result)])
            },
            derivative: Derivative::ByDecomposition,
            precision: Precision::Full,
            cost: Cost::Free,
            body: Body::Decompose(|b, cx, inputs| {
                Call::of(cx, $mode, $antialias)?.resampled(b, inputs[0].expect("typed"))
            }),
            cases: || $cases(),
        };
    };
}

upsample!(
    /// The nearest input; in PyTorch's older sense, by the output's start.
    NEAREST, "upsample_nearest2d", "nearest", false, volumes, [
        "upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        "upsample_nearest1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
        "upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
        "upsample_nearest3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_nearest3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// The nearest input, by the output's centre.
    NEAREST_EXACT, "_upsample_nearest_exact2d", "nearest-exact", false, volumes, [
        "_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        "_upsample_nearest_exact1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
        "_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_nearest_exact2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
        "_upsample_nearest_exact3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_nearest_exact3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Linear between neighbours.
    BILINEAR, "upsample_bilinear2d", "bilinear", false, volumes, [
        "upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor",
        "upsample_linear1d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
        "upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
        "upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_trilinear3d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Linear, smoothed where it shrinks.
    BILINEAR_AA, "_upsample_bilinear2d_aa", "bilinear", true, cases, [
        "_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_bilinear2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Cubic through four neighbours.
    BICUBIC, "upsample_bicubic2d", "bicubic", false, cases, [
        "upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "upsample_bicubic2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

upsample!(
    /// Cubic, smoothed where it shrinks.
    BICUBIC_AA, "_upsample_bicubic2d_aa", "bicubic", true, cases, [
        "_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "_upsample_bicubic2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor",
    ]
);

fn cases() -> Vec<Case> {
    let case = |name, shape: &[usize]| Case::new(name).f(shape).attr("align_corners", false);
    vec![
        case("size", &[1, 2, 3, 4]).attr("output_size", [5, 3]),
        case("factor", &[1, 1, 3, 4]).attr("scale_factors", vec![1.5, 2.0]),
        case("one dimension", &[2, 1, 5]).attr("output_size", [7]),
    ]
}

fn volumes() -> Vec<Case> {
    let case = |name, shape: &[usize]| Case::new(name).f(shape).attr("align_corners", false);
    let volumes = vec![
        case("volume", &[1, 2, 2, 3, 2]).attr("output_size", [3, 2, 4]),
        case("volume by factor", &[1, 1, 3, 2, 2]).attr("scale_factors", vec![1.4, 2.0, 1.5]),
    ];
    [cases(), volumes].concat()
}

/// An interpolation as images that are resampled sequentially.
struct Call {
    /// Each image's shape and the attributes of its resampling: `[N, C, L]` as `[N, C, 1, L]`, a volume as
    /// its layers, then as rows along the depth that hold whole layers.
    stages: Vec<(Shape, Attrs)>,
    /// Shape of the result as the model sees it.
    result: Shape,
}

impl Call {
    fn of(cx: &OpCx, mode: &'static str, antialias: bool) -> Result<Call> {
        let x = cx.shape(0)?;
        ensure!(
            matches!(x.rank(), 3..=5),
            Shape,
            "interpolation needs [N, C, D, H, W], [N, C, H, W] or [N, C, L], got {x}"
        );
        let n = x.rank() - 2;
        let names = &["scales_d", "scales_h", "scales_w"][3 - n..];
        let scales: Vec<Option<f64>> = match cx.attrs.get("scale_factors") {
            Some(Attr::Floats(f)) if f.len() == n => f.iter().copied().map(Some).collect(),
            Some(other) => {
                return Err(fail!(Attribute, "`scale_factors` must be {n} numbers, they are {other}"));
            }
            None if n == 1 => vec![cx.opt_float("scales")?],
            None => names.iter().map(|name| cx.opt_float(name)).collect::<Result<_>>()?,
        };
        let size: Vec<i64> = match cx.opt_ints("output_size")? {
            Some(s) => s.to_vec(),
            None => {
                let one = |(&from, s): (&usize, &Option<f64>)| s.map(|s| (from as f64 * s).floor() as i64);
                x[2..].iter().zip(&scales).map(one).collect::<Option<_>>().unwrap_or_default()
            }
        };
        ensure!(size.len() == n, Attribute, "neither `output_size` nor `scale_factors` gives {n} sizes");
        let to =
            OpCx { inputs: vec![], attrs: &Attrs::new().with("output_size", size) }.sizes("output_size")?;
        let align = cx.flag("align_corners")?;
        let stage = |image: Vec<usize>, size: [usize; 2], scales: [Option<f64>; 2]| {
            let mut attrs = Attrs::new().with("mode", mode).with("antialias", antialias);
            attrs.set("output_size", Shape::new(&size).to_ints());
            attrs.set("align_corners", align);
            for (name, scale) in ["scales_h", "scales_w"].into_iter().zip(scales) {
                if let Some(s) = scale {
                    attrs.set(name, s);
                }
            }
            (Shape::from(image), attrs)
        };
        let stages = match (&x[..], &to[..], &scales[..]) {
            (&[b, c, l], &[m], &[s]) => vec![stage(vec![b, c, 1, l], [1, m], [None, s])],
            (&[b, c, h, w], &[p, q], &[sh, sw]) => vec![stage(vec![b, c, h, w], [p, q], [sh, sw])],
            (&[b, c, d, h, w], &[r, p, q], &[sd, sh, sw]) => {
                let layer =
                    p.checked_mul(q).ok_or_else(|| fail!(Size, "{to} is larger than memory can be"))?;
                vec![
                    stage(vec![b, c, d, h, w], [p, q], [sh, sw]),
                    stage(vec![b, c, d, layer], [r, layer], [sd, None]),
                ]
            }
            _ => return Err(fail!(Attribute, "`output_size` {to} for {x}")),
        };
        let result: Shape = x[..2].iter().chain(to.iter()).copied().collect();
        ensure!(result.checked_numel().is_some(), Size, "{result} is larger than memory can be");
        Ok(Call { stages, result })
    }

    fn resampled(self, b: &mut Builder, mut x: ValueId) -> Result<Vec<ValueId>> {
        for (image, attrs) in self.stages {
            x = b.reshape(x, &image)?;
            x = b.one(&UPSAMPLE2D, &[x], attrs)?;
        }
        Ok(vec![b.reshape(x, &self.result)?])
    }
}
