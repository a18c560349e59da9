//! The one description of flat storage: the place of each parameter. Parameters, gradients and moments of a
//! bucket have the same offsets in elements. So an optimizer step, a norm or a collective is one pass over
//! contiguous spans. Knows no memory and no device.

use crate::{DType, Shape, TensorType};
use std::collections::HashMap;

/// Elements of a block, the width of one reduction over a bucket. Every parameter starts at a block, and a
/// bucket's length is whole blocks, so that sums over blocks are sums over parameters too.
pub const BLOCK: usize = 1024;

/// All trainable parameters, in buckets. Sizes of buckets change no number: sums and random numbers are taken
/// in the order of kinds and elements ([`Bucket::kind`], [`Bucket::start`]), however these are cut.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct BucketLayout {
    /// The buckets, in the order in which the backward pass completes their gradients.
    pub buckets: Vec<Bucket>,
    index: HashMap<String, (usize, usize)>,
}

/// Bytes of gradients, in the parameters' dtype, at which a bucket is closed. A parameter is never divided:
/// the one that reaches the limit is the bucket's last, as in PyTorch's `DistributedDataParallel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSize {
    /// Limit of the bucket that is closed first, small so that its collective begins early.
    pub first: usize,
    /// Limit of all others.
    pub rest: usize,
}

impl BucketSize {
    /// One bucket for each kind.
    pub const UNLIMITED: BucketSize = BucketSize { first: usize::MAX, rest: usize::MAX };

    /// `bytes`, and at most 1 MiB in the first bucket.
    pub const fn of(bytes: usize) -> BucketSize {
        BucketSize { first: if bytes < 1 << 20 { bytes } else { 1 << 20 }, rest: bytes }
    }

    /// The sizes of a run of `ranks` that states none. Several ranks: 25 MiB, as PyTorch's
    /// `DistributedDataParallel` has it, so that a bucket is sent while the next are computed. One rank
    /// sends nothing, and updates in fewer and longer launches: 1 GiB.
    pub const fn of_ranks(ranks: usize) -> BucketSize {
        match ranks {
            0 | 1 => BucketSize { first: 1 << 30, rest: 1 << 30 },
            _ => BucketSize::of(25 << 20),
        }
    }
}

/// Parameters of one kind: of one dtype and group of settings. Elements between parameters are zero and stay
/// so.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// Dtype of the parameters.
    pub dtype: DType,
    /// Number of the group of settings.
    pub group: usize,
    /// Number of its kind, in the order of the kinds' first parameters.
    pub kind: usize,
    /// Its number among the buckets of its kind.
    pub part: usize,
    /// Its first element among all elements of its kind, a multiple of [`BLOCK`].
    pub start: usize,
    /// Most rows of the gradient, if the bucket is one table with a sparse gradient. Such a bucket is that
    /// table, `[rows, width]`, and nothing else.
    pub rows: Option<usize>,
    /// The f32 masters that the optimizer steps, and from which the parameters are rounded.
    pub master: Master,
    /// True if the parameters, without masters, are rounded stochastically after each step.
    pub stochastic: bool,
    /// Form in which moments with a number for each element are kept.
    pub moments: MomentForm,
    /// Length in elements, a multiple of [`BLOCK`] but for a table with a sparse gradient.
    pub elements: usize,
    /// The parameters, in the order in which the backward pass produces their gradients.
    pub entries: Vec<Entry>,
}

/// The form in which f32 masters of low-precision parameters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Master {
    /// There are none: the parameters themselves are stepped.
    None,
    /// Beside the parameters.
    Whole,
    /// The lower half of the bits, which bf16 parameters lack (`crate::ops::update::master`).
    Rest,
}

/// Form in which an optimizer's moments are kept between steps; they are computed in f32 in any case. Moments
/// of f64 parameters, and those that are one number for a parameter, stay as they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MomentForm {
    /// As they are computed: f32.
    #[default]
    Wide,
    /// bf16, rounded stochastically.
    Bf16,
    /// Codes of 8 bits on logarithmic levels, with a scale for each [`BLOCK`], or for each row of a table
    /// with a sparse gradient (`crate::ops::update::moment_codes`).
    Int8,
}

