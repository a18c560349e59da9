//! The one description of flat storage: which parameter lies where. Parameters, gradients and moments of a
//! bucket have the same offsets in elements, so that an optimizer step, a norm or a collective is one pass
//! over contiguous spans. Knows no memory and no device.

use crate::{DType, Shape, TensorType};
use std::collections::HashMap;

/// Every parameter starts at a multiple of this many elements, and a bucket's length is one: the width of one
/// block of a reduction over it, so that sums over blocks are sums over parameters too.
pub const BLOCK: usize = 1024;

/// All trainable parameters, in buckets.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct BucketLayout {
    /// The buckets, in the order of their first parameter.
    pub buckets: Vec<Bucket>,
    index: HashMap<String, (usize, usize)>,
}

/// Parameters of one dtype and group of settings. Elements between parameters are zero and stay so.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// Dtype of the parameters.
    pub dtype: DType,
    /// Number of the group of settings.
    pub group: usize,
    /// The f32 masters that the optimizer steps, and from which the parameters are rounded.
    pub master: Master,
    /// Whether the parameters, without masters, are rounded stochastically after each step.
    pub stochastic: bool,
    /// Length in elements, a multiple of [`BLOCK`].
    pub elements: usize,
    /// The parameters, in the order in which the backward pass produces their gradients.
    pub entries: Vec<Entry>,
}

/// How f32 masters of low-precision parameters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Master {
    /// There are none: the parameters themselves are stepped.
    None,
    /// Beside the parameters.
    Whole,
    /// Of bf16 parameters, as what these lack: the lower half of the bits
    /// (`crate::ops::update::master`).
    Rest,
}

/// A parameter in its bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// PyTorch name.
    pub name: String,
    /// Shape.
    pub shape: Shape,
    /// First element, a multiple of [`BLOCK`].
    pub offset: usize,
}

impl BucketLayout {
    /// Marks the buckets of f16 and bf16 parameters as having f32 masters.
    pub fn with_masters(mut self) -> Self {
        for b in &mut self.buckets {
            b.master = match b.dtype {
                DType::BF16 => Master::Rest,
                DType::F16 => Master::Whole,
                _ => Master::None,
            };
        }
        self
    }

    /// Marks the buckets of f16 and bf16 parameters without masters as rounded stochastically.
    pub fn with_stochastic_rounding(mut self) -> Self {
        for b in &mut self.buckets {
            b.stochastic = b.wide() != b.dtype && b.master == Master::None;
        }
        self
    }

    /// Lays out parameters given as name, type and number of their group of settings, in the order in which
    /// their gradients appear.
    pub fn new<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a TensorType, usize)>) -> Self {
        let mut layout = BucketLayout::default();
        for (name, ty, group) in parameters {
            let same = |b: &Bucket| b.dtype == ty.dtype && b.group == group;
            let at = layout.buckets.iter().position(same).unwrap_or_else(|| {
                layout.buckets.push(Bucket {
                    dtype: ty.dtype,
                    group,
                    master: Master::None,
                    stochastic: false,
                    elements: 0,
                    entries: Vec::new(),
                });
                layout.buckets.len() - 1
            });
            let bucket = &mut layout.buckets[at];
            layout.index.insert(name.to_string(), (at, bucket.entries.len()));
            let (shape, offset) = (ty.shape.clone(), bucket.elements);
            bucket.elements = (offset + shape.numel()).next_multiple_of(BLOCK);
            bucket.entries.push(Entry { name: name.to_string(), shape, offset });
        }
        layout
    }

    /// The bucket's number and the entry of a parameter.
    pub fn find(&self, name: &str) -> Option<(usize, &Entry)> {
        self.index.get(name).map(|&(bucket, entry)| (bucket, &self.buckets[bucket].entries[entry]))
    }

    /// Every parameter with its bucket's number.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.buckets.iter().enumerate().flat_map(|(i, b)| b.entries.iter().map(move |e| (i, e)))
    }
}

impl Bucket {
    /// Name for segments and reports, e.g. `f32.group0`.
    pub fn name(&self) -> String {
        format!("{}.group{}", self.dtype, self.group)
    }

    /// Type of one value for each element, as programs over the whole bucket see it: `[blocks, BLOCK]`.
    pub fn span(&self, dtype: DType) -> TensorType {
        TensorType::new(dtype, [self.elements / BLOCK, BLOCK])
    }

    /// What moments are kept in and the step is computed in: f32, or f64 for f64 parameters.
    pub fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_are_aligned_disjoint_and_complete(
            params in prop::collection::vec((0..3usize, 0..3usize, prop::collection::vec(0..40usize, 0..3)), 0..40)
        ) {
            let dtypes = [DType::F32, DType::BF16, DType::F64];
            let named: Vec<(String, TensorType, usize)> = params
                .into_iter()
                .enumerate()
                .map(|(i, (d, group, shape))| (format!("p{i}"), TensorType::new(dtypes[d], shape), group))
                .collect();
            let layout = BucketLayout::new(named.iter().map(|(n, t, d)| (n.as_str(), t, *d)));
            prop_assert_eq!(layout.entries().count(), named.len());
            for (name, ty, group) in &named {
                let (b, e) = layout.find(name).unwrap();
                prop_assert_eq!(&e.shape, &ty.shape);
                prop_assert_eq!((layout.buckets[b].dtype, layout.buckets[b].group), (ty.dtype, *group));
            }
            for b in &layout.buckets {
                prop_assert!(b.elements.is_multiple_of(BLOCK));
                let mut end = 0;
                for e in &b.entries {
                    prop_assert!(e.offset >= end && e.offset.is_multiple_of(BLOCK));
                    end = e.offset + e.shape.numel();
                }
                prop_assert!(end <= b.elements);
            }
        }
    }
}
