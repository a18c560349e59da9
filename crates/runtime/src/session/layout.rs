//! The state's segments and their content, known before any memory is taken.

use super::Training;
use super::model::ModelTensor;
use crate::error::{Error, Result};
use crate::optim::{Groups, Moment};
use headwater_core::pass::split_wide::wide_scalar;
use headwater_core::plan::{Place, Segment, SegmentId, SegmentKind};
use headwater_core::target::Target;
use headwater_core::train::update::loss_scale_type;
use headwater_core::train::{BLOCK, Bucket, BucketLayout, Entry, Kept, Master, StateKey};
use headwater_core::{DType, TensorType};
use std::collections::{HashMap, HashSet};

/// A tensor of the state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub place: Place,
    pub ty: TensorType,
}

/// Content of a segment of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Parameters,
    Masters,
    Gradients,
    Moments,
    /// Buffers and constants.
    Buffers,
    /// A step's learning rate, scale, key of random numbers.
    Scalars,
}

/// Segments, and names for their contents.
#[derive(Debug)]
pub(crate) struct StateLayout {
    /// Bytes to which packed tensors are aligned.
    pub(super) alignment: usize,
    segments: Vec<(Segment, Holds)>,
    slots: HashMap<StateKey, Slot>,
    /// The segment of a step's scalars.
    pub(super) scalars: Option<SegmentId>,
    /// Tensors that are not zero at first, and the number that fills them.
    pub(super) initial: Vec<(StateKey, f64)>,
}

impl StateLayout {
    /// Flat buckets for what is trained, packed segments for the rest. `written` are the tensors that the
    /// model itself writes, such as the weights of a momentum encoder.
    pub fn new(
        target: &Target,
        layout: &BucketLayout,
        tensors: &[ModelTensor],
        written: &HashSet<&str>,
        training: Option<(&Training, &Groups)>,
    ) -> StateLayout {
        let mut state = StateLayout {
            alignment: target.memory.alignment,
            segments: Vec::new(),
            slots: HashMap::new(),
            scalars: None,
            initial: Vec::new(),
        };
        let scalar = |dtype| TensorType::new(dtype, [0usize; 0]);
        let mut scalars = Vec::new();
        for (i, bucket) in layout.buckets.iter().enumerate() {
            let Some((t, groups)) = training else { break };
            let (wide, rule) = (bucket.wide(), groups.update_rule(bucket.group));
            let held = if t.sums() { wide } else { bucket.dtype };
            let mut flat = |key: StateKey, ty: TensorType, kind: &str, holds: Holds| -> Place {
                let label = format!("{kind}.{}", bucket.name());
                let segment = state.segment(label, ty.bytes(), SegmentKind::State, holds);
                let place = Place { segment, offset: 0 };
                state.name(key, Slot { place, ty });
                place
            };
            let parameters =
                flat(StateKey::Parameters(i), bucket.span(bucket.dtype), "parameters", Holds::Parameters);
            let kept = match bucket.master {
                Master::None => None,
                Master::Whole => Some(("masters", wide)),
                Master::Rest => Some(("master rests", DType::I16)),
            };
            let masters = kept.map(|(kind, dtype)| {
                let key = StateKey::Bucket(i, Kept::Masters);
                (flat(key, bucket.span(dtype), kind, Holds::Masters), dtype)
            });
            let key = StateKey::Bucket(i, Kept::Gradients);
            let gradients = flat(key, bucket.gradients(held), "gradients", Holds::Gradients);
            for number in 0..t.pending() {
                let key = StateKey::Bucket(i, Kept::Pending(number));
                flat(key, bucket.gradients(held), &format!("pending sums {number}"), Holds::Gradients);
            }
            let rows = bucket.rows.map(|n| {
                let (key, ty) = (StateKey::Bucket(i, Kept::GradientRows), TensorType::new(DType::I64, [n]));
                Slot { place: flat(key, ty.clone(), "rows of gradients", Holds::Gradients), ty }
            });
            let moments: Vec<Moment> = rule.moments().into_iter().flatten().collect();
            let bucket_key = |kept: fn(String) -> Kept, m: &Moment| StateKey::Bucket(i, kept(m.name.into()));
            let places = moments.iter().map(|m| {
                let place = flat(bucket_key(Kept::Moment, m), m.span(bucket), m.name, Holds::Moments);
                let scales = m.scales(bucket).map(|ty| {
                    let kind = format!("scales of {}", m.name);
                    flat(bucket_key(Kept::Scales, m), ty, &kind, Holds::Moments)
                });
                (place, scales)
            });
            let places: Vec<(Place, Option<Place>)> = places.collect();
            for (number, e) in bucket.entries.iter().enumerate() {
                let slot = |base: Place, dtype: DType| Slot {
                    place: Place { offset: base.offset + e.offset * dtype.size(), ..base },
                    ty: TensorType::new(dtype, e.shape.clone()),
                };
                state.name(StateKey::Parameter(e.name.clone()), slot(parameters, bucket.dtype));
                if let Some((masters, dtype)) = masters {
                    state.name(StateKey::master(&e.name), slot(masters, dtype));
                }
                let gradient = match &rows {
                    Some(rows) => {
                        state.name(StateKey::gradient_rows(&e.name), rows.clone());
                        Slot { place: gradients, ty: bucket.gradients(held) }
                    }
                    None => slot(gradients, held),
                };
                state.name(StateKey::gradient(&e.name), gradient);
                for (m, (base, scales)) in moments.iter().zip(&places) {
                    let own = if m.single {
                        let place = Place { offset: number * wide.size(), ..*base };
                        Slot { place, ty: scalar(wide) }
                    } else {
                        slot(*base, m.dtype(bucket))
                    };
                    state.name(StateKey::moment(m.name, &e.name), own);
                    if let Some(scales) = scales {
                        let (first, count) = blocks(bucket, e);
                        let place = Place { offset: first * DType::F32.size(), ..*scales };
                        let ty = TensorType::new(DType::F32, [count]);
                        state.name(StateKey::scales(m.name, &e.name), Slot { place, ty });
                    }
                }
            }
            for m in moments.iter().filter(|m| m.initial != 0.0) {
                // A moment in codes begins with the highest code, which stands for its scale.
                let top = if m.dtype(bucket) == DType::U8 { u8::MAX as f64 } else { i8::MAX as f64 };
                let coded = m.scales(bucket).is_some();
                state.initial.push((bucket_key(Kept::Moment, m), if coded { top } else { m.initial }));
                state.initial.extend(coded.then(|| (bucket_key(Kept::Scales, m), m.initial)));
            }
            scalars.extend(rule.scalars().into_iter().map(|s| (StateKey::Scalar(i, s.into()), scalar(wide))));
        }
        scalars.push((StateKey::Unscale, wide_scalar(target)));
        scalars.push((StateKey::LossScale, loss_scale_type()));
        scalars.push((StateKey::Fault, scalar(DType::Bool)));
        scalars.push((StateKey::Rng, TensorType::new(DType::I64, [2])));
        let numbers = state.pack("scalars", SegmentKind::Input, Holds::Scalars, scalars);
        state.scalars = Some(numbers);
        let (mut parameters, mut buffers, mut constants) = (Vec::new(), Vec::new(), Vec::new());
        let mut changing = Vec::new();
        for t in tensors.iter().filter(|t| layout.find(&t.name).is_none()) {
            let key = t.key();
            let own = match key {
                StateKey::Parameter(_) if written.contains(t.name.as_str()) => &mut changing,
                StateKey::Parameter(_) => &mut parameters,
                StateKey::Buffer(_) => &mut buffers,
                _ => &mut constants,
            };
            own.push((key, t.ty.clone()));
        }
        state.pack("frozen parameters", SegmentKind::Constant, Holds::Parameters, parameters);
        if !changing.is_empty() {
            state.pack("written parameters", SegmentKind::State, Holds::Parameters, changing);
        }
        state.pack("buffers", SegmentKind::State, Holds::Buffers, buffers);
        state.pack("constants", SegmentKind::Constant, Holds::Buffers, constants);
        state
    }