/// A parameter in its bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// PyTorch name.
    pub name: String,
    /// Shape.
    pub shape: Shape,
    /// First element: a multiple of [`BLOCK`], or the end of the parameter before, if it directly follows it.
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

    /// Keeps the moments of f32 in a form.
    pub fn with_moments(mut self, form: MomentForm) -> Self {
        for b in self.buckets.iter_mut().filter(|b| b.wide() == DType::F32) {
            b.moments = form;
        }
        self
    }

    /// Lays out parameters given as name, type and number of their group of settings, in the order in which
    /// their gradients appear.
    pub fn new<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a TensorType, usize)>,
        size: BucketSize,
    ) -> Self {
        BucketLayout::with_adjacent(parameters, &[], size)
    }

    /// The same, each parameter of a list of `adjacent` ones directly after the one before it, without regard
    /// to blocks. Lists of parameters that are not all there, or not of one kind, do not count.
    pub fn with_adjacent<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a TensorType, usize)>,
        adjacent: &[Vec<String>],
        size: BucketSize,
    ) -> Self {
        /// A kind, with the bucket that takes its next parameters.
        struct Kind {
            dtype: DType,
            group: usize,
            open: Option<usize>,
            parts: usize,
            elements: usize,
        }
        let mut kinds: Vec<Kind> = Vec::new();
        // Buckets, each with the number of its last parameter.
        let mut buckets: Vec<(usize, Bucket)> = Vec::new();
        let mut limit = size.first;
        for (number, of, group) in units(parameters.into_iter().collect(), adjacent) {
            let dtype = of[0].1.dtype;
            let same = |k: &Kind| k.dtype == dtype && k.group == group;
            let kind = kinds.iter().position(same).unwrap_or_else(|| {
                kinds.push(Kind { dtype, group, open: None, parts: 0, elements: 0 });
                kinds.len() - 1
            });
            let own = &mut kinds[kind];
            let at = *own.open.get_or_insert_with(|| {
                let (part, start) = (own.parts, own.elements);
                own.parts += 1;
                let (master, stochastic, moments) = (Master::None, false, MomentForm::Wide);
                let (elements, entries, rows) = (0, Vec::new(), None);
                let bucket = Bucket {
                    dtype,
                    group,
                    kind,
                    part,
                    start,
                    rows,
                    master,
                    stochastic,
                    moments,
                    elements,
                    entries,
                };
                buckets.push((number, bucket));
                buckets.len() - 1
            });
            let (last, bucket) = &mut buckets[at];
            *last = number;
            let first = bucket.elements;
            for (name, ty) in of {
                let (name, shape, offset) = (name.to_string(), ty.shape.clone(), bucket.elements);
                bucket.elements += shape.numel();
                bucket.entries.push(Entry { name, shape, offset });
            }
            bucket.elements = bucket.elements.next_multiple_of(BLOCK);
            own.elements += bucket.elements - first;
            if bucket.elements.saturating_mul(dtype.size()) >= limit {
                own.open = None;
                limit = size.rest;
            }
        }
        buckets.sort_by_key(|(last, _)| *last);
        let buckets: Vec<Bucket> = buckets.into_iter().map(|(_, bucket)| bucket).collect();
        let places = buckets.iter().enumerate().flat_map(|(i, b)| {
            b.entries.iter().enumerate().map(move |(entry, e)| (e.name.clone(), (i, entry)))
        });
        let index = places.collect();
        BucketLayout { buckets, index }
    }

    /// Adds tables with sparse gradients, each a bucket and a kind of its own. They are given as name, type,
    /// number of the group of settings and most rows of the gradient.
    pub fn with_sparse<'a>(
        mut self,
        tables: impl IntoIterator<Item = (&'a str, &'a TensorType, usize, usize)>,
    ) -> Self {
        for (name, ty, group, rows) in tables {
            let kind = self.buckets.iter().map(|b| b.kind + 1).max().unwrap_or(0);
            self.index.insert(name.to_string(), (self.buckets.len(), 0));
            self.buckets.push(Bucket {
                dtype: ty.dtype,
                group,
                kind,
                part: 0,
                start: 0,
                rows: Some(rows),
                master: Master::None,
                stochastic: false,
                moments: MomentForm::Wide,
                elements: ty.shape.numel(),
                entries: vec![Entry { name: name.to_string(), shape: ty.shape.clone(), offset: 0 }],
            });
        }
        self
    }

    /// Numbers of the buckets in the order of kinds and elements: that of one bucket for each kind.
    pub fn by_kind(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.buckets.len()).collect();
        order.sort_by_key(|&i| (self.buckets[i].kind, self.buckets[i].part));
        order
    }

    /// The bucket's number and the entry of a parameter.
    pub fn find(&self, name: &str) -> Option<(usize, &Entry)> {
        self.index.get(name).map(|&(bucket, entry)| (bucket, &self.buckets[bucket].entries[entry]))
    }

    /// True if a parameter directly follows another.
    pub fn adjacent(&self, before: &str, after: &str) -> bool {
        match (self.find(before), self.find(after)) {
            (Some((i, a)), Some((j, b))) => i == j && a.offset + a.shape.numel() == b.offset,
            _ => false,
        }
    }

    /// Every parameter with its bucket's number.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.buckets.iter().enumerate().flat_map(|(i, b)| b.entries.iter().map(move |e| (i, e)))
    }
}

