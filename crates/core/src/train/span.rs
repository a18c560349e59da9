//! A bucket in the graph of a step, as an optimizer sees it.

use super::layout::{BLOCK, Bucket};
use crate::ops::update::gradient_statistics::GRADIENT_STATISTICS;
use crate::ops::update::segment::{SEGMENT_SPREAD, SEGMENT_SUM};
use crate::{Attrs, Builder, DType, OpDef, Result, ValueId};

/// A bucket's values and the numbers of the step. Spans are `[blocks, BLOCK]`.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// Location of each parameter.
    pub bucket: &'a Bucket,
    /// The parameters.
    pub param: ValueId,
    /// Their gradients, as the backward pass wrote them.
    pub gradient: ValueId,
    /// Sums of the gradients' squares, `[blocks]`.
    pub squares: ValueId,
    /// The moments that [`super::UpdateRule::moments`] names.
    pub moments: Vec<Option<ValueId>>,
    /// The factor of gradients, an f64 scalar.
    pub scale: ValueId,
    /// True if the step takes place.
    pub apply: ValueId,
    /// The numbers that [`super::UpdateRule::scalars`] names.
    pub scalars: Vec<ValueId>,
    /// True if settings that change from step to step are among the scalars ([`super::UpdateRule::by_step`]).
    pub by_step: bool,
    /// Largest magnitude of a gradient's element.
    pub clip_value: Option<f64>,
}

impl Span<'_> {
    /// The operator of an optimizer that is one: `(param, grad, moments…, scale, apply, scalars…)`.
    pub fn apply(&self, b: &mut Builder, op: &'static OpDef, attrs: Attrs) -> Result<Vec<ValueId>> {
        let scale = self.wide_scale(b)?;
        self.apply_scaled(b, op, scale, attrs)
    }

    /// [`Span::apply`] with another scale, which may be one number for each block.
    pub fn apply_scaled(
        &self,
        b: &mut Builder,
        op: &'static OpDef,
        scale: ValueId,
        attrs: Attrs,
    ) -> Result<Vec<ValueId>> {
        let mut inputs = vec![Some(self.param), Some(self.gradient)];
        inputs.extend(&self.moments);
        inputs.extend([scale, self.apply].iter().chain(&self.scalars).copied().map(Some));
        b.apply(op, &inputs, self.clipped(attrs))
    }

    /// The scale in the dtype that the step is computed in.
    pub fn wide_scale(&self, b: &mut Builder) -> Result<ValueId> {
        b.cast(self.scale, self.bucket.wide())
    }

    /// Attributes with settings that are constants of the plan, unless they change from step to step.
    pub fn constants<const N: usize>(&self, attrs: Attrs, settings: [(&'static str, f64); N]) -> Attrs {
        let constant = |attrs: Attrs, (name, value)| attrs.with(name, value);
        if self.by_step { attrs } else { settings.into_iter().fold(attrs, constant) }
    }

    /// Attributes with the limit of a gradient's elements.
    pub fn clipped(&self, mut attrs: Attrs) -> Attrs {
        if let Some(limit) = self.clip_value {
            attrs.set("clip_value", limit);
        }
        attrs
    }

    /// Sums of the gradients' squares for each parameter, in the order of memory (f64 `[parameters]`).
    pub fn gradient_squares(&self, b: &mut Builder) -> Result<ValueId> {
        self.sum(b, self.squares)
    }

    /// Sums of a span's squares for each parameter (f64 `[parameters]`).
    pub fn squares_of(&self, b: &mut Builder, span: ValueId) -> Result<ValueId> {
        let stats = b.apply(&GRADIENT_STATISTICS, &[Some(span)], Attrs::new())?;
        self.sum(b, stats[0])
    }

    /// Sums over each parameter's blocks: `[blocks]` to f64 `[parameters]`.
    pub fn sum(&self, b: &mut Builder, blocks: ValueId) -> Result<ValueId> {
        b.one(&SEGMENT_SUM, &[blocks], Attrs::new().with("ends", self.ends()))
    }

    /// A number for each parameter, `[parameters]`, to one for each of its blocks, `[blocks, 1]`, in the
    /// dtype of the step.
    pub fn spread(&self, b: &mut Builder, x: ValueId) -> Result<ValueId> {
        let x = b.cast(x, self.bucket.wide())?;
        b.one(&SEGMENT_SPREAD, &[x], Attrs::new().with("ends", self.ends()))
    }

    /// An f64 copy of a scalar.
    pub fn double(&self, b: &mut Builder, x: ValueId) -> Result<ValueId> {
        b.cast(x, DType::F64)
    }

    /// The block after each parameter's last.
    fn ends(&self) -> Vec<i64> {
        let starts = self.bucket.entries.iter().skip(1).map(|e| e.offset);
        starts.chain([self.bucket.elements]).map(|end| (end / BLOCK) as i64).collect()
    }
}
