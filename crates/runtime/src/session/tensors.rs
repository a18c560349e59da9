//! The part of a session that outlives it: the model's tensors and the optimizer's moments. The gradients are
//! here too, to look at.

use super::Session;
use super::layout::Slot;
use super::model::ModelTensor;
use crate::data::append;
use crate::error::Result;
use headwater_core::ops::update::{master, moment_codes};
use headwater_core::train::{BLOCK, Kept, StateKey};
use headwater_core::{DType, Shape, Tensor, TensorType};
use std::borrow::Cow;

impl Session {
    /// Bytes of a parameter (its f32 master, if it has one), buffer or constant of [`Session::tensors`].
    pub fn read(&self, tensor: &ModelTensor) -> Result<Vec<u8>> {
        let held = self.state.read(self.state.slot(&tensor.key())?)?;
        if tensor.ty.dtype == DType::I64 {
            self.check_integers(&tensor.name, &tensor.role, &tensor.ty, &held)?;
        }
        let Ok(master) = self.state.slot(&StateKey::master(&tensor.name)) else { return Ok(held) };
        let master_bytes = self.state.read(master)?;
        if master.ty.dtype != DType::I16 {
            return Ok(master_bytes);
        }
        let halves = held.chunks_exact(2).zip(master_bytes.chunks_exact(2));
        let join = |(w, r): (&[u8], &[u8])| {
            master::join(u16::from_le_bytes([w[0], w[1]]), i16::from_le_bytes([r[0], r[1]])).to_le_bytes()
        };
        Ok(halves.flat_map(join).collect())
    }

    /// Replaces a parameter, with its master, a buffer or a constant. The bytes are of the tensor's dtype,
    /// and are rounded to those it is held in.
    pub fn write(&mut self, tensor: &ModelTensor, bytes: &[u8]) -> Result<()> {
        let own = self.state.slot(&tensor.key())?.clone();
        let name = &tensor.name;
        self.check_integers(name, &tensor.role, &tensor.ty, bytes)?;
        let Ok(master) = self.state.slot(&StateKey::master(name)).cloned() else {
            return self.state.write(&own, name, &converted(tensor.ty.dtype, own.ty.dtype, bytes));
        };
        let wide = converted(tensor.ty.dtype, DType::F32, bytes);
        if master.ty.dtype != DType::I16 {
            self.state.write(&own, name, &converted(tensor.ty.dtype, own.ty.dtype, bytes))?;
            return self.state.write(&master, name, &wide);
        }
        let (mut weights, mut rests) =
            (Vec::with_capacity(wide.len() / 2), Vec::with_capacity(wide.len() / 2));
        for x in wide.chunks_exact(4) {
            let (weight, rest) = master::split(f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
            weights.extend(weight.to_le_bytes());
            rests.extend(rest.to_le_bytes());
        }
        self.state.write(&own, name, &weights)?;
        self.state.write(&master, name, &rests)
    }

    /// Keys and types of the moments, by parameter.
    pub fn moments(&self) -> Vec<(StateKey, TensorType)> {
        let Some(t) = &self.training else { return Vec::new() };
        let mut out = Vec::new();
        for (bucket, e) in self.layout.entries() {
            let bucket = &self.layout.buckets[bucket];
            for moment in t.groups.rule(bucket.group).moments().into_iter().flatten() {
                let shape = if moment.single { Shape::default() } else { e.shape.clone() };
                out.push((StateKey::moment(moment.name, &e.name), TensorType::new(bucket.wide(), shape)));
            }
        }
        out
    }

    /// Bytes of a moment of [`Session::moments`], in the type given there, however it is kept.
    pub fn read_moment(&self, key: &StateKey) -> Result<Vec<u8>> {
        let slot = self.state.slot(key)?;
        let held = self.state.read(slot)?;
        let Some((scales, width)) = self.scales(key)? else {
            return Ok(converted(slot.ty.dtype, wide(slot.ty.dtype), &held).into_owned());
        };
        let unsigned = slot.ty.dtype == DType::U8;
        let scales = self.state.tensor(scales)?;
        let mut out = Vec::with_capacity(held.len() * DType::F32.size());
        for (codes, &scale) in held.chunks(width).zip(scales.floats()) {
            out.extend(
                codes.iter().flat_map(|&c| moment_codes::decode(c, scale as f32, unsigned).to_le_bytes()),
            );
        }
        Ok(out)
    }

    /// Replaces a moment. What was read from one kept in the same form gives the same bits again.
    pub fn write_moment(&mut self, key: &StateKey, bytes: &[u8]) -> Result<()> {
        let slot = self.state.slot(key)?.clone();
        let name = key.to_string();
        let Some((scales, width)) = self.scales(key)?.map(|(s, width)| (s.clone(), width)) else {
            return self.state.write(&slot, &name, &converted(wide(slot.ty.dtype), slot.ty.dtype, bytes));
        };
        let numbers: Vec<f32> =
            bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
        let (mut codes, mut found) = (Vec::with_capacity(numbers.len()), Vec::new());
        for block in numbers.chunks(width) {
            let (own, scale) = moment_codes::encode(block, slot.ty.dtype == DType::U8);
            codes.extend(own);
            found.extend(scale.to_le_bytes());
        }
        self.state.write(&slot, &name, &codes)?;
        self.state.write(&scales, &name, &found)
    }

    /// Scales of a moment that is kept in codes, and elements of a block.
    fn scales(&self, key: &StateKey) -> Result<Option<(&Slot, usize)>> {
        let StateKey::Part(parameter, Kept::Moment(moment)) = key else { return Ok(None) };
        let Ok(slot) = self.state.slot(&StateKey::scales(moment, parameter)) else { return Ok(None) };
        let bucket = self.layout.find(parameter).map(|(bucket, _)| &self.layout.buckets[bucket]);
        let table = bucket.filter(|b| b.rows.is_some()).map(|b| b.span(DType::F32).shape[1]);
        Ok(Some((slot, table.unwrap_or(BLOCK))))
    }

    /// The gradient of a trained parameter as stored in memory: the sum over the micro-batches of the step.
    pub fn gradient(&self, parameter: &str) -> Result<Tensor> {
        self.state.tensor(self.state.slot(&StateKey::gradient(parameter))?)
    }
}

/// The type that moments kept in this one are computed in.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Elements of another dtype, rounded to nearest.
fn converted(from: DType, to: DType, bytes: &[u8]) -> Cow<'_, [u8]> {
    if from == to {
        return bytes.into();
    }
    let mut out = Vec::with_capacity(bytes.len() / from.size() * to.size());
    // In pieces: the conversion goes by way of f64.
    bytes.chunks(from.size() << 16).for_each(|piece| append(from, to, piece, &mut out));
    out.into()
}