    /// Adds a segment.
    fn segment(&mut self, name: String, bytes: usize, kind: SegmentKind, holds: Holds) -> SegmentId {
        self.segments.push((Segment { name, bytes, kind }, holds));
        SegmentId(self.segments.len() as u32)
    }

    /// Adds a segment holding consecutive tensors.
    fn pack(
        &mut self,
        name: &str,
        kind: SegmentKind,
        holds: Holds,
        tensors: Vec<(StateKey, TensorType)>,
    ) -> SegmentId {
        let segment = SegmentId(self.segments.len() as u32 + 1);
        let mut offset = 0usize;
        for (key, ty) in tensors {
            let bytes = ty.bytes();
            self.name(key, Slot { place: Place { segment, offset }, ty });
            offset += bytes.next_multiple_of(self.alignment);
        }
        self.segment(name.to_string(), offset, kind, holds)
    }

    /// Names a tensor.
    fn name(&mut self, key: StateKey, slot: Slot) {
        self.slots.insert(key, slot);
    }

    /// Finds a tensor.
    ///
    /// # Errors
    /// `Model` if there is none.
    pub fn slot(&self, key: &StateKey) -> Result<&Slot> {
        let found = self.slots.get(key);
        found.ok_or_else(|| Error::Model(format!("the state has no {key}: {key:?}")))
    }

    /// The segments, in the order of their ids.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().map(|(s, _)| s)
    }

    /// Bytes of the segments with some content.
    pub(super) fn bytes(&self, holds: Holds) -> usize {
        self.segments.iter().filter(|(_, h)| *h == holds).map(|(s, _)| s.bytes).sum()
    }
}

/// The first block of a parameter and its number of blocks, as its moments in codes have scales. A block is a
/// row of a table with a sparse gradient, else [`BLOCK`] elements.
pub(super) fn blocks(bucket: &Bucket, e: &Entry) -> (usize, usize) {
    match bucket.rows {
        Some(_) => (0, e.shape[0]),
        None => (e.offset / BLOCK, e.shape.numel().div_ceil(BLOCK)),
    }
}
