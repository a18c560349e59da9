//! Poolings over three dimensions as two over two of them: first of height and width, plane by plane, then of
//! depth. Windows are products of windows along each dimension, and so are sums, divisors and maxima.

use super::geometry::numbers;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::{OpCx, OpDef};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// A pooling of `[N, C, D, H, W]` or `[C, D, H, W]`.
pub(super) struct Volume {
    /// Sizes before depth.
    lead: Vec<usize>,
    /// Sizes of depth, height and width.
    input: [usize; 3],
    /// Attributes of the pooling of height and width, and of that of depth.
    planes: Attrs,
    depth: Attrs,
    /// Columns that depth is pooled beside are windows of their own.
    adaptive: bool,
}

/// Results of the pooling of planes, and of that of depth.
pub(super) struct Parts {
    /// Windows of `[…, D, H', W']`.
    pub planes: Vec<ValueId>,
    /// Windows of `[…, D', H' · W']`.
    pub depth: Vec<ValueId>,
}

impl Volume {
    /// The pooling of a node.
    ///
    /// # Errors
    /// `Shape` or `Attribute` if the attributes do not fit the input.
    pub fn of(cx: &OpCx) -> Result<Volume> {
        let x = cx.shape(0)?;
        let rank = x.rank();
        ensure!(matches!(rank, 4 | 5), Shape, "pooling needs [N, C, D, H, W] or [C, D, H, W], got {x}");
        let (mut planes, mut depth) = (cx.attrs.clone(), cx.attrs.clone());
        let sized = |name: &str| cx.opt_ints(name).map(|v| v.is_some_and(|v| !v.is_empty()));
        let adaptive = sized("output_size")?;
        for (name, still, least) in [
            ("kernel_size", 1, 1),
            ("stride", 1, 1),
            ("padding", 0, 0),
            ("dilation", 1, 1),
            ("output_size", 1, 0),
        ] {
            if !sized(name)? {
                continue;
            }
            let [d, h, w] = numbers(cx, name, 3, still, least)?[..] else {
                return Err(fail!(Attribute, "`{name}` must be three sizes"));
            };
            planes.set(name, [h as i64, w as i64]);
            depth.set(name, [d as i64, still]);
        }
        // The divisor is given once.
        if cx.opt_int("divisor_override")?.is_some() {
            planes.set("divisor_override", 1);
        }
        let input = [x[rank - 3], x[rank - 2], x[rank - 1]];
        Ok(Volume { lead: x[..rank - 3].to_vec(), input, planes, depth, adaptive })
    }

    /// Height and width of the result, and what depth is pooled as.
    fn depth(&self, planes: &Shape) -> ([usize; 2], Vec<usize>, Attrs) {
        let [height, width] = [planes[planes.rank() - 2], planes[planes.rank() - 1]];
        let mut attrs = self.depth.clone();
        if let (true, Some(Attr::Ints(size))) = (self.adaptive, self.depth.get("output_size")) {
            attrs.set("output_size", [size[0], (height * width) as i64]);
        }
        let channels = self.lead.iter().product();
        ([height, width], vec![channels, self.input[0], height * width], attrs)
    }

    fn stacked(&self) -> Vec<usize> {
        let [depth, height, width] = self.input;
        vec![self.lead.iter().product(), depth, height, width]
    }

    /// Types of the results, those of the pooling of two dimensions.
    ///
    /// # Errors
    /// Refusals of that operator.
    pub fn infer(&self, dtype: DType, of: &OpDef) -> Result<Vec<TensorType>> {
        let x = TensorType::new(dtype, self.stacked());
        let planes = (of.infer)(&OpCx { inputs: vec![Some(&x)], attrs: &self.planes })?;
        let ([height, width], shape, attrs) = self.depth(&planes[0].shape);
        let x = TensorType::new(dtype, shape);
        let outs = (of.infer)(&OpCx { inputs: vec![Some(&x)], attrs: &attrs })?;
        let whole = |t: TensorType| {
            let depth = t.shape[1];
            TensorType::new(
                t.dtype,
                self.lead.iter().copied().chain([depth, height, width]).collect::<Vec<_>>(),
            )
        };
        Ok(outs.into_iter().map(whole).collect())
    }

    /// Builds both poolings of `x`, which is computed on in f32 or wider, so that sums are rounded once.
    ///
    /// # Errors
    /// Refusals of the operators.
    pub fn pool(&self, b: &mut Builder, x: ValueId, of: &'static OpDef) -> Result<Parts> {
        let wide = if b.ty(x).dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let x = b.cast(x, wide)?;
        let x = b.reshape(x, &self.stacked())?;
        let planes = b.apply(of, &[Some(x)], self.planes.clone())?;
        let (_, shape, attrs) = self.depth(&b.ty(planes[0]).shape.clone());
        let x = b.reshape(planes[0], &shape)?;
        let depth = b.apply(of, &[Some(x)], attrs)?;
        Ok(Parts { planes, depth })
    }
}