/// Parameters that are placed adjacently: the number of the last of them, names and types, and their group.
type Unit<'a> = (usize, Vec<(&'a str, &'a TensorType)>, usize);

/// Parameters by themselves, and those that are adjacent where the last of them is.
fn units<'a>(parameters: Vec<(&'a str, &'a TensorType, usize)>, adjacent: &[Vec<String>]) -> Vec<Unit<'a>> {
    let of: HashMap<&str, usize> = parameters.iter().enumerate().map(|(i, p)| (p.0, i)).collect();
    // For each parameter the list that it is of.
    let mut list: Vec<Option<usize>> = vec![None; parameters.len()];
    let mut lists: Vec<Vec<usize>> = Vec::new();
    for names in adjacent {
        let found: Vec<usize> = names.iter().filter_map(|name| of.get(&name[..]).copied()).collect();
        let kind = |&i: &usize| (parameters[i].1.dtype, parameters[i].2);
        let alike = found.windows(2).all(|two| kind(&two[0]) == kind(&two[1]));
        if found.len() == names.len() && alike && found.iter().all(|&i| list[i].is_none()) {
            found.iter().for_each(|&i| list[i] = Some(lists.len()));
            lists.push(found);
        }
    }
    let mut out = Vec::with_capacity(parameters.len());
    for (i, &(name, ty, group)) in parameters.iter().enumerate() {
        match list[i].map(|l| &lists[l]) {
            None => out.push((i, vec![(name, ty)], group)),
            Some(all) if all.iter().max() == Some(&i) => {
                out.push((i, all.iter().map(|&i| (parameters[i].0, parameters[i].1)).collect(), group));
            }
            Some(_) => {}
        }
    }
    out
}

impl Bucket {
    /// Name for segments and reports, e.g. `f32.group0.1` for the second bucket of its kind,
    /// `f32.group0.emb.weight` for a table with a sparse gradient.
    pub fn name(&self) -> String {
        match (self.rows, &self.entries[..]) {
            (Some(_), [table]) => format!("{}.group{}.{}", self.dtype, self.group, table.name),
            _ => format!("{}.group{}.{}", self.dtype, self.group, self.part),
        }
    }

    /// Type of one value for each element, as programs over the whole bucket see it: `[blocks, BLOCK]`, or
    /// the table's.
    pub fn span(&self, dtype: DType) -> TensorType {
        match (self.rows, &self.entries[..]) {
            (Some(_), [table]) => TensorType::new(dtype, table.shape.clone()),
            _ => TensorType::new(dtype, [self.elements / BLOCK, BLOCK]),
        }
    }

