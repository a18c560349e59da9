//! Borders added to dimensions, or cut off where a number is negative.

use super::flip::FLIP;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::overflows;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, RegionCopy, Source, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Borders of one number. `pad` names the border before and after each dimension, the last dimension first.
pub static CONSTANT_PAD_ND: OpDef = OpDef {
    name: "constant_pad_nd",
    schemas: &["constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"],
    infer: |cx| infer(cx, Mode::Constant),
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        let back: Vec<i64> = cx.args().ints("pad")?.iter().map(|p| -p).collect();
        let dx = cx.one(&CONSTANT_PAD_ND, &[g], Attrs::new().with("pad", back).with("value", 0.0))?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Copies(|cx, out| {
        let x = cx.shape(0)?;
        let value = cx.opt_float("value")?.unwrap_or(0.0);
        let dtype = cx.dtype(0)?;
        let fill =
            Source::Fill(if overflows(value, dtype) { dtype.max_value().copysign(value) } else { value });
        let mut inside = RegionCopy::whole(Source::Input(0), x);
        for (d, (before, after)) in borders(cx)?.into_iter().enumerate() {
            let cut = |border: i64| border.min(0).unsigned_abs() as usize;
            inside.source_start[d] = cut(before);
            inside.start[d] = before.max(0) as usize;
            inside.extent[d] = x[d].saturating_sub(cut(before)).saturating_sub(cut(after));
        }
        let border = RegionCopy::whole(fill, &out.shape);
        Ok(if inside.extent.contains(&0) { vec![border] } else { vec![border, inside] })
    }),
    cases: || {
        vec![
            Case::new("two dimensions").f(&[2, 3]).attr("pad", [1, 2, 0, 1]).attr("value", 0.5),
            Case::new("cut and add").f(&[5]).attr("pad", [-1, 2]).attr("value", 0),
            Case::new("all cut").f(&[2]).attr("pad", [-3, 2]).attr("value", 1),
        ]
    },
};

/// Borders of a number (`constant`), of the neighbours mirrored (`reflect`), of the edge (`replicate`), or of
/// the other end (`circular`).
pub static PAD: OpDef = OpDef {
    name: "pad",
    schemas: &[
        "pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor",
        "_pad_enum(Tensor self, SymInt[] pad, int mode, float? value=None) -> Tensor",
    ],
    infer: |cx| infer(cx, mode(cx)?),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let mode = mode(cx)?;
        let mut x = required(inputs, 0)?;
        if mode == Mode::Constant {
            let value = cx.opt_float("value")?.unwrap_or(0.0);
            let attrs = Attrs::new().with("pad", cx.ints("pad")?).with("value", value);
            return b.apply(&CONSTANT_PAD_ND, inputs, attrs);
        }
        for (d, (before, after)) in borders(cx)?.into_iter().enumerate() {
            x = pad_dim(b, x, d, before, after, mode)?;
        }
        Ok(vec![x])
    }),
    cases: || {
        let image = |name| Case::new(name).f(&[1, 3, 4]);
        vec![
            image("constant").attr("pad", [1, 1]).attr("mode", "constant").attr("value", 2.0),
            image("mirrored").attr("pad", [2, 1, 1, 0]).attr("mode", "reflect"),
            image("edge").attr("pad", [2, 1, 0, 1]).attr("mode", "replicate"),
            image("circular").attr("pad", [1, 4, 0, 1]).attr("mode", "circular"),
            image("mirrored and cut").attr("pad", [-1, 1]).attr("mode", "reflect"),
        ]
    },
};

/// The modes with operators of their own, which name the borders differently.
macro_rules! fixed {
    ($($def:ident $name:literal $mode:ident $border:literal $attr:literal [$($schema:literal),+];)*) => {$(
        #[doc = concat!("[`PAD`] with `mode` `", $border, "`.")]
        pub static $def: OpDef = OpDef {
            name: $name,
            schemas: &[$($schema),+],
            infer: |cx| infer(cx, Mode::$mode),
            derivative: Derivative::ByDecomposition,
            precision: Precision::Same,
            cost: Cost::PerOutput(0),
            body: Body::Decompose(|b, cx, inputs| {
                b.apply(&PAD, inputs, Attrs::new().with("pad", sizes(cx)?).with("mode", $border))
            }),
            cases: || vec![Case::new("one side more").f(&[1, 4]).attr($attr, [2, 1])],
        };
    )*};
}

fixed! {
    REFLECTION_PAD "reflection_pad" Reflect "reflect" "padding" [
        "reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor",
        "reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor",
        "reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor"
    ];
    REPLICATION_PAD "replication_pad" Replicate "replicate" "padding" [
        "replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor",
        "replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor",
        "replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor"
    ];
    PAD_CIRCULAR "_pad_circular" Circular "circular" "pad" ["_pad_circular(Tensor self, SymInt[] pad) -> Tensor"];
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Constant,
    Reflect,
    Replicate,
    Circular,
}

/// True if a node of [`PAD`] or [`CONSTANT_PAD_ND`] borders with one number.
pub(crate) fn is_constant(cx: &OpCx) -> bool {
    matches!(mode(cx), Ok(Mode::Constant))
}

fn mode(cx: &OpCx) -> Result<Mode> {
    Ok(match cx.attrs.get("mode") {
        None => Mode::Constant,
        // PyTorch's `padding_mode` enumeration.
        Some(Attr::Int(0)) => Mode::Reflect,
        Some(Attr::Int(1)) => Mode::Replicate,
        Some(Attr::Int(2)) => Mode::Circular,
        Some(Attr::Int(3)) => Mode::Constant,
        Some(Attr::Str(s)) if s == "constant" => Mode::Constant,
        Some(Attr::Str(s)) if s == "reflect" => Mode::Reflect,
        Some(Attr::Str(s)) if s == "replicate" => Mode::Replicate,
        Some(Attr::Str(s)) if s == "circular" => Mode::Circular,
        Some(other) => {
            return Err(fail!(
                Attribute,
                "`mode` must be constant, reflect, replicate or circular, got {other}"
            ));
        }
    })
}

fn sizes<'a>(cx: &OpCx<'a>) -> Result<&'a [i64]> {
    match cx.opt_ints("padding")? {
        Some(padding) => Ok(padding),
        None => cx.ints("pad"),
    }
}

/// The border before and after every dimension.
fn borders(cx: &OpCx) -> Result<Vec<(i64, i64)>> {
    let (rank, pad) = (cx.shape(0)?.rank(), sizes(cx)?);
    ensure!(pad.len() % 2 == 0 && pad.len() / 2 <= rank, Attribute, "`pad` = {pad:?} for {rank} dimensions");
    ensure!(
        pad.iter().all(|p| p.unsigned_abs() < 1 << 40),
        Size,
        "`pad` = {pad:?} is larger than memory can be"
    );
    let mut out = vec![(0, 0); rank];
    for (i, p) in pad.chunks_exact(2).enumerate() {
        out[rank - 1 - i] = (p[0], p[1]);
    }
    Ok(out)
}

fn infer(cx: &OpCx, mode: Mode) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    let mut shape = Vec::new();
    for (d, (before, after)) in borders(cx)?.into_iter().enumerate() {
        let n = x.shape[d] as i64;
        let size = n.saturating_add(before).saturating_add(after);
        ensure!(size >= 0, Attribute, "{x} has not {before} and {after} to cut off in dimension {d}");
        // Borders are made of what is left after cutting.
        let left = n + before.min(0) + after.min(0);
        let widest = before.max(after);
        let enough = match mode {
            Mode::Constant => true,
            Mode::Reflect => widest <= 0 || widest < left,
            Mode::Replicate => widest <= 0 || left > 0,
            Mode::Circular => widest <= 0 || widest <= left,
        };
        ensure!(enough, Attribute, "dimension {d} of {x} is too small for borders of {before} and {after}");
        shape.push(size as usize);
    }
    let shape = Shape::from(shape);
    ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
    Ok(vec![TensorType::new(x.dtype, shape)])
}

fn pad_dim(b: &mut Builder, x: ValueId, dim: usize, before: i64, after: i64, mode: Mode) -> Result<ValueId> {
    let n = b.ty(x).shape[dim];
    let cut = |border: i64| border.min(0).unsigned_abs() as usize;
    let x = b.slice(x, dim, cut(before), n - cut(after))?;
    let (left, right) = (before.max(0) as usize, after.max(0) as usize);
    let shape = b.ty(x).shape.clone();
    let n = shape[dim];
    let mut border = |from: usize, to: usize, size: usize| -> Result<Option<ValueId>> {
        if size == 0 {
            return Ok(None);
        }
        let part = b.slice(x, dim, from, to)?;
        Ok(Some(match mode {
            Mode::Reflect => b.one(&FLIP, &[part], Attrs::new().with("dims", [dim as i64]))?,
            Mode::Replicate => {
                let mut shape = shape.to_vec();
                shape[dim] = size;
                b.expand(part, &shape)?
            }
            _ => part,
        }))
    };
    let (first, last) = match mode {
        Mode::Reflect => {
            (border(1, left + 1, left)?, border(n.saturating_sub(right + 1), n.saturating_sub(1), right)?)
        }
        Mode::Replicate => (border(0, 1, left)?, border(n.saturating_sub(1), n, right)?),
        _ => (border(n.saturating_sub(left), n, left)?, border(0, right, right)?),
    };
    let parts: Vec<ValueId> = first.into_iter().chain([x]).chain(last).collect();
    b.cat(&parts, dim)
}