    /// Type of the gradients: [`Bucket::span`], or the rows that there can be.
    pub fn gradients(&self, dtype: DType) -> TensorType {
        let mut ty = self.span(dtype);
        if let Some(rows) = self.rows {
            ty.shape = [rows, ty.shape[1]].into();
        }
        ty
    }

    /// The dtype that moments are kept in and the step is computed in: f32, or f64 for f64 parameters.
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
            params in prop::collection::vec((0..3usize, 0..3usize, prop::collection::vec(0..40usize, 0..3)), 0..40),
            joined in any::<[bool; 40]>(),
            (first, rest) in (prop_oneof![1..20_000usize, Just(usize::MAX)], prop_oneof![1..40_000usize, Just(usize::MAX)]),
        ) {
            let dtypes = [DType::F32, DType::BF16, DType::F64];
            let named: Vec<(String, TensorType, usize)> = params
                .into_iter()
                .enumerate()
                .map(|(i, (d, group, shape))| (format!("p{i}"), TensorType::new(dtypes[d], shape), group))
                .collect();
            let size = BucketSize { first, rest };
            // Lists of two or three neighbours.
            let mut adjacent: Vec<Vec<String>> = Vec::new();
            for (i, (name, ..)) in named.iter().enumerate().skip(1).filter(|(i, _)| joined[*i]) {
                match adjacent.last_mut().filter(|l| l.len() < 3 && l[l.len() - 1] == named[i - 1].0) {
                    Some(list) => list.push(name.clone()),
                    None => adjacent.push(vec![named[i - 1].0.clone(), name.clone()]),
                }
            }
            let parameters = || named.iter().map(|(n, t, d)| (n.as_str(), t, *d));
            let layout = BucketLayout::with_adjacent(parameters(), &adjacent, size);
            let kind = |name: &String| named.iter().find(|n| n.0 == *name).map(|n| (n.1.dtype, n.2));
            let mut following = std::collections::HashSet::new();
            let mut seen = std::collections::HashSet::new();
            for list in &adjacent {
                let fits = list.iter().all(|name| kind(name) == kind(&list[0]) && !seen.contains(name));
                if fits {
                    seen.extend(list);
                    following.extend(&list[1..]);
                    for two in list.windows(2) {
                        prop_assert!(layout.adjacent(&two[0], &two[1]), "{two:?}: {layout:?}");
                    }
                }
            }
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
                    prop_assert!(e.offset >= end && (e.offset.is_multiple_of(BLOCK) || following.contains(&e.name)));
                    end = e.offset + e.shape.numel();
                }
                prop_assert!(end <= b.elements);
            }
            // In the order in which they are complete; closed by the parameter that reaches the limit.
            let number = |e: &Entry| named.iter().position(|(n, ..)| *n == e.name).unwrap();
            let last: Vec<usize> = layout.buckets.iter().map(|b| number(b.entries.last().unwrap())).collect();
            prop_assert!(last.is_sorted());
            for b in &layout.buckets {
                let begins = b.entries.iter().rfind(|e| !following.contains(&e.name)).unwrap().offset;
                prop_assert!(begins * b.dtype.size() < first.max(rest));
            }
            // Cut otherwise, every parameter has the same place among the elements of its kind.
            let whole = BucketLayout::with_adjacent(parameters(), &adjacent, BucketSize::UNLIMITED);
            for (i, e) in layout.entries() {
                let (j, f) = whole.find(&e.name).unwrap();
                prop_assert_eq!(layout.buckets[i].start + e.offset, f.offset);
                prop_assert_eq!(layout.buckets[i].kind, whole.buckets[j].kind);
            }
            let names = |l: &BucketLayout| {
                let entries = l.by_kind().into_iter().flat_map(|i| &l.buckets[i].entries);
                entries.map(|e| e.name.clone()).collect::<Vec<_>>()
            };
            prop_assert_eq!(names(&layout), names(&whole));
        }
    }
}
